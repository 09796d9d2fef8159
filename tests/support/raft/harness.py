"""A synchronous cluster of real cores over in-memory disks: every test runs the whole ready/append/apply cycle.

Nothing here decides: messages travel in order, and writes become durable when the test lets them. A test can hold a
node's appends or applies, cut links, filter messages, and look at every message sent.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from raftmq.raft.core import RaftCore, RestoredState
from raftmq.raft.entry import GENESIS, Entry, EntryHeader, EntryKind, LogPosition, Proposal
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.raft.messages import Heartbeat, Message, SnapshotMeta, VoteResponse
from raftmq.raft.ready import Appended, AppendWork, ConfirmedRead, Ready, Refused, Role, RoleChange
from raftmq.raft.settings import RaftSettings
from raftmq.types import LogIndex, Offset, ReplicaId, Term

T = TypeVar("T")

SETTINGS = RaftSettings(election_ticks=10, heartbeat_ticks=1)
START = int(GENESIS.index)


def voters(*ids: int) -> tuple[ReplicaId, ...]:
    return tuple(ReplicaId(i) for i in ids)


def membership(*voter_ids: int, learners: Iterable[int] = ()) -> Membership:
    return Membership(voters=voters(*voter_ids), learners=voters(*learners))


def change(*steps: tuple[MembershipOp, int], revision: int = 0, is_explicit: bool = False) -> MembershipChange:
    return MembershipChange(tuple((op, ReplicaId(i)) for op, i in steps), revision, is_explicit)


def data(payload: bytes = b"x", count: int = 1) -> Proposal:
    return Proposal(EntryKind.DATA, payload, count)


class MemoryLog:
    """The durable data: a `LogView`, and the values that a shell would store (hard state, position, membership)."""

    def __init__(self, position: LogPosition, config: Membership) -> None:
        self.position = position
        self.rows: dict[int, Entry] = {}
        self.hard_state = HardState(position.term, ReplicaId(0), position.index)
        self.membership = config
        self.state_index: int = position.index
        self.is_cold = False
        """Whether reads return None, as after a cache miss of the shell."""
        self.header_reads: list[int] = []

    @property
    def last_index(self) -> int:
        return max(self.rows, default=int(self.position.index))

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...] | None:
        if self.is_cold:
            return None
        found: list[Entry] = []
        size = 0
        for index in range(first, last + 1):
            entry = self.rows[index]
            size += len(entry.payload)
            if found and size > bytes_max:
                break
            found.append(entry)
        return tuple(found)

    def header(self, index: LogIndex) -> EntryHeader:
        self.header_reads.append(index)
        return self.rows[index].header()

    def write(self, work: AppendWork) -> None:
        """Write a snapshot, a truncation, entries and the hard state in one transaction."""
        if work.snapshot is not None:
            self.rows.clear()
            self.position = work.snapshot.meta.position
            self.membership = work.snapshot.meta.membership
            self.state_index = work.snapshot.meta.state_index
        if work.entries:
            first = work.entries[0].index
            assert first <= self.last_index + 1, "a hole in the log"
            for index in [i for i in self.rows if i >= first]:
                del self.rows[index]
            for entry in work.entries:
                self.rows[entry.index] = entry
        if work.hard_state is not None:
            self.hard_state = work.hard_state

    def compact(self, index: int) -> LogPosition:
        """Delete the rows up to `index`, and return the position for the core."""
        entry = self.rows[index]
        self.position = LogPosition(entry.index, entry.term, entry.next_offset, entry.append_time_ms)
        for gone in [i for i in self.rows if i <= index]:
            del self.rows[gone]
        return self.position

    def restored(self) -> RestoredState:
        starts: list[tuple[Term, LogIndex]] = []
        for index in sorted(self.rows):
            if not starts or starts[-1][0] != self.rows[index].term:
                starts.append((self.rows[index].term, LogIndex(index)))
        last = self.rows.get(self.last_index)
        return RestoredState(
            hard_state=self.hard_state,
            position=self.position,
            last_index=LogIndex(self.last_index),
            last_next_offset=last.next_offset if last else self.position.next_offset,
            last_append_time_ms=last.append_time_ms if last else self.position.append_time_ms,
            term_starts=tuple(starts),
            membership=self.membership,
            state_index=LogIndex(self.state_index),
        )


@dataclass
class Node:
    """One replica and its shell."""

    core: RaftCore
    disk: MemoryLog
    holds_appends: bool = False
    holds_applies: bool = False
    takes_appends: bool = True
    appends: deque[AppendWork] = field(default_factory=deque)
    applies: deque[tuple[Entry, ...]] = field(default_factory=deque)
    applied: list[Entry] = field(default_factory=list)
    reads: list[ConfirmedRead] = field(default_factory=list)
    failed_reads: list[int] = field(default_factory=list)
    role_changes: list[RoleChange] = field(default_factory=list)
    is_up: bool = True

    def values(self) -> list[bytes]:
        """Return the payloads of the applied DATA entries."""
        return [entry.payload for entry in self.applied if entry.kind is EntryKind.DATA]


def make_core(
    replica_id: int,
    disk: MemoryLog,
    settings: RaftSettings = SETTINGS,
    core_class: type[RaftCore] = RaftCore,
    seed: int | None = None,
) -> RaftCore:
    generator = random.Random(replica_id if seed is None else seed)
    return core_class(ReplicaId(replica_id), disk.restored(), disk, generator, settings)


class Cluster:
    """Cores, their disks, and a network that delivers in order all messages that it is not told to lose."""

    def __init__(
        self,
        *ids: int,
        config: Membership | None = None,
        settings: RaftSettings = SETTINGS,
        core_class: type[RaftCore] = RaftCore,
    ) -> None:
        self.settings = settings
        self.core_class = core_class
        self.config = config or membership(*ids)
        self.nodes: dict[int, Node] = {}
        self.starts = 0
        """Counts starts, since each start of a replica has a random generator of its own."""
        self.wire: deque[Message] = deque()
        self.sent: list[Message] = []
        """Every message that left a node, delivered or not."""
        self.cut: set[tuple[int, int]] = set()
        """(source, target) pairs that lose everything."""
        self.is_lost: Callable[[Message], bool] = lambda _message: False
        for replica_id in ids:
            self.add(replica_id)

    def __getitem__(self, replica_id: int) -> RaftCore:
        return self.nodes[replica_id].core

    # ---------------------------------------------------------------------------------------------- building

    def add(self, replica_id: int, *, is_empty: bool = False) -> Node:
        """Add a replica with the initial configuration, or one that waits for its first snapshot."""
        if is_empty:
            nowhere = LogPosition(LogIndex(0), Term(0), Offset(0))
            disk = MemoryLog(nowhere, Membership(voters=()))
        else:
            disk = MemoryLog(GENESIS, self.config)
        return self._start(replica_id, disk)

    def _start(self, replica_id: int, disk: MemoryLog) -> Node:
        self.starts += 1
        seed = replica_id if replica_id not in self.nodes else 100 * self.starts + replica_id
        node = Node(make_core(replica_id, disk, self.settings, self.core_class, seed), disk)
        node.core.snapshot_meta = lambda: self.snapshot_of(replica_id)
        self.nodes[replica_id] = node
        return node

    def snapshot_of(self, replica_id: int) -> SnapshotMeta | None:
        """Return a snapshot with the log's own start and the state as of the applied index: two positions, as in data partitions."""
        node = self.nodes[replica_id]
        return SnapshotMeta(node.disk.position, node.core.applied_index, node.core.membership)

    def restart(self, replica_id: int) -> Node:
        """Kill the replica with -9 and start it again: only written data survive."""
        node = self.nodes[replica_id]
        self.wire = deque(m for m in self.wire if m.target != replica_id)
        new = self._start(replica_id, node.disk)
        new.applied = [e for e in node.applied if e.index <= new.core.applied_index]
        return new

    # ----------------------------------------------------------------------------------------------- network

    def isolate(self, replica_id: int) -> None:
        for other in self.nodes:
            if other != replica_id:
                self.cut |= {(replica_id, other), (other, replica_id)}

    def heal(self) -> None:
        self.cut.clear()

    def send(self, message: Message) -> None:
        self.sent.append(message)
        if (message.source, message.target) not in self.cut and not self.is_lost(message):
            self.wire.append(message)

    def of_type(self, kind: type[Message], source: int = 0, target: int = 0) -> list[Message]:
        """Return the sent messages of a kind, by source and target (0 for any)."""
        return [m for m in self.sent if isinstance(m, kind) and source in (0, m.source) and target in (0, m.target)]

    def deliver_one(self) -> None:
        message = self.wire.popleft()
        node = self.nodes.get(message.target)
        if node is not None and node.is_up:
            node.core.step(message)

    # ------------------------------------------------------------------------------------------------ cycle

    def work(self, replica_id: int) -> Ready | None:
        """Take and run one Ready of a node."""
        node = self.nodes[replica_id]
        if not node.is_up or not node.core.has_ready(node.takes_appends):
            return None
        ready = node.core.ready(node.takes_appends)
        assert not (ready.append and ready.append.snapshot and ready.apply), "snapshot and apply in one Ready"
        if ready.role_change:
            node.role_changes.append(ready.role_change)
        for message in ready.messages:
            self.send(message)
        node.reads.extend(ready.reads)
        node.failed_reads.extend(ready.failed_reads)
        if ready.append:
            node.appends.append(ready.append)
        if ready.apply:
            node.applies.append(ready.apply)
        if not node.holds_appends:
            self.finish_appends(replica_id)
        if not node.holds_applies:
            self.finish_applies(replica_id)
        return ready

    def finish_append(self, replica_id: int) -> AppendWork:
        """Make the oldest held append durable, send its responses, and tell the core."""
        node = self.nodes[replica_id]
        work = node.appends.popleft()
        node.disk.write(work)
        for message in work.responses:
            self.send(message)
        node.core.append_done(work.token)
        return work

    def finish_appends(self, replica_id: int) -> None:
        while self.nodes[replica_id].appends:
            self.finish_append(replica_id)

    def finish_applies(self, replica_id: int) -> None:
        node = self.nodes[replica_id]
        while node.applies:
            entries = node.applies.popleft()
            for entry in entries:
                node.applied.append(entry)
                node.core.apply_done(entry.index)
            if entries[-1].index >= node.core.state_floor:
                node.disk.state_index = entries[-1].index
                node.disk.membership = node.core.membership

    def run(self, replica_id: int) -> None:
        """Run a node until it has nothing to do. Its messages stay on the wire."""
        for _ in range(1000):
            if self.work(replica_id) is None:
                return
        raise AssertionError("a node never comes to rest")

    def pump(self) -> None:
        """Run all nodes until no messages are left."""
        for _ in range(20_000):
            is_busy = False
            for replica_id in list(self.nodes):
                is_busy |= self.work(replica_id) is not None
            while self.wire:
                self.deliver_one()
                is_busy = True
            if not is_busy:
                return
        raise AssertionError("the cluster never comes to rest")

    # ------------------------------------------------------------------------------------------------- time

    def heartbeat(self, replica_id: int) -> None:
        """Send the heartbeats of one node as messages."""
        core = self[replica_id]
        for target, commit, counter in core.take_heartbeats():
            self.send(Heartbeat(core.replica_id, target, core.term, commit, counter))

    def tick(self, count: int = 1, only: Iterable[int] | None = None) -> None:
        """Let time pass and send heartbeats. No node campaigns by itself."""
        for _ in range(count):
            for replica_id in list(only if only is not None else self.nodes):
                if self.nodes[replica_id].is_up:
                    self[replica_id].tick()
                    if self[replica_id].heartbeat_due:
                        self.heartbeat(replica_id)
            self.pump()

    def live(self, count: int) -> None:
        """Let time pass. Nodes whose election timeout has passed campaign."""
        for _ in range(count):
            self.tick()
            for replica_id in list(self.nodes):
                if self.nodes[replica_id].is_up and self[replica_id].campaign_due:
                    self[replica_id].campaign()
            self.pump()

    def elect(self, replica_id: int) -> RaftCore:
        """Make a node leader: the others forget their leader, and the node campaigns."""
        for node in self.nodes.values():
            node.core.forget_leader()
        self[replica_id].campaign()
        self.pump()
        assert self[replica_id].role is Role.LEADER, self[replica_id].role
        return self[replica_id]

    def propose(self, replica_id: int, *payloads: bytes) -> Appended:
        outcome = self[replica_id].propose([data(p) for p in payloads], 0)
        assert isinstance(outcome, Appended), outcome
        return outcome

    def leaders(self) -> list[int]:
        return [i for i, node in self.nodes.items() if node.is_up and node.core.role is Role.LEADER]

    def change(self, replica_id: int, *steps: tuple[MembershipOp, int], revision: int = 0) -> Appended | Refused:
        return self[replica_id].propose_membership(change(*steps, revision=revision), 0)


