"""Topology.Watch sends the full table, then the changes, with one computation for all watchers."""

from __future__ import annotations

import asyncio
import random

import pytest
from raftmq.broker.base.readiness import NotReady, Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services import topology
from raftmq.fsm.metadata_commands import (
    CreateTopic,
    DeleteTopic,
    PartitionPlan,
    RemoveNode,
    RemoveReplica,
    SetMetadataMembership,
    SetReplicas,
)
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId, Term

from tests.support.broker.harness import CLUSTER_ID, running


async def _next(watch) -> pb.TopologyUpdate:
    return await asyncio.wait_for(anext(watch), 10)


async def test_the_full_table_comes_first_and_then_only_changes():
    async with running() as node:
        first = await node.topic("a", partitions=2)
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        full = await _next(watch)
        assert full.is_full
        assert full.has_brokers
        assert full.cluster_id == CLUSTER_ID
        assert [t.name for t in full.topics] == ["a"]
        groups = [METADATA_GROUP_ID, *(p.group_id for p in first.partitions)]
        assert {(leader.group_id, leader.broker_id) for leader in full.leaders} == {
            (group_id, 1) for group_id in groups
        }
        second = await node.topic("b")
        update = await _next(watch)
        assert not update.is_full
        assert not update.has_brokers
        assert [t.name for t in update.topics] == ["b"]
        assert [leader.group_id for leader in update.leaders] == [second.partitions[0].group_id]
        await watch.aclose()


async def test_a_new_leader_is_the_only_change_sent():
    async with running() as node:
        topic = await node.topic(partitions=3)
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        await _next(watch)
        group_id = GroupId(topic.partitions[1].group_id)
        node.leadership.claim(group_id, Term(12), NodeId(2))
        node.bump()
        update = await _next(watch)
        assert not update.topics
        assert [(leader.group_id, leader.broker_id, leader.leader_epoch) for leader in update.leaders] == [
            (group_id, 2, 12)
        ]
        await watch.aclose()


async def test_changes_close_together_are_one_update(monkeypatch):
    monkeypatch.setattr(topology, "COALESCE_SECONDS", 1.0)  # long enough on a machine where each change takes time
    async with running() as node:
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        await _next(watch)
        for name in ("a", "b", "c"):
            await node.topic(name)
        update = await _next(watch)
        assert [t.name for t in update.topics] == ["a", "b", "c"]
        await watch.aclose()


async def test_a_partition_that_moves_is_sent_when_clients_see_a_difference(monkeypatch):
    monkeypatch.setattr(topology, "COALESCE_SECONDS", 0.0)
    async with running() as node:
        for number in (2, 3):
            await node.register(number, f"uuid-{number}")
        await node._metadata(CreateTopic("flights", "log", 1, {}, (PartitionPlan((1,)),) * 3))
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        full = await _next(watch)
        group_id = full.topics[0].partitions[1].group_id
        machine = node.metadata.state_machine
        await node._metadata(SetReplicas(group_id, (2,), machine.partition(group_id).revision))
        node.bump()
        (moved,) = (await _next(watch)).topics
        assert [list(one.replica_brokers) for one in moved.partitions] == [[1], [2], [1]]
        assert [list(one.replica_brokers) for one in full.topics[0].partitions] == [[1], [1], [1]], "it was sent before"
        (gone,) = machine.partition(group_id).retiring
        number = node.topology._feed.number
        await node._metadata(RemoveReplica(group_id, gone.replica_id))
        node.topology._feed.advance()
        assert node.topology._feed.number == number, "clients see no retiring replicas"
        await watch.aclose()


