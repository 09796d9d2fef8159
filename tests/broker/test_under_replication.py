"""Partitions that one more failure would hurt are counted from the moment a replica is down, silent, damaged or behind."""

from __future__ import annotations

import asyncio

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.replication_health import lagging_voters
from raftmq.broker.node import Node
from raftmq.broker.services.call import Call
from raftmq.broker.services.damage_reporter import DamageReporter
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import GroupId, NodeId, ReplicaId

from tests.broker.cluster.test_reconciler import GROUP, Desired, Host
from tests.support.broker.engine_cluster import EngineCluster, data
from tests.support.broker.waiting import until
from tests.support.broker.whole_nodes import WAIT_SECONDS, Nodes, three_voters

# ---------------------------------------------------------------------------------------------------------- engines


async def whole_group(cluster):
    """Return a leader whose followers all keep up, with its reconciler, and a follower."""
    cluster.create_group(GROUP)
    leader = await cluster.leader(GROUP)
    await leader.propose([data(1)])[1]
    host = Host(cluster, leader.replica_id, Desired(1, 2, 3))
    await until(lambda: not host.replication.under_replicated())
    return leader, host, next(n for n in (1, 2, 3) if n != leader.replica_id)


async def test_a_silent_replica_behind_a_whole_connection_counts():
    async with EngineCluster() as cluster:
        leader, host, silent = await whole_group(cluster)
        cluster.nodes[silent].engine.remove_group(GROUP)
        await until(lambda: host.replication.under_replicated() == [GROUP])
        assert silent not in host.replication.in_sync(leader)
        assert host.is_connected(silent)


async def test_a_replica_reported_as_damaged_counts_immediately():
    async with EngineCluster() as cluster:
        leader, host, damaged = await whole_group(cluster)
        host.reported_damage.record(ReplicaKey(GROUP, damaged))
        assert host.replication.under_replicated() == [GROUP]
        assert host.replication.in_sync(leader) == {1, 2, 3} - {damaged}


async def test_after_a_lost_connection_a_replica_lags_until_it_answers():
    """A broker that returns within four heartbeats missed only three of them, but is another process."""
    async with EngineCluster() as cluster:
        leader, _, peer = await whole_group(cluster)
        engine = cluster.nodes[leader.replica_id].engine
        for change in (engine.on_peer_down, engine.on_peer_up):
            change(NodeId(peer))
            assert lagging_voters(leader) == {peer}
            await until(lambda: not lagging_voters(leader))
        engine.on_peer_up(NodeId(leader.replica_id))
        assert not lagging_voters(leader), "the leader does not count itself as lagging"


# ---------------------------------------------------------------------------------------------------------- whole nodes


async def three_nodes(nodes: Nodes) -> tuple[Node, Node, Node]:
    first = await nodes.serve("one", bootstrap=True)
    second = await nodes.serve("two", join=(first.addresses.peer,))
    return first, second, await nodes.serve("three", join=(first.addresses.peer,))


async def new_topic(node: Node) -> list[GroupId]:
    create = pb.CreateTopicRequest(name="flights", partitions=3, replication_factor=3)
    topic = (await node.grpc.admin.create_topic(create, Call(node.loop.time() + 10))).topic
    return [GroupId(partition.group_id) for partition in topic.partitions]


async def description(node: Node) -> pb.DescribeClusterResponse:
    call = Call(node.loop.time() + 5)
    return await node.grpc.admin.describe_cluster(pb.DescribeClusterRequest(with_health=True), call)


def short_of_replicas(answer: pb.DescribeClusterResponse) -> int:
    return sum(broker.health.under_replicated.count for broker in answer.brokers)


def is_whole(answer: pb.DescribeClusterResponse) -> bool:
    healths = [broker.health for broker in answer.brokers]
    troubles = (answer.health.leaderless.count, answer.health.unknown.count, len(answer.health.metadata_voters_behind))
    return (
        answer.health.is_metadata_led
        and not any(troubles)
        and all(broker.HasField("health") for broker in answer.brokers)
        and not any(
            list(h.not_ready) or h.under_replicated.count or h.quarantined.count or h.not_served.count for h in healths
        )
    )


async def until_whole(node: Node) -> None:
    async with asyncio.timeout(WAIT_SECONDS):
        while not is_whole(await description(node)):
            await asyncio.sleep(0.05)


def knows_that_the_third_is_away(answer: pb.DescribeClusterResponse) -> bool:
    is_known = [broker.is_connected for broker in answer.brokers] == [True, True, False]
    return is_known and short_of_replicas(answer) == 3 and list(answer.health.metadata_voters_behind) == [3]


async def test_a_cluster_whose_broker_is_away_is_short_of_replicas_until_that_one_keeps_up(nodes):
    first, _, third = await three_nodes(nodes)
    await new_topic(first)
    await until_whole(first)
    await nodes.stop(third)
    async with asyncio.timeout(WAIT_SECONDS):
        while not knows_that_the_third_is_away(await description(first)):
            await asyncio.sleep(0.05)
    await nodes.serve("three")
    await until_whole(first)


async def test_a_damaged_replica_of_a_restarted_broker_counts_without_a_gap(nodes, monkeypatch):
    """Its broker is connected, soon ready, and not behind, because nothing is written. An operator who sees no under-replicated
    partition may stop the next broker.
    """
    first, second, third = await three_nodes(nodes)
    damaged, *_ = await new_topic(first)
    await until_whole(first)
    third.registry.quarantine(third.partitions[damaged].replica.key, "a checksum")
    await nodes.stop(third)
    # nobody hears of it, so nobody makes another one, which would be counted because it does not vote yet
    monkeypatch.setattr(DamageReporter, "report_damage", refuse)
    await until(
        lambda: damaged in first.view.replication.under_replicated() + second.view.replication.under_replicated()
    )
    third = nodes.begin("three")
    await until(lambda: first.view.is_connected(NodeId(3)))
    for _ in range(100):
        await asyncio.sleep(0.01)
        assert damaged in first.view.replication.under_replicated() + second.view.replication.under_replicated()
    await until(lambda: not third.standing.not_ready_reasons())
    assert third.view.quarantined()


async def refuse(*arguments: object) -> None:
    raise RequestError(pb.NO_LEADER, "not now")


async def test_a_metadata_voter_that_is_away_counts_where_the_metadata_is_led(nodes):
    first, second, third = await three_nodes(nodes)
    await three_voters(first)
    await until(lambda: not first.view.replication.metadata_voters_behind())
    await nodes.stop(third)
    await until(
        lambda: (
            first.view.replication.metadata_voters_behind() + second.view.replication.metadata_voters_behind()
            == [NodeId(3)]
        )
    )
    assert ReplicaId(third.view.metadata.replica_id) in first.view.metadata.core.membership.voters
