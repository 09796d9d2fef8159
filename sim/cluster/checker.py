"""Watches every node of a run and checks the invariants while it runs.

It hooks into the production parts from outside, without their knowledge: applied entries, sent messages, new leaders, failures.
A broken invariant ends the run immediately.
"""

# ruff: noqa: ANN401 -- hooks stand in for methods of the product

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ParamSpec

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Work
from raftmq.broker.partitions.queue.clock import QueueClock
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.replica.disk import Idle
from raftmq.broker.replica.replica import Replica
from raftmq.errors import UnsupportedDataError
from raftmq.fsm.log_commands import TrimLog, decode_command
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import LeaveConsumerGroup
from raftmq.fsm.metadata_commands import decode_command as decode_metadata_command
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import Entry, EntryHeader, EntryKind, Proposal
from raftmq.raft.membership import MembershipChange
from raftmq.raft.messages import AppendRequest, AppendResponse, Message, VoteRequest, VoteResponse
from raftmq.raft.ready import Appended, AppendWork, Role, RoleChange
from raftmq.storage.errors import CommitFailedError, DamagedReplicaError, RegistryError, StorageFullError
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.state_store import StateWrite
from raftmq.types import METADATA_GROUP_ID, GroupId

from sim.cluster.cluster import Cluster, Process
from sim.cluster.invariants.acknowledged import Acknowledged
from sim.cluster.invariants.applied_once import AppliedOnce
from sim.cluster.invariants.bounded_restart import check_bounded_restart, durable_clean_point
from sim.cluster.invariants.budgets import Budgets
from sim.cluster.invariants.committed_log import CommittedLog
from sim.cluster.invariants.committed_on_disk import CommittedOnDisk
from sim.cluster.invariants.dead_letters import DeadLetters
from sim.cluster.invariants.definite_failures import DefiniteFailures
from sim.cluster.invariants.durable_answers import (
    check_append_response,
    check_vote_request,
    check_vote_response,
    durable_meta,
    stored_entries,
)
from sim.cluster.invariants.exactly_once import ExactlyOnce
from sim.cluster.invariants.failed_commits import check_ended_after_failed_commit
from sim.cluster.invariants.group_ownership import SESSION_SECONDS, GroupOwnership
from sim.cluster.invariants.high_watermark import HighWatermark
from sim.cluster.invariants.memory import Memory
from sim.cluster.invariants.new_voters import check_new_voters
from sim.cluster.invariants.pace import watch_pace
from sim.cluster.invariants.quarantine import check_quarantined_silent, check_serves_none_quarantined
from sim.cluster.invariants.queue_clock import QueueClocks
from sim.cluster.invariants.queue_firings import Firings
from sim.cluster.invariants.queue_rows import DurableQueue, check_bodies, living_rows
from sim.cluster.invariants.queue_state import QueueStates, check_gate, check_rows_not_ahead
from sim.cluster.invariants.queue_turns import FairTurns
from sim.cluster.invariants.reads import CommittedReads
from sim.cluster.invariants.recoveries import Recoveries
from sim.cluster.invariants.refused_copies import check_only_copies_refused
from sim.cluster.invariants.removals import Removals
from sim.cluster.invariants.replica_state import ReplicaStates
from sim.cluster.invariants.resting import check_rest
from sim.cluster.invariants.retention import Retention, check_stamp
from sim.cluster.invariants.reverted_moves import RevertedMoves
from sim.cluster.invariants.row_levels import RowLevels
from sim.cluster.invariants.served import (
    PlantedDefect,
    check_defect_ends_nothing,
    check_defect_stays,
    check_served_or_reported,
)
from sim.cluster.invariants.settings import KeptSettings
from sim.cluster.invariants.settlements_first import check_settlements_first
from sim.cluster.invariants.stale_leaders import StaleLeaders
from sim.cluster.invariants.time_search import check_time_search
from sim.cluster.invariants.votes import VoteOnce
from sim.cluster.world.loop import SimulationEnd
from sim.core.invariants.election_safety import ElectionSafety
from sim.core.invariants.violation import InvariantViolation, demand
from sim.core.invariants.votes import Rounds

