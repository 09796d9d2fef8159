"""What a handler raises to say what shall become of its record: `Retry` and `Reject`. Any other exception is a failure."""

from __future__ import annotations

import math
from datetime import timedelta

from raftmq.client.base import settings
from raftmq.errors import InvalidArgumentError


class Retry(Exception):  # noqa: N818 - an order, and what other task queues call it
    """Raised by a handler: try the record again, though nothing is wrong with it or with the handler.

    ::

        raise Retry(after=60)  # the service says: come again in a minute

    It counts as a try: after the worker's `retries` the record is given up. Meanwhile it holds up its key, its partition or nothing, as
    the worker's `ordering` says.

    Args:
        reason: for the log and the dead-letter topic. With ``raise Retry(...) from error`` the error is what they show.
        after: how long to wait, in seconds or as a `timedelta`. None: as after a failure.

    Raises:
        InvalidArgumentError: `after` is negative, no number, or longer than a day.
    """

    __module__ = "raftmq"  # what is logged, and stands in dead letters, is the name that programs use

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
    """Also of what is no number, which types do not keep anybody from writing."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return False
    return 0 <= seconds <= settings.WORKER_RETRY_AFTER_SECONDS_MAX


def _retry(reason: str, after_seconds: float | None) -> Retry:
    return Retry(reason, after=after_seconds)


class Reject(Exception):  # noqa: N818 - an order, and what other task queues call it
    """Raised by a handler: no try will ever help. The record goes to the dead-letter topic at once; without one the worker stops.

    ::

        raise Reject("there is no such customer")
        raise Reject from error
    """

    __module__ = "raftmq"
