"""Bugs of the engine, which connects the cores, the disk and the network."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sim.cluster.mutants.registry import OVERTAKING, mutant


@mutant("engine", "answers leave before the write that they confirm is done")
def answers_before_durable() -> None:
    from raftmq.broker.replica.commits import Commits

    start = Commits.start

    def hasty(self: Any, replica: Any, work: Any, **named: Any) -> None:
        for message in work.responses:
            self._host.send(replica, message)
        start(self, replica, work, **named)

    Commits.start = hasty  # type: ignore[method-assign]


@mutant("engine", "derived state is written while another write of the replica is in flight")
def second_write_in_flight() -> None:
    from raftmq.broker.replica.commits import Commits

    def impatient(self: Any, replica: Any) -> None:
        if self._may_write_derived(replica):
            self._write_derived(replica)

    Commits.flush_state = impatient  # type: ignore[method-assign]


@mutant("engine", "votes are requested when the write of term, own vote and log begins")
def asks_before_durable() -> None:
    from raftmq.broker.replica.commits import Commits
    from raftmq.raft.messages import VoteRequest

    start = Commits.start

    def hasty(self: Any, replica: Any, work: Any, **named: Any) -> None:
        early = [message for message in work.responses if isinstance(message, VoteRequest)]
        for message in early:
            self._host.send(replica, message)
        start(self, replica, replace(work, responses=tuple(one for one in work.responses if one not in early)), **named)

    Commits.start = hasty  # type: ignore[method-assign]


@mutant(
    "engine",
    "a proposal is answered by another term's entry at its index",
    isolate=8,
    fault_every=0.4,
    send_every=0.1,
    tick_seconds=0.1,
    election_ticks=3,
    delivery_seconds=15.0,
)
def waiter_takes_any_entry() -> None:
    from raftmq.broker.replica.pending_proposals import PendingProposals

    answer = PendingProposals.on_applied

    def any_entry(self: Any, entry: Any, result: Any) -> None:
        pending = self.queue[0]
        if entry.index >= pending.first_index:
            entry = replace(entry, term=pending.term)
        answer(self, entry, result)

    PendingProposals.on_applied = any_entry  # type: ignore[method-assign]
    PendingProposals.fail_all = lambda self: None  # type: ignore[method-assign]


@mutant("engine", "a damaged replica stays active", flip=6, kill=6, fault_every=0.4, replication_factor=3)
def damaged_replica_goes_on() -> None:
    from raftmq.broker.replica.engine import Engine

    def keep(self: Any, replica: Any, error: Exception) -> None:
        self._owner.on_replica_broken(replica, error)

    Engine.break_replica = keep  # type: ignore[method-assign]


@mutant("engine", "bytes of a finished proposal are not released")
def budget_leaks() -> None:
    from raftmq.broker.replica.engine import Engine

    Engine.release_uncommitted = lambda self, size: None  # type: ignore[method-assign]


@mutant("engine", "a proposal of any size is accepted while the limit is not reached", uncommitted_bytes_max=8_000)
def uncommitted_over_its_limit() -> None:
    from raftmq.broker.replica.engine import Engine

    def reserve(self: Any, size: int) -> bool:
        if self._uncommitted_bytes >= self.limits.uncommitted_bytes_max:
            return False
        self._uncommitted_bytes += size
        return True

    Engine.reserve_uncommitted = reserve  # type: ignore[method-assign]


@mutant("engine", "an append of any size is accepted while the limit is not reached", inbound_append_bytes_max=8_000)
def inbound_over_its_limit() -> None:
    from raftmq.broker.replica.engine import Engine

    admit = Engine._admit_inbound

    def late(self: Any, replica: Any, message: Any) -> bool:
        limits, inbound = self.limits, self._inbound
        if inbound.total < limits.inbound_append_bytes_max:
            self.limits = replace(limits, inbound_append_bytes_max=1 << 40)
        try:
            return admit(self, replica, message)
        finally:
            self.limits = limits

    Engine._admit_inbound = late  # type: ignore[method-assign]


@mutant("engine", "a leader's append is no longer counted when its write begins", disk_latency=0.02, stall_disk=4)
def inbound_given_back_early() -> None:
    from raftmq.broker.replica.commits import Commits

    start = Commits.start

    def early(self: Any, replica: Any, work: Any, *, with_inbound: bool = True) -> None:
        if with_inbound:
            self._inbound.forget(replica.group_id)
        start(self, replica, work, with_inbound=with_inbound)

    Commits.start = early  # type: ignore[method-assign]


@mutant("engine", "recent entries are dropped one too late", recent_entries_bytes_max=2_000)
def recent_entries_over_their_limit() -> None:
    from raftmq.broker.replica.recent_entries import RecentEntriesBudget

    added = RecentEntriesBudget.added

    def late(self: Any, owner: Any, index: Any, size: int) -> None:
        self.bytes_max += size
        added(self, owner, index, size)
        self.bytes_max -= size

    RecentEntriesBudget.added = late  # type: ignore[method-assign]


@mutant("engine", "a snapshot loses its last row", wipe=6, fault_every=0.6, replication_factor=3)
def snapshot_loses_a_row() -> None:
    from raftmq.broker.replica import snapshots

    install = snapshots.Snapshots.install

    def short(self: Any, replica: Any, work: Any) -> None:
        rows = list(work.snapshot.data)[:-1]
        install(self, replica, replace(work, snapshot=replace(work.snapshot, data=rows)))

    snapshots.Snapshots.install = short  # type: ignore[method-assign]


@mutant("engine", "a quarantine is not recorded", flip=6, kill=6, fault_every=0.4, replication_factor=3)
def quarantine_forgotten() -> None:
    from raftmq.storage.registry import Registry

    Registry.quarantine = lambda self, key, reason: None  # type: ignore[method-assign]


@mutant(
    "engine",
    "the free space of a file is released only during a truncation, before the rows are deleted",
    retention_ms=2_500,
)
def space_asked_for_too_early() -> None:
    from raftmq.broker.cluster.space_return import SpaceReturn
    from raftmq.broker.replica.commits import Commits

    truncate = Commits.truncate

    async def asking(self: Any, replica: Any, *arguments: Any) -> None:
        await truncate(self, replica, *arguments)
        self._writers.run(replica.key, lambda: self._log_trimmer._store.reclaim(replica.key))

    async def no_look(self: Any) -> None:
        del self

    Commits.truncate = asking  # type: ignore[method-assign, assignment]
    SpaceReturn.round = no_look  # type: ignore[method-assign]


@mutant("engine", "truncated rows left by one slice wait for the next truncation", retention_ms=2_500, is_tight=True)
def truncated_rows_left() -> None:
    from raftmq.broker.replica.log_trimmer import LogTrimmer
    from raftmq.storage.lmdb_log_store import LmdbLogStore

    LogTrimmer._on_slice_deleted = lambda self, replica, done: None  # type: ignore[method-assign]
    LmdbLogStore.has_truncated_rows = lambda self, key: False  # type: ignore[method-assign]


@mutant("engine", "a node keeps the first leader of a group that it heard of", kill=6, isolate=4, fault_every=0.5)
def stale_leadership_table() -> None:
    from raftmq.broker.replica.leadership_table import LeadershipTable

    claim = LeadershipTable.claim

    def first_only(self: Any, group_id: Any, term: Any, node_id: Any) -> bool:
        return not self.get(group_id).node_id and claim(self, group_id, term, node_id)

    LeadershipTable.claim = first_only  # type: ignore[method-assign]


@mutant("engine", "a defect in background work ends the process", defect=8, fault_every=0.4)
def defect_ends_the_process() -> None:
    from raftmq.broker.base.supervisor import Supervisor

    Supervisor.record_failure = lambda self, work, error: self._on_fatal(error)  # type: ignore[method-assign]


@mutant("engine", "a replica that a defect stopped is not reported", defect=8, fault_every=0.4)
def stopped_replica_unreported() -> None:
    from raftmq.broker.cluster.replica_manager import ReplicaManager

    not_served = ReplicaManager.not_served

    def hidden(self: Any, metadata: Any, node_id: Any) -> Any:
        return [one for one in not_served(self, metadata, node_id) if one.key not in self._troubles]

    ReplicaManager.not_served = hidden  # type: ignore[method-assign]


@mutant("engine", "a replica that a defect stopped is not reopened", defect=8, fault_every=0.4)
def stopped_replica_stays_stopped() -> None:
    from raftmq.broker.cluster.replica_manager import ReplicaManager

    ReplicaManager._retry = lambda self, key, trouble: None  # type: ignore[method-assign]


@mutant("engine", "a failed loop is not restarted", defect=8, fault_every=0.4)
def failed_loop_stays_ended() -> None:
    from raftmq.broker.base.supervisor import Supervisor

    async def once(self: Any, work: Any, run: Any) -> None:
        try:
            await run()
        except Exception as error:  # noqa: BLE001 -- the mutant's bug: the loop is not restarted
            self.record_failure(work, error)

    Supervisor._keep = once  # type: ignore[method-assign]


@mutant(
    "engine",
    "a leader measures the age of records by its own clock and ignores the other nodes' clocks",
    wrong_clock=8,
    fault_every=0.4,
    retention_ms=6_000,
)
def trims_by_a_wrong_clock() -> None:
    from raftmq.broker.cluster.view import ClusterView

    ClusterView.is_clock_trusted = True  # type: ignore[assignment]
    ClusterView.now_ms = lambda self: self._engine.clocks._clock.now_ms()  # type: ignore[method-assign]


@mutant(
    "engine",
    "a leader stamps records by its own clock and ignores the other nodes' clocks",
    wrong_clock=8,
    fault_every=0.2,
    isolate=8,
    kill=4,
    send_every=0.1,
)
def stamps_by_a_wrong_clock() -> None:
    from raftmq.broker.peers.clocks import PeerClocks

    PeerClocks.now_ms = lambda self: self._clock.now_ms()  # type: ignore[method-assign]


_UNDISTURBED = dict.fromkeys(
    (
        "kill", "kill_all", "stop", "power_cut", "freeze", "isolate", "one_way", "split", "clog", "break_streams", "slow_disk", "stall_disk",
        "full_disk", "full_map", "sleep_all", "clock_jump", "wipe", "flip", "remove_node", "replace_replica",
    ),
    0,
)  # fmt: skip
"""No fault that stops brokers, links or disks."""


@mutant(
    "engine",
    "a machine whose clock is wrong and that is given another broker's disk counts as two clocks",
    **_UNDISTURBED,
    wrong_clock=8,
    swap=12,
    fault_every=0.3,
    send_every=0.05,
    seconds=20.0,
    machines=3,
)
def counts_moved_clocks_twice() -> None:
    from raftmq.broker.peers.clocks import PeerClocks

    PeerClocks.on_process_started = PeerClocks.ask_all  # type: ignore[method-assign]


@mutant(
    "engine",
    "the boot of a peer's data directory is ignored: an older copy of a disk votes and leads",
    stale_copy=8,
    kill=4,
    isolate=6,
    fault_every=0.2,
    replication_factor=3,
    machines=3,
    wipe=0,
    flip=0,
    remove_node=0,
    replace_replica=0,
)
def boots_ignored() -> None:
    from raftmq.fsm.node_lineage import Lineage

    Lineage.contradiction = lambda self, known: None  # type: ignore[method-assign]


_RENEWING = {"renewal_seconds": 0.7, "stale_copy": 0, "renewed_copy": 0, "fault_every": 0.2}


@mutant(
    "engine",
    "a renewed mark is registered before it is on disk: after a crash the directory is behind metadata",
    **_RENEWING,
    kill=8,
    power_cut=8,
)
def mark_registered_before_durable() -> None:
    from raftmq.storage.registry import Registry

    def renew_mark(self: Any) -> None:
        self._node = self._in_next_boot(self._new_mark(), is_running=True)

    Registry.renew_mark = renew_mark  # type: ignore[method-assign]


@mutant(
    "engine",
    "a broker gives its directory up because a peer refuses a greeting from before the latest renewal",
    **_RENEWING,
    break_streams=8,
    one_way=8,
    clog=8,
)
def old_greeting_refuses_the_directory() -> None:
    from raftmq.broker.peers import link, protocol

    link.ConnectionResetError = protocol.StaleDirectoryError  # type: ignore[attr-defined]


@mutant("engine", "a renewed mark is taken for that of another process", **_RENEWING, break_streams=8)
def renewed_mark_is_another_process() -> None:
    from raftmq.storage.registry import MARK_BYTES, Registry

    Registry.process_mark = property(lambda self: self.boot_marks[-MARK_BYTES:])  # type: ignore[method-assign, assignment]


@mutant(
    "engine",
    "a write names entries as committed that another leader replaced while a snapshot before them was installed",
    **OVERTAKING,
    send_every=0.05,
)
def replaced_entries_named_as_committed() -> None:
    from raftmq.broker.replica import commits

    def last_written(log: Any, entries: Any) -> Any:
        return entries[-1].index if entries else log.offset_in_progress - 1

    commits._last_held = last_written


@mutant(
    "engine",
    "a write without entries names only those as committed whose write the core has counted",
    stall_disk=8,
    isolate=6,
    reshape=6,
    fault_every=0.2,
    send_every=0.05,
    disk_latency=0.02,
    replication_factor=3,
)
def durable_commit_index_goes_back() -> None:
    from raftmq.broker.replica import commits

    held = commits._last_held
    commits._last_held = lambda log, entries: held(log, entries) if entries else log.durable_index
