"""One replica of the explorer: a `SimReplica` whose state can be copied and has a key, and whose surroundings do nothing by themselves.

Deviation from `SimReplica`: a write, and applying, are part of the event that causes them, until the replica is made slow. Then each of
them is an event of its own, until none is left.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TypeVar

from raftmq.raft.core import RaftCore
from raftmq.raft.entry import Entry, EntryKind, Proposal
from raftmq.raft.inflights import Inflights
from raftmq.raft.leadership import Leadership
from raftmq.raft.log import RaftLog
from raftmq.raft.membership import Membership, MembershipChange
from raftmq.raft.messages import AppendResponse, Message, TimeoutNow, VoteRequest, VoteResponse
from raftmq.raft.progress import Progress
from raftmq.raft.read_queue import ReadQueue
from raftmq.raft.ready import AppendWork, Role
from raftmq.raft.settings import RaftSettings
from raftmq.raft.state import FIRST_ROUND_MAX
from raftmq.raft.ticks import Ticks
from raftmq.types import NO_REPLICA, ReplicaId

from sim.core.checker import Checker, Watched
from sim.core.cluster import Build
from sim.core.disk import AppendJob, DiskJob
from sim.core.events import EventHeap
from sim.core.explore.rules import check_overlap
from sim.core.invariants.applied_state import AppliedState
from sim.core.invariants.durability import check_ack_durable, check_applied_durable
from sim.core.invariants.monotone import check_monotone, check_pre_vote_keeps_term
from sim.core.invariants.reads import LinearizableReads
from sim.core.invariants.violation import demand
from sim.core.invariants.votes import check_request_durable
from sim.core.network import SimNetwork
from sim.core.options import draw_options
from sim.core.replica import SimReplica, World, _DiskView
from sim.core.state_machine import MachineState

ELECTION_TICKS = 100
"""An election timeout is one event of this many ticks, and a heartbeat is one of a single tick. Nobody counts single ticks up to a timeout."""

Event = tuple[object, ...]
"""The name of an event, and its argument if it has one."""

T = TypeVar("T")


class Node(SimReplica):
    """A replica as a value, with the commits that it made since it was copied."""

    world: Surroundings

    def start(self) -> None:
        """Start, with nothing slow. Each life begins with other rounds of vote requests."""
        self.slow: frozenset[str] = frozenset()
        """The slow parts: `disk`, `apply`."""
        self.commits: list[tuple[int, bool, Membership]] = []
        """(commit index, is leader, membership) each time that the commit index rose."""
        state = self.disk.hard_state
        self.seen: tuple[int, int, int] = (state.term, 0, 0)
        """The last term, commit index and applied index."""
        self.world.chance.life = self.life + 1
        super().start()

    def copy(self) -> Node:
        """Return an independent replica in the same state."""
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.disk = object.__new__(type(self.disk))
        twin.disk.__dict__.update(self.disk.__dict__)
        twin.disk.log = _copy(self.disk.log, {})
        twin.disk.pending = self.disk.pending.copy()
        twin._applying, twin.commits, twin._snapshots = self._applying.copy(), [], self._snapshots.copy()
        ticks = Ticks()
        twin.core = core = _copy(self.running, {"_view": _DiskView(twin), "ticks": ticks, "_ticks": ticks})
        core.snapshot_meta = twin._offer_snapshot
        return twin

    @property
    def running(self) -> RaftCore:
        """Return the core, which always runs: a crash and the restart are one event."""
        assert self.core is not None
        return self.core

    def key(self) -> Hashable:
        """Forget counts that cannot influence later behaviour, and return a value that is equal exactly for equal states."""
        self._forget_counts()
        core, disk = self.running, self.disk
        frozen = tuple([_freeze(getattr(core, name)) for name in _slots(type(core))])
        jobs = tuple(
            [(job, isinstance(job, AppendJob) and job.work.snapshot and job.work.snapshot.data) for job in disk.pending]
        )
        kept = (disk.log.position, tuple(disk.log.entries), disk.state, disk.hard_state, disk._unsynced, jobs)
        return (self.replica_id, self.life, frozen, kept, self.machine, tuple(self._applying), self.slow)

    def _forget_counts(self) -> None:
        """Count ticks and writes from zero again. Of the ticks it matters only whether the leader was heard within an election timeout."""
        core = self.running
        core._heard_at = -ELECTION_TICKS if core.ticks.now - core._heard_at >= ELECTION_TICKS else 0
        core.ticks.now = core.ticks.changes = core.next_tick = core._failed_pre_votes = 0
        core._timeout_ticks = ELECTION_TICKS
        leadership = core.leadership
        if leadership is not None:
            leadership.heartbeat_at = leadership.quorum_checked_at = leadership.transfer_began_at = 0
            leadership.confirm_began_at = leadership.last_index_at_tick = 0
            for progress in leadership.progress.values():
                progress._heard_at, progress._behind_since = 0, None
        log, done = core.log, core._done_sequence
        core._sequence, core._done_sequence = core._sequence - done, 0
        log.snapshot_sequence = log.snapshot_sequence - done if log.snapshot and log.snapshot_sequence else 0
        self.disk.pending = deque([_renumbered(job, done) for job in self.disk.pending])

    def run(self, event: Event) -> None:
        """Handle an event, and all that follows from it inside this replica."""
        core = self.running
        match event:
            case ("receive", message):
                core.step(message)  # type: ignore[arg-type]
            case ("tick", int(count)):
                core.tick(count)
                if core.campaign_due:
                    core.campaign()
            case ("campaign",):  # without a pre-vote, and no voter ignores it: safety must not depend on either
                core.step(TimeoutNow(core.leader_id, core.replica_id, core.term))
            case ("forget",):
                core.forget_leader()
            case ("slow", str(part)):
                self.slow |= {part}
            case ("written",):
                self._on_written(self.life)
            case ("applied",):
                self._apply(self.life)
            case ("crash", int(completed)):
                self.disk.crash(completed)
                self.start()
            case ("propose", bytes(payload)):
                core.propose((Proposal(EntryKind.DATA, payload, 1),), 0)
            case ("change", MembershipChange() as change):
                core.propose_membership(change, 0)
            case ("transfer", int(target)):
                core.transfer_leader(ReplicaId(target))
            case ("read", int(request)):
                core.read_index(request)
            case ("compact",):
                self.compact(0)
            case ("unreachable", int(peer)):
                core.report_unreachable(ReplicaId(peer))
            case ("snapshot_lost", int(peer)):
                core.report_snapshot(ReplicaId(peer), False)
            case _:
                raise ValueError(event)
        self.pump()
        if event[0] in ("written", "applied"):
            queues = {"disk": self.disk.pending, "apply": self._applying}
            self.slow = frozenset(part for part in self.slow if queues[part])

    def pump(self) -> None:
        """Handle the core's output, and complete the writes of a disk that is not slow."""
        super().pump()
        if self.disk.pending and "disk" not in self.slow:
            self._on_written(self.life)

    def _submit(self, job: DiskJob) -> None:
        self.disk.submit(job)

    def _on_written(self, life: int) -> None:
        before = self.disk.hard_state
        super()._on_written(life)
        after = self.disk.hard_state
        is_kept = after.term > before.term or (after.term == before.term and before.vote in (NO_REPLICA, after.vote))
        demand(is_kept, "VoteOnce", f"r{self.replica_id} has written {after} over {before}")

    def _apply_later(self, entries: tuple[Entry, ...]) -> None:
        check_applied_durable(self.replica_id, self.disk, entries)
        self._applying.append(entries)
        if "apply" not in self.slow:
            self._apply(self.life)

    def _apply(self, life: int) -> None:
        before, entries = self.running.membership, self._applying[0]
        super()._apply(life)
        if before.voters and sum(entry.kind is EntryKind.MEMBERSHIP for entry in entries) == 1:
            check_overlap(before, self.running.membership)


