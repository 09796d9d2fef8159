"""The Admin service is tested on a real metadata group."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.readiness import NotReady, Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.fsm.metadata_commands import DeleteTopic, Done, RemoveNode
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId

from tests.support.broker.harness import CLUSTER_ID, batch, running
from tests.support.broker.queues import queue_topic

WAIT_MS = 200
"""A timeout for leaders that never appear: long enough for the steps before the wait on a busy machine."""


async def _refused(coroutine) -> RequestError:
    with pytest.raises(RequestError) as raised:
        await coroutine
    return raised.value


async def test_a_topic_is_created_with_leaders_and_the_default_replication_factor():
    async with running() as node:
        answer = await node.admin.create_topic(pb.CreateTopicRequest(name="flights", partitions=4), node.call())
        assert answer.topic.replication_factor == 1  # min(3, hosts)
        assert [p.partition for p in answer.topic.partitions] == [0, 1, 2, 3]
        assert all(list(p.replica_brokers) == [1] for p in answer.topic.partitions)
        assert all(node.leadership.get(GroupId(p.group_id)).node_id == 1 for p in answer.topic.partitions)
        described = await node.admin.describe_topic(
            pb.DescribeTopicRequest(name="flights", metadata_revision=answer.metadata_revision), node.call()
        )
        assert described.topic == answer.topic
        assert {leader.broker_id for leader in described.leaders} == {1}
        assert described.effective_config["retention.bytes"] == "-1"


async def test_a_topic_without_a_replication_factor_waits_for_the_expected_brokers():
    async with running(Limits(brokers_expected=5)) as node:
        creating = asyncio.create_task(
            node.admin.create_topic(pb.CreateTopicRequest(name="flights", partitions=1), node.call())
        )
        for node_id in (2, 3):
            for _ in range(10):
                await asyncio.sleep(0)
            assert node.metadata.state_machine.topics() == ()
            await node.register(node_id, f"uuid-{node_id}")
        while not (topics := node.metadata.state_machine.topics()):
            await asyncio.sleep(0)
        assert topics[0].replication_factor == 3
        creating.cancel()  # the two other brokers elect no leader here


async def test_a_topic_is_refused_when_expected_brokers_do_not_join():
    async with running(Limits(brokers_expected=2)) as node:
        request = pb.CreateTopicRequest(name="flights", partitions=1, timeout_ms=WAIT_MS)
        error = await _refused(node.admin.create_topic(request, node.call()))
        assert error.code == pb.INVALID_REPLICATION_FACTOR
        assert "1 of 2 expected brokers have joined" in str(error)
        assert node.metadata.state_machine.topics() == ()
        request.replication_factor = 1
        assert (await node.admin.create_topic(request, node.call())).topic.replication_factor == 1


async def test_creating_waits_for_leaders_until_its_deadline():
    async with running() as node:
        node.hold_leadership = True
        creating = asyncio.create_task(
            node.admin.create_topic(pb.CreateTopicRequest(name="flights", partitions=2), node.call())
        )
        for _ in range(10):
            await asyncio.sleep(0)
        assert not creating.done()
        for group_id in list(node.partitions):
            node.campaign(group_id)
        assert (await creating).topic.name == "flights"
        request = pb.CreateTopicRequest(name="other", partitions=1, timeout_ms=WAIT_MS)
        assert (await node.admin.create_topic(request, node.call())).topic.name == "other"


REFUSED_TOPICS = {
    "no name": (pb.CreateTopicRequest(name=""), pb.INVALID_TOPIC_NAME),
    "reserved": (pb.CreateTopicRequest(name="__x"), pb.INVALID_TOPIC_NAME),
    "slash": (pb.CreateTopicRequest(name="a/b"), pb.INVALID_TOPIC_NAME),
    "unknown setting": (pb.CreateTopicRequest(name="t", config={"retention.sm": "1"}), pb.INVALID_CONFIG),
    "bad value": (pb.CreateTopicRequest(name="t", config={"retention.ms": "soon"}), pb.INVALID_CONFIG),
    "too many replicas": (pb.CreateTopicRequest(name="t", replication_factor=2), pb.INVALID_REPLICATION_FACTOR),
    "four billion partitions": (pb.CreateTopicRequest(name="t", partitions=4_000_000_000), pb.TOO_MANY_PARTITIONS),
    "more than the node takes": (pb.CreateTopicRequest(name="t", partitions=11), pb.TOO_MANY_PARTITIONS),
}


@pytest.mark.parametrize("name", REFUSED_TOPICS)
async def test_an_invalid_topic_is_refused_before_proposing(name):
    request, code = REFUSED_TOPICS[name]
    async with running(Limits(partitions_max=10)) as node:
        before = node.metadata.core.last_index
        assert (await _refused(node.admin.create_topic(request, node.call()))).code == code
        assert node.metadata.core.last_index == before


async def test_more_replicas_than_a_partition_can_have_are_refused_before_proposing():
    async with running() as node:
        for number in range(2, 11):
            await node.register(number, f"uuid-{number}")
        before = node.metadata.core.last_index
        request = pb.CreateTopicRequest(name="wide", replication_factor=10)
        error = await _refused(node.admin.create_topic(request, node.call()))
        assert (error.code, node.metadata.core.last_index) == (pb.INVALID_REPLICATION_FACTOR, before)


async def test_the_partition_limit_counts_existing_partitions():
    async with running(Limits(partitions_max=10)) as node:
        await node.topic("a", partitions=6)
        error = await _refused(node.admin.create_topic(pb.CreateTopicRequest(name="b", partitions=5), node.call()))
        assert error.code == pb.TOO_MANY_PARTITIONS
        both = [
            node.admin.create_topic(pb.CreateTopicRequest(name=name, partitions=3), node.call()) for name in ("c", "d")
        ]
        results = await asyncio.gather(*both, return_exceptions=True)
        assert sorted(isinstance(result, RequestError) for result in results) == [False, True]


async def test_a_topic_is_created_once():
    async with running() as node:
        await node.topic()
        error = await _refused(node.admin.create_topic(pb.CreateTopicRequest(name="flights"), node.call()))
        assert error.code == pb.TOPIC_ALREADY_EXISTS


async def test_a_deposed_leader_does_not_say_that_a_deleted_topic_exists(monkeypatch):
    """Its successor had deleted the topic, and the refusal was final."""
    async with running() as node:
        topic = await node.topic("a")

        async def confirmed() -> None:
            await node._metadata(DeleteTopic(topic.topic_id))

        monkeypatch.setattr(node.metadata, "read_index", confirmed)
        assert (await node.topic("a")).topic_id > topic.topic_id


async def test_replicas_spread_over_hosts_and_leaders_are_even():
    async with running() as node:
        await node.register(2, "uuid-2")
        await node.register(3, "uuid-3")
        request = pb.CreateTopicRequest(name="wide", partitions=6, timeout_ms=WAIT_MS)
        topic = (await node.admin.create_topic(request, node.call())).topic
        assert topic.replication_factor == 3
        assert all(sorted(p.replica_brokers) == [1, 2, 3] for p in topic.partitions)
        assert sorted(p.replica_brokers[0] for p in topic.partitions) == [1, 1, 2, 2, 3, 3]


async def test_partitions_are_placed_again_if_a_broker_is_removed_in_the_meantime():
    """The caller named no broker, and once got UNKNOWN_BROKER."""
    async with running() as node:
        for node_id in (2, 3, 4):
            await node.register(node_id, f"uuid-{node_id}")

        async def while_removing(broker_id: int, change: Callable[[], Awaitable[object]]) -> None:
            call = node.call()
            removal = asyncio.create_task(node.admin.leader.execute(RemoveNode(broker_id), Done, call.deadline))
            await asyncio.sleep(0)  # it is proposed, and not applied yet
            assert node.metadata.state_machine.node(broker_id).state == "active"
            await change()
            await removal

        create = pb.CreateTopicRequest(name="flights", partitions=4, replication_factor=2, timeout_ms=WAIT_MS)
        await while_removing(2, lambda: node.admin.create_topic(create, node.call()))
        grow = pb.AddPartitionsRequest(name="flights", total=8, timeout_ms=WAIT_MS)
        await node.register(5, "uuid-5")
        await while_removing(5, lambda: node.admin.add_partitions(grow, node.call()))
        topic = (await node.admin.describe_topic(pb.DescribeTopicRequest(name="flights"), node.call())).topic
        assert len(topic.partitions) == 8
        assert {broker_id for p in topic.partitions for broker_id in p.replica_brokers} == {1, 3, 4}


async def test_partitions_are_added_after_the_existing_ones():
    async with running() as node:
        before = await node.topic(partitions=2)
        answer = await node.admin.add_partitions(pb.AddPartitionsRequest(name="flights", total=5), node.call())
        assert [p.partition for p in answer.topic.partitions] == [0, 1, 2, 3, 4]
        assert list(answer.topic.partitions[:2]) == list(before.partitions)
        for total in (5, 0):
            error = await _refused(
                node.admin.add_partitions(pb.AddPartitionsRequest(name="flights", total=total), node.call())
            )
            assert error.code == pb.INVALID_PARTITIONS
        error = await _refused(node.admin.add_partitions(pb.AddPartitionsRequest(name="x", total=2), node.call()))
        assert error.code == pb.UNKNOWN_TOPIC


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"ordered_by_key": "true"}, "a key's later messages"),
        ({"dedupe_window_ms": "5000"}, "dedupe.window.ms is set"),
        ({}, "the id of an unfinished message"),
    ],
)
async def test_a_queue_topic_gets_partitions_only_with_rehash(config: dict[str, str], reason: str):
    async with running() as node:
        topic = await queue_topic(node, partitions=2, **config)
        assert topic.schedule_partitions == 2
        request = pb.AddPartitionsRequest(name="jobs", total=3)
        error = await _refused(node.admin.add_partitions(request, node.call()))
        assert error.code == pb.INVALID_PARTITIONS
        assert reason in str(error)
        assert "--rehash" in str(error)
        request.rehash = True
        answer = await node.admin.add_partitions(request, node.call())
        assert len(answer.topic.partitions) == 3
        assert answer.topic.schedule_partitions == 2, "schedules stay where they are"


@pytest.mark.parametrize("name", ["", "a/b", "flights now", "x" * 250, ".."])
async def test_an_invalid_topic_name_is_reported_as_invalid_not_as_unknown(name: str):
    async with running() as node:
        for refused in (
            node.admin.describe_topic(pb.DescribeTopicRequest(name=name), node.call()),
            node.admin.delete_topic(pb.DeleteTopicRequest(name=name), node.call()),
            node.admin.add_partitions(pb.AddPartitionsRequest(name=name, total=2), node.call()),
            node.admin.alter_topic(pb.AlterTopicRequest(name=name), node.call()),
        ):
            error = await _refused(refused)
            assert error.code == pb.INVALID_TOPIC_NAME
            assert repr(name[:60]) in str(error)


async def test_configuration_is_set_and_unset():
    async with running() as node:
        await node.topic()

        async def effective():
            answer = await node.admin.describe_topic(pb.DescribeTopicRequest(name="flights"), node.call())
            return answer.effective_config["retention.ms"]

        default = await effective()
        await node.admin.alter_topic(pb.AlterTopicRequest(name="flights", set={"retention.ms": "5000"}), node.call())
        assert await effective() == "5000"
        await node.admin.alter_topic(pb.AlterTopicRequest(name="flights", unset=["retention.ms"]), node.call())
        assert await effective() == default
        for request in (
            pb.AlterTopicRequest(name="flights", set={"nonsense": "1"}),
            pb.AlterTopicRequest(name="flights", unset=["nonsense"]),
            pb.AlterTopicRequest(name="flights", set={"retention.ms": "1"}, unset=["retention.ms"]),
        ):
            assert (await _refused(node.admin.alter_topic(request, node.call()))).code == pb.INVALID_CONFIG


async def test_a_topic_deleted_and_created_again_is_another_one_and_empty():
    async with running() as node:
        old = await node.topic()
        await node.append(old, batch(1))
        await node.admin.delete_topic(pb.DeleteTopicRequest(name="flights"), node.call())
        assert (
            await _refused(node.admin.describe_topic(pb.DescribeTopicRequest(name="flights"), node.call()))
        ).code == (pb.UNKNOWN_TOPIC)
        new = await node.topic()
        assert new.topic_id != old.topic_id
        assert node.partition(new).high_watermark == 0
        assert (await node.append(old, batch(1))).error.code == pb.UNKNOWN_TOPIC
        error = await _refused(node.admin.delete_topic(pb.DeleteTopicRequest(name="gone"), node.call()))
        assert error.code == pb.UNKNOWN_TOPIC


async def test_topics_are_listed_by_name_even_without_a_metadata_leader():
    async with running() as node:
        await node.topic("b")
        await node.topic("a")
        assert not (await node.admin.list_topics(pb.ListTopicsRequest(), node.call())).is_unconfirmed
        node.lose_leadership(METADATA_GROUP_ID)
        answer = await node.admin.list_topics(pb.ListTopicsRequest(), node.call())
        assert [topic.name for topic in answer.topics] == ["a", "b"]
        assert answer.is_unconfirmed


async def test_a_description_without_a_metadata_leader_says_that_it_may_be_old():
    """Clients could otherwise not tell it from the newest (seed 760207 of the simulation)."""
    async with running() as node:
        await node.topic("a")
        request = pb.DescribeTopicRequest(name="a")
        assert not (await node.admin.describe_topic(request, node.call())).is_unconfirmed
        node.lose_leadership(METADATA_GROUP_ID)
        answer = await node.admin.describe_topic(request, node.call())
        assert answer.topic.name == "a"
        assert answer.is_unconfirmed


async def test_a_change_requested_from_another_node_is_forwarded_once():
    async with running() as node:
        node.lose_leadership(METADATA_GROUP_ID, NodeId(2))
        node.forwarder.answer = pb.CreateTopicResponse(topic_id=5)
        request = pb.CreateTopicRequest(name="flights")
        assert (await node.admin.create_topic(request, node.call())).topic_id == 5
        assert node.forwarder.calls == [(2, "/raftmq.v1.Admin/CreateTopic", request)]
        error = await _refused(node.admin.create_topic(request, node.call(is_forwarded=True)))
        assert error.code == pb.NOT_LEADER
        assert error.detail.leader.address == "node-2:9400"
        node.leadership.forget(METADATA_GROUP_ID)
        assert (await _refused(node.admin.create_topic(request, node.call()))).code == pb.NO_LEADER
        assert len(node.forwarder.calls) == 1


async def test_the_cluster_is_described_as_this_node_sees_it():
    async with running() as node:
        await node.register(2, "uuid-2")
        topic = await node.topic(partitions=2)
        node.leadership.forget(GroupId(topic.partitions[0].group_id))
        answer = await node.admin.describe_cluster(pb.DescribeClusterRequest(), node.call())
        assert (answer.cluster_id, answer.answering_broker_id, answer.metadata_leader_broker_id) == (CLUSTER_ID, 1, 1)
        assert (answer.topic_count, answer.partition_count) == (1, 2)
        assert answer.partitions_without_leader >= 1
        first, second = answer.brokers
        assert (first.is_metadata_voter, first.is_connected) == (True, True)
        assert (second.is_metadata_voter, second.is_connected) == (False, False)
        assert second.broker.address == "node-2:9400"


@pytest.mark.parametrize(
    "describe",
    [
        lambda node: node.admin.describe_cluster(pb.DescribeClusterRequest(), node.call()),
        lambda node: node.admin.describe_cluster(pb.DescribeClusterRequest(with_health=True), node.call()),
        lambda node: node.admin.describe_topic(pb.DescribeTopicRequest(name="flights"), node.call()),
        lambda node: node.admin.list_topics(pb.ListTopicsRequest(), node.call()),
    ],
)
async def test_a_removed_broker_describes_nothing(describe):
    """The others answer it nothing, so it reported an outage of everything. It also learns of no later change."""
    async with running() as node:
        await node.topic("flights")
        node.reasons = [NotReady(Reason.REMOVED, "this data directory was removed from the cluster")]
        error = await _refused(describe(node))
        assert error.code == pb.NOT_READY, "a client asks another broker"
        assert str(error) == "broker 1: this data directory was removed from the cluster"


async def test_replicas_go_to_nodes_that_are_reachable_while_there_are_enough():
    """A new topic must not wait for a node that is down. If all nodes are needed, a majority is enough to begin."""
    async with running() as node:
        await node.register(2, "uuid-2")
        await node.register(3, "uuid-3")
        node.connected = {3}
        plans = node.admin._plan(4, 2, existing_count=0)
        assert {node_id for plan in plans for node_id in plan.node_ids} == {1, 3}
        plans = node.admin._plan(4, 3, existing_count=0)
        assert all(sorted(plan.node_ids) == [1, 2, 3] for plan in plans)
