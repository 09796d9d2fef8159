"""The producer table, compared with a slow obvious twin, and the expiry of producers."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.batch_header import parse_header
from raftmq.fsm.expiry_clock import STEP_MS_MAX
from raftmq.fsm.log_commands import TrimLog
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.producer_ids import NAMED_PRODUCER_BIT, REPLACEABLE_IDLE_MS
from raftmq.fsm.producer_table import ProducerTable
from raftmq.fsm.sequence_validator import Accept, Gap, SequenceValidator, TooManyProducers
from raftmq.raft.entry import Entry, EntryKind

from tests.support.fsm.histories import HOUR_MS, LogBuilder, batch

ANONYMOUS = (1, 2, 3)
NAMED = (NAMED_PRODUCER_BIT, NAMED_PRODUCER_BIT | 7)


def pass_time(log: LogBuilder, partition: LogPartition, time_ms: int) -> None:
    """Apply empty entries until this much time has passed, each at the largest step that the expiry clock follows."""
    while time_ms > 0:
        log.time_ms += min(time_ms, STEP_MS_MAX)
        time_ms -= STEP_MS_MAX
        partition.apply(log.log(TrimLog(0)))


class Twin:
    """A twin that remembers every batch ever applied, and answers by searching all of them."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int, int, int, int, int]] = []

    def apply(self, entry: Entry, producer_id: int, epoch: int, first: int, count: int, now_ms: int) -> None:
        self.batches.append((producer_id, epoch, first, first + count - 1, entry.base_offset, now_ms))

    def state(self, producer_id: int, times: list[int]) -> tuple[int, int, int, list[tuple[int, int, int]]] | None:
        limit = (14 * 24 if producer_id >= NAMED_PRODUCER_BIT else 24) * HOUR_MS
        mine = [one for one in self.batches if one[0] == producer_id]
        # Cut after a batch if the log's time exceeded it by the limit before the producer's next batch.
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


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32), steps=st.integers(1, 25))
def test_the_table_equals_its_twin(seed: int, steps: int) -> None:
    """Epochs only rise here, which the validator guarantees. Hours and days pass, with entries in between or in one leap."""
    rng = random.Random(seed)
    log, partition, twin = LogBuilder(), LogPartition(), Twin()
    times: list[int] = []
    now_ms = log.time_ms
    next_sequence: dict[tuple[int, int], int] = {}
    epochs: dict[int, int] = {}
    for _ in range(steps):
        passed = rng.choice([1, 1, 1000, HOUR_MS, 23 * HOUR_MS, 24 * HOUR_MS, 340 * HOUR_MS])
        if rng.random() < 0.7:
            times += [now_ms + min(start + STEP_MS_MAX, passed) for start in range(0, passed, STEP_MS_MAX)]
            pass_time(log, partition, passed)
            log.time_ms += 1  # the batch is later than the time that passed before it
            now_ms += passed + 1
        else:
            log.time_ms += passed
            now_ms += min(passed, STEP_MS_MAX) if times else passed
        producer_id = rng.choice(ANONYMOUS + NAMED)
        epoch = epochs[producer_id] = epochs.get(producer_id, 0) + (rng.random() < 0.1)
        first, count = next_sequence.get((producer_id, epoch), 0), rng.randint(1, 5)
        next_sequence[producer_id, epoch] = first + count
        entry = log.batch(producer_id, epoch, first, count)
        partition.apply(entry)
        twin.apply(entry, producer_id, epoch, first, count, now_ms)
        times.append(now_ms)
        for known in ANONYMOUS + NAMED:
            state = partition.producer(known)
            actual = state and (state.epoch, state.last_sequence, state.active_ms, state.batches)
            assert actual == twin.state(known, times)


@pytest.mark.parametrize(
    ("producer_id", "hours"), [(1, 24), (NAMED_PRODUCER_BIT - 1, 24), (NAMED_PRODUCER_BIT, 14 * 24)]
)
def test_a_producer_expires_by_the_times_of_entries_alone(producer_id: int, hours: int) -> None:
    log, partition = LogBuilder(), LogPartition()
    partition.apply(log.batch(producer_id, 0, 0))
    pass_time(log, partition, hours * HOUR_MS - 1)
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
    pass_time(log, partition, 24 * HOUR_MS - 1)
    log.time_ms += 1
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
    """Rows are restored in the order of ids, and the younger producer has the smaller id here."""
    log, partition = LogBuilder(), LogPartition()
    partition.apply(log.batch(2, 0, 0))
    pass_time(log, partition, HOUR_MS)
    partition.apply(log.batch(1, 0, 0))
    pass_time(log, partition, 23 * HOUR_MS - 1)
    restored = LogPartition()
    restored.restore(partition.rows(), partition.applied_index)
    log.time_ms += 1
    entry = log.batch(0, 0, 0)
    for machine in (partition, restored):
        machine.apply(entry)
        assert machine.producer(2) is None
        assert machine.producer(1) is not None
    assert tuple(partition.rows()) == tuple(restored.rows())


def test_a_sequence_past_64_bits_is_stored_as_the_last_one() -> None:
    """Only a defective leader accepts it, but the rows must be encodable all the same."""
    log, partition = LogBuilder(), LogPartition()
    partition.apply(log.batch(1, 0, 2**64 - 1, 5))
    restored = LogPartition()
    restored.restore(partition.rows(), partition.applied_index)
    state = restored.producer(1)
    assert state is not None
    assert state.last_sequence == 2**64 - 1


