"""Define what the core needs from outside: reads of the durable log, and random numbers.

The shell implements `LogView` over `storage`, and tests implement it in memory.
"""

from __future__ import annotations

from typing import Protocol

from raftmq.raft.entry import Entry, EntryHeader
from raftmq.types import LogIndex


class LogView(Protocol):
    """Read durable entries. The core never asks for an index outside the durable log."""

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...] | None:
        """Return entries `first`..`last` (inclusive), as many as fit into `bytes_max` payload bytes, but at least one.

        Return None when the entries are not in memory. The shell then fetches them and calls `RaftCore.entries_fetched()`.
        The core sends the peer nothing until that call.
        """
        ...

    def header(self, index: LogIndex) -> EntryHeader:
        """Return the header of a durable entry. It costs one read of a row, and happens only after a truncation."""
        ...


class CopyPace(Protocol):
    """Bound the entries that are sent to learners whose copies are not urgent, over all groups of a process."""

    def may_send(self) -> bool:
        """Return whether entries may be sent to such a learner now. After a False the shell calls `RaftCore.resume_copies()` later."""
        ...

    def spend(self, payload_bytes: int) -> None:
        """Count entries that were sent to such a learner."""
        ...


class Unlimited:
    """Hold nothing back."""

    def may_send(self) -> bool:
        """Return True."""
        return True

    def spend(self, payload_bytes: int) -> None:
        """Count nothing."""


class Random(Protocol):
    """Draw random numbers (`random.Random` fits). This is the only source of chance in the core."""

    def randrange(self, stop: int, /) -> int:
        """Return a random number in [0, stop)."""
        ...
