"""The plan of a stream that leases messages, with model brokers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

import pytest
from raftmq import Queue
from raftmq.errors import NotReadyError, TopicKindMismatchError, UnknownTopicError
from raftmq.message_block import unpack_block
from raftmq.proto import queue_pb2 as pb
from raftmq.spark.base.options import ClientOptions
from raftmq.spark.cluster.cluster import Cluster
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.leases.calls import read_leased, settle
from raftmq.spark.leases.offsets import NO_LEASES, BatchLeases, leases_from_json
from raftmq.spark.leases.options import read_lease_options
from raftmq.spark.leases.plan import LeasePlan

from tests.support.client.fake_broker import FakeCluster, FakePartition
from tests.support.client.fake_queue import FakeMessage

T = TypeVar("T")


@pytest.fixture
async def brokers() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2) as running:
        running.create_queue("q", partitions=2)
        yield running


@pytest.fixture
async def cluster(brokers: FakeCluster) -> AsyncIterator[Cluster]:
    opened = await asyncio.to_thread(Cluster, ClientOptions(brokers.bootstrap_servers, request_timeout_ms=5000))
    yield opened
    await asyncio.to_thread(opened.close)


class Plan:
    """A plan whose calls do not block the brokers' loop."""

    def __init__(self, brokers: FakeCluster, cluster: Cluster, **given: str) -> None:
        named = {"bootstrap.servers": brokers.bootstrap_servers, "request.timeout.ms": "5000", "subscribe": "q"}
        self.plan = LeasePlan(cluster, read_lease_options(named | {"kind": "queue"} | given)[0])

    async def call(self, function: Callable[[LeasePlan], T]) -> T:
        return await asyncio.to_thread(function, self.plan)

    async def next_end(self, start: BatchLeases | None, messages_max: int = 100) -> BatchLeases:
        return await self.call(lambda plan: plan.next_end(start, messages_max))

    async def bodies(self, start: BatchLeases, end: BatchLeases) -> list[bytes]:
        shares = await self.call(lambda plan: plan.shares(start, end))
        blocks = [unpack_block(block) for share in shares for block in share.blocks]
        return [bytes(body) for block in blocks for body in block.bodies]


async def put(brokers: FakeCluster, *values: bytes, **fields: Any) -> None:
    async with Queue("q", bootstrap_servers=brokers.bootstrap_servers) as queue:
        for value in values:
            await queue.put(value, **fields)


def messages(brokers: FakeCluster) -> list[FakeMessage]:
    parts = brokers.topics["q"].partitions
    return [message for part in parts for message in part.queue.messages.values()]


async def test_a_batch_is_settled_when_the_next_one_begins_at_its_end(brokers: FakeCluster, cluster: Cluster) -> None:
    plan = Plan(brokers, cluster)
    await put(brokers, b"a", b"b", b"c", b"d")
    end = await plan.next_end(NO_LEASES)
    assert end.count == 4
    assert sorted(await plan.bodies(NO_LEASES, end)) == [b"a", b"b", b"c", b"d"]
    assert len(messages(brokers)) == 4
    await plan.call(lambda found: found.prepare_available_now())
    assert await plan.next_end(end) == end
    assert messages(brokers) == []


async def test_a_batch_that_is_not_logged_is_offered_again_and_given_back_at_the_end(
    brokers: FakeCluster, cluster: Cluster
) -> None:
    plan = Plan(brokers, cluster)
    await put(brokers, b"a", b"b", b"c")
    end = await plan.next_end(NO_LEASES, 2)
    assert await plan.next_end(NO_LEASES, 2) == end
    await plan.call(lambda found: found.close())
    assert {(m.attempts, m.lease_until_ms) for m in messages(brokers)} == {(0, None)}


async def test_another_driver_runs_the_logged_batch_and_settles_it(brokers: FakeCluster, cluster: Cluster) -> None:
    first, second = Plan(brokers, cluster), Plan(brokers, cluster)
    await put(brokers, b"a", b"b", b"c")
    end = await first.next_end(NO_LEASES)
    await first.call(lambda found: found.shares(NO_LEASES, end))
    await first.call(lambda found: found.close())  # the leases of a logged batch remain
    shares = await second.call(lambda found: found.shares(NO_LEASES, end))
    assert not any(share.blocks for share in shares)
    bodies = []
    for share in shares:
        tokens = [(run.first_sequence + at, run.lease_number) for run in share.runs for at in range(run.message_count)]
        stale = [(sequence, number + 1) for sequence, number in tokens]
        for some, wanted in ((tokens, True), (stale, False)):
            found = await asyncio.to_thread(
                cluster.run, lambda s=some, n=share.name: read_leased(cluster.resolver, n, s, 5)
            )
            assert bool(found) is wanted
            bodies += [bytes(block.bodies[0]) for block in found]
    assert sorted(bodies) == [b"a", b"b", b"c"]
    await second.call(lambda found: found.commit(end))
    assert messages(brokers) == []


