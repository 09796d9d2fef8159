"""The leader's validator: each (producer, epoch, sequence) is in the log once, and no answer claims an entry that may still be lost."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.batch_header import BatchHeader, parse_header
from raftmq.fsm.log_commands import TrimLog
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.sequence_validator import (
    Accept,
    Duplicate,
    Fenced,
    Gap,
    JoinPending,
    Overlap,
    SequenceResult,
    SequenceValidator,
    TooManyProducers,
)
from raftmq.raft.entry import Entry, EntryKind
from raftmq.types import LogIndex

from tests.support.fsm.histories import HOUR_MS, LogBuilder, batch


class Leader:
    """A log, an applied prefix of it, and the validator over both, used as the engine uses it."""

    def __init__(self, producers_max: int = 100) -> None:
        self.log = LogBuilder()
        self.state = LogPartition()
        self.state.producers.producers_max = producers_max
        self.validate = SequenceValidator(self.state)

    def send(self, producer_id: int, epoch: int, first: int, count: int = 1) -> SequenceResult:
        payload = batch(producer_id, epoch, first, count)
        header = parse_header(payload)
        result = self.validate.validate(header)
        if isinstance(result, Accept):
            entry = self.log.append(EntryKind.DATA, payload, count)
            self.validate.appended(header, entry.index, entry.base_offset)
        return result

    def apply(self, count: int | None = None) -> None:
        pending = [entry for entry in self.log.entries if entry.index > self.state.applied_index]
        for entry in pending[:count]:
            self.state.apply(entry)

    def lose_leadership(self, survivors: int) -> None:
        """Change the leader: the new one, which is this object too, has only `survivors` unapplied entries, and applies its no-op."""
        unapplied = [entry for entry in self.log.entries if entry.index > self.state.applied_index]
        kept = len(self.log.entries) - len(unapplied) + min(survivors, len(unapplied))
        del self.log.entries[kept:]
        self.log.next_offset = self.log.entries[-1].next_offset if kept else 0
        self.validate.clear()
        self.log.append(EntryKind.EMPTY, b"")
        self.apply()


def test_a_batch_without_producer_is_always_accepted() -> None:
    leader = Leader(producers_max=0)
    assert leader.send(0, 9, 9) == leader.send(0, 0, 0) == Accept()


def test_the_next_sequence_is_accepted_pending_or_applied() -> None:
    leader = Leader()
    assert leader.send(1, 0, 0, 3) == leader.send(1, 0, 3, 2) == Accept()
    leader.apply()
    assert leader.send(1, 0, 5) == Accept()


def test_a_retry_of_a_pending_batch_joins_it() -> None:
    leader = Leader()
    leader.send(7, 0, 0, 5)
    leader.send(1, 0, 0, 3)
    leader.send(1, 0, 3, 2)
    assert leader.send(1, 0, 0, 3) == JoinPending(LogIndex(7), 5)
    assert leader.send(1, 0, 3, 2) == JoinPending(LogIndex(8), 8)
    assert leader.send(1, 0, 1, 1) == JoinPending(LogIndex(7), 6)
    assert leader.send(1, 0, 2, 2) == JoinPending(LogIndex(8), -1)
    assert len(leader.log.entries) == 3


def test_a_retry_of_an_applied_batch_gets_its_offset_while_cached() -> None:
    leader = Leader()
    for sequence in range(6):
        leader.send(7, 0, sequence)
        leader.send(1, 0, sequence)
    leader.apply()
    assert leader.send(1, 0, 5) == Duplicate(11)
    assert leader.send(1, 0, 1) == Duplicate(3)
    assert leader.send(1, 0, 0) == Duplicate(-1)


def test_a_retry_of_an_applied_batch_does_not_wait_for_a_later_pending_one() -> None:
    leader = Leader()
    leader.send(1, 0, 0)
    leader.apply()
    leader.send(1, 0, 1)
    assert leader.send(1, 0, 0) == Duplicate(0)


def test_an_overlap_names_the_last_sequence_and_the_entry_to_wait_for() -> None:
    leader = Leader()
    leader.send(1, 0, 0, 10)
    assert leader.send(1, 0, 5, 10) == Overlap(9, LogIndex(6))
    leader.apply()
    assert leader.send(1, 0, 5, 10) == Overlap(9, LogIndex(0))


def test_a_gap_is_reported_with_the_last_sequence() -> None:
    leader = Leader()
    assert leader.send(1, 0, 1) == Gap(-1)
    leader.send(1, 0, 0, 2)
    assert leader.send(1, 0, 3) == Gap(1)
    leader.apply()
    assert leader.send(1, 0, 3) == Gap(1)


def test_a_newer_epoch_begins_at_zero_and_fences_the_older() -> None:
    leader = Leader()
    leader.send(1, 3, 0, 4)
    assert leader.send(1, 5, 4) == Gap(-1)
    assert leader.send(1, 5, 0) == Accept()
    assert leader.send(1, 3, 4) == Fenced(5)
    leader.apply()
    assert leader.send(1, 3, 0, 4) == Fenced(5)
    assert leader.send(1, 5, 0) == Duplicate(4)
    assert leader.send(1, 2**64 - 1, 0) == Accept()


def test_a_new_producer_is_refused_at_the_cap_while_nobody_is_idle() -> None:
    leader = Leader(producers_max=2)
    leader.send(1, 0, 0)
    leader.apply()
    assert leader.send(2, 0, 0) == Accept()
    assert leader.send(3, 0, 0) == TooManyProducers()
    leader.apply()
    assert leader.send(3, 0, 0) == TooManyProducers()
    assert leader.send(1, 0, 1) == leader.send(2, 0, 1) == leader.send(1, 1, 0) == Accept()
    for _ in range(12):
        leader.log.time_ms += HOUR_MS // 6
        leader.log.log(TrimLog(0))
    leader.apply()
    assert leader.send(3, 0, 0) == Accept()


def test_pending_batches_are_forgotten_with_the_leadership() -> None:
    """1. n1 appends P's 0..2 and loses leadership. 2. No other node has them. 3. P's retry must be written, and must not join the pending batch."""
    leader = Leader()
    leader.send(1, 0, 0, 3)
    leader.lose_leadership(survivors=0)
    assert leader.send(1, 0, 0, 3) == Accept()
    leader.apply()
    assert leader.send(1, 0, 0, 3) == Duplicate(0)


# ---------------------------------------------------------------------------------------------------------- the slow twin


def records_of(entries: list[Entry], producer_id: int) -> list[tuple[int, int, int, LogIndex]]:
    """Return (epoch, sequence, offset, index) of each record of a producer, in log order."""
    found = []
    for entry in entries:
        if entry.kind is EntryKind.DATA:
            header = parse_header(entry.payload)
            if header.producer_id == producer_id:
                found += [
                    (header.producer_epoch, header.first_sequence + i, entry.base_offset + i, entry.index)
                    for i in range(header.record_count)
                ]
    return found


def obvious_verdict(
    entries: list[Entry], applied_index: LogIndex, header: BatchHeader
) -> type[SequenceResult] | SequenceResult:
    """Derive the result from the whole log. It is only a type if the exact offset depends on the cache."""
    records = records_of(entries, header.producer_id)
    epoch = max((record[0] for record in records), default=None)
    if epoch is None or header.producer_epoch > epoch:
        return Accept() if header.first_sequence == 0 else Gap(-1)
    if header.producer_epoch < epoch:
        return Fenced(epoch)
    index_of = {sequence: index for record_epoch, sequence, _, index in records if record_epoch == epoch}
    last = max(index_of)
    if header.first_sequence == last + 1:
        return Accept()
    if header.first_sequence > last:
        return Gap(last)
    if header.last_sequence > last:
        return Overlap(last, index_of[last] if index_of[last] > applied_index else LogIndex(0))
    return JoinPending if index_of[header.last_sequence] > applied_index else Duplicate


class Promise:
    """An answer that the client received, or receives when `index` is applied in this incarnation of the log."""

    def __init__(self, header: BatchHeader, result: SequenceResult, entry: Entry | None) -> None:
        self.header = header
        self.result = result
        self.entry = entry


def check_promise(leader: Leader, promise: Promise) -> None:
    applied = [entry for entry in leader.log.entries if entry.index <= leader.state.applied_index]
    if promise.entry is not None and promise.entry not in applied:
        return  # lost or still pending: the client has no definite answer
    header, result = promise.header, promise.result
    offsets = {
        sequence: offset
        for epoch, sequence, offset, _ in records_of(applied, header.producer_id)
        if epoch == header.producer_epoch
    }
    if isinstance(result, Overlap):
        assert result.last_sequence in offsets
        return
    assert set(range(header.first_sequence, header.last_sequence + 1)) <= set(offsets)
    if isinstance(result, Accept):
        assert promise.entry is not None
        base_offset = int(promise.entry.base_offset)
    else:
        assert isinstance(result, Duplicate | JoinPending)
        base_offset = result.base_offset
    if base_offset >= 0:
        for i in range(header.record_count):
            assert offsets[header.first_sequence + i] == base_offset + i


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 80))
def test_each_sequence_is_written_once_and_only_permanent_entries_are_promised(seed: int, steps: int) -> None:
    """This mixes retries, differently cut batches, reordering, zombies, and leader changes that lose a random part of the tail."""
    rng = random.Random(seed)
    leader = Leader()
    promises: list[Promise] = []
    for _ in range(steps):
        dice = rng.random()
        if dice < 0.15:
            leader.apply(rng.randint(0, 3))
        elif dice < 0.22:
            leader.lose_leadership(rng.randint(0, 4))
        else:
            send_something(rng, leader, promises)
        for promise in promises:
            check_promise(leader, promise)
    leader.apply()
    for producer_id in (1, 2, 3):
        check_written_once(records_of(leader.log.entries, producer_id))
    assert leader.state.next_offset == leader.log.next_offset


def send_something(rng: random.Random, leader: Leader, promises: list[Promise]) -> None:
    producer_id, epoch = rng.randint(1, 3), rng.choice([0, 0, 0, 0, 1, 2])
    written = [sequence for e, sequence, _, _ in records_of(leader.log.entries, producer_id) if e == epoch]
    expected = max(written, default=-1) + 1
    first = max(0, expected + rng.choice([0, 0, 0, -1, -2, -6, 1]))
    header = parse_header(batch(producer_id, epoch, first, rng.randint(1, 4)))
    wanted = obvious_verdict(leader.log.entries, leader.state.applied_index, header)
    result = leader.send(producer_id, epoch, first, header.record_count)
    assert result == wanted or type(result) is wanted
    if isinstance(result, Accept):
        promises.append(Promise(header, result, leader.log.entries[-1]))
    elif isinstance(result, Duplicate):
        promises.append(Promise(header, result, None))
    elif isinstance(result, JoinPending | Overlap):
        index = result.index if isinstance(result, JoinPending) else result.pending_index
        entry = next((one for one in leader.log.entries if one.index == index), None)
        assert (entry is not None) == (index != 0)
        promises.append(Promise(header, result, entry))


def check_written_once(records: list[tuple[int, int, int, LogIndex]]) -> None:
    """Check that epochs never go back, and that the sequences of an epoch are 0, 1, 2, … in log order."""
    epochs = [record[0] for record in records]
    assert epochs == sorted(epochs)
    for epoch in set(epochs):
        sequences = [sequence for record_epoch, sequence, _, _ in records if record_epoch == epoch]
        assert sequences == list(range(len(sequences)))


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_the_last_five_batches_always_have_their_offsets(seed: int) -> None:
    """At most five batches are in flight per producer and partition, so every retry learns its offset."""
    rng = random.Random(seed)
    leader = Leader()
    sent: list[tuple[int, int, int]] = []
    for _ in range(30):
        first = sent[-1][0] + sent[-1][1] if sent else 0
        count = rng.randint(1, 4)
        leader.send(2, 0, len(sent))
        assert leader.send(1, 0, first, count) == Accept()
        sent.append((first, count, leader.log.entries[-1].base_offset))
        leader.apply(rng.randint(0, 4))
        for retry_first, retry_count, offset in sent[-5:]:
            result = leader.send(1, 0, retry_first, retry_count)
            assert isinstance(result, Duplicate | JoinPending)
            assert result.base_offset == offset


@pytest.mark.parametrize("is_applied", [False, True])
def test_the_largest_numbers_are_validated(is_applied: bool) -> None:
    leader = Leader()
    producer = 2**64 - 1
    assert leader.send(producer, 2**64 - 1, 0) == Accept()
    if is_applied:
        leader.apply()
        leader.state.take_dirty_rows()
    assert leader.send(producer, 2**64 - 1, 2**64 - 1) == Gap(0)
