"""What the core needs of the durable log. Owned here, implemented by the shell over `storage`, and in memory by tests."""

from __future__ import annotations

from typing import Protocol

from raftmq.raft.entry import Entry, EntryHeader
from raftmq.types import LogIndex


class LogView(Protocol):
    """Reads of durable entries. Never asked for indexes outside the durable log."""

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...] | None:
        """Entries `first`..`last` (inclusive), cut off before `bytes_max` payload bytes but at least one.

        None: they are not in memory; the shell fetches them and calls `RaftCore.entries_fetched()` when they are.
        The core then leaves the peer alone until that call.
        """
        ...

    def header(self, index: LogIndex) -> EntryHeader:
        """The header of a durable entry (one row read; rare: after a truncation only)."""
        ...


class Random(Protocol):
    """The injected generator (`random.Random` fits): the core's only source of chance."""

    def randrange(self, stop: int, /) -> int:
        """A number in [0, stop)."""
        ...
