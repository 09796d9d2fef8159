"""Whole nodes: a broker that joins fills up, a draining one empties, and leaderships go to the preferred leaders."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.node import Node
from raftmq.broker.replica.commands import execute
from raftmq.broker.services.call import Call
from raftmq.fsm.metadata_commands import (
    Done,
    MetadataCommand,
    RemoveNode,
    SetBalancing,
    SetNodeState,
    SetReplicas,
    SetReplicationFactor,
    encode_command,
)
from raftmq.fsm.metadata_views import PartitionView
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

from tests.support.broker.whole_nodes import WAIT_SECONDS, Nodes, three_voters

STABLE_SECONDS = 0.3


async def serve(nodes: Nodes, name: str, join: tuple[str, ...] = (), **settings: object) -> Node:
    settings |= {"join": join} if join else {"bootstrap": True}
    return await nodes.serve(name, stable_seconds=STABLE_SECONDS, **settings)


async def cluster_of(nodes: Nodes, count: int) -> list[Node]:
    first = await serve(nodes, "one")
    others = [await serve(nodes, name, (first.addresses.peer,)) for name in ("two", "three", "four")[: count - 1]]
    return [first, *others]


async def new_topic(node: Node, partitions: int, replication_factor: int) -> None:
    create = pb.CreateTopicRequest(name="flights", partitions=partitions, replication_factor=replication_factor)
    await node.grpc.admin.create_topic(create, Call(node.loop.time() + 10))


async def leader(running: list[Node]) -> Node:
    """Return the node that leads metadata, after an election if there is one on a busy machine."""
    await until(lambda: any(node.view.metadata.is_leader for node in running))
    return next(node for node in running if node.view.metadata.is_leader)


async def change(running: list[Node], command: MetadataCommand) -> None:
    """Change metadata on its leader, and again on the next one if an election takes the leadership away."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            node = await leader(running)
            with contextlib.suppress(RequestError):
                await execute(node.view.metadata, encode_command(command), Done, node.loop.time() + 10)
                return


def partitions(node: Node) -> list[PartitionView]:
    machine = node.view.metadata.state_machine
    found = (machine.partition(group_id) for topic in machine.topics() for group_id in topic.group_ids)
    return [partition for partition in found if partition is not None]


def counts(node: Node) -> list[int]:
    machine = node.view.metadata.state_machine
    return [machine.replica_count_of_node(one.node_id) for one in machine.nodes()]


def is_settled(node: Node) -> bool:
    return not node.view.metadata.state_machine.unsettled_partitions()


def are_preferred(node: Node) -> bool:
    return all(
        node.view.leadership.get(GroupId(one.group_id)).node_id == one.replicas[0].node_id for one in partitions(node)
    )


def has_replicas(node: Node, count: int) -> bool:
    return is_settled(node) and all(len(one.replicas) == count for one in partitions(node))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_broker_that_joins_fills_up_by_itself(nodes: Nodes) -> None:
    one, *others = await cluster_of(nodes, 3)
    await new_topic(one, 8, 2)
    fourth = await serve(nodes, "four", (one.addresses.peer,))
    await until(lambda: counts(fourth) == [4, 4, 4, 4] and is_settled(fourth))
    await until(lambda: are_preferred(fourth))
    assert len(others) == 2


async def test_a_broker_that_joins_stays_empty_while_balancing_is_paused(nodes: Nodes) -> None:
    one, two = await cluster_of(nodes, 2)
    await new_topic(one, 4, 1)
    await change([one, two], SetBalancing(auto_balance=False))
    third = await serve(nodes, "three", (one.addresses.peer,))
    await until(lambda: third.view.stability.is_stable(3))
    await asyncio.sleep(2 * STABLE_SECONDS)
    assert counts(one) == [2, 2, 0]
    await change([one, two, third], SetBalancing(rebalance="replicas"))
    await until(lambda: sorted(counts(one)) == [1, 1, 2] and is_settled(one))
    await until(lambda: not one.view.metadata.state_machine.balancing.rebalance)


