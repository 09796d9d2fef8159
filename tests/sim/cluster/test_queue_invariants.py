"""Each invariant of queue partitions can fail: a state broken by hand is refused, and its correct twin is not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from raftmq.broker.replica.disk import IDLE
from raftmq.fsm.queue import commands as qc
from raftmq.fsm.queue import housekeeping, key_lines, partition, settlements
from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.fairness import FairnessTree
from raftmq.fsm.queue.results import Code, ItemResult, Leased, Results, SessionOpened, Settled
from raftmq.fsm.queue.schedules import ScheduleTable
from raftmq.fsm.queue.settings import QueueSettings
from raftmq.fsm.queue.state import QueueState
from raftmq.fsm.tables import number_key
from raftmq.queue_batch import MessageColumns, encode, encode_firing
from raftmq.raft.entry import Entry, EntryKind
from raftmq.storage.checksum import seal
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.memory_log_store import MemoryLogStore
from raftmq.storage.state_store import StateWrite

from sim.cluster.invariants.queue_clock import BEHIND_MS_MAX, QueueClocks
from sim.cluster.invariants.queue_firings import Firings
from sim.cluster.invariants.queue_rows import DurableQueue, check_bodies, living_rows
from sim.cluster.invariants.queue_state import QueueStates, check_counts, check_gate, check_rows_not_ahead
from sim.cluster.invariants.queue_turns import FairTurns, Turn, watch_turns
from sim.cluster.invariants.queue_work import watch_work
from sim.cluster.invariants.settlements_first import check_settlements_first
from tests.support.fsm.queue.host import Queue
from tests.support.sim.broken import broken
from tests.support.storage.log_builder import initial_state

KEY = ReplicaKey(cast("Any", 7), cast("Any", 3))
CONFIGURED = qc.Configure(QueueSettings(is_ordered_by_key=True, dedupe_window_ms=1_000))


@pytest.fixture
def queue() -> Queue:
    """Return a partition with a message in each state, an id and a line."""
    queue = Queue()
    queue.do(CONFIGURED)
    queue.put(3, tenant="a", key="k", id=["i1", None, None], ttl=9_000)
    queue.put(1, tenant="b")
    queue.put(1, delay=500)
    queue.do(qc.Lease(0, 0, 1, 1_000, ("b",)))
    queue.put(1)
    queue.do(qc.Lease(0, 0, 1, 1_000, ("",)))
    return queue


def durable(queue: Queue) -> dict[bytes, bytes]:
    queue.host.write_back()
    return dict(queue.host.disk.rows)


def row(rows: dict[bytes, bytes], tag: int) -> bytes:
    """Return the key of the first row of a table."""
    return min(key for key in rows if key[0] == tag)


# ------------------------------------------------------------------------------------------------------------ counts


def miscount_leases(queue: Queue) -> None:
    queue.host.machine.state.store.leased_count += 1


def miscount_a_tenant(queue: Queue) -> None:
    queue.host.machine.state.tenants.by_path["b"].leased += 1


def miscount_the_dead(queue: Queue) -> None:
    queue.host.machine.state.scalars.dead_count += 1


@pytest.mark.parametrize("miscount", [miscount_leases, miscount_a_tenant, miscount_the_dead])
def test_counts_hold(queue: Queue, miscount: Callable[[Queue], None]) -> None:
    check_counts(7, 1, queue.host.machine)

    miscount(queue)
    with broken("CountsHold"):
        check_counts(7, 1, queue.host.machine)


def test_counts_hold_at_the_gate() -> None:
    nothing = SimpleNamespace(messages=0)
    check_gate("n1", cast("Any", SimpleNamespace(immediate=0, _proposed=nothing, _admitted=nothing)))

    for held in (
        {"immediate": 1},
        {"_proposed": SimpleNamespace(messages=1)},
        {"_admitted": SimpleNamespace(messages=1)},
    ):
        with broken("CountsHold"):
            check_gate(
                "n1",
                cast("Any", SimpleNamespace(**{"immediate": 0, "_proposed": nothing, "_admitted": nothing, **held})),
            )


def replica(queue: Queue, replica_id: int, *, is_suspended: bool = False) -> Any:
    applier = SimpleNamespace(is_suspended=is_suspended)
    return SimpleNamespace(
        state_machine=queue.host.machine, is_closed=False, disk=IDLE, applier=applier, group_id=7, replica_id=replica_id
    )


def test_equal_state_of_queues(queue: Queue) -> None:
    states = QueueStates()
    states.on_memory(replica(queue, 1))
    states.on_memory(replica(queue, 2))
    assert states.compared == 1

    queue.host.machine.state.scalars.next_session += 1
    states.on_memory(replica(queue, 2, is_suspended=True))
    with broken("EqualState"):
        states.on_memory(replica(queue, 2))


def test_equal_state_of_queues_on_disk(queue: Queue) -> None:
    states, rows = QueueStates(), durable(queue)
    states.on_disk(replica(queue, 1), 5, rows)
    states.on_disk(replica(queue, 2), 5, dict(rows))
    states.on_disk(replica(queue, 2), 6, {})

    with broken("EqualState"):
        states.on_disk(replica(queue, 2), 5, {**rows, b"\x09": b""})


# -------------------------------------------------------------------------------------------------------------- rows


def test_rows_not_ahead() -> None:
    group: Any = SimpleNamespace(
        replica_id=1, group_id=7, is_closed=False, state_machine=SimpleNamespace(applied_index=9)
    )
    check_rows_not_ahead(group, 9)
    with broken("RowsNotAhead"):
        check_rows_not_ahead(group, 10)
    group.is_closed = True
    check_rows_not_ahead(group, 10)  # nobody reads them


def test_settlements_first() -> None:
    lease, refused = qc.Lease(0, 0, 10, 1_000), Settled((int(Code.OVER_LIMIT),), (1,))
    settle = qc.Settle(0, 0, (qc.Operation.ACCEPT,), (1,), (1,), (1,))
    leased = Leased((), (), (), 0)

    def check(items: tuple[qc.Item, ...], *results: ItemResult) -> None:
        payload = qc.encode_commands(qc.Commands(items))
        entry = Entry(*cast("Any", (5, 2, EntryKind.COMMAND, 0, 0, 0, payload)))
        check_settlements_first(7, entry, Results(results))

    check((settle, lease), refused, leased)  # its own messages were too many
    check((lease, settle), leased, Settled((int(Code.OK),), (1,)))
    check_settlements_first(7, stamped(6, 1), None)
    with broken("SettlementsFirst"):
        check((lease, settle), leased, refused)


def without(tag: int) -> Callable[[dict[bytes, bytes]], None]:
    def remove(rows: dict[bytes, bytes]) -> None:
        del rows[row(rows, tag)]

    return remove


def moved(rows: dict[bytes, bytes]) -> None:
    """Let a message lie under the key of another place."""
    key = row(rows, keys.READY_ROWS)
    rows[key[:-1] + b"\x09"] = rows.pop(key)


def twice(rows: dict[bytes, bytes]) -> None:
    """Let a message have two home rows."""
    key = row(rows, keys.READY_ROWS)
    rows[key[:-1] + b"\x09"] = rows[key]


BREAKS = [
    moved,
    twice,
    *map(without, (keys.READY_ROWS, keys.LEASED_ROWS, keys.DELAYED_ROWS, keys.LINE_ROWS, keys.LOCATIONS)),
    *map(without, (keys.TENANTS, keys.EXPIRY_ROWS, keys.KEY_HEADS)),
]


@pytest.mark.parametrize("break_rows", BREAKS)
def test_rows_agree(queue: Queue, break_rows: Callable[[dict[bytes, bytes]], None]) -> None:
    rows = durable(queue)
    DurableQueue("n1", rows).check()

    break_rows(rows)
    with broken("RowsAgree"):
        DurableQueue("n1", rows).check()


def test_an_id_without_its_message_is_refused(queue: Queue) -> None:
    rows = durable(queue)
    id_row = row(rows, keys.IDS)
    rows[keys.named_key(keys.IDS, 0, b"i9")] = rows.pop(id_row)

    with broken("RowsAgree"):
        DurableQueue("n1", rows).check()


def test_living_rows_are_those_of_the_newest_generation_without_bodies(queue: Queue) -> None:
    durable(queue)
    queue.do(qc.PurgeAll())
    rows = durable(queue)
    rows[b"\x40" + bytes(8)] = b"a body"
    table = SimpleNamespace(rows={key: seal(key, value) for key, value in rows.items()})
    disk = cast("Any", SimpleNamespace(state_files={KEY: SimpleNamespace(tables={"rows": table})}))

    living = living_rows(disk, KEY)

    assert number_key(keys.SCALARS, 0) in living
    assert not {key[0] for key in living} & {keys.READY_ROWS, keys.LOCATIONS, keys.BODIES}
    DurableQueue("n1", living).check()


# ------------------------------------------------------------------------------------------------------------ bodies


def test_bodies_stay(queue: Queue) -> None:
    store = MemoryLogStore()
    store.create_with_state_file(KEY, initial_state())
    store.open(KEY)
    rows = durable(queue)
    messages = DurableQueue("n1", rows)
    store.append_batch([(KEY, Update(entries=tuple(queue.log.entries)))])
    store.write_state(KEY, StateWrite(queue.host.machine.applied_index, tuple(rows.items())))
    check_bodies("n1", store, KEY, messages)

    messages.messages[0].body_bytes += 1
    with broken("BodiesStay"):
        check_bodies("n1", store, KEY, messages)

    messages.messages[0].body_bytes -= 1
    messages.messages[99] = messages.messages[0]
    with broken("BodiesStay"):
        check_bodies("n1", store, KEY, messages)


# -------------------------------------------------------------------------------------------------------------- work


@pytest.fixture
def small_work(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(partition, "WORK_MAX", 4)
    monkeypatch.setattr(housekeeping, "HOUSEKEEPING_MAX", 2)
    undo = watch_work(lambda check: check())
    yield
    undo()


@pytest.mark.usefixtures("small_work")
def test_work_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    queue.put(9, delay=10)
    queue.put(9)
    queue.wait(20)
    queue.do(qc.Lease(0, 0, 9, 1_000))

    monkeypatch.setattr(housekeeping, "HOUSEKEEPING_MAX", 9)
    with broken("WorkBounded"):
        queue.do(qc.Tick())


@pytest.mark.usefixtures("small_work")
def test_work_bounded_by_the_number_that_an_entry_names(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    queue.put(9, delay=10)
    queue.wait(20)
    queue.run(qc.Tick(), due_max=1)

    monkeypatch.setattr(housekeeping, "due_bound", lambda due_max: due_max + 1)
    with broken("WorkBounded"):
        queue.run(qc.Tick(), due_max=1)


@pytest.mark.usefixtures("small_work")
def test_work_bounded_before_the_promotions_of_an_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue()
    queue.put(9, delay=10)
    queue.put(9, ttl=10)
    queue.wait(20)
    queue.run(qc.Tick(), due_max=2)

    expire = housekeeping._expire
    monkeypatch.setattr(housekeeping, "_expire", lambda state, count_max: expire(state, count_max + 1))
    with broken("WorkBounded"):
        queue.run(qc.Tick(), due_max=2)


def settlement(operation: qc.Operation, count: int, number: int = 1, **token: int) -> qc.Settle:
    session, request = token.get("session", 0), token.get("request", 0)
    details = (qc.SettleDetail(delay_ms=0, lease_ms=1_000),)
    return qc.Settle(session, request, (operation,), (0,), (count,), (number,), (1,), details)


@pytest.mark.usefixtures("small_work")
@pytest.mark.parametrize("operation", list(qc.Operation))
def test_work_bounded_counts_each_settlement_once(operation: qc.Operation) -> None:
    queue = Queue()
    queue.put(9)
    queue.do(qc.Lease(0, 0, 4, 1_000))
    queue.do(qc.Lease(0, 0, 4, 1_000))
    queue.do(settlement(operation, 4))

    queue = Queue()
    queue.put(9)
    for _ in range(2):
        queue.do(qc.Lease(0, 0, 4, 1_000))
    settle = vars(partition)["settle"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "settle", lambda state, item, _work_max: settle(state, item, 99))
        with broken("WorkBounded"):
            queue.do(settlement(operation, 5))


@pytest.mark.usefixtures("small_work")
def test_work_bounded_counts_no_repeated_answer() -> None:
    queue = Queue()
    queue.put(9)
    opened = queue.do(qc.OpenSession())
    assert isinstance(opened, SessionOpened)
    leased = qc.Lease(opened.session, 1, 4, 1_000)
    accepted = settlement(qc.Operation.ACCEPT, 3, session=opened.session, request=2)
    queue.do(leased)
    queue.do(accepted)
    queue.run(leased, leased, accepted, accepted)


@pytest.mark.usefixtures("small_work")
def test_work_bounded_counts_no_neighbours_of_a_line() -> None:
    queue = Queue()
    queue.do(qc.Configure(QueueSettings(is_ordered_by_key=True)))
    keys = ["a", "b", "c", "d"]
    queue.put(4, delay=10, key=keys)
    queue.put(4, key=keys)
    moved = tuple(qc.ChangeItem(qc.ChangeOperation.MOVE, sequence, delay_ms=0) for sequence in range(4))
    queue.do(qc.Change(moved))  # each displaces the holder of its line
    assert queue.host.machine.ready_count == 4
    cancelled = tuple(qc.ChangeItem(qc.ChangeOperation.CANCEL, sequence) for sequence in range(4))
    queue.do(qc.Change(cancelled))  # each brings the next of its line
    assert queue.host.machine.ready_count == 4


@pytest.mark.usefixtures("small_work")
def test_work_bounded_counts_leases_and_the_expired_that_they_meet() -> None:
    queue = Queue()
    queue.put(5, ttl=10)
    queue.put(9)
    queue.wait(10)
    queue.do(qc.Lease(0, 0, 9, 1_000))
    lease = vars(partition)["lease"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partition, "lease", lambda state, item, _work_max: lease(state, item, 99))
        with broken("WorkBounded"):
            queue.do(qc.Lease(0, 0, 9, 1_000))


# ------------------------------------------------------------------------------------------------------------- clock


def stamped(index: int, append_time_ms: int) -> Entry:
    return Entry(cast("Any", index), cast("Any", 2), EntryKind.EMPTY, cast("Any", 0), 0, append_time_ms, b"")


def test_queue_clock_holds() -> None:
    clocks, true_ms = QueueClocks(ahead_ms_max=100), 1_000_000
    for time_ms in (true_ms, true_ms + 100, true_ms - BEHIND_MS_MAX):
        clocks.on_proposed(7, stamped(5, time_ms), true_ms)
    for time_ms in (true_ms + 101, true_ms - BEHIND_MS_MAX - 1):
        with broken("QueueClockHolds"):
            clocks.on_proposed(7, stamped(5, time_ms), true_ms)

    clocks.on_applied(7, stamped(5, 20))
    clocks.on_applied(7, stamped(6, 20))
    clocks.on_applied(8, stamped(7, 10))
    with broken("QueueClockHolds"):
        clocks.on_applied(7, stamped(7, 19))


def test_the_checks_of_work_leave_the_product_as_it_was() -> None:
    def observed() -> tuple[object, ...]:
        machine = partition.QueuePartition
        return (
            QueueState.leave, QueueState.promote, key_lines.join, vars(settlements)["_settle_one"], vars(settlements)["accept_run"],
            machine._tally, machine._advance, machine._finish_entry,
        )  # fmt: skip

    before = observed()
    watch_work(lambda check: check())()

    assert observed() == before


# ----------------------------------------------------------------------------------------------------------- firings


class Scheduled:
    """A partition with a schedule, and the firings that its replicas apply."""

    def __init__(self) -> None:
        self.queue = Queue()
        self.seen = Firings()
        self.due = self.queue.now + 100
        self.queue.do(qc.PutSchedule("nightly", b"rule", self.due))
        self.queue.wait(200)

    def fire(self, due: int, *, next_due: int, revision: int = 1, stamped_at: int = 0) -> None:
        payload = encode_firing(b"nightly", revision, due, next_due, encode(MessageColumns([b"body"])))
        entry = self.queue.log.append(EntryKind.DATA, payload, 1)
        result = self.queue.host.apply(entry)
        if stamped_at:
            entry = replace(entry, append_time_ms=stamped_at)
        self.seen.on_applied(7, entry, result, self.queue.host.machine)
        self.seen.on_applied(7, entry, result, self.queue.host.machine)  # by another replica


def accept_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each firing make a message, as long as there is a schedule of its name."""
    monkeypatch.setattr(
        ScheduleTable, "fire", lambda self, firing: self.table.get(firing.schedule.decode()) is not None
    )


