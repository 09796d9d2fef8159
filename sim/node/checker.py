"""Watches every node of a run and holds it to the invariants, as things happen.

Hooks into the production parts from outside (they do not know of it): what is applied, what leaves, who leads, what breaks.
A broken invariant ends the run at once.
"""

# ruff: noqa: ANN401 -- hooks stand in for methods of the product

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

from raftmq.broker.group import Group
from raftmq.errors import InvariantError
from raftmq.fsm.log_commands import TrimLog, decode_command
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.messages import AppendRequest, AppendResponse, Message, VoteResponse
from raftmq.raft.ready import AppendWork, Role, RoleChange
from raftmq.storage.errors import CommitFailedError, DamagedReplicaError
from raftmq.storage.log_store import ReplicaKey

from sim.core.invariants.election_safety import ElectionSafety
from sim.core.invariants.violation import InvariantViolation, demand
from sim.node.cluster import Cluster, Process
from sim.node.invariants.acknowledged import Acknowledged
from sim.node.invariants.applied_once import AppliedOnce
from sim.node.invariants.budgets import Budgets
from sim.node.invariants.committed_log import CommittedLog
from sim.node.invariants.definite_failures import DefiniteFailures
from sim.node.invariants.durable_answers import check_append_response, check_vote_response, durable_meta
from sim.node.invariants.exactly_once import ExactlyOnce
from sim.node.invariants.group_ownership import SESSION_SECONDS, GroupOwnership
from sim.node.invariants.high_watermark import HighWatermark
from sim.node.invariants.quarantine import check_quarantined_silent, check_serves_none_quarantined
from sim.node.invariants.reads import CommittedReads
from sim.node.invariants.replica_state import ReplicaStates
from sim.node.invariants.retention import Retention
from sim.node.invariants.stale_leaders import StaleLeaders
from sim.node.invariants.votes import VoteOnce
from sim.node.loop import SimulationEnd

Arguments = ParamSpec("Arguments")
CLOCK_RATE_MAX = 1.25
"""Of any simulated clock."""
LOOK_SECONDS = 0.25
COMPARE_EVERY = 6
"""State machines are compared at every so many looks."""


