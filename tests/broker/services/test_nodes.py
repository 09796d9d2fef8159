"""Brokers tell each other of registrations, replacements of lost disks, damaged replicas, and replicas that left."""

from __future__ import annotations

import asyncio

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.services.nodes import REPORTED_REPLICAS_MAX
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.metadata_commands import CreateTopic, PartitionPlan, RaiseFeatureLevel, SetReplicas
from raftmq.fsm.metadata_views import PartitionView
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import CLUSTER_ID, Harness, running


async def _refused(awaitable) -> RequestError:
    with pytest.raises(RequestError) as caught:
        await awaitable
    return caught.value


def registration(uuid: str, node_id: int = 0, **fields: object) -> peer_pb.RegisterBrokerRequest:
    return peer_pb.RegisterBrokerRequest(
        uuid=uuid, broker_id=node_id, client_address="a:1", peer_address="a:2", host="h", version="1", feature_level_max=1,
        **fields,
    )  # fmt: skip


async def test_no_node_is_admitted_before_the_one_that_forms_the_cluster(monkeypatch):
    """Of brokers that were started together, one that joined in between never learned the first one's address, and waited without end."""

    async def not_yet(*_: object) -> None:
        return None

    with monkeypatch.context() as patch:
        patch.setattr(Harness, "register", not_yet)
        context = running()
        node = await context.__aenter__()
    try:
        refused = await _refused(node.nodes.register_node(registration("uuid-2"), node.call()))
        assert refused.code == pb.NOT_FORMED
        assert refused.detail.retriable
        assert node.metadata.state_machine.nodes() == ()
        await node.register(1, "uuid-1")
        answer = await node.nodes.register_node(registration("uuid-2"), node.call())
        assert {b.broker_id for b in answer.brokers} == {1, 2}
    finally:
        await context.__aexit__(None, None, None)


async def three_nodes(node: Harness) -> PartitionView:
    """Let nodes 2 and 3 join, and create a topic with a replica on each of the three."""
    await node.register(2, "uuid-2")
    await node.register(3, "uuid-3")
    await node._metadata(CreateTopic("t", "log", 3, {}, (PartitionPlan((1, 2, 3)),)))
    node.connected = {2, 3}
    partition = node.metadata.state_machine.partition(1)
    assert partition is not None
    return partition


async def test_a_node_registers_and_learns_its_peers():
    async with running() as node:
        request = peer_pb.RegisterBrokerRequest(
            uuid="uuid-2", client_address="a:1", peer_address="a:2", host="h", version="1", feature_level_max=1
        )
        answer = await node.nodes.register_node(request, node.call())
        assert answer.cluster_id == CLUSTER_ID
        assert answer.broker_id not in (0, 1)
        assert {b.broker_id for b in answer.brokers} == {1, answer.broker_id}
        assert {(r.replica_id, r.broker_id) for r in answer.metadata_replicas} >= {
            (answer.metadata_replica_id, answer.broker_id)
        }
        again = await node.nodes.register_node(request, node.call())
        assert (again.broker_id, again.metadata_replica_id) == (answer.broker_id, answer.metadata_replica_id)
        request.cluster_id = "another"
        refused = await _refused(node.nodes.register_node(request, node.call()))
        assert refused.code == pb.WRONG_CLUSTER
        assert "raftmq recover rejoin" in str(refused), (
            "it may be a survivor of the cluster from which this one was recovered"
        )
        taken = peer_pb.RegisterBrokerRequest(
            uuid="uuid-9", broker_id=1, client_address="a:1", peer_address="a:2", feature_level_max=1
        )
        assert (await _refused(node.nodes.register_node(taken, node.call()))).code == pb.BROKER_ID_TAKEN
        long = peer_pb.RegisterBrokerRequest(
            uuid="uuid-7", client_address="a" * 4000, peer_address="a:2", feature_level_max=1
        )
        assert (await _refused(node.nodes.register_node(long, node.call()))).code == pb.INVALID_ARGUMENT
        nowhere = peer_pb.RegisterBrokerRequest(uuid="uuid-8", feature_level_max=1)
        assert (await _refused(node.nodes.register_node(nowhere, node.call()))).code == pb.INVALID_ARGUMENT


