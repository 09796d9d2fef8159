"""Names lent to batch writes that have none: their number is that of simultaneous writes, and no write gets one twice."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.spark.cluster.cluster import cluster_of
from raftmq.spark.errors import SupersededError, TooManyWritesError
from raftmq.spark.sink.ledger.write_slots import ABANDONED_MS, ENDED_MAX, SLOTS_MAX, SlotTable
from raftmq.spark.sink.options import read_sink_options
from raftmq.spark.sink.writers import BatchWriter, change_slots

HOUR = ABANDONED_MS


def write(number: int) -> bytes:
    return number.to_bytes(8, "big")


def test_writes_one_after_another_use_the_same_name_under_rising_epochs():
    table = SlotTable()
    epochs = []
    for number in range(500):
        table = table.taken(write(number), 1000)
        epochs.append(table.lent[write(number)].epoch)
        assert table.identity(write(number), 1).name == "spark-slot-0"
        table = table.given_back(write(number))
    assert epochs == list(range(1000, 1500))


def test_simultaneous_writes_have_different_names():
    table = SlotTable()
    for number in range(SLOTS_MAX):
        table = table.taken(write(number), 5)
    assert {slot.number for slot in table.lent.values()} == set(range(SLOTS_MAX))
    with pytest.raises(TooManyWritesError, match="writerName"):
        table.taken(write(999), HOUR + 4)
    later = table.taken(write(999), HOUR + 5)  # the oldest was abandoned by its driver
    assert later.lent[write(999)] == (0, HOUR + 5)
    assert write(0) not in later.lent
    freed = later.given_back(write(5))
    with pytest.raises(SupersededError):  # it is alive: under another name it would write its rows again
        freed.taken(write(0), HOUR + 6)


def test_a_task_that_comes_after_the_end_of_its_write_is_refused():
    ended = SlotTable().taken(write(1), 5).given_back(write(1))
    with pytest.raises(SupersededError):
        ended.taken(write(1), 6)
    assert ended.given_back(write(1)) == ended


@given(steps=st.lists(st.tuples(st.integers(0, 300), st.booleans(), st.integers(0, 2**40)), max_size=300))
def test_a_table_decodes_to_an_equal_one_and_fits_a_stamp(steps):
    table = SlotTable()
    for number, is_end, now_ms in steps:
        try:
            table = table.given_back(write(number)) if is_end else table.taken(write(number), now_ms)
        except (SupersededError, TooManyWritesError):
            continue
        numbers = [slot.number for slot in table.lent.values()]
        assert len(set(numbers)) == len(numbers)
    assert SlotTable.decode(table.encode()) == table


def test_the_largest_table_fits_a_stamp():
    table = SlotTable()
    for number in range(SLOTS_MAX + ENDED_MAX):
        table = table.taken(write(number), 2**50)
        if number >= SLOTS_MAX - 1:
            table = table.given_back(write(number))
    table = table.taken(write(999), 2**50)
    assert len(table.encode()) <= 4096
    assert SlotTable.decode(table.encode()) == table


def test_a_table_of_another_version_is_refused():
    with pytest.raises(SupersededError, match="another version"):
        SlotTable.decode(b"\x02")


def test_batch_writes_without_a_name_leave_no_names_behind(servers: str):
    """Each of them left the names of its tasks for 14 days: after some 500 writes the cluster gave no more."""
    options = read_sink_options({"bootstrap.servers": servers, "topic": "t"})
    appender = SequencedAppender(cluster_of(options.client).resolver)
    names = set()
    for number in range(3):
        writer = BatchWriter(options, None, write(number + 7), number)
        identity = writer._identity()
        assert identity == writer._identity()
        assert identity is not None
        names.add(identity.task_name(0))
        claim = partial(appender.claim, identity.task_name(0), identity.name_epoch(), b"x")
        cluster_of(options.client).run(claim)
        writer.commit([])
        with pytest.raises(SupersededError):
            writer._identity()
    assert len(names) == 1
    assert not change_slots(options, lambda table, _: table).lent