class Checker:
    """The invariants' memory of one run."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.violation: InvariantViolation | None = None
        self.committed = CommittedLog()
        self.exactly_once = ExactlyOnce()
        self.definite_failures = DefiniteFailures()
        self.acknowledged = Acknowledged(self.committed)
        self.reads = CommittedReads(self.committed)
        self.replica_states = ReplicaStates()
        self.groups = GroupOwnership(SESSION_SECONDS, CLOCK_RATE_MAX)
        self.retention = Retention(self.acknowledged)
        self._stale_leaders = StaleLeaders()
        self._commands: dict[tuple[int, int], None] = {}
        """(group, index) of commands that were looked at."""
        self.on_retention: Callable[[int, int], None] = lambda group_id, before: None
        """Told of records that are gone because they were old."""
        self._elections: dict[int, ElectionSafety] = {}
        self._votes: dict[int, VoteOnce] = {}
        self._budgets: dict[str, Budgets] = {}
        """By machine, of the broker that it runs."""
        self._looks = 0
        self.damaged: dict[tuple[str, ReplicaKey], None] = {}
        """Replicas that a fault damaged, by machine: they alone may break."""
        self.quarantined: dict[tuple[str, ReplicaKey], None] = {}
        """Replicas that their nodes gave up."""
        self.stalls: dict[str, int] = {}
        """How often each process noticed that it had stood still."""
        self.leaders_elected = 0
        self.broken_replicas = 0
        cluster.on_process.append(self._watch)
        cluster.on_broken_replica.append(lambda *arguments: self.judge(self._on_broken, *arguments))
        cluster.on_fatal_error.append(lambda *arguments: self.judge(self._on_fatal, *arguments))
        cluster.loop.after(LOOK_SECONDS, None, self._look)

    @property
    def now(self) -> float:
        """The simulation's time."""
        return self._cluster.loop.now

    def judge(self, check: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        """Run a check; a broken invariant ends the run, from whatever depth."""
        try:
            check(*args, **kwargs)
        except InvariantViolation as violation:
            self.violation = self.violation or violation
            raise SimulationEnd from violation

    # ------------------------------------------------------------------------------------------------ hooks

    def _watch(self, process: Process) -> None:
        node = process.node
        assert node is not None
        engine: Any = node.engine
        add_group, send, on_role_change = engine.add_group, engine.send, engine._on_role_change

        def watched_add_group(*arguments: Any, **named: Any) -> Group[StateMachine]:
            group: Group[StateMachine] = add_group(*arguments, **named)
            self._watch_group(process, group)
            return group

        def watched_send(group: Group[StateMachine], message: Message) -> None:
            self.judge(self._on_send, process, group, message)
            send(group, message)

        def watched_role_change(group: Group[StateMachine], change: RoleChange) -> None:
            if change.role is Role.LEADER:
                self.judge(self._on_leader, group, change)
            on_role_change(group, change)

        registry: Any = node.registry
        quarantine = registry.quarantine

        def watched_quarantine(key: ReplicaKey, reason: str) -> None:
            self.quarantined[process.machine.name, key] = None
            quarantine(key, reason)

        budgets = self._budgets[process.machine.name] = Budgets(node)
        reserve, admit = engine.reserve_uncommitted, engine._admit_inbound

        def watched_reserve(size: int) -> bool:
            before = engine.uncommitted_bytes
            is_taken: bool = reserve(size)
            if is_taken:
                self.judge(budgets.on_proposal, before)
            return is_taken

        def watched_admit(group: Group[StateMachine], message: AppendRequest) -> bool:
            before = engine.inbound_bytes
            is_taken: bool = admit(group, message)
            if is_taken:
                self.judge(budgets.on_append, before)
            return is_taken

        begin_write = engine.commits.start

        def watched_write(group: Group[StateMachine], work: AppendWork, inbound_bytes: int) -> None:
            begin_write(group, work, inbound_bytes)
            budgets.on_write(group, inbound_bytes)

        registry.quarantine = watched_quarantine
        engine.commits.start = watched_write
        engine.reserve_uncommitted = watched_reserve
        engine._admit_inbound = watched_admit
        engine.add_group = watched_add_group
        engine.send = watched_send
        engine._on_role_change = watched_role_change

    def _watch_group(self, process: Process, group: Group[StateMachine]) -> None:
        watched: Any = group
        apply = group.apply
        applied = AppliedOnce(group)
        watermark = HighWatermark(group)

        def watched_apply(entries: Sequence[Entry]) -> None:
            self.judge(self._before_apply, group, applied, entries)
            apply(entries)
            self.judge(watermark.check)

        watched.apply = watched_apply

    def _before_apply(self, group: Group[StateMachine], applied: AppliedOnce, entries: Sequence[Entry]) -> None:
        applied.on_apply(entries)
        for entry in entries:
            if self.committed.on_applied(group.group_id, group.replica_id, entry):
                batch = self.committed.batch_at(group.group_id, entry.base_offset)
                self.exactly_once.on_committed(group.group_id, batch)
                self.definite_failures.on_committed(group.group_id, batch)
                self.retention.on_committed(group.group_id, entry.next_offset, entry.append_time_ms)
            elif entry.kind is EntryKind.COMMAND and isinstance(group.machine, LogPartition):
                self._on_command(group.group_id, entry)

    def _on_command(self, group_id: int, entry: Entry) -> None:
        """A command of a partition that was not known."""
        if (group_id, entry.index) in self._commands:
            return
        self._commands[group_id, entry.index] = None
        command = decode_command(entry.payload)
        if isinstance(command, TrimLog):
            wall_ms_max = self._cluster.wall_ms_max + int(self.now * 1000)
            if self.retention.on_trim(group_id, command.before_offset, wall_ms_max):
                self.on_retention(group_id, command.before_offset)

    def _on_send(self, process: Process, group: Group[StateMachine], message: Message) -> None:
        check_quarantined_silent(process, group, message)
        if isinstance(message, AppendResponse):
            meta = durable_meta(process.machine.disk, group.key)
            if meta is not None:
                check_append_response(meta, message)
        elif isinstance(message, VoteResponse) and message.is_granted and not message.is_pre_vote:
            meta = durable_meta(process.machine.disk, group.key)
            if meta is not None:
                check_vote_response(meta, message)
            self._votes.setdefault(group.group_id, VoteOnce()).on_vote(message)

    def _on_leader(self, group: Group[StateMachine], change: RoleChange) -> None:
        self.leaders_elected += 1
        self._cluster.trace(f"r{group.replica_id} leads g{group.group_id} in term {change.term}")
        self._elections.setdefault(group.group_id, ElectionSafety()).on_leader(group.replica_id, change.term)

    def _on_broken(self, process: Process, group: Group[StateMachine], error: Exception) -> None:
        """A replica may only fall silent for damage that a fault did."""
        self.broken_replicas += 1
        is_damaged = isinstance(error, DamagedReplicaError) and (process.machine.name, group.key) in self.damaged
        demand(is_damaged, "NoDefect", f"{process.machine.name} r{group.replica_id} of g{group.group_id}: {error!r}")

    def _on_fatal(self, process: Process, error: BaseException) -> None:
        if isinstance(error, DamagedReplicaError) and any(name == process.machine.name for name, _ in self.damaged):
            return
        is_rule = isinstance(error, InvariantError | CommitFailedError)
        demand(not is_rule, "NoDefect", f"{process.machine.name} ends: {error!r}")

    # ------------------------------------------------------------------------------------------------ looking

    def _look(self) -> None:
        self._looks += 1
        for process in self._cluster.running():
            assert process.node is not None
            self.stalls[repr(process.host)] = process.node.engine.counters.stalls_total
            if not process.host.is_frozen:
                self.judge(self._budgets[process.machine.name].check)
                self.judge(check_serves_none_quarantined, process.node)
        self.judge(self._stale_leaders.look, self._cluster.running(), self.now)
        if self._looks % COMPARE_EVERY == 0:
            self.compare_states()
        self._cluster.loop.after(LOOK_SECONDS, None, self._look)

    def compare_states(self) -> None:
        """Replicas of a group that applied equally much are equal. Also counts recent entries, which is as dear."""
        for process in self._cluster.running():
            assert process.node is not None
            self.judge(self._budgets[process.machine.name].check_recent_entries)
            for group in process.node.engine.groups.values():
                self.judge(self.replica_states.on_state, group)

    def is_quiet(self) -> bool:
        """Whether everything that was proposed is applied: retention goes on by itself."""
        groups = [g for p in self._cluster.running() if p.node is not None for g in p.node.engine.groups.values()]
        return not any(g.append_in_flight or g.core.applied_index < g.core.last_index for g in groups)

    def at_end(self) -> None:
        """Once more, whole, when everything is quiet."""
        self.compare_states()
        for process in self._cluster.running():
            assert process.node is not None
            self.judge(self._budgets[process.machine.name].check_given_back)