async def test_a_new_disk_replaces_a_lost_one():
    async with running() as node:
        before = await three_nodes(node)
        node.connected = {3}
        answer = await node.nodes.register_node(registration("new-disk", 2), node.call())
        assert answer.broker_id == 2
        after = node.metadata.state_machine.partition(1)
        assert after.replicas[1].node_id == 2
        assert after.replicas[1].replica_id != before.replicas[1].replica_id
        assert [(r.replica_id, r.is_lost) for r in after.retiring] == [(before.replicas[1].replica_id, True)]
        assert (
            await _refused(node.nodes.register_node(registration("uuid-2", 2), node.call()))
        ).code == pb.BROKER_REMOVED


async def test_of_two_new_disks_that_claim_the_same_id_one_gets_it():
    """The second claim was judged before the first was applied. It took the first one's directory for the lost one, which was refused for good."""
    async with running() as node:
        await three_nodes(node)
        node.connected = {3}
        node.hold_commits = True
        claims = [registration(f"new-{number}", 2) for number in (1, 2)]
        first, second = (asyncio.create_task(node.nodes.register_node(one, node.call())) for one in claims)
        await asyncio.sleep(0.01)
        node.release_commits()
        assert (await first).broker_id == 2
        assert (await _refused(second)).code == pb.NOT_READY
        assert not node.metadata.state_machine.is_uuid_retired("new-1")


async def test_the_id_of_a_running_node_is_not_given_away():
    async with running() as node:
        before = await three_nodes(node)
        refusal = await _refused(node.nodes.register_node(registration("new-disk", 2, replaces_lost=True), node.call()))
        assert refusal.code == pb.BROKER_ID_TAKEN
        assert "running at node-2:9400" in str(refusal)
        assert node.metadata.state_machine.partition(1) == before


async def test_a_disk_is_given_up_only_with_a_remaining_majority_or_on_an_operators_order():
    async with running() as node:
        await three_nodes(node)
        node.connected = set()
        refusal = await _refused(node.nodes.register_node(registration("new-disk", 2), node.call()))
        assert refusal.code == pb.NOT_READY, "it may wait, because the other node may return in a moment"
        assert "t/0" in str(refusal)
        assert "--replace-lost" in str(refusal)
        answer = await node.nodes.register_node(registration("new-disk", 2, replaces_lost=True), node.call())
        assert answer.broker_id == 2


async def test_a_wiped_target_of_a_move_of_two_replicas_waits_until_the_move_is_given_up():
    """Metadata do not know whether the new replica or its predecessor votes, so the loss of both may be the loss of the majority."""
    async with running() as node:
        for node_id in (1, 2, 3):
            await node.register(node_id, f"uuid-{node_id}", feature_level_max=FEATURE_LEVEL)
        await node._metadata(RaiseFeatureLevel(FEATURE_LEVEL))
        await node._metadata(CreateTopic("t", "log", 2, {}, (PartitionPlan((1, 2)),)))
        machine = node.metadata.state_machine
        await node._metadata(SetReplicas(1, (1, 3), machine.partition(1).revision))
        node.connected = {2}
        new_disk = registration("new-disk", 3)
        new_disk.feature_level_max = FEATURE_LEVEL
        refusal = await _refused(node.nodes.register_node(new_disk, node.call()))
        assert refusal.code == pb.NOT_READY
        assert "t/0" in str(refusal)
        newcomer = machine.partition(1).replicas[1].replica_id
        report = peer_pb.ReplicaReport(group_id=1, replica_id=newcomer, reason="silent")
        stuck = peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", stuck=[report])
        await node.nodes.report_replicas(stuck, node.call())
        assert [one.node_id for one in machine.partition(1).replicas] == [1, 2]
        left = peer_pb.ReplicaReport(group_id=1, replica_id=newcomer)
        await node.nodes.report_replicas(
            peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", left=[left]), node.call()
        )
        assert (await node.nodes.register_node(new_disk, node.call())).broker_id == 3


async def test_a_node_gets_another_metadata_replica_for_a_damaged_one():
    async with running() as node:
        await three_nodes(node)
        old = node.metadata.state_machine.node(2).metadata_replica_id
        request = registration("uuid-2", 2, damaged_metadata_replica_id=old)
        first = await node.nodes.register_node(request, node.call())
        again = await node.nodes.register_node(request, node.call())
        assert first.metadata_replica_id == again.metadata_replica_id != old
        assert [r.replica_id for r in node.metadata.state_machine.metadata_retiring] == [old]


