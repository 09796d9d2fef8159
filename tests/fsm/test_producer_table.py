"""The producer table against a slow obvious twin, and what expires when."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.fsm.log_commands import TrimLog
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.producer_ids import NAMED_PRODUCER_BIT
from raftmq.raft.entry import Entry, EntryKind

from tests.fsm.histories import HOUR_MS, LogBuilder

ANONYMOUS = (1, 2, 3)
NAMED = (NAMED_PRODUCER_BIT, NAMED_PRODUCER_BIT | 7)


class Twin:
    """Remembers every batch ever applied, and answers by looking through all of them."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, int, int, int]] = []

    def apply(self, entry: Entry, producer_id: int, epoch: int, first: int, count: int) -> None:
        self.batches.append((producer_id, epoch, first, first + count - 1, entry.base_offset, entry.append_time_ms))

    def state(self, producer_id: int, times: list[int]) -> tuple[int, int, int, list[tuple[int, int, int]]] | None:
        limit = (14 * 24 if producer_id >= NAMED_PRODUCER_BIT else 24) * HOUR_MS
        mine = [one for one in self.batches if one[0] == producer_id]
        # Cut where the log's time ran past a batch by the limit before the producer's next batch.
        alive: list[tuple[int, int, int, int, int, int]] = []
        for one in mine:
            if alive and any(alive[-1][5] + limit <= time < one[5] for time in times):
                alive = []
            alive.append(one)
        if not alive or times[-1] >= alive[-1][5] + limit:
            return None
        epoch = max(one[1] for one in alive)
        current = [one for one in alive if one[1] == epoch]
        last = max(one[3] for one in current)
        return epoch, last, alive[-1][5], [(one[2], one[3], one[4]) for one in current[-5:]]


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
def test_the_table_equals_its_twin(seed: int, steps: int) -> None:
    """Epochs only rise here (the judge sees to that); times jump by hours and days."""
    rng = random.Random(seed)
    log, partition, twin = LogBuilder(), LogPartition(), Twin()
    times: list[int] = []
    next_sequence: dict[tuple[int, int], int] = {}
    epochs: dict[int, int] = {}
    for _ in range(steps):
        log.time_ms += rng.choice([1, 1, 1000, HOUR_MS, 23 * HOUR_MS, 24 * HOUR_MS, 200 * HOUR_MS])
        producer_id = rng.choice(ANONYMOUS + NAMED)
        epoch = epochs[producer_id] = epochs.get(producer_id, 0) + (rng.random() < 0.1)
        first, count = next_sequence.get((producer_id, epoch), 0), rng.randint(1, 5)
        next_sequence[producer_id, epoch] = first + count
        entry = log.batch(producer_id, epoch, first, count)
        partition.apply(entry)
        twin.apply(entry, producer_id, epoch, first, count)
        times.append(entry.append_time_ms)
        for known in ANONYMOUS + NAMED:
            state = partition.producer(known)
            actual = state and (state.epoch, state.last_sequence, state.append_time_ms, state.batches)
            assert actual == twin.state(known, times)


@pytest.mark.parametrize(
    ("producer_id", "hours"), [(1, 24), (NAMED_PRODUCER_BIT - 1, 24), (NAMED_PRODUCER_BIT, 14 * 24)]
)
def test_a_producer_expires_by_append_time_alone(producer_id: int, hours: int) -> None:
    log, partition = LogBuilder(), LogPartition()
    partition.apply(log.batch(producer_id, 0, 0))
    log.time_ms += hours * HOUR_MS - 1
    partition.apply(log.log(TrimLog(0)))
    assert partition.producer(producer_id) is not None
    log.time_ms += 1
    partition.apply(log.append(EntryKind.EMPTY, b""))
    assert partition.producer(producer_id) is not None, "entries that carry nothing change nothing"
    partition.apply(log.batch(0, 0, 0))
    assert partition.producer(producer_id) is None
    assert len(partition.producers) == 0


def test_a_producer_that_appends_is_not_expired_by_its_own_entry() -> None:
    log, partition = LogBuilder(), LogPartition()
    partition.apply(log.batch(1, 0, 0))
    log.time_ms += 100 * HOUR_MS
    partition.apply(log.batch(1, 0, 1))
    state = partition.producer(1)
    assert state is not None
    assert state.last_sequence == 1


def test_an_older_epoch_in_the_log_never_takes_the_state_back() -> None:
    log, partition = LogBuilder(), LogPartition()
    partition.apply(log.batch(1, 4, 0, 3))
    partition.apply(log.batch(1, 3, 9, 3))
    partition.apply(log.batch(1, 4, 0, 1))
    state = partition.producer(1)
    assert state is not None
    assert (state.epoch, state.last_sequence) == (4, 2)


def test_expiry_goes_by_time_after_a_restore_too() -> None:
    """Rows come back ordered by id; the younger producer has the smaller one here."""
    log, partition = LogBuilder(), LogPartition()
    partition.apply(log.batch(2, 0, 0))
    log.time_ms += HOUR_MS
    partition.apply(log.batch(1, 0, 0))
    restored = LogPartition()
    restored.restore(partition.rows(), partition.applied_index)
    log.time_ms += 23 * HOUR_MS
    entry = log.batch(0, 0, 0)
    for machine in (partition, restored):
        machine.apply(entry)
        assert machine.producer(2) is None
        assert machine.producer(1) is not None
    assert tuple(partition.rows()) == tuple(restored.rows())


def test_a_sequence_past_64_bits_is_stored_as_the_last_one() -> None:
    """Only a defective leader lets it into the log; the rows must encode all the same."""
    log, partition = LogBuilder(), LogPartition()
    partition.apply(log.batch(1, 0, 2**64 - 1, 5))
    restored = LogPartition()
    restored.restore(partition.rows(), partition.applied_index)
    state = restored.producer(1)
    assert state is not None
    assert state.last_sequence == 2**64 - 1
