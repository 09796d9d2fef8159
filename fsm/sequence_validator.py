"""The leader's check of batches before they are proposed: each (producer, sequence) is written once.

It checks against the applied state plus an overlay of the batches that this leader appended in its term and has not
applied yet. It is valid only from the application of the leader's own no-op (then every entry of earlier terms is
applied or lost) to the end of its term. Call `clear` on every change of role or term. It decides nothing about the log:
only an accepted batch is proposed, and `appended` is called for it immediately, with its index, before the next batch
is checked.

An overlap names an index to wait for. Example: producer P sent sequences 0..9, appended at index 40 and not committed.
P reconnects and sends 5..14. An immediate answer "0..9 are written" would let P drop them, and a new leader without
index 40 would then lose them. So every result that says something *was* written names the entry that must be applied
first.

Source: KIP-98. Joining a pending duplicate is needed because our answers mean committed.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

from raftmq.batch_header import BatchHeader
from raftmq.fsm.expiry_clock import ExpiryClock
from raftmq.fsm.producer_ids import NAMED_PRODUCER_BIT
from raftmq.fsm.producer_table import CachedBatch, ProducerState, ProducerTable
from raftmq.types import LogIndex

UNKNOWN_OFFSET: Final = -1
NO_SEQUENCE: Final = -1


@dataclass(frozen=True, slots=True)
class Accept:
    """Propose the batch, and call `appended`."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch was applied before: answer success."""

    base_offset: int
    """Offset of the batch's first record; -1 when it is no longer remembered."""


@dataclass(frozen=True, slots=True)
class JoinPending:
    """This leader appended the batch before and has not applied it yet: answer with the result of the entry at `index`."""

    index: LogIndex
    """The entry that holds the batch's last record."""
    base_offset: int
    """Offset of the batch's first record once `index` is applied; -1 when it is no longer remembered."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """The beginning of the batch was written before, its end was not: answer SEQUENCE_OVERLAP with `last_sequence`."""

    last_sequence: int
    pending_index: LogIndex
    """Answer only after this entry is applied (0: immediately). If the entry is lost, the answer is no longer true."""


@dataclass(frozen=True, slots=True)
class Gap:
    """Sequences before the batch are missing: answer OUT_OF_ORDER_SEQUENCE after a ReadIndex confirms the leader, else
    NOT_LEADER.
    """

    last_sequence: int
    """Last known sequence of the producer in this epoch; -1 if none is known."""
    is_certain: bool = True
    """True: the batch is not written. False: it may be, because batches of this producer may have been forgotten."""


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer epoch of this producer exists: answer PRODUCER_FENCED."""

    epoch: int
    """The known epoch."""


@dataclass(frozen=True, slots=True)
class TooManyProducers:
    """The partition remembers its maximum of producers and none is idle: answer TOO_MANY_PRODUCERS, retriable."""


SequenceResult = Accept | Duplicate | JoinPending | Overlap | Gap | Fenced | TooManyProducers

_ACCEPT: Final = Accept()
_TOO_MANY: Final = TooManyProducers()


class AppliedState(Protocol):
    """The part of the partition's state machine that the validator reads."""

    applied_index: LogIndex
    expiry: ExpiryClock

    @property
    def producers(self) -> ProducerTable:
        """Return the applied producers."""
        ...


@dataclass(frozen=True, slots=True)
class _Pending:
    """A batch that is appended but not applied."""

    index: LogIndex
    epoch: int
    batch: CachedBatch


class _Overlay:
    """A producer with pending batches."""

    __slots__ = ("epoch", "is_new", "last_sequence", "pending")

    def __init__(self, *, is_new: bool) -> None:
        self.epoch = 0
        self.last_sequence = NO_SEQUENCE
        self.is_new = is_new
        """Whether the applied state did not know the producer when its first pending batch was appended."""
        self.pending: deque[_Pending] = deque()


