"""Replicas are equal to each other and to the twin, with any rows in memory, any times of writing, and any restarts."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from raftmq.fsm.queue import commands as qc
from raftmq.fsm.queue import housekeeping, limits, partition, tenants
from raftmq.fsm.queue.duplicates import Recalled
from raftmq.fsm.queue.enqueued import read_entry
from raftmq.fsm.queue.limits import MemoryBounds
from raftmq.fsm.queue.results import Enqueued
from raftmq.fsm.queue.settings import QueueSettings
from raftmq.queue_batch import encode, parse_fields, seal_queue_batch
from raftmq.raft.entry import Entry

from tests.support.fsm.queue import twin
from tests.support.fsm.queue.histories import TENANTS, History, first_difference, history
from tests.support.fsm.queue.host import COLD, Queue, QueueHost, messages
from tests.support.fsm.queue.recount import State, check_windows, compare, recount
from tests.support.fsm.queue.twin import Twin

SMALL = MemoryBounds(window_messages_max=3, clean_messages_max=6, read_rows=2, low_mark=2, points_max=3)
FEW = settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def disturb(host: QueueHost, rng: random.Random, *, restarts: bool) -> None:
    """Do one of the things that happen between two entries."""
    chance = rng.random()
    if chance < 0.3:
        host.write_back()
    elif chance < 0.4 and host.in_flight is None:
        host.take()
    elif chance < 0.6 and host.in_flight is not None:
        host.commit()
        if rng.random() < 0.5:
            host.written()
    elif chance < 0.7:
        host.prefetch()
    elif chance < 0.75:
        host.hand_over()
    elif chance < 0.85 and restarts:
        host.restart()


def live(told: History, bounds: MemoryBounds, rng: random.Random, *, restarts: bool) -> tuple[QueueHost, list[object]]:
    """Return a replica that lived through the entries, and its results."""
    host = QueueHost(bounds)
    results: list[object] = []

    def finish_write_back() -> None:
        # The machine is told while an entry is half applied: it must not drop anything that the entry uses.
        if host.in_flight is not None and not host.is_reading_ahead and rng.random() < 0.3:
            host.commit()
            host.machine.on_rows_written()
            host.in_flight = None

    host.while_reading = finish_write_back
    for entry, counts in zip(told.entries, told.counts, strict=True):
        disturb(host, rng, restarts=restarts)
        results.append(host.apply(entry))
        machine = host.machine
        assert (machine.ready_count, machine.message_count, machine.byte_count) == counts
        check_windows(host)
    return host, results


@FEW
@given(seed=st.integers(0, 2**32), length=st.integers(0, 120))
def test_all_replicas_answer_and_end_like_the_twin(seed: int, length: int) -> None:
    rng = random.Random(seed)
    check_replicas(history(rng, length), rng)


@FEW
@given(seed=st.integers(0, 2**32), reset_max=st.integers(1, 3))
def test_replicas_agree_while_a_purge_of_everything_goes_on(seed: int, reset_max: int) -> None:
    """Such a purge visits a few tenants in each entry. Restarts, puts and further purges come between."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tenants, "TENANTS_RESET_MAX", reset_max)
        check_replicas(history(rng, 80, purge_share=0.08), rng)


