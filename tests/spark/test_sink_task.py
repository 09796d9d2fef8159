"""Tasks of a write on a real cluster, without Spark: repeated, in parallel, in other numbers, and killed while they write."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from raftmq import sync
from raftmq.errors import ProducerFencedError, UnknownTopicError
from raftmq.spark.batch_ledger import WriteIdentity
from raftmq.spark.cluster import cluster_of
from raftmq.spark.sink_chunks import Chunk
from raftmq.spark.sink_columns import SinkColumns
from raftmq.spark.sink_errors import ReplayMismatchError, SupersededError
from raftmq.spark.sink_options import SinkOptions, read_sink_options
from raftmq.spark.sink_task import SinkTask, Written

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


def run(options: SinkOptions, identity: WriteIdentity | None, task: int, values: Sequence[bytes]) -> Written:
    return SinkTask(options, COLUMNS, identity, task).run([[values]])


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
    assert run(options, identity, 0, expected[::-1]) == Written({options.topic: 3000}, is_replay=False)
    other_cut = made_options(servers, options.topic, batchRecords="7", sortMemoryBytes="100000")
    assert run(other_cut, identity, 0, expected) == Written({options.topic: 3000}, is_replay=False)
    assert run(options, WriteIdentity(identity.name, 1, 1), 0, rows(0, 10)).rows == {options.topic: 10}
    check_once(servers, options, [*expected, *rows(0, 10)])
    assert run(options, WriteIdentity(identity.name, 1, 1), 0, rows(0, 10)).rows == {options.topic: 10}
    check_once(servers, options, [*expected, *rows(0, 10)])


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


class DiedError(Exception):
    """The driver and its tasks died."""


def run_until(options: SinkOptions, identity: WriteIdentity, task: int, values: Sequence[bytes], sent: int) -> None:
    """Run a task that dies when it has sent that many batches."""
    found = SinkTask(options, COLUMNS, identity, task)
    appender = found._appender
    append, left = appender.append, [sent]

    async def dying(topic, partition, batches):
        if left[0] <= 0:
            raise DiedError
        left[0] -= len(batches)
        return await append(topic, partition, batches)

    appender.append = dying  # type: ignore[method-assign]
    with pytest.raises(DiedError):
        found.run([[values]])


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


def test_a_batch_that_is_repeated_with_other_tasks_is_refused_before_it_writes(servers, options):
    """Two tasks, one of which has written, become four. None of the four may write, not even the new ones."""
    identity = WriteIdentity(name(), 0, 1)
    run(options, identity, 1, rows(50, 100))
    again = WriteIdentity(identity.name, 0, 2)
    for task in (2, 3, 0, 1):
        with pytest.raises(ReplayMismatchError):
            run(options, again, task, rows(25 * task, 25 * task + 25))
    check_once(servers, options, rows(50, 100))
    third = WriteIdentity(identity.name, 0, 3)  # with the original tasks the batch continues
    run(options, third, 1, rows(50, 100))
    run(options, third, 0, rows(0, 50))
    check_once(servers, options, rows(0, 100))


def test_a_task_that_lost_its_rows_is_refused(servers, options):
    identity = WriteIdentity(name(), 0, 1)
    assert run(options, identity, 3, []) == Written({}, is_replay=False)
    run(options, identity, 0, rows(0, 5))
    for attempt in (1, 2):
        with pytest.raises(ReplayMismatchError):
            run(options, WriteIdentity(identity.name, 0, attempt), 0, [])
    assert run(options, WriteIdentity(identity.name, 0, 2), 3, []).is_replay


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
    identity = WriteIdentity(name(), 3, 5)
    run(options, identity, 0, rows(0, 10))
    with pytest.raises(SupersededError):
        run(options, WriteIdentity(identity.name, 3, 4), 1, rows(10, 20))
    with pytest.raises(ProducerFencedError):
        run(options, WriteIdentity(identity.name, 2, 9), 0, rows(0, 10))
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


def test_at_least_once_writes_the_rows_in_each_run(servers, options):
    loose = made_options(servers, options.topic, delivery="at-least-once")
    for _ in range(2):
        run(loose, None, 0, rows(0, 5))
    check_once(servers, options, rows(0, 5) * 2)


def test_nothing_is_written_when_reading_the_rows_fails(servers, options):
    def failing() -> Iterator[Chunk]:
        yield [rows(0, 1000)]
        raise DiedError

    with pytest.raises(DiedError):
        SinkTask(options, COLUMNS, WriteIdentity(name(), 0, 1), 0).run(failing())
    check_once(servers, options, [])


def test_a_write_to_an_unknown_topic_is_refused(servers):
    with pytest.raises(UnknownTopicError):
        run(made_options(servers, "nowhere"), WriteIdentity(name(), 0, 1), 0, rows(0, 1))