class SequenceValidator:
    """Check the batches of one partition on its leader.

    Invariants: `_order` lists the pending entries by ascending index. A producer has an overlay if and only if it has
    an entry in `_order`. `_new_count` counts overlays with `is_new`, and `_new_named_count` those of them whose
    producer has a name.
    """

    def __init__(self, state: AppliedState) -> None:
        self._state = state
        self._overlays: dict[int, _Overlay] = {}
        self._order: deque[tuple[LogIndex, int]] = deque()
        self._new_count = 0
        self._new_named_count = 0

    def validate(self, header: BatchHeader) -> SequenceResult:
        """Return how to handle a batch. Nothing changes, except that batches applied in the meantime are forgotten."""
        producer_id = header.producer_id
        if producer_id == 0:
            return _ACCEPT
        self.applied(self._state.applied_index)
        applied = self._state.producers.get(producer_id)
        overlay = self._overlays.get(producer_id)
        if overlay is not None:
            known_epoch, last_sequence = overlay.epoch, overlay.last_sequence
        elif applied is not None:
            known_epoch, last_sequence = applied.epoch, applied.last_sequence
        else:
            return self._validate_unknown(header)
        if header.producer_epoch < known_epoch:
            return Fenced(known_epoch)
        if header.producer_epoch > known_epoch:
            return _ACCEPT if header.first_sequence == 0 else self._unknown_epoch(producer_id)
        if header.first_sequence == last_sequence + 1:
            return _ACCEPT
        if header.first_sequence > last_sequence:
            return Gap(last_sequence)
        if header.last_sequence > last_sequence:
            return Overlap(last_sequence, overlay.pending[-1].index if overlay is not None else LogIndex(0))
        return _known_batch(header, applied, overlay)

    def appended(self, header: BatchHeader, index: LogIndex, base_offset: int) -> None:
        """Record that an accepted batch was appended to the leader's log at `index`. Its first record has
        `base_offset`.
        """
        producer_id = header.producer_id
        if producer_id == 0:
            return
        overlay = self._overlays.get(producer_id)
        if overlay is None:
            overlay = _Overlay(is_new=self._state.producers.get(producer_id) is None)
            self._overlays[producer_id] = overlay
            if overlay.is_new:
                self._count_new(producer_id, 1)
        overlay.epoch = header.producer_epoch
        overlay.last_sequence = header.last_sequence
        batch = CachedBatch(header.first_sequence, header.last_sequence, base_offset)
        overlay.pending.append(_Pending(index, header.producer_epoch, batch))
        self._order.append((index, producer_id))

    def applied(self, index: LogIndex) -> None:
        """Forget pending batches up to `index` (inclusive), which the applied state now knows. `validate` calls it too."""
        order = self._order
        while order and order[0][0] <= index:
            producer_id = order.popleft()[1]
            overlay = self._overlays[producer_id]
            overlay.pending.popleft()
            if overlay.is_new:
                overlay.is_new = False
                self._count_new(producer_id, -1)
            if not overlay.pending:
                del self._overlays[producer_id]

    def last_pending(self, producer_id: int, epoch_min: int) -> LogIndex:
        """Return the last unapplied entry that holds a batch of the producer under an epoch below `epoch_min`, or 0 if
        there is none.
        """
        self.applied(self._state.applied_index)
        overlay = self._overlays.get(producer_id)
        indexes = [one.index for one in overlay.pending if one.epoch < epoch_min] if overlay is not None else []
        return indexes[-1] if indexes else LogIndex(0)

    def clear(self) -> None:
        """Forget all pending batches after a change of leadership or term: they may be lost."""
        self._overlays.clear()
        self._order.clear()
        self._new_count = self._new_named_count = 0

    def _count_new(self, producer_id: int, change: int) -> None:
        self._new_count += change
        if producer_id >= NAMED_PRODUCER_BIT:
            self._new_named_count += change

    def _unknown_epoch(self, producer_id: int) -> Gap:
        return Gap(NO_SEQUENCE, is_certain=not self._state.producers.may_have_forgotten(producer_id))

    def _validate_unknown(self, header: BatchHeader) -> SequenceResult:
        if header.first_sequence != 0:
            return self._unknown_epoch(header.producer_id)
        has_room = self._state.producers.has_room(
            self._state.expiry.now_ms,
            is_named=header.producer_id >= NAMED_PRODUCER_BIT,
            new=self._new_count,
            new_named=self._new_named_count,
            busy=self._overlays,
        )
        return _ACCEPT if has_room else _TOO_MANY


def _known_batch(header: BatchHeader, applied: ProducerState | None, overlay: _Overlay | None) -> SequenceResult:
    """Answer for a batch whose records were all appended before. If the last one is pending, wait for its entry."""
    pending = [one for one in overlay.pending if one.epoch == header.producer_epoch] if overlay is not None else []
    for one in pending:
        if one.batch.first_sequence <= header.last_sequence <= one.batch.last_sequence:
            return JoinPending(one.index, _base_offset(header, one.batch))
    if applied is not None:  # applied batches are of this epoch: a newer epoch's batches are all pending
        for batch in applied.batches:
            base_offset = _base_offset(header, batch)
            if base_offset != UNKNOWN_OFFSET:
                return Duplicate(base_offset)
    return Duplicate(UNKNOWN_OFFSET)


def _base_offset(header: BatchHeader, batch: CachedBatch) -> int:
    """Return the offset of the header's first record if `batch` holds all its records. Records of two batches need not
    be adjacent.
    """
    if batch.first_sequence <= header.first_sequence and header.last_sequence <= batch.last_sequence:
        return batch.base_offset + header.first_sequence - batch.first_sequence
    return UNKNOWN_OFFSET
