"""The promises of a queue partition to producers, consumers and operators."""

from __future__ import annotations

from typing import Any

import pytest
from raftmq.fsm.queue import commands as qc
from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.commands import JobFilter, JobKind, Operation
from raftmq.fsm.queue.enqueued import encode_chain
from raftmq.fsm.queue.limits import HOUSEKEEPING_MAX, SESSION_EXPIRY_MS, TENANT_IDLE_MS, TENANTS_RESET_MAX, WORK_MAX
from raftmq.fsm.queue.message import DeadReason, State
from raftmq.fsm.queue.results import (
    Chained,
    Changed,
    Code,
    Done,
    Enqueued,
    ItemResult,
    JobProgress,
    JobStarted,
    Leased,
    Purged,
    Refused,
    ScheduleChanged,
    SessionOpened,
    Settled,
)
from raftmq.fsm.queue.settings import QueueSettings
from raftmq.fsm.queue.tenants import Tenant
from raftmq.queue_batch import encode, encode_firing, seal_queue_batch
from raftmq.raft.entry import EntryKind
from raftmq.storage.pending_state_write import check_state_rows

from tests.support.fsm.queue.host import COLD, Queue, messages
from tests.support.fsm.queue.recount import State as Rows
from tests.support.fsm.queue.recount import recount

LEASE_MS = 1_000


@pytest.fixture(params=[None, COLD], ids=["in memory", "windows of one"])
def queue(request: pytest.FixtureRequest) -> Queue:
    return Queue(request.param)


def lease(queue: Queue, count: int = 1, *tenants: str, key: str = "", lease_ms: int = LEASE_MS) -> list[int]:
    """Return the sequences of leased messages, in their order."""
    result = queue.do(qc.Lease(0, 0, count, lease_ms, tenants, key.encode()), expire_before=queue.now)
    assert isinstance(result, Leased)
    return [first + at for first, run in zip(result.first_sequences, result.counts, strict=True) for at in range(run)]


def settle(
    queue: Queue, operation: Operation, sequence: int, *, token: int = 1, count: int = 1, **detail: object
) -> tuple[int, ...]:
    details = (qc.SettleDetail(**detail),) if detail else ()
    command = qc.Settle(0, 0, (operation,), (sequence,), (count,), (token,), (1,) if detail else (), details)
    result = queue.do(command)
    assert isinstance(result, Settled)
    return result.codes


def accept(queue: Queue, sequence: int, token: int = 1) -> tuple[int, ...]:
    return settle(queue, Operation.ACCEPT, sequence, token=token)


def configure(queue: Queue, **fields: object) -> None:
    assert queue.do(qc.Configure(QueueSettings(**fields))) == Done()


def change(queue: Queue, *items: qc.ChangeItem) -> tuple[int, ...]:
    result = queue.do(qc.Change(items))
    assert isinstance(result, Changed)
    return result.codes


def counts(queue: Queue, tenant: str = "") -> dict[str, int]:
    found = queue.host.machine.tenant(tenant)
    assert found is not None
    names = ("ready", "delayed", "lined", "leased", "dead")
    return {name: getattr(found, name) for name in names if getattr(found, name)}


def rows(queue: Queue) -> Rows:
    """Return all rows, after counting them again."""
    found = Rows(queue.host.rows())
    recount(found)
    return found


# ------------------------------------------------------------------------------------------------------------ order


def test_messages_are_leased_by_priority_then_due_then_sequence(queue: Queue) -> None:
    queue.put(3, priority=[5, -5, 0])
    queue.put(2, priority=[0, -5])
    queue.host.write_back()
    assert lease(queue, 9) == [1, 4, 2, 3, 0]


@pytest.mark.parametrize(
    ("detail", "order"),
    [
        ({"is_counted": False}, [0, 1, 2, 3, 4]),
        ({"delay_ms": 0, "is_counted": False}, [1, 2, 3, 4, 0]),
        ({"delay_ms": 0}, [1, 2, 3, 4, 0]),
        ({}, [0, 1, 2, 3, 4]),
    ],
    ids=["not begun", "not begun, due now", "due now", "no back-off"],
)
def test_a_release_keeps_its_place_unless_it_names_a_time(
    queue: Queue, detail: dict[str, object], order: list[int]
) -> None:
    configure(queue, backoff_base_ms=0)
    queue.put(5)
    queue.wait(10)
    assert lease(queue) == [0]
    queue.host.write_back()
    settle(queue, Operation.RELEASE, 0, **detail)
    assert lease(queue, 9) == order


def test_a_delayed_message_is_never_leased_before_it_is_due(queue: Queue) -> None:
    queue.put(delay=100)
    queue.put(due=queue.now + 50)
    queue.put()
    assert counts(queue) == {"ready": 1, "delayed": 2}
    assert lease(queue, 9) == [2]
    assert queue.host.machine.next_deadline() == queue.now + 50
    queue.wait(49)
    assert lease(queue, 9) == []
    queue.wait(51)
    assert lease(queue, 9) == [1, 0]


def test_the_first_due_time_stays_in_memory(queue: Queue) -> None:
    """Otherwise the leader would propose one tick after the other until the message is due."""
    queue.put(3, delay=100)
    queue.host.restart()
    for _ in range(3):
        queue.do(qc.Tick())
    assert queue.host.machine.next_deadline() == queue.now + 100
    queue.wait(100)
    assert lease(queue, 9) == [0, 1, 2]


def test_a_lease_that_may_not_end_yet_is_due_later(queue: Queue) -> None:
    """Otherwise the leader would propose one tick after the other while leases are spared after an election."""
    queue.put(1)
    lease(queue, 1, lease_ms=50)
    end = queue.now + 50
    assert queue.host.machine.next_deadline() == end
    assert queue.host.machine.next_deadline(end + 7, queue.now) == end + 7


def test_a_lease_of_the_new_leader_ends_while_earlier_ones_are_spared(queue: Queue) -> None:
    queue.put(4)
    assert lease(queue, 2, lease_ms=50) == [0, 1]
    gap_start = queue.now
    queue.wait(100)  # nobody leads
    elected = {"expire_before": gap_start, "spared_through": gap_start}
    queue.run(qc.Lease(0, 0, 1, 30), **elected)
    queue.run(qc.Settle(0, 0, (Operation.RENEW,), (1,), (1,), (1,), (1,), (qc.SettleDetail(lease_ms=40),)), **elected)
    assert queue.host.machine.next_deadline(queue.now + 1_000, gap_start) == queue.now + 30
    queue.wait(30)
    queue.run(qc.Tick(), **elected)
    assert counts(queue) == {"ready": 2, "leased": 2}, "the lease of 2 has ended, and that of 0 is spared"
    queue.host.restart()
    queue.wait(10)
    queue.run(qc.Tick(), **elected)
    assert counts(queue) == {"ready": 3, "leased": 1}, "the renewed lease of 1 has ended"
    assert queue.host.machine.next_deadline(queue.now + 7, gap_start) == queue.now + 7
    queue.run(qc.Tick())
    assert counts(queue) == {"ready": 4}


def test_a_message_that_is_due_in_the_past_is_found(queue: Queue) -> None:
    """z4, defect Z6: a task that was scheduled before the last delivered one was invisible."""
    queue.put()
    assert lease(queue) == [0]
    queue.put(due=queue.now - 60_000)
    assert lease(queue) == [1]


