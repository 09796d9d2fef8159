"""Known bugs of whole nodes, made by changing the product in a child process; each must be found, or the net has a hole.

The menu is the review checklist of consensus implementations, and the promises. A mutant changes one thing, from outside.
"""

# ruff: noqa: ANN401 -- a mutant takes whatever the product's method takes

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.node.run import Build


@dataclass(frozen=True, slots=True)
class Mutant:
    """One known bug."""

    name: str
    what: str
    """The bug, in a few words."""
    part: str
    """Where: core, store, engine, machine, client or service."""
    build: Build


MUTANTS: dict[str, Mutant] = {}
SEEDS_MAX = 16
"""Each must be found by one of so many seeds, from 0 on; most are by the first."""


def mutant(part: str, what: str, **circumstances: object) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants the bug. It runs in a child, so nothing undoes it.

    `circumstances`: options under which it shows soon.
    """

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        name = plant.__name__.strip("_")

        def patch() -> Callable[[], None]:
            plant()
            return lambda: None

        MUTANTS[name] = Mutant(name, what, part, Build(patch=patch, circumstances=circumstances))
        return plant

    return register


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    setattr(owner, name, make(getattr(owner, name)))


# ------------------------------------------------------------------------------------------------------------------- core


@mutant("core", "a leader commits an entry of an earlier term by counting (thesis, figure 3.7)")
def _commits_earlier_terms() -> None:
    from raftmq.raft.replication import Replication

    Replication._may_commit = lambda self, index: index > self.log.commit  # type: ignore[method-assign]


@mutant("core", "a leader judges before its own first entry is committed")
def _leads_before_its_first_commit() -> None:
    from raftmq.raft.core import RaftCore
    from raftmq.raft.ready import Role

    RaftCore.is_confirmed_leader = property(lambda self: self.role is Role.LEADER)  # type: ignore[assignment]


@mutant("core", "a vote is given again in the same term")
def _votes_twice() -> None:
    from raftmq.raft import election
    from raftmq.storage import pending_write

    pending_write.check_hard_state = lambda durable, new: None
    _replace(election.Election, "_may_vote_for", lambda original: lambda self, *arguments: True)


# ------------------------------------------------------------------------------------------------------------------ store


@mutant("store", "a commit is reported before it is on disk, and a crash loses it")
def _fsync_skipped() -> None:
    from sim.node import disk

    finish, crash = disk._Thread._finish, disk._Thread.crash

    def unsynced_finish(self: Any) -> None:
        store = self.writer._work._store
        self.before = {
            key: {name: table.copy() for name, table in file.tables.items()} for key, file in store.disk.files.items()
        }
        finish(self)

    def losing_crash(self: Any) -> None:
        store = self.writer._work._store
        for key, tables in getattr(self, "before", {}).items():
            if key in store.disk.files:
                store.disk.files[key].tables = tables
        crash(self)

    disk._Thread._finish = unsynced_finish  # type: ignore[method-assign]
    disk._Thread.crash = losing_crash  # type: ignore[method-assign]


@mutant("store", "rows are not checked when they are read", flip=6, kill=6, fault_every=0.4, replication_factor=3)
def _checksums_ignored() -> None:
    from raftmq.storage import entry_codec, lmdb_replica, log_scan, replica_codec

    for module in (entry_codec, log_scan, lmdb_replica, replica_codec):
        module.is_sound = lambda key, value: True  # type: ignore[attr-defined]


@mutant(
    "store",
    "a missing or damaged file is replaced by an empty one under the same replica id",
    flip=6,
    kill=6,
    fault_every=0.4,
    replication_factor=3,
)
def _starts_empty_after_loss() -> None:
    from raftmq.broker import local_replicas
    from raftmq.broker.founding import unborn
    from raftmq.storage.errors import DamagedReplicaError

    open_replica = local_replicas.open_replica

    def open_or_begin_anew(store: Any, registry: Any, key: Any, machine: Any) -> Any:
        try:
            return open_replica(store, registry, key, machine)
        except DamagedReplicaError:
            store.retire(key)
            store.create(key, unborn(), ())
            return open_replica(store, registry, key, machine)

    local_replicas.open_replica = open_or_begin_anew


@mutant("store", "the applied index is written without the rows that it stands for", kill=6, fault_every=0.5)
def _applied_index_without_rows() -> None:
    from dataclasses import replace

    from raftmq.broker.commits import Commits

    _replace(
        Commits,
        "_update",
        lambda original: lambda self, group, work: replace(original(self, group, work), state_rows=()),
    )


# ----------------------------------------------------------------------------------------------------------------- engine


@mutant("engine", "answers leave before the write they vouch for is done")
def _answers_before_durable() -> None:
    from raftmq.broker.commits import Commits

    start = Commits.start

    def hasty(self: Any, group: Any, work: Any, inbound: int) -> None:
        for message in work.responses:
            self._host.send(group, message)
        start(self, group, work, inbound)

    Commits.start = hasty  # type: ignore[method-assign]


@mutant("engine", "whoever waits for an index is answered by another term's entry there")
def _waiter_takes_any_entry() -> None:
    from raftmq.broker.group import Group

    answer = Group._answer_waiters

    def any_entry(self: Any, entry: Any, result: Any) -> None:
        waiter = self._waiters[0]
        if entry.index >= waiter.first_index:
            from dataclasses import replace

            entry = replace(entry, term=waiter.term)
        answer(self, entry, result)

    Group._answer_waiters = any_entry  # type: ignore[method-assign]
    Group.fail_waiters = lambda self: None  # type: ignore[method-assign]


@mutant("engine", "a damaged replica goes on", flip=6, kill=6, fault_every=0.4, replication_factor=3)
def _damaged_replica_goes_on() -> None:
    from raftmq.broker.engine import Engine

    def keep(self: Any, group: Any, error: Exception) -> None:
        self._owner.on_replica_broken(group, error)

    Engine.break_group = keep  # type: ignore[method-assign]


@mutant("engine", "bytes of a finished proposal are not given back")
def _budget_leaks() -> None:
    from raftmq.broker.engine import Engine

    Engine.release_uncommitted = lambda self, size: None  # type: ignore[method-assign]


@mutant("engine", "a snapshot loses its last row", wipe=6, fault_every=0.6, replication_factor=3)
def _snapshot_loses_a_row() -> None:
    from raftmq.broker import snapshots

    install = snapshots.Snapshots.install

    def short(self: Any, group: Any, work: Any) -> None:
        del work.snapshot.data[-1:]
        install(self, group, work)

    snapshots.Snapshots.install = short  # type: ignore[method-assign]


@mutant("engine", "a quarantine is not remembered", flip=6, kill=6, fault_every=0.4, replication_factor=3)
def _quarantine_forgotten() -> None:
    from raftmq.storage.registry import Registry

    Registry.quarantine = lambda self, key, reason: None  # type: ignore[method-assign]


# ---------------------------------------------------------------------------------------------------------------- machine


@mutant("machine", "applying reads something that is not in the log")
def _applies_local_state() -> None:
    from raftmq.fsm.log_partition import LogPartition

    from sim.node.host import HOST

    apply_data = LogPartition._apply_data

    def local(self: Any, entry: Any) -> None:
        apply_data(self, entry)
        host = HOST.get()
        self.appended_bytes += 1 if host is not None and host.name == "n1" else 0

    LogPartition._apply_data = local  # type: ignore[method-assign]


@mutant("machine", "what duplicates are known by is forgotten when leadership changes")
def _forgets_producers() -> None:
    from raftmq.fsm import append_judge

    judge = append_judge.AppendJudge.judge

    def forgetful(self: Any, header: Any) -> Any:
        verdict = judge(self, header)
        if isinstance(verdict, append_judge.Duplicate):
            return append_judge.Accept()
        return verdict

    append_judge.AppendJudge.judge = forgetful  # type: ignore[method-assign]


@mutant("machine", "a trim goes one record too far", trim_every=0.3)
def _trims_too_far() -> None:
    from raftmq.fsm.log_commands import Trimmed
    from raftmq.fsm.log_partition import LogPartition

    def trim(self: Any, command: Any) -> Any:
        start = min(max(command.before_offset + 1, self.log_start_offset), self.next_offset)
        self.log_start_offset = start
        self._are_scalars_dirty = True
        return Trimmed(start)

    LogPartition._trim = trim  # type: ignore[method-assign]


# ---------------------------------------------------------------------------------------------------------------- service


@mutant("service", "what is not committed can be read")
def _reads_uncommitted() -> None:
    from raftmq.broker.partition_log import PartitionLog

    PartitionLog.high_watermark = property(lambda self: self.group.core.log.next_offset)  # type: ignore[assignment]
    PartitionLog.is_readable = lambda self, offset: offset < self.group.core.log.next_offset  # type: ignore[method-assign]

    def read_recent(self: Any, offset: int, bytes_max: int) -> Any:
        recent = self.group.log.recent
        index = recent.index_of_offset(offset)
        entries = recent.slice(index, self.group.core.last_index, bytes_max) if index is not None else None
        return [entry for entry in entries or () if entry.record_count and entry.next_offset > offset] or None

    PartitionLog.read_recent = read_recent  # type: ignore[method-assign]


@mutant(
    "service",
    "leadership lost while a change was under way is reported as «not done»",
    isolate=4,
    stall_disk=4,
    delivery_seconds=1.5,
    request_seconds=0.5,
    fault_every=0.5,
)
def _lost_leadership_called_failure() -> None:
    from raftmq.broker.group import Group

    Group._leadership_lost = lambda self: self.not_leader()  # type: ignore[method-assign]


@mutant("service", "two nodes hand out the same producer ids")
def _same_producer_ids() -> None:
    from raftmq.broker.services.producer_ids import ProducerIds

    take = ProducerIds._take

    def low(self: Any) -> Any:
        answer = take(self)
        answer.producer_id %= 1000
        return answer

    ProducerIds._take = low  # type: ignore[method-assign]


# ----------------------------------------------------------------------------------------------------------------- client


@mutant(
    "client",
    "a batch of unknown outcome is sent again under a new sequence",
    isolate=4,
    stall_disk=4,
    delivery_seconds=1.5,
    request_seconds=0.5,
    fault_every=0.5,
)
def _retries_under_new_sequence() -> None:
    from raftmq.client.partition_queue import Identity, PartitionQueue

    retry = PartitionQueue.retry

    def anew(self: Any, attempts: Any, *, is_outcome_unknown: bool) -> None:
        retry(self, attempts, is_outcome_unknown=is_outcome_unknown)
        if is_outcome_unknown and self.identity.producer_id and not self.has_unanswered:
            self.identity = Identity(self.identity.producer_id, self.identity.epoch + 1)
            for batch in self.pipeline:
                self._assign_sequence(batch)

    PartitionQueue.retry = anew  # type: ignore[method-assign]


@mutant("client", "a consumer goes on one record too far after a failed poll")
def _consumer_skips_a_record() -> None:
    from raftmq.client.fetcher import Fetcher

    pause = Fetcher._pause

    def skip(self: Any, partition: Any, error: Any) -> None:
        pause(self, partition, error)
        if partition.position is not None and not partition.has_records:
            partition.position += 1
            partition.fetch_offset = partition.position

    Fetcher._pause = skip  # type: ignore[method-assign]


@mutant(
    "client",
    "a delivery that timed out is reported as definitely failed",
    isolate=4,
    stall_disk=4,
    delivery_seconds=1.5,
    request_seconds=0.5,
    fault_every=0.5,
)
def _delivery_timeout_called_failure() -> None:
    from raftmq.client.dispatcher import Dispatcher
    from raftmq.errors import DeliveryExpiredError

    Dispatcher._expiry_error = lambda self, queue, batch: DeliveryExpiredError("too late")  # type: ignore[method-assign]


@mutant("client", "an answer is taken for another batch's")
def _answers_mixed_up() -> None:
    from raftmq.client.dispatcher import Dispatcher

    on_answer = Dispatcher.on_answer

    def mixed(self: Any, sent: Any, response: Any) -> None:
        for _, attempts in sent:
            attempts.reverse()
        on_answer(self, sent, response)

    Dispatcher.on_answer = mixed  # type: ignore[method-assign]


@mutant("client", "a consumer takes over batches that it was handed before")
def _consumer_takes_batches_again() -> None:
    from raftmq.client.partition_fetch import FetchedBatch, PartitionFetch

    def add(self: Any, base_offsets: Any, batches: Any) -> int:
        added = 0
        for base_offset, data in zip(base_offsets, batches, strict=True):
            self._batches.append(FetchedBatch(base_offset, data))
            added += len(data)
        self.buffered_bytes += added
        return added

    PartitionFetch.add = add  # type: ignore[method-assign]
