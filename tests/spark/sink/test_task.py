"""Tasks of a write on a real cluster, without Spark: repeated, in parallel, in other numbers, and killed while they write."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pytest
from raftmq import sync
from raftmq.client.producer.sequenced_append import NamedEpoch, SequencedAppender
from raftmq.errors import ProducerFencedError, RequestTimedOutError, UnknownTopicError
from raftmq.spark.cluster.cluster import cluster_of
from raftmq.spark.errors import (
    InvalidOptionError,
    LaterBatchError,
    RaftMQSparkWarning,
    ReplayMismatchError,
    SupersededError,
)
from raftmq.spark.sink import task as sink_task
from raftmq.spark.sink.columns.log import SinkColumns
from raftmq.spark.sink.columns.queue import QueueColumns
from raftmq.spark.sink.ledger.batch_ledger import CRC_DIGESTS, LAST_TASK, ROW_DIGESTS, BatchLedger, WriteIdentity
from raftmq.spark.sink.options import SinkOptions, read_sink_options
from raftmq.spark.sink.rows.log_sorter import LogSorter
from raftmq.spark.sink.task import SinkTask, Written

from tests.support.spark.columns import batch_of
from tests.support.spark.reading import read_all, value_counts

COLUMNS = SinkColumns(value=0, key=None, headers=None, topic=None, partition=None, order=None, timestamp=None, width=1)


@pytest.fixture
def options(servers: str, topic: Callable[..., str]) -> SinkOptions:
    return made_options(servers, topic(partitions=2))


def made_options(servers: str, topic: str, **given: str) -> SinkOptions:
    return read_sink_options({"bootstrap.servers": servers, "topic": topic, "replayTimeout": "500ms", **given})


def name() -> str:
    return f"test-{time.time_ns()}"


def rows(start: int, end: int) -> list[bytes]:
    return [b"%05d" % n for n in range(start, end)]


KEYED = SinkColumns(value=1, key=0, headers=None, topic=None, partition=None, order=None, timestamp=None, width=2)


def keyed(numbers: Sequence[int]) -> list[list[bytes]]:
    """Return keys and values of rows of seven keys."""
    return [[b"key %d" % (n % 7) for n in numbers], [b"%05d" % n for n in numbers]]


def values_by_key(servers: str, options: SinkOptions) -> dict[bytes | None, list[bytes | None]]:
    found: dict[bytes | None, list[bytes | None]] = {}
    for record in read_all(servers, str(options.topic)):
        found.setdefault(record.key, []).append(record.value)
    return found


def run(options: SinkOptions, identity: WriteIdentity | None, task: int, values: Sequence[bytes]) -> Written:
    return SinkTask(options, COLUMNS, identity, task).run([batch_of(values)])


def wait_partitions(options: SinkOptions, count: int) -> None:
    """Wait until this process's connection knows that the topic has this number of partitions."""
    cluster = cluster_of(options.client)

    async def wait() -> None:
        async with asyncio.timeout(20):
            while cluster.resolver.topics[str(options.topic)].partition_count != count:
                await cluster.resolver.wait_change(1)

    cluster.run(wait)


def check_once(servers: str, options: SinkOptions, expected: Sequence[bytes]) -> None:
    assert options.topic is not None
    assert value_counts(servers, options.topic) == Counter(expected)


def test_a_task_that_runs_again_writes_nothing_twice(servers, options):
    identity = WriteIdentity(name(), 0, 1)
    expected = rows(0, 3000)
    assert run(options, identity, 0, expected) == Written({options.topic: 3000}, is_replay=False)
    other_cut = made_options(servers, options.topic, batchRecords="7", sortMemoryBytes="100000")
    assert run(other_cut, identity, 0, expected) == Written({options.topic: 3000}, is_replay=False)
    assert run(options, WriteIdentity(identity.name, 1, 1), 0, rows(0, 10)).rows == {options.topic: 10}
    check_once(servers, options, [*expected, *rows(0, 10)])
    assert run(options, WriteIdentity(identity.name, 1, 1), 0, rows(0, 10)).rows == {options.topic: 10}
    check_once(servers, options, [*expected, *rows(0, 10)])


