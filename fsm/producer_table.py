"""What a log partition remembers of its producers: epoch, last sequence and the last five batches of each.

Fed by applied batches only, without judging them: the leader's `append_judge` decided before proposing, and what is in the
log has its offsets. Producers are forgotten by the append time of later entries alone, so all replicas forget alike.

Invariants: of two batches of a producer the one with the higher (epoch, sequence) wins; `last_sequence` is the largest
ever applied in that epoch; at most `CACHED_BATCHES` batches are kept, oldest first.

Source: KIP-98 and KIP-360 (producer state, five cached batches), with expiry by log time instead of the wall clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import msgspec
from raftmq.batch_header import SEQUENCE_MAX, BatchHeader
from raftmq.fsm.producer_ids import ANONYMOUS_EXPIRY_MS, NAMED_EXPIRY_MS, NAMED_PRODUCER_BIT
from raftmq.fsm.tables import DirtyRow, Row, encode_value, number_key, number_of_key

CACHED_BATCHES: Final = 5
"""As many as a producer may have in flight, so any retry finds the offset of what it repeats."""

PRODUCERS_MAX: Final = 10_000
"""Per partition, about 10 MB in memory. The judge refuses a new producer beyond it; nobody is evicted for one."""


class CachedBatch(NamedTuple):
    """One applied batch of a producer."""

    first_sequence: int
    last_sequence: int
    """Inclusive."""
    base_offset: int


class ProducerState(msgspec.Struct, array_like=True):
    """A producer's row. Written by `ProducerTable` only; others read it and must not keep it across an apply."""

    epoch: int
    last_sequence: int
    """Sequence of the last record applied in this epoch."""
    append_time_ms: int
    """Append time of the producer's last batch."""
    batches: list[CachedBatch]
    """The last `CACHED_BATCHES` of this epoch, oldest first."""


_DECODER = msgspec.msgpack.Decoder(ProducerState)


class ProducerTable:
    """Producers of one partition.

    Invariant: `_anonymous` and `_named` hold their producers in order of `append_time_ms` (a producer that appends moves to
    the end, and append times never decrease along a log), so expiry looks at the oldest of each only.
    """

    __slots__ = ("_anonymous", "_dirty", "_named", "tag")

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self._anonymous: dict[int, ProducerState] = {}
        self._named: dict[int, ProducerState] = {}
        self._dirty: set[int] = set()

    def get(self, producer_id: int) -> ProducerState | None:
        """A producer's state, or None if it is unknown or forgotten."""
        return self._part(producer_id).get(producer_id)

    def __len__(self) -> int:
        return len(self._anonymous) + len(self._named)

    def record(self, header: BatchHeader, base_offset: int, append_time_ms: int) -> None:
        """Take note of an applied batch; one without a producer leaves no trace."""
        producer_id = header.producer_id
        if producer_id == 0:
            return
        part = self._anonymous if producer_id < NAMED_PRODUCER_BIT else self._named
        state = part.pop(producer_id, None)
        # The leader checked the header; clamped all the same, for a row must encode whatever is in the log.
        last_sequence = min(header.first_sequence + header.record_count - 1, SEQUENCE_MAX)
        batch = CachedBatch(header.first_sequence, last_sequence, base_offset)
        if state is None or header.producer_epoch > state.epoch:
            state = ProducerState(header.producer_epoch, last_sequence, append_time_ms, [batch])
        elif header.producer_epoch == state.epoch:
            # The judge lets only the next sequence through; were it ever wrong, never step back.
            if last_sequence > state.last_sequence:
                state.last_sequence = last_sequence
            batches = state.batches
            batches.append(batch)
            if len(batches) > CACHED_BATCHES:
                del batches[0]
            state.append_time_ms = append_time_ms
        else:
            state.append_time_ms = append_time_ms
        part[producer_id] = state
        self._dirty.add(producer_id)

    def expire(self, now_ms: int) -> None:
        """Forget producers whose last append is too old at `now_ms` (append time of the entry just applied)."""
        self._expire_part(self._anonymous, now_ms - ANONYMOUS_EXPIRY_MS)
        self._expire_part(self._named, now_ms - NAMED_EXPIRY_MS)

    def take_dirty(self) -> Iterator[DirtyRow]:
        """Rows changed since the last call."""
        dirty, self._dirty = self._dirty, set()
        for producer_id in dirty:
            state = self.get(producer_id)
            yield number_key(self.tag, producer_id), None if state is None else encode_value(state)

    def rows(self) -> Iterator[Row]:
        """All rows by producer id."""
        for part in (self._anonymous, self._named):
            for producer_id in sorted(part):
                yield number_key(self.tag, producer_id), encode_value(part[producer_id])

    def load(self, key: bytes, value: bytes) -> None:
        """Take back a row; `rebuild_order` must follow. Raises if it does not decode."""
        producer_id = number_of_key(key)
        self._part(producer_id)[producer_id] = _DECODER.decode(value)

    def rebuild_order(self) -> None:
        """After loading rows: find the order of last appends again (equal times expire together: any order will do)."""
        self._anonymous = dict(sorted(self._anonymous.items(), key=lambda item: item[1].append_time_ms))
        self._named = dict(sorted(self._named.items(), key=lambda item: item[1].append_time_ms))

    def clear(self) -> None:
        """Forget everything."""
        self._anonymous.clear()
        self._named.clear()
        self._dirty.clear()

    def _part(self, producer_id: int) -> dict[int, ProducerState]:
        return self._anonymous if producer_id < NAMED_PRODUCER_BIT else self._named

    def _expire_part(self, part: dict[int, ProducerState], cutoff_ms: int) -> None:
        while part:
            oldest = next(iter(part))
            if part[oldest].append_time_ms > cutoff_ms:
                return
            del part[oldest]
            self._dirty.add(oldest)
