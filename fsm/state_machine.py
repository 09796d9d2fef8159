"""What the engine needs of a state machine: apply entries in order, hand out changed rows, be restored from rows.

A state machine is pure and deterministic: no clock, no random source, no local configuration; the same entries give
byte-equal rows. `apply` returns a result. It raises only `UnsupportedCommandError`, before anything has changed: a command that
was committed and that this version cannot read was written by a newer one, and to skip it would make another state of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from raftmq.errors import UnsupportedDataError
from raftmq.raft.entry import Entry
from raftmq.types import LogIndex


class UnsupportedCommandError(UnsupportedDataError):
    """A committed entry cannot be read. Nothing of it was applied; the replica must stop and keep its file."""

    def __init__(self, entry: Entry, what: str) -> None:
        super().__init__(
            f"entry {entry.index} holds a {what} that this version cannot read: a newer one wrote it. The replica stays silent and "
            "its file is kept. Upgrade this broker: the replica then continues where it is"
        )
        self.index = entry.index


class StateMachine(Protocol):
    """One group's derived state."""

    applied_index: LogIndex

    def level_needed(self, payload: bytes) -> int | None:
        """The cluster's feature level that a command needs before it is proposed; None when it cannot be read back."""
        ...

    def apply(self, entry: Entry) -> object:
        """Apply the entry at `applied_index + 1` (any kind; MEMBERSHIP and EMPTY change nothing but the index).

        Entries at or below `applied_index` are ignored (result None): restart replay and snapshot catch-up send them.

        Raises:
            UnsupportedCommandError: a newer version wrote it; nothing has changed.
        """
        ...

    def take_dirty_rows(self) -> tuple[tuple[bytes, bytes | None], ...]:
        """Rows changed since the last call, encoded (frozen bytes), None = deleted. They describe `applied_index`."""
        ...

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All rows in key order: the snapshot. Equal on every replica at an equal `applied_index`."""
        ...

    def restore(self, rows: Iterable[tuple[bytes, bytes]], state_index: LogIndex) -> None:
        """Become the state that `rows` describe; `applied_index` is then `state_index`."""
        ...

    def adopt(self, other: StateMachine) -> None:
        """Become `other`, a machine of the same kind that nobody uses afterwards: restored in a thread while this one served."""
        ...
