"""Named producers: each name has one producer id, and an epoch that only rises.

A name that was not initialized for 14 days of the metadata log's expiry clock is forgotten and gets a new id when it
comes back. The old id is then like the id of an anonymous producer that nobody can continue. Partitions forget the id
by the same rule.

Every node has this table, and a partition's leader looks into it before it appends. It refuses a batch of an epoch that
was succeeded, whether or not the successor ever writes to that partition (`broker/partitions/producer_fence.py`).

Source: KIP-98 (transactional ids and their epochs), without transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from raftmq.fsm.producer_ids import NAMED_EXPIRY_MS
from raftmq.fsm.tables import DirtyRow, Row, Table, text_table

NAMED_PRODUCERS_MAX: Final = 100_000
"""About 30 MB without stamps. A new name beyond it is refused. An old name is never evicted."""
STAMP_BYTES_MAX: Final = 4096
"""Room for two bits for each of 16,000 tasks; a digest takes a few bytes."""

USED_TIME_STEP_MS: Final = 60_000
"""A claim that would change only the time of a name's last use is an entry of the log if that use, or the last entry, is so long ago."""
USED_TIME_ERROR_MS: Final = 2 * USED_TIME_STEP_MS
"""The most that a name's noted last use may be before its last use: a step of the name, and one of the clock that only entries move."""


class NamedProducer(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The row of a name."""

    producer_id: int
    epoch: int
    used_time_ms: int
    """The time of the expiry clock at the last `InitNamedProducer` of this name that was an entry of the log."""
    stamp: bytes = b""
    """The stamp of this epoch: opaque, at most `STAMP_BYTES_MAX`."""
    batch_epoch_min: int = 0
    """The lowest epoch of batches that may still be appended under the id. Never decreases while the name is known."""


class ProducerNames:
    """Hold the names in the order of their last use, so that expiry looks only at the oldest.

    Invariants: `_by_use` has the table's names, oldest `used_time_ms` first. The expiry clock never goes back, so
    moving a used name to the end keeps the order. Names of equal time expire together, so their order does not matter.
    `_by_id` has the table's rows by producer id.
    """

    __slots__ = ("_by_id", "_by_use", "_table", "tag")

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self._table: Table[str, NamedProducer] = text_table(tag, NamedProducer)
        self._by_use: dict[str, None] = {}
        self._by_id: dict[int, NamedProducer] = {}

    def get(self, name: str) -> NamedProducer | None:
        """Return the producer of a name."""
        return self._table.get(name)

    def batch_epoch_min(self, producer_id: int) -> int:
        """Return the lowest epoch of batches that may still be appended under the id, or 0 for an id without a name."""
        row = self._by_id.get(producer_id)
        return row.batch_epoch_min if row is not None else 0

    def put(self, name: str, producer: NamedProducer) -> None:
        """Insert or replace a name and mark it as used now."""
        self._table.put(name, producer)
        self._by_id[producer.producer_id] = producer
        self._by_use.pop(name, None)
        self._by_use[name] = None

    def expire(self, now_ms: int) -> None:
        """Forget names last used at least 14 days before `now_ms`, the time of the expiry clock."""
        while self._by_use:
            oldest = next(iter(self._by_use))
            row = self._table.by_key[oldest]
            if row.used_time_ms + NAMED_EXPIRY_MS > now_ms:
                return
            self.forget(oldest)

    def forget(self, name: str) -> None:
        """Remove a name. The id that it had is then like that of an anonymous producer that nobody can continue."""
        del self._by_id[self._table.by_key[name].producer_id]
        del self._by_use[name]
        self._table.delete(name)

    def used_until(self, time_ms: int) -> Iterator[tuple[str, NamedProducer]]:
        """Return the names that were last used at a time of the expiry clock or before, the longest unused first."""
        for name in self._by_use:
            row = self._table.by_key[name]
            if row.used_time_ms > time_ms:
                return
            yield name, row

    def __len__(self) -> int:
        return len(self._table.by_key)

    def rebuild_order(self) -> None:
        """Restore the order of last use and the map of ids after loading rows."""
        by_time = sorted((row.used_time_ms, name) for name, row in self._table.by_key.items())
        self._by_use = {name: None for _, name in by_time}
        self._by_id = {row.producer_id: row for row in self._table.by_key.values()}

    def take_dirty(self) -> Iterator[DirtyRow]:
        """Return the rows changed since the last call."""
        return self._table.take_dirty()

    def rows(self) -> Iterator[Row]:
        """Return all rows by name."""
        return self._table.rows()

    def load(self, key: bytes, value: bytes) -> None:
        """Load a row. `rebuild_order` must follow."""
        self._table.load(key, value)

    def clear(self) -> None:
        """Remove all names."""
        self._table.clear()
        self._by_use.clear()
        self._by_id.clear()