# ------------------------------------------------------------------------------------------------------------ a full table


def full_partition(log: LogBuilder, producers_max: int = 4, named_max: int = 2) -> LogPartition:
    """Create a partition with a small table that is full of anonymous producers, of which 1 is the oldest."""
    partition = LogPartition()
    partition.producers = ProducerTable(2, producers_max, named_max)
    for producer_id in range(1, producers_max + 1):
        partition.apply(log.batch(producer_id, 0, 0))
    return partition


def judged(partition: LogPartition, producer_id: int, first: int = 0) -> object:
    return SequenceValidator(partition).validate(parse_header(batch(producer_id, 0, first)))


def known(partition: LogPartition) -> set[int]:
    return {one for one in range(1, 100) if partition.producer(one) is not None}


def test_short_lived_producers_are_accepted_endlessly() -> None:
    """A program that writes one record and ends runs once a minute for days, and the table has room for three hours of its producers."""
    log, partition = LogBuilder(), LogPartition()
    partition.producers = ProducerTable(2, producers_max=180, named_max=100)
    for producer_id in range(1, 4_000):
        log.time_ms += 60_000
        assert judged(partition, producer_id) == Accept(), producer_id
        partition.apply(log.batch(producer_id, 0, 0))
        assert len(partition.producers) <= 180
    assert partition.producers.used_ratio(partition.expiry.now_ms) == pytest.approx(120 / 180, abs=0.01)


def test_a_full_table_replaces_the_longest_idle_producer_unless_it_may_still_retry_a_batch() -> None:
    log = LogBuilder()
    partition = full_partition(log)
    assert judged(partition, 9) == TooManyProducers()
    assert partition.producers.used_ratio(partition.expiry.now_ms) == 1.0
    pass_time(log, partition, REPLACEABLE_IDLE_MS - 1)
    partition.apply(log.batch(1, 0, 1))
    assert judged(partition, 9) == TooManyProducers(), "all of them may still repeat something"
    pass_time(log, partition, 1)
    assert judged(partition, 9) == Accept()
    partition.apply(log.batch(9, 0, 0))
    assert known(partition) == {1, 3, 4, 9}, "2 was idle for longest; 1 has just written"
    assert judged(partition, 2, first=1) == Gap(-1, is_certain=False), "what it wrote is not known any more"
    assert judged(partition, 10, first=1) == Gap(-1), "this one never wrote"


def test_a_leap_of_the_clock_makes_no_producer_replaceable() -> None:
    log = LogBuilder()
    partition = full_partition(log)
    log.time_ms += 1000 * HOUR_MS
    partition.apply(log.log(TrimLog(0)))
    assert judged(partition, 9) == TooManyProducers()


def test_named_producers_keep_their_slots_and_leave_some_to_others() -> None:
    log = LogBuilder()
    partition = full_partition(log)
    pass_time(log, partition, REPLACEABLE_IDLE_MS)
    for name in (NAMED_PRODUCER_BIT, NAMED_PRODUCER_BIT | 1):
        assert judged(partition, name) == Accept()
        partition.apply(log.batch(name, 0, 0))
    assert judged(partition, NAMED_PRODUCER_BIT | 2) == TooManyProducers()
    assert partition.producers.used_ratio(partition.expiry.now_ms) == 1.0
    for anonymous in (11, 12):
        assert judged(partition, anonymous) == Accept()
        partition.apply(log.batch(anonymous, 0, 0))
    assert judged(partition, 13) == TooManyProducers(), "the two with names are not replaced"
    pass_time(log, partition, 13 * 24 * HOUR_MS)
    assert partition.producer(NAMED_PRODUCER_BIT) is not None


def test_pending_producers_count_towards_the_maximum_and_are_not_idle() -> None:
    log = LogBuilder()
    partition = full_partition(log)
    pass_time(log, partition, REPLACEABLE_IDLE_MS)
    validate = SequenceValidator(partition)

    def send(producer_id: int, first: int = 0) -> object:
        header = parse_header(batch(producer_id, 0, first))
        result = validate.validate(header)
        if result == Accept():
            entry = log.batch(producer_id, 0, first)
            validate.appended(header, entry.index, entry.base_offset)
        return result

    assert [send(one) for one in (21, 22)] == [Accept()] * 2
    assert send(3, 1) == Accept(), "and now it is not idle any more"
    assert send(23) == Accept()
    assert send(24) == TooManyProducers()
    for entry in log.entries:
        partition.apply(entry)
    assert known(partition) == {3, 21, 22, 23}
    assert len(partition.producers) == 4


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_every_replica_replaces_the_same_producer_even_after_a_restore(seed: int) -> None:
    rng = random.Random(seed)
    log = LogBuilder()
    partition = full_partition(log, producers_max=6)
    twin = partition
    for _ in range(60):
        log.time_ms += rng.choice([0, 0, 1, STEP_MS_MAX, HOUR_MS])
        producer_id = rng.choice([*range(1, 20), *NAMED])
        state = partition.producer(producer_id)
        first = state.last_sequence + 1 if state is not None else 0
        if judged(partition, producer_id, first) == Accept():
            entry = log.batch(producer_id, 0, first)
            partition.apply(entry)
            if twin is not partition:
                twin.apply(entry)
        if rng.random() < 0.1:
            twin = LogPartition()
            twin.producers = ProducerTable(2, 6, 2)
            twin.restore(partition.rows(), partition.applied_index)
        assert tuple(twin.rows()) == tuple(partition.rows())
        assert len(partition.producers) <= 6
