"""The controller chooses the brokers that may be given replicas, and the partitions that may move, and comes to an end."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import msgspec
import pytest
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster import controller
from raftmq.broker.cluster.controller import Controller
from raftmq.broker.cluster.layout import available_nodes, describe_layout, moving_partitions, refusal_of_move
from raftmq.broker.cluster.peer_readiness import PeerReadiness
from raftmq.broker.cluster.replacement_plan import wanted_partition
from raftmq.broker.cluster.stability import Stability
from raftmq.broker.replica.leadership_table import LeadershipTable
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.metadata_views import NodeView
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId, NodeId, Term

from tests.support.fsm.harness import MetadataLog


def everyone(node_id):
    return True


class Cluster:
    """Real metadata of brokers 1 to 4, with a topic on 1, 2, 3."""

    def __init__(self) -> None:
        self._log = MetadataLog(0)
        self.machine = self._log.state
        self.run(mc.InitializeCluster("c", FEATURE_LEVEL))
        for number in range(1, 5):
            self.run(
                mc.RegisterNode(
                    f"u{number}", number, f"h{number}:1", f"h{number}:2", "", f"host-{number}", "", "1", FEATURE_LEVEL
                )
            )
        self.run(mc.CreateTopic("t", "log", 3, {}, (mc.PartitionPlan((1, 2, 3)),)))

    def run(self, command):
        result = self._log.run(command)
        assert not isinstance(result, mc.Rejected), result
        return result

    @property
    def partition(self):
        found = self.machine.partition(1)
        assert found is not None
        return found

    def move(self, *node_ids):
        self.run(mc.SetReplicas(1, node_ids, self.machine.revision))

    def refusal(self, *node_ids, leader=1, down=()):
        return refusal_of_move(self.machine, self.partition, node_ids, leader, lambda node_id: node_id not in down)


# ---------------------------------------------------------------------------------------------------------- stability


def broker(node_id, boot=1):
    return NodeView(node_id, f"u{node_id}", "a:1", "a:2", "", "h", "", "1", 3, node_id, "active", boot=boot)


def test_a_broker_is_stable_after_a_while_without_a_break():
    now, processes = [0.0], {1: b"1", 2: b"2"}
    stability = Stability(lambda: now[0], 10.0)

    def look(at, *nodes):
        now[0] = at
        stability.observe(nodes, processes.get)
        return [stability.is_stable(node.node_id) for node in nodes]

    assert look(0.0, broker(1), broker(2)) == [False, False]
    assert look(9.9, broker(1), broker(2)) == [False, False]
    assert look(10.0, broker(1), broker(2)) == [True, True]
    del processes[2]
    assert look(11.0, broker(1), broker(2)) == [True, False]
    processes[2] = b"2"
    assert look(12.0, broker(1), broker(2)) == [True, False]
    assert look(22.0, broker(1), broker(2, boot=2)) == [True, True], "a renewed mark is no restart"
    processes[2] = b"another"
    assert look(23.0, broker(1), broker(2, boot=3)) == [True, False], "a restart that no look noticed starts again"
    assert look(33.0, broker(1), broker(2, boot=3)) == [True, True]
    stability.doubt(1)
    assert not stability.is_stable(1)
    assert look(42.9, broker(1), broker(2, boot=3)) == [False, True]
    assert look(43.0, broker(1), broker(2, boot=3)) == [True, True]


def test_a_broker_is_new_once_however_often_it_says_that_it_is_not_ready():
    now, processes = [0.0], {1: b"1"}
    stability = Stability(lambda: now[0], 10.0)

    def look(at):
        now[0] = at
        stability.observe([broker(1)], processes.get)
        stability.doubt(1)
        return stability.is_new(1), stability.is_stable(1)

    assert look(0.0) == look(9.9) == (True, False)
    assert look(10.0) == look(19.9) == (False, False)
    processes[1] = b"another"
    assert look(20.0) == (True, False)
    del processes[1]
    assert look(21.0) == (False, False), "a broker that is down is not new"


@pytest.mark.parametrize("returns", [False, True])
def test_a_cluster_is_calm_again_some_time_after_it_lost_a_broker(returns):
    now, processes = [0.0], {1: b"1", 2: b"2", 3: b"3"}
    stability = Stability(lambda: now[0], 10.0)

    def look(at, *node_ids):
        now[0] = at
        stability.observe([broker(node_id) for node_id in node_ids], processes.get)
        return stability.is_calm

    assert look(0.0, 1, 2)
    assert look(5.0, 1, 2, 3), "a new broker is no loss"
    del processes[2]
    assert not look(6.0, 1, 2, 3)
    if returns:
        processes[2] = b"2"
    assert not look(15.9, 1, 2, 3)
    assert look(16.0, 1, 2, 3), "also while the broker is down"
    processes[3] = b"another"
    assert not look(17.0, 1, 2, 3), "a restart that no look noticed"
    assert not look(26.9, 1, 2, 3)
    assert look(27.0, 1, 2, 3)


# ---------------------------------------------------------------------------------------------------------- availability


def test_a_draining_an_unstable_and_a_rebuilding_broker_are_given_nothing():
    cluster = Cluster()
    assert available_nodes(cluster.machine, everyone, everyone) == {1, 2, 3, 4}
    assert available_nodes(cluster.machine, lambda node_id: node_id != 2, everyone) == {1, 3, 4}
    cluster.run(mc.SetNodeState(4, "draining"))
    assert available_nodes(cluster.machine, everyone, everyone) == {1, 2, 3}
    cluster.run(mc.ReplaceReplica(1, cluster.partition.replicas[1].replica_id))
    assert available_nodes(cluster.machine, everyone, everyone) == {1, 3}


def test_a_partition_that_moves_or_lacks_a_replica_stays_as_it_is():
    cluster = Cluster()
    (placed,) = describe_layout(cluster.machine, 10, frozenset({1, 2, 3, 4}), 0).partitions
    assert (placed.node_ids, placed.replication_factor, placed.is_fixed) == ((1, 2, 3), 3, False)
    cluster.move(1, 2, 4)
    (placed,) = describe_layout(cluster.machine, 10, frozenset({1, 2, 3, 4}), 0).partitions
    assert (placed.node_ids, placed.is_fixed) == ((1, 2, 4), True)


def test_a_move_to_a_broker_that_died_does_not_delay_the_others():
    cluster = Cluster()
    assert moving_partitions(cluster.machine, everyone, everyone) == 0
    cluster.move(1, 2, 4)
    assert moving_partitions(cluster.machine, everyone, everyone) == 1
    assert moving_partitions(cluster.machine, lambda node_id: node_id != 4, everyone) == 0


def test_partitions_that_lost_their_majority_do_not_delay_the_others():
    """They stayed unsettled without end, counted as moves, and no broker could be drained any more."""
    cluster = Cluster()
    plans = tuple(mc.PartitionPlan((4,)) for _ in range(cluster.machine.balancing.moves_max))
    cluster.run(mc.CreateTopic("lost", "log", 1, {}, plans))
    cluster.run(mc.RemoveNode(4, is_forced=True))
    assert len(cluster.machine.unsettled_partitions()) == len(plans)
    assert moving_partitions(cluster.machine, everyone, lambda group_id: group_id == 1) == 0


def test_a_broker_that_cannot_rebuild_partitions_without_a_majority_is_given_others():
    """A disk was given up although a partition lost its majority with it. The broker got nothing more, and no drain ended."""
    cluster = Cluster()
    cluster.run(mc.CreateTopic("lost", "log", 1, {}, (mc.PartitionPlan((4,)),)))
    disk = mc.RegisterNode("new", 4, "h4:1", "h4:2", "", "host-4", "", "1", FEATURE_LEVEL, replaces_lost=True)
    cluster.run(disk)
    assert available_nodes(cluster.machine, everyone, everyone) == {1, 2, 3}
    assert available_nodes(cluster.machine, everyone, lambda group_id: group_id == 1) == {1, 2, 3, 4}


# ---------------------------------------------------------------------------------------------------------- rounds


class Carrier:
    """The metadata leader of a `Cluster`, and its controller. Replicas join and leave their groups when a test says so."""

    def __init__(self, cluster: Cluster) -> None:
        self.state_machine = cluster.machine
        self.is_leader = True
        self.core = SimpleNamespace(last_index=0)
        self.limits, self.timing = Limits(), Timing()
        self.loop = asyncio.get_running_loop()
        self.leadership = LeadershipTable(lambda group_id: None, lambda node_id: "")
        self.new: set[int] = set()
        self.stability = SimpleNamespace(
            is_stable=lambda node_id: node_id not in self.new, is_new=lambda node_id: node_id in self.new
        )
        self.leaderless: set[int] = set()
        self.unready: set[int] = set()
        self.controller = Controller(self, SimpleNamespace(is_ready=self._is_ready), SimpleNamespace(sizes=self._sizes))
        self._cluster = cluster
        self._elect()

    def _elect(self):
        """Have the preferred leaders lead."""
        for topic in self.state_machine.topics():
            for group_id in topic.group_ids:
                partition = self.state_machine.partition(group_id)
                self.leadership.claim(
                    GroupId(group_id), Term(partition.revision), NodeId(partition.replicas[0].node_id)
                )

    async def _is_ready(self, node_id):
        return node_id not in self.unready

    async def _sizes(self):
        return {}

    def is_connected(self, node_id):
        return True

    def is_led(self, group_id):
        return group_id not in self.leaderless

    def now_ms(self):
        return 0

    def propose(self, proposals):
        applied = self.loop.create_future()
        applied.set_result([self._cluster.run(mc.decode_command(one.payload)) for one in proposals])
        return None, applied

    async def round(self, applied=True):
        self.core.last_index = self.state_machine.applied_index + (not applied)
        await self.controller._move_replicas(self)

    def settle(self):
        """Carry out all moves of partitions that have a leader."""
        for partition in self.state_machine.unsettled_partitions():
            if partition.group_id not in self.leaderless:
                for gone in partition.retiring:
                    self._cluster.run(mc.RemoveReplica(partition.group_id, gone.replica_id))
        self._elect()


def holders(cluster, group_id):
    return {replica.node_id for replica in cluster.machine.partition(group_id).replicas}


async def test_a_partition_without_a_leader_holds_up_no_drain_of_others():
    """It stayed on the plan, and no other plan was made: a partition that was being moved when the drain began was never moved again."""
    cluster = Cluster()
    cluster.run(mc.CreateTopic("lost", "log", 1, {}, (mc.PartitionPlan((3,)),)))
    carrier = Carrier(cluster)
    carrier.leaderless = {2}
    cluster.move(4, 2, 3)
    cluster.run(mc.SetNodeState(3, "draining"))
    for _ in range(3):
        await carrier.round()
        assert holders(cluster, 1) == {4, 2, 3}
    carrier.settle()
    for _ in range(3):
        await carrier.round()
        carrier.settle()
    assert holders(cluster, 1) == {1, 2, 4}
    carrier.leaderless = set()
    await carrier.round()
    assert holders(cluster, 2) != {3}, "it moves as soon as it has a leader"


@pytest.mark.parametrize("is_settled", [True, False])
async def test_a_wish_to_rebalance_ends_although_a_partition_on_connected_brokers_has_no_leader(is_settled):
    """The damaged replica of a connected broker has no leader either. The wish stood until the partition was recovered or deleted."""
    cluster = Cluster()
    cluster.run(mc.SetBalancing(auto_balance=False))
    cluster.run(mc.CreateTopic("lost", "log", 1, {}, (mc.PartitionPlan((4,)),)))
    carrier = Carrier(cluster)
    carrier.leaderless = {2}
    if not is_settled:
        cluster.run(mc.ReplaceReplica(2, cluster.machine.partition(2).replicas[0].replica_id))
    cluster.run(mc.SetBalancing(rebalance="replicas"))
    for _ in range(4):
        await carrier.round()
    assert not cluster.machine.balancing.rebalance


async def test_a_wish_to_rebalance_ends_although_a_broker_may_not_lead():
    """No leadership is given to a broker whose disk is full or whose clock is wrong. The wish stood until an operator repaired it."""
    cluster = Cluster()
    cluster.run(mc.SetBalancing(rebalance="leaders"))
    carrier = Carrier(cluster)
    carrier.leadership.claim(GroupId(1), Term(99), NodeId(2))
    for _ in range(4):
        await carrier.round()
    assert cluster.machine.balancing.rebalance == "leaders"
    carrier.unready = {1}
    await carrier.round()
    assert not cluster.machine.balancing.rebalance


@pytest.mark.parametrize("unready", [set(), {1}])
async def test_a_wish_to_rebalance_waits_for_a_broker_that_was_restarted(unready):
    """It was withdrawn within the first ten seconds, in which nothing is given to the broker, and the leaderships stayed elsewhere."""
    cluster = Cluster()
    cluster.run(mc.SetBalancing(auto_balance=False, rebalance="leaders"))
    carrier = Carrier(cluster)
    carrier.leadership.claim(GroupId(1), Term(99), NodeId(2))
    carrier.new, carrier.unready = {1}, unready
    for _ in range(4):
        await carrier.round()
    assert cluster.machine.balancing.rebalance == "leaders"
    carrier.new = set()
    await carrier.round()
    assert cluster.machine.balancing.rebalance == ("" if unready else "leaders")
    carrier.leadership.claim(GroupId(1), Term(100), NodeId(1))
    await carrier.round()
    assert not cluster.machine.balancing.rebalance


async def test_a_wish_to_rebalance_waits_for_a_broker_that_joined():
    """It was withdrawn within the first ten seconds, in which nothing is given to the broker, and the command reported moves that nobody made."""
    cluster = Cluster()
    plans = tuple(mc.PartitionPlan((first, first % 3 + 1, (first + 1) % 3 + 1)) for first in (2, 3, 1))
    cluster.run(mc.CreateTopic("more", "log", 3, {}, plans))
    cluster.run(mc.SetBalancing(auto_balance=False, rebalance="replicas"))
    carrier = Carrier(cluster)
    carrier.new = {4}
    for _ in range(4):
        await carrier.round()
    assert cluster.machine.balancing.rebalance == "replicas"
    carrier.new = set()
    for _ in range(8):
        await carrier.round()
        carrier.settle()
    assert cluster.machine.replica_count_of_node(4) == 3
    assert not cluster.machine.balancing.rebalance


@pytest.mark.parametrize("obstacle", ["unconcerned", "leaderless", "draining"])
async def test_a_wish_to_rebalance_waits_for_no_new_broker_that_will_not_lead(obstacle):
    cluster = Cluster()
    carrier = Carrier(cluster)
    carrier.leadership.claim(GroupId(1), Term(99), NodeId(2))
    carrier.new = {4} if obstacle == "unconcerned" else {1}
    if obstacle == "unconcerned":
        carrier.leadership.claim(GroupId(1), Term(100), NodeId(1))
    elif obstacle == "leaderless":
        carrier.leaderless = {1}
    else:
        carrier.new = {1, 4}  # so that its replica stays for now
        cluster.run(mc.SetNodeState(1, "draining"))
    cluster.run(mc.SetBalancing(auto_balance=False, rebalance="leaders"))
    for _ in range(4):
        await carrier.round()
    assert not cluster.machine.balancing.rebalance


async def test_a_wish_to_rebalance_is_not_withdrawn_with_an_earlier_one():
    """A newer wish that was in the log and not applied yet was erased."""
    cluster = Cluster()
    cluster.run(mc.SetBalancing(rebalance="leaders"))
    carrier = Carrier(cluster)
    for _ in range(4):
        await carrier.round(applied=False)
    assert cluster.machine.balancing.rebalance == "leaders"
    await carrier.round()
    assert not cluster.machine.balancing.rebalance


async def test_as_many_partitions_move_simultaneously_as_the_operator_permits_now():
    cluster = Cluster()
    cluster.run(mc.CreateTopic("many", "log", 1, {}, tuple(mc.PartitionPlan((1,)) for _ in range(8))))
    cluster.run(mc.SetBalancing(auto_balance=False, moves_max=2))
    cluster.run(mc.SetNodeState(1, "draining"))
    carrier = Carrier(cluster)

    async def moving_after_rounds():
        for _ in range(3):
            await carrier.round()
        return len(cluster.machine.unsettled_partitions())

    assert await moving_after_rounds() == 2
    cluster.run(mc.SetBalancing(moves_max=5))
    assert await moving_after_rounds() == 5
    cluster.run(mc.SetBalancing(moves_max=1))
    assert await moving_after_rounds() == 5, "moves under way are finished"
    carrier.settle()
    assert await moving_after_rounds() == 1


async def test_nothing_is_planned_while_nothing_changes(monkeypatch):
    """A plan looks at all partitions, so a cluster at rest must not make one in each round."""
    described = []

    def counted(*arguments):
        described.append(arguments)
        return describe_layout(*arguments)

    monkeypatch.setattr(controller, "describe_layout", counted)
    cluster = Cluster()
    carrier = Carrier(cluster)
    for _ in range(5):
        await carrier.round()
    assert len(described) == 1
    cluster.run(mc.AllocateProducerIds(1))
    for _ in range(5):
        await carrier.round()
    assert len(described) == 1, "producers are none of its business"
    cluster.run(mc.CreateTopic("another", "log", 3, {}, (mc.PartitionPlan((2, 3, 4)),)))
    carrier.settle()
    for _ in range(5):
        await carrier.round()
    assert len(described) == 2


# ---------------------------------------------------------------------------------------------------------- moves


@pytest.mark.parametrize(
    ("node_ids", "down", "is_refused"),
    [
        ((1, 2, 4), (), False),
        ((1, 2, 4), (3,), False),  # the majority of 1 and 2 is healthy
        ((1, 2, 4), (2,), False),  # 1 and 3, then 1 and 4
        ((1, 2, 4), (2, 3), True),
        ((1, 4), (), False),
        ((1,), (2,), True),  # 2 may not leave as long as it cannot say so
        ((4,), (), False),
        ((2, 1, 3), (), False),
    ],
)
def test_a_partition_is_moved_only_with_a_healthy_majority_throughout(node_ids, down, is_refused):
    assert (Cluster().refusal(*node_ids, down=down) is not None) == is_refused


def test_a_partition_without_a_leader_or_in_a_move_is_not_moved():
    cluster = Cluster()
    assert cluster.refusal(1, 2, 4, leader=0) == "has no leader at the moment"
    assert cluster.refusal(1, 2, 4, leader=4) == "has no leader at the moment", "the leader left the partition"
    assert cluster.refusal(1, 2, 4, down=(1,)) == "has no leader at the moment"
    cluster.move(1, 2, 4)
    assert cluster.refusal(1, 2, 3) == "is being moved or rebuilt already"
    other = Cluster()
    other.run(mc.SetReplicationFactor(other.partition.topic_id, 4))
    assert wanted_partition(other.machine, other.partition).missing_count == 1
    assert other.refusal(1, 2, 4) == "lacks a replica, which is rebuilt first"


def test_a_dry_run_of_a_drain_and_of_another_replication_factor():
    cluster = Cluster()
    layout = describe_layout(cluster.machine, 10, frozenset({1, 2, 3, 4}), 0)
    assert layout.plan(is_automatic=True).changes == ()
    (change,) = layout.with_draining(2).plan(is_automatic=False).changes
    assert set(change.node_ids) == {1, 3, 4}
    (change,) = layout.with_replication_factor(frozenset({1}), 1).plan(is_automatic=False).changes
    assert len(change.node_ids) == 1
    assert msgspec.structs.asdict(layout.nodes[1])["state"] == "active", "the layout itself is unchanged"


# ---------------------------------------------------------------------------------------------------------- readiness


async def test_a_broker_is_asked_whether_it_is_ready_and_its_answer_remembered():
    answers: list[peer_pb.DescribeBrokerResponse | RequestError] = []

    async def describe_node(node_id):
        answer = answers.pop()
        if isinstance(answer, RequestError):
            raise answer
        return answer

    def saying(*reasons):
        return peer_pb.DescribeBrokerResponse(health=pb.BrokerHealth(not_ready=reasons))

    readiness = PeerReadiness(asyncio.get_running_loop(), SimpleNamespace(describe_node=describe_node))
    answers = [
        RequestError(pb.NO_LEADER, "down"),
        saying("disk_reserve: full"),
        saying("loop_stalled: a moment ago"),
    ]
    assert await readiness.is_ready(NodeId(1))
    assert await readiness.is_ready(NodeId(1)), "remembered"
    assert not await readiness.is_ready(NodeId(2))
    assert not await readiness.is_ready(NodeId(3))
    assert answers == []