def test_one_firing_per_due_time(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled = Scheduled()
    scheduled.fire(scheduled.due, next_due=scheduled.due + 50)
    scheduled.fire(scheduled.due, next_due=scheduled.due + 50)
    scheduled.fire(scheduled.due + 50, next_due=qc.NEVER)
    assert (scheduled.seen.fired, scheduled.seen.stale) == (2, 1)

    accept_all(monkeypatch)
    with broken("OneFiring"):
        scheduled.fire(scheduled.due, next_due=scheduled.due + 50)


def test_a_firing_of_an_older_version_and_one_before_its_time_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    scheduled = Scheduled()
    scheduled.queue.do(qc.ChangeSchedule("nightly", qc.KEEP_DUE, is_paused=False))
    scheduled.fire(scheduled.due, next_due=qc.NEVER)
    assert (scheduled.seen.fired, scheduled.seen.stale) == (0, 1)

    with broken("OneFiring"):
        scheduled.fire(scheduled.due, next_due=qc.NEVER, revision=2, stamped_at=scheduled.due - 1)
    accept_all(monkeypatch)
    with broken("OneFiring"):
        scheduled.fire(scheduled.due + 1, next_due=qc.NEVER)


# ------------------------------------------------------------------------------------------------------------- turns

A, B, C = ("", "a"), ("", "b"), ("", "c")


def turn(served: tuple[str, str], *waiting: tuple[str, str], turns: int = 1, is_filtered: bool = False) -> Turn:
    return Turn((served,), turns, is_filtered, frozenset((served, *waiting)))


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        ([turn(A), turn(B, A), turn(C, A)], turn(B, A)),
        ([turn(A), A, turn(B, A), turn(B, A)], turn(B, A)),
        ([turn(A), turn(A, is_filtered=True, turns=2), turn(B, A, turns=3)], turn(B, A)),
        ([turn(A), turn(B, A), turn(A, is_filtered=True), turn(A), turn(B, A)], turn(B, A)),
    ],
)
def test_fair_turns(allowed: list[Turn], refused: Turn) -> None:
    """After a turn one of each other, after an entry two, and one more for each own turn by a filter."""
    turns = FairTurns()
    turns.on_entry(7, 1, [*allowed])
    turns.on_entry(7, 1, [refused])  # another replica applies the same entry
    turns.on_entry(8, 2, [refused])
    turns.on_entry(7, 2, [turn(B, is_filtered=True), turn(B), turn(B, ("b", "x"))])

    with broken("FairTurns"):
        turns.on_entry(7, 3, [refused])


