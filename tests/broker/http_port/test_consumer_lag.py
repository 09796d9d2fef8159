"""Consumer lag is measured in records and seconds, by leaders, for a bounded number of readers. Omitted ones are counted."""

from __future__ import annotations

import asyncio

import pytest
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.http_port.consumer_lag import ConsumerLag, Lag, Reader
from raftmq.fsm.log_commands import CommitOffset
from raftmq.proto import queue_pb2 as pb
from raftmq.types import NodeId

from tests.support.broker.harness import Harness, batch, running

SECOND = 1000


async def commit(node: Harness, topic: pb.Topic, group: str, offset: int, number: int = 0) -> None:
    command = CommitOffset(group, "", 0, offset)
    await node.partition(topic, number).offsets.commit(command, node.loop.time() + 10)


async def append(node: Harness, topic: pb.Topic, number: int, count: int, sequence: int = 0) -> None:
    part = pb.PartitionAppend(topic_id=topic.topic_id, partition=number, batches=[batch(count, sequence=sequence)])
    answer = await node.log.append(pb.AppendRequest(partitions=[part]), node.call())
    assert not answer.partitions[0].HasField("error")


def lag_of(node: Harness, limits: Limits | None = None, timing: Timing | None = None) -> ConsumerLag:
    return ConsumerLag(node, limits or Limits(), timing or Timing())


async def measured(node: Harness, lag: ConsumerLag, *topics: pb.Topic) -> Lag:
    named = [(topic.name, node.partition(topic, part.partition)) for topic in topics for part in topic.partitions]
    return await lag.measure(named)


async def test_records_are_added_up_and_the_oldest_one_counts():
    async with running() as node:
        topic = await node.topic("orders", partitions=2)
        await append(node, topic, 0, 10)
        node.clock_ms += 5 * SECOND
        await append(node, topic, 1, 20)
        await commit(node, topic, "billing", 4, 0)
        await commit(node, topic, "billing", 1, 1)
        await commit(node, topic, "mail", 10, 0)
        node.clock_ms += 2 * SECOND
        found = await measured(node, lag_of(node), topic)
        assert found.records == {Reader("billing", "orders"): 6 + 19, Reader("mail", "orders"): 0}
        assert found.seconds == {Reader("billing", "orders"): 7.0, Reader("mail", "orders"): 0.0}
        assert (found.left_out_readers, found.left_out_ages) == (0, 0)


async def test_followers_and_groups_without_commits_show_no_lag():
    async with running() as node:
        topic = await node.topic("orders", partitions=2)
        await append(node, topic, 0, 10)
        await append(node, topic, 1, 10)
        await commit(node, topic, "g", 1, 0)
        await commit(node, topic, "g", 5, 1)
        group_id = node.partition(topic, 1).replica.group_id
        node.lose_leadership(group_id, NodeId(2))
        assert (await measured(node, lag_of(node), topic)).records == {Reader("g", "orders"): 9}
        other = await node.topic("unread")
        await node.append(other, batch(3))
        assert (await measured(node, lag_of(node), other)).records == {}


async def test_deleted_records_do_not_count_as_unread():
    async with running() as node:
        topic = await node.topic("orders")
        await append(node, topic, 0, 10)
        node.clock_ms += SECOND
        await append(node, topic, 0, 10, sequence=10)
        await commit(node, topic, "g", 2)
        await node.partition(topic).delete_records(15, node.loop.time() + 5)
        found = await measured(node, lag_of(node), topic)
        assert found.records == {Reader("g", "orders"): 5}
        assert found.seconds == {Reader("g", "orders"): 0.0}


async def test_readers_furthest_behind_are_shown_up_to_a_bound_and_the_rest_is_counted():
    async with running() as node:
        topic = await node.topic("orders")
        await append(node, topic, 0, 100)
        for number in range(6):
            await commit(node, topic, f"g{number}", number * 10)
        found = await measured(node, lag_of(node, Limits(lag_readers_max=2)), topic)
        assert found.records == {Reader("g0", "orders"): 100, Reader("g1", "orders"): 90}
        assert found.left_out_readers == 4


async def test_an_age_is_read_from_disk_once_until_the_group_moves_on():
    async with running(recent_bytes_max=0) as node:
        topic = await node.topic("orders")
        for number in range(4):
            await append(node, topic, 0, 10, sequence=10 * number)
            node.clock_ms += SECOND
        await commit(node, topic, "g", 0)
        lag = lag_of(node)
        assert (await measured(node, lag, topic)).seconds[Reader("g", "orders")] == 4.0
        reads = node.reads_in_thread
        assert reads
        node.clock_ms += SECOND
        assert (await measured(node, lag, topic)).seconds[Reader("g", "orders")] == 5.0
        assert node.reads_in_thread == reads, "the time is cached"
        await commit(node, topic, "g", 20)
        assert (await measured(node, lag, topic)).seconds[Reader("g", "orders")] == 3.0
        assert node.reads_in_thread > reads
        assert len(lag._append_times_ms) == 1, "times of records before the offset are forgotten"


@pytest.mark.parametrize("failure", ["hangs", "fails"])
async def test_an_unknown_age_is_counted_and_records_are_still_shown(failure: str, monkeypatch: pytest.MonkeyPatch):
    async with running() as node:
        topic = await node.topic("orders", partitions=3)
        for number in range(3):
            await append(node, topic, number, 10)
            await commit(node, topic, "g", 0, number)
        await commit(node, topic, "quick", 10)

        async def header_at(offset: int) -> None:
            if failure == "fails":
                raise RequestError(pb.REPLICA_QUARANTINED, "damaged")
            await asyncio.sleep(60)

        for number in range(3):
            monkeypatch.setattr(node.partition(topic, number), "header_at", header_at)
        found = await measured(node, lag_of(node, timing=Timing(lag_seconds=0.05)), topic)
        assert found.records == {Reader("g", "orders"): 30, Reader("quick", "orders"): 0}
        assert found.seconds == {Reader("quick", "orders"): 0.0}
        assert found.left_out_ages == 3


async def test_many_groups_do_not_block_the_loop():
    async with running() as node:
        topic = await node.topic("orders")
        await append(node, topic, 0, 10)
        await commit(node, topic, "g", 0)
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        await lag_of(node).measure([("orders", node.partition(topic))] * 5000)
        counting.cancel()
        assert turns >= 5
