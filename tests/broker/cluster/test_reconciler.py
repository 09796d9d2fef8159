"""On real engines the reconciler exchanges replicas step by step, under changing leaders, and reports those that have left."""

from __future__ import annotations

import asyncio
import dataclasses
from types import SimpleNamespace

import msgspec
import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.damage_reports import DamageReports, Moved, ReportedDamage
from raftmq.broker.cluster.reconciler import Reconciler
from raftmq.broker.cluster.replication_health import ReplicationHealth
from raftmq.broker.replica.leadership_table import LeadershipTable
from raftmq.fsm.metadata_views import BalancingView, PartitionView, ReplicaView
from raftmq.proto import peer_pb2 as peer_pb
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, NodeId, ReplicaId, Term
from structlog.testing import capture_logs

from tests.support.broker.engine_cluster import TIMING, EngineCluster, data, next_progress
from tests.support.broker.harness import StrictSupervisor, running
from tests.support.broker.waiting import until

GROUP = 7


class Desired:
    """The metadata of one partition; replica ids equal node ids."""

    def __init__(self, *replicas: int) -> None:
        self.replication_factor = len(replicas)
        self.partition_view = PartitionView(1, 0, GROUP, (), tuple(ReplicaView(r, r) for r in replicas), (), revision=1)

    def change(self, *replicas: int, lost: tuple[int, ...] = ()) -> None:
        before = self.partition_view
        gone = [r for r in before.replicas if r.replica_id not in replicas]
        retiring = tuple(ReplicaView(r.replica_id, r.node_id, r.replica_id in lost) for r in gone)
        self.partition_view = PartitionView(
            1, 0, GROUP, (), tuple(ReplicaView(r, r) for r in replicas), retiring, revision=before.revision + 1
        )

    @property
    def balancing(self):
        return BalancingView(auto_balance=True, moves_max=4, rebalance="")

    @property
    def revision(self):
        return self.partition_view.revision

    def partition(self, group_id):
        return self.partition_view if group_id == GROUP else None

    def topic(self, topic_id):
        return SimpleNamespace(replication_factor=self.replication_factor)

    def recovery(self, group_id):
        return None

    def replica_node(self, group_id, replica_id):
        return replica_id if any(r.replica_id == replica_id for r in self.partition_view.replicas) else None


class Host:
    """The node of one engine. Its metadata is given."""

    def __init__(self, cluster: EngineCluster, node_id: int, desired: Desired) -> None:
        self.node_id = node_id
        self.node_uuid = f"uuid-{node_id}"
        self.loop = cluster.loop
        self.limits = Limits()
        self.timing = TIMING
        self.metadata = SimpleNamespace(is_leader=False, state_machine=desired)
        self.damaged: dict[tuple[int, int], str] = {}
        self.told: list[tuple[int, peer_pb.ReportDamageRequest]] = []
        self.reports: list[peer_pb.ReportReplicasRequest] = []
        self.leadership = cluster.nodes[node_id].engine.leadership
        self.supervisor = StrictSupervisor()
        self.reported_damage = ReportedDamage(cluster.loop.time)
        self.replication = ReplicationHealth(self, self.reported_damage)
        self._cluster = cluster

    def pace_moves(self, bytes_per_second):
        assert not bytes_per_second

    def is_copy_waiting(self, replica):
        return False

    def partition_replicas(self):
        return list(self._cluster.nodes[self.node_id].engine.replicas.values())

    def is_connected(self, node_id):
        return not self._cluster.is_cut(self.node_id, node_id)

    def quarantined(self):
        return self.damaged

    async def report_damage(self, leader, request):
        self.told.append((leader, request))

    async def report_replicas(self, request):
        self.reports.append(request)


def reconciler_of(host: Host) -> Reconciler:
    return Reconciler(host, host, 3)