def test_a_topic_that_was_created_again_with_other_partitions_is_named(servers, options):
    """The rows are divided in another way, so they are not those of the earlier run. The message named neither topic nor cause."""
    identity = WriteIdentity(name(), 0, 1)
    run(options, identity, 0, rows(0, 100))
    sink_task._latest[0] = None  # another executor
    with sync.Admin(bootstrap_servers=servers) as admin:
        admin.delete_topic(options.topic)
        admin.create_topic(options.topic, partitions=5)
    wait_partitions(options, 5)
    cause = f"topic {options.topic}, which was deleted and created again after the batch began"
    with pytest.raises(ReplayMismatchError, match=cause):
        run(options, identity, 0, rows(0, 100))
    finishing = WriteIdentity(identity.name, 0, 2, finishes=True)
    assert run(options, finishing, 0, rows(0, 100)).rows == {options.topic: 100}
    check_once(servers, options, rows(0, 100))


def test_rows_that_differ_are_reported_with_their_topics(servers, topic):
    columns = replace(COLUMNS, topic=1, width=2)
    one, two = sorted((topic(partitions=2), topic(partitions=2)))
    options = read_sink_options({"bootstrap.servers": servers})
    identity = WriteIdentity(name(), 0, 1)

    def write(values: Sequence[bytes]) -> None:
        topics = [(one, two)[number % 2] for number in range(len(values))]
        SinkTask(options, columns, identity, 0).run([batch_of(values, topics)])

    write(rows(0, 10))
    with pytest.raises(ReplayMismatchError, match=rf"\(topics {one}, {two}\)"):
        write(rows(5, 15))
    with sync.Admin(bootstrap_servers=servers) as admin:
        admin.delete_topic(one)
        admin.create_topic(one, partitions=5)
    wait_partitions(replace(options, topic=one), 5)
    with pytest.raises(ReplayMismatchError, match=rf"\(topics {one}, {two}; 1 topic .* deleted"):
        write(rows(0, 10))


def test_speculative_copies_beside_each_other_write_once(servers, options):
    identity = WriteIdentity(name(), 0, 1)
    expected = rows(0, 4000)
    cut = [made_options(servers, options.topic, batchRecords=str(n)) for n in (61, 97, 1000)]
    start = threading.Barrier(len(cut))

    def copy(found: SinkOptions) -> Written:
        start.wait(10)
        return run(found, identity, 0, expected)

    with ThreadPoolExecutor(len(cut)) as pool:
        assert [written.rows for written in pool.map(copy, cut)] == [{options.topic: 4000}] * 3
    check_once(servers, options, expected)


def test_many_tasks_can_enter_the_ledger_simultaneously(servers, options):
    identity = WriteIdentity(name(), 0, 1)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda task: run(options, identity, task, rows(task * 10, task * 10 + 10)), range(16)))
    check_once(servers, options, rows(0, 160))


def test_rows_keep_the_order_in_which_they_came(servers, options):
    numbers = [0, 10, 9, 100, 2, 50, 8, 7]
    SinkTask(options, KEYED, WriteIdentity(name(), 0, 1), 0).run([batch_of(*keyed(numbers))])
    assert values_by_key(servers, options) == {
        b"key %d" % rest: [b"%05d" % n for n in numbers if n % 7 == rest] for rest in {n % 7 for n in numbers}
    }


def test_rows_are_in_the_order_of_their_column_however_they_came(servers, options):
    by_offset = replace(KEYED, order=2, width=3)
    identity = WriteIdentity(name(), 0, 1)
    columns = [*keyed(range(40)), list(range(40))]
    for chunk in (columns, [column[::-1] for column in columns]):
        SinkTask(options, by_offset, identity, 0).run([batch_of(*chunk)])
    assert values_by_key(servers, options) == {
        b"key %d" % rest: [b"%05d" % n for n in range(rest, 40, 7)] for rest in range(7)
    }
    assert SinkTask(options, by_offset, identity, 0).run([batch_of(*columns)]).rows == {options.topic: 40}