def test_tenants_take_turns_and_a_prefix_has_messages_of_its_own(queue: Queue) -> None:
    """DOQ, defect B12: a group that was both a leaf and a prefix stranded its messages."""
    configure(queue, fairness="round_robin")
    queue.put(4, tenant="a")
    queue.put(2, tenant="a.b")
    queue.put(2, tenant="z")
    queue.host.write_back()
    assert lease(queue, 8) == [0, 6, 4, 7, 1, 5, 2, 3]


@pytest.mark.parametrize("first", ["a.x", "a.y"])
def test_a_tenant_keeps_its_turn_if_one_child_comes_when_another_goes(queue: Queue, first: str) -> None:
    """The order in which both are reported has no effect, and so neither has the order of their numbers."""
    configure(queue, fairness="weighted", tenant_weights=(("b", 3),))
    queue.put(1, tenant=first, delay=1_000)  # it gets the smaller number
    queue.put(1, tenant="a.x", id="ready")
    queue.put(1, tenant="a.y", delay=1_000, id="comes")
    queue.put(5, tenant="b")
    assert lease(queue, 2) == [3, 4]
    goes = qc.ChangeItem(qc.ChangeOperation.CANCEL, id=b"ready")
    comes = qc.ChangeItem(qc.ChangeOperation.MOVE, id=b"comes", delay_ms=0)
    queue.do(qc.Change((goes, comes)))
    assert lease(queue, 1) == [2]


def test_a_lease_may_name_subtrees_of_tenants(queue: Queue) -> None:
    queue.put(4, tenant=["a", "a.b", "ab", "c"])
    assert lease(queue, 9, "a") == [0, 1]
    assert lease(queue, 9, "c", "none") == [3]


def test_a_tenant_may_have_a_limited_number_of_leases_and_every_end_of_one_frees_it(queue: Queue) -> None:
    """DOQ, defect B5: only an ack freed a slot, so a group was blocked after enough nacks and timeouts."""
    configure(queue, fairness="round_robin", leased_per_tenant_max=1, attempts_max=9)
    queue.put(6, tenant="a")
    ends = [
        lambda: accept(queue, 0),
        lambda: settle(queue, Operation.RELEASE, 1, delay_ms=10_000),
        lambda: settle(queue, Operation.REJECT, 2),
        lambda: queue.wait(LEASE_MS),
    ]
    for sequence, end in enumerate(ends):
        assert lease(queue, 9) == [sequence]
        assert lease(queue, 9) == []
        end()
    assert lease(queue, 9) == [3]
    assert queue.do(qc.PurgeAll()) == Purged(5)
    queue.put(1, tenant="a")
    assert lease(queue, 9) == [6]
    rows(queue)


def test_the_partition_may_have_a_limited_number_of_leases(queue: Queue) -> None:
    configure(queue, leased_max=2)
    queue.put(4)
    assert lease(queue, 9) == [0, 1]
    assert not queue.host.machine.is_leasable()
    accept(queue, 0)
    assert queue.host.machine.is_leasable()
    assert lease(queue, 9) == [2]


def test_a_rate_holds_a_tenant_back_until_its_next_message(queue: Queue) -> None:
    configure(queue, fairness="round_robin", tenant_rate_per_second=10, tenant_rate_burst=2)
    queue.put(5, tenant="a")
    queue.put(1, tenant="b")
    assert sorted(lease(queue, 9)) == [0, 1, 5]
    assert queue.host.machine.next_deadline() == queue.now + 100
    queue.host.restart()
    queue.wait(100)
    assert lease(queue, 9) == [2]


@pytest.mark.parametrize("tenant", ["", "a"])
def test_a_pause_stops_leases_of_a_subtree_for_a_time(queue: Queue, tenant: str) -> None:
    queue.put(2, tenant=["a.b", "c"])
    queue.do(qc.PauseTenant(tenant, 30_000))
    queue.host.restart()
    held = [0, 1] if not tenant else [0]
    assert lease(queue, 9, lease_ms=10**6) == [one for one in (0, 1) if one not in held]
    queue.wait(29_999)
    assert lease(queue, 9) == []
    assert queue.host.machine.next_deadline() == queue.now + 1
    queue.wait(1)
    assert lease(queue, 9) == held


def test_a_pause_without_an_end_is_ended_by_an_operator(queue: Queue) -> None:
    queue.put(1, tenant="a")
    queue.do(qc.PauseTenant("a"))
    queue.wait(10**9)
    assert lease(queue) == []
    queue.do(qc.ResumeTenant("a"))
    assert lease(queue) == [0]


# ------------------------------------------------------------------------------------------------------------ leases


def test_an_old_token_changes_nothing_and_says_so(queue: Queue) -> None:
    """DOQ: a late ack of a first consumer acknowledged the lease of the second."""
    queue.put(2)
    assert lease(queue, 1) == [0]
    queue.wait(LEASE_MS)
    assert lease(queue, 1) == [0]
    assert accept(queue, 0, token=1) == (Code.LEASE_LOST,)
    assert accept(queue, 1, token=1) == (Code.LEASE_LOST,)
    assert accept(queue, 0, token=2) == (Code.OK,)
    queue.host.write_back()
    assert accept(queue, 0, token=2) == (Code.LEASE_UNKNOWN,)
    assert accept(queue, 99) == (Code.LEASE_UNKNOWN,)
    assert counts(queue) == {"ready": 1}


def test_expired_leases_come_back_by_deadline_while_newer_ones_stay(queue: Queue) -> None:
    """DOQ, defect B4: a heap in the wrong order kept an expired lease as long as any newer one was outstanding."""
    queue.put(2)
    assert lease(queue, 1, lease_ms=100) == [0]
    assert lease(queue, 1, lease_ms=10_000) == [1]
    queue.wait(100)
    assert lease(queue, 9) == [0]


def test_a_lease_ends_only_when_the_leader_allows_it(queue: Queue) -> None:
    queue.put()
    lease(queue)
    queue.wait(LEASE_MS)
    queue.run(qc.Tick(), expire_before=queue.now - 1)
    assert counts(queue) == {"leased": 1}
    queue.run(qc.Tick())
    assert counts(queue) == {"ready": 1}


def test_a_renewed_lease_lasts_longer(queue: Queue) -> None:
    queue.put()
    lease(queue)
    queue.wait(LEASE_MS - 1)
    assert settle(queue, Operation.RENEW, 0, lease_ms=500, progress="half") == (Code.OK,)
    queue.wait(499)
    assert lease(queue) == []
    queue.wait(1)
    assert lease(queue) == [0]
    assert rows(queue).messages[0].progress == "half"


def test_a_lease_that_was_renewed_twice_for_the_same_time_ends_once(queue: Queue) -> None:
    """The heap of leases has its deadline twice then. The message takes one place in the work of an entry, too."""
    configure(queue, attempts_max=3)
    queue.put(HOUSEKEEPING_MAX)
    lease(queue, HOUSEKEEPING_MAX)
    for sequence in (0, 0, 1):
        settle(queue, Operation.RENEW, sequence, lease_ms=2 * LEASE_MS)
    settle(queue, Operation.RENEW, 2, count=HOUSEKEEPING_MAX - 2, lease_ms=2 * LEASE_MS)
    queue.wait(2 * LEASE_MS)
    assert queue.run(qc.Tick()).has_more_due
    assert counts(queue) == {"ready": HOUSEKEEPING_MAX}
    message = rows(queue).messages[0]
    assert (message.attempts, message.version) == (1, 4)


