"""Draining, balancing and moves: each refusal names the remedy and changes nothing, a dry run only plans."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from raftmq.broker.base.request_error import RETRIABLE_CODES, RequestError
from raftmq.broker.cluster.balance_plan import BalancePlan
from raftmq.broker.cluster.layout import Layout
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.metadata_commands import (
    CreateTopic,
    PartitionPlan,
    RaiseFeatureLevel,
    RemoveNode,
    RemoveReplica,
    ReplaceReplica,
    RevertReplicas,
    SetBalancing,
    SetReplicas,
    SetReplicationFactor,
)
from raftmq.fsm.metadata_views import BalancingView
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId, NodeId, Term

from tests.support.broker.harness import Harness, running


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[Harness]:
    """Yield node 1 of four. Topic t has partitions on 1, 2, 3 and on 2, 3, 1. Node 4 is empty."""
    async with running() as node:
        for number in (1, 2, 3, 4):
            await node.register(number, f"uuid-{number}", feature_level_max=FEATURE_LEVEL)
        await node._metadata(RaiseFeatureLevel(FEATURE_LEVEL))
        await node._metadata(CreateTopic("t", "log", 3, {}, (PartitionPlan((1, 2, 3)), PartitionPlan((2, 3, 1)))))
        node.connected = {2, 3, 4}
        for group_id in (1, 2):
            node.leadership.claim(GroupId(group_id), Term(9), NodeId(group_id))
        yield node


async def refusal(node: Harness, method, request, *, is_retriable: bool = False) -> RequestError:
    before = node.metadata.state_machine.revision
    with pytest.raises(RequestError) as caught:
        await method(request, node.call(1.0))
    assert node.metadata.state_machine.revision == before, "refused before anything was proposed"
    assert (caught.value.code in RETRIABLE_CODES) == is_retriable
    return caught.value


def replicas(node: Harness, group_id: int) -> list[int]:
    return [replica.node_id for replica in node.metadata.state_machine.partition(group_id).replicas]


# ---------------------------------------------------------------------------------------------------------- draining


async def test_a_dry_run_of_a_drain_names_the_moves_and_changes_nothing():
    async with cluster() as node:
        revision = node.metadata.state_machine.revision
        answer = await node.balancing.drain_node(pb.DrainBrokerRequest(broker_id=2, dry_run=True), node.call())
        assert node.metadata.state_machine.revision == revision == answer.metadata_revision
        assert (answer.replica_count, answer.leader_count, answer.is_metadata_voter) == (2, 1, False)
        moves = [(move.partition, list(move.to_broker_ids), move.reason) for move in answer.moves]
        assert moves == [(0, [1, 4, 3], pb.DRAIN), (1, [3, 4, 1], pb.DRAIN)]


async def test_a_broker_is_drained_and_the_draining_ended():
    async with cluster() as node:
        begin, end = pb.DrainBrokerRequest(broker_id=2), pb.DrainBrokerRequest(broker_id=2, is_ended=True)
        assert (await node.balancing.drain_node(begin, node.call())).was_active
        assert node.metadata.state_machine.node(2).state == "draining"
        assert not (await node.balancing.drain_node(begin, node.call())).was_active
        assert not (await node.balancing.drain_node(end, node.call())).was_active
        assert node.metadata.state_machine.node(2).state == "active"
        assert (await node.balancing.drain_node(end, node.call())).was_active


async def test_a_move_that_names_a_drained_broker_is_refused_although_it_still_has_a_replica():
    """It would pin the partition to a broker that is to be emptied: two orders that contradict each other."""
    async with cluster() as node:
        await node.balancing.drain_node(pb.DrainBrokerRequest(broker_id=3), node.call())
        for named in ([3, 1, 2], [1, 2, 3], [4, 2, 3]):
            request = pb.MovePartitionRequest(topic="t", partition=0, broker_ids=named)
            refused = await refusal(node, node.placement.move_partition, request)
            assert refused.code == pb.FAILED_PRECONDITION
            assert "raftmq cluster undrain 3" in str(refused)


async def test_replicas_without_a_place_are_named():
    async with cluster() as node:
        node.connected = {2, 3}
        answer = await node.balancing.drain_node(pb.DrainBrokerRequest(broker_id=2, dry_run=True), node.call())
        assert answer.without_place_count == 2
        assert [(name.topic, name.partition) for name in answer.without_place] == [("t", 0), ("t", 1)]


async def test_a_drain_that_cannot_end_is_refused():
    async with cluster() as node:
        drain = node.balancing.drain_node
        unknown = await refusal(node, drain, pb.DrainBrokerRequest(broker_id=9))
        assert unknown.code == pb.UNKNOWN_BROKER
        await node._metadata(RemoveNode(4))
        removed = await refusal(node, drain, pb.DrainBrokerRequest(broker_id=4))
        assert "was removed" in str(removed)
        narrow = await refusal(node, drain, pb.DrainBrokerRequest(broker_id=3))
        assert narrow.code == pb.BROKER_IN_USE
        assert "add a broker first, or lower the replication factor" in str(narrow)


async def test_a_cluster_of_an_older_feature_level_moves_nothing():
    async with running() as node:
        topic = await node.topic()
        requests = (
            (node.balancing.drain_node, pb.DrainBrokerRequest(broker_id=1)),
            (node.balancing.rebalance, pb.RebalanceRequest()),
            (node.balancing.set_balancing, pb.SetBalancingRequest(moves_max=3)),
            (node.placement.move_partition, pb.MovePartitionRequest(topic=topic.name, broker_ids=[1])),
            (
                node.placement.set_replication_factor,
                pb.SetReplicationFactorRequest(topic=topic.name, replication_factor=1),
            ),
        )
        for method, request in requests:
            refused = await refusal(node, method, request)
            assert refused.code == pb.UNSUPPORTED_VERSION
            assert "raftmq cluster raise-level" in str(refused)


# ---------------------------------------------------------------------------------------------------------- balancing


async def test_a_rebalancing_is_planned_and_the_wish_is_kept():
    async with cluster() as node:
        node.connected = {2, 3, 4}
        planned = await node.balancing.rebalance(pb.RebalanceRequest(dry_run=True), node.call())
        assert node.metadata.state_machine.balancing.rebalance == ""
        assert planned.replica_move_count == len(planned.moves) == 1
        assert planned.moves[0].reason == pb.EVEN_REPLICAS
        await node.balancing.rebalance(pb.RebalanceRequest(), node.call())
        await node.balancing.rebalance(pb.RebalanceRequest(leaders_only=True), node.call())
        assert node.metadata.state_machine.balancing.rebalance == "replicas", "the larger wish stays"


async def test_a_wish_for_leaderships_does_not_end_a_larger_one_that_is_not_applied_yet():
    """It was compared with the wish in force only. With automatic balancing off, the larger order was lost and reported as carried out."""
    async with cluster() as node:
        machine = node.metadata.state_machine
        node.hold_commits = True
        larger = asyncio.create_task(node.balancing.rebalance(pb.RebalanceRequest(), node.call()))
        while node.metadata.core.last_index == machine.applied_index:
            await asyncio.sleep(0)
        smaller = asyncio.create_task(node.balancing.rebalance(pb.RebalanceRequest(leaders_only=True), node.call()))
        for _ in range(3):  # until the smaller one is planned, too
            await node.balancing.rebalance(pb.RebalanceRequest(dry_run=True), node.call())
        node.release_commits()
        await asyncio.gather(larger, smaller)
        assert machine.balancing.rebalance == "replicas"


async def test_a_wish_for_leaderships_ends_no_pin_while_a_larger_one_is_in_force():
    """It repeated the larger one, which ended the pins of partitions that were moved since."""
    async with cluster() as node:
        machine = node.metadata.state_machine
        await node.balancing.rebalance(pb.RebalanceRequest(), node.call())
        move = pb.MovePartitionRequest(topic="t", partition=0, broker_ids=[2, 1, 3])
        await node.placement.move_partition(move, node.call())
        answer = await node.balancing.rebalance(pb.RebalanceRequest(leaders_only=True), node.call())
        assert answer.metadata_revision == machine.revision
        assert machine.partition(1).is_pinned
        assert machine.balancing.rebalance == "replicas"


async def test_a_wish_for_leaderships_outlives_a_larger_one_that_is_just_ending():
    async with cluster() as node:
        machine = node.metadata.state_machine
        await node.balancing.rebalance(pb.RebalanceRequest(), node.call())
        node.hold_commits = True
        ended = asyncio.create_task(node._metadata(SetBalancing(rebalance="")))
        while node.metadata.core.last_index == machine.applied_index:
            await asyncio.sleep(0)
        smaller = asyncio.create_task(node.balancing.rebalance(pb.RebalanceRequest(leaders_only=True), node.call()))
        for _ in range(3):
            await node.balancing.rebalance(pb.RebalanceRequest(dry_run=True), node.call())
        node.release_commits()
        await asyncio.gather(ended, smaller)
        assert machine.balancing.rebalance != "", "a wish for leaderships, or for more, is in force"


async def test_the_settings_of_balancing_change_and_impossible_ones_are_refused():
    async with cluster() as node:
        change = node.balancing.set_balancing
        answer = await change(pb.SetBalancingRequest(auto_balance=False), node.call())
        assert (answer.auto_balance, answer.moves_max) == (False, 4)
        answer = await change(pb.SetBalancingRequest(moves_max=9, bytes_per_second=1 << 20), node.call())
        assert (answer.moves_max, answer.bytes_per_second) == (9, 1 << 20)
        assert node.metadata.state_machine.balancing == BalancingView(False, 9, "", 1 << 20)
        answer = await change(pb.SetBalancingRequest(bytes_per_second=0), node.call())
        assert answer.bytes_per_second == 0, "unlimited"
        assert "0 (unlimited)" in str(await refusal(node, change, pb.SetBalancingRequest(bytes_per_second=5)))
        assert "set auto_balance to false" in str(await refusal(node, change, pb.SetBalancingRequest(moves_max=0)))


async def test_moves_under_way_waiting_and_rebuilding_are_described():
    async with cluster() as node:
        machine = node.metadata.state_machine
        await node._metadata(SetReplicas(1, (1, 2, 4), machine.revision))
        await node._metadata(ReplaceReplica(2, machine.partition(2).replicas[1].replica_id))
        answer = await node.balancing.describe_moves(pb.DescribeMovesRequest(), node.call())
        (move,) = answer.moves
        assert (move.topic, move.partition, list(move.to_broker_ids)) == ("t", 0, [1, 2, 4])
        assert sorted(move.from_broker_ids) == [1, 2, 3]
        assert answer.rebuilding_count == 1
        assert (answer.auto_balance, answer.moves_max, answer.waiting_count) == (True, 4, 0)


async def test_a_partition_that_lost_its_replicas_is_rebuilt_and_does_not_wait_for_a_move_too():
    """It counted as both for good, and `raftmq cluster rebalance` waited for it without end."""
    async with cluster() as node:
        await node._metadata(CreateTopic("lost", "log", 1, {}, (PartitionPlan((4,)),)))
        await node._metadata(RemoveNode(4, is_forced=True))
        assert replicas(node, 3) == []
        answer = await node.balancing.describe_moves(pb.DescribeMovesRequest(), node.call())
        assert (len(answer.moves), answer.waiting_count, answer.rebuilding_count) == (0, 0, 1)


async def test_a_further_replica_that_no_broker_can_take_does_not_wait_for_its_turn():
    """It counted as waiting, and `raftmq cluster rebalance`, or a drain without another place, waited without end."""
    async with cluster() as node:
        await node._metadata(SetReplicationFactor(node.metadata.state_machine.topic_by_name("t").topic_id, 4))
        answer = await node.balancing.describe_moves(pb.DescribeMovesRequest(), node.call())
        assert (answer.waiting_count, answer.stuck_count) == (2, 0), "broker 4 can take them"
        node.connected = {2, 3}
        answer = await node.balancing.describe_moves(pb.DescribeMovesRequest(), node.call())
        assert (answer.waiting_count, answer.stuck_count) == (0, 2)


# ---------------------------------------------------------------------------------------------------------- one partition


async def test_a_partition_is_moved():
    async with cluster() as node:
        move = pb.MovePartitionRequest(topic="t", partition=0, broker_ids=[4, 1, 2], dry_run=True)
        planned = await node.placement.move_partition(move, node.call())
        assert replicas(node, 1) == [1, 2, 3]
        assert list(planned.move.to_broker_ids) == [4, 1, 2]
        move.dry_run = False
        await node.placement.move_partition(move, node.call())
        assert replicas(node, 1) == [4, 1, 2]
        move.broker_ids[:] = [1, 2, 3]
        again = await refusal(node, node.placement.move_partition, move, is_retriable=True)
        assert "is being moved or rebuilt already" in str(again)


@pytest.mark.parametrize(
    ("broker_ids", "code", "remedy"),
    [
        ([1, 2, 2], pb.INVALID_ARGUMENT, "named twice"),
        ([1, 2, 9], pb.UNKNOWN_BROKER, "no broker 9"),
        ([1, 2], pb.INVALID_REPLICATION_FACTOR, "raftmq topic alter t --replication-factor 2"),
        ([], pb.INVALID_REPLICATION_FACTOR, "name as many"),
    ],
)
async def test_impossible_replicas_of_a_partition_are_refused(broker_ids, code, remedy):
    async with cluster() as node:
        request = pb.MovePartitionRequest(topic="t", partition=0, broker_ids=broker_ids)
        refused = await refusal(node, node.placement.move_partition, request)
        assert refused.code == code
        assert remedy in str(refused)


async def test_a_broker_that_cannot_take_a_replica_is_refused():
    async with cluster() as node:
        move, request = node.placement.move_partition, pb.MovePartitionRequest(topic="t", broker_ids=[1, 2, 4])
        node.connected = {2, 3}
        down = await refusal(node, move, request)
        assert (down.code, "start it first" in str(down)) == (pb.FAILED_PRECONDITION, True)
        node.connected = {2, 3, 4}
        await node.balancing.drain_node(pb.DrainBrokerRequest(broker_id=4), node.call())
        draining = await refusal(node, move, request)
        assert (draining.code, "raftmq cluster undrain 4" in str(draining)) == (pb.FAILED_PRECONDITION, True)
        await node.balancing.drain_node(pb.DrainBrokerRequest(broker_id=4, is_ended=True), node.call())
        await node._metadata(CreateTopic("u", "log", 2, {}, (PartitionPlan((1, 4)),)))
        node.leadership.claim(GroupId(3), Term(9), NodeId(1))
        lost = node.metadata.state_machine.partition(3).replicas[1].replica_id
        await node._metadata(ReplaceReplica(3, lost))
        rebuilding = await refusal(node, move, request)
        assert (rebuilding.code, "rebuilds replicas" in str(rebuilding)) == (pb.FAILED_PRECONDITION, True)


async def test_a_move_without_a_healthy_majority_throughout_is_refused():
    async with cluster() as node:
        node.connected = {4}
        request = pb.MovePartitionRequest(topic="t", broker_ids=[1, 2, 4])
        refused = await refusal(node, node.placement.move_partition, request, is_retriable=True)
        assert "no healthy majority" in str(refused)
        node.leaderless = {GroupId(1)}
        refused = await refusal(node, node.placement.move_partition, request, is_retriable=True)
        assert "no leader" in str(refused)


async def test_another_replication_factor_names_the_changes():
    async with cluster() as node:
        change = node.placement.set_replication_factor
        fewer = await change(pb.SetReplicationFactorRequest(topic="t", replication_factor=1, dry_run=True), node.call())
        assert fewer.move_count == len(fewer.moves) == 2
        assert all(len(move.to_broker_ids) == 1 for move in fewer.moves)
        assert {move.reason for move in fewer.moves} == {pb.REPLICATION_FACTOR}
        assert node.metadata.state_machine.topic_by_name("t").replication_factor == 3
        more = await change(pb.SetReplicationFactorRequest(topic="t", replication_factor=4), node.call())
        assert [sorted(move.to_broker_ids) for move in more.moves] == [[1, 2, 3, 4]] * 2
        assert node.metadata.state_machine.topic_by_name("t").replication_factor == 4
        for impossible in (0, 5, 10):
            request = pb.SetReplicationFactorRequest(topic="t", replication_factor=impossible)
            assert (await refusal(node, change, request)).code == pb.INVALID_REPLICATION_FACTOR


async def test_a_smaller_replication_factor_is_planned_beside_the_event_loop(monkeypatch):
    """The plan for a topic of eight thousand partitions held up the broker for half a second, which counts as a stall."""
    planned_in: list[threading.Thread] = []
    plan = Layout.plan

    def noted(self: Layout, *, is_automatic: bool) -> BalancePlan:
        planned_in.append(threading.current_thread())
        return plan(self, is_automatic=is_automatic)

    monkeypatch.setattr(Layout, "plan", noted)
    async with cluster() as node:
        request = pb.SetReplicationFactorRequest(topic="t", replication_factor=1, dry_run=True)
        assert (await node.placement.set_replication_factor(request, node.call())).move_count == 2
    assert planned_in
    assert threading.current_thread() not in planned_in


# ---------------------------------------------------------------------------------------------------------- leadership


async def test_the_leadership_of_a_partition_is_asked_of_its_leader():
    async with cluster() as node:
        node.lose_leadership(GroupId(2), to=NodeId(2))
        node.forwarder.answer = pb.TransferLeaderResponse(leader_broker_id=3, leader_epoch=10)
        request = pb.TransferLeaderRequest(topic="t", partition=1, broker_id=3)
        answer = await node.placement.transfer_leader(request, node.call())
        assert answer.leader_broker_id == 3
        assert node.forwarder.calls == [(2, "/raftmq.v1.Admin/TransferLeader", request)]


async def test_a_leadership_that_cannot_be_transferred_is_refused():
    async with cluster() as node:
        topic = await node.topic("single")
        transfer = node.placement.transfer_leader
        request = pb.TransferLeaderRequest(topic=topic.name, partition=0, broker_id=2)
        elsewhere = await refusal(node, transfer, request)
        assert (elsewhere.code, "move it there first" in str(elsewhere)) == (pb.FAILED_PRECONDITION, True)
        request.broker_id = 9
        assert (await refusal(node, transfer, request)).code == pb.UNKNOWN_BROKER
        request.partition = 5
        assert (await refusal(node, transfer, request)).code == pb.UNKNOWN_PARTITION
        request.partition, request.broker_id = 0, 1
        assert (await transfer(request, node.call())).leader_broker_id == 1, "it leads already"
        gone = pb.TransferLeaderRequest(topic="t", partition=1)
        node.lose_leadership(GroupId(2))
        node.leaderless = {GroupId(2)}
        assert (await refusal(node, transfer, gone, is_retriable=True)).code == pb.NO_LEADER


# ---------------------------------------------------------------------------------------------------------- pins, moves that stick


async def test_a_moved_partition_is_pinned_and_unpinned():
    async with cluster() as node:
        move = node.placement.move_partition
        await move(pb.MovePartitionRequest(topic="t", partition=0, broker_ids=[2, 1, 3]), node.call())
        assert node.metadata.state_machine.partition(1).is_pinned
        for leaders_only, count in ((False, 1), (True, 0)):
            request = pb.RebalanceRequest(dry_run=True, leaders_only=leaders_only)
            assert (await node.balancing.rebalance(request, node.call())).pin_count == count
        for had_no_pin in (False, True):
            unpin = pb.MovePartitionRequest(topic="t", partition=0, unpin=True)
            assert (await move(unpin, node.call())).had_no_pin is had_no_pin
            assert not node.metadata.state_machine.partition(1).is_pinned
        assert replicas(node, 1) == [2, 1, 3]
        both = pb.MovePartitionRequest(topic="t", partition=0, broker_ids=[1, 2, 3], unpin=True)
        assert "not both" in str(await refusal(node, move, both))


async def test_a_move_that_is_reported_as_stuck_is_given_up_once():
    async with cluster() as node:
        machine = node.metadata.state_machine
        await node._metadata(SetReplicas(1, (1, 2, 4), machine.revision))
        stuck = peer_pb.ReplicaReport(
            group_id=1, replica_id=machine.partition(1).replicas[2].replica_id, reason="no progress"
        )
        report = peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", stuck=[stuck])
        await node.nodes.report_replicas(report, node.call())
        assert replicas(node, 1) == [1, 2, 3]
        revision = machine.partition(1).revision
        await node.nodes.report_replicas(report, node.call())
        assert machine.partition(1).revision == revision, "a repeated report must not give up anything else"
        (described,) = (await node.balancing.describe_moves(pb.DescribeMovesRequest(), node.call())).given_up
        assert (described.topic, described.partition, list(described.to_broker_ids)) == ("t", 0, [4])
        assert described.reason == "no progress"


async def test_a_further_replica_that_is_stuck_goes_when_the_factor_is_lowered_again():
    """It stayed until its broker returned or was removed, and the partition could not be moved."""
    async with cluster() as node:
        machine = node.metadata.state_machine
        await node._metadata(SetReplicationFactor(1, 4))
        await node._metadata(SetReplicas(1, (1, 2, 3, 4), machine.revision))
        stuck = peer_pb.ReplicaReport(group_id=1, replica_id=machine.partition(1).replicas[3].replica_id)
        report = peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", stuck=[stuck])
        await node.nodes.report_replicas(report, node.call())
        assert replicas(node, 1) == [1, 2, 3, 4], "there is no other broker"
        await node._metadata(SetReplicationFactor(1, 3))
        await node.nodes.report_replicas(report, node.call())
        assert replicas(node, 1) == [1, 2, 3]


async def test_a_late_report_confirms_and_undoes_no_newer_decision():
    """A replica had left, came back when the move was given up, and began to leave again: its files were deleted while it voted."""
    async with cluster() as node:
        machine = node.metadata.state_machine

        async def move_to_4() -> peer_pb.ReplicaReport:
            await node._metadata(SetReplicas(1, (1, 2, 4), machine.revision))
            partition = machine.partition(1)
            return peer_pb.ReplicaReport(
                group_id=1, replica_id=partition.retiring[0].replica_id, revision=partition.revision
            )

        early = await move_to_4()
        newcomer = machine.partition(1).replicas[2].replica_id
        await node._metadata(RevertReplicas(1, machine.revision, "no progress"))
        await node._metadata(RemoveReplica(1, newcomer))
        late = await move_to_4()
        assert late.replica_id == early.replica_id
        stuck = peer_pb.ReplicaReport(
            group_id=1, replica_id=machine.partition(1).replicas[2].replica_id, revision=early.revision
        )
        before = machine.partition(1)
        report = peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", left=[early], stuck=[stuck])
        await node.nodes.report_replicas(report, node.call())
        assert machine.partition(1) == before
        report = peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", left=[late])
        await node.nodes.report_replicas(report, node.call())
        assert machine.partition(1).retiring == ()


async def test_a_decision_that_changes_while_a_report_is_carried_out_is_not_taken_for_the_reported_one(monkeypatch):
    """A report of two thousand replicas takes seconds. Its last ones counted although their moves were undone and ordered again."""
    async with cluster() as node:
        machine = node.metadata.state_machine

        async def move_to_4(group_id: int) -> peer_pb.ReplicaReport:
            await node._metadata(SetReplicas(group_id, (1, 2, 4), machine.revision))
            partition = machine.partition(group_id)
            return peer_pb.ReplicaReport(
                group_id=group_id, replica_id=partition.retiring[0].replica_id, revision=partition.revision
            )

        left = [await move_to_4(1), await move_to_4(2)]
        execute = node.nodes.leader.execute

        async def execute_and_change(*arguments: Any) -> object:
            monkeypatch.setattr(node.nodes.leader, "execute", execute)
            done = await execute(*arguments)
            newcomer = machine.partition(2).replicas[2].replica_id
            await node._metadata(RevertReplicas(2, machine.revision, "no progress"))
            await node._metadata(RemoveReplica(2, newcomer))
            await move_to_4(2)
            return done

        monkeypatch.setattr(node.nodes.leader, "execute", execute_and_change)
        report = peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", left=left)
        await node.nodes.report_replicas(report, node.call())
        assert machine.partition(1).retiring == ()
        assert [one.replica_id for one in machine.partition(2).retiring] == [left[1].replica_id]


async def test_a_report_of_two_replicas_of_a_group_is_void_for_the_second_once_the_order_is_a_newer_one(monkeypatch):
    """Whatever had happened to a group after the report's first change of it counted as that change."""
    async with cluster() as node:
        machine = node.metadata.state_machine

        async def keep_1_and_4() -> None:
            await node._metadata(SetReplicas(1, (1, 4), machine.revision))

        await keep_1_and_4()
        first = machine.partition(1)
        left = [
            peer_pb.ReplicaReport(group_id=1, replica_id=one.replica_id, revision=first.revision)
            for one in reversed(first.retiring)
        ]
        execute = node.nodes.leader.execute

        async def execute_and_change(*arguments: Any) -> object:
            monkeypatch.setattr(node.nodes.leader, "execute", execute)
            done = await execute(*arguments)
            newcomer = machine.partition(1).replicas[1].replica_id
            await node._metadata(RevertReplicas(1, machine.revision, "no progress"))
            await node._metadata(RemoveReplica(1, newcomer))
            await keep_1_and_4()
            return done

        monkeypatch.setattr(node.nodes.leader, "execute", execute_and_change)
        report = peer_pb.ReportReplicasRequest(broker_id=1, uuid="uuid-1", left=left)
        await node.nodes.report_replicas(report, node.call())
        assert [one.replica_id for one in machine.partition(1).retiring] == [left[1].replica_id]