async def test_the_table_after_any_changes_equals_one_that_is_made_anew():
    rng = random.Random(5)
    async with running() as node:
        for number in (2, 3):
            await node.register(number, f"uuid-{number}")
        feed, machine = topology.TopologyFeed(node), node.metadata.state_machine
        client = {}
        for step in range(60):
            topics = machine.topics()
            match rng.randrange(5):
                case 0 if len(topics) < 6:
                    plans = tuple(PartitionPlan((rng.randint(1, 3),)) for _ in range(rng.randint(1, 4)))
                    await node._metadata(CreateTopic(f"t{step}", "log", 1, {}, plans))
                case 1 if topics:
                    await node._metadata(DeleteTopic(rng.choice(topics).topic_id))
                case 2 | 3 if topics:
                    partition = machine.partition(rng.choice(rng.choice(topics).group_ids))
                    await node._metadata(SetReplicas(partition.group_id, (rng.randint(1, 3),), partition.revision))
                case _ if topics:
                    group_id = GroupId(rng.choice(rng.choice(topics).group_ids))
                    node.leadership.claim(group_id, Term(100 + step), NodeId(rng.randint(1, 3)))
                case _:
                    pass
            if rng.random() < 0.3:
                continue
            number = feed.number
            feed.advance()
            for update in feed.after(number):
                client |= {topic.topic_id: topic for topic in update.topics}
                client |= {("leader", leader.group_id): leader for leader in update.leaders}
                for topic_id in update.deleted_topic_ids:
                    del client[topic_id]
            fresh = topology.TopologyFeed(node)
            fresh.advance()
            assert sorted(feed.full().topics, key=id_of) == sorted(fresh.full().topics, key=id_of)
            assert sorted(map(str, feed.full().leaders)) == sorted(map(str, fresh.full().leaders))
            assert sorted((one for one in client.values() if isinstance(one, pb.Topic)), key=id_of) == sorted(
                fresh.full().topics, key=id_of
            )
            assert all(client["leader", leader.group_id] == leader for leader in fresh.full().leaders)


async def test_watchers_get_the_full_table_after_a_comparison_that_failed_halfway(monkeypatch):
    async with running() as node:
        feed = topology.TopologyFeed(node)
        await node.topic("a")
        feed.advance()
        number = feed.number
        await node.topic("b")
        monkeypatch.setattr(feed, "_compare_leaders", fail)
        with pytest.raises(RuntimeError, match="a defect"):
            feed.advance()
        monkeypatch.undo()
        feed.advance()
        assert feed.after(number) is None
        assert [topic.name for topic in feed.full().topics] == ["a", "b"]
        assert [leader.group_id for leader in feed.full().leaders] == [METADATA_GROUP_ID, 1, 2]


def fail(*_: object) -> None:
    raise RuntimeError("a defect")


def id_of(topic: pb.Topic) -> int:
    return topic.topic_id


async def test_deleted_topics_and_new_nodes_are_sent():
    async with running() as node:
        topic = await node.topic()
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        await _next(watch)
        await node.admin.delete_topic(pb.DeleteTopicRequest(name="flights"), node.call())
        await node.register(2, "uuid-2")
        update = await _next(watch)
        assert list(update.deleted_topic_ids) == [topic.topic_id]
        assert [b.broker_id for b in update.brokers] == [1, 2]
        assert update.metadata_revision == node.metadata.state_machine.applied_index
        await watch.aclose()


async def test_changes_invisible_to_clients_are_not_sent():
    async with running() as node:
        await node.topic()
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        await _next(watch)
        node.bump()
        await node.log.init_producer(pb.InitProducerRequest(), node.call())
        await node.topic("next")
        assert [t.name for t in (await _next(watch)).topics] == ["next"]
        await watch.aclose()


async def test_the_feed_sleeps_while_nothing_changes():
    async with running() as node:
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        await _next(watch)
        await node.topic()
        await _next(watch)

        async def someone_waits():
            while node._change is None:
                await asyncio.sleep(0)

        await asyncio.wait_for(someone_waits(), 10)
        await watch.aclose()


async def test_a_watcher_that_falls_behind_gets_the_full_table(monkeypatch):
    async with running() as node:
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        await _next(watch)
        feed = node.topology._feed
        for number in range(topology._UPDATES_KEPT + 1):
            await node.topic(f"t{number}")
            feed.advance()
        update = await _next(watch)
        assert update.is_full
        assert len(update.topics) == topology._UPDATES_KEPT + 1
        await watch.aclose()