def test_a_null_order_comes_first_and_a_null_time_is_that_of_the_batch(servers, options):
    columns = replace(KEYED, order=2, timestamp=3, width=4)
    chunk = [[b"k"] * 4, [b"a", b"b", b"c", b"d"], [5, None, -3, None], [7_000, None, 1_700_000_000_000_000, -2_000]]
    identity = WriteIdentity(name(), 0, 1)
    before = time.time_ns() // 1_000_000
    SinkTask(options, columns, identity, 0).run([batch_of(*chunk)])
    records = read_all(servers, str(options.topic))
    assert [record.value for record in records] == [b"b", b"d", b"c", b"a"]
    assert before - 10_000 < records[0].timestamp < before + 10_000
    assert [record.timestamp for record in records[1:]] == [-2, 1_700_000_000_000, 7]


def test_a_null_time_is_recognized_when_a_task_comes_back_in_another_order(servers, options):
    columns = replace(KEYED, timestamp=2, width=3)
    identity = WriteIdentity(name(), 0, 1)
    chunk = [[b"%d" % n for n in range(300)], [b"v"] * 300, [None, 5_000] * 150]
    small = made_options(servers, str(options.topic), batchRecords="1")
    run_until(small, identity, 0, chunk, sent=64, columns=columns)
    assert 0 < len(read_all(servers, str(options.topic))) < 300
    SinkTask(options, columns, identity, 0).run([batch_of(*(column[150:] + column[:150] for column in chunk))])
    assert len(read_all(servers, str(options.topic))) == 300


@pytest.mark.parametrize("finishes", [False, True])
@pytest.mark.parametrize("first_ms", [1_000_000_000_000, 4_000_000_000_000])
def test_rows_are_read_back_whatever_their_times_are(servers, options, finishes, first_ms):
    columns = replace(KEYED, timestamp=2, width=3)
    identity = WriteIdentity(name(), 0, 1)
    chunk = [*keyed(range(50)), [(first_ms + n) * 1000 for n in range(50)]]
    SinkTask(options, columns, identity, 0).run([batch_of(*chunk)])
    again = replace(identity, attempt=2, finishes=finishes)
    SinkTask(options, columns, again, 0).run([batch_of(*(column[::-1] for column in chunk))])
    check_once(servers, options, [b"%05d" % n for n in range(50)])


@pytest.mark.parametrize("ahead_seconds", [-90, 90])
def test_rows_are_read_back_whatever_the_clock_of_the_process_that_wrote_them(
    servers, options, monkeypatch, ahead_seconds
):
    identity, now_ns = WriteIdentity(name(), 0, 1), time.time_ns
    with monkeypatch.context() as wrong:
        wrong.setattr(time, "time_ns", lambda: now_ns() + ahead_seconds * 1_000_000_000)
        run(options, identity, 0, rows(0, 50))
    run(options, replace(identity, attempt=2, finishes=True), 0, rows(0, 50))
    check_once(servers, options, rows(0, 50))


def test_two_sinks_of_one_batch_write_to_two_topics_under_one_name(servers, topic):
    writer = name()
    for target in (topic(), topic()):
        found = made_options(servers, target)
        for attempt in (1, 2):
            run(found, WriteIdentity.of(writer, target, 4, attempt), 0, [target.encode()])
        check_once(servers, found, [target.encode()])


class DiedError(Exception):
    """The driver and its tasks died."""


def run_until(
    options: SinkOptions,
    identity: WriteIdentity,
    task: int,
    values: Sequence[bytes] | Sequence[Sequence[object]],
    sent: int,
    columns: SinkColumns = COLUMNS,
) -> None:
    """Run a task that dies when it has sent that many batches."""
    found = SinkTask(options, columns, identity, task)
    appender = found._appender
    append, left = appender.append, [sent]

    async def dying(topic, partition, batches):
        if left[0] <= 0:
            raise DiedError
        left[0] -= len(batches)
        return await append(topic, partition, batches)

    appender.append = dying  # type: ignore[method-assign]
    with pytest.raises(DiedError):
        found.run([batch_of(values) if columns is COLUMNS else batch_of(*values)])


