"""Bring the groups that this node leads to the membership that metadata wants, and report replicas that left.

It runs every `Timing.controller_seconds` and stores nothing important: each step follows from the group's membership and the metadata, so
after any crash the next leader continues. Repair works the same way: metadata replaces a damaged or lost replica by a new one, which
becomes a learner, catches up and votes. Then the old one is removed.

Source: Ongaro's thesis 4.2.1: a newcomer votes once it has, in one round, everything that was committed before the round.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import structlog
from raftmq.broker.base.futures import consume_exception
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Supervisor, Work
from raftmq.broker.cluster.damage_reports import DamageHost, DamageReports, Moved, Reporter
from raftmq.broker.cluster.membership_plan import (
    MembershipTarget,
    choose_metadata_voters,
    is_reached,
    partition_target,
    plan_change,
)
from raftmq.broker.cluster.replacement_plan import (
    WantedPartition,
    further_replicas,
    moved_replicas,
    plan_replacements,
    wanted_partition,
)
from raftmq.broker.cluster.replication_health import ReplicationHealth
from raftmq.broker.cluster.stuck_moves import StuckMoves, reason_of
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import MetadataCommand, RemoveReplica, SetMetadataMembership, encode_command
from raftmq.fsm.metadata_views import PartitionView
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.entry import EntryKind, Proposal
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import METADATA_GROUP_ID, NO_NODE, GroupId, LogIndex, NodeId, ReplicaId, Term

log = structlog.get_logger(__name__)

MachineT = TypeVar("MachineT", bound=StateMachine, covariant=True)


class ReconcilerHost(DamageHost, Protocol):
    """The node as its reconciler sees it."""

    limits: Limits
    timing: Timing
    supervisor: Supervisor
    replication: ReplicationHealth

    @property
    def metadata(self) -> Replica[Metadata]:
        """Return this node's metadata replica. Raises RequestError NOT_FORMED or NOT_READY."""
        ...

    def is_connected(self, node_id: NodeId) -> bool:
        """Return whether this node's control channel to that node is up (True for itself)."""
        ...

    def is_led(self, group_id: GroupId) -> bool:
        """Return whether the group has a leader, as far as this node can tell."""
        ...

    def pace_moves(self, bytes_per_second: int) -> None:
        """Bound the bytes that this node sends to new replicas of planned moves. 0: unlimited."""
        ...

    def is_copy_waiting(self, replica: Replica[StateMachine]) -> bool:
        """Return whether a copy of the group, led here, waits for the rate of moves or for the end of other snapshots."""
        ...


@dataclass
class _CatchUp:
    """The progress of a group whose learners are catching up. It is only needed to decide when they have caught up."""

    began_at: float
    noted_at: float
    noted_commit_index: LogIndex


@dataclass
class _Slots:
    """The groups led here that bring up new replicas. Moves must not delay a repair, so only other repairs count for it.

    A replica that is unreachable or stuck causes no work, and does not count. Scenario: broker 4 dies while it rebuilds its replicas. If they
    counted, they would keep all others waiting until it returns or is removed.
    """

    count_max: int
    moving: int = 0
    repairing: int = 0

    def count(self, replica: Replica[StateMachine], learners: Collection[ReplicaId]) -> None:
        """Count a group that has these learners, which are catching up."""
        if not learners:
            return
        self.repairing += bool(replica.core.urgent_learners.intersection(learners))
        self.moving += 1

    def has_room(self, *, is_repair: bool) -> bool:
        """Return whether another group may be given learners."""
        return (self.repairing if is_repair else self.moving) < self.count_max


