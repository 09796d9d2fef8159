"""What the engine needs of a state machine: apply entries in order, hand out changed rows, be restored from rows.

A state machine is pure and deterministic: no clock, no random source, no local configuration; the same entries give
byte-equal rows. `apply` returns a result and never raises on any payload (an unreadable command gives `Rejected`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from raftmq.raft.entry import Entry
from raftmq.types import LogIndex


class StateMachine(Protocol):
    """One group's derived state."""

    applied_index: LogIndex

    def apply(self, entry: Entry) -> object:
        """Apply the entry at `applied_index + 1` (any kind; MEMBERSHIP and EMPTY change nothing but the index).

        Entries at or below `applied_index` are ignored (result None): restart replay and snapshot catch-up send them.
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
