"""Bugs of the serving of queue partitions: admission, leases, the clock, write-backs, evacuation, bodies and snapshots."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any

from sim.cluster.mutants.registry import OVERTAKING, queue_mutant, replace_method

DEAD_LETTERS = {"has_dead_letters": True, "attempts_max": 2}
"""Options under which messages die often and are copied."""
_TINY_MEMORY = {
    "is_memory_tiny": True, "tail_entries": 3, "write_back_seconds": 0.2, "write_back_rows_max": 20, "recent_entries_bytes_max": 1_000,
}  # fmt: skip
"""Options under which entries often need rows from disk, and rows are often written back."""


@queue_mutant("nobody carries the time when nothing else happens")
def tick_missing() -> None:
    from raftmq.broker.partitions.queue.upkeep import QueueUpkeep

    QueueUpkeep._propose_tick = lambda self: False  # type: ignore[method-assign]


@queue_mutant("the topic's settings never reach the machine", queues={"attempts_max": 0})
def settings_ignored() -> None:
    from raftmq.broker.partitions.queue.gate import QueueGate
    from raftmq.broker.partitions.queue.upkeep import QueueUpkeep

    QueueUpkeep.configure = lambda self: None  # type: ignore[method-assign]
    QueueGate._unreadiness = lambda self: self._clock.unreadiness()  # type: ignore[method-assign]


@queue_mutant("the gate forgets to release batches that were applied")
def gate_leaks() -> None:
    from raftmq.broker.partitions.queue.gate import QueueGate

    QueueGate._forget_applied = lambda self: None  # type: ignore[method-assign]


@queue_mutant(
    "a consumer leases while another one, the only active one, has leases",
    queues={"is_single_active": True, "workers": 5},
)
def single_active_ignored() -> None:
    from raftmq.broker.partitions.queue.leases import QueueLeases

    QueueLeases._is_vacant = lambda self: True  # type: ignore[method-assign]


@queue_mutant("a leader stamps entries with its own wall clock", wrong_clock=8, fault_every=0.5)
def stamps_queue_by_own_clock() -> None:
    from raftmq.broker.partitions.queue.clock import QueueClock
    from raftmq.broker.partitions.queue.partition import PartitionQueue

    def init(self: Any, replica: Any, host: Any, store: Any, on_damage: Any = None) -> None:
        original(self, replica, host, store, on_damage)
        self.clock._median_ms = _own_wall_ms

    def read_ms(self: Any) -> int:
        self.is_running = True
        self._time_ns = max(self._time_ns, self._median_ms() * 1_000_000)
        return int(self._time_ns // 1_000_000)

    original = PartitionQueue.__init__
    PartitionQueue.__init__ = init  # type: ignore[method-assign]
    QueueClock.read_ms = read_ms  # type: ignore[method-assign]


def _own_wall_ms() -> int:
    from sim.cluster.run import _KEPT
    from sim.cluster.world.host import HOST

    host = HOST.get()
    assert host is not None
    return _KEPT[-1].cluster.machines[host.name].wall.now_ms()


@queue_mutant("after all brokers were down the clock continues from where it stood", all_down=8, fault_every=0.6)
def clock_stands_still_while_down() -> None:
    from raftmq.broker.partitions.queue.clock import QueueClock

    def start(self: Any) -> None:
        self._read_at_ns = self._boottime_ns()
        self.is_running = True
        self.is_provisional = False

    QueueClock._start = start  # type: ignore[method-assign]


@queue_mutant("a body is read from the wrong place in its batch")
def bodies_mixed_up() -> None:
    from raftmq.broker.partitions.queue.bodies import _Columns

    def body(self: Any, entry: Any, sequence: int) -> Any:
        last = self.base_offset + len(self._fields.body_lengths) - 1
        return original(self, entry, self.base_offset if sequence == last else last)

    original = _Columns.body
    _Columns.body = body  # type: ignore[method-assign]


@queue_mutant("bodies of unfinished messages do not hold the log", queues={"tail_entries": 3})
def truncation_ignores_bodies() -> None:
    from raftmq.broker.partitions.queue import upkeep
    from raftmq.storage import lmdb_log_store

    upkeep.first_needed = lambda store, key: None
    upkeep.evacuate = lambda store, key, through_index: False
    lmdb_log_store.check_bodies_stay = lambda updates, first_location: None  # type: ignore[attr-defined]


@queue_mutant("an evacuation covers more messages than it copies", queues={"tail_entries": 3})
def evacuation_skips_a_body() -> None:
    from raftmq.storage import lmdb_state_file

    replace_method(lmdb_state_file, "bodies_alive", lambda original: lambda *arguments: original(*arguments)[1:])


@queue_mutant("an evacuated body outlives or leaves its message with the wrong one", queues={"tail_entries": 3})
def evacuated_body_deleted_too_early() -> None:
    from raftmq.storage import lmdb_state_file

    def deleting_the_next(original: Any) -> Any:
        def body_of_deleted(meta: Any, key: bytes) -> Any:
            found = original(meta, key)
            return None if found is None else found + 1

        return body_of_deleted

    replace_method(lmdb_state_file, "body_of_deleted", deleting_the_next)


@queue_mutant(
    "a snapshot brings no evacuated bodies",
    queues={"tail_entries": 3},
    machines=4,
    move_replicas=8,
    replication_factor=3,
)
def snapshot_without_bodies() -> None:
    from raftmq.storage import staged_state
    from raftmq.storage.state_store import is_body

    from sim.cluster.world import disk

    for module in (disk, staged_state):
        module.rows_of_snapshot = lambda rows, position: (row for row in rows if not is_body(row[0]))  # type: ignore[attr-defined]


@queue_mutant(
    "an installation replaces the log before the state",
    queues={"tail_entries": 3, "torn_installs": 3},
    machines=4,
    move_replicas=8,
    replication_factor=3,
)
def log_installed_before_the_state() -> None:
    from raftmq.storage.errors import CommitFailedError
    from raftmq.storage.log_scan import Verify
    from raftmq.storage.replica_codec import FORMAT_WITH_STATE_FILE

    from sim.cluster.world import disk

    def exchange_both(self: Any, replica: Any, state: Any, file: Any, new: Any) -> None:
        self._exchange(replica, disk._log_file(replica.key, new, FORMAT_WITH_STATE_FILE, ()))
        if self.disk.on_first_file():
            raise CommitFailedError(replica.key, "the process was killed between the two files")
        state.detach()
        self.disk.state_files[replica.key] = state.file = file
        state.attach(Verify.TAIL)

    disk.SimLogStore._exchange_both = exchange_both  # type: ignore[method-assign]


@queue_mutant(
    "a resumed snapshot skips the row after the last one received",
    queues={"tail_entries": 3},
    machines=4,
    move_replicas=8,
    replication_factor=3,
    is_tight=True,
    drop_share=0.05,
)
def resumption_skips_a_row() -> None:
    from raftmq.broker.replica.snapshot_sender import SnapshotSender

    async def skip(self: Any, outgoing: Any, row_count: int, last_key: bytes) -> None:
        outgoing.resume_from = None
        if row_count > outgoing.sent:
            outgoing.rows = outgoing.copy.copy.rows_from(last_key)
            next(outgoing.rows, None)
            next(outgoing.rows, None)
            outgoing.sent = row_count

    SnapshotSender._skip = skip  # type: ignore[method-assign]


@queue_mutant(
    "a snapshot names a later position than that of the log when its state was read: the bodies between are lost",
    queues={"tail_entries": 3},
    machines=4,
    move_replicas=8,
    replication_factor=3,
)
def snapshot_names_a_later_position() -> None:
    from raftmq.broker.replica.snapshot_sender import SnapshotSender

    async def begin(self: Any, replica: Any, outgoing: Any, stream_id: int) -> bool:
        if outgoing.copy is not None:  # the furthest point to which the log may have been truncated since
            position = await replica.find_position(outgoing.meta.state_index)
            outgoing.meta = dataclasses.replace(outgoing.meta, position=position or outgoing.meta.position)
        return bool(await original(self, replica, outgoing, stream_id))

    original = SnapshotSender._begin
    SnapshotSender._begin = begin  # type: ignore[method-assign]


@queue_mutant("a write-back claims one entry more than its rows describe", kill=8, fault_every=0.4)
def state_index_too_high() -> None:
    from raftmq.broker.replica import write_backs

    replace_method(write_backs, "StateWrite", lambda original: lambda index, *rest: original(index + 1, *rest))


@queue_mutant(
    "each leader copies the dead under a new epoch",
    queues={**DEAD_LETTERS, "lease_ms": 400, "producers": 4, "workers": 5},
    kill=8,
    fault_every=0.3,
)
def copies_begin_again() -> None:
    from raftmq.broker.partitions.queue.copies import QueueCopies

    def on_role(self: Any, change: Any) -> None:
        original_on_role(self, change)
        self.has_aimed = False

    async def aim(self: Any, target: Any, deadline: float) -> None:
        await original_aim(self, target, deadline)
        self.has_aimed = True

    def is_aimed_at(self: Any, target: Any) -> bool:
        return bool(self.has_aimed) and original_is_aimed(self, target)

    original_on_role, original_aim, original_is_aimed = QueueCopies._on_role, QueueCopies.aim, QueueCopies.is_aimed_at
    QueueCopies._on_role = on_role  # type: ignore[method-assign]
    QueueCopies.aim = aim  # type: ignore[method-assign]
    QueueCopies.is_aimed_at = is_aimed_at  # type: ignore[method-assign]


@queue_mutant("the dead are recorded as copied before the target acknowledged them", queues=DEAD_LETTERS)
def copied_before_acknowledged() -> None:
    from raftmq.broker.base.request_error import RequestError
    from raftmq.broker.services.queue.dead_letters import DeadLetterCopier

    def acknowledging_all(original: Any) -> Any:
        async def append(self: Any, *arguments: Any) -> None:
            with suppress(RequestError):
                await original(self, *arguments)

        return append

    replace_method(DeadLetterCopier, "_append", acknowledging_all)


@queue_mutant(
    "rows that arrive after the core took a snapshot are given to the old state",
    queues={**_TINY_MEMORY, "partitions": 2},
    **{**OVERTAKING, "partitions": 1},
)
def late_rows_reach_the_old_state() -> None:
    from raftmq.broker.replica.entry_applier import EntryApplier

    def make(drop: Any) -> Any:
        def dropping(self: Any) -> None:
            give_up(self)
            drop(self)

        return dropping

    give_up = EntryApplier.give_up
    replace_method(EntryApplier, "drop", make)
    EntryApplier.give_up = lambda self: None  # type: ignore[method-assign]


@queue_mutant(
    "leases come before the settlements of their entry, and use its work up",
    queues={
        "is_work_small": True, "message_ttl_ms": 400, "producers": 24, "workers": 10, "pause_seconds": 0.05, "attempts_max": 0,
        "is_single_active": False, "partitions": 1, "leased_per_tenant_max": 0, "config": {}, "lease_ms": 3_000,
    },
    stall_disk=8,
    fault_every=1.0,
    disk_latency=0.06,
)  # fmt: skip
def leases_before_settlements() -> None:
    from raftmq.broker.partitions.queue import commands

    commands._yields = lambda item: False
