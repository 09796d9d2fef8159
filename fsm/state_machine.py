"""The interface between the engine and a state machine: apply entries in order, return changed rows, restore from rows.

A state machine is pure and deterministic. It has no clock, no random source and no local configuration, and the same
entries give byte-equal rows. `apply` returns a result. It raises only `UnsupportedCommandError`, before anything has
changed: a committed command that this version cannot read was written by a newer version, and skipping it would produce
a different state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from raftmq.errors import UnsupportedDataError
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

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Return all rows in key order. They are the snapshot, equal on every replica at an equal `applied_index`."""
        ...

    def restore(self, rows: Iterable[tuple[bytes, bytes]], state_index: LogIndex) -> None:
        """Replace the state by the one that `rows` describe. `applied_index` is then `state_index`."""
        ...

    def adopt(self, other: StateMachine) -> None:
        """Take over the state of `other`, a machine of the same kind that nobody uses afterwards.

        It was restored in a thread while this one served.
        """
        ...