async def test_the_table_for_a_new_watcher_is_of_the_revision_that_it_names(monkeypatch):
    """It was that of the last comparison. A client that knew the topic by that revision took it for deleted."""
    monkeypatch.setattr(topology, "COALESCE_SECONDS", 10.0)
    async with running() as node:
        first = node.topology.watch(pb.WatchRequest(), node.call())
        await _next(first)
        created = await node.admin.create_topic(pb.CreateTopicRequest(name="a"), node.call())
        second = node.topology.watch(pb.WatchRequest(), node.call())
        full = await _next(second)
        assert full.metadata_revision >= created.metadata_revision
        assert [topic.name for topic in full.topics] == ["a"]
        assert {leader.group_id for leader in full.leaders} == {METADATA_GROUP_ID, created.topic.partitions[0].group_id}
        assert [topic.name for topic in (await _next(first)).topics] == ["a"]
        await first.aclose()
        await second.aclose()


async def test_another_cluster_is_refused():
    async with running() as node:
        with pytest.raises(RequestError) as raised:
            await anext(node.topology.watch(pb.WatchRequest(cluster_id="another"), node.call()))
        assert raised.value.code == pb.WRONG_CLUSTER
        watch = node.topology.watch(pb.WatchRequest(cluster_id=CLUSTER_ID), node.call())
        assert (await _next(watch)).is_full
        await watch.aclose()


async def test_the_feed_stops_with_its_last_watcher_and_starts_again():
    async with running() as node:
        before = asyncio.all_tasks()
        for _ in range(2):
            watch = node.topology.watch(pb.WatchRequest(), node.call())
            await _next(watch)
            assert node.topology.watchers == 1
            await watch.aclose()
            assert node.topology.watchers == 0
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == before


async def test_watchers_are_bounded(monkeypatch):
    monkeypatch.setattr(topology, "WATCHERS_MAX", 1)
    async with running() as node:
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        await _next(watch)
        with pytest.raises(RequestError) as raised:
            await anext(node.topology.watch(pb.WatchRequest(), node.call()))
        assert raised.value.code == pb.THROTTLED
        await watch.aclose()


async def test_shutdown_ends_every_watch():
    async with running() as node:
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        await _next(watch)
        waiting = asyncio.ensure_future(anext(watch, None))
        await asyncio.sleep(0)
        node.topology.begin_shutdown()
        assert await asyncio.wait_for(waiting, 10) is None


async def test_a_removed_broker_sends_its_removal_and_ends_every_watch():
    """It learns of no later change, so its watchers must go to another broker, whose address they have now."""
    async with running() as node:
        await node.register(1, "uuid-1")
        await node.register(2, "uuid-2")
        other = node.metadata.state_machine.node(2).metadata_replica_id
        await node._metadata(SetMetadataMembership((other,), node.metadata.state_machine.revision))
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        await _next(watch)
        await node._metadata(RemoveNode(1))
        assert [broker.broker_id for broker in (await _next(watch)).brokers] == [2]
        with pytest.raises(StopAsyncIteration):
            await _next(watch)
        late = [update async for update in node.topology.watch(pb.WatchRequest(), node.call())]
        assert [update.is_full for update in late] == [True], "a client that knows no other broker learns of them"
        assert node.topology.watchers == 0


async def test_a_broker_that_others_tell_of_its_removal_ends_every_watch_although_its_metadata_never_changes():
    """Its watchers stayed for good, and clients found no leader."""
    async with running() as node:
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        await _next(watch)
        waiting = asyncio.ensure_future(anext(watch, None))
        await asyncio.sleep(0)
        node.reasons = [NotReady(Reason.REMOVED, "127.0.0.1:9401 permanently refuses this data directory")]
        node.bump()
        assert await asyncio.wait_for(waiting, 10) is None
        late = [update async for update in node.topology.watch(pb.WatchRequest(), node.call())]
        assert [update.is_full for update in late] == [True], "a client that knows no other broker learns of them"
        assert node.topology.watchers == 0
