"""The outcome of one attempt of a record, and the time of the next attempt. Values only."""

from __future__ import annotations

import random
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from raftmq.client.base.background import Backoff
from raftmq.client.worker.signals import Reject, Retry
from raftmq.errors import DeserializationError, HandlerError


def name_of_class(kind: type[BaseException]) -> str:
    """Return the name of an exception class, with its module unless the class is built in."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed attempt.

    An exception of a handler in another process need not exist in this one, so every decision depends on text only.
    """

    error: str
    """The error's class, with its module unless it is built in."""
    message: str
    is_timeout: bool = False
    """The handler exceeded its time limit."""
    kinds: tuple[str, ...] = ()
    """The error's class and all its base classes; empty if the failure is no exception of the handler."""
    exception: BaseException | None = field(default=None, compare=False, repr=False)
    """The exception that was raised, if it exists in this process."""
    retry_after_seconds: float | None = None
    """The wait before the next attempt, as requested by the handler."""
    is_retry: bool = False
    """The handler requested another attempt; nothing failed."""
    is_rejected: bool = False
    """No attempt will ever succeed."""

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the failure for an exception. For `Retry` and `Reject` with a cause, it shows the cause."""
        is_order = isinstance(error, Retry | Reject)
        shown = error.__cause__ if is_order and error.__cause__ is not None else error
        kinds = tuple(name_of_class(kind) for kind in type(shown).__mro__ if issubclass(kind, BaseException))
        try:
            message = str(shown)
        except Exception as unreadable:  # noqa: BLE001 - the user's own __str__ is no reason to stop
            message = f"(its text cannot be read: {type(unreadable).__name__})"
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
        """Return the failure of a handler that exceeded its time limit."""
        text = f"the handler took longer than {timeout_seconds:g} s"
        error = TimeoutError(text)
        return replace(cls.of(error), is_timeout=True)

    @property
    def cause(self) -> BaseException:
        """Return an exception that explains the failure: the handler's own, if there is one."""
        return self.exception if self.exception is not None else HandlerError(f"{self.error}: {self.message}")

    @property
    def trace(self) -> str:
        """Return the traceback as text."""
        return "".join(traceback.format_exception(self.cause))


Outcome = Failure | None
"""The outcome of an attempt. None: it succeeded."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Decides whether and when a record is tried again."""

    retries: int | None
    """Attempts after the first. None: no limit."""
    backoff_min_seconds: float
    """The upper bound of the first wait. It doubles with each attempt."""
    backoff_max_seconds: float
    retry_on: frozenset[str] | None = None
    """Names (as by `name_of_class`) of the error classes that are retried. None: all."""
    give_up_on: frozenset[str] = frozenset()
    """Names of the error classes that are never retried; it takes precedence over `retry_on`."""

    @property
    def attempts_max(self) -> int | None:
        """Return the maximum number of attempts of a record, or None if there is no limit."""
        return None if self.retries is None else self.retries + 1

    def wait_seconds(self, failure: Failure, attempts: int, rng: random.Random) -> float | None:
        """Return the wait after that many failed attempts, or None if the record is not tried again.

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
