"""Rows that are looked up by name, of which a part is in memory: ids, and the heads of keys.

A name that is not in memory is `UNREAD` until it was fetched. While the table is complete (it began empty and nothing was evicted), a
name that is not in memory does not exist, and nothing is read.

A row that came and went between two write-backs is never written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, Generic, TypeVar

from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.store import Reading
from raftmq.fsm.row_decoders import row_decoder
from raftmq.fsm.row_reads import RowsNeeded
from raftmq.fsm.tables import DirtyRow, encode_value

V = TypeVar("V", bound=tuple[Any, ...])  # a NamedTuple


class Unread(Enum):
    """Mark a row that must be read first."""

    UNREAD = 0


UNREAD: Final = Unread.UNREAD


class PointTable(Generic[V]):
    """Hold a part of the rows of one table by name."""

    def __init__(self, tag: int, row_type: type[V], cached_max: int, *, is_complete: bool) -> None:
        self.tag = tag
        self.cached_max = cached_max
        self.generation = 0
        self.is_complete = is_complete
        """Whether every row of the table is in memory."""
        self._decode: Callable[[bytes], V] = row_decoder(row_type)
        self._changed: dict[bytes, V | None] = {}
        """Rows changed since rows were taken last. None: deleted."""
        self._fresh: set[bytes] = set()
        """Those of the changed rows that have no row on disk."""
        self._frozen: dict[bytes, V | None] = {}
        """Rows that were taken and may not be on disk yet."""
        self._cached: dict[bytes, V | None] = {}
        """Rows as they are on disk. None: there is none."""

    def get(self, name: bytes) -> V | Unread | None:
        """Return a row, None if there is none, or `UNREAD`."""
        for held in (self._changed, self._frozen, self._cached):
            if name in held:
                return held[name]
        return None if self.is_complete else UNREAD

    def read(self, name: bytes) -> V | None:
        """Return a row that memory knows, or None if there is none. `fetch` must have come before."""
        row = self.get(name)
        assert row is not UNREAD, "a row is read before it was fetched"
        return row

    def fetch(self, names: Iterable[bytes]) -> Reading[None]:
        """Read the rows that memory does not know."""
        wanted = [name for name in dict.fromkeys(names) if self.get(name) is UNREAD]
        if not wanted:
            return
        found = yield RowsNeeded(tuple(keys.point(self._key(name)) for name in wanted))
        for name, rows in zip(wanted, found, strict=True):
            self._cached[name] = self._decode(rows[0][1]) if rows else None

    def put(self, name: bytes, row: V) -> None:
        """Store a row whose present value is known."""
        if name not in self._changed and self.read(name) is None and name not in self._frozen:
            self._fresh.add(name)
        self._changed[name] = row

    def put_unseen(self, name: bytes, row: V) -> None:
        """Replace a row that exists, without knowing its present value."""
        self._changed[name] = row

    def delete(self, name: bytes) -> None:
        """Remove a row that exists."""
        if name in self._fresh:
            self._fresh.remove(name)
            del self._changed[name]
            if not self.is_complete:
                self._cached[name] = None
        else:
            self._changed[name] = None

    @property
    def dirty_count(self) -> int:
        """Return the number of changed rows."""
        return len(self._changed)

    def take_dirty(self) -> list[DirtyRow]:
        """Return the rows changed since the last call."""
        self._frozen, self._changed = self._changed, {}
        self._fresh.clear()
        return [(self._key(name), None if row is None else encode_value(row)) for name, row in self._frozen.items()]

    def on_written(self) -> None:
        """Treat the taken rows as rows on disk."""
        frozen, self._frozen = self._frozen, {}
        for name, row in frozen.items():
            self._cached.pop(name, None)
            if row is not None:
                self._cached[name] = row

    def trim(self) -> None:
        """Keep memory within its bound. Called between entries."""
        cached = self._cached
        while len(cached) > self.cached_max:
            row = cached.pop(next(iter(cached)))
            self.is_complete = self.is_complete and row is None

    def reset(self, generation: int, *, is_complete: bool) -> None:
        """Forget all rows in memory."""
        self.generation = generation
        self.is_complete = is_complete
        self._changed.clear()
        self._fresh.clear()
        self._frozen.clear()
        self._cached.clear()

    def _key(self, name: bytes) -> bytes:
        return keys.named_key(self.tag, self.generation, name)