def test_a_batch_continues_after_the_death_of_its_driver_and_writes_nothing_twice(servers, options):
    identity = WriteIdentity(name(), 7, 1)
    small = made_options(servers, options.topic, batchRecords="10")
    run(small, identity, 0, rows(0, 500))
    run_until(small, identity, 1, rows(500, 3000), sent=64)
    assert 500 < sum(value_counts(servers, options.topic).values()) < 3000
    again = WriteIdentity(identity.name, 7, 2)
    for task, bounds in ((1, (500, 3000)), (0, (0, 500)), (2, (3000, 3100))):
        assert run(options, again, task, rows(*bounds)).is_replay
    check_once(servers, options, rows(0, 3100))


def test_a_repeated_task_whose_rows_come_in_another_order_writes_the_rest_of_them(servers, options):
    """After a shuffle the blocks of the map tasks come in any order, but the rows of a key are in one block."""
    small = made_options(servers, str(options.topic), batchRecords="10")
    identity = WriteIdentity(name(), 7, 1)
    run(small, WriteIdentity(identity.name, 6, 1), 0, rows(0, 5))
    blocks = [[n for n in range(3000) if n % 7 in rests] for rests in ((0, 1, 2), (3, 4, 5, 6))]
    first = keyed([*blocks[0], *blocks[1]])
    run_until(small, identity, 0, first, sent=64, columns=KEYED)
    before = len(read_all(servers, str(options.topic)))
    assert 5 < before < 3000
    second = keyed([*blocks[1], *blocks[0]])
    again = WriteIdentity(identity.name, 7, 2)
    run_until(small, again, 0, second, sent=64, columns=KEYED)
    assert before < len(read_all(servers, str(options.topic))) < 3005
    for chunk in (second, first, second):
        found = SinkTask(options, KEYED, again, 0).run([batch_of(*chunk)])
        assert found == Written({options.topic: 3000}, is_replay=True)
    by_key = values_by_key(servers, options)
    by_key.pop(None)
    assert by_key == {b"key %d" % rest: [b"%05d" % n for n in range(rest, 3000, 7)] for rest in range(7)}
    run(options, WriteIdentity(identity.name, 8, 2), 0, rows(5, 10))
    assert len(read_all(servers, str(options.topic))) == 3010


def test_a_lost_order_of_a_key_is_reported(servers, options):
    identity = WriteIdentity(name(), 0, 1)
    run_until(
        made_options(servers, str(options.topic), batchRecords="1"), identity, 0, keyed(range(0, 700, 7)), 64, KEYED
    )
    with pytest.warns(RaftMQSparkWarning, match="in neither order"):
        SinkTask(options, KEYED, identity, 0).run([batch_of(*keyed(range(693, -1, -7)))])
    assert len(read_all(servers, str(options.topic))) == 100


def test_a_batch_that_is_repeated_with_other_tasks_is_refused_before_it_writes(servers, options):
    """Two tasks, one of which has written, become four. None of the four may write, not even the new ones."""
    identity = WriteIdentity(name(), 0, 1)
    run(options, identity, 1, rows(50, 100))
    again = WriteIdentity(identity.name, 0, 2)
    for task in (2, 3, 0, 1):
        with pytest.raises(ReplayMismatchError):
            run(options, again, task, rows(25 * task, 25 * task + 25))
    check_once(servers, options, rows(50, 100))
    third = WriteIdentity(identity.name, 0, 3)  # it does not wait, but reads back
    for task in (2, 0, 1, 3):
        run(options, third, task, rows(25 * task, 25 * task + 25))
    check_once(servers, options, rows(0, 100))


def test_a_batch_continues_on_one_core_after_a_task_has_waited_in_vain(servers, options):
    """Task 0 had not begun to write when the driver died, and runs first now."""
    identity = WriteIdentity(name(), 0, 1)
    run(options, identity, 1, rows(50, 100))
    with pytest.raises(ReplayMismatchError, match="start the query again"):
        run(options, WriteIdentity(identity.name, 0, 2), 0, rows(0, 50))
    for task in (0, 1):
        run(options, WriteIdentity(identity.name, 0, 3), task, rows(50 * task, 50 * task + 50))
    check_once(servers, options, rows(0, 100))


