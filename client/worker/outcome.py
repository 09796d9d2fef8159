"""What became of one try of a record, and when the next one is. Values only."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from raftmq.client.base.background import Backoff
from raftmq.client.worker.signals import Reject, Retry
from raftmq.errors import DeserializationError, HandlerError


def name_of_class(kind: type[BaseException]) -> str:
    """An exception class, with its module unless it is a built-in one."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A try that failed. What a handler raises in another process need not exist in this one, so everything that is decided by is text."""

    error: str
    """The error's class, with its module unless it is a built-in one."""
    message: str
    is_timeout: bool = False
    """It took longer than it may."""
    kinds: tuple[str, ...] = ()
    """The error's class and all that it inherits from; nothing: no exception of the handler's."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """What was raised, if it exists here."""
    retry_after_seconds: float | None = None
    """So long the handler wants to wait until the next try."""
    is_retry: bool = False
    """The handler asked for another try; nothing failed."""
    is_rejected: bool = False
    """No try will ever help."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """The failure that an exception is. Of `Retry` and `Reject` with a cause, the cause is what is shown."""
        is_order = isinstance(error, Retry | Reject)
        shown = error.__cause__ if is_order and error.__cause__ is not None else error
        kinds = tuple(name_of_class(kind) for kind in type(shown).__mro__ if issubclass(kind, BaseException))
        try:
            message = str(shown)
        except Exception as unreadable:  # noqa: BLE001 - the user's own __str__ is no reason to stop
            message = f"(its text cannot be had: {type(unreadable).__name__})"
        return cls(
            kinds[0],
            message,
            kinds=kinds,
            exception=shown,
            retry_after_seconds=error.after_seconds if isinstance(error, Retry) else None,
            is_retry=isinstance(error, Retry),
            is_rejected=isinstance(error, Reject | DeserializationError),
        )

    @classmethod
    def overdue(cls, timeout_seconds: float) -> Failure:
        """The failure of a handler that took too long."""
        text = f"the handler took longer than {timeout_seconds:g} s"
        error = TimeoutError(text)
        return replace(cls.of(error), is_timeout=True)

    @property
    def cause(self) -> BaseException:
        """An exception that says what went wrong: the handler's own, if there is one."""
        return self.exception if self.exception is not None else HandlerError(f"{self.error}: {self.message}")

    @property
    def trace(self) -> str:
        """Its traceback as a text."""
        return "".join(traceback.format_exception(self.cause))


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
    retry_on: frozenset[str] | None = None
    """Classes of errors that are tried again, by `name_of_class`; None: all."""
    give_up_on: frozenset[str] = frozenset()
    """Classes that are not; they go before the others."""

    @property
    def attempts_max(self) -> int | None:
        """Tries of a record at most; None: without end."""
        return None if self.retries is None else self.retries + 1

    def wait_seconds(self, failure: Failure, attempts: int, rng: random.Random) -> float | None:
        """How long to wait after so many failed tries; None: it is not tried again.

        Half to all of a bound that doubles, or what the handler asked for.
        """
        if failure.is_rejected or (self.retries is not None and attempts > self.retries):
            return None
        if not failure.is_retry and failure.kinds and not self._is_tried_again(failure.kinds):
            return None
        if failure.retry_after_seconds is not None:
            return failure.retry_after_seconds
        backoff = Backoff(self.backoff_min_seconds, self.backoff_max_seconds, rng)
        backoff.failures = attempts - 1
        return backoff.next_seconds()

    def _is_tried_again(self, kinds: Iterable[str]) -> bool:
        found = frozenset(kinds)
        return not found & self.give_up_on and (self.retry_on is None or bool(found & self.retry_on))
