"""Move replicas to the brokers where they should be. One node does it: the metadata leader.

It plans (`balance_plan`) when brokers, topics, settings or the availability of brokers changed, and carries the plan out a few partitions at
a time. It stores nothing: the desired replicas in metadata are the only trace of a plan, so the next metadata leader plans again and goes on.

Keep true:

- A drain is carried out, and surplus replicas are removed, whether or not balancing is automatic.
- A partition is moved only if it has a healthy majority throughout the move. It is not moved again before its old replicas are gone.
- Nothing is planned while nothing changed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Supervisor, Work
from raftmq.broker.cluster.balance_plan import BalancePlan, Change
from raftmq.broker.cluster.layout import (
    available_nodes,
    describe_layout,
    moving_partitions,
    next_retry_ms,
    refusal_of_move,
)
from raftmq.broker.cluster.leader_placement import LeaderPlacement, LeadersHost
from raftmq.broker.cluster.peer_readiness import PeerReadiness
from raftmq.broker.cluster.stability import Stability
from raftmq.broker.replica.leadership_table import LeadershipTable
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.feature_levels import NEWCOMER_LEVEL
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_balancing import REBALANCE_REPLICAS
from raftmq.fsm.metadata_commands import MetadataCommand, Rejected, SetBalancing, SetReplicas, encode_command
from raftmq.fsm.metadata_nodes import ACTIVE
from raftmq.fsm.metadata_views import PartitionView
from raftmq.raft.entry import EntryKind, Proposal
from raftmq.types import NO_NODE, GroupId, NodeId

log = structlog.get_logger(__name__)

LOOKS_MAX: Final = 200
"""Planned changes looked at in a round, so that many that must wait cost little."""
WISHED_SIZES_SECONDS: Final = 60.0
"""The least interval at which the sizes of partitions are asked for while an operator's wish for a rebalancing is carried out."""
UNKNOWN_SIZES_SECONDS: Final = 2.0
"""The same interval before all sizes are known."""
COMMANDS_MAX: Final = 50
"""Changes proposed in a round."""


class ControllerHost(LeadersHost, Protocol):
    """The node as its controller sees it."""

    limits: Limits
    timing: Timing
    supervisor: Supervisor
    loop: asyncio.AbstractEventLoop
    leadership: LeadershipTable
    stability: Stability

    @property
    def metadata(self) -> Replica[Metadata]:
        """Return this node's metadata replica. Raises RequestError NOT_FORMED or NOT_READY."""
        ...

    def process_of(self, node_id: NodeId) -> bytes | None:
        """Return the mark that distinguishes that node's process from an earlier one, or None while it is not connected."""
        ...

    def is_led(self, group_id: GroupId) -> bool:
        """Return whether the group has a leader, as far as this node can tell."""
        ...

    def now_ms(self) -> int:
        """Return the time, in milliseconds since the epoch."""
        ...


@dataclass
class Agenda:
    """The part of a plan that is not carried out yet."""

    wishes_version: int = -1
    layout_version: int = -1
    """The version of metadata for which it was planned."""
    available: frozenset[int] = frozenset()
    """The nodes that could be given replicas then."""
    waiting: deque[tuple[Change, int]] = field(default_factory=deque[tuple[Change, int]])
    """Changes with the revision that their partition had."""
    without_place: tuple[int, ...] = ()
    replan_at_ms: int | None = None
    """The time from which on a move that was given up may be planned again."""
    is_stuck: bool = False
    """Whether no waiting change was possible in the last round although nothing moved."""


class SizeSource(Protocol):
    """Knows the sizes of partitions."""

    async def sizes(self) -> dict[int, int] | None:
        """Return the size of every partition by its group, or None if not all are known."""
        ...