async def rounds(hosts, until) -> None:
    """Run every node's reconciler repeatedly, as fast as the groups move."""
    reconcilers = [reconciler_of(host) for host in hosts]
    async with asyncio.timeout(30):
        while not until():
            for reconciler in reconcilers:
                try:
                    await reconciler.round()
                except RequestError:
                    continue
            await asyncio.wait(
                [replica.wait_progress() for host in hosts for replica in host.partition_replicas()], timeout=0.05
            )


def voters(cluster, node_id):
    return cluster.replica(GROUP, node_id).core.membership.voters


async def test_a_lost_replica_is_replaced_and_reported_after_it_left():
    async with EngineCluster(4) as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP, among=(1, 2, 3))
        for number in range(50):
            await leader.propose([data(number)])[1]
        gone = next(n for n in (1, 2, 3) if n != leader.replica_id)
        staying = tuple(n for n in (1, 2, 3) if n != gone)
        cluster.isolate(gone)
        cluster.add_empty(GROUP, 4)
        desired = Desired(1, 2, 3)
        desired.change(*staying, 4, lost=(gone,))
        hosts = [Host(cluster, n, desired) for n in (*staying, 4)]
        await rounds(hosts, lambda: any(host.reports for host in hosts))
        leader = await cluster.leader(GROUP, among=(*staying, 4))
        assert leader.core.membership.voters == tuple(sorted((*staying, 4)))
        (report,) = [report for host in hosts for report in host.reports]
        assert [(r.group_id, r.replica_id) for r in report.left] == [(GROUP, gone)]
        assert not report.damaged
        newcomer = cluster.replica(GROUP, 4)
        while newcomer.state_machine.next_offset < 50:
            await next_progress([newcomer])


async def test_a_lost_replica_stays_listed_until_its_successor_votes():
    """Otherwise metadata could not show how many partitions are being rebuilt. The replica's place in the quorum is free immediately."""
    async with EngineCluster(4) as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP, among=(1, 2, 3))
        await leader.propose([data(1)])[1]
        gone = next(n for n in (1, 2, 3) if n != leader.replica_id)
        staying = tuple(n for n in (1, 2, 3) if n != gone)
        cluster.isolate(gone)
        desired = Desired(1, 2, 3)
        desired.change(*staying, lost=(gone,))
        hosts = [Host(cluster, n, desired) for n in (*staying, 4)]
        await rounds(hosts, lambda: voters(cluster, leader.replica_id) == staying)
        host = hosts[staying.index(leader.replica_id)]
        reconciler = reconciler_of(host)
        for _ in range(3):
            await reconciler.round()
        assert not any(host.reports for host in hosts), "only two of the three replicas that the topic wants exist"
        assert host.replication.under_replicated() == [GROUP]

        cluster.add_empty(GROUP, 4)
        view = desired.partition_view
        replicas = (*view.replicas, ReplicaView(4, 4))
        desired.partition_view = msgspec.structs.replace(view, replicas=replicas, revision=view.revision + 1)
        await rounds(hosts, lambda: any(host.reports for host in hosts))
        assert voters(cluster, leader.replica_id) == tuple(sorted((*staying, 4)))
        (report,) = [report for host in hosts for report in host.reports]
        assert [(r.group_id, r.replica_id) for r in report.left] == [(GROUP, gone)]
        async with asyncio.timeout(10):
            while host.replication.under_replicated():  # until the newcomer has acknowledged what the leader has
                await asyncio.sleep(0.01)


async def test_a_lost_replica_whose_successor_votes_does_not_wait_for_the_others():
    """Its seat would count as unhealthy and block the admission that replica 5's broker waits for: seed 716619 of the simulation."""
    async with EngineCluster(4) as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP, among=(1, 2, 3))
        moved, lost = (n for n in (1, 2, 3) if n != leader.replica_id)
        cluster.isolate(lost)
        cluster.add_empty(GROUP, 4)
        desired = Desired(1, 2, 3)
        desired.partition_view = msgspec.structs.replace(
            desired.partition_view,
            replicas=(
                ReplicaView(leader.replica_id, leader.replica_id),
                ReplicaView(4, 4, inherited_seat=lost),
                ReplicaView(5, 5, inherited_seat=moved),
            ),
            retiring=(ReplicaView(lost, lost, is_lost=True), ReplicaView(moved, moved)),
            revision=2,
        )
        host = Host(cluster, leader.replica_id, desired)
        await rounds([host], lambda: bool(host.reports))
        assert voters(cluster, leader.replica_id) == tuple(sorted((leader.replica_id, moved, 4)))
        (report,) = host.reports
        assert [r.replica_id for r in report.left] == [lost]


