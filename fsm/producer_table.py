"""The producers that a log partition remembers: epoch, last sequence and the last five batches of each.

The table is filled by applied batches only and does not check them: the leader's `sequence_validator` decided before
proposing, and batches in the log have their offsets. Producers are forgotten by the log alone, so all replicas forget
alike. A producer is forgotten when it was idle for long by the expiry clock (`expiry_clock`). In a full table a new
producer evicts the anonymous producer that was idle for longest. Producers that may still repeat a batch and producers
with a name are never evicted.

Invariants: of two batches of a producer the one with the higher (epoch, sequence) wins. `last_sequence` is the largest
ever applied in that epoch. At most `CACHED_BATCHES` batches are kept, oldest first.

Source: KIP-98 and KIP-360 (producer state, five cached batches), with expiry by log time instead of the wall clock.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Final, NamedTuple

import msgspec
from raftmq.batch_header import SEQUENCE_MAX, BatchHeader
from raftmq.fsm.producer_ids import ANONYMOUS_EXPIRY_MS, NAMED_EXPIRY_MS, NAMED_PRODUCER_BIT, REPLACEABLE_IDLE_MS
from raftmq.fsm.row_decoders import row_decoder
from raftmq.fsm.tables import DirtyRow, Row, encode_value, number_key, number_of_key

CACHED_BATCHES: Final = 5
"""As many as a producer may have in flight, so any retry finds the offset of the batch that it repeats."""

PRODUCERS_MAX: Final = 10_000
"""Maximum per partition, about 10 MB in memory. A new producer beyond it evicts an idle one, or is refused by the
validator."""
NAMED_MAX: Final = 9_000
"""Maximum of producers with a name, which stay for 14 days: a Spark batch has up to 8,192. The rest is left for
anonymous producers."""


class CachedBatch(NamedTuple):
    """One applied batch of a producer."""

    first_sequence: int
    last_sequence: int
    """Inclusive."""
    base_offset: int


class ProducerState(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A producer's row. Only `ProducerTable` writes it. Others read it and must not keep it across an apply."""

    epoch: int
    last_sequence: int
    """Sequence of the last record applied in this epoch."""
    active_ms: int
    """The time of the expiry clock at the producer's last batch."""
    batches: list[CachedBatch]
    """The last `CACHED_BATCHES` batches of this epoch, oldest first."""


_decode_row = row_decoder(ProducerState)