async def test_a_message_that_was_settled_before_is_left_as_it_is(brokers: FakeCluster, cluster: Cluster) -> None:
    plan = Plan(brokers, cluster)
    await put(brokers, b"a")
    end = await plan.next_end(NO_LEASES)
    [message] = messages(brokers)
    message.lease_until_ms, message.dead_reason = None, "rejected"
    await plan.call(lambda found: found.commit(end))
    assert messages(brokers) == [message]


async def test_a_settlement_follows_the_leader(brokers: FakeCluster, cluster: Cluster) -> None:
    plan = Plan(brokers, cluster)
    await put(brokers, b"a", b"b", b"c", b"d")
    end = await plan.next_end(NO_LEASES)
    for part in brokers.topics["q"].partitions:
        part.leader = 3 - part.leader
    await plan.call(lambda found: found.commit(end))
    assert messages(brokers) == []


async def test_a_partition_without_a_leader_is_waited_for(brokers: FakeCluster, cluster: Cluster) -> None:
    plan = Plan(brokers, cluster)
    await put(brokers, b"a", b"b", b"c", b"d")
    await plan.call(lambda found: found.prepare_available_now())
    for part in brokers.topics["q"].partitions:  # no client knows of it yet
        part.leader = 3 - part.leader
    end = await plan.next_end(NO_LEASES)
    assert end.count == 4


async def test_a_run_of_what_is_there_finds_a_partition_that_has_moved() -> None:
    """The broker that led it before leads another one, and so answered that nothing is ready."""
    async with FakeCluster(brokers=3) as brokers:
        brokers.create_queue("q", partitions=2)
        topic = brokers.topics["q"]
        topic.partitions[1].leader = 1
        brokers.changed()
        client = ClientOptions(brokers.bootstrap_servers, request_timeout_ms=5000)
        cluster = await asyncio.to_thread(Cluster, client)
        plan = Plan(brokers, cluster)
        await put(brokers, b"a")
        (held,) = [part for part in topic.partitions if part.queue.messages]
        await plan.call(lambda found: found.prepare_available_now())
        async with brokers.silence():
            held.leader = 3
            end = await plan.next_end(NO_LEASES)
        await asyncio.to_thread(cluster.close)
        assert end.count == 1


async def test_a_run_of_what_is_there_leases_no_more_than_was_ready(brokers: FakeCluster, cluster: Cluster) -> None:
    plan = Plan(brokers, cluster)
    await put(brokers, b"a", b"b")
    await put(brokers, b"later", delay_ms=3_600_000)
    await plan.call(lambda found: found.prepare_available_now())
    end = await plan.next_end(NO_LEASES, 1)
    await put(brokers, b"c", b"d")
    await plan.call(lambda found: found.shares(NO_LEASES, end))
    last = await plan.next_end(end, 10)
    assert (end.count, last.count) == (1, 1)
    await plan.call(lambda found: found.shares(end, last))
    assert await plan.next_end(last, 10) == last
    assert len(messages(brokers)) == 3


async def test_a_tenant_and_the_order_of_priorities(brokers: FakeCluster, cluster: Cluster) -> None:
    brokers.topics["q"].partitions[1].leader = brokers.topics["q"].partitions[0].leader
    plan = Plan(brokers, cluster, tenant="a")
    await put(brokers, b"other", tenant="b", id="0")
    await put(brokers, b"second", tenant="a", priority=2, id="1")
    await put(brokers, b"first", tenant="a.x", priority=1, id="1b")
    end = await plan.next_end(NO_LEASES)
    assert sorted(await plan.bodies(NO_LEASES, end)) == [b"first", b"second"]


async def test_topics_are_queues_that_exist(brokers: FakeCluster, cluster: Cluster) -> None:
    brokers.create_topic("log", partitions=1)
    with pytest.raises(TopicKindMismatchError, match="read log topics with a query of their own"):
        await Plan(brokers, cluster, subscribe="q,log").next_end(NO_LEASES)
    with pytest.raises(UnknownTopicError):
        await Plan(brokers, cluster, subscribe="none").next_end(NO_LEASES)


async def test_counts_by_state_are_shown(brokers: FakeCluster, cluster: Cluster) -> None:
    plan = Plan(brokers, cluster)
    await put(brokers, b"a", b"b")
    await plan.next_end(NO_LEASES, 2)
    counts = await plan.call(lambda found: found.counts())
    assert counts == {"q": pb.StateCounts(leased=2)}


async def test_the_checkpoint_of_another_cluster_is_refused(brokers: FakeCluster, cluster: Cluster) -> None:
    await put(brokers, b"a")
    plan = Plan(brokers, cluster)
    end = await plan.next_end(NO_LEASES)
    assert end.cluster_id == cluster.resolver.cluster_id
    foreign = BatchLeases(end.runs, "another")
    with pytest.raises(InvalidOptionError, match="the checkpoint is that of a query of cluster another"):
        await plan.next_end(foreign)
    with pytest.raises(InvalidOptionError, match="use another checkpoint"):
        await Plan(brokers, cluster).call(lambda found: found.shares(NO_LEASES, foreign))