async def test_a_moved_replica_is_reported_as_soon_as_it_left():
    """Its node waits for the report before it deletes the files. Other missing replicas do not matter."""
    async with EngineCluster(3) as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        staying = tuple(n for n in (1, 2, 3) if n in (leader.replica_id, 1 + leader.replica_id % 3))
        desired = Desired(1, 2, 3)
        desired.change(*staying)
        host = Host(cluster, leader.replica_id, desired)
        await rounds([host], lambda: bool(host.reports))
        assert voters(cluster, leader.replica_id) == staying


async def test_a_replica_is_reported_as_left_only_when_a_crash_of_the_others_does_not_need_it_again():
    """It is deleted then. The others had applied leaving the joint configuration, but had not written it, and nothing else caused a
    write.
    """
    async with EngineCluster(3) as cluster:
        cluster.create_group(GROUP, voters=(1, 2))
        leader = await cluster.leader(GROUP, among=(1, 2))
        await leader.propose([data(1)])[1]
        stays = leader.replica_id
        cluster.add_empty(GROUP, 3)
        desired = Desired(1, 2)
        desired.change(stays, 3)
        hosts = [Host(cluster, n, desired) for n in (stays, 3)]
        await rounds(hosts, lambda: any(host.reports for host in hosts))
        cluster.isolate(3 - stays)
        cluster.restart(stays, 3)
        async with asyncio.timeout(30):
            now = await cluster.leader(GROUP, among=(stays, 3))
        assert now.core.membership.voters == (stays, 3)
        assert now.state_machine.next_offset == 1


async def test_a_leader_with_older_metadata_adds_no_replica_that_was_reported_as_left():
    """Its files are deleted by then. Replica 3 was wanted for a moment. The next leader may still have that state, and 3 may have caught up."""
    async with EngineCluster(3) as cluster:
        cluster.create_group(GROUP, voters=(1, 2))
        leader = await cluster.leader(GROUP, among=(1, 2))
        cluster.add_empty(GROUP, 3)
        older, newer = Desired(1, 2), Desired(1, 2)
        for desired in (older, newer):
            desired.change(1, 2, 3)
        newer.change(1, 2)
        host = Host(cluster, leader.replica_id, newer)
        await rounds([host], lambda: bool(host.reports))

        other = 3 - leader.replica_id
        leader.core.transfer_leader(other)
        cluster.nodes[leader.replica_id].engine.mark_dirty(leader)
        behind = Host(cluster, other, older)
        looks = iter(range(20))
        with capture_logs() as events:
            await rounds([behind], lambda: cluster.replica(GROUP, other).is_leader and next(looks, None) is None)
        assert cluster.replica(GROUP, other).core.membership.member_ids == (1, 2)
        (outdated,) = (event for event in events if event["event"] == "membership_target_outdated")
        assert outdated["group_id"] == GROUP


async def test_an_exchange_is_finished_by_the_next_leader():
    async with EngineCluster(5) as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP, among=(1, 2, 3))
        await leader.propose([data(1)])[1]
        gone = next(n for n in (1, 2, 3) if n != leader.replica_id)
        staying = tuple(n for n in (1, 2, 3) if n != gone)
        desired = Desired(1, 2, 3)
        desired.change(*staying, 4)
        cluster.add_empty(GROUP, 4)
        hosts = {n: Host(cluster, n, desired) for n in (1, 2, 3, 4)}
        await rounds([hosts[leader.replica_id]], lambda: leader.core.membership.learners == (4,))
        leader.core.transfer_leader(next(n for n in (1, 2, 3) if n != leader.replica_id))
        cluster.nodes[leader.replica_id].engine.mark_dirty(leader)
        await rounds(list(hosts.values()), lambda: any(host.reports for host in hosts.values()))
        now = await cluster.leader(GROUP, among=(*staying, 4))
        assert now.core.membership.voters == tuple(sorted((*staying, 4)))