class ProducerTable:
    """Hold the producers of one partition.

    Invariant: `_anonymous` and `_named` hold their producers in the order of their last batches (a producer that
    appends moves to the end), so the first of each is the next to expire. `active_ms` has the same order, because the
    expiry clock never goes back.
    """

    __slots__ = (
        "_anonymous",
        "_dirty",
        "_named",
        "forgotten_id",
        "forgotten_named_id",
        "named_max",
        "producers_max",
        "tag",
    )

    def __init__(self, tag: int, producers_max: int = PRODUCERS_MAX, named_max: int = NAMED_MAX) -> None:
        self.tag = tag
        self.producers_max = producers_max
        self.named_max = named_max
        self.forgotten_id = 0
        """The highest id of a forgotten anonymous producer; 0 if none was forgotten. Persisted by `LogPartition`."""
        self.forgotten_named_id = 0
        """The highest id of a forgotten named producer; 0 if none was forgotten."""
        self._anonymous: dict[int, ProducerState] = {}
        self._named: dict[int, ProducerState] = {}
        self._dirty: set[int] = set()

    def get(self, producer_id: int) -> ProducerState | None:
        """Return a producer's state, or None if it is unknown or forgotten."""
        return self._part(producer_id).get(producer_id)

    def __len__(self) -> int:
        return len(self._anonymous) + len(self._named)

    def may_have_forgotten(self, producer_id: int) -> bool:
        """Return whether batches of an unknown producer may have been written here and forgotten."""
        forgotten = self.forgotten_id if producer_id < NAMED_PRODUCER_BIT else self.forgotten_named_id
        return producer_id <= forgotten

    def has_room(self, now_ms: int, *, is_named: bool, new: int, new_named: int, busy: Container[int]) -> bool:
        """Return whether one more producer fits after `new` pending ones, of which `new_named` have a name.

        Producers in `busy` have pending batches and do not count as idle.
        """
        if is_named and len(self._named) + new_named >= self.named_max:
            return False
        missing = len(self) + new + 1 - self.producers_max
        for producer_id, state in self._anonymous.items():
            if missing <= 0 or now_ms - state.active_ms < REPLACEABLE_IDLE_MS:
                break
            missing -= producer_id not in busy
        return missing <= 0

    def used_ratio(self, now_ms: int) -> float:
        """Return how full the table is (0..1), without producers that a new one would evict."""
        occupied = len(self._named)
        for state in reversed(self._anonymous.values()):
            if now_ms - state.active_ms >= REPLACEABLE_IDLE_MS:
                break
            occupied += 1
        return max(occupied / self.producers_max, len(self._named) / self.named_max)

    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """Record an applied batch. A batch without a producer is ignored. `now_ms` is the time of the expiry clock."""
        producer_id = header.producer_id
        if producer_id == 0:
            return
        part = self._part(producer_id)
        state = part.get(producer_id)
        if state is not None and header.producer_epoch < state.epoch:
            return  # the validator accepts only newer epochs; if it were ever wrong, never step back
        if state is None:
            self._make_room(now_ms)
        # The leader checked the header. Clamp all the same, because a row must encode for any content of the log.
        last_sequence = min(header.first_sequence + header.record_count - 1, SEQUENCE_MAX)
        batch = CachedBatch(header.first_sequence, last_sequence, base_offset)
        if state is None or header.producer_epoch > state.epoch:
            state = ProducerState(header.producer_epoch, last_sequence, now_ms, [batch])
        else:
            # The validator accepts only the next sequence; if it were ever wrong, never step back.
            if last_sequence > state.last_sequence:
                state.last_sequence = last_sequence
            batches = state.batches
            batches.append(batch)
            if len(batches) > CACHED_BATCHES:
                del batches[0]
            state.active_ms = now_ms
        part.pop(producer_id, None)
        part[producer_id] = state
        self._dirty.add(producer_id)

    def expire(self, now_ms: int) -> None:
        """Forget producers whose last batch is too old at `now_ms`, the time of the expiry clock."""
        self._expire_part(self._anonymous, now_ms - ANONYMOUS_EXPIRY_MS)
        self._expire_part(self._named, now_ms - NAMED_EXPIRY_MS)

    def take_dirty(self) -> Iterator[DirtyRow]:
        """Return the rows changed since the last call."""
        dirty, self._dirty = self._dirty, set()
        for producer_id in dirty:
            state = self.get(producer_id)
            yield number_key(self.tag, producer_id), None if state is None else encode_value(state)

    def rows(self) -> Iterator[Row]:
        """Return all rows by producer id."""
        for part in (self._anonymous, self._named):
            for producer_id in sorted(part):
                yield number_key(self.tag, producer_id), encode_value(part[producer_id])

    def load(self, key: bytes, value: bytes) -> None:
        """Load a row. Raises if it does not decode. `rebuild_order` must follow."""
        producer_id = number_of_key(key)
        self._part(producer_id)[producer_id] = _decode_row(value)

    def rebuild_order(self) -> None:
        """Restore the order of last batches after loading rows, by their offsets, of which no two are equal."""
        self._anonymous = dict(sorted(self._anonymous.items(), key=_last_offset))
        self._named = dict(sorted(self._named.items(), key=_last_offset))

    def clear(self) -> None:
        """Remove all producers."""
        self._anonymous.clear()
        self._named.clear()
        self._dirty.clear()
        self.forgotten_id = self.forgotten_named_id = 0

    def _part(self, producer_id: int) -> dict[int, ProducerState]:
        return self._anonymous if producer_id < NAMED_PRODUCER_BIT else self._named

    def _expire_part(self, part: dict[int, ProducerState], cutoff_ms: int) -> None:
        while part:
            oldest = next(iter(part))
            if part[oldest].active_ms > cutoff_ms:
                return
            self._forget(oldest)

    def _make_room(self, now_ms: int) -> None:
        """Evict the longest idle anonymous producer of a full table. If it may still repeat a batch, the table grows
        instead.
        """
        if len(self) < self.producers_max or not self._anonymous:
            return
        oldest = next(iter(self._anonymous))
        if now_ms - self._anonymous[oldest].active_ms >= REPLACEABLE_IDLE_MS:
            self._forget(oldest)

    def _forget(self, producer_id: int) -> None:
        del self._part(producer_id)[producer_id]
        self._dirty.add(producer_id)
        if producer_id < NAMED_PRODUCER_BIT:
            self.forgotten_id = max(self.forgotten_id, producer_id)
        else:
            self.forgotten_named_id = max(self.forgotten_named_id, producer_id)


def _last_offset(item: tuple[int, ProducerState]) -> int:
    return item[1].batches[-1].base_offset
