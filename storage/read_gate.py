"""A lock that lets a file be swapped under its readers: it is held by many readers, or by one owner alone.

Waiting owners go first, so that a series of reads cannot delay the installation of a snapshot. A reader holds the gate for
one short read, never while it waits for anything else. The gate is not reentrant.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class ReadGate:
    """A readers-writer lock that prefers the writer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._readers = 0
        self._owners_waiting = 0
        self._is_owned = False
        self._shared = _Shared(self)

    def shared(self) -> _Shared:
        """Return a context that keeps the file from being swapped during one read."""
        return self._shared

    def enter_shared(self) -> None:
        """Begin one read."""
        with self._lock:
            while self._is_owned or self._owners_waiting:
                self._changed.wait()
            self._readers += 1

    def leave_shared(self) -> None:
        """End one read."""
        with self._lock:
            self._readers -= 1
            if not self._readers and self._owners_waiting:
                self._changed.notify_all()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Wait for the reads in progress and block new ones."""
        with self._lock:
            self._owners_waiting += 1
            while self._is_owned or self._readers:
                self._changed.wait()
            self._owners_waiting -= 1
            self._is_owned = True
        try:
            yield
        finally:
            with self._lock:
                self._is_owned = False
                self._changed.notify_all()


class _Shared:
    """The context of reads. It has no state of its own, so all reads use one: every look at a file enters it."""

    __slots__ = ("_gate",)

    def __init__(self, gate: ReadGate) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        self._gate.enter_shared()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._gate.leave_shared()