def now(value: T) -> T:
    """Return the current value: a type checker assumes that an attribute is unchanged since its last comparison."""
    return value


def take(core: RaftCore, disk: MemoryLog) -> list[Message]:
    """Run a single core until it is idle, and return all its messages."""
    said: list[Message] = []
    while core.has_ready():
        ready = core.ready()
        said.extend(ready.messages)
        if ready.append:
            disk.write(ready.append)
            said.extend(ready.append.responses)
            core.append_done(ready.append.token)
        if ready.apply:
            core.apply_done(ready.apply[-1].index)
    return said


def lone(
    replica_id: int = 1, *voter_ids: int, settings: RaftSettings = SETTINGS, config: Membership | None = None
) -> tuple[RaftCore, MemoryLog]:
    """Create one core of a group, to which a test sends messages by hand."""
    disk = MemoryLog(GENESIS, config or membership(*(voter_ids or (1, 2, 3))))
    return make_core(replica_id, disk, settings), disk


def entry(
    index: int, term: int, payload: bytes = b"", *, base_offset: int = 0, count: int = 0, time_ms: int = 0
) -> Entry:
    """Return a log entry, which is DATA if it has records."""
    kind = EntryKind.DATA if count else EntryKind.COMMAND if payload else EntryKind.EMPTY
    return Entry(LogIndex(index), Term(term), kind, Offset(base_offset), count, time_ms, payload)


def answer(core: RaftCore, source: int, term: int, *, granted: bool = True, pre: bool = False) -> VoteResponse:
    """Return a voter's answer to a core's current round of (pre-)vote requests."""
    target, commit = core.replica_id, GENESIS
    return VoteResponse(ReplicaId(source), target, Term(term), core._round, pre, granted, commit.index, commit.term)


def fill(disk: MemoryLog, terms: Sequence[int]) -> None:
    """Give a disk a log with these terms, one empty entry each, after its position."""
    for step, term in enumerate(terms, 1):
        index = disk.position.index + step
        disk.rows[index] = entry(index, term, base_offset=int(disk.position.next_offset))
    if terms:
        disk.hard_state = replace(disk.hard_state, term=Term(max(terms[-1], disk.hard_state.term)))
