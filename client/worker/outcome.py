"""What became of one try of a record, and how long to wait before the next. Values only."""

from __future__ import annotations

import random
import traceback
from dataclasses import dataclass

from raftmq.client.background import Backoff


@dataclass(frozen=True, slots=True)
class Failure:
    """A try that failed, as texts: what a handler raises in another process need not exist in this one."""

    error: str
    """The error's class, with its module unless it is a built-in one."""
    message: str
    trace: str = ""
    """The traceback, if there is one."""
    is_timeout: bool = False
    """It took longer than it may."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception is."""
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        try:
            message = str(error)
        except Exception as unreadable:  # noqa: BLE001 - the user's own __str__ is no reason to stop
            message = f"(its text cannot be had: {type(unreadable).__name__})"
        return cls(name, message, "".join(traceback.format_exception(error)))

    @classmethod
    def overdue(cls, timeout_seconds: float) -> Failure:
        """The failure of a handler that took too long."""
        return cls("TimeoutError", f"the handler took longer than {timeout_seconds:g} s", is_timeout=True)


Outcome = Failure | None
"""What a try came to; None: it succeeded."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often a record is tried again, and when."""

    retries: int | None
    """Tries after the first; None: without end."""
    backoff_min_seconds: float
    """The bound of the first wait; it doubles from try to try."""
    backoff_max_seconds: float

    def wait_seconds(self, attempts: int, source: random.Random) -> float | None:
        """How long to wait after so many failed tries, half to all of a bound that doubles; None: it is not tried again."""
        if self.retries is not None and attempts > self.retries:
            return None
        backoff = Backoff(self.backoff_min_seconds, self.backoff_max_seconds, source)
        backoff.failures = attempts - 1
        return backoff.next_seconds()
