"""Descriptions ask the leaders for replicas in sync, offsets and sizes, and every broker for its health. Without an answer both are unknown."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from raftmq.broker.base.readiness import NotReady, Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.unserved import NotServed, NotServedReason
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.metadata_commands import RaiseFeatureLevel, SetReplicas
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId, ReplicaId

from tests.support.broker.harness import Harness, batch, running

OTHER = NodeId(2)


async def described(node: Harness) -> pb.DescribeClusterResponse:
    return await node.admin.describe_cluster(pb.DescribeClusterRequest(with_health=True), node.call())


async def test_a_partition_is_described_as_its_leader_sees_it():
    async with running() as node:
        topic = await node.topic("flights", partitions=2)
        await node.append(topic, batch(3))
        await node.partition(topic).delete_records(2, node.loop.time() + 5)
        request = pb.DescribeTopicRequest(name="flights", with_states=True)
        first, second = (await node.admin.describe_topic(request, node.call())).states
        assert (first.log_start_offset, first.high_watermark, list(first.in_sync_brokers)) == (2, 3, [1])
        assert first.size_bytes > second.size_bytes > 0
        assert first.leader_epoch == node.partition(topic).replica.term
        assert (second.log_start_offset, second.high_watermark) == (0, 0)
        assert not (await node.admin.describe_topic(pb.DescribeTopicRequest(name="flights"), node.call())).states


async def test_a_partition_whose_leader_does_not_answer_is_unknown_and_the_others_are_described():
    async with running() as node:
        await node.register(2, "uuid-2")
        topic = await node.topic("flights", partitions=3)
        away, nobody, _ = (GroupId(p.group_id) for p in topic.partitions)
        node.lose_leadership(away, OTHER)
        node.lose_leadership(nobody)
        request = pb.DescribeTopicRequest(name="flights", with_states=True)
        states = (await node.admin.describe_topic(request, node.call())).states
        assert [state.partition for state in states] == [0, 1, 2]
        assert [state.HasField("error") for state in states] == [True, True, False]
        ((node_id, path, asked),) = node.forwarder.calls
        assert (node_id, path) == (2, "/raftmq.peer.v1.Peers/DescribePartitions")
        assert [part.partition for part in cast("Any", asked).partitions] == [0]


async def test_a_partition_whose_disk_does_not_answer_is_unknown_in_time(monkeypatch):
    """A hung disk held up the description of the whole topic, and the balancing of the cluster while its broker led."""
    async with running() as node:
        topic = await node.topic("flights", partitions=2)
        monkeypatch.setattr(node.partition(topic), "file_bytes", asyncio.Event().wait)
        request = pb.DescribeTopicRequest(name="flights", with_states=True)
        async with asyncio.timeout(5):
            states = (await node.admin.describe_topic(request, node.call(0.2))).states
        assert states[0].error.code == pb.REQUEST_TIMED_OUT


async def test_the_deadline_for_other_brokers_is_before_the_clients(monkeypatch):
    async with running() as node:
        await node.register(2, "uuid-2")
        node.connected.add(OTHER)
        asked: list[float] = []

        async def forward(node_id, method, request, call):
            asked.append(call.deadline - node.loop.time())
            raise RequestError(pb.REQUEST_TIMED_OUT, "it hangs")

        monkeypatch.setattr(node.forwarder, "forward", forward)
        await described(node)
        await node.admin.describe_cluster(pb.DescribeClusterRequest(with_health=True), node.call(0.5))
        assert asked[0] == pytest.approx(node.timing.describe_seconds, abs=0.05)
        assert asked[1] < 0.4


async def test_a_broker_reports_its_own_problems():
    async with running() as node:
        topic = await node.topic("flights", partitions=4)
        replicas = [GroupId(p.group_id) for p in topic.partitions]
        node.short, node.not_served = [replicas[2], replicas[0]], [replicas[1]]
        node.damaged = {ReplicaKey(replicas[3], ReplicaId(9)): "a checksum"}
        node.said = ["replica 9 of group 4 is not served", "x" * 10_000]
        node.reasons = [NotReady(Reason.DISK_RESERVE, "5 MB are free")]
        answer = await described(node)
        (health,) = (b.health for b in answer.brokers)
        assert list(health.not_ready) == ["disk_reserve: 5 MB are free"]
        assert [(name.topic, name.partition) for name in health.under_replicated.first] == [
            ("flights", 0),
            ("flights", 2),
        ]
        assert (health.under_replicated.count, health.not_served.count, health.quarantined.count) == (2, 1, 1)
        assert [len(warning) for warning in health.warnings] == [34, 500]
        assert answer.health.is_metadata_led
        assert answer.health.leaderless.count == answer.health.unknown.count == 0


@pytest.mark.parametrize(
    ("not_ready", "obstacles"),
    [
        (["starting_replicas: 1 replica is not serving yet"], []),
        (
            ["starting_replicas: 1 replica is not serving yet", "disk_reserve: 5 MB are free"],
            ["broker 2 is not ready: disk_reserve: 5 MB are free"],
        ),
    ],
)
async def test_a_new_replica_is_not_stuck_because_its_broker_opens_it(not_ready, obstacles):
    async with running() as node:
        await node.register(1, "uuid-1", feature_level_max=FEATURE_LEVEL)
        (partition,) = (await node.topic("flights", partitions=1)).partitions
        await node.register(2, "uuid-2", feature_level_max=FEATURE_LEVEL)
        await node._metadata(RaiseFeatureLevel(FEATURE_LEVEL))
        machine = node.metadata.state_machine
        revision = machine.partition(partition.group_id).revision
        await node._metadata(SetReplicas(partition.group_id, (OTHER,), revision, False))
        node.connected.add(OTHER)
        node.forwarder.answer = peer_pb.DescribeBrokerResponse(health=pb.BrokerHealth(not_ready=not_ready))
        answer = await described(node)
        assert [one.reason for one in answer.health.stuck] == obstacles


async def test_a_partition_is_led_if_an_answering_broker_leads_it():
    """A broker's knowledge of a leader is a hint: for seconds after a crash it names the dead leader."""
    async with running() as node:
        await node.register(2, "uuid-2")
        topic = await node.topic("flights", partitions=3)
        claimed, denied, _ = (GroupId(p.group_id) for p in topic.partitions)
        for group_id in (claimed, denied):
            node.lose_leadership(group_id, OTHER)
        node.connected.add(OTHER)
        node.forwarder.answer = peer_pb.DescribeBrokerResponse(
            health=pb.BrokerHealth(not_ready=["joining: x"]), led_group_ids=[claimed], metadata_voters_behind=[2]
        )
        answer = await described(node)
        assert [name.partition for name in answer.health.leaderless.first] == [1]
        assert answer.partitions_without_leader == 0, "according to its own knowledge"
        assert list(answer.brokers[1].health.not_ready) == ["joining: x"]
        assert list(answer.health.metadata_voters_behind) == [2]

        node.forwarder.answer = RequestError(pb.REQUEST_TIMED_OUT, "it hangs")
        answer = await described(node)
        assert (answer.health.leaderless.count, answer.health.unknown.count) == (0, 2)
        assert not answer.brokers[1].HasField("health")

        node.leaderless.add(claimed)
        answer = await described(node)
        assert (answer.health.leaderless.count, answer.health.unknown.count) == (1, 1)


