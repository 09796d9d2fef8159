"""Prints the log lines of brokers and clients in the trace, or silences them, which is faster."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from sim.cluster.world.host import HOST


def silence_logs() -> None:
    """Silence the logs of brokers and clients for the rest of the process, since loggers are created once."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        processors=[_drop],
        cache_logger_on_first_use=True,
    )
    logging.getLogger("raftmq").setLevel(logging.CRITICAL + 1)
    logging.getLogger("asyncio").setLevel(logging.CRITICAL + 1)


def _drop(_: object, method: str, event: MutableMapping[str, Any]) -> str:
    raise structlog.DropEvent


def logs_to(trace: Callable[[str], None], level: int) -> None:
    """Trace all log lines from a level on, each with its host, for the rest of the process."""

    def write(_: object, method: str, event: MutableMapping[str, Any]) -> str:
        what = event.pop("event", "")
        event.pop("exc_info", None)
        fields = " ".join(f"{name}={value}" for name, value in event.items())
        trace(f"{HOST.get()} {method} {what} {fields}")
        raise structlog.DropEvent

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level), processors=[write], cache_logger_on_first_use=True
    )
    logger = logging.getLogger("raftmq")
    logger.setLevel(level)
    logger.addHandler(_Handler(trace))


class _Handler(logging.Handler):
    def __init__(self, trace: Callable[[str], None]) -> None:
        super().__init__()
        self._trace = trace

    def emit(self, record: logging.LogRecord) -> None:
        self._trace(f"{HOST.get()} {record.levelname.lower()} {record.getMessage()}")
