"""Removing a node refuses some cases with precise messages, gives up its replicas otherwise, and reports the consequences."""

from __future__ import annotations

import dataclasses

import pytest
from raftmq.broker.base.request_error import RETRIABLE_CODES, RequestError
from raftmq.fsm.metadata_commands import CreateTopic, PartitionPlan, SetMetadataMembership
from raftmq.proto import queue_pb2 as pb
from raftmq.types import METADATA_GROUP_ID, NodeId

from tests.support.broker.harness import Harness, running


async def four_nodes(node: Harness) -> None:
    """Create nodes 1 to 3, which vote on metadata, node 4, which holds nothing, and a topic: 0 on 1, 2, 3; 1 on 2, 3; 2 on 3 alone."""
    for number in (2, 3, 4):
        await node.register(number, f"uuid-{number}")
    plans = (PartitionPlan((1, 2, 3)), PartitionPlan((2, 3)), PartitionPlan((3,)))
    await node._metadata(CreateTopic("t", "log", 3, {}, plans))
    voters = tuple(sorted(node.metadata.state_machine.node(n).metadata_replica_id for n in (1, 2, 3)))
    await node._metadata(SetMetadataMembership(voters, node.metadata.state_machine.revision))
    node.connected = {2, 3, 4}


async def remove(node: Harness, node_id: int, *, force: bool = False) -> pb.RemoveBrokerResponse:
    return await node.removal.remove_node(pb.RemoveBrokerRequest(broker_id=node_id, force=force), node.call())


async def refusal(node: Harness, node_id: int, *, force: bool = False) -> RequestError:
    before = node.metadata.state_machine.revision
    with pytest.raises(RequestError) as caught:
        await remove(node, node_id, force=force)
    assert node.metadata.state_machine.revision == before, "refused before anything was proposed"
    assert caught.value.code not in RETRIABLE_CODES, "clients would repeat it until their deadline"
    return caught.value


async def test_a_dead_node_is_given_up_with_its_replicas_and_its_vote():
    async with running() as node:
        await four_nodes(node)
        gone = node.metadata.state_machine.node(3)
        node.connected = {2, 4}
        answer = await remove(node, 3, force=True)
        machine = node.metadata.state_machine
        assert answer.replica_count == 3
        assert answer.metadata_revision == machine.revision
        assert [(name.topic, name.partition) for name in answer.without_majority] == [("t", 1), ("t", 2)]
        assert answer.without_majority_count == 2
        assert machine.node(3).state == "removed"
        assert machine.is_uuid_retired("uuid-3")
        assert gone.metadata_replica_id not in machine.metadata_voters
        assert [[r.node_id for r in machine.partition(g).replicas] for g in (1, 2, 3)] == [[1, 2], [2], []]
        assert all(machine.partition(g).retiring[0].is_lost for g in (1, 2, 3))


async def test_partitions_without_a_majority_do_not_prevent_the_removal_of_a_dead_node():
    async with running() as node:
        await four_nodes(node)
        node.connected = {4}
        answer = await remove(node, 3, force=True)
        assert answer.without_majority_count == 3


async def test_a_running_node_is_not_removed_even_by_force():
    async with running() as node:
        await four_nodes(node)
        for number in (1, 3, 4):
            refused = await refusal(node, number, force=True)
            assert refused.code == pb.BROKER_IN_USE
            assert f"broker {number} is running at node-{number}:9400: if you mean this one, stop it first" in str(
                refused
            )


async def test_a_node_that_lost_its_connection_a_moment_ago_is_not_removed_by_force(monkeypatch):
    """A connection that breaks is made again within a moment, and a removed data directory is refused for good."""
    async with running() as node:
        await four_nodes(node)
        node.connected = {2, 4}
        with monkeypatch.context() as patch:
            patch.setattr(node, "unreachable_seconds", lambda _node_id: 0.1)
            with pytest.raises(RequestError) as caught:
                await remove(node, 3, force=True)
        assert caught.value.code == pb.NOT_READY
        assert node.metadata.state_machine.node(3).state == "active"
        await remove(node, 3, force=True)


async def test_without_force_a_node_must_hold_nothing():
    async with running() as node:
        await four_nodes(node)
        node.connected = {2, 4}
        refused = await refusal(node, 3)
        assert refused.code == pb.BROKER_IN_USE
        assert "broker 3 still holds 3 partition replicas and votes on metadata" in str(refused)
        assert "--force" in str(refused)
        assert "broker 1 still holds 1 partition replica and" in str(await refusal(node, 1))
        answer = await remove(node, 4)
        assert (answer.replica_count, answer.without_majority_count) == (0, 0)
        assert node.metadata.state_machine.node(4).state == "removed"


async def test_a_node_that_only_votes_is_named_as_such():
    async with running() as node:
        await node.register(2, "uuid-2")
        voters = tuple(node.metadata.state_machine.node(n).metadata_replica_id for n in (1, 2))
        await node._metadata(SetMetadataMembership(voters, node.metadata.state_machine.revision))
        assert "broker 2 still votes on metadata:" in str(await refusal(node, 2))


async def test_a_node_whose_vote_is_not_wanted_any_more_stays_until_the_group_does_not_count_it():
    """Its successor had to catch up. Without the removed vote, the loss of one more voter was the loss of the majority."""
    async with running() as node:
        await node.register(2, "uuid-2")
        core, voter = node.metadata.core, node.metadata.state_machine.node(2).metadata_replica_id
        counted = core.membership
        core.membership = dataclasses.replace(counted, voters=tuple(sorted({*counted.voters, voter})))
        assert "broker 2 still votes on metadata:" in str(await refusal(node, 2))
        core.membership = counted
        await remove(node, 2)


async def test_the_last_metadata_voter_cannot_be_removed():
    async with running() as node:
        await node.register(2, "uuid-2")
        for force in (False, True):
            refused = await refusal(node, 1, force=force)
            assert refused.code == pb.BROKER_IN_USE
            assert "the only metadata voter: add brokers" in str(refused)


async def test_unknown_and_removed_nodes_have_different_errors():
    async with running() as node:
        await four_nodes(node)
        assert (await refusal(node, 9)).code == pb.UNKNOWN_BROKER
        assert "no broker 9" in str(await refusal(node, 9, force=True))
        await remove(node, 4)
        again = await refusal(node, 4, force=True)
        assert again.code == pb.UNKNOWN_BROKER
        assert "broker 4 was already removed" in str(again)


async def test_another_node_forwards_the_request():
    async with running() as node:
        await four_nodes(node)
        node.lose_leadership(METADATA_GROUP_ID, NodeId(2))
        node.forwarder.answer = pb.RemoveBrokerResponse(replica_count=5)
        assert (await remove(node, 3, force=True)).replica_count == 5
        ((node_id, path, request),) = node.forwarder.calls
        assert (node_id, path) == (2, "/raftmq.v1.Admin/RemoveBroker")
        assert request == pb.RemoveBrokerRequest(broker_id=3, force=True)