def test_a_task_that_lost_its_rows_is_refused(servers, options):
    identity = WriteIdentity(name(), 0, 1)
    assert run(options, identity, 3, []) == Written({}, is_replay=False)
    run(options, identity, 0, rows(0, 5))
    for attempt in (1, 2):
        with pytest.raises(ReplayMismatchError):
            run(options, WriteIdentity(identity.name, 0, attempt), 0, [])
    assert run(options, WriteIdentity(identity.name, 0, 2), 3, []).is_replay


def test_a_process_whose_copy_of_the_ledger_is_old_repeats_a_task_as_any_other_does(servers, options, monkeypatch):
    """Spark repeats a task in the process of another one, which has not seen the task enter and begin its next round."""
    identity = WriteIdentity(name(), 0, 1)
    run(options, identity, 0, rows(0, 5))
    with monkeypatch.context() as other_process:
        other_process.setattr(sink_task, "_latest", [None])
        run(options, identity, 1, rows(5, 25))
        run(options, identity, 1, rows(5, 25)[::-1])
    copy = sink_task._latest[0]
    with pytest.raises(ReplayMismatchError, match="without the rows it had"):
        run(options, identity, 1, [])
    monkeypatch.setattr(sink_task, "_latest", [copy])
    assert run(options, identity, 1, rows(5, 25)).rows == {options.topic: 20}
    monkeypatch.setattr(sink_task, "_latest", [copy])
    with monkeypatch.context() as other_process:
        other_process.setattr(sink_task, "_latest", [None])
        run(options, WriteIdentity(identity.name, 1, 2), 1, rows(25, 30))
    with pytest.raises(LaterBatchError):
        run(options, identity, 1, rows(5, 25))
    check_once(servers, options, rows(0, 30))


@pytest.mark.parametrize(
    "other", [rows(0, 9), rows(1, 11), [*rows(0, 9), b"00009 "]], ids=["fewer", "others", "longer"]
)
def test_a_task_with_other_rows_than_before_is_refused(servers, options, other):
    identity = WriteIdentity(name(), 0, 1)
    run(options, identity, 0, rows(0, 10))
    for attempt in (1, 2):
        with pytest.raises(ReplayMismatchError):
            run(options, WriteIdentity(identity.name, 0, attempt), 0, other)
    check_once(servers, options, rows(0, 10))


def test_a_task_of_a_run_that_was_replaced_is_refused(servers, options):
    """Attempts follow each other in the ledger: the clock of the second driver may be behind that of the first."""
    identity = WriteIdentity(name(), 3, 5)
    run(options, identity, 0, rows(0, 10))
    run(options, WriteIdentity(identity.name, 3, 4), 0, rows(0, 10))
    with pytest.raises(SupersededError):
        run(options, identity, 1, rows(10, 20))


def test_a_checkpoint_that_was_rolled_back_is_told_and_continues_under_a_new_name(servers, options):
    writer = f"team/{name()}"
    identity = WriteIdentity.of(writer, options.topic, 3, 5)
    run(options, identity, 0, rows(0, 10))
    with pytest.raises(LaterBatchError, match="writerName") as refused:
        run(options, WriteIdentity(identity.name, 2, 9), 0, rows(0, 10))
    assert f"'{writer}' has begun a later batch than 2" in str(refused.value)
    check_once(servers, options, rows(0, 10))


def test_a_batch_keeps_its_partitions_when_the_topic_gets_more(servers: str, options: SinkOptions, admin: sync.Admin):
    identity = WriteIdentity(name(), 0, 1)
    run(options, identity, 0, rows(0, 100))
    assert options.topic is not None
    admin.add_partitions(options.topic, 5)
    wait_partitions(options, 5)
    run(options, identity, 0, rows(0, 100))
    run(options, WriteIdentity(identity.name, 0, 2), 0, rows(0, 100))
    check_once(servers, options, rows(0, 100))
    run(options, WriteIdentity(identity.name, 1, 3), 0, rows(100, 300))
    assert {record.partition for record in read_all(servers, options.topic) if (record.value or b"") >= b"00100"} == {
        0,
        1,
        2,
        3,
        4,
    }