async def test_a_newcomer_that_is_unreachable_is_not_promoted():
    """It had caught up, and its broker died. The joint configuration needed its vote, and the healthy partition stopped until it returned."""
    async with EngineCluster(2) as cluster:
        cluster.create_group(GROUP, voters=(1,))
        leader = await cluster.leader(GROUP, among=(1,))
        await leader.propose([data(1)])[1]
        cluster.add_empty(GROUP, 2)
        desired = Desired(1)
        desired.change(2)
        host = Host(cluster, 1, desired)
        reconciler = reconciler_of(host)
        async with asyncio.timeout(30):
            while leader.core.match_index(2) < leader.core.last_index or leader.core.membership.learners != (2,):
                await reconciler.round()
                reconciler._on_the_way.clear()
                await asyncio.sleep(0.02)
        reconciler._on_the_way.clear()
        await reconciler.round()
        cluster.isolate(2)
        await asyncio.sleep(0.1)
        await reconciler.round()
        await asyncio.sleep(0.1)
        assert leader.core.membership.voters == (1,)
        async with asyncio.timeout(5):
            await leader.propose([data(2)])[1]
        cluster.heal()
        await rounds(
            [host, Host(cluster, 2, desired)], lambda: cluster.replica(GROUP, 2).core.membership.voters == (2,)
        )


async def test_a_move_to_a_broker_that_dies_with_a_complete_copy_is_reported_as_stuck():
    """Without new records it lacked nothing, so the move was never given up, and the drain that waited for it never ended."""
    async with EngineCluster(2) as cluster:
        cluster.create_group(GROUP, voters=(1,))
        leader = await cluster.leader(GROUP, among=(1,))
        cluster.add_empty(GROUP, 2)
        desired = Desired(1)
        desired.partition_view = msgspec.structs.replace(
            desired.partition_view,
            replicas=(ReplicaView(2, 2, inherited_seat=1),),
            retiring=(ReplicaView(1, 1),),
            revision=2,
        )
        host = Host(cluster, 1, desired)
        host.timing = dataclasses.replace(TIMING, move_stuck_seconds=0.2)
        reconciler = reconciler_of(host)
        async with asyncio.timeout(30):
            while leader.core.match_index(2) < leader.core.last_index or leader.core.membership.learners != (2,):
                await reconciler.round()
                reconciler._on_the_way.clear()
                await asyncio.sleep(0.02)
        cluster.isolate(2)
        async with asyncio.timeout(5):
            while not host.reports:
                await reconciler.round()
                await asyncio.sleep(0.02)
        (report,) = host.reports
        assert [(r.group_id, r.replica_id) for r in report.stuck] == [(GROUP, 2)]
        assert "unreachable" in report.stuck[0].reason


class Several(Desired):
    """The metadata of several partitions, whose groups have replica 1 alone."""

    def __init__(self, wanted: dict[int, tuple[int, ...]]) -> None:
        super().__init__(1)
        self.views = {
            group_id: PartitionView(
                1, 0, group_id, (), tuple(ReplicaView(one, one) for one in (1, *others)), (), revision=2
            )
            for group_id, others in wanted.items()
        }

    def partition(self, group_id):
        return self.views.get(group_id)

    def replica_node(self, group_id, replica_id):
        return replica_id


async def lone_leader(cluster: EngineCluster, wanted: dict[int, tuple[int, ...]]) -> Host:
    """Have node 1 lead groups of one voter, of which one at a time may bring up the replicas that are wanted."""
    for group_id in wanted:
        cluster.create_group(group_id, voters=(1,))
    for group_id in wanted:
        await cluster.leader(group_id)
    host = Host(cluster, 1, Several(wanted))
    host.limits = Limits(catching_up_max=1)
    return host


