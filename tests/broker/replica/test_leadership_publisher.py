"""The publisher tells whether a group has a leader. The last known leader is only a hint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from raftmq.broker.base.limits import Timing
from raftmq.broker.peers.codec import decode_leadership
from raftmq.broker.replica.leadership_publisher import LeadershipPublisher
from raftmq.broker.replica.leadership_table import LeadershipTable
from raftmq.raft.ready import Role, RoleChange
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId, ReplicaId, Term

GROUP = GroupId(7)
LEADER = NodeId(2)
TIMING = Timing()
GRACE = 2 * TIMING.election_seconds(GROUP)


class World:
    """A publisher on node 1, with a clock and connections that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0
        self.connected = {2, 3}
        self.sent: list[tuple[int, list[tuple[int, int, int]]]] = []
        self.replicas: dict[GroupId, Any] = {}
        self.table = LeadershipTable(lambda group_id: None, str)
        self.publisher = LeadershipPublisher(
            cast("Any", SimpleNamespace(time=lambda: self.now)), self.table, self.replicas, cast("Any", self), TIMING
        )
        self.publisher.node_id = NodeId(1)
        self.publisher.peers = (NodeId(2), NodeId(3))

    def is_connected(self, node_id):
        return node_id in self.connected

    def send(self, node_id, channel, frame_type, body):
        self.sent.append((node_id, list(decode_leadership(memoryview(b"".join(body))))))
        return True

    def flush(self): ...

    def host(self, *, leader_id=0, role=Role.FOLLOWER, leaderless_since=None):
        core = SimpleNamespace(leader_id=leader_id, role=role, term=Term(3))
        replica = SimpleNamespace(
            group_id=GROUP, core=core, leaderless_since=leaderless_since, node_of=lambda voter: NodeId(voter)
        )
        self.replicas[GROUP] = replica
        return replica

    def lose(self, node_id):
        self.connected.discard(node_id)
        self.publisher.on_peer_down(NodeId(node_id))


@pytest.fixture
def world() -> World:
    made = World()
    made.publisher.on_rows(LEADER, [(GROUP, 3, LEADER)])
    return made


def test_a_claimed_group_is_led_and_an_unclaimed_one_is_not(world):
    assert world.publisher.is_led(GROUP)
    assert not world.publisher.is_led(GroupId(8))


def test_an_unreachable_leader_expires_after_some_election_timeouts_but_stays_the_hint(world):
    """A dead leader withdraws nothing, and without a majority no broker ever claims a higher term."""
    world.now += 50
    world.lose(LEADER)
    world.now += GRACE
    assert world.publisher.is_led(GROUP)
    world.now += 0.1
    assert not world.publisher.is_led(GROUP)
    assert world.table.get(GROUP).node_id == LEADER


def test_the_metadata_leader_expires_by_its_own_shorter_timeouts(world):
    world.publisher.on_rows(LEADER, [(METADATA_GROUP_ID, 3, LEADER)])
    world.lose(LEADER)
    world.now += 2 * TIMING.election_seconds(METADATA_GROUP_ID) + 0.1
    assert not world.publisher.is_led(METADATA_GROUP_ID)
    assert world.publisher.is_led(GROUP)


def test_a_claim_of_a_node_never_reached_since_the_start_expires_too(world):
    world.table.claim(GroupId(9), Term(1), NodeId(5))
    assert world.publisher.is_led(GroupId(9))
    world.now += GRACE + 0.1
    assert not world.publisher.is_led(GroupId(9))


def test_a_follower_that_hears_its_leader_outweighs_the_connection(world):
    world.host(leader_id=2)
    world.lose(LEADER)
    world.now += 10 * GRACE
    assert world.publisher.is_led(GROUP)


def test_a_frozen_leader_with_a_connection_expires_when_the_replica_here_misses_it(world):
    world.host(leaderless_since=world.now + 1)
    world.now += 1 + GRACE
    assert world.publisher.is_led(GROUP)
    world.now += 0.1
    assert not world.publisher.is_led(GROUP)
    world.publisher.on_rows(LEADER, [(GROUP, 3, LEADER)])  # only this replica had missed it
    assert world.publisher.is_led(GROUP)


def test_a_claim_that_is_not_repeated_in_time_expires(world):
    world.now += TIMING.leadership_publish_seconds + GRACE
    assert world.publisher.is_led(GROUP)
    world.now += 0.1
    assert not world.publisher.is_led(GROUP)


def test_a_lost_withdrawal_is_repeated():
    """A led group 7 and steps down while B is cut off, without a successor. B must learn of it when it is back."""
    world = World()
    replica = world.host(leader_id=1, role=Role.LEADER)
    world.publisher.on_role_change(replica, RoleChange(Role.LEADER, Term(3), ReplicaId(1)))
    world.publisher.publish_changes()
    replica.core.role, replica.core.leader_id = Role.FOLLOWER, ReplicaId(0)
    world.publisher.on_role_change(replica, RoleChange(Role.FOLLOWER, Term(3), ReplicaId(0)))
    world.publisher.publish_changes()
    world.sent.clear()
    world.publisher.on_peer_up(NodeId(3))
    assert world.sent == [(3, [(GROUP, 3, 0)])]
    other = World()
    other.publisher.on_rows(NodeId(1), [(GROUP, 3, 1)])
    other.publisher.on_rows(NodeId(1), world.sent[0][1])
    assert not other.publisher.is_led(GROUP)
    replica.core.leader_id = ReplicaId(3)
    world.publisher.on_role_change(replica, RoleChange(Role.FOLLOWER, Term(4), ReplicaId(3)))
    world.sent.clear()
    world.publisher.publish_all()
    assert world.sent == []


async def test_descriptions_report_a_missing_leader_and_routes_keep_the_last_one():
    from raftmq.proto import queue_pb2 as pb

    from tests.support.broker.harness import running

    async with running() as node:
        topic = await node.topic("flights", partitions=2)
        gone = GroupId(topic.partitions[1].group_id)
        node.leaderless.add(gone)
        cluster = await node.admin.describe_cluster(pb.DescribeClusterRequest(), node.call())
        assert cluster.partitions_without_leader == 1
        assert [b.leader_count for b in cluster.brokers] == [1]
        described = await node.admin.describe_topic(pb.DescribeTopicRequest(name="flights"), node.call())
        assert [leader.broker_id for leader in described.leaders] == [1, 0]
        watch = node.topology.watch(pb.WatchRequest(), node.call())
        full = await anext(watch)
        assert {leader.broker_id for leader in full.leaders} == {1}
        await watch.aclose()