@FEW
@given(seed=st.integers(0, 2**32), work_max=st.integers(1, 6))
def test_replicas_agree_while_more_is_due_than_an_entry_does(seed: int, work_max: int) -> None:
    """Leases then find messages that have expired and are not removed yet."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        for module in (housekeeping, twin):
            patch.setattr(module, "HOUSEKEEPING_MAX", 1 + work_max // 3)
        for module in (partition, twin):
            patch.setattr(module, "WORK_MAX", 1 + work_max)
        check_replicas(history(rng, 60), rng)


@FEW
@given(seed=st.integers(0, 2**32))
def test_replicas_agree_while_schedules_are_refused_for_their_bytes(seed: int) -> None:
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "SCHEDULES_BYTES_MAX", 12)
        check_replicas(history(rng, 60), rng)


def check_replicas(told: History, rng: random.Random) -> None:
    """Let replicas live through a history in several ways, and compare them with each other and with the twin."""
    calm = QueueHost()
    lives: list[tuple[QueueHost, list[object]]] = [(calm, [calm.apply(entry) for entry in told.entries])]
    lives += [
        live(told, bounds, rng, restarts=restarts)
        for bounds in (COLD, SMALL, MemoryBounds())
        for restarts in (False, True)
    ]
    expected = calm.rows()
    for host, results in lives:
        assert not first_difference(told.entries, results, told.results)
        assert host.rows() == expected
        assert host.machine.dirty_count == 0
    state = State(expected)
    recount(state)
    compare(state, told.twin)


@FEW
@given(seed=st.integers(0, 2**32))
def test_a_crash_at_any_write_back_changes_nothing(seed: int) -> None:
    """A replica that lost its memory begins with the rows of its last write-back and applies the entries after it again."""
    rng = random.Random(seed)
    told = history(rng, 60)
    calm = QueueHost()
    results = [calm.apply(entry) for entry in told.entries]
    expected = calm.rows()
    host, durable = QueueHost(COLD), 0
    for at, entry in enumerate(told.entries):
        assert host.apply(entry) == results[at]
        if rng.random() < 0.3:
            host.write_back()
            durable = at + 1
        if rng.random() < 0.3:
            host.crash()
            for again in range(durable, at + 1):
                assert host.apply(told.entries[again]) == results[again]
    assert host.rows() == expected


@FEW
@given(seed=st.integers(0, 2**32))
def test_the_leader_sees_what_a_lease_would_find(seed: int) -> None:
    """`is_leasable` is the predicate of the choice, and `next_deadline` is never too late."""
    rng = random.Random(seed)
    seen: list[tuple[bool, bool, int | None]] = []

    def see(twin: Twin) -> None:
        seen.append((twin.is_leasable(()), twin.is_leasable(("a", "c.d")), twin.next_change()))

    told = history(rng, 60, see)
    host = QueueHost(COLD)
    for entry, (any_leasable, some_leasable, next_change) in zip(told.entries, seen, strict=True):
        host.apply(entry)
        if rng.random() < 0.3:
            host.write_back()
        machine = host.machine
        assert machine.is_leasable() is any_leasable
        assert machine.is_leasable(("a", "c.d")) is some_leasable
        deadline = machine.next_deadline()
        assert next_change is None or (deadline is not None and deadline <= next_change)


@FEW
@given(seed=st.integers(0, 2**32), bounds=st.sampled_from([COLD, SMALL, MemoryBounds()]))
def test_the_leader_knows_the_messages_in_memory_that_the_next_entry_promotes(seed: int, bounds: MemoryBounds) -> None:
    rng = random.Random(seed)
    asked = [
        (later, *wanted) for later in (0, 50, 10_000) for wanted in (((), b""), (("a", "c.d"), b""), (("a",), b"k1"))
    ]
    seen: list[list[int]] = []

    def see(twin: Twin) -> None:
        seen.append([twin.due_by(twin.now + later, tenants, key) for later, tenants, key in asked])

    told = history(rng, 60, see)
    host, calm = QueueHost(bounds), QueueHost()
    for entry, expected in zip(told.entries, seen, strict=True):
        host.apply(entry)
        calm.apply(entry)
        if rng.random() < 0.3:
            host.write_back()
        now = calm.machine.state.scalars.now
        for (later, subtrees, key), count in zip(asked, expected, strict=True):
            assert calm.machine.due_by(now + later, subtrees, key, 1_000) == count
            assert calm.machine.due_by(now + later, subtrees, key, 1) == min(count, 1)
            assert host.machine.due_by(now + later, subtrees, key, 1_000) >= 0


@FEW
@given(seed=st.integers(0, 2**32), reset_max=st.sampled_from([1, 500]))
def test_the_leader_knows_how_many_messages_may_be_leased(seed: int, reset_max: int) -> None:
    rng = random.Random(seed)
    filters = ((), ("c.d",), ("a",), ("c", "b"))
    seen: list[list[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tenants, "TENANTS_RESET_MAX", reset_max)
        told = history(
            rng, 80, lambda twin: seen.append([twin.leasable_count(one) for one in filters]), purge_share=0.02
        )
        host = QueueHost(SMALL)
        for entry, expected in zip(told.entries, seen, strict=True):
            disturb(host, rng, restarts=True)
            host.apply(entry)
            found = [host.machine.leasable_count(one) for one in filters]
            assert found[0] == expected[0]
            by_path = host.machine.state.tenants
            for subtrees, count, least in zip(filters[1:], found[1:], expected[1:], strict=True):
                parents = [
                    path
                    for path in subtrees
                    if path in by_path.by_path and by_path.tree.has_children(by_path.by_path[path].number)
                ]
                assert count >= least if parents else count == least


@FEW
@given(seed=st.integers(0, 2**32), bounds=st.sampled_from([COLD, SMALL, MemoryBounds()]))
def test_the_leader_knows_the_head_of_a_key_that_is_in_memory(seed: int, bounds: MemoryBounds) -> None:
    rng = random.Random(seed)
    names = [(tenant, key) for tenant in TENANTS for key in (b"k1", b"k2")]
    seen: list[list[bool]] = []
    told = history(rng, 60, lambda twin: seen.append([twin.is_key_leasable(*name) for name in names]))
    host, calm = QueueHost(bounds), QueueHost()
    for entry, expected in zip(told.entries, seen, strict=True):
        host.apply(entry)
        calm.apply(entry)
        if rng.random() < 0.3:
            host.write_back()
        assert [calm.machine.is_key_leasable(*name) for name in names] == expected
        found = [host.machine.is_key_leasable(*name) for name in names]
        assert all(one is None or one is other for one, other in zip(found, expected, strict=True))


@FEW
@given(seed=st.integers(0, 2**32), bounds=st.sampled_from([COLD, SMALL, MemoryBounds()]))
def test_a_batch_is_recalled_as_it_was_applied(seed: int, bounds: MemoryBounds) -> None:
    rng = random.Random(seed)
    told = history(rng, 80)
    host = QueueHost(bounds)
    applied: list[tuple[Entry, Enqueued]] = []
    for entry, result in zip(told.entries, told.results, strict=True):
        host.apply(entry)
        if rng.random() < 0.2:
            host.write_back()
        if isinstance(result, Enqueued) and not result.is_stale:
            applied.append((entry, result))
        for earlier, known in applied:
            read = read_entry(earlier.payload)
            assert read is not None
            recalled = host.machine.recall(read.fields, earlier.base_offset)
            assert set(recalled.repeated) <= set(known.repeated)
            told_of = {position for position, _ in recalled.repeated} | set(recalled.unknown)
            assert {position for position, _ in known.repeated + known.replaced} <= told_of


def test_a_batch_is_recalled_while_its_ids_are_in_memory() -> None:
    queue = Queue()
    queue.do(qc.Configure(QueueSettings(dedupe_window_ms=1_000)))
    queue.put(3, id=["a", "b", "c"])
    columns = messages(5, id=["a", "d", None, "d", "b"])
    assert queue.put(5, id=["a", "d", None, "d", "b"]) == Enqueued(2, ((0, 0), (3, 4), (4, 1)))
    fields = parse_fields(seal_queue_batch(encode(columns), message_count=5))
    assert queue.host.machine.recall(fields, 3) == Recalled(((0, 0), (3, 4), (4, 1)), ())
    queue.put(1, id="d", replace=True)
    assert queue.host.machine.recall(fields, 3) == Recalled(((0, 0), (4, 1)), (1, 3))


@pytest.mark.parametrize("bounds", [COLD, SMALL], ids=["windows of one", "small windows"])
def test_memory_is_bounded_once_rows_are_written(bounds: MemoryBounds) -> None:
    told = history(random.Random(7), 400)
    host = QueueHost(bounds)
    for entry in told.entries:
        host.apply(entry)
        host.write_back()
        store = host.machine.state.store
        clean = len(store.messages) - store.leased_count
        assert clean <= bounds.clean_messages_max + 2 * bounds.window_messages_max


def test_long_histories_agree() -> None:
    for seed in range(3):
        told = history(random.Random(seed), 600)
        host, results = live(told, COLD, random.Random(seed), restarts=True)
        assert not first_difference(told.entries, results, told.results)
        state = State(host.rows())
        recount(state)
        compare(state, told.twin)
        assert host.reads > 100
