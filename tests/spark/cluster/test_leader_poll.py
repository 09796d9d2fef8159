"""Polling finds the current leader, over real gRPC to a fake cluster."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from raftmq.client.codec.batch import encode_body
from raftmq.client.connection.resolver import Resolver, TopicInfo
from raftmq.client.connection.transport import GrpcTransport
from raftmq.errors import NoLeaderError, OffsetOutOfRangeError, RequestTimedOutError, UnknownTopicError
from raftmq.spark.cluster.leader_poll import poll_leader

from tests.support.client.fake_broker import FakeCluster

WAIT_SECONDS = 30


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2) as running:
        yield running


@pytest.fixture
async def resolver(cluster: FakeCluster) -> AsyncIterator[Resolver]:
    started = Resolver(cluster.bootstrap_servers, GrpcTransport())
    await started.start(WAIT_SECONDS)
    yield started
    await started.close()


def fill(cluster: FakeCluster, topic: str, batches: int) -> None:
    for number in range(batches):
        cluster.topics[topic].partitions[0].append(encode_body([b"v"] * 10, None, number).seal(), number)
    cluster.changed()


async def test_the_first_batch_is_the_one_that_holds_the_offset(cluster: FakeCluster, resolver: Resolver) -> None:
    topic_id = cluster.create_topic("t").topic_id
    fill(cluster, "t", 3)
    found = await poll_leader(resolver, "t", topic_id, 0, 15, WAIT_SECONDS)
    assert found.base_offsets[0] == 10
    assert len(found.batches) == len(found.base_offsets)


async def test_a_leader_that_moved_is_followed(cluster: FakeCluster, resolver: Resolver) -> None:
    topic_id = cluster.create_topic("t").topic_id
    fill(cluster, "t", 1)
    await poll_leader(resolver, "t", topic_id, 0, 0, WAIT_SECONDS)
    cluster.move_leader("t", 0, broker=2, is_announced=False)  # only the old leader's refusal reveals it
    assert (await poll_leader(resolver, "t", topic_id, 0, 0, WAIT_SECONDS)).base_offsets == (0,)
    assert [broker for broker, _ in cluster.poll_requests] == [1, 1, 2]


async def test_a_broker_that_returns_is_asked_again(cluster: FakeCluster, resolver: Resolver) -> None:
    topic_id = cluster.create_topic("t").topic_id
    fill(cluster, "t", 1)
    await poll_leader(resolver, "t", topic_id, 0, 0, WAIT_SECONDS)
    await cluster.brokers[1].stop()
    asking = asyncio.create_task(poll_leader(resolver, "t", topic_id, 0, 0, WAIT_SECONDS))
    await asyncio.sleep(0)
    await cluster.brokers[1].start()
    assert (await asking).base_offsets == (0,)


async def test_a_poll_waits_for_records_that_are_not_written_yet(cluster: FakeCluster, resolver: Resolver) -> None:
    topic_id = cluster.create_topic("t").topic_id
    asking = asyncio.create_task(poll_leader(resolver, "t", topic_id, 0, 0, WAIT_SECONDS))
    async with cluster.polled:
        await cluster.polled.wait_for(lambda: cluster.poll_requests)
    fill(cluster, "t", 1)
    assert (await asking).base_offsets == (0,)
    with pytest.raises(RequestTimedOutError, match=r"t/0: no record from offset 10 in 0\.05 s"):
        await poll_leader(resolver, "t", topic_id, 0, 10, 0.05)


async def test_a_poll_without_a_leader_times_out(cluster: FakeCluster, resolver: Resolver) -> None:
    topic = cluster.create_topic("t")
    topic.partitions[0].leader = 9
    topic.partitions[0].leader_epoch += 1
    cluster.changed()
    with pytest.raises(RequestTimedOutError) as caught:
        await poll_leader(resolver, "t", topic.topic_id, 0, 0, 0.3)
    assert caught.value.__cause__ is None or isinstance(caught.value.__cause__, NoLeaderError)


async def test_a_poll_waits_for_a_partition_that_only_the_driver_knows(
    cluster: FakeCluster, resolver: Resolver
) -> None:
    """The driver planned a partition that the task's process does not know yet. It is not lost."""
    topic = cluster.create_topic("t")
    await resolver.topic("t", WAIT_SECONDS)
    async with cluster.silence():
        cluster.add_partitions("t", 2)
        topic.partitions[1].append(encode_body([b"v"], None, 0).seal(), 0)
        assert (await poll_leader(resolver, "t", topic.topic_id, 1, 0, WAIT_SECONDS)).base_offsets == (0,)
        with pytest.raises(RequestTimedOutError) as caught:  # the broker lags for longer than the timeout
            await poll_leader(resolver, "t", topic.topic_id, 2, 0, 0.3)
        assert "do not know t/2 yet" in str(caught.value.__cause__)
        with pytest.raises(RequestTimedOutError) as caught:
            await poll_leader(resolver, "t", topic.topic_id + 1, 0, 0, 0.3)
        assert "do not know t/0 yet" in str(caught.value.__cause__)


async def test_the_cause_of_a_timeout_is_the_last_answer_although_a_later_request_timed_out(
    cluster: FakeCluster, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic_id = cluster.create_topic("t").topic_id
    ask, asked = Resolver.topic, 0

    async def answer_once(self: Resolver, *arguments: Any, **options: Any) -> TopicInfo:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise RequestTimedOutError("127.0.0.1:1: Deadline Exceeded")
        return await ask(self, *arguments, **options)

    monkeypatch.setattr(Resolver, "topic", answer_once)
    with pytest.raises(RequestTimedOutError, match=r"t/2: no record from offset 0 in 30 s") as caught:
        await poll_leader(resolver, "t", topic_id, 2, 0, WAIT_SECONDS)
    assert "do not know t/2 yet" in str(caught.value.__cause__)


async def test_lost_records_and_deleted_topics_are_raised_immediately(cluster: FakeCluster, resolver: Resolver) -> None:
    topic = cluster.create_topic("t")
    fill(cluster, "t", 5)
    topic.partitions[0].log_start = 20
    with pytest.raises(OffsetOutOfRangeError) as caught:
        await poll_leader(resolver, "t", topic.topic_id, 0, 5, WAIT_SECONDS)
    assert caught.value.log_start_offset == 20
    cluster.delete_topic("t")
    with pytest.raises(UnknownTopicError):
        await poll_leader(resolver, "t", topic.topic_id, 0, 20, WAIT_SECONDS)
    cluster.create_topic("t")
    with pytest.raises(UnknownTopicError):
        await poll_leader(resolver, "t", topic.topic_id, 0, 20, WAIT_SECONDS)
