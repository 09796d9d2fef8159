"""Requests of planning over real gRPC to a fake cluster that can withhold changes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import NoReturn

import pytest
from raftmq.client.connection.leader_calls import LATEST_TIME
from raftmq.errors import NoLeaderError, RaftMQError, TopicKindMismatchError, UnknownPartitionError
from raftmq.spark.base.options import ClientOptions
from raftmq.spark.cluster.cluster import BrokersClock, Cluster, TopicView
from raftmq.spark.cluster.subscriptions import Assigned, Matching, Named, Subscription
from raftmq.types import TopicPartition

from tests.support.client.fake_broker import FakeCluster


@pytest.fixture
async def brokers() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2) as running:
        yield running


@pytest.fixture
async def cluster(brokers: FakeCluster) -> AsyncIterator[Cluster]:
    brokers.create_topic("t")
    options = ClientOptions(brokers.bootstrap_servers, request_timeout_ms=2000)
    opened = await asyncio.to_thread(Cluster, options)
    yield opened
    await asyncio.to_thread(opened.close)


async def offsets(cluster: Cluster, *partitions: int) -> dict[TopicPartition, int]:
    times = {TopicPartition("t", number): LATEST_TIME for number in partitions}
    return await asyncio.to_thread(cluster.offsets, times)


async def test_offsets_of_partitions_that_no_update_has_announced_are_found(
    brokers: FakeCluster, cluster: Cluster
) -> None:
    """A list of topics may be newer than the client's table. That difference once ended a query with `UnknownPartitionError`."""
    async with brokers.silence():
        brokers.add_partitions("t", 3)
        found = await asyncio.to_thread(cluster.topics, Matching("t"))
        assert found["t"].partitions == {0, 1, 2}
        assert await offsets(cluster, 0, 1, 2) == {TopicPartition("t", number): 0 for number in range(3)}
        with pytest.raises(UnknownPartitionError):
            await offsets(cluster, 3)


@pytest.mark.parametrize("subscription", [Named(("t",)), Assigned(frozenset({TopicPartition("t", 0)}))])
async def test_a_fresh_lookup_asks_the_brokers(
    brokers: FakeCluster, cluster: Cluster, subscription: Subscription
) -> None:
    async with brokers.silence():
        brokers.delete_topic("t")
        topic = brokers.create_topic("t")
        assert (await asyncio.to_thread(cluster.topics, subscription))["t"].topic_id < topic.topic_id
        found = await asyncio.to_thread(lambda: cluster.topics(subscription, is_fresh=True))
        assert found == {"t": TopicView(topic.topic_id, frozenset({0}))}


async def test_offsets_wait_for_a_partition_without_a_leader_until_the_timeout(
    brokers: FakeCluster, cluster: Cluster
) -> None:
    partition = brokers.topics["t"].partitions[0]
    partition.leader, partition.leader_epoch = 9, 2
    brokers.changed()
    asking = asyncio.create_task(offsets(cluster, 0))
    await asyncio.sleep(0.1)
    assert not asking.done()
    brokers.move_leader("t", 0, broker=2)
    assert await asking == {TopicPartition("t", 0): 0}
    brokers.move_leader("t", 0, broker=9)
    with pytest.raises(NoLeaderError, match="t/0"):  # within `request.timeout.ms`
        await offsets(cluster, 0)


async def test_only_log_topics_have_offsets_to_subscribe_to(brokers: FakeCluster, cluster: Cluster) -> None:
    brokers.create_queue("q")
    assert set(await asyncio.to_thread(cluster.topics, Matching(".*"))) == {"t"}
    for subscription in (Named(("t", "q")), Assigned(frozenset({TopicPartition("q", 0)}))):
        with pytest.raises(TopicKindMismatchError, match=r"spark\.read and option"):
            await asyncio.to_thread(cluster.topics, subscription)


@pytest.mark.parametrize(
    ("failure", "retries", "lookups"),
    [(NoLeaderError("t/0"), 0, 1), (NoLeaderError("t/0"), 2, 3), (UnknownPartitionError("t/0"), 2, 1)],
)
async def test_a_lookup_is_repeated_as_often_as_the_options_say_after_failures_that_may_pass(
    brokers: FakeCluster, monkeypatch: pytest.MonkeyPatch, failure: RaftMQError, retries: int, lookups: int
) -> None:
    asked: list[object] = []

    async def fail(*arguments: object, **more: object) -> NoReturn:
        asked.append(arguments)
        raise failure

    monkeypatch.setattr("raftmq.spark.cluster.cluster.list_offsets", fail)
    options = ClientOptions(brokers.bootstrap_servers, request_timeout_ms=2000, lookup_retries=retries)
    opened = await asyncio.to_thread(Cluster, options)
    with pytest.raises(type(failure)):
        await offsets(opened, 0)
    assert len(asked) == lookups
    await asyncio.to_thread(opened.close)


async def test_a_repeated_lookup_returns_its_answer(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([NoLeaderError("t/0")])

    async def answer() -> dict[str, TopicView]:
        for failure in failures:
            raise failure
        return {"t": TopicView(7, frozenset({0}))}

    monkeypatch.setattr(cluster, "_retries", 1)
    monkeypatch.setattr(cluster, "_topics", lambda subscription, is_fresh: answer())
    assert await asyncio.to_thread(cluster.topics, Named(("t",))) == {"t": TopicView(7, frozenset({0}))}


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no clock that counts suspension")
def test_the_clock_of_the_brokers_continues_while_this_machine_is_suspended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, suspended = BrokersClock(), time.clock_gettime_ns
    assert clock.now_ms() == 0
    clock.note(1_000_000)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda kind: suspended(kind) + 3600 * 1_000_000_000)
    assert 4_600_000 <= clock.now_ms() < 4_660_000
