"""Bugs of the state machine of queue partitions."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from typing import Any

from raftmq.fsm.queue.levels import DUE_LEVEL

from sim.cluster.mutants.registry import queue_mutant, replace_method


@queue_mutant("a message's state depends on the broker that applies the entry")
def applies_local_time() -> None:
    from raftmq.fsm.queue.state import QueueState

    from sim.cluster.world.host import HOST

    def later(self: Any, delay_ms: int) -> int:
        host = HOST.get()
        return int(original(self, delay_ms)) + (host is not None and host.name == "n1")

    original = QueueState.later
    QueueState.later = later  # type: ignore[method-assign]


@queue_mutant("a settlement with an old token accepts the message")
def old_token_accepts() -> None:
    from raftmq.fsm.queue import settlements
    from raftmq.fsm.queue.message import LEASED

    accept_run = settlements.accept_run

    def trusting(state: Any, sequences: Any, lease_number: int, runs: Any) -> None:
        for sequence in sequences:
            m = state.store.messages.get(sequence)
            valid = m.lease_number if m is not None and m.state == LEASED else lease_number
            accept_run(state, range(sequence, sequence + 1), valid, runs)

    settlements.accept_run = trusting


@queue_mutant("the messages of a chain are put although its lease is lost", queues={"chain_share": 0.5})
def chains_without_leases() -> None:
    from raftmq.fsm.queue import partition

    def trusting(original: Any) -> Any:
        def accept_chain(state: Any, chain: Any, work_max: int) -> Any:
            settled, _ = yield from original(state, chain, work_max)
            return settled, frozenset()

        return accept_chain

    replace_method(partition, "accept_chain", trusting)


@queue_mutant("a redrive begins the lease numbers again", queues={"attempts_max": 2})
def redrive_resets_the_lease_number() -> None:
    from raftmq.fsm.queue import changes, jobs

    def resetting(original: Any) -> Any:
        def redrive(state: Any, m: Any) -> None:
            m.lease_number = 0
            original(state, m)

        return redrive

    for module in (changes, jobs):
        replace_method(module, "redrive", resetting)


@queue_mutant("a message is promoted before it is due")
def promoted_early() -> None:
    from raftmq.fsm.queue.state import QueueState

    def hasty(self: Any, m: Any) -> None:
        if m.due - self.scalars.now < 2_000:
            m.due = self.scalars.now
        admit(self, m)

    admit = QueueState.admit
    QueueState.admit = hasty  # type: ignore[method-assign]


@queue_mutant("a failed attempt is repeated without the topic's delay", queues={"config": {"backoff.base.ms": "400"}})
def retries_without_backoff() -> None:
    from raftmq.fsm.queue.state import QueueState

    replace_method(QueueState, "retry_due", lambda _original: lambda _self, m: m.due)


@queue_mutant("the delay of a release is ignored")
def release_forgets_its_delay() -> None:
    import msgspec
    from raftmq.fsm.queue import settlements

    replace_method(
        settlements,
        "_release",
        lambda original: (
            lambda state, m, detail: original(
                state, m, msgspec.structs.replace(detail, delay_ms=min(detail.delay_ms, 0))
            )
        ),
    )


@queue_mutant("a renewal is answered, and does not extend the lease")
def renewal_does_nothing() -> None:
    from raftmq.fsm.queue import settlements
    from raftmq.fsm.queue.commands import Operation
    from raftmq.fsm.queue.results import Code

    settle_one = settlements._settle_one
    settlements._settle_one = lambda state, operation, m, detail: (
        Code.OK if operation == Operation.RENEW else settle_one(state, operation, m, detail)
    )


@queue_mutant(
    "a session remembers no answers: a repeated request is executed again",
    queues={"lost_share": 0.2, "lease_ms": 3_000, "workers": 9, "producers": 6, "pause_seconds": 0.02},
    fault_every=5.0,
    slow_share=0.0,
    delay_mean=0.0005,
)
def session_forgets_answers() -> None:
    from raftmq.fsm.queue.sessions import SessionTable

    SessionTable.remember = lambda self, number, request, result, now: None  # type: ignore[method-assign]


@queue_mutant("messages of a key do not wait for each other")
def keys_without_order() -> None:
    from raftmq.fsm.queue.state import QueueState

    def admit(self: Any, m: Any) -> None:
        m.line = b""
        original(self, m)

    original = QueueState.admit
    QueueState.admit = admit  # type: ignore[method-assign]


@queue_mutant("the last message of a line that frees its key does not bring the next one")
def freed_line_stays_blocked() -> None:
    from raftmq.fsm.queue import key_lines

    def forgetful(state: Any) -> Any:
        if state.scalars.now % 3 == 0:
            state.freed_lines.clear()
        return original(state)

    original = key_lines.advance
    key_lines.advance = forgetful


@queue_mutant("leases of dead consumers never end")
def leases_never_end() -> None:
    from raftmq.fsm.queue import housekeeping

    replace_method(housekeeping, "_end_leases", lambda original: lambda state, before, count_max: original(state, 0, 0))


@queue_mutant("a dead message that is redriven stays counted as dead", queues={"attempts_max": 2})
def dead_count_leaks() -> None:
    from raftmq.fsm.queue.message import DEAD
    from raftmq.fsm.queue.state import QueueState

    def leave(self: Any, m: Any) -> None:
        original(self, m)
        if m.state == DEAD:
            self.scalars.dead_count += 1

    original = QueueState.leave
    QueueState.leave = leave  # type: ignore[method-assign]


@queue_mutant("the bytes of a message that is given up stay counted")
def bytes_leak() -> None:
    from raftmq.fsm.queue.state import QueueState

    def forget(self: Any, m: Any) -> None:
        self.tenants.by_number[m.tenant].bytes += m.body_bytes
        original(self, m)

    original = QueueState.forget
    QueueState.forget = forget  # type: ignore[method-assign]


@queue_mutant("the id of a finished message is not released", queues={"dedupe_window_ms": 3_000})
def ids_leak() -> None:
    from raftmq.fsm.queue.ids import IdTable

    IdTable.release = lambda self, id_, sequence, until, now: None  # type: ignore[method-assign]


@queue_mutant("a message whose id is known is enqueued again", queues={"dedupe_window_ms": 3_000})
def repeats_enqueued() -> None:
    from raftmq.fsm.queue.ids import IdTable

    IdTable.find = lambda self, id_, now: None  # type: ignore[method-assign]


@queue_mutant(
    "an entry promotes everything that is due",
    queues={"is_work_small": True, "starts_at_level": DUE_LEVEL, "producers": 6, "workers": 1, "pause_seconds": 0.02},
    all_down=8,
    fault_every=0.6,
)
def housekeeping_without_bound() -> None:
    from raftmq.fsm.queue import housekeeping

    for name in ("_end_leases", "_promote"):
        replace_method(
            housekeeping, name, lambda original: lambda state, *arguments: original(state, *arguments[:-1], 1 << 30)
        )


@queue_mutant(
    "leases that end leave no room for promotions",
    queues={
        "is_work_small": True,
        "starts_at_level": DUE_LEVEL,
        "producers": 6,
        "pause_seconds": 0.02,
        "lease_ms": 400,
    },
    all_down=8,
    fault_every=0.6,
)
def promotions_without_share() -> None:
    from raftmq.fsm.queue import housekeeping

    for name in ("_end_leases", "_expire"):
        replace_method(
            housekeeping,
            name,
            lambda original: lambda state, *arguments: original(state, *arguments[:-1], 2 * arguments[-1] - 1),
        )


@queue_mutant("the row of a finished message stays on disk", queues={"is_memory_tiny": True})
def finished_row_stays() -> None:
    from raftmq.fsm.queue.store import MessageStore

    def write_gone(self: Any, m: Any, out: list[Any]) -> None:
        before = len(out)
        original(self, m, out)
        del out[before]

    original = MessageStore._write_gone
    MessageStore._write_gone = write_gone  # type: ignore[method-assign]


@queue_mutant("an unwritten message is evicted from memory", queues={"is_memory_tiny": True})
def unwritten_message_evicted() -> None:
    from raftmq.fsm.queue.store import MessageStore

    def evict(self: Any, sequence: int) -> None:
        m = self.messages.get(sequence)
        if m is not None and sequence not in self._frozen and not self._is_in_window(m):
            self.dirty.discard(sequence)
            del self.messages[sequence]

    MessageStore._evict_unless_needed = evict  # type: ignore[method-assign]


@queue_mutant("the rows of a write-back lack the last one")
def write_back_loses_a_row() -> None:
    from raftmq.fsm.queue.partition import QueuePartition

    replace_method(QueuePartition, "take_dirty_rows", lambda original: lambda self: original(self)[:-1])


@queue_mutant("a purge of one tenant takes the messages of all", queues={"meddlers": 4, "producers": 4, "purges": 1})
def purge_ignores_its_filter() -> None:
    from raftmq.fsm.queue import jobs

    jobs.is_in_subtrees = lambda path, subtrees: True


@queue_mutant(
    "a firing makes a message although its schedule does not await it any more",
    queues={"schedules": 30, "meddlers": 3, "purges": 0},
    kill=8,
    fault_every=0.4,
)
def firings_not_compared() -> None:
    import msgspec
    from raftmq.fsm.queue.schedules import ScheduleTable

    def fire(self: Any, firing: Any) -> bool:
        name = firing.schedule.decode()
        row = self.table.get(name)
        if row is None:
            return False
        self._store(name, msgspec.structs.replace(row, next_due=firing.next_due_ms, last_due=firing.due_ms))
        return True

    ScheduleTable.fire = fire  # type: ignore[method-assign]


@queue_mutant(
    "a tenant that was idle gets the turns that it did not need", queues={"fairness": "round_robin", "producers": 4}
)
def idle_time_gives_credit() -> None:
    from raftmq.fsm.queue.fairness import FairnessTree

    def enter(self: Any, child: Any, *, is_restored: bool = False) -> None:
        original(self, child, is_restored=True)
        self._changed.add(child.number)

    original = FairnessTree._enter
    FairnessTree._enter = enter  # type: ignore[method-assign]


@queue_mutant("a change is done in any version of the message, whatever version it names")
def change_ignores_its_version() -> None:
    import msgspec
    from raftmq.fsm.queue import changes
    from raftmq.fsm.queue.commands import ANY_VERSION

    def in_any_version(original: Any) -> Any:
        return lambda state, m, item: original(state, m, msgspec.structs.replace(item, version=ANY_VERSION))

    replace_method(changes, "_change_one", in_any_version)
