"""The interface between the engine and a state machine: apply entries in order, return changed rows, restore from rows.

A state machine is pure and deterministic. It has no clock, no random source and no local configuration, and the same
entries give byte-equal rows. `apply` returns a result. It raises only `UnsupportedCommandError`, before anything has
changed: a committed command that this version cannot read was written by a newer version, and skipping it would produce
a different state.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import ClassVar, Protocol

from raftmq.errors import UnsupportedDataError
from raftmq.fsm.row_reads import RowRange, RowsFound, RowsNeeded
from raftmq.fsm.tables import Row
from raftmq.raft.entry import Entry
from raftmq.types import LogIndex


class UnsupportedCommandError(UnsupportedDataError):
    """Raised when a committed entry cannot be read. Nothing of it was applied. The replica must stop and keep its file."""

    def __init__(self, entry: Entry, what: str) -> None:
        super().__init__(
            f"entry {entry.index} holds a {what} that this version cannot read: a newer version wrote it. The replica stays silent and "
            "its file is kept. Upgrade this broker: the replica then continues where it is"
        )
        self.index = entry.index


class StateMachine(Protocol):
    """Represent the derived state of one group."""

    applied_index: LogIndex

    def level_needed(self, payload: bytes) -> int | None:
        """Return the cluster's feature level that a command needs before it is proposed, or None when it cannot be read
        back.
        """
        ...

    def apply(self, entry: Entry) -> object:
        """Apply the entry at `applied_index + 1` of any kind. MEMBERSHIP and EMPTY change nothing but the index.

        Entries at or below `applied_index` are ignored (result None): restart replay and snapshot catch-up send them.

        Raises:
            UnsupportedCommandError: The entry was written by a newer version. Nothing has changed.
        """
        ...

    def take_dirty_rows(self) -> tuple[tuple[bytes, bytes | None], ...]:
        """Return the rows changed since the last call, encoded as frozen bytes. None means deleted. They describe
        `applied_index`.
        """
        ...

    def restore(self, rows: Iterable[tuple[bytes, bytes]], state_index: LogIndex) -> None:
        """Replace the state by the one that `rows` describe. `applied_index` is then `state_index`."""
        ...

    def adopt(self, other: StateMachine) -> None:
        """Take over the state of `other`, a machine of the same kind that nobody uses afterwards.

        It was restored in a thread while this one served.
        """
        ...


class DiskBackedMachine(StateMachine):
    """Represent a derived state that is larger than memory. Most rows are only on disk, in a file of their own.

    It is a base class, no protocol: whether a machine is one is asked several times for each replica that is opened.

    `apply` may return a `RowsNeeded`: see `row_reads`. `restore` gets only the rows in `resident_ranges`. `take_dirty_rows` keeps the
    rows that it returns, because the disk does not have them yet, until `on_rows_written`. It is not called twice before that.
    """

    resident_ranges: ClassVar[tuple[RowRange, ...]]
    """The ranges whose rows are always in memory."""

    @property
    @abstractmethod
    def dirty_count(self) -> int:
        """Return the number of rows that `take_dirty_rows` would return, or a close upper bound."""
        ...

    @abstractmethod
    def resume(self, found: RowsFound) -> object:
        """Continue with the entry whose `apply` or `resume` returned a `RowsNeeded`. Return its result, or another `RowsNeeded`."""
        ...

    @abstractmethod
    def prefetch(self) -> RowsNeeded | None:
        """Return rows that will soon be needed, or None. Asked between two entries. It never affects a result."""
        ...

    @abstractmethod
    def on_prefetched(self, needed: RowsNeeded, found: RowsFound) -> None:
        """Take the rows that `prefetch` asked for. Entries may have been applied in the meantime.

        Without any rows the read has failed, and `prefetch` may ask for them again.
        """
        ...

    @abstractmethod
    def on_rows_written(self) -> None:
        """Forget the rows of the last `take_dirty_rows`: they are durable. No read that began before is still under way."""
        ...


def resident_rows(machine: StateMachine, rows: Iterable[Row]) -> Iterable[Row]:
    """Return those of all rows that the machine's `restore` takes."""
    if not isinstance(machine, DiskBackedMachine):
        return rows
    ranges = machine.resident_ranges
    return (row for row in rows if any(one.first_key <= row[0] < one.end_key for one in ranges))