@pytest.mark.parametrize("is_reachable", [False, True])
async def test_repairs_do_not_wait_for_a_replica_that_makes_no_progress(is_reachable):
    """Its broker died while it rebuilt its replicas, or its disk is full."""
    async with EngineCluster(3) as cluster:
        host = await lone_leader(cluster, {GROUP: (2,), GROUP + 1: (3,)})
        host.timing = dataclasses.replace(TIMING, move_stuck_seconds=0.2 if is_reachable else 1e9)
        cluster.add_empty(GROUP + 1, 3)
        core, other = (cluster.replica(group_id, 1).core for group_id in (GROUP, GROUP + 1))
        reconciler = reconciler_of(host)
        await reconciler.round()
        await until(lambda: core.membership.learners == (2,))
        await reconciler.round()
        assert other.membership.member_ids == (1,)
        if not is_reachable:
            cluster.isolate(2)
        async with asyncio.timeout(30):
            while other.membership.voters != (1, 3):
                await reconciler.round()
                await asyncio.sleep(0.01)
        assert core.membership.learners == (2,)


async def test_a_repair_begins_when_its_broker_is_reachable():
    """Otherwise all replicas of a broker that was down would be copied to it simultaneously."""
    async with EngineCluster(2) as cluster:
        host = await lone_leader(cluster, {GROUP: (2,), GROUP + 1: (2,)})
        for group_id in (GROUP, GROUP + 1):
            cluster.add_empty(group_id, 2)
        cores = [cluster.replica(group_id, 1).core for group_id in (GROUP, GROUP + 1)]
        reconciler = reconciler_of(host)
        cluster.isolate(2)
        for _ in range(3):
            await reconciler.round()
        assert [core.membership.member_ids for core in cores] == [(1,), (1,)]
        cluster.heal()
        async with asyncio.timeout(30):
            while any(core.membership.voters != (1, 2) for core in cores):
                await reconciler.round()
                await asyncio.sleep(0.02)
                assert sum(bool(core.membership.learners) for core in cores) <= 1


async def test_a_leader_reports_damage_only_with_a_majority():
    async with EngineCluster() as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        led_by = leader.replica_id
        sick, other = (n for n in (1, 2, 3) if n != led_by)
        desired = Desired(1, 2, 3)
        teller = Host(cluster, sick, desired)
        teller.damaged = {key_of(sick): "a checksum"}
        while teller.leadership.get(GROUP).node_id != led_by:
            await next_progress([cluster.replica(GROUP, sick)])
        cluster.isolate(sick)
        await reconciler_of(teller).round()
        ((leader, request),) = teller.told
        assert leader == led_by
        assert [(r.group_id, r.replica_id, r.reason) for r in request.replicas] == [(GROUP, sick, "a checksum")]

        host = Host(cluster, led_by, desired)
        reconciler = reconciler_of(host)
        host.reported_damage.record(key_of(sick))
        await reconciler.round()
        assert [[(r.group_id, r.replica_id) for r in report.damaged] for report in host.reports] == [[(GROUP, sick)]]

        cluster.isolate(other)
        reconciler = reconciler_of(host)
        host.reported_damage.record(key_of(sick))
        await reconciler.round()
        assert len(host.reports) == 1, "no majority confirms that the group survives without it"


async def test_an_unreachable_leader_does_not_prevent_damage_reports_to_others():
    """The last known leader of a group without a majority is dead. It was asked first, so no other leader was told of any damage."""

    class Node(Host):
        async def report_damage(self, leader, request):
            self.told.append((leader, request))
            if leader == 2:
                raise RequestError(pb.NO_LEADER, "cannot be reached")

    async with EngineCluster() as cluster:
        desired = SimpleNamespace(
            partition=lambda group_id: None,
            replica_node=lambda group_id, replica_id: replica_id,
            balancing=Desired().balancing,
        )
        node = Node(cluster, 1, desired)
        node.leadership = LeadershipTable(lambda group_id: None, str)
        node.leadership.claim(1, 1, 2)
        node.leadership.claim(2, 1, 3)
        node.damaged = {ReplicaKey(1, 1): "a checksum", ReplicaKey(2, 1): "a checksum"}
        await reconciler_of(node).round()
        assert sorted(leader for leader, _ in node.told) == [2, 3]


