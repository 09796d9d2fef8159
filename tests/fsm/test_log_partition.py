"""The log partition: positions and trims."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.fsm.log_commands import TrimLog, Trimmed
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.state_machine import UnsupportedCommandError
from raftmq.raft.entry import EntryKind

from tests.support.fsm.histories import LogBuilder


@pytest.fixture
def log() -> LogBuilder:
    return LogBuilder()


@pytest.fixture
def partition() -> LogPartition:
    return LogPartition()


def test_offsets_and_bytes_follow_the_data_entries(log: LogBuilder, partition: LogPartition) -> None:
    first = log.batch(0, 0, 0, 3)
    for entry in (first, log.append(EntryKind.EMPTY, b""), log.log(TrimLog(0)), log.append(EntryKind.DATA, b"junk", 2)):
        partition.apply(entry)
    assert partition.next_offset == 5
    assert partition.appended_bytes == len(first.payload) + 4
    assert partition.log_start_offset == 0


def test_trims_are_monotone_and_end_at_the_log_end(log: LogBuilder, partition: LogPartition) -> None:
    partition.apply(log.batch(0, 0, 0, 10))
    targets = [4, 2, -1, 4, 99, 0]
    starts = [partition.apply(log.log(TrimLog(target))) for target in targets]
    assert starts == [Trimmed(start) for start in (4, 4, 4, 4, 10, 10)]
    partition.apply(log.batch(0, 0, 0, 1))
    assert (partition.log_start_offset, partition.next_offset) == (10, 11)


@given(steps=st.lists(st.one_of(st.integers(1, 9), st.integers(-100, 100).map(TrimLog)), max_size=30))
def test_the_start_is_the_largest_trim_clamped_to_the_log_end_at_its_time(steps: list[int | TrimLog]) -> None:
    log, partition, start = LogBuilder(), LogPartition(), 0
    for step in steps:
        if isinstance(step, int):
            partition.apply(log.batch(0, 0, 0, step))
        else:
            start = max(start, min(step.before_offset, log.next_offset))
            assert partition.apply(log.log(step)) == Trimmed(start)
    assert (partition.log_start_offset, partition.next_offset) == (start, log.next_offset)


def test_a_batch_of_a_newer_version_stops_the_replica(log: LogBuilder, partition: LogPartition) -> None:
    """Brokers that can read the batch remember its producer, so ignoring it would lead to another state."""
    partition.apply(log.batch(1, 0, 0))
    before = (partition.applied_index, tuple(partition.rows()))
    newer = bytearray(log.entries[0].payload)
    newer[2] += 1
    with pytest.raises(UnsupportedCommandError, match="holds a batch that this version cannot read"):
        partition.apply(log.append(EntryKind.DATA, bytes(newer), 1))
    assert (partition.applied_index, tuple(partition.rows())) == before


def test_nothing_is_dirty_when_nothing_changed(log: LogBuilder, partition: LogPartition) -> None:
    assert partition.take_dirty_rows() == ()
    partition.apply(log.batch(1, 0, 0))
    assert len(partition.take_dirty_rows()) == 3
    idle = (log.append(EntryKind.EMPTY, b""), log.append(EntryKind.MEMBERSHIP, b"x"), log.log(TrimLog(0)))
    for entry in idle:
        partition.apply(entry)
    assert partition.take_dirty_rows() == ()