Arguments = ParamSpec("Arguments")
CLOCK_RATE_MAX = 1.25
"""Maximum rate of any simulated clock."""
CLOCK_ERROR_MS_MAX = 2_000
"""Maximum error of the time that a broker uses while most clocks are right. It is the sum of 0.15 s for those clocks, 0.5 s that count as
agreement, half of a round trip of 0.25 s, and the drift of monotonic clocks while an answer is valid. It counts twice: when a record is
stamped and when its age is checked."""
LOOK_SECONDS = 0.25
COMPARE_EVERY = 6
"""Number of looks between two comparisons of state machines."""
SEARCH_EVERY = 3
"""Number of comparisons between two searches in the log of a replica."""


class Checker:
    """The invariants of one run and the data that they remember."""

    def __init__(self, cluster: Cluster, *, is_forgetful: bool = False, look_seconds: float = LOOK_SECONDS) -> None:
        self._cluster = cluster
        self._look_seconds = look_seconds
        self._memory = Memory(is_forgetful=is_forgetful)
        self.violation: InvariantViolation | None = None
        self.committed = CommittedLog()
        self._committed_on_disk = CommittedOnDisk()
        self.exactly_once = ExactlyOnce()
        self.definite_failures = DefiniteFailures()
        self.acknowledged = Acknowledged(self.committed)
        self.reads = CommittedReads(self.committed)
        self.replica_states = ReplicaStates()
        self.queue_states = QueueStates()
        self._queue_clocks = QueueClocks(CLOCK_ERROR_MS_MAX)
        self.dead_letters = DeadLetters()
        self.firings = Firings()
        self.fair_turns = FairTurns()
        self.groups = GroupOwnership(SESSION_SECONDS, CLOCK_RATE_MAX)
        self.retention = Retention(self.acknowledged)
        self._proposed_ms: dict[tuple[int, int, int], int] = {}
        """(group, term, index) -> the correct time at which the entry was proposed."""
        self.clocks_found_wrong = 0
        """Number of looks at which a broker knew that its clock was wrong."""
        self._stale_leaders = StaleLeaders()
        self.recoveries = Recoveries()
        self._removals = Removals()
        self._row_levels = RowLevels()
        self._commands: dict[tuple[int, int], None] = {}
        """(group, index) of the commands that were checked."""
        self.on_retention: Callable[[int, int], None] = lambda group_id, before: None
        """Called when records were deleted because of their age."""
        self._elections: dict[int, ElectionSafety] = {}
        self._votes: dict[int, VoteOnce] = {}
        self._budgets: dict[str, Budgets] = {}
        """Machine -> the budgets of its broker."""
        self._kept: dict[ReplicaKey, tuple[int, list[EntryHeader]]] = {}
        """Founder of a new group -> the log of the replica that it continues, as it was on disk."""
        self._looks = 0
        self.time_searches = 0
        """Number of searches by timestamp that were compared with a look at every entry."""
        self.damaged: dict[tuple[str, ReplicaKey], None] = {}
        """Replicas that a fault damaged, with their machines. Only they may break."""
        self.quarantined: dict[tuple[str, ReplicaKey], None] = {}
        """Replicas that their nodes quarantined."""
        self.stalls: dict[str, int] = {}
        """Number of stalls that each process noticed."""
        self.defects_noted = 0
        """Number of planted defects that background work met."""
        self.leaders_elected = 0
        self.broken_replicas = 0
        self.on_lost_end: Callable[[int, int, int], None] = lambda old_group_id, group_id, offset: None
        """Called when a recovery has lost the records from an offset on, or readers are told so."""
        self.on_continued: Callable[[int, int], None] = lambda old_group_id, group_id: None
        """Called when a new group turns out to continue the whole log of an old one, whose id it has for the checker."""
        self.lost_ends = 0
        """Number of recoveries from a replica that lacked entries."""
        self.moves_paced = 0
        """Number of pieces of planned moves that were sent under a rate."""
        self.stale_directories = 0
        """Number of older copies of a disk that were refused."""
        self.on_look: list[Callable[[], None]] = []
        """Called with each look at the cluster."""
        cluster.on_process.append(self._watch)
        cluster.on_broken_replica.append(lambda *arguments: self.judge(self._on_broken, *arguments))
        cluster.on_fatal_error.append(lambda *arguments: self.judge(self._on_fatal, *arguments))
        cluster.on_failed_start.append(lambda *arguments: self.judge(self._on_failed_start, *arguments))
        cluster.loop.after(self._look_seconds, None, self._look)

    @property
    def now(self) -> float:
        """The time of the simulation."""
        return self._cluster.loop.now

    def judge(self, check: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs) -> None:
        """Run a check. A broken invariant ends the run, from any depth of the call stack."""
        try:
            check(*args, **kwargs)
        except InvariantViolation as violation:
            self.violation = self.violation or violation
            raise SimulationEnd from violation

    def _judge_pace(
        self, check: Callable[Arguments, object], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> None:
        self.moves_paced += 1
        self.judge(check, *args, **kwargs)

    # ------------------------------------------------------------------------------------------------ hooks

    def _watch(self, process: Process) -> None:
        """Wrap methods of a new node in checks."""
        assert process.node is not None
        self._watch_consensus(process, process.node.engine)
        self._watch_budgets(process.node.engine, Budgets(process.node), process.machine.name)
        engine = process.node.engine
        watch_pace(engine.copy_pace, engine.limits.copy_burst_seconds, self._judge_pace)
        self._watch_storage(process, process.node.store, process.node.registry)
        self._watch_writes(process, process.node.store)
        self._watch_failures(process, process.node.supervisor)
        self._watch_revocations(process.node.grpc.coordinator._revocations)

    def _watch_consensus(self, process: Process, engine: Any) -> None:
        add_replica, send, on_role_change = engine.add_replica, engine.send, engine._on_role_change
        on_message = engine.on_message
        rounds: dict[ReplicaKey, Rounds] = {}

        def watched_add_replica(*arguments: Any, **named: Any) -> Replica[StateMachine]:
            replica: Replica[StateMachine] = add_replica(*arguments, **named)
            self._watch_group(process, replica)
            rounds[replica.key] = Rounds()
            return replica

        def watched_send(replica: Replica[StateMachine], message: Message) -> None:
            self.judge(self._on_send, process, replica, message)
            if isinstance(message, VoteRequest):
                rounds[replica.key].on_request(message)
            send(replica, message)

        def watched_message(node_id: int, group_id: GroupId, message: Message) -> None:
            replica = engine.replicas.get(group_id)
            if replica is None or replica.replica_id != message.target or not rounds[replica.key].is_late(message):
                on_message(node_id, group_id, message)
                return
            before = Rounds.state_of(replica.core)
            on_message(node_id, group_id, message)
            self.judge(Rounds.check_not_counted, message, before, replica.core)

        def watched_role_change(replica: Replica[StateMachine], change: RoleChange) -> None:
            if change.role is Role.LEADER:
                self.judge(self._on_leader, replica, change)
            on_role_change(replica, change)

        engine.add_replica = watched_add_replica
        engine.send = watched_send
        engine.on_message = watched_message
        engine._on_role_change = watched_role_change

    def _watch_budgets(self, engine: Any, budgets: Budgets, machine: str) -> None:
        self._budgets[machine] = budgets
        reserve, admit, begin_write = engine.reserve_uncommitted, engine._admit_inbound, engine.commits.start

        def watched_reserve(size: int) -> bool:
            before = engine.uncommitted_bytes
            is_taken: bool = reserve(size)
            if is_taken:
                self.judge(budgets.on_proposal, before)
            return is_taken

        def watched_admit(replica: Replica[StateMachine], message: AppendRequest) -> bool:
            before = engine.inbound_bytes
            is_taken: bool = admit(replica, message)
            if is_taken:
                self.judge(budgets.on_append, before)
            return is_taken

        def watched_write(replica: Replica[StateMachine], work: AppendWork, *, with_inbound: bool = True) -> None:
            inbound_bytes = engine._inbound.waiting.get(replica.group_id, 0) if with_inbound else 0
            begin_write(replica, work, with_inbound=with_inbound)
            budgets.on_write(replica, inbound_bytes)

        engine.reserve_uncommitted = watched_reserve
        engine._admit_inbound = watched_admit
        engine.commits.start = watched_write

    def _watch_storage(self, process: Process, store: Any, registry: Any) -> None:
        open_file, quarantine, found = store.open, registry.quarantine, store.found
        refuse = registry.refuse

        def watched_open(key: ReplicaKey) -> RestoredState:
            clean_point = durable_clean_point(process.machine.disk, key)
            restored: RestoredState = open_file(key)
            self.judge(check_bounded_restart, store._replicas[key], clean_point)
            return restored

        def watched_quarantine(key: ReplicaKey, reason: str) -> None:
            self.quarantined[process.machine.name, key] = None
            quarantine(key, reason)

        def watched_found(key: ReplicaKey, old: ReplicaKey, *arguments: Any) -> None:
            kept = stored_entries(process.machine.disk, old)
            if kept is not None:
                self._kept.setdefault(key, kept)
            found(key, old, *arguments)

        def watched_refusal(reason: str) -> None:
            self.judge(check_only_copies_refused, process.machine, reason)
            refuse(reason)

        registry.refuse = watched_refusal
        store.open = watched_open
        store.found = watched_found
        registry.quarantine = watched_quarantine

    def _watch_writes(self, process: Process, store: Any) -> None:
        """Look at the disk after each change of a file, also after those that a crash lets through."""
        machine, append, open_file, disk = process.machine.name, store.append_batch, store.open, store.disk
        install, install_staged, write_state = store.install, store.install_staged, store.write_state

        def look(key: ReplicaKey, first_index: int | None = None) -> None:
            if (machine, key) not in self.damaged:
                self.judge(self._committed_on_disk.on_written, disk, key, first_index)

        def watched_append(updates: Sequence[tuple[ReplicaKey, Update]]) -> None:
            append(updates)
            for key, update in updates:
                look(key, update.entries[0].index if update.entries else None)

        def watched_open(key: ReplicaKey) -> RestoredState:
            restored: RestoredState = open_file(key)
            look(key)
            return restored

        def watched_install(key: ReplicaKey, *arguments: Any) -> None:
            install(key, *arguments)
            look(key)

        def watched_install_staged(key: ReplicaKey, *arguments: Any) -> None:
            install_staged(key, *arguments)
            look(key)

        def watched_write_state(key: ReplicaKey, write: StateWrite) -> None:
            write_state(key, write)
            replica = process.node.engine.replicas.get(key.group_id) if process.node is not None else None
            if replica is not None and replica.key == key:
                self.judge(check_rows_not_ahead, replica, write.state_index)

        store.append_batch, store.open, store.write_state = watched_append, watched_open, watched_write_state
        store.install, store.install_staged = watched_install, watched_install_staged

    def _watch_failures(self, process: Process, supervisor: Any) -> None:
        record_failure = supervisor.record_failure

        def watched_failure(work: Work, error: BaseException) -> None:
            self.judge(self._on_failure, process, work, error)
            record_failure(work, error)

        supervisor.record_failure = watched_failure

    def _watch_revocations(self, revocations: Any) -> None:
        expired = revocations.expired

        def watched_expired(now: float) -> list[tuple[str, str]]:
            found: list[tuple[str, str]] = expired(now)
            for _, member_id in found:
                self.groups.on_may_go(member_id)
            return found

        revocations.expired = watched_expired

    def _watch_group(self, process: Process, replica: Replica[StateMachine]) -> None:
        self._on_founder(process, replica)
        watched: Any = replica
        apply, propose, propose_membership = replica.apply, replica.propose, replica.propose_membership
        applied = AppliedOnce(replica)
        watermark = HighWatermark(replica)

        def watched_apply(entries: Sequence[Entry]) -> None:
            self.judge(self._before_apply, replica, applied, entries)
            apply(entries)
            self.judge(watermark.check)

        def watched_propose(proposals: Sequence[Proposal]) -> tuple[Appended, Any]:
            appended, applied = propose(proposals)
            self.judge(self._on_proposed, replica, appended)
            return appended, applied

        def watched_membership(change: MembershipChange) -> Any:
            assert process.node is not None
            self.judge(check_new_voters, replica, change, process.node.view.is_connected)
            return propose_membership(change)

        if isinstance(replica.state_machine, QueuePartition):
            self._watch_queue(process, replica, replica.state_machine)
        if isinstance(replica.state_machine, Metadata):
            machine = replica.state_machine
            reverted = RevertedMoves(machine)
            settings = KeptSettings(machine)
            replica.applier.listeners.append(lambda entry, result: self._removals.on_applied(machine))
            replica.applier.listeners.append(lambda entry, result: self.judge(reverted.on_applied, entry, result))
            replica.applier.listeners.append(lambda entry, result: self.judge(settings.on_applied, entry, result))
            replica.restored_listeners.append(reverted.look)
            replica.restored_listeners.append(settings.on_restored)
        watched.apply = watched_apply
        watched.propose = watched_propose
        watched.propose_membership = watched_membership

    def _on_founder(self, process: Process, replica: Replica[StateMachine]) -> None:
        """Learn which log a group continues when its founder opens, and which entries of it are lost."""
        metadata = process.node.engine.replicas.get(METADATA_GROUP_ID) if process.node is not None else None
        machine = metadata.state_machine if metadata is not None else None
        group_id = replica.group_id
        recovery = machine.recovery(group_id) if isinstance(machine, Metadata) else None
        partition = machine.partition(group_id) if isinstance(machine, Metadata) else None
        if recovery is None or partition is None or self.recoveries.is_known(group_id):
            return
        if partition.creation_replicas[0].replica_id != replica.replica_id:
            return  # it copies the founder's log
        old = self.recoveries.origin(recovery.old_group_id)
        kept = self._kept.pop(replica.key, None)
        kept_until = self.committed.kept_until(old, *kept) if kept is not None else None
        if kept_until is None or kept_until > self.committed.last_index(old):
            self.recoveries.on_continued(recovery.old_group_id, group_id)
            self.committed.recovered[old] = None
            self.retention.rename(group_id, old)
            self.on_continued(old, group_id)
            if (
                0 <= recovery.log_end_offset < self.committed.ends.get(old, 0)
            ):  # more came after the command had asked for the end
                self.on_lost_end(old, old, recovery.log_end_offset)  # readers are told so, and begin again there
            return
        demand(
            kept_until > replica.core.applied_index,
            "StateMachineSafety",
            f"r{replica.replica_id} of g{group_id} has applied {replica.core.applied_index}, and differs from {kept_until} on",
        )
        self.recoveries.on_shortened(recovery.old_group_id, group_id)
        self.committed.recovered[group_id] = None
        self._shorten(old, group_id, kept_until, recovery.log_end_offset)
        self.groups.on_lost((recovery.topic_id, recovery.partition))

    def _shorten(self, old_group_id: int, group_id: int, index: int, stated_end: int) -> None:
        """Let a group continue another one's log without the entries from `index` on. The rest must stay as it was.

        Readers begin again at `stated_end`, where the command said that the log ends, if more came after it had asked.
        """
        offset = self.committed.shorten(old_group_id, group_id, index)
        for batch in self.committed.batches(group_id):
            self.exactly_once.on_committed(group_id, batch)
        self.acknowledged.shorten(old_group_id, group_id, offset)
        self.retention.shorten(old_group_id, group_id, offset)
        for known_id, number in list(self._commands):
            if known_id == old_group_id and number < index:
                self._commands[group_id, number] = None
        for (known_id, term, number), proposed_ms in list(self._proposed_ms.items()):
            if known_id == old_group_id:
                self._proposed_ms[group_id, term, number] = proposed_ms
        self.lost_ends += 1
        self._cluster.trace(
            f"g{group_id} continues g{old_group_id} without its entries from {index} on, offset {offset}"
        )
        self.on_lost_end(old_group_id, group_id, min(offset, stated_end) if stated_end >= 0 else offset)

    def origin(self, group_id: int) -> int:
        """Return the group under which the checker knows a partition now."""
        return self.recoveries.newest(group_id)

    def _watch_queue(self, process: Process, replica: Replica[StateMachine], machine: QueuePartition) -> None:
        group_id = replica.group_id
        vars(machine)["group_id"] = group_id  # for `watch_turns`

        def on_applied(entry: Entry, result: object) -> None:
            self.judge(self.dead_letters.on_applied, group_id, entry, machine, partial(_group_of, process))
            self.judge(self.firings.on_applied, group_id, entry, result, machine)
            self.judge(check_settlements_first, group_id, entry, result)

        replica.applier.listeners.append(on_applied)

    def _on_proposed(self, replica: Replica[StateMachine], appended: Appended) -> None:
        now_ms = self._cluster.true_ms
        for entry in appended.entries:
            self._proposed_ms[self.recoveries.origin(replica.group_id), entry.term, entry.index] = now_ms
            if isinstance(replica.state_machine, QueuePartition):
                is_provisional = isinstance(replica.clock, QueueClock) and replica.clock.is_provisional
                self._queue_clocks.on_proposed(replica.group_id, entry, now_ms, may_be_behind=is_provisional)
            elif entry.kind is EntryKind.DATA:
                check_stamp(replica.group_id, entry, now_ms - CLOCK_ERROR_MS_MAX)

    def _before_apply(self, replica: Replica[StateMachine], applied: AppliedOnce, entries: Sequence[Entry]) -> None:
        applied.on_apply(entries)
        if isinstance(replica.state_machine, QueuePartition):
            for entry in entries:
                self.committed.on_applied(replica.group_id, replica.replica_id, entry, has_records=False)
                self._queue_clocks.on_applied(replica.group_id, entry)
            return
        group_id = self.recoveries.origin(replica.group_id)
        for entry in entries:
            if self.committed.on_applied(group_id, replica.replica_id, entry):
                batch = self.committed.batch_at(group_id, entry.base_offset)
                self.exactly_once.on_committed(group_id, batch)
                self.definite_failures.on_committed(group_id, batch)
                proposed_ms = self._proposed_ms.get((group_id, entry.term, entry.index), self._cluster.true_ms)
                self.retention.on_committed(group_id, entry.next_offset, proposed_ms)
            elif entry.kind is EntryKind.COMMAND:
                self._on_command(replica, entry)

    def _on_command(self, replica: Replica[StateMachine], entry: Entry) -> None:
        """Check a committed command when the first replica applies it."""
        group_id = self.recoveries.origin(replica.group_id)
        if (group_id, entry.index) in self._commands:
            return
        self._commands[group_id, entry.index] = None
        if not isinstance(replica.state_machine, LogPartition):
            order = decode_metadata_command(entry.payload)
            self._memory.on_metadata_command(order)
            if isinstance(order, LeaveConsumerGroup):
                self.groups.on_removed(order.member_ids, self.now)
            return
        command = decode_command(entry.payload)
        self._memory.on_command(command)
        if isinstance(command, TrimLog):
            wall_ms_max = self._cluster.true_ms + CLOCK_ERROR_MS_MAX
            if self.retention.on_trim(group_id, command.before_offset, wall_ms_max):
                self.on_retention(group_id, command.before_offset)

    def _on_send(self, process: Process, replica: Replica[StateMachine], message: Message) -> None:
        if process.machine.process is not process:
            return  # it was killed in this instant: the message never leaves, and the machine may have another disk already
        check_quarantined_silent(process, replica, message)
        if isinstance(message, AppendResponse):
            meta = durable_meta(process.machine.disk, replica.key)
            if meta is not None:
                check_append_response(meta, message)
        elif isinstance(message, VoteRequest):
            disk = process.machine.disk
            meta = durable_meta(disk, replica.key)
            if meta is not None:
                check_vote_request(disk, replica.key, meta, message)
        elif isinstance(message, VoteResponse) and message.is_granted and not message.is_pre_vote:
            meta = durable_meta(process.machine.disk, replica.key)
            if meta is not None:
                check_vote_response(meta, message)
            self._votes.setdefault(replica.group_id, VoteOnce()).on_vote(message)

    def _on_leader(self, replica: Replica[StateMachine], change: RoleChange) -> None:
        self.leaders_elected += 1
        self._cluster.trace(f"r{replica.replica_id} leads g{replica.group_id} in term {change.term}")
        self.recoveries.on_leader(replica.group_id, replica.replica_id)
        if replica.group_id == METADATA_GROUP_ID:
            self.groups.on_coordinator(self.now)
        self._elections.setdefault(replica.group_id, ElectionSafety()).on_leader(replica.replica_id, change.term)

    def _on_broken(self, process: Process, replica: Replica[StateMachine], error: Exception) -> None:
        """Check that a replica fell silent only because of a fault's damage, a planted defect, or rows that its program is too old to read."""
        self.broken_replicas += 1
        check_defect_stays(process.machine.name, error)
        if isinstance(error, PlantedDefect):
            return
        is_damaged = isinstance(error, DamagedReplicaError) and (process.machine.name, replica.key) in self.damaged
        is_too_old = self._cluster.is_next_version and not process.host.is_next_version  # `LevelIsSupported` asks why
        demand(
            is_damaged or (is_too_old and isinstance(error, UnsupportedDataError)),
            "NoDefect",
            f"{process.machine.name} r{replica.replica_id} of g{replica.group_id}: {error!r}",
        )

    def _on_failure(self, process: Process, work: Work, error: BaseException) -> None:
        """Check the failure of background work. The product survives its own defects, but the simulation must report them."""
        check_defect_stays(process.machine.name, error)
        if isinstance(error, PlantedDefect):
            self.defects_noted += 1
        else:
            is_explained = self._is_of_disk(process, error) or isinstance(error, StorageFullError)
            demand(is_explained, "NoDefect", f"{process.machine.name} {work}: {error!r}")

    def _on_fatal(self, process: Process, error: BaseException) -> None:
        check_defect_ends_nothing(process.machine.name, error)
        demand(self._is_of_disk(process, error), "NoDefect", f"{process.machine.name} ends: {error!r}")

    def _on_failed_start(self, process: Process, error: Exception) -> None:
        """Check that a broker did not start because another one refused it, or because of its disk."""
        is_explained = isinstance(error, RequestError) or self._is_of_disk(process, error)
        demand(is_explained, "NoDefect", f"{process.machine.name} does not start: {error!r}")

    def _is_of_disk(self, process: Process, error: BaseException) -> bool:
        """Return whether a fault of the machine's disk explains an error that ends a broker."""
        machine = process.machine
        if isinstance(error, RegistryError) and machine.disk.node().refusal:
            return True  # `OnlyCopiesRefused` judges it
        if isinstance(error, CommitFailedError | RegistryError):
            return process.commit_failed_at is not None
        return isinstance(error, DamagedReplicaError) and any(name == machine.name for name, _ in self.damaged)

    # ------------------------------------------------------------------------------------------------ looking

    def _look(self) -> None:
        self._looks += 1
        for process in self._cluster.running():
            assert process.node is not None
            self.stalls[repr(process.host)] = process.node.engine.counters.stalls_total
            if not process.host.is_frozen:
                self.clocks_found_wrong += process.node.clock_watch._is_wrong
                self.judge(self._budgets[process.machine.name].check)
                self.judge(check_serves_none_quarantined, process.node)
                self.judge(self._removals.check, process.node)
                self.judge(check_ended_after_failed_commit, process, self.now)
                for replica in process.node.engine.replicas.values():
                    self.judge(check_rest, replica)
                if process.is_ready and not process.is_stopping:
                    # in the process's own time: a broker whose clock is read in another one forgets the clocks of the others
                    process.host.context.run(self.judge, check_served_or_reported, process)
        self.judge(self._stale_leaders.look, self._cluster.running(), self.now)
        for listener in self.on_look:
            listener()
        if self._looks % COMPARE_EVERY == 0:
            self.compare_states()
        self._cluster.loop.after(self._look_seconds, None, self._look)

    def compare_states(self) -> None:
        """Check that replicas of a group with the same applied index are equal. Also counts recent entries, which is as expensive."""
        for process in self._cluster.running():
            assert process.node is not None
            self.judge(self._budgets[process.machine.name].check_recent_entries)
            for replica in process.node.engine.replicas.values():
                self.judge(self.replica_states.on_state, replica)
                self.judge(self._row_levels.check, replica)
                self.judge(self._on_queue_state, process, replica)
                self.judge(self._search_times, process, replica)
                self.judge(self._memory.check, replica)

    def _on_queue_state(self, process: Process, replica: Replica[StateMachine]) -> None:
        """Check the state of a queue partition, in memory and on disk."""
        assert process.node is not None
        store: Any = process.node.store
        key, disk, name = replica.key, process.machine.disk, process.machine.name
        if key not in store._states or (name, key) in self.damaged:
            return
        self.queue_states.on_memory(replica)
        where = f"{name} r{replica.replica_id} of g{replica.group_id}"
        rows = living_rows(disk, key)
        queue = DurableQueue(where, rows)
        queue.check()
        state_index = store._states[key].meta.state_index
        if (
            store._replicas[key].meta.last_index >= state_index
        ):  # after a snapshot its newest bodies arrive with the log
            check_bodies(where, store, key, queue)
        self.queue_states.on_disk(replica, state_index, rows)

    def _search_times(self, process: Process, replica: Replica[StateMachine]) -> None:
        """Search the log of a partition by timestamps, in turn with other replicas."""
        assert process.node is not None
        turn = self._looks // COMPARE_EVERY
        key, disk, name = replica.key, process.machine.disk, process.machine.name
        store: Any = process.node.store
        is_due = turn % SEARCH_EVERY == replica.replica_id % SEARCH_EVERY
        if not is_due or key not in store._replicas or (name, key) in self.damaged:
            return
        if isinstance(replica.state_machine, LogPartition):
            where = f"{name} r{replica.replica_id} of g{replica.group_id}"
            self.time_searches += check_time_search(where, store, disk, key, turn)

    def is_quiet(self) -> bool:
        """Return whether all proposals are applied. There may be new ones without clients, since retention continues."""
        groups = [g for p in self._cluster.running() if p.node is not None for g in p.node.engine.replicas.values()]
        return all(
            isinstance(g.disk, Idle)
            and g.core.applied_index >= g.core.last_index
            and (not g.is_disk_backed or g.durable_state_index >= g.core.applied_index)
            for g in groups
        )

    def at_end(self) -> None:
        """Check everything once more at the end, when the cluster is quiet."""
        self.compare_states()
        for process in self._cluster.running():
            assert process.node is not None
            self.judge(self._budgets[process.machine.name].check_given_back)
            for partition in process.node.partitions.values():
                replica = partition.replica
                if isinstance(partition, PartitionQueue) and replica.core.applied_index >= replica.core.last_index:
                    self.judge(check_gate, f"{process.machine.name} g{replica.group_id}", partition.gate)


def _group_of(process: Process, topic: str, partition: int) -> int:
    """Return the group of a topic's partition, according to a broker's metadata."""
    assert process.node is not None
    found = process.node.view.metadata.state_machine.topic_by_name(topic)
    assert found is not None, "a topic with a dead letter topic is not deleted"
    return found.group_ids[partition]