class _Confirmed(LinearizableReads):
    """Takes down confirmed reads."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[tuple[int, int]] = []
        """(request, read index)."""

    def on_confirmed(self, replica_id: int, request_id: int, read_index: int) -> None:
        self.taken.append((request_id, read_index))


class _NoStates(AppliedState):
    """Compares nothing: the replicas of a state are compared by the rules, and other states have other pasts."""

    def on_state(self, replica_id: int, state: MachineState) -> None:
        return

    def on_membership(self, replica_id: int, index: int, membership: Membership) -> None:
        return


class _Promises(Checker):
    """The part of the checker that looks at one replica."""

    def __init__(self, reads: _Confirmed) -> None:
        super().__init__({})
        self.reads = reads
        self.applied_state = _NoStates()

    def after_event(self, replica: Watched, core: RaftCore) -> None:
        assert isinstance(replica, Node)
        term, commit, applied_index = replica.seen
        replica.seen = (core.term, core.commit_index, core.applied_index)
        check_monotone(replica.replica_id, "term", term, core.term)
        check_monotone(replica.replica_id, "commit index", commit, core.commit_index)
        check_monotone(replica.replica_id, "applied index", applied_index, core.applied_index)
        if core.term != term:
            check_pre_vote_keeps_term(replica.replica_id, core.role, core.term)
        if core.commit_index > commit:
            replica.commits.append((core.commit_index, core.role is Role.LEADER, core.membership))

    def on_message(self, replica: Watched, message: Message) -> None:
        if isinstance(message, VoteRequest):
            check_request_durable(message, replica.disk.hard_state, replica.disk.log.term(message.last_index))

    def on_response(self, replica: Watched, message: Message) -> None:
        self.on_message(replica, message)
        if isinstance(message, AppendResponse):
            check_ack_durable(replica.disk, message)
        elif isinstance(message, VoteResponse) and message.is_granted and not message.is_pre_vote:
            state = replica.disk.hard_state
            is_kept = state.term > message.term or (state.term, state.vote) == (message.term, message.target)
            demand(is_kept, "VoteDurable", f"{message} leaves, and on the disk is {state}")

    def on_write(self, replica: Watched, work: AppendWork, is_leader: bool) -> None:
        demand(
            not (is_leader and work.snapshot),
            "LeaderAppendOnly",
            f"r{replica.replica_id} leads and installs a snapshot",
        )


class _Chance(random.Random):
    """No chance: no delay, and timeouts are events. Only the first round of vote requests differs, in each life."""

    life = 0

    def random(self) -> float:
        return 0.0

    def randrange(self, start: int, stop: int | None = None, step: int = 1) -> int:
        return self.life * 1000 if start == FIRST_ROUND_MAX else 0


class _NoEvents(EventHeap):
    def after(self, delay: int, action: Callable[..., object], *arguments: object) -> int:
        return self.now


class _Wire(SimNetwork):
    def __init__(self, sent: list[Message]) -> None:
        self.is_healed = False
        self._sent = sent

    def send(self, message: Message) -> None:
        self._sent.append(message)


class Surroundings(World):
    """The surroundings that all replicas of a scenario share. They only take down messages and confirmed reads."""

    def __init__(self, build: Build, settings: RaftSettings) -> None:
        self.chance = _Chance()
        self.sent: list[Message] = []
        self.confirmed = _Confirmed()
        options = replace(
            draw_options(random.Random(0)),
            settings=replace(settings, election_ticks=ELECTION_TICKS),
            told_delay_max=0,
            appends_in_flight_max=1,
            apply_delay_max=0,
            cold_reads=0.0,
        )
        promises, wire = _Promises(self.confirmed), _Wire(self.sent)
        super().__init__(_NoEvents(), self.chance, options, wire, promises, build.core, lambda _: None, None)


_PARTS = (RaftLog, Leadership, Progress, Inflights, ReadQueue)
_SHARED = frozenset(
    ("_view", "_random", "settings", "snapshot_meta", "copy_pace", "now_ms", "ticks", "_ticks", "urgent_learners")
)
"""Attributes that the parts of a core share with its replica, or with each other."""


_known_slots: dict[tuple[type, bool], tuple[str, ...]] = {}


def _slots(part: type, is_shared: bool = False) -> tuple[str, ...]:
    names = _known_slots.get((part, is_shared))
    if names is None:
        every = {name for base in part.__mro__ for name in getattr(base, "__slots__", ())}
        names = tuple(sorted(every & _SHARED if is_shared else every - _SHARED))
        _known_slots[part, is_shared] = names
    return names


def _freeze(value: object) -> Hashable:
    if isinstance(value, list | deque):
        return tuple(value)
    if isinstance(value, dict):
        return tuple(sorted([(key, _freeze(each)) for key, each in value.items()]))
    if isinstance(value, _PARTS):
        return tuple([_freeze(getattr(value, name)) for name in _slots(type(value))])
    assert isinstance(value, Hashable)
    return value


def _copy(value: T, shared: dict[str, object]) -> T:
    """Copy an object with slots and the parts that it holds, except attributes that are `shared`. Everything else in it is a value."""
    kind = type(value)
    twin = object.__new__(kind)
    for name in _slots(kind):
        held = getattr(value, name)
        if isinstance(held, list | deque):
            held = held.copy()
        elif isinstance(held, dict):
            held = {key: _copy(each, shared) if isinstance(each, Progress) else each for key, each in held.items()}
        elif isinstance(held, _PARTS):
            held = _copy(held, shared)
        setattr(twin, name, held)
    for name in _slots(kind, True):
        setattr(twin, name, shared[name] if name in shared else getattr(value, name))
    return twin


def _renumbered(job: DiskJob, done: int) -> DiskJob:
    if not done or not isinstance(job, AppendJob):
        return job
    token = replace(job.work.token, sequence=job.work.token.sequence - done)
    return replace(job, work=replace(job.work, token=token))