class Reconciler:
    """Reconciles the groups that one node leads."""

    def __init__(self, host: ReconcilerHost, reporter: Reporter, metadata_voters_max: int) -> None:
        self._host = host
        self._metadata_voters_max = metadata_voters_max
        self._on_the_way: dict[GroupId, _CatchUp] = {}
        self.damage = DamageReports(host, reporter)
        self._stuck_moves = StuckMoves(
            host.loop.time, host.timing.move_stuck_seconds, host.is_copy_waiting, host.is_connected
        )
        self._without_node_throttle = LogThrottle()
        self._outdated_throttle = LogThrottle()
        # a group that needs nothing until its partition or its membership changes is not checked again, so that a quiet node stays quiet
        self._whole_at_version = -1
        self._settled: dict[GroupId, tuple[PartitionView, Membership]] = {}
        self._seals: dict[GroupId, tuple[tuple[Term, Membership], asyncio.Future[list[object]]]] = {}
        """Led groups that replicas have left: the configuration without them, and the entry that proves it on disk."""

    async def run(self) -> None:
        """Do rounds until cancelled."""
        while True:
            await asyncio.sleep(self._host.timing.controller_seconds)
            try:
                await self.round()
            except RequestError as error:  # leadership moved, or metadata is not ready: the next round checks again
                log.debug("reconciliation_postponed", reason=str(error))

    async def round(self) -> None:
        """Do one round over everything that this node leads. A step that fails does not prevent the others."""
        metadata = self._host.metadata
        moved = Moved()
        spared: list[ReplicaKey] = []
        if metadata.is_leader:
            with self._step():
                await self._maintain_metadata(metadata)
            with self._step():
                await self._replace_missing(metadata)
        else:
            self._on_the_way.pop(METADATA_GROUP_ID, None)  # it says nothing in a later leadership
        with self._step():
            moved = self._maintain_partitions(metadata.state_machine)
            self._host.replication.without_progress = moved.stuck
        with self._step():
            spared = await self.damage.confirm_spared(metadata.state_machine)
        with self._step():
            await self.damage.tell_metadata_leader(spared, moved)
        with self._step():
            await self.damage.tell_leaders(metadata.state_machine)

    def _step(self) -> AbstractContextManager[None]:
        return self._host.supervisor.step(Work.RECONCILER)

    def deletable_through_index(self, replica: Replica[StateMachine]) -> LogIndex | None:
        """Return the last index that may be deleted from a led group's log without cutting off a learner that is catching up.

        None means that there is no such learner, or that the oldest has used up its time and needs another snapshot.
        """
        way = self._on_the_way.get(replica.group_id)
        learners = replica.core.membership.learners
        if way is None or not learners or self._host.loop.time() - way.began_at > self._host.timing.catch_up_seconds:
            return None
        matches = replica.core.match_indexes()
        return min((matches.get(learner, LogIndex(0)) for learner in learners), default=None)

    # ------------------------------------------------------------------------------------------------ metadata group

    async def _maintain_metadata(self, replica: Replica[Metadata]) -> None:
        machine = replica.state_machine
        voters = choose_metadata_voters(
            machine.nodes(),
            machine.metadata_voters,
            replica.core.membership.voters,
            replica.replica_id,
            self._metadata_voters_max,
            self._host.is_connected,
        )
        if voters and voters != machine.metadata_voters:
            await self._execute(replica, SetMetadataMembership(voters, machine.revision))
            log.info("metadata_voters_chosen", replicas=voters)
        wanted = frozenset(ReplicaId(voter) for voter in machine.metadata_voters)
        everyone = frozenset(ReplicaId(member.replica_id) for member in machine.metadata_replicas)
        retiring = frozenset(ReplicaId(member.replica_id) for member in machine.metadata_retiring)
        self._advance(
            replica,
            MembershipTarget(wanted, everyone - wanted, retiring, machine.metadata_membership_revision),
            may_add=True,
        )
        members = replica.core.membership.member_ids
        for replica_id in sorted(retiring.difference(members)):
            await self._execute(replica, RemoveReplica(METADATA_GROUP_ID, replica_id))

    async def _replace_missing(self, replica: Replica[Metadata]) -> None:
        """Give another replica to partitions that lost one with a removed node, a few at a time."""
        machine, limits = replica.state_machine, self._host.limits
        if machine.layout_version == self._whole_at_version:
            return
        version, nodes = machine.layout_version, machine.nodes()
        partitions = {one.group_id: one for one in (*machine.unsettled_partitions(), *machine.short_partitions())}
        plan = plan_replacements(
            [wanted_partition(machine, partition) for _, partition in sorted(partitions.items())],
            nodes,
            {node.node_id: machine.replica_count_of_node(node.node_id) for node in nodes},
            {node.node_id: node.partitions_max or limits.partitions_max for node in nodes},
            lambda node_id: self._host.is_connected(NodeId(node_id)),
            self._leader_of,
            limits.rebuilding_max,
            machine.balancing.moves_max,
        )
        if plan.is_whole:
            self._whole_at_version = version
        if not plan.without_node_count:
            self._without_node_throttle.forget()
        elif self._without_node_throttle.is_due():
            log.warning("replicas_without_broker", replicas=plan.without_node_count)
        if plan.commands:
            await replica.propose([Proposal(EntryKind.COMMAND, encode_command(one)) for one in plan.commands])[1]
            log.info("replicas_replaced", replicas=len(plan.commands))

    def _leader_of(self, group_id: int) -> NodeId:
        is_led = self._host.is_led(GroupId(group_id))
        return self._host.leadership.get(GroupId(group_id)).node_id if is_led else NO_NODE

    @staticmethod
    async def _execute(replica: Replica[Metadata], command: MetadataCommand) -> None:
        await replica.propose([Proposal(EntryKind.COMMAND, encode_command(command))])[1]

    # ------------------------------------------------------------------------------------------------ partitions

    def _maintain_partitions(self, metadata: Metadata) -> Moved:
        """Advance every led partition whose membership differs from the target. Return replicas that have left or joined their groups."""
        moved = Moved()
        self._host.pace_moves(metadata.balancing.bytes_per_second)
        settled: dict[GroupId, tuple[PartitionView, Membership]] = {}
        unsettled: list[Replica[StateMachine]] = []
        for replica in self._host.partition_replicas():
            if not replica.is_leader:
                continue
            group_id = replica.group_id
            known = self._settled.get(group_id)
            # views and memberships are replaced, never changed
            if known and known[0] is metadata.partition(group_id) and known[1] is replica.core.membership:
                settled[group_id] = known
            else:
                unsettled.append(replica)
        slots = _Slots(self._host.limits.catching_up_max)
        for replica in unsettled:  # a settled group has no learners
            slots.count(replica, self._catching_up(replica))
        for replica in unsettled:
            with self._step():
                self._maintain_partition(metadata, replica, settled, moved, slots)
        self._settled = settled
        groups = {replica.group_id for replica in unsettled}
        remaining = frozenset(groups - settled.keys())
        self._stuck_moves.retain(remaining)
        self._seals = {group_id: seal for group_id, seal in self._seals.items() if group_id in remaining}
        self._on_the_way = {
            group_id: way
            for group_id, way in self._on_the_way.items()
            if group_id == METADATA_GROUP_ID or group_id in groups or group_id in settled
        }
        return moved

    def _maintain_partition(
        self,
        metadata: Metadata,
        replica: Replica[StateMachine],
        settled: dict[GroupId, tuple[PartitionView, Membership]],
        moved: Moved,
        slots: _Slots,
    ) -> None:
        """Advance one partition. Add its replicas that have left or joined to `moved`, and its new learners to `slots`."""
        partition, membership = metadata.partition(replica.group_id), replica.core.membership
        if partition is None:
            return
        target = partition_target(partition)
        moved.revisions[replica.group_id] = partition.revision
        # known before the learners are, so that not one byte of a repair waits
        moving = moved_replicas(partition)
        further = further_replicas(metadata, partition)
        replica.core.urgent_learners = target.voters - moving - further
        for key in self._stuck_moves.observe(replica, moving | further):
            node_id = replica.node_of(key.replica_id)
            is_connected = self._host.is_connected(node_id)
            moved.stuck[key] = reason_of(node_id, self._host.timing.move_stuck_seconds, is_connected=is_connected)
        is_repair = not replica.core.urgent_learners.issubset(replica.core.membership.voters)
        had_learners = bool(replica.core.membership.learners)
        may_add = had_learners or (
            slots.has_room(is_repair=is_repair) and self._may_begin(replica, target, is_repair=is_repair)
        )
        if self._advance(replica, target, may_add=may_add) and not had_learners:
            slots.moving += 1
            slots.repairing += is_repair
        left, joined = self._left(replica, wanted_partition(metadata, partition)), _joined(replica, partition)
        if (left or joined) and self._is_closed_to_older(replica, partition.revision) and self._is_sealed(replica):
            moved.left += left
            moved.joined += joined
        is_settled = not partition.retiring and not any(member.is_newcomer for member in partition.replicas)
        if is_settled and replica.core.membership is membership and is_reached(membership, target):
            settled[replica.group_id] = (partition, membership)

    def _catching_up(self, replica: Replica[StateMachine]) -> list[ReplicaId]:
        """Return the learners of a group that are reachable and not stuck."""
        return [
            learner
            for learner in replica.core.membership.learners
            if self._host.is_connected(replica.node_of(learner))
            and not self._stuck_moves.is_stuck(ReplicaKey(replica.group_id, learner))
        ]

    def _may_begin(self, replica: Replica[StateMachine], target: MembershipTarget, *, is_repair: bool) -> bool:
        """Return whether new replicas of a group may become learners now.

        A repair waits until one of their brokers is reachable, so that not all begin when it returns. A move does not: its replica must become a
        learner to be found stuck.
        """
        newcomers = target.voters.difference(replica.core.membership.member_ids)
        return not is_repair or any(self._host.is_connected(replica.node_of(one)) for one in newcomers)

    @staticmethod
    def _left(replica: Replica[StateMachine], wanted: WantedPartition) -> list[ReplicaKey]:
        """Return the retiring replicas that the group will not need again.

        A lost replica stays listed until its successor votes or all wanted replicas do, so that metadata shows which partitions are being rebuilt.
        It is not listed longer, because its seat counts as unhealthy while it is, and another seat may be unhealthy permanently
        (`has_healthy_majority`).
        """
        partition, membership = wanted.view, replica.core.membership
        if not partition.retiring or membership.is_joint:
            return []
        is_whole = not wanted.missing_count and is_reached(membership, partition_target(partition))
        voting_seats = {member.seat for member in partition.replicas if member.replica_id in membership.voters}
        return [
            ReplicaKey(replica.group_id, ReplicaId(member.replica_id))
            for member in partition.retiring
            if member.replica_id not in membership.member_ids
            and (is_whole or not member.is_lost or member.seat in voting_seats)
        ]

    def _is_closed_to_older(self, replica: Replica[StateMachine], revision: int) -> bool:
        """Return whether the group refuses targets older than metadata's `revision`. If not, start to make it do so.

        Scenario: metadata wants {1, 2}, then {1, 2, 3}, then {1, 2} again, which the group already has. 3 was never in it, so its files are
        deleted. If node 2 led next with metadata that ends at the second target, it would add 3, let it vote, and lose it.
        """
        membership = replica.core.membership
        if membership.revision >= revision:
            return True
        same = MembershipChange(((MembershipOp.ADD_VOTER, membership.voters[0]),), revision)
        with contextlib.suppress(RequestError):  # otherwise in the next round
            replica.propose_membership(same).add_done_callback(consume_exception)
        return False

    def _is_sealed(self, replica: Replica[StateMachine]) -> bool:
        """Return whether a majority has on disk that the group's configuration is committed. If not, start to make it so.

        Scenario: {1, 2} becomes {1, 3}. Each member immediately writes that the joint configuration was left, but no other node learns when it has.
        If the files of 2 were deleted before, and 1 and 3 crashed, both would restart in the joint configuration and need a vote of 2 without
        end. An entry that is proposed after the change was applied carries its commit index, which is written with the entry.
        """
        state = (replica.term, replica.core.membership)
        known = self._seals.get(replica.group_id)
        if known is not None and known[0] == state and not _has_failed(known[1]):
            return known[1].done()
        try:
            _, applied = replica.propose([Proposal(EntryKind.EMPTY, b"")])
        except RequestError:  # the next round tries again
            return False
        applied.add_done_callback(consume_exception)
        self._seals[replica.group_id] = (state, applied)
        return False

    # ------------------------------------------------------------------------------------------------ any group

    def _advance(self, replica: Replica[MachineT], target: MembershipTarget, *, may_add: bool) -> bool:
        """Propose the group's next change, if there is one. Return whether it adds learners."""
        core = replica.core
        if is_reached(core.membership, target):
            self._on_the_way.pop(replica.group_id, None)
            return False
        change = plan_change(core.membership, target, self._caught_up(replica))
        if change is None:
            return False
        is_adding = change.steps[0][0] is MembershipOp.ADD_LEARNER
        if is_adding and not may_add:
            return False
        try:
            replica.propose_membership(change).add_done_callback(consume_exception)
        except RequestError:  # a change is under way, or this leader has just begun: the next round tries again
            known = core.membership.revision
            if target.revision < known and self._outdated_throttle.is_due(replica.group_id):
                reason = f"revision {target.revision} is wanted, and {known} was carried out"
                log.info("membership_target_outdated", group_id=replica.group_id, reason=reason)
            return False
        steps = ", ".join(f"{op.name.lower()} {replica_id}" for op, replica_id in change.steps)
        log.info("membership_change_proposed", group_id=replica.group_id, steps=steps)
        return is_adding

    def _caught_up(self, replica: Replica[MachineT]) -> set[ReplicaId]:
        """Return the members that have everything that was committed at the time of the last round.

        A member that was sent a snapshot since then does not count, because its state may be ahead of its log. Neither does one that is
        unreachable. Scenario: the only replica of a partition moves to 2, which has caught up and dies. The joint configuration would need
        2, cannot be left without it, and the partition would stop although its data is on a healthy broker.
        """
        core, now = replica.core, self._host.loop.time()
        way = self._on_the_way.get(replica.group_id)
        if way is None:
            self._on_the_way[replica.group_id] = _CatchUp(now, now, core.commit_index)
            return set()
        caught_up = {
            replica_id
            for replica_id, match_index in core.match_indexes().items()
            if match_index >= way.noted_commit_index
            and replica.outgoing_snapshots.sent_at(replica_id) <= way.noted_at
            and self._host.is_connected(replica.node_of(replica_id))
        }
        way.noted_at, way.noted_commit_index = now, core.commit_index
        return caught_up


def _joined(replica: Replica[StateMachine], partition: PartitionView) -> list[ReplicaKey]:
    """Return the newcomers that vote."""
    membership = replica.core.membership
    if membership.is_joint:
        return []
    return [
        ReplicaKey(replica.group_id, ReplicaId(member.replica_id))
        for member in partition.replicas
        if member.is_newcomer and member.replica_id in membership.voters
    ]


def _has_failed(done: asyncio.Future[list[object]]) -> bool:
    return done.done() and (done.cancelled() or done.exception() is not None)
