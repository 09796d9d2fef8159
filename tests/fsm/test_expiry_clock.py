"""Expiry uses a clock that no single entry can move far: wrong clocks and days of sleep do not make anything expire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.batch_header import parse_header
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.expiry_clock import STEP_MS_MAX, ExpiryClock
from raftmq.fsm.log_commands import TrimLog
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.producer_ids import (
    ANONYMOUS_EXPIRY_MS,
    NAMED_EXPIRY_MS,
    NAMED_PRODUCER_BIT,
    REPLACEABLE_IDLE_MS,
)
from raftmq.fsm.sequence_validator import Duplicate, SequenceValidator

from tests.support.fsm.harness import MetadataLog
from tests.support.fsm.histories import HOUR_MS, LogBuilder, batch


@pytest.mark.parametrize("producer_id", [1, NAMED_PRODUCER_BIT])
@pytest.mark.parametrize("hours", [25, 15 * 24])
def test_one_entry_with_a_future_time_expires_no_producer(producer_id: int, hours: int) -> None:
    """This happens with a wrong clock of a leader, and with the first entry after the whole cluster slept."""
    log, partition = LogBuilder(), LogPartition()
    partition.apply(log.batch(producer_id, 0, 0, 3))
    log.time_ms += hours * HOUR_MS
    partition.apply(log.batch(9, 0, 0))
    partition.apply(log.log(TrimLog(0)))
    validate = SequenceValidator(partition)
    assert validate.validate(parse_header(batch(producer_id, 0, 0, 3))) == Duplicate(0), (
        "what is repeated is recognised"
    )


def test_a_command_with_a_future_time_expires_no_producer() -> None:
    log, partition = LogBuilder(), LogPartition()
    partition.apply(log.batch(1, 0, 0))
    log.time_ms += 30 * HOUR_MS
    partition.apply(log.log(TrimLog(0)))
    assert partition.producer(1) is not None


def test_a_name_survives_an_entry_with_a_future_time() -> None:
    cluster = MetadataLog(nodes=1)
    before = cluster.run(mc.InitNamedProducer("p", None))
    assert isinstance(before, mc.ProducerInitialized)
    cluster.log.time_ms += 400 * 24 * HOUR_MS
    after = cluster.run(mc.InitNamedProducer("p", None))
    assert isinstance(after, mc.ProducerInitialized)
    assert (after.producer_id, after.epoch) == (before.producer_id, before.epoch + 1)


def test_the_bounds_keep_their_order() -> None:
    """One step is far below the idle time after which a producer may be replaced, which is below the expiry time."""
    assert 12 * STEP_MS_MAX <= REPLACEABLE_IDLE_MS < ANONYMOUS_EXPIRY_MS < NAMED_EXPIRY_MS


@given(steps=st.lists(st.integers(-HOUR_MS, 200 * HOUR_MS), max_size=20))
def test_the_clock_follows_by_bounded_steps_and_survives_a_restore(steps: list[int]) -> None:
    clock, time_ms, expected, last = ExpiryClock(4), 1_000_000_000, 1_000_000_000, 1_000_000_000
    clock.advance(time_ms)
    for step in steps:
        time_ms = max(1, time_ms + step)
        if time_ms > last:
            expected += min(STEP_MS_MAX, time_ms - last)
            last = time_ms
        assert clock.advance(time_ms) == expected
        again = ExpiryClock(4)
        for key, value in clock.rows():
            again.load(key, value)
        assert (again.now_ms, again.append_time_ms) == (clock.now_ms, clock.append_time_ms)
    assert len(list(clock.take_dirty())) == 1
    assert list(clock.take_dirty()) == []