def test_a_machine_that_is_restored_forgets_what_it_had(queue: Queue) -> None:
    source = Queue()
    source.put(2, id=["a", "b"])
    lease(source)
    source.host.write_back()
    queue.put(5, id=["a", "c", "d", "e", "f"], tenant="t")
    lease(queue, 3)
    machine, queue.host.disk = queue.host.machine, source.host.disk
    resident = [row for one in machine.resident_ranges for row in source.host.disk.range(one)]
    machine.restore(resident, source.host.machine.applied_index)
    assert counts(queue) == {"ready": 1, "leased": 1}
    assert machine.tenant("t") is None
    assert machine.message_count == 2
    assert accept(queue, 1) == (Code.LEASE_LOST,)
    assert accept(queue, 0) == (Code.OK,)


def test_leases_survive_a_restart(queue: Queue) -> None:
    """DOQ, defect B2: a snapshot held all messages as ready."""
    queue.put(2)
    lease(queue)
    queue.host.restart()
    assert lease(queue, 9) == [1]
    assert accept(queue, 0) == (Code.OK,)


def test_a_repeated_request_gets_the_same_answer(queue: Queue) -> None:
    """DOQ, defect B17: a consumer that was gone before the answer left a lease behind, or lost the message."""
    opened = queue.do(qc.OpenSession())
    assert isinstance(opened, SessionOpened)
    queue.put(20)
    answers: dict[int, ItemResult] = {}
    for request in range(1, 8):
        answers[request] = queue.do(qc.Lease(opened.session, request, 2, LEASE_MS))
    queue.host.restart()
    for request in range(3, 8):
        assert queue.do(qc.Lease(opened.session, request, 2, LEASE_MS)) == answers[request]
    assert queue.do(qc.Lease(opened.session, 1, 2, LEASE_MS)) == Refused(Code.STALE_REQUEST)
    settled = queue.do(qc.Settle(opened.session, 8, (1,), (0,), (2,), (1,)))
    assert settled == Settled((Code.OK,), (2,))
    assert queue.do(qc.Settle(opened.session, 8, (1,), (0,), (2,), (1,))) == settled
    assert counts(queue) == {"ready": 6, "leased": 12}


def test_a_session_is_forgotten_when_it_is_idle_and_says_so(queue: Queue) -> None:
    opened = queue.do(qc.OpenSession())
    assert isinstance(opened, SessionOpened)
    queue.wait(SESSION_EXPIRY_MS - 1)
    assert isinstance(queue.do(qc.Lease(opened.session, 1, 1, LEASE_MS)), Leased)
    queue.wait(SESSION_EXPIRY_MS)
    assert queue.do(qc.Lease(opened.session, 2, 1, LEASE_MS)) == Refused(Code.UNKNOWN_SESSION)


# ------------------------------------------------------------------------------------------------------------ retries


def test_a_failed_attempt_comes_back_later_each_time_and_then_dies(queue: Queue) -> None:
    configure(queue, attempts_max=3, backoff_base_ms=100)
    queue.put()
    for token, delay in ((1, 100), (2, 200)):
        assert lease(queue) == [0]
        assert settle(queue, Operation.RELEASE, 0, token=token, error=f"e{token}") == (Code.OK,)
        queue.wait(delay - 1)
        assert lease(queue) == []
        queue.wait(1)
    assert lease(queue) == [0]
    assert settle(queue, Operation.RELEASE, 0, token=3) == (Code.DIED,)
    assert counts(queue) == {"dead": 1}
    dead = rows(queue).messages[0]
    assert (dead.error, dead.attempts, dead.dead_number, dead.dead_reason) == ("e2", 3, 1, DeadReason.EXHAUSTED)


def test_a_released_message_without_backoff_keeps_its_old_place(queue: Queue) -> None:
    queue.put(2)
    queue.wait(10)
    queue.put()
    assert lease(queue) == [0]
    settle(queue, Operation.RELEASE, 0)
    assert lease(queue, 9) == [0, 1, 2]


def test_work_that_was_not_begun_does_not_count(queue: Queue) -> None:
    configure(queue, attempts_max=1, backoff_base_ms=1000)
    queue.put()
    for token in (1, 2, 3):
        assert lease(queue) == [0]
        assert settle(queue, Operation.RELEASE, 0, token=token, is_counted=False) == (Code.OK,)
    assert lease(queue) == [0]
    assert rows(queue).messages[0].attempts == 1


def test_a_rejected_message_is_dead_with_its_error(queue: Queue) -> None:
    queue.put()
    lease(queue)
    settle(queue, Operation.REJECT, 0, error="no such customer")
    dead = rows(queue).messages[0]
    assert (dead.state, dead.error, dead.dead_reason, dead.dead_at) == (
        State.DEAD, "no such customer", DeadReason.REJECTED, queue.now,
    )  # fmt: skip


def test_a_redriven_message_has_all_attempts_and_keeps_its_lease_number(queue: Queue) -> None:
    configure(queue, attempts_max=1)
    queue.put()
    lease(queue)
    settle(queue, Operation.RELEASE, 0)
    assert change(queue, qc.ChangeItem(qc.ChangeOperation.REDRIVE, 0)) == (Code.OK,)
    assert lease(queue) == [0]
    assert accept(queue, 0, token=1) == (Code.LEASE_LOST,)
    assert accept(queue, 0, token=2) == (Code.OK,)
    assert not rows(queue).messages