@pytest.fixture
def seen() -> Iterator[FairTurns]:
    turns = FairTurns()
    undo = watch_turns(turns.on_entry)
    yield turns
    undo()


def serve(group_id: int) -> None:
    """Serve a partition of which `a` had all turns for a while, before `b` came again, and `a.x`."""
    queue = Queue()
    vars(queue.host.machine)["group_id"] = group_id
    queue.do(qc.Configure(QueueSettings(fairness="round_robin")))
    queue.put(40, tenant="a")
    queue.put(1, tenant="b")
    queue.do(qc.Lease(0, 0, 11, 1_000))
    queue.put(20, tenant="b")
    queue.put(20, tenant="a.x")
    for _ in range(6):
        queue.do(qc.Lease(0, 0, 3, 1_000))
        queue.do(qc.Lease(0, 0, 1, 1_000, ("a",)))


def test_the_turns_of_a_partition_are_fair(seen: FairTurns, monkeypatch: pytest.MonkeyPatch) -> None:
    serve(7)
    assert seen.checked >= 18

    enter = FairnessTree._enter
    monkeypatch.setattr(
        FairnessTree, "_enter", lambda self, child, *, is_restored=False: enter(self, child, is_restored=True)
    )
    with broken("FairTurns"):
        serve(8)


def test_the_checks_of_turns_leave_the_product_as_it_was() -> None:
    from raftmq.fsm.queue import leases, partition

    def observed() -> tuple[object, ...]:
        return (
            vars(partition)["lease"], vars(leases)["_charge"], partition.QueuePartition._finish_entry,
            FairnessTree._enter, FairnessTree._separate_own,
        )  # fmt: skip

    before = observed()
    watch_turns(lambda *_: None)()

    assert observed() == before