async def test_a_broker_still_knows_the_leader_of_a_partition_that_moved_away(nodes: Nodes) -> None:
    """It told clients that there is none, and its controller took the partition for one without a leader, until the leader repeated its claim."""
    running = await cluster_of(nodes, 3)
    one = running[0]
    await new_topic(one, 1, 2)
    (partition,) = partitions(one)
    group_id = GroupId(partition.group_id)
    leaving = running[partition.replicas[1].node_id - 1]
    stays, comes = partition.replicas[0].node_id, 6 - sum(replica.node_id for replica in partition.replicas)
    await change(running, SetReplicas(group_id, (stays, comes), partition.revision))
    await until(lambda: group_id not in leaving.engine.replicas)
    assert leaving.view.leadership.get(group_id).node_id in (stays, comes)


async def test_a_partition_is_moved_elsewhere_when_the_broker_that_was_to_get_its_only_replica_is_removed(
    nodes: Nodes,
) -> None:
    """No broker was wanted to hold it any more. It was never moved, counted as a move without end, and kept its broker from being emptied."""
    running = await cluster_of(nodes, 4)
    one = running[0]
    await three_voters(one)
    await new_topic(one, 1, 1)
    await change(running, SetBalancing(auto_balance=False))
    (partition,) = partitions(one)
    holder = running[partition.replicas[0].node_id - 1]
    gone = running[3] if holder is not running[3] else running[2]
    await nodes.stop(gone)
    running.remove(gone)
    await change(running, SetReplicas(partition.group_id, (gone.view.node_id,), partition.revision))
    await until(lambda: not any(node.view.is_connected(gone.view.node_id) for node in running))
    await change(running, RemoveNode(gone.view.node_id, is_forced=True))
    await until(lambda: has_replicas(one, 1) and partitions(one)[0].replicas[0].node_id != holder.view.node_id)


async def test_a_wish_to_rebalance_ends_although_partitions_have_lost_their_majority(nodes: Nodes) -> None:
    """It stood until they were recovered or deleted, and balanced all the time although automatic balancing was off."""
    one, two, third = running = await cluster_of(nodes, 3)
    await three_voters(one)
    await new_topic(one, 3, 1)
    await change(running, SetBalancing(auto_balance=False))
    await nodes.stop(third)
    running.remove(third)
    await until(lambda: not one.view.is_connected(third.view.node_id) and not two.view.is_connected(third.view.node_id))
    await change(running, RemoveNode(third.view.node_id, is_forced=True))
    assert not is_settled(await leader(running))
    await change(running, SetBalancing(rebalance="replicas"))
    machines = [node.view.metadata.state_machine for node in running]
    await until(lambda: not any(machine.balancing.rebalance for machine in machines))
    assert not is_settled(one)


async def test_a_draining_broker_empties_and_hands_its_leaderships_and_its_vote_over(nodes: Nodes) -> None:
    running = await cluster_of(nodes, 4)
    await three_voters(running[0])
    await new_topic(running[0], 6, 3)
    drained = await leader(running)
    node_id = drained.view.node_id
    await change(running, SetBalancing(auto_balance=False))
    await change(running, SetNodeState(node_id, "draining"))
    await until(lambda: drained.view.metadata.state_machine.replica_count_of_node(node_id) == 0)
    await until(lambda: not drained.view.metadata.is_leader)
    others = [node for node in running if node is not drained]
    metadata = (await leader(others)).view.metadata
    await until(lambda: drained.view.metadata.replica_id not in metadata.core.membership.voters)
    assert len(metadata.core.membership.voters) == 3
    assert all(len(one.replicas) == 3 for one in partitions(others[0]))


async def test_a_topic_gets_more_and_fewer_replicas(nodes: Nodes) -> None:
    running = await cluster_of(nodes, 3)
    await new_topic(running[0], 4, 1)
    (topic,) = running[0].view.metadata.state_machine.topics()
    for replication_factor in (3, 1):
        await change(running, SetReplicationFactor(topic.topic_id, replication_factor))
        await until(partial(has_replicas, running[0], replication_factor))


async def test_leaderships_return_to_a_broker_that_was_restarted_and_no_replica_moves(nodes: Nodes) -> None:
    running = await cluster_of(nodes, 3)
    await three_voters(running[0])
    await new_topic(running[0], 6, 3)
    await until(lambda: are_preferred(running[0]))
    before = [one.replicas for one in partitions(running[0])]
    await nodes.stop(running[2])
    await until(lambda: not are_preferred(running[0]))
    await asyncio.sleep(2 * STABLE_SECONDS)
    running[2] = await nodes.serve("three", stable_seconds=STABLE_SECONDS)
    await until(lambda: are_preferred(running[2]))
    assert [one.replicas for one in partitions(running[2])] == before