# ------------------------------------------------------------------------------------------------------------ expiry


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_message_expires_where_it_waits(queue: Queue, *, is_kept: bool) -> None:
    configure(queue, is_expired_kept=is_kept)
    queue.put(ttl=100)
    queue.put(ttl=100, delay=1_000)
    queue.put()
    assert queue.host.machine.next_deadline() == queue.now + 100
    queue.host.write_back()
    queue.wait(100)
    assert lease(queue, 9) == [2]
    assert counts(queue) == {"leased": 1} | ({"dead": 2} if is_kept else {})
    assert rows(queue).scalars.expiring_count == 0


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("fairness", ["none", "round_robin"])
def test_a_lease_never_hands_out_an_expired_message(queue: Queue, fairness: str, *, is_kept: bool) -> None:
    """Also if more messages expired than one entry removes before it leases."""
    configure(queue, is_expired_kept=is_kept, fairness=fairness)
    queue.put(HOUSEKEEPING_MAX + 100, ttl=50, tenant=["a", "b"] * (HOUSEKEEPING_MAX // 2 + 50))
    queue.put(2, tenant="a")
    queue.wait(50)
    result = queue.do(qc.Lease(0, 0, 9, LEASE_MS))
    assert isinstance(result, Leased)
    assert (result.first_sequences, result.counts) == ((HOUSEKEEPING_MAX + 100,), (2,))
    assert rows(queue).scalars.dead_count == (HOUSEKEEPING_MAX + 100 if is_kept else 0)
    assert queue.host.machine.message_count == 2 + (HOUSEKEEPING_MAX + 100 if is_kept else 0)


def test_a_lease_removes_no_more_expired_messages_than_an_entry_may_touch(queue: Queue) -> None:
    for _ in range(2):
        queue.put(600, ttl=50)
    queue.put(600)
    queue.wait(50)
    result = queue.do(qc.Lease(0, 0, 600, LEASE_MS))
    assert isinstance(result, Leased)
    assert (result.counts, result.has_more) == ((), True)
    assert queue.host.machine.message_count == 1_800 - WORK_MAX
    assert lease(queue, 600) == list(range(1_200, 1_800))


def test_an_expired_head_makes_place_for_the_next_of_its_key(queue: Queue) -> None:
    configure(queue, is_ordered_by_key=True)
    queue.put(HOUSEKEEPING_MAX, ttl=40)
    queue.put(2, ttl=50, key="k")
    queue.put(1, key="k")
    queue.wait(50)
    assert lease(queue, 1, "", key="k") == [HOUSEKEEPING_MAX + 2]


def test_a_leased_message_finishes_its_lease_before_it_expires(queue: Queue) -> None:
    queue.put(2, ttl=100)
    assert lease(queue, 2) == [0, 1]
    queue.wait(500)
    queue.run(qc.Tick())
    assert counts(queue) == {"leased": 2}
    assert accept(queue, 0) == (Code.OK,)
    settle(queue, Operation.RELEASE, 1, is_counted=False)
    assert counts(queue) == {}
    assert not rows(queue).messages


def test_the_topic_gives_a_time_to_live_to_messages_without_one(queue: Queue) -> None:
    configure(queue, message_ttl_ms=50)
    queue.put(2)
    queue.put(ttl=500)
    queue.wait(50)
    assert lease(queue, 9) == [2]


# ------------------------------------------------------------------------------------------------------------ ids


def test_a_repeated_id_is_answered_with_the_first_sequence(queue: Queue) -> None:
    """DOQ: an id that was leased got a second ready entry. DejaQ: ids that collided overwrote messages."""
    configure(queue, dedupe_window_ms=1_000)
    assert queue.put(3, id=["i", "j", "i"]) == Enqueued(2, ((2, 0),))
    queue.host.write_back()
    lease(queue, 1)
    assert queue.put(id="i") == Enqueued(0, ((0, 0),))
    accept(queue, 0)
    queue.wait(999)
    assert queue.put(id="i") == Enqueued(0, ((0, 0),))
    queue.wait(1)
    assert queue.put(id="i") == Enqueued(1)
    rows(queue)


def test_an_unfinished_message_keeps_its_id_beyond_the_window(queue: Queue) -> None:
    queue.put(id="i")
    queue.wait(10**9)
    assert queue.put(id="i") == Enqueued(0, ((0, 0),))
    lease(queue)
    accept(queue, 0)
    assert queue.put(id="i") == Enqueued(1)


def test_ids_are_forgotten_after_their_window(queue: Queue) -> None:
    configure(queue, dedupe_window_ms=100)
    queue.put(150, id=[f"i{number}" for number in range(150)])
    lease(queue, 150)
    settle(queue, Operation.ACCEPT, 0, count=150)
    assert rows(queue).scalars.ending_ids == 150
    queue.wait(100)
    queue.run(qc.Tick())
    queue.run(qc.Tick())
    assert rows(queue).scalars.ending_ids == 0


def test_a_replacing_message_takes_the_place_of_a_waiting_one(queue: Queue) -> None:
    queue.put(id="i", delay=1_000)
    queue.host.write_back()
    assert queue.put(id="i", replace=True) == Enqueued(1, (), ((0, 0),))
    assert lease(queue, 9) == [1]
    assert rows(queue).messages[1].version == 2
    assert queue.put(id="i", replace=True) == Enqueued(0, ((0, 1),))


# ------------------------------------------------------------------------------------------------------------ keys


@pytest.fixture
def keyed(queue: Queue) -> Queue:
    configure(queue, is_ordered_by_key=True)
    return queue


def test_one_message_of_a_key_is_leased_at_a_time_in_order(keyed: Queue) -> None:
    keyed.put(5, key=["k", "k", "other", None, "k"], priority=[0, -9, 0, 0, -99])
    keyed.host.write_back()
    assert counts(keyed) == {"ready": 3, "lined": 2}
    assert lease(keyed, 9) == [0, 2, 3]
    for sequence, following in ((0, [1]), (1, [4]), (4, [])):
        accept(keyed, sequence)
        assert lease(keyed, 9) == following
    rows(keyed)


def test_a_released_head_blocks_its_key_and_keeps_its_place(keyed: Queue) -> None:
    """nats-server #7199: order by key together with retries and dead letters."""
    configure(keyed, is_ordered_by_key=True, attempts_max=2)
    keyed.put(2, key="k")
    lease(keyed)
    settle(keyed, Operation.RELEASE, 0, delay_ms=500)
    assert lease(keyed, 9) == []
    keyed.wait(500)
    assert lease(keyed, 9) == [0]
    settle(keyed, Operation.RELEASE, 0, token=2)
    assert counts(keyed) == {"dead": 1, "ready": 1}
    assert lease(keyed, 9) == [1]


def test_a_delayed_message_joins_its_key_at_the_place_of_its_sequence(keyed: Queue) -> None:
    keyed.put(key="k", delay=100)
    keyed.put(3, key="k")
    assert lease(keyed) == [1]
    keyed.wait(100)
    assert lease(keyed, 9) == []
    accept(keyed, 1)
    assert lease(keyed, 9) == [0]
    accept(keyed, 0)
    assert lease(keyed, 9) == [2]


def test_a_delayed_message_waits_for_a_later_one_whose_work_has_begun(keyed: Queue) -> None:
    """It displaced a message in back-off from its line, and the next message overtook that one."""
    keyed.put(key="k", delay=100)
    keyed.put(2, key="k")
    assert lease(keyed) == [1]
    settle(keyed, Operation.RELEASE, 1, delay_ms=300)
    keyed.wait(100)
    assert lease(keyed, 9) == []
    keyed.wait(200)
    assert lease(keyed, 9) == [1]
    accept(keyed, 1, token=2)
    assert lease(keyed, 9) == [0]
    accept(keyed, 0)
    assert lease(keyed, 9) == [2]
    rows(keyed)


def test_keys_of_two_tenants_are_two_keys(keyed: Queue) -> None:
    keyed.put(2, key="k", tenant=["a", "b"])
    assert sorted(lease(keyed, 9)) == [0, 1]


def test_a_lease_may_name_a_key(keyed: Queue) -> None:
    keyed.put(4, key=["k", "j", "k", "j"])
    keyed.host.write_back()
    assert lease(keyed, 9, "", key="j") == [1]
    assert lease(keyed, 9, "", key="j") == []
    assert lease(keyed, 9, "", key="none") == []
    accept(keyed, 1)
    assert lease(keyed, 9, "", key="j") == [3]


def test_a_tenant_that_becomes_ready_with_a_lease_of_its_key_has_no_credit_from_idle_time(queue: Queue) -> None:
    configure(queue, is_ordered_by_key=True, fairness="round_robin")
    queue.put(6, tenant="b")
    assert lease(queue, 5) == [0, 1, 2, 3, 4]
    queue.put(2, tenant="a", key=["k", "m"], delay=100)
    queue.wait(100)
    assert lease(queue, 1, "a", key="k") == [6]
    assert lease(queue, 2) == [5, 7]


def test_a_cancelled_or_moved_head_unblocks_its_key(keyed: Queue) -> None:
    keyed.put(3, key="k")
    assert change(keyed, qc.ChangeItem(qc.ChangeOperation.CANCEL, 0)) == (Code.OK,)
    assert change(keyed, qc.ChangeItem(qc.ChangeOperation.MOVE, 1, delay_ms=100)) == (Code.OK,)
    assert lease(keyed, 9) == [2]
    keyed.wait(100)
    assert lease(keyed, 9) == []
    accept(keyed, 2)
    assert lease(keyed, 9) == [1]
    rows(keyed)


def test_the_death_of_a_head_unblocks_its_key(queue: Queue) -> None:
    configure(queue, is_ordered_by_key=True, attempts_max=1)
    queue.put(4, key="k")
    assert lease(queue, 9) == [0]
    settle(queue, Operation.REJECT, 0)
    assert lease(queue, 9) == [1]
    queue.wait(LEASE_MS)
    assert lease(queue, 9) == [2], "the lease of the one before it was its last attempt"
    settle(queue, Operation.RELEASE, 2)
    assert lease(queue, 9) == [3]
    assert counts(queue) == {"dead": 3, "leased": 1}
    rows(queue)


# ------------------------------------------------------------------------------------------------------------ changes


def test_a_move_changes_due_and_priority_and_nothing_else(queue: Queue) -> None:
    """DOQ, defect B7: a change of priority wrote into the deadline of a leased message."""
    queue.put(3)
    queue.host.write_back()
    moves = [
        qc.ChangeItem(qc.ChangeOperation.MOVE, 2, priority=-1),
        qc.ChangeItem(qc.ChangeOperation.MOVE, 0, due=queue.now + 50, version=0),
        qc.ChangeItem(qc.ChangeOperation.MOVE, 0, due=queue.now, version=0),
        qc.ChangeItem(qc.ChangeOperation.MOVE, 77),
    ]
    assert change(queue, *moves) == (Code.OK, Code.OK, Code.VERSION_CONFLICT, Code.NO_SUCH_MESSAGE)
    assert lease(queue, 9) == [2, 1]
    assert change(queue, qc.ChangeItem(qc.ChangeOperation.MOVE, 1, priority=5)) == (Code.MESSAGE_LEASED,)
    queue.wait(50)
    assert lease(queue, 9) == [0]


def test_a_message_is_cancelled_by_its_id(queue: Queue) -> None:
    queue.put(2, id=["i", "j"], delay=100)
    queue.host.write_back()
    cancel = qc.ChangeItem(qc.ChangeOperation.CANCEL, id=b"i")
    assert change(queue, cancel, cancel) == (Code.OK, Code.NO_SUCH_MESSAGE)
    assert queue.put(id="i") == Enqueued(1)
    assert counts(queue) == {"delayed": 1, "ready": 1}
    rows(queue)


def test_only_the_dead_are_redriven_and_they_are_not_moved(queue: Queue) -> None:
    queue.put(2)
    lease(queue)
    settle(queue, Operation.REJECT, 0)
    operations = qc.ChangeOperation
    move, redrive = qc.ChangeItem(operations.MOVE, 0, due=1), qc.ChangeItem(operations.REDRIVE, 1)
    assert change(queue, move, redrive) == (Code.WRONG_STATE,) * 2


def test_a_dead_message_is_cancelled_with_everything_that_it_holds(queue: Queue) -> None:
    configure(queue, dedupe_window_ms=1)
    queue.put(id="i")
    lease(queue)
    settle(queue, Operation.REJECT, 0)
    queue.host.write_back()
    assert change(queue, qc.ChangeItem(qc.ChangeOperation.CANCEL, id=b"i")) == (Code.OK,)
    queue.wait(1)
    assert queue.put(id="i") == Enqueued(1)
    assert counts(queue) == {"ready": 1}
    rows(queue)


# ------------------------------------------------------------------------------------------------------------ jobs


def run_job(queue: Queue, kind: JobKind, chosen: JobFilter = JobFilter(), step: int = 2) -> int:  # noqa: B008 - frozen
    """Run a job to its end and return the number of messages that it took."""
    started = queue.do(qc.StartJob(kind, chosen))
    assert isinstance(started, JobStarted)
    while True:
        queue.host.write_back()
        progress = queue.do(qc.ContinueJob(started.job, step))
        assert isinstance(progress, JobProgress)
        if progress.is_finished:
            assert queue.do(qc.ContinueJob(started.job, step)) == Refused(Code.NO_SUCH_JOB)
            return progress.done_count


def test_a_purge_removes_what_existed_when_it_began(queue: Queue) -> None:
    """DOQ, defect B3: deleting a queue removed its first message only."""
    queue.put(7, tenant=["a", "b", "a.x", "a", "b", "a", "a"])
    queue.put(2, tenant="a", delay=100)
    started = queue.do(qc.StartJob(JobKind.PURGE, JobFilter(1 << State.READY | 1 << State.DELAYED, ("a",))))
    assert isinstance(started, JobStarted)
    queue.put(1, tenant="a")
    queue.host.restart()
    done = queue.do(qc.ContinueJob(started.job, 500))
    assert done == JobProgress(7, is_finished=True)
    assert lease(queue, 9) == [1, 4, 9]
    rows(queue)


def test_a_purge_of_leased_messages_ends_their_leases(queue: Queue) -> None:
    queue.put(3)
    lease(queue, 2)
    assert run_job(queue, JobKind.PURGE, JobFilter(1 << State.LEASED)) == 2
    assert accept(queue, 0) == (Code.LEASE_UNKNOWN,)
    assert counts(queue) == {"ready": 1}


def kill(queue: Queue, count: int) -> None:
    first = queue.put(count).count and queue.host.machine.state.scalars.next_sequence - count
    assert lease(queue, count) == list(range(first, first + count))
    for sequence in reversed(range(first, first + count)):
        settle(queue, Operation.REJECT, sequence)


def test_the_dead_are_redriven_in_the_order_of_their_deaths(queue: Queue) -> None:
    kill(queue, 3)
    queue.wait(10)
    kill(queue, 2)
    assert run_job(queue, JobKind.REDRIVE, JobFilter(before_ms=queue.now), step=1) == 3
    assert counts(queue) == {"ready": 3, "dead": 2}
    rows(queue)


def test_retention_removes_the_oldest_dead_first(queue: Queue) -> None:
    kill(queue, 3)
    queue.wait(10)
    kill(queue, 3)
    assert run_job(queue, JobKind.RETAIN, JobFilter(before_ms=queue.now, keep_count=2)) == 4
    assert sorted(rows(queue).messages) == [3, 4]


def test_retention_removes_the_oldest_beyond_the_bytes_to_keep(queue: Queue) -> None:
    kill(queue, 5)
    size = rows(queue).scalars.dead_bytes // 5
    assert size > 0
    assert run_job(queue, JobKind.RETAIN, JobFilter(keep_bytes=3 * size)) == 2
    assert rows(queue).scalars.dead_bytes == 3 * size
    queue.do(qc.PurgeAll())
    assert rows(queue).scalars.dead_bytes == 0


def test_retention_spares_the_dead_that_are_not_copied_yet(queue: Queue) -> None:
    configure(queue, has_dead_letter_topic=True)
    kill(queue, 3)
    queue.do(qc.CopyDead(2))
    queue.wait(10)
    assert run_job(queue, JobKind.RETAIN, JobFilter(before_ms=queue.now)) == 2
    assert rows(queue).messages[0].dead_number == 3


def copies(queue: Queue) -> tuple[int, int, int, int, int]:
    """Return the target of copies, their epoch, the number that has sequence 0, and the last number that is copied."""
    scalars = rows(queue).scalars
    return scalars.copy_topic, scalars.copy_partition, scalars.copy_epoch, scalars.copy_first, scalars.copied_dead


def test_a_new_epoch_of_copies_begins_after_the_last_copied_one(queue: Queue) -> None:
    kill(queue, 4)
    queue.do(qc.AimCopies(7, 2, epoch=1))
    queue.do(qc.CopyDead(2, epoch=1))
    assert copies(queue) == (7, 2, 1, 1, 2)
    queue.host.restart()
    queue.do(qc.AimCopies(7, 2, epoch=2))
    assert copies(queue) == (7, 2, 2, 3, 2)


def test_an_older_leader_changes_neither_the_target_nor_the_progress_of_copies(queue: Queue) -> None:
    kill(queue, 4)
    queue.do(qc.AimCopies(7, 2, epoch=1))
    queue.do(qc.AimCopies(8, 0, epoch=2))
    queue.do(qc.AimCopies(9, 0, epoch=2))
    queue.do(qc.CopyDead(3, epoch=1))
    assert copies(queue) == (8, 0, 2, 1, 0)


def test_copies_are_recorded_no_further_than_the_last_death_and_never_backward(queue: Queue) -> None:
    kill(queue, 2)
    queue.do(qc.AimCopies(7, 0, epoch=1))
    queue.do(qc.CopyDead(99, epoch=1))
    queue.do(qc.CopyDead(1, epoch=1))
    assert copies(queue) == (7, 0, 1, 1, 2)


def test_purging_everything_leaves_a_gap_after_which_copies_have_a_new_epoch(queue: Queue) -> None:
    kill(queue, 2)
    queue.do(qc.AimCopies(7, 0, epoch=1))
    queue.do(qc.PurgeAll())
    assert copies(queue) == (7, 0, 2, 3, 2)
    queue.do(qc.PurgeAll())
    assert copies(queue) == (7, 0, 2, 3, 2)


def test_purging_everything_is_one_entry_and_leaves_nothing(queue: Queue) -> None:
    configure(queue, is_ordered_by_key=True, dedupe_window_ms=1_000)
    queue.put(4, key="k", id=["a", "b", "c", "d"], ttl=500)
    queue.put(2, delay=100, tenant="t")
    lease(queue, 1)
    queue.host.write_back()
    assert queue.do(qc.PurgeAll()) == Purged(6)
    assert counts(queue) == counts(queue, "t") == {}
    assert queue.put(1, id="a", key="k") == Enqueued(1)
    assert accept(queue, 0) == (Code.LEASE_UNKNOWN,)
    queue.host.restart()
    queue.wait(1_000)
    assert lease(queue, 9) == [6]
    assert list(rows(queue).messages) == [6]


def test_a_purge_of_many_tenants_touches_a_bounded_number_of_rows_in_each_entry() -> None:
    queue, count = Queue(), 2 * TENANTS_RESET_MAX + 100
    for first in range(0, count, WORK_MAX):
        some = range(first, min(first + WORK_MAX, count))
        queue.put(len(some), tenant=[f"t{number}" for number in some])
    lease(queue, 3)
    queue.host.write_back()
    machine = queue.host.machine
    purged = queue.run(qc.PurgeAll())
    assert purged.items == (Purged(count),)
    touched = [tenant_rows(queue)]
    assert (machine.message_count, machine.ready_count, machine.byte_count, machine.leased_count) == (0, 0, 0, 0)
    assert machine.tenant("t1099") is None, "its counters are void"
    queue.put(1, tenant="t1099")
    queue.put(1, tenant="new")
    assert counts(queue, "t1099") == counts(queue, "new") == {"ready": 1}
    assert not machine.is_leasable()
    assert machine.next_deadline() == queue.now
    assert lease(queue, 9) == [], "nothing is leased before the turns of all tenants are right"
    tenant_rows(queue)
    queue.host.restart()
    is_purging = True
    while is_purging:
        is_purging = queue.run(qc.Tick()).has_more_due
        touched.append(tenant_rows(queue))
    assert len(touched) == 2
    assert 0 < max(touched) <= TENANTS_RESET_MAX
    assert sorted(lease(queue, 9)) == [count, count + 1]
    rows(queue)


def tenant_rows(queue: Queue) -> int:
    """Write back, and return the number of rows of tenants that had changed."""
    queue.host.take()
    assert queue.host.in_flight is not None
    changed = sum(key[0] == keys.TENANTS for key, _ in queue.host.in_flight)
    queue.host.commit()
    queue.host.written()
    return changed


# ------------------------------------------------------------------------------------------------------------ schedules


def fire(queue: Queue, revision: int, due: int, next_due: int) -> Enqueued:
    payload = encode_firing(b"nightly", revision, due, next_due, encode(messages()))
    result = queue.host.apply(queue.log.append(EntryKind.DATA, payload, 1))
    assert isinstance(result, Enqueued)
    return result


def test_a_schedule_fires_once_for_each_due_time(queue: Queue) -> None:
    assert queue.do(qc.PutSchedule("nightly", b"0 3 * * *", 500)) == ScheduleChanged(1)
    queue.host.restart()
    assert fire(queue, 1, 500, 900) == Enqueued(1)
    assert fire(queue, 1, 500, 900) == Enqueued(0, is_stale=True)
    assert fire(queue, 1, 900, -1) == Enqueued(1)
    row = queue.host.machine.schedule("nightly")
    assert row is not None
    assert (row.next_due, row.last_due, row.fired_count) == (-1, 900, 2)
    assert lease(queue, 9) == [0, 2], "a stale firing takes its sequence and makes no message"


def test_a_due_schedule_waits_for_its_firing_and_no_command_is_due(queue: Queue) -> None:
    queue.do(qc.PutSchedule("nightly", b"", queue.now))
    assert queue.host.machine.schedules.due_by(queue.now, 9) == ["nightly"]
    assert queue.host.machine.next_deadline() is None


def test_due_schedules_come_by_time_and_stay_due_until_they_fire(queue: Queue) -> None:
    for name, due in (("b", 300), ("c", 200), ("a", 300), ("d", 301)):
        queue.do(qc.PutSchedule(name, b"", due))
    queue.do(qc.PutSchedule("b", b"", 300))
    queue.do(qc.PutSchedule("paused", b"", 100, is_paused=True))
    schedules = queue.host.machine.schedules
    assert schedules.due_by(300, 9) == ["c", "a", "b"]
    assert schedules.due_by(300, 2) == ["c", "a"]
    assert schedules.next_due() == (200, "c")


def test_missed_firings_are_passed_over_once_and_counted(queue: Queue) -> None:
    queue.do(qc.PutSchedule("nightly", b"", 500))
    assert queue.do(qc.SkipFirings("nightly", 1, 500, 800, 3)) == ScheduleChanged(1)
    assert queue.do(qc.SkipFirings("nightly", 1, 500, 800, 3)) == Refused(Code.VERSION_CONFLICT)
    assert queue.do(qc.SkipFirings("weekly", 1, 500, 800, 3)) == Refused(Code.NO_SUCH_SCHEDULE)
    queue.do(qc.PutSchedule("nightly", b"", 800))
    queue.host.restart()
    assert fire(queue, 1, 800, 900) == Enqueued(0, is_stale=True)
    assert fire(queue, 2, 800, -1) == Enqueued(1)
    row = queue.host.machine.schedule("nightly")
    assert row is not None
    assert (row.fired_count, row.skipped_count, row.last_due) == (1, 3, 800)


def test_a_deletion_wins_over_a_firing_in_flight(queue: Queue) -> None:
    queue.do(qc.PutSchedule("nightly", b"", 500))
    assert queue.do(qc.DeleteSchedule("nightly", 1)) == ScheduleChanged(1)
    assert fire(queue, 1, 500, 900) == Enqueued(0, is_stale=True)
    queue.do(qc.PutSchedule("nightly", b"", 500))
    assert fire(queue, 1, 500, 900) == Enqueued(0, is_stale=True), "the new schedule has another revision"


def test_a_paused_schedule_does_not_fire(queue: Queue) -> None:
    queue.do(qc.PutSchedule("nightly", b"", 500))
    assert queue.do(qc.ChangeSchedule("nightly", 500, is_paused=True)) == ScheduleChanged(2)
    assert queue.host.machine.schedules.due_by(500, 9) == []
    assert fire(queue, 2, 500, 900) == Enqueued(0, is_stale=True)
    assert queue.do(qc.ChangeSchedule("nightly", 500, is_paused=False, version=1)) == Refused(Code.VERSION_CONFLICT)


# ------------------------------------------------------------------------------------------------------------ chains


def chain(
    queue: Queue, *tokens: tuple[int, int], puts: int = 1, named: int | None = None, session: int = 0, **columns: object
) -> Chained:
    """Accept messages, each with `puts` messages, of which the command names another number if `named` is given."""
    sequences, numbers = zip(*tokens, strict=True)
    command = qc.Chain(session, 1, sequences, numbers, (puts if named is None else named,) * len(tokens))
    count = puts * len(tokens)
    batch = seal_queue_batch(encode(messages(count, **columns)), message_count=count)
    result = queue.host.apply(queue.log.append(EntryKind.DATA, encode_chain(command, batch), count))
    assert isinstance(result, Chained)
    return result


def test_the_next_jobs_of_a_chain_are_enqueued_with_the_acceptance_of_the_last(queue: Queue) -> None:
    queue.put(2)
    lease(queue, 2)
    assert chain(queue, (0, 1), puts=2) == Chained(Settled((Code.OK,), (1,)), Enqueued(2))
    assert counts(queue) == {"leased": 1, "ready": 2}
    assert lease(queue, 2) == [2, 3]


def test_the_messages_of_a_chain_whose_lease_is_lost_are_not_enqueued(queue: Queue) -> None:
    queue.put(3)
    lease(queue, 3)
    codes = Settled((Code.OK, Code.LEASE_LOST, Code.OK), (1, 1, 1))
    assert chain(queue, (0, 1), (1, 7), (2, 1), id=["a", "b", "c"]) == Chained(codes, Enqueued(2))
    assert counts(queue) == {"leased": 1, "ready": 2}
    assert lease(queue, 9) == [3, 5], "the place of the message that was not put stays empty"
    assert queue.do(qc.Change((qc.ChangeItem(qc.ChangeOperation.CANCEL, id=b"b"),))) == Changed(
        (Code.NO_SUCH_MESSAGE,), (0,)
    )


def test_a_repeated_chain_enqueues_nothing_twice(queue: Queue) -> None:
    queue.put(1)
    lease(queue, 1)
    assert queue.do(qc.OpenSession()) == SessionOpened(1)
    done = Settled((Code.OK,), (1,))
    assert chain(queue, (0, 1), session=1) == Chained(done, Enqueued(1))
    assert chain(queue, (0, 1), session=1) == Chained(done, Enqueued(0)), "the session knows the answer"
    assert chain(queue, (0, 1)) == Chained(Settled((Code.LEASE_UNKNOWN,), (1,)), Enqueued(0)), "the lease has ended"
    assert chain(queue, (1, 1), session=9) == Chained(Refused(Code.UNKNOWN_SESSION), Enqueued(0))
    assert counts(queue) == {"ready": 1}


def test_a_chain_that_names_another_number_of_messages_does_nothing(queue: Queue) -> None:
    queue.put(1)
    lease(queue, 1)
    assert chain(queue, (0, 1), puts=2, named=1) == Chained(Refused(Code.INVALID), Enqueued(0))
    assert counts(queue) == {"leased": 1}


# ------------------------------------------------------------------------------------------------------------ work


def test_no_entry_promotes_more_than_its_part_of_the_work() -> None:
    queue = Queue()
    for _ in range(2):
        queue.put(WORK_MAX, delay=100)
    queue.wait(100)
    first = queue.run(qc.Lease(0, 0, 400, LEASE_MS))
    assert first.has_more_due
    assert counts(queue) == {"delayed": 2 * WORK_MAX - HOUSEKEEPING_MAX, "ready": 100, "leased": 400}
    while queue.run(qc.Tick()).has_more_due:
        pass
    assert counts(queue) == {"ready": 1_600, "leased": 400}


@pytest.mark.parametrize("due_max", [-1, 0, HOUSEKEEPING_MAX, 1 << 40])
def test_every_entry_has_a_bound_of_due_messages(due_max: int) -> None:
    queue = Queue()
    queue.put(HOUSEKEEPING_MAX + 1, delay=100)
    queue.wait(100)
    assert queue.run(qc.Tick(), due_max=due_max).has_more_due
    assert counts(queue) == {"delayed": 1, "ready": HOUSEKEEPING_MAX}


def test_an_entry_promotes_the_first_ones_up_to_the_number_that_it_names() -> None:
    queue = Queue()
    for delay in range(7, 0, -1):
        queue.put(1, delay=delay)
    queue.put(1, ttl=5)
    queue.wait(10)
    assert queue.run(qc.Tick(), due_max=4).has_more_due
    assert counts(queue) == {"delayed": 4, "ready": 3}, "one expired, which comes before promotions"
    assert lease(queue, 1) == [6]
    assert not queue.run(qc.Tick(), due_max=5).has_more_due
    assert counts(queue) == {"ready": 6, "leased": 1}


@pytest.mark.parametrize("due_max", [2, 5, HOUSEKEEPING_MAX])
@pytest.mark.parametrize("is_leased", [False, True], ids=["expiring", "leased"])
def test_promotions_have_half_of_the_number_that_an_entry_names(due_max: int, *, is_leased: bool) -> None:
    """Leases that end and messages that expire come first, and a stream of them stopped all promotions."""
    queue, share = Queue(), due_max // 2
    queue.put(WORK_MAX, **({} if is_leased else {"ttl": LEASE_MS}))
    lease(queue, WORK_MAX // 2 if is_leased else 0)
    queue.put(due_max, delay=LEASE_MS)
    queue.wait(LEASE_MS)
    result = queue.run(qc.Tick(), due_max=due_max)
    assert (result.has_more_due, result.due_count) == (True, due_max)
    assert counts(queue)["delayed"] == due_max - share


def test_what_one_step_leaves_is_no_sign_that_all_is_done() -> None:
    queue = Queue()
    queue.put(3, ttl=5)
    queue.wait(10)
    first, second = queue.run(qc.Tick(), due_max=4), queue.run(qc.Tick(), due_max=4)
    assert (first.due_count, first.has_more_due) == (2, True)
    assert (second.due_count, second.has_more_due) == (1, False)


def test_an_entry_that_names_no_number_may_end_more_than_it_promotes() -> None:
    """Entries of earlier versions must always have the same effect."""
    queue = Queue()
    queue.put(HOUSEKEEPING_MAX, ttl=5)
    queue.put(1, delay=5)
    queue.wait(10)
    assert queue.run(qc.Tick()).has_more_due
    assert counts(queue) == {"delayed": 1}


def test_expired_leases_come_back_in_slices() -> None:
    queue = Queue()
    queue.put(900)
    lease(queue, 450)
    lease(queue, 450)
    queue.wait(LEASE_MS)
    assert queue.run(qc.Tick()).has_more_due
    assert counts(queue) == {"leased": 900 - HOUSEKEEPING_MAX, "ready": HOUSEKEEPING_MAX}


def test_items_share_the_work_of_one_entry() -> None:
    queue = Queue()
    queue.put(WORK_MAX)
    queue.put(WORK_MAX)
    results = queue.run(qc.Lease(0, 0, 900, LEASE_MS), qc.Lease(0, 0, 900, LEASE_MS)).items
    sizes = [sum(result.counts) for result in results if isinstance(result, Leased)]
    assert sizes == [900, 100]
    assert isinstance(results[1], Leased)
    assert results[1].has_more
    settled = queue.do(qc.Settle(0, 0, (1, 1), (0, 900), (900, 900), (1, 1)))
    assert settled == Settled((Code.OK, Code.OVER_LIMIT), (WORK_MAX, 800))


# ------------------------------------------------------------------------------------------------------------ rows


def test_what_came_and_went_never_becomes_a_row() -> None:
    queue = Queue()
    queue.put(50, id=[f"i{number}" for number in range(50)], ttl=100)
    lease(queue, 50)
    settle(queue, Operation.ACCEPT, 0, count=50)
    written = {key[0] for key, _ in queue.host.machine.take_dirty_rows()}
    assert written == {0x01, 0x02, 0x08}, "scalars, the tenant's counters and the clock"


def test_the_end_of_a_written_message_deletes_its_rows_and_leaves_its_body_to_the_store() -> None:
    """The machine once deleted the body, too, and the store refused every such write-back."""
    queue = Queue()
    queue.put(1, ttl=100)
    queue.host.write_back()
    lease(queue)
    accept(queue, 0)
    rows = queue.host.machine.take_dirty_rows()
    assert [key[0] for key, value in rows if value is None] == [0x10, 0x20, 0x21]
    check_state_rows(rows)


def test_a_pause_changes_the_row_of_one_tenant() -> None:
    queue = Queue()
    queue.put(3, tenant=["a.b", "a.c", "a.d"])
    queue.host.write_back()
    queue.do(qc.PauseTenant("a"))
    written = [key for key, _ in queue.host.machine.take_dirty_rows() if key[0] == keys.TENANTS]
    assert len(written) == 1
    assert lease(queue, 9) == []


def test_the_end_of_many_pauses_looks_at_no_other_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at all of 20,000 tenants takes two milliseconds, and pauses of all of them may end in one entry."""
    looked = 0

    class Paths(dict[str, Tenant]):
        def items(self) -> Any:
            nonlocal looked
            looked += 1
            return super().items()

    queue = Queue()
    configure(queue, fairness="round_robin")
    queue.put(9, tenant=[f"t{number}" for number in range(9)])
    monkeypatch.setattr(queue.host.machine.state.tenants, "by_path", Paths(queue.host.machine.state.tenants.by_path))
    for number in range(9):
        queue.do(qc.PauseTenant(f"t{number}", 1_000))
    assert lease(queue, 9) == []
    queue.wait(1_000)
    assert len(lease(queue, 9)) == 9
    assert looked == 0


def test_pauses_that_are_replaced_leave_the_memory() -> None:
    queue = Queue()
    queue.put(1, tenant="a")
    for pause_ms in range(1_000, 2_000):
        queue.do(qc.PauseTenant("a", pause_ms))
    assert len(queue.host.machine.state.tenants._pause_ends) < 100
    assert list(queue.host.machine.state.tenants.paused(queue.now)) == [("a", queue.now + 1_999)]
    queue.wait(1_998)
    assert lease(queue) == []
    queue.wait(1)
    assert lease(queue) == [0]


def test_nothing_is_dirty_when_nothing_changed(queue: Queue) -> None:
    queue.put(2)
    queue.host.write_back()
    queue.host.apply(queue.log.append(EntryKind.EMPTY, b""))
    assert queue.host.machine.take_dirty_rows() == ()
    assert queue.host.machine.dirty_count == 0


def test_idle_tenants_are_forgotten(queue: Queue) -> None:
    configure(queue, fairness="round_robin")
    queue.put(2, tenant=["a.b", "c"])
    lease(queue, 9)
    accept(queue, 0)
    for _ in range(3):
        queue.wait(TENANT_IDLE_MS)
        queue.run(qc.Tick(), expire_before=1)
    assert sorted(tenant.path for tenant in rows(queue).tenants().values()) == ["", "c"]
    queue.put(1, tenant="a.b")
    assert counts(queue, "a.b") == {"ready": 1}


def test_messages_beyond_the_windows_are_on_disk_alone() -> None:
    queue = Queue()
    for _ in range(60):
        queue.put(WORK_MAX, delay=100)
        queue.put(WORK_MAX)
        queue.host.write_back()
    store = queue.host.machine.state.store
    assert len(store.messages) < 4 * store.bounds.window_messages_max
    assert counts(queue) == {"ready": 60_000, "delayed": 60_000}
    reads = queue.host.reads
    assert lease(queue, 500) == list(range(WORK_MAX, WORK_MAX + 500))
    assert queue.host.reads == reads, "the first window is in memory"


def test_the_keys_of_messages_that_nobody_leased_leave_the_memory() -> None:
    """Ten thousand tenants whose messages expired, or were leased by their key, would otherwise cost gigabytes."""
    queue = Queue()
    configure(queue, fairness="round_robin", is_ordered_by_key=True)
    queue.put(30, tenant=[f"t{number}" for number in range(30)], ttl=100)
    queue.put(1, tenant="a", key="k")
    assert lease(queue, 1, "a", key="k") == [30]
    queue.wait(100)
    queue.run(qc.Tick())
    queue.host.write_back()
    assert queue.host.machine.state.store.ready == {}


def test_a_read_ahead_of_a_purged_partition_is_ignored() -> None:
    queue = Queue()
    queue.put(3, delay=100)
    queue.host.restart()
    queue.host.prefetch()
    assert queue.host.is_reading_ahead
    queue.do(qc.PurgeAll())
    queue.put(1, delay=100)
    queue.host.hand_over()
    queue.wait(100)
    assert lease(queue, 9) == [3]


def test_windows_are_filled_ahead() -> None:
    queue = Queue()
    for _ in range(6):
        queue.put(WORK_MAX)
        queue.host.write_back()
    for _ in range(12):
        assert len(lease(queue, 400)) == 400
        queue.host.prefetch()
        queue.host.hand_over()
    assert queue.host.reads == 0


def test_the_bytes_of_all_schedules_are_bounded(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every replica keeps them in memory: ten thousand of the largest size are 640 MB."""
    monkeypatch.setattr("raftmq.fsm.queue.limits.SCHEDULES_BYTES_MAX", 100)
    for name, size, is_accepted in (
        ("a", 60, True), ("b", 41, False), ("b", 40, True), ("a", 61, False), ("a", 60, True), ("a", 50, True), ("a", 61, False),
    ):  # fmt: skip
        result = queue.do(qc.PutSchedule(name, bytes(size), 5_000))
        assert isinstance(result, ScheduleChanged) is is_accepted, (name, size)
        assert isinstance(result, Refused) is not is_accepted
    queue.host.restart()
    assert queue.do(qc.PutSchedule("c", bytes(11), 5_000)) == Refused(Code.TOO_MANY_SCHEDULES)
    assert isinstance(queue.do(qc.DeleteSchedule("b")), ScheduleChanged)
    assert isinstance(queue.do(qc.PutSchedule("c", bytes(50), 5_000)), ScheduleChanged)
    assert queue.do(qc.PutSchedule("d", bytes(1), 5_000)) == Refused(Code.TOO_MANY_SCHEDULES)


def test_a_refused_schedule_takes_no_bytes(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.fsm.queue.limits.SCHEDULES_BYTES_MAX", 100)
    assert queue.do(qc.PutSchedule("a", bytes(60), 5_000, version=7)) == Refused(Code.VERSION_CONFLICT)
    assert queue.do(qc.PutSchedule("a", bytes(60), qc.KEEP_DUE)) == Refused(Code.NO_SUCH_SCHEDULE)
    assert isinstance(queue.do(qc.PutSchedule("a", bytes(100), 5_000)), ScheduleChanged)
