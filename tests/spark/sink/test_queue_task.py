"""Tasks that write to a queue topic of model brokers: the columns of the topic's kind, and each row once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence

import pytest
from raftmq.errors import TopicKindMismatchError, UnknownTopicError
from raftmq.spark.cluster.cluster import cluster_of
from raftmq.spark.errors import InvalidSchemaError, ReplayMismatchError
from raftmq.spark.sink.columns.kinds import find_columns
from raftmq.spark.sink.columns.log import SinkColumns
from raftmq.spark.sink.columns.queue import QueueColumns
from raftmq.spark.sink.ledger.batch_ledger import WriteIdentity
from raftmq.spark.sink.options import SinkOptions, read_sink_options
from raftmq.spark.sink.task import SinkTask, Written

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.fake_queue import FakeMessage
from tests.support.spark.columns import batch_of, fields

DDL = "value string, id string"


@pytest.fixture
async def brokers() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2) as running:
        yield running
        # the process's connections outlive a task, but must not outlive these brokers
        await asyncio.to_thread(lambda: cluster_of(options(running).client).close())


def options(brokers: FakeCluster, topic: str | None = "q", **given: str) -> SinkOptions:
    named = {} if topic is None else {"topic": topic}
    return read_sink_options(
        {"bootstrap.servers": brokers.bootstrap_servers, "replayTimeout": "500ms", **named, **given}
    )


def name() -> str:
    return f"test-{time.time_ns()}"


def rows(start: int, end: int) -> list[list[bytes]]:
    """Return a chunk of values and ids."""
    return [[b"v%d" % n for n in range(start, end)], [b"i%d" % n for n in range(start, end)]]


async def run(
    found: SinkOptions, identity: WriteIdentity | None, chunk: Sequence[Sequence[object]], ddl: str = DDL, task: int = 0
) -> Written:
    def write() -> Written:
        return SinkTask(found, find_columns(fields(ddl), found), identity, task).run([batch_of(*chunk)])

    return await asyncio.to_thread(write)


def messages(brokers: FakeCluster, topic: str = "q") -> list[FakeMessage]:
    partitions = brokers.topics[topic].partitions
    return [message for partition in partitions for message in partition.queue.messages.values()]


def values(brokers: FakeCluster) -> list[bytes]:
    return sorted(message.body for message in messages(brokers))


async def test_rows_become_messages_with_all_their_fields(brokers: FakeCluster) -> None:
    (queue,) = brokers.create_queue("q")
    ddl = "tenant string, value binary, priority bigint, not_before timestamp, id string, key binary, ignored double"
    later_us = time.time_ns() // 1000 + 3_600_000_000
    chunk = [[b"acme", None], [b"a", b"b"], [-5, None], [later_us, None], [b"i", None], [b"k", None], [1.5, 2.5]]
    assert (await run(options(brokers), WriteIdentity(name(), 0, 1), chunk, ddl)).rows == {"q": 2}
    plain, full = sorted(queue.messages.values(), key=lambda message: message.tenant)
    assert (full.body, full.tenant, full.priority, full.id, full.key) == (b"a", b"acme", -5, b"i", b"k")
    assert 3_500_000 < full.due_ms - queue.now_ms() <= 3_600_001
    assert (plain.body, plain.tenant, plain.priority, plain.id, plain.key) == (b"b", b"", 0, None, None)
    assert plain.due_ms <= queue.now_ms()


async def test_the_kind_of_the_topic_decides_about_the_columns(brokers: FakeCluster) -> None:
    brokers.create_topic("log")
    brokers.create_queue("q")
    brokers.create_topic("of-a-later-version").kind = "table"
    both = fields("value string, id bigint, tenant double, partition int")
    assert isinstance(await asyncio.to_thread(find_columns, both, options(brokers, "log")), SinkColumns)
    with pytest.raises(InvalidSchemaError, match="'partition' is for log topics"):
        await asyncio.to_thread(find_columns, both, options(brokers))
    found = await asyncio.to_thread(find_columns, fields(DDL), options(brokers))
    assert found == QueueColumns(0, None, 1, None, None, None, None, None, 2)
    with pytest.raises(UnknownTopicError):
        await asyncio.to_thread(find_columns, both, options(brokers, "nowhere"))
    with pytest.raises(TopicKindMismatchError, match="kind 'table'"):
        await asyncio.to_thread(find_columns, both, options(brokers, "of-a-later-version"))


async def test_a_queue_topic_in_the_column_topic_is_refused_before_anything_is_written(brokers: FakeCluster) -> None:
    brokers.create_topic("log")
    brokers.create_queue("q")
    chunk = [[b"a", b"b"], ["log", "q"]]
    with pytest.raises(TopicKindMismatchError, match="'q' is a queue topic: name it with the option topic"):
        await run(options(brokers, None), WriteIdentity(name(), 0, 1), chunk, "value string, topic string")
    assert not brokers.append_requests


async def test_a_task_that_runs_again_enqueues_nothing_twice(brokers: FakeCluster) -> None:
    """The second run cuts other batches, which overlap with those of the first."""
    brokers.create_queue("q", partitions=3)
    identity = WriteIdentity(name(), 0, 1)
    # without ids, so that nothing but sequences tells that a message is enqueued already
    chunk = rows(0, 2500)[:1]
    await run(options(brokers, batchRecords="300"), identity, chunk, "value string")
    expected = sorted(chunk[0])
    assert values(brokers) == expected
    again = options(brokers, batchRecords="77", sortMemoryBytes="100000")
    assert (await run(again, WriteIdentity(identity.name, 0, 2), chunk, "value string")) == Written({"q": 2500}, True)
    assert values(brokers) == expected
    await run(options(brokers), WriteIdentity(identity.name, 1, 3), [[b"next"]], "value string")
    assert values(brokers) == sorted([*expected, b"next"])


async def test_a_task_that_died_in_the_middle_is_continued(brokers: FakeCluster) -> None:
    brokers.create_queue("q", partitions=2)
    identity = WriteIdentity(name(), 0, 1)
    small = options(brokers, batchRecords="10")
    found = SinkTask(small, await asyncio.to_thread(find_columns, fields(DDL), small), identity, 0)
    append, left = found._appender.append, [64]

    async def dying(topic, partition, batches):
        left[0] -= len(batches)
        if left[0] < 0:
            raise ConnectionError
        return await append(topic, partition, batches)

    found._appender.append = dying  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        await asyncio.to_thread(found.run, [batch_of(*rows(0, 3000))])
    assert 0 < len(messages(brokers)) < 3000
    await run(options(brokers), WriteIdentity(identity.name, 0, 2), rows(0, 3000))
    assert values(brokers) == sorted(rows(0, 3000)[0])


@pytest.mark.parametrize("changed", ["value", "id", "order"])
async def test_a_task_with_other_rows_than_before_is_refused(brokers: FakeCluster, changed: str) -> None:
    brokers.create_queue("q")
    ddl = "value string, id string, n int"
    before: list[list[object]] = [[b"a", b"b"], [b"x", b"y"], [1, 2]]
    identity = WriteIdentity(name(), 0, 1)
    await run(options(brokers, orderColumn="n"), identity, before, ddl)
    after = [list(cells) for cells in before]
    after[("value", "id", "order").index(changed)][1] = 3 if changed == "order" else b"z"
    with pytest.raises(ReplayMismatchError):
        await run(options(brokers, orderColumn="n"), WriteIdentity(identity.name, 0, 2), after, ddl)
    assert values(brokers) == [b"a", b"b"]


async def test_at_least_once_enqueues_the_rows_in_each_run(brokers: FakeCluster) -> None:
    brokers.create_queue("q")
    loose = options(brokers, delivery="at-least-once")
    for _ in range(2):
        await run(loose, None, [[b"a", b"b"]], "value string")
    assert values(brokers) == [b"a", b"a", b"b", b"b"]


async def test_the_order_column_orders_the_messages_of_a_key(brokers: FakeCluster) -> None:
    (queue, _) = brokers.create_queue("q", partitions=2, ordered_by_key="true")
    chunk = [[b"%d" % (n * 37 % 100) for n in range(100)], [b"k"] * 100, [n * 37 % 100 for n in range(100)]]
    await run(options(brokers, orderColumn="n"), None, chunk, "value string, key string, n int")
    found = messages(brokers)
    assert [message.body for message in sorted(found, key=lambda m: m.sequence)] == [b"%d" % n for n in range(100)]
    assert len(queue.messages) in (0, 100)