def test_a_batch_keeps_the_partitions_of_topics_that_its_rows_name(
    servers: str, topic: Callable[..., str], admin: sync.Admin
):
    target = topic(partitions=2)
    found = read_sink_options({"bootstrap.servers": servers})
    columns = replace(KEYED, topic=2, width=3)
    identity = WriteIdentity(name(), 0, 1)
    chunk = [*keyed(range(100)), [target] * 100]
    SinkTask(found, columns, identity, 0).run([batch_of(*chunk)])
    admin.add_partitions(target, 5)
    wait_partitions(made_options(servers, target), 5)
    for attempt in (1, 2):
        SinkTask(found, columns, WriteIdentity(identity.name, 0, attempt), 0).run([batch_of(*chunk)])
    assert len(read_all(servers, target)) == 100
    SinkTask(found, columns, WriteIdentity(identity.name, 0, 2), 1).run([batch_of(*chunk)])
    assert {record.partition for record in read_all(servers, target)} == {0, 1}


def finishing(identity: WriteIdentity, attempt: int) -> WriteIdentity:
    return WriteIdentity(identity.name, identity.epoch, attempt, finishes=True)


def test_a_batch_is_finished_with_other_tasks(servers, options):
    """Two tasks, one of which was interrupted, become three, on one core and in any order."""
    small = made_options(servers, str(options.topic), batchRecords="10")
    identity = WriteIdentity(name(), 7, 1)
    run(small, identity, 0, rows(0, 1000))
    run_until(small, identity, 1, rows(1000, 3000), sent=64)
    assert 1000 < len(read_all(servers, str(options.topic))) < 3000
    again = finishing(identity, 2)
    run_until(small, again, 2, rows(2000, 3100), sent=20)
    for task, bounds in ((2, (2000, 3100)), (1, (500, 2000)), (0, (0, 500)), (2, (2000, 3100))):
        found = run(options, again, task, rows(*bounds))
        assert (found.rows, found.is_replay) == ({options.topic: bounds[1] - bounds[0]}, True)
    check_once(servers, options, rows(0, 3100))
    last = finishing(identity, 3)  # it fails again, and is finished with other tasks
    run(options, last, 0, rows(0, 3100))
    check_once(servers, options, rows(0, 3100))
    with pytest.raises(ProducerFencedError):  # a task of the first run, which is alive
        appended = SinkTask(small, COLUMNS, identity, 1)
        old = cluster_of(options.client).run(
            partial(appended._appender.claim, identity.task_name(1), identity.name_epoch())
        )
        pytest.fail(f"{old}")
    run(options, WriteIdentity(identity.name, 8, 4), 0, rows(3100, 3105))
    check_once(servers, options, rows(0, 3105))


@pytest.mark.parametrize("version", [ROW_DIGESTS, CRC_DIGESTS])
def test_a_batch_that_an_earlier_version_began_is_finished(servers, options, monkeypatch, version):
    """Until 2026-11-27 the ledger had version 2, and other digests: the rows are read back. Version 3 spread rows by their CRC."""
    small = made_options(servers, str(options.topic), batchRecords="10")
    identity = WriteIdentity(name(), 7, 1)
    with monkeypatch.context() as earlier:
        earlier.setattr("raftmq.spark.sink.task.LOG_DIGESTS", version)
        if version == ROW_DIGESTS:
            digest = LogSorter.digest
            earlier.setattr(LogSorter, "digest", lambda sorter: digest(sorter)[:8] + bytes(32))
        run(small, identity, 0, rows(0, 500))
        run_until(small, identity, 1, rows(500, 3000), sent=64)
    assert 500 < len(read_all(servers, str(options.topic))) < 3000
    again = WriteIdentity(identity.name, 7, 2)
    for task, bounds in ((1, (500, 3000)), (0, (0, 500)), (1, (500, 3000))):
        assert run(options, again, task, rows(*bounds)).is_replay
    check_once(servers, options, rows(0, 3000))