def key_of(replica_id):
    return ReplicaKey(GROUP, replica_id)


async def test_a_learner_that_catches_up_holds_back_the_deletion_of_records():
    async with EngineCluster(4) as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP, among=(1, 2, 3))
        desired = Desired(1, 2, 3)
        host = Host(cluster, leader.replica_id, desired)
        reconciler = reconciler_of(host)
        assert reconciler.deletable_through_index(leader) is None
        desired.change(1, 2, 3, 4)
        while not leader.core.membership.learners:
            await reconciler.round()
            await next_progress([leader])
        assert reconciler.deletable_through_index(leader) == 0, "node 4 has nothing yet"


async def test_a_metadata_leader_does_not_use_what_it_noted_in_an_earlier_leadership():
    """A learner that was a whole leadership behind counted as caught up in the first round of the next one, and was promoted."""
    async with EngineCluster(1) as cluster:
        host = Host(cluster, 1, Desired(1))
        reconciler = reconciler_of(host)
        matches = {2: 10}
        core = SimpleNamespace(commit_index=10, match_indexes=lambda: matches)
        snapshots = SimpleNamespace(sent_at=lambda replica_id: float("-inf"))
        replica = SimpleNamespace(group_id=0, core=core, outgoing_snapshots=snapshots, node_of=lambda replica_id: 1)
        reconciler._caught_up(replica)
        assert reconciler._caught_up(replica) == {2}
        await reconciler.round()  # another node leads the metadata group
        core.commit_index = 1000
        assert reconciler._caught_up(replica) == set()


def test_a_report_of_damage_is_renewed_while_there_is_no_room_for_another_one():
    """It was forgotten although its node repeated it, and the replica counted as intact until the next report."""
    times = [0.0]
    reported = ReportedDamage(lambda: times[-1])
    keys = [ReplicaKey(GROUP, number) for number in range(500)]
    metadata = SimpleNamespace(replica_node=lambda group_id, replica_id: 1)
    for now in (0.0, 5.0, 10.0, 15.0):
        times.append(now)
        for key in keys:
            reported.record(key)
        assert reported.current(metadata) == keys


async def test_a_report_that_found_no_metadata_leader_goes_to_the_next_one_without_a_pause() -> None:
    """It counted as sent, and its replicas waited for the next repetition, although there was a leader."""
    leadership = LeadershipTable(lambda _: None, lambda _: "")
    clock = SimpleNamespace(time=lambda: 5.0)
    reports: list[peer_pb.ReportReplicasRequest] = []

    async def report_replicas(request: peer_pb.ReportReplicasRequest) -> None:
        reports.append(request)
        if leadership.get(METADATA_GROUP_ID).node_id == NO_NODE:
            raise RequestError(pb.NO_LEADER, "there is no leader")

    host = SimpleNamespace(loop=clock, leadership=leadership, node_id=1, node_uuid="uuid-1")
    damage = DamageReports(host, SimpleNamespace(report_replicas=report_replicas))
    moved = Moved(left=[ReplicaKey(GroupId(GROUP), ReplicaId(3))])
    with pytest.raises(RequestError):
        await damage.tell_metadata_leader([], moved)
    await damage.tell_metadata_leader([], moved)
    assert len(reports) == 1, "there is still no leader"
    leadership.claim(METADATA_GROUP_ID, Term(2), NodeId(2))
    for _ in range(2):
        await damage.tell_metadata_leader([], moved)
    assert len(reports) == 2
    await damage.tell_metadata_leader([], Moved())
    assert len(reports) == 2


async def test_a_background_loop_ends_when_it_is_cancelled() -> None:
    """aioraft-ng caught CancelledError together with everything else."""
    async with running() as node:
        task = asyncio.create_task(reconciler_of(node).run())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