async def test_names_are_bounded_and_numbers_are_not():
    async with running() as node:
        topic = await node.topic("flights", partitions=5)
        node.short = [GroupId(p.group_id) for p in topic.partitions]
        node.limits = type(node.limits)(partitions_named_max=2)
        names = (await described(node)).brokers[0].health.under_replicated
        assert (names.count, len(names.first)) == (5, 2)


async def test_metadata_without_an_answering_leader_is_reported():
    async with running() as node:
        node.lose_leadership(METADATA_GROUP_ID, OTHER)
        assert not (await described(node)).health.is_metadata_led


async def test_a_replica_that_is_being_opened_is_no_reason_for_a_warning(monkeypatch: pytest.MonkeyPatch):
    """Each move creates a replica, and for a moment it is not served. That was shown as "cannot come up"."""
    async with running() as node:
        opening, failing = (ReplicaKey(GroupId(number), ReplicaId(number)) for number in (7, 8))
        found = [
            NotServed(opening, NotServedReason.OPENING, "it is being created or opened", is_starting=False),
            NotServed(failing, NotServedReason.FAILING, "a defect", is_starting=False),
        ]
        monkeypatch.setattr(node.standing, "not_served", lambda: found)
        answer = await node.health.describe_node(peer_pb.DescribeBrokerRequest(), node.call())
        assert [(one.group_id, one.reason) for one in answer.not_served] == [(8, "failing: a defect")]