def test_rows_that_a_second_run_makes_differently_are_written_beside_those_of_the_first(servers, options):
    identity = WriteIdentity(name(), 0, 1)
    run(options, identity, 0, rows(0, 10))
    with pytest.raises(ReplayMismatchError, match="delivery=finish"):
        run(options, WriteIdentity(identity.name, 0, 2), 0, rows(5, 15))
    run(options, finishing(identity, 3), 0, rows(5, 15))
    check_once(servers, options, rows(0, 15))


def test_equal_rows_of_several_tasks_are_all_written_when_a_batch_is_finished(servers, options):
    """One of four equal rows was written. Two tasks leave one out each, so the driver writes one more."""
    identity = WriteIdentity(name(), 0, 1)
    run(options, identity, 0, [b"same", b"a"])
    again = finishing(identity, 2)
    done = [run(options, again, 1, [b"same", b"same", b"a"]), run(options, again, 2, [b"b", b"same", b"same"])]
    assert len(read_all(servers, str(options.topic))) == 5
    left_out = [written.left_out for written in done]
    for attempt in (2, 2, 3):
        task = SinkTask(options, COLUMNS, WriteIdentity(identity.name, 0, attempt), LAST_TASK)
        assert task.write_missing(left_out) == 1
        check_once(servers, options, [b"a", b"b", *[b"same"] * 4])
    last = finishing(identity, 4)
    run(options, last, 0, [b"a", b"b", *[b"same"] * 4])
    check_once(servers, options, [b"a", b"b", *[b"same"] * 4])


def test_a_write_to_a_queue_topic_cannot_be_finished(servers, topic, admin: sync.Admin):
    target = name()
    admin.create_topic(target, partitions=1, replication_factor=1, kind="queue")
    columns = QueueColumns(0, None, None, None, None, None, None, None, 1)
    with pytest.raises(InvalidOptionError, match="log topics"):
        SinkTask(made_options(servers, target), columns, finishing(WriteIdentity(name(), 0, 1), 1), 0).run(
            [batch_of([b"v"])]
        )
    admin.delete_topic(target)


def test_at_least_once_writes_the_rows_in_each_run(servers, options):
    loose = made_options(servers, options.topic, delivery="at-least-once")
    for _ in range(2):
        run(loose, None, 0, rows(0, 5))
    check_once(servers, options, rows(0, 5) * 2)


def test_nothing_is_written_when_reading_the_rows_fails(servers, options):
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch_of(rows(0, 1000))
        raise DiedError

    with pytest.raises(DiedError):
        SinkTask(options, COLUMNS, WriteIdentity(name(), 0, 1), 0).run(failing())
    check_once(servers, options, [])


def test_the_ledger_is_opened_while_spark_computes_the_first_rows(servers, options, admin: sync.Admin):
    identity = WriteIdentity(name(), 0, 1)

    def waiting() -> Iterator[pa.RecordBatch]:
        wait_opened(admin, identity)
        yield batch_of(rows(0, 10))
        yield batch_of(rows(10, 20))

    assert SinkTask(options, COLUMNS, identity, 0).run(waiting()).rows == {options.topic: 20}
    check_once(servers, options, rows(0, 20))


class Computing:
    """A task of a process of its own, whose rows Spark has not computed yet."""

    def __init__(self, options: SinkOptions, identity: WriteIdentity, task: int, values: Sequence[bytes]) -> None:
        self._values = values
        self._has_begun, self._may_end = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1)
        sink_task._latest[0] = None
        self._written = self._pool.submit(lambda: SinkTask(options, COLUMNS, identity, task).run(self._rows()))
        assert self._has_begun.wait(20)
        with sync.Admin(bootstrap_servers=options.client.bootstrap_servers) as admin:
            wait_opened(admin, identity)
        deadline = time.monotonic() + 20
        while ledger_of(options, identity).attempt != identity.attempt:
            assert time.monotonic() < deadline, "the ledger waits for the rows"
        sink_task._latest[0] = None

    def _rows(self) -> Iterator[pa.RecordBatch]:
        self._has_begun.set()
        assert self._may_end.wait(30)
        if self._values:
            yield batch_of(self._values)

    def end(self) -> Written:
        self._may_end.set()
        try:
            return self._written.result(30)
        finally:
            self._pool.shutdown()


