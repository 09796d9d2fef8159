"""Configure logs: one event per line on standard error, as JSON unless standard error is a terminal.

Event names are static facts in snake_case. Data goes into keys. Payloads, keys and credentials are never logged. Messages of
libraries that use Python's own logging appear in the same form, from WARNING on.

A line that cannot be written is lost: standard error may be a file on a full volume, or a pipe without a reader. Nothing that logs may fail for
that, least of all the end of the process after a failed commit.

systemd's journal reads the level from a number before the line (sd-daemon(3)) and removes it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from typing import Final

import structlog
from structlog.typing import Processor

LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
_JOURNAL_PRIORITIES: Final[Mapping[str, int]] = {"critical": 2, "exception": 3, "error": 3, "warning": 4, "info": 6}
_JOURNAL_DEBUG: Final = 7


class _Printer(structlog.PrintLogger):
    """Writes lines, as far as that is possible."""

    def msg(self, message: str) -> None:
        """Write a line."""
        with suppress(OSError, ValueError):  # ValueError: the file is closed
            super().msg(message)

    log = debug = info = warn = warning = msg
    fatal = failure = err = error = critical = exception = msg


def configure_logs(level: str, *, is_console: bool | None = None, also: Iterable[Processor] = ()) -> None:
    """Set up structlog and the standard library's logging for this process.

    Args:
        level: One of `LEVELS`.
        is_console: Write coloured text instead of JSON. None: only if standard error is a terminal.
        also: Processors that add to each line, such as the ids of a trace.
    """
    if is_console is None:
        is_console = sys.stderr.isatty()
    number = LEVELS[level]
    renderer: Processor = (
        structlog.dev.ConsoleRenderer()
        if is_console
        else structlog.processors.JSONRenderer(sort_keys=False, default=str)
    )
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        *also,
    ]
    if not is_console:
        shared.append(structlog.processors.format_exc_info)
    rendering = [renderer, _prefix_priority] if not is_console and _is_journal(os.environ) else [renderer]
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=lambda *_: _Printer(sys.stderr),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, _name_library],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(number, logging.WARNING))


def set_log_level(level: str) -> None:
    """Change the minimum level of this process after `configure_logs`. `level` is one of `LEVELS`."""
    number = LEVELS[level]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(number))
    logging.getLogger().setLevel(max(number, logging.WARNING))


def _name_library(logger: object, method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Turn a library's free text into an event with a static name."""
    record = event.get("_record")
    name = record.name if isinstance(record, logging.LogRecord) else ""
    return {**event, "event": "library_message", "library": name, "message": event.get("event", "")}


def _is_journal(environment: Mapping[str, str]) -> bool:
    """Return whether standard error is a stream to systemd's journal. Children may inherit the variable with another standard error."""
    try:
        found = os.fstat(2)
    except OSError:
        return False
    return environment.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


def _prefix_priority(logger: object, method: str, line: object) -> str:
    """Put the journal's number of the level before a line."""
    return f"<{_JOURNAL_PRIORITIES.get(method, _JOURNAL_DEBUG)}>{line}"