async def test_damage_reports_are_accepted_only_from_the_damaged_node():
    async with running() as node:
        own, other = (replica.replica_id for replica in (await three_nodes(node)).replicas[1:])
        report = peer_pb.ReplicaReport(group_id=1, replica_id=own, reason="a checksum")
        wrong = peer_pb.ReplicaReport(group_id=1, replica_id=other)
        request = peer_pb.ReportDamageRequest(broker_id=2, uuid="uuid-2", replicas=[wrong, report])
        await node.nodes.report_damage(request, node.call())
        assert node.reported_damage.current(node.metadata.state_machine) == [(1, own)]
        for who in ("uuid-3", "nobody"):
            request = peer_pb.ReportDamageRequest(broker_id=2, uuid=who, replicas=[report])
            assert (await _refused(node.nodes.report_damage(request, node.call()))).code == pb.INVALID_ARGUMENT
        request = peer_pb.ReportDamageRequest(
            broker_id=2, uuid="uuid-2", replicas=[report] * (REPORTED_REPLICAS_MAX + 1)
        )
        assert (await _refused(node.nodes.report_damage(request, node.call()))).code == pb.INVALID_ARGUMENT


async def test_reports_of_a_leader_replace_and_forget_replicas_and_are_idempotent():
    async with running() as node:
        before = await three_nodes(node)
        damaged = peer_pb.ReplicaReport(group_id=1, replica_id=before.replicas[2].replica_id)
        request = peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", damaged=[damaged])
        for _ in range(2):
            await node.nodes.report_replicas(request, node.call())
        after = node.metadata.state_machine.partition(1)
        assert after.replicas[2].node_id == 3
        assert [(r.replica_id, r.is_lost) for r in after.retiring] == [(damaged.replica_id, True)]
        request = peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", left=[damaged])
        for _ in range(2):
            await node.nodes.report_replicas(request, node.call())
        assert node.metadata.state_machine.partition(1).retiring == ()
        assert node.metadata.state_machine.partition(1).replicas == after.replicas


async def test_a_newcomer_counts_when_the_leader_of_its_group_reports_that_it_votes():
    async with running() as node:
        for node_id in (1, 2, 3):
            await node.register(node_id, f"uuid-{node_id}", feature_level_max=FEATURE_LEVEL)
        await node._metadata(RaiseFeatureLevel(FEATURE_LEVEL))
        await node._metadata(CreateTopic("t", "log", 1, {}, (PartitionPlan((1,)),)))
        await node._metadata(SetReplicas(1, (1, 2, 3), node.metadata.state_machine.revision))
        first, second, third = node.metadata.state_machine.partition(1).replicas
        assert [one.is_newcomer for one in (first, second, third)] == [False, True, True]
        votes = peer_pb.ReplicaReport(group_id=1, replica_id=second.replica_id)
        request = peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", joined=[votes])
        for _ in range(2):
            await node.nodes.report_replicas(request, node.call())
        assert [one.is_newcomer for one in node.metadata.state_machine.partition(1).replicas] == [False, False, True]


async def test_reports_about_replicas_that_are_wanted_or_unknown_or_elsewhere_change_nothing():
    async with running() as node:
        before = await three_nodes(node)
        await node.register(4, "uuid-4")
        reports = [
            peer_pb.ReplicaReport(group_id=1, replica_id=before.replicas[2].replica_id),
            peer_pb.ReplicaReport(group_id=1, replica_id=99),
            peer_pb.ReplicaReport(group_id=77, replica_id=1),
        ]
        left = peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", left=reports)
        await node.nodes.report_replicas(left, node.call())
        stranger = peer_pb.ReportReplicasRequest(broker_id=4, uuid="uuid-4", damaged=reports, left=reports)
        await node.nodes.report_replicas(stranger, node.call())
        assert node.metadata.state_machine.partition(1) == before
        await node._metadata(SetReplicas(1, (1, 2), node.metadata.state_machine.revision))
        moved = node.metadata.state_machine.partition(1)
        await node.nodes.report_replicas(stranger, node.call())
        assert node.metadata.state_machine.partition(1) == moved
