"""`Retry` and `Reject`: exceptions by which a handler decides about its record. Any other exception is a failure."""

from __future__ import annotations

import math
from datetime import timedelta

from raftmq.client.base import settings
from raftmq.errors import InvalidArgumentError


class Retry(Exception):  # noqa: N818 - it is a command, and other task queues use this name
    """Raised by a handler to try the record again, without a failure.

    ::

        raise Retry(after=60)  # the service asks for a pause of one minute

    It counts as an attempt: after the worker's `retries` the record is given up. Until the next attempt the record blocks its key, its
    partition or nothing, depending on the worker's `ordering`.

    Args:
        reason: shown in the log and the dead-letter topic. With ``raise Retry(...) from error`` they show the error instead.
        after: the wait before the next attempt, in seconds or as a `timedelta`. None: the same wait as after a failure.

    Raises:
        InvalidArgumentError: `after` is negative, not a number, or longer than a day.
    """

    __module__ = "raftmq"  # logs and dead letters show the name that programs import

    def __init__(self, reason: str = "", *, after: float | timedelta | None = None) -> None:
        super().__init__(reason)
        seconds = after.total_seconds() if isinstance(after, timedelta) else after
        if seconds is not None and not _may_wait(seconds):
            most = settings.WORKER_RETRY_AFTER_SECONDS_MAX
            raise InvalidArgumentError(f"after={after!r}: give seconds from 0 to {most:g}, a timedelta, or None")
        self.reason = reason
        self.after_seconds = seconds

    def __reduce__(self) -> tuple[object, ...]:
        return _retry, (self.reason, self.after_seconds)


def _may_wait(seconds: object) -> bool:
    """Return whether a wait is valid. It may be anything, because callers need not check types."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return False
    return 0 <= seconds <= settings.WORKER_RETRY_AFTER_SECONDS_MAX


def _retry(reason: str, after_seconds: float | None) -> Retry:
    return Retry(reason, after=after_seconds)


class Reject(Exception):  # noqa: N818 - it is a command, and other task queues use this name
    """Raised by a handler when no attempt will ever succeed.

    The record goes to the dead-letter topic immediately. Without such a topic the worker stops.

    ::

        raise Reject("there is no such customer")
        raise Reject from error
    """

    __module__ = "raftmq"