class Renewals:
    """Count the renewals of one partition, and refuse those of others if wanted."""

    def __init__(
        self, brokers: FakeCluster, partition: int, wanted: int, refusal: pb.ErrorDetail | None = None
    ) -> None:
        self.are_enough = asyncio.Event()
        self._partition, self._left, self._refusal = partition, wanted, refusal
        brokers.ack_hook = self._on_ack

    def _on_ack(self, ack: pb.PartitionAck) -> pb.ErrorDetail | None:
        if pb.RENEW not in ack.operations:
            return None
        if ack.partition != self._partition:
            return self._refusal
        self._left -= 1
        if self._left <= 0:
            self.are_enough.set()
        return None


async def test_leases_that_the_topic_shortens_are_renewed_in_time(brokers: FakeCluster, cluster: Cluster) -> None:
    """A topic grants at most its lease.max.ms. A third of the wanted lease was waited for, so every lease ended during its batch."""
    for part in brokers.topics["q"].partitions:
        part.queue.lease_max_ms = 1000
    plan = Plan(brokers, cluster, leaseTime="10m")
    await put(brokers, b"a")
    renewals = Renewals(brokers, brokers.topics["q"].partitions.index(holder(brokers)), wanted=4)
    end = await plan.next_end(NO_LEASES)
    await plan.call(lambda found: found.shares(NO_LEASES, end))
    async with asyncio.timeout(20):
        await renewals.are_enough.wait()
    assert [message.lease_until_ms is None for message in messages(brokers)] == [False]
    await plan.call(lambda found: found.commit(end))
    assert messages(brokers) == []


def holder(brokers: FakeCluster) -> FakePartition:
    return next(part for part in brokers.topics["q"].partitions if part.queue.messages)


async def test_a_partition_without_a_leader_does_not_cost_the_leases_of_another_one(
    brokers: FakeCluster, cluster: Cluster
) -> None:
    """The next renewal waited for the whole request.timeout.ms of the partition that nobody leads, longer than a lease."""
    plan = Plan(brokers, cluster, leaseTime="3s")
    for name in ("0", "4"):
        await put(brokers, b"a", id=name)
    end = await plan.next_end(NO_LEASES)
    assert len(end.runs) == 2
    await plan.call(lambda found: found.shares(NO_LEASES, end))
    renewals = Renewals(brokers, 1, 3, pb.ErrorDetail(code=pb.NO_LEADER, message="no leader"))
    async with asyncio.timeout(60):
        await renewals.are_enough.wait()
    held = brokers.topics["q"].partitions[1].queue.messages.values()
    assert held
    assert all(message.lease_until_ms is not None for message in held)
    brokers.ack_hook = None
    await plan.call(lambda found: found.commit(end))


async def test_a_settlement_names_the_group_that_leased(brokers: FakeCluster, cluster: Cluster) -> None:
    """After a recovery the tokens of lost messages are given again, and by them the commit accepted messages of other consumers."""
    plan = Plan(brokers, cluster)
    await put(brokers, b"a", b"b", b"c", b"d")
    end = await plan.next_end(NO_LEASES)
    groups = {name: brokers.topics["q"].partitions[name.partition].group_id for name in end.runs}
    assert end.groups == groups
    again = leases_from_json(json.loads(json.dumps(end.to_json())))
    other = Plan(brokers, cluster)
    for change in (lambda found: found.shares(NO_LEASES, again), lambda found: found.commit(again)):
        brokers.acks.clear()
        await other.call(change)
        assert {ack.partition: ack.group_id for ack in brokers.acks} == {
            p.partition: group for p, group in groups.items()
        }


async def test_an_older_topic_does_not_mean_that_the_messages_are_gone(brokers: FakeCluster, cluster: Cluster) -> None:
    """A process that learns of the topic from a broker that is behind settled nothing, and took that for a success."""
    plan = Plan(brokers, cluster)
    await put(brokers, b"a")
    end = await plan.next_end(NO_LEASES)
    newer = {name._replace(topic_id=name.topic_id + 1): runs for name, runs in end.runs.items()}
    unknown = {name._replace(partition=7): runs for name, runs in end.runs.items()}
    for runs in (newer, unknown):
        with pytest.raises(NotReadyError, match="an older state of q"):
            await asyncio.to_thread(cluster.run, lambda r=runs: settle(cluster.resolver, r, pb.ACCEPT, None, 5))
    older = {name._replace(topic_id=0): runs for name, runs in end.runs.items()}
    await asyncio.to_thread(cluster.run, lambda: settle(cluster.resolver, older, pb.ACCEPT, None, 5))
    assert len(messages(brokers)) == 1
