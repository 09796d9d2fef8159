"""`FailureReports`: logs failures of handlers at a bounded rate, and passes each one to the program's own function.

Must not decide what becomes of a record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raftmq.client.base import settings
from raftmq.client.base.logs import LogThrottle, log
from raftmq.client.worker.handlers import Attempt
from raftmq.client.worker.outcome import Failure
from raftmq.types import Record


@dataclass(frozen=True, slots=True)
class HandlerFailure:
    """A failed attempt, as passed to a worker's `on_failure`."""

    record: Record
    """The record as it was read: its key and value are bytes."""
    attempt: Attempt
    error: BaseException
    """The handler's exception. For a handler in a process it is a copy whose cause is the remote traceback."""
    retry_after_seconds: float | None
    """The wait before the next attempt, or None if the record is given up."""


OnFailure = Callable[[HandlerFailure], object]


class FailureReports:
    """Reports the failures of one worker."""

    def __init__(self, on_failure: OnFailure | None) -> None:
        self._on_failure = on_failure
        self._throttle = LogThrottle(settings.LOG_INTERVAL_SECONDS)
        self._known: set[tuple[str, str]] = set()  # topics and error classes that were logged

    def report(self, record: Record, attempt: Attempt, failure: Failure, retry_after_seconds: float | None) -> None:
        """Report a failed attempt. The first failure of each kind is always logged; the others at a bounded rate."""
        if failure.is_retry and retry_after_seconds is not None:
            data = (record.topic, record.partition, record.offset, attempt.number, retry_after_seconds)
            log.debug("handler_asked_to_retry topic=%s partition=%d offset=%d attempts=%d after_seconds=%g", *data)
            return
        self._say(record, attempt, failure)
        if self._on_failure is None:
            return
        try:
            self._on_failure(HandlerFailure(record, attempt, failure.cause, retry_after_seconds))
        except Exception:  # noqa: BLE001 - the program's own code
            log.exception("failure_callback_failed topic=%s", record.topic)

    def _say(self, record: Record, attempt: Attempt, failure: Failure) -> None:
        cause, message = failure.cause, failure.message[: settings.WORKER_FAILURE_TEXT_MAX]
        data = (record.topic, record.partition, record.offset, attempt.number, failure.error, message)
        exc_info = (type(cause), cause, cause.__traceback__)
        is_due = self._throttle.is_due()  # asked first, so that the log line of a new kind counts, too
        if self._is_new(record.topic, failure.error) or is_due:
            log.warning(
                "handler_failed topic=%s partition=%d offset=%d attempts=%d error=%s message=%s",
                *data,
                exc_info=exc_info,
            )
        else:
            log.debug(
                "handler_failed_again topic=%s partition=%d offset=%d attempts=%d error=%s message=%s",
                *data,
                exc_info=exc_info,
            )

    def _is_new(self, topic: str, error: str) -> bool:
        kind = (topic, error)
        if kind in self._known or len(self._known) >= settings.WORKER_FAILURE_KINDS_MAX:
            return False
        self._known.add(kind)
        return True