def ledger_of(options: SinkOptions, identity: WriteIdentity) -> BatchLedger:
    cluster = cluster_of(options.client)
    appender = SequencedAppender(cluster.resolver)
    found = cluster.run(lambda: appender.claim(identity.ledger_name, identity.name_epoch()))
    return BatchLedger.decode(found.stamp)


def wait_opened(admin: sync.Admin, identity: WriteIdentity) -> None:
    deadline = time.monotonic() + 20
    while not admin.forget_producer_names(prefix=identity.ledger_name, unused_seconds=0, dry_run=True).count:
        assert time.monotonic() < deadline


def test_a_run_of_a_batch_does_not_overtake_a_later_one_while_its_rows_are_computed(servers, options):
    identity = WriteIdentity(name(), 0, 1)
    run(options, identity, 0, rows(0, 10))
    orphan = Computing(options, replace(identity, attempt=2), 1, rows(10, 20))
    assert run(options, replace(identity, attempt=3), 0, rows(0, 10)).rows == {options.topic: 10}
    with pytest.raises(SupersededError):
        orphan.end()
    assert run(options, replace(identity, attempt=3), 1, rows(10, 20)).rows == {options.topic: 10}
    check_once(servers, options, rows(0, 20))


def test_a_task_of_an_earlier_run_does_not_enter_while_the_rows_of_a_later_one_are_computed(servers, options):
    identity = WriteIdentity(name(), 0, 1)
    run(options, identity, 5, [])
    task = Computing(options, replace(identity, attempt=2), 0, rows(0, 20))
    with pytest.raises(SupersededError):
        run(options, identity, 1, rows(10, 20))
    assert task.end().rows == {options.topic: 20}
    check_once(servers, options, rows(0, 20))


def test_a_copy_of_a_task_without_the_rows_of_the_other_copy_is_refused(servers, options):
    identity = WriteIdentity(name(), 0, 1)
    empty = Computing(options, identity, 0, [])
    run(options, identity, 0, rows(0, 20))
    sink_task._latest[0] = None
    with pytest.raises(ReplayMismatchError, match="without the rows it had"):
        empty.end()
    check_once(servers, options, rows(0, 20))


def test_an_outage_that_ends_before_the_rows_are_computed_is_no_failure(
    servers, options, admin: sync.Admin, monkeypatch
):
    identity, claim, failures = WriteIdentity(name(), 0, 1), SequencedAppender.claim, [1, 2]

    async def failing_twice(self: SequencedAppender, *args: Any, **more: Any) -> NamedEpoch:  # Any: of `claim`
        if failures:
            failures.pop()
            raise RequestTimedOutError("no answer")
        return await claim(self, *args, **more)

    def computed() -> Iterator[pa.RecordBatch]:
        wait_opened(admin, identity)
        yield batch_of(rows(0, 10))

    monkeypatch.setattr(SequencedAppender, "claim", failing_twice)
    assert SinkTask(options, COLUMNS, identity, 0).run(computed()).rows == {options.topic: 10}
    assert not failures


@pytest.mark.parametrize("is_late", [False, True])
def test_rows_that_cannot_be_computed_are_reported_whatever_the_ledger_says(servers, options, is_late):
    identity = WriteIdentity(name(), 1, 1)
    if is_late:
        run(options, replace(identity, epoch=2), 0, rows(0, 5))

    def failing() -> Iterator[pa.RecordBatch]:
        yield from map(fail, [None])

    def fail(_: None) -> pa.RecordBatch:
        raise DiedError

    with pytest.raises(DiedError):
        SinkTask(options, COLUMNS, identity, 0).run(failing())
    check_once(servers, options, rows(0, 5) if is_late else [])


def test_a_write_to_an_unknown_topic_is_refused(servers):
    with pytest.raises(UnknownTopicError):
        run(made_options(servers, "nowhere"), WriteIdentity(name(), 0, 1), 0, rows(0, 1))