class Controller:
    """Moves replicas while its node leads the metadata group, and leaderships of the groups that its node leads."""

    def __init__(self, host: ControllerHost, readiness: PeerReadiness, sizes: SizeSource) -> None:
        self._host = host
        self._readiness = readiness
        self.leaders = LeaderPlacement(host, readiness)
        self._agenda = Agenda()
        self._size_source = sizes
        self._sizes: dict[int, int] | None = None
        """The sizes of partitions as of `_sizes_at`, loop time. They are asked for rarely, so that bytes are evened slowly."""
        self._sizes_at = float("-inf")
        self._without_place_throttle = LogThrottle()

    async def run(self) -> None:
        """Do rounds until cancelled."""
        while True:
            await asyncio.sleep(self._host.timing.controller_seconds)
            try:
                await self.round()
            except RequestError as error:  # leadership moved, or metadata is not ready: the next round checks again
                log.debug("balancing_postponed", reason=str(error))

    async def round(self) -> None:
        """Do one round: look at the brokers, move replicas, then leaderships."""
        metadata = self._host.metadata
        machine = metadata.state_machine
        self._host.stability.observe(machine.nodes(), self._host.process_of)
        if machine.feature_level < NEWCOMER_LEVEL:
            return
        with self._step():
            await self.leaders.round(machine)
        if not metadata.is_leader:
            self._agenda, self._sizes, self._sizes_at = Agenda(), None, float("-inf")
            return
        with self._step():
            await self._move_replicas(metadata)

    def _step(self) -> AbstractContextManager[None]:
        return self._host.supervisor.step(Work.CONTROLLER)

    def is_at_rest(self, machine: Metadata) -> bool:
        """Return whether the plan for the present metadata wants no change, except of partitions without a leader: nobody can make it."""
        return self._agenda.layout_version == machine.layout_version and not self._is_going_on()

    def _is_going_on(self) -> bool:
        """Return whether a change that waits can be made as far as its partition is concerned."""
        return any(self._is_led(change.group_id) for change, _ in self._agenda.waiting)

    @property
    def without_place(self) -> tuple[int, ...]:
        """The groups with a replica on a draining broker that no other broker can take."""
        return self._agenda.without_place

    # ------------------------------------------------------------------------------------------------ planning

    async def _move_replicas(self, metadata: Replica[Metadata]) -> None:
        machine = metadata.state_machine
        available = available_nodes(machine, self._host.stability.is_stable, self._is_led)
        if not available:
            return
        await self._refresh_sizes(machine)
        if not metadata.is_leader:
            return
        if self._must_plan(machine, available):
            await self._plan(machine, available)
        commands = await self._next_commands(machine)
        if commands:
            await self._propose(metadata, commands)
        elif (
            machine.balancing.rebalance
            and await self._is_rebalanced(machine)
            and metadata.core.last_index
            == machine.applied_index  # a newer wish may be in the log, and would be withdrawn with this one
        ):
            await self._propose(metadata, [SetBalancing(rebalance="")])
            log.info("rebalancing_done")

    async def _refresh_sizes(self, machine: Metadata) -> None:
        """Ask for the sizes of partitions if that is due, and plan with them. Sooner if an operator wants a rebalancing."""
        balancing, now = machine.balancing, self._host.loop.time()
        if not balancing.may_move_replicas or self._is_going_on() or self._unsettled(machine):
            return
        is_wished = balancing.rebalance == REBALANCE_REPLICAS
        interval = self._host.timing.size_check_seconds
        if is_wished:
            interval = UNKNOWN_SIZES_SECONDS if self._sizes is None else WISHED_SIZES_SECONDS
        if now - self._sizes_at < interval:
            return
        self._sizes_at, self._sizes = now, await self._size_source.sizes()
        if self._sizes is not None:
            self._agenda.layout_version = -1

    def _must_plan(self, machine: Metadata, available: frozenset[int]) -> bool:
        agenda = self._agenda
        if agenda.wishes_version != machine.wishes_version or agenda.available != available:
            return True
        if agenda.replan_at_ms is not None and self._host.now_ms() >= agenda.replan_at_ms:
            return True
        # changes that are impossible for long, because brokers are down, must not hold up others
        return (agenda.is_stuck or not agenda.waiting) and agenda.layout_version != machine.layout_version

    async def _plan(self, machine: Metadata, available: frozenset[int]) -> None:
        """Plan in a thread, because a plan for many partitions takes a while. Metadata may change in that time, so each change names a revision."""
        balancing = machine.balancing
        now_ms = self._host.now_ms()
        agenda = Agenda(machine.wishes_version, machine.layout_version, available)
        agenda.replan_at_ms = next_retry_ms(machine, now_ms)
        layout = describe_layout(machine, self._host.limits.partitions_max, available, now_ms, self._sizes)
        revisions = {one.group_id: _revision(machine.partition(one.group_id)) for one in layout.partitions}

        def plan() -> BalancePlan:
            return layout.plan(is_automatic=balancing.may_move_leaders, leaders_only=not balancing.may_move_replicas)

        made = await self._host.loop.run_in_executor(None, plan)
        agenda.waiting.extend((change, revisions[change.group_id]) for change in made.changes)
        agenda.without_place = made.without_place
        self._agenda = agenda
        if made.changes:
            log.info("moves_planned", partitions=len(made.changes))
        if not made.without_place:
            self._without_place_throttle.forget()
        elif self._without_place_throttle.is_due():
            log.warning("replicas_without_place", replicas=len(made.without_place))

    # ------------------------------------------------------------------------------------------------ carrying out

    async def _next_commands(self, machine: Metadata) -> list[SetReplicas]:
        """Return the changes to propose now. Those that must wait stay on the agenda, and those that became stale leave it."""
        waiting, commands = self._agenda.waiting, list[SetReplicas]()
        if not waiting:
            return commands
        moving = moving_partitions(machine, self._is_connected, self._is_led)
        room = machine.balancing.moves_max - moving
        postponed: list[tuple[Change, int]] = []
        for _ in range(min(len(waiting), LOOKS_MAX)):
            if len(commands) >= COMMANDS_MAX:
                break
            change, revision = waiting.popleft()
            partition = machine.partition(change.group_id)
            if partition is None or partition.revision != revision:
                continue
            is_move = {replica.node_id for replica in partition.replicas} != set(change.node_ids)
            if (is_move and room <= 0) or not await self._is_possible(machine, partition, change):
                postponed.append((change, revision))
                continue
            room -= is_move
            commands.append(SetReplicas(change.group_id, change.node_ids, revision))
        waiting.extend(postponed)
        self._agenda.is_stuck = not commands and not moving
        return commands

    async def _is_possible(self, machine: Metadata, partition: PartitionView, change: Change) -> bool:
        leader = self._leader_of(partition.group_id)
        if refusal_of_move(machine, partition, change.node_ids, leader, self._is_connected) is not None:
            return False
        for node_id in change.added(replica.node_id for replica in partition.replicas):
            if node_id not in self._agenda.available or not self._is_connected(node_id):
                return False
            if not await self._readiness.is_ready(NodeId(node_id)):
                self._host.stability.doubt(node_id)
                return False
        return True

    async def _propose(self, metadata: Replica[Metadata], commands: Sequence[MetadataCommand]) -> None:
        proposals = [Proposal(EntryKind.COMMAND, encode_command(one)) for one in commands]
        results = await metadata.propose(proposals)[1]
        refused = [result.message for result in results if isinstance(result, Rejected)]
        if refused:
            log.info("moves_refused", partitions=len(refused), reason=refused[0])
        if len(refused) < len(results):
            log.info("moves_begun", partitions=len(results) - len(refused))

    async def _is_rebalanced(self, machine: Metadata) -> bool:
        """Return whether the wish for one rebalancing is fulfilled: nothing is planned, nothing moves, and preferred leaders lead.

        Partitions without a leader, and brokers that may not lead because they are not ready, do not count. Otherwise the wish would stand
        until an operator repairs them. One that started a moment ago is not given up before it counts as stable: it may be about to get replicas,
        too, and the answer to the wish has planned them.
        """
        if not self.is_at_rest(machine) or self._unsettled(machine):
            return False
        new = {
            node.node_id
            for node in machine.nodes()
            if node.state == ACTIVE and self._host.stability.is_new(node.node_id)
        }
        if new and machine.balancing.rebalance == REBALANCE_REPLICAS:
            return False
        missing = {
            partition.replicas[0].node_id
            for topic in machine.topics()
            for group_id in topic.group_ids
            if (partition := machine.partition(group_id)) is not None
            and partition.replicas
            and partition.replicas[0].node_id in self._agenda.available | new
            and self._leader_of(group_id) not in (NO_NODE, partition.replicas[0].node_id)
        }
        if missing & new:
            return False
        are_ready = [await self._readiness.is_ready(NodeId(node_id)) for node_id in sorted(missing)]
        return not any(are_ready) and self.is_at_rest(machine)  # a newer wish may have been applied in the meantime

    def _unsettled(self, machine: Metadata) -> list[PartitionView]:
        """Return the partitions that move or are rebuilt, without those that have no leader: they cannot."""
        return [partition for partition in machine.unsettled_partitions() if self._is_led(partition.group_id)]

    def _is_connected(self, node_id: int) -> bool:
        return self._host.is_connected(NodeId(node_id))

    def _is_led(self, group_id: int) -> bool:
        return self._host.is_led(GroupId(group_id))

    def _leader_of(self, group_id: int) -> NodeId:
        return self._host.leadership.get(GroupId(group_id)).node_id if self._is_led(group_id) else NO_NODE


def _revision(partition: PartitionView | None) -> int:
    return partition.revision if partition is not None else 0
