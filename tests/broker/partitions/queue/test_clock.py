"""The clock of a queue partition (`broker/partitions/queue/clock.py`): a hypothesis machine, and the rule for leases."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.clock import COMPARE_NS, GRACE_MS_MAX, QueueClock
from raftmq.broker.replica.entry_clock import EntryClock
from raftmq.proto import queue_pb2 as pb

START_MS = 1_750_000_000_000
HOUR_MS = 3_600_000
MS = 1_000_000


class World:
    """One machine's time since its start, and the wall clocks of a quorum, which may be wrong or unknown."""

    def __init__(self) -> None:
        self.boot_ns = 7 * MS
        self.wrong_ms = 0
        self.is_known = True
        self.is_agreed = True

    def boottime_ns(self) -> int:
        return self.boot_ns

    def median_ms(self) -> int | None:
        return START_MS + self.boot_ns // MS + self.wrong_ms if self.is_known else None

    def clock(self, last_ms: int = 0) -> QueueClock:
        return QueueClock(self.median_ms, lambda: self.is_agreed, self.boottime_ns, last_ms)


class ClockMachine(RuleBasedStateMachine):
    """Any history of a replica: time passes, wall clocks jump and go, others lead, the process starts again."""

    @initialize(last_ms=st.integers(0, START_MS + HOUR_MS))
    def begin(self, last_ms):
        self.world = World()
        self.clock = self.world.clock(last_ms)
        self.last_ms = last_ms
        self.before: tuple[int, int] | None = None
        """(time since the machine's start, queue time) of the last reading, unless a step is allowed now. A clock that stops being provisional may step, too."""

    @rule(ns=st.integers(0, 100 * MS) | st.integers(0, 20 * HOUR_MS * MS))
    def time_passes(self, ns):
        """The machine runs or is suspended: for the clock it is the same."""
        self.world.boot_ns += ns

    @rule(wrong_ms=st.integers(-100 * HOUR_MS, 100 * HOUR_MS))
    def wall_clocks_jump(self, wrong_ms):
        self.world.wrong_ms = wrong_ms

    @rule(is_known=st.booleans())
    def a_quorum_is_heard_or_not(self, is_known):
        self.world.is_known = is_known

    @rule(is_agreed=st.booleans())
    def a_majority_agrees_or_not(self, is_agreed):
        self.world.is_agreed = is_agreed
        if self.clock.is_provisional:
            self.before = None  # it may step

    @rule(ahead_ms=st.integers(-HOUR_MS, HOUR_MS))
    def another_leader_stamps(self, ahead_ms):
        stamp_ms = max(self.last_ms, self.clock.read_ms() + ahead_ms)
        self.clock.on_received(stamp_ms)
        self.last_ms = stamp_ms
        self.before = None
        assert self.clock.read_ms() >= stamp_ms

    @rule()
    def the_process_starts_again(self):
        self.clock = self.world.clock(self.last_ms)
        self.before = None
        assert self.clock.read_ms() == max(self.last_ms, self.world.median_ms() or 0)

    @precondition(lambda self: self.clock.is_running and self.world.is_known)
    @rule(part=st.integers(1, 4))
    def an_operator_steps(self, part):
        behind_ms = -(self.clock.difference_ms or 0)
        target_ms = self.clock.read_ms() + behind_ms * part // 4
        if behind_ms >= 4:
            self.clock.step_to(target_ms)
            assert self.clock.read_ms() == target_ms
            self.before = None

    @precondition(lambda self: self.clock.is_running and self.world.is_known and self.world.is_agreed)
    @rule()
    def it_converges(self):
        """Twenty times the difference is enough after any history."""
        self.read()
        self.world.boot_ns += 20 * abs(self.clock.difference_ms or 0) * MS + 100 * MS
        self.read()
        assert abs(self.clock.difference_ms or 0) <= 1

    def read(self):
        was_running, was_provisional = self.clock.is_running, self.clock.is_provisional
        now_ms = self.clock.now_ms()
        assert now_ms >= self.last_ms
        if not self.clock.is_running:
            assert now_ms == self.last_ms
        elif was_running and self.before is not None and self.clock.is_provisional == was_provisional:
            elapsed_ns, passed_ms = self.world.boot_ns - self.before[0], now_ms - self.before[1]
            assert elapsed_ns * 95 // 100 - MS <= passed_ms * MS <= elapsed_ns * 105 // 100 + MS
            if not self.world.is_agreed and elapsed_ns >= COMPARE_NS:
                assert abs(passed_ms * MS - elapsed_ns) <= MS, "it slews only towards a majority's time"
        self.before = (self.world.boot_ns, now_ms) if self.clock.is_running else None
        self.last_ms = now_ms

    @invariant()
    def it_neither_goes_back_nor_runs_away(self):
        if hasattr(self, "clock"):
            self.read()


TestQueueClock = ClockMachine.TestCase
TestQueueClock.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


def test_it_is_an_entry_clock():
    clock: EntryClock = World().clock()
    assert clock.now_ms() == START_MS + 7


def test_many_stamps_in_one_millisecond_do_not_slow_it_down():
    """A clock that began again at each stamp, in whole milliseconds, would lose the rest every time."""
    world = World()
    clock = world.clock()
    began_ms = clock.now_ms()
    for _ in range(10_000):
        world.boot_ns += MS // 10
        clock.now_ms()
    assert clock.now_ms() - began_ms == 1000


def test_a_wall_clock_three_days_ahead_moves_it_by_a_twentieth():
    world = World()
    clock = world.clock()
    began_ms = clock.now_ms()
    world.wrong_ms = 72 * HOUR_MS
    world.boot_ns += 60_000 * MS
    assert clock.now_ms() - began_ms == 63_000
    assert clock.difference_ms == 63_000 - 60_000 - 72 * HOUR_MS


def test_a_median_that_was_wrong_for_a_moment_counts_for_that_moment_only():
    world = World()
    clock = world.clock()
    began_ms = clock.now_ms()
    world.wrong_ms = 72 * HOUR_MS
    world.boot_ns += 100 * MS
    clock.now_ms()
    world.wrong_ms = 0
    world.boot_ns += 20 * HOUR_MS * MS
    assert clock.now_ms() - began_ms == 20 * HOUR_MS + 100


def test_clocks_that_differ_do_not_slew_it():
    """After a sleep of an hour one wrong clock, of the two that were heard, set a queue back by three minutes (seed 22002)."""
    world = World()
    clock = world.clock()
    began_ms = clock.now_ms()
    world.wrong_ms, world.is_agreed = -40 * 24 * HOUR_MS, False
    world.boot_ns += HOUR_MS * MS
    assert clock.now_ms() - began_ms == HOUR_MS
    world.wrong_ms, world.is_agreed = 0, True
    world.boot_ns += 100 * MS
    assert clock.now_ms() - began_ms == HOUR_MS + 100


def test_an_append_time_that_it_receives_is_not_made_up_for_twice():
    world = World()
    clock = world.clock()
    clock.now_ms()
    world.wrong_ms = 10_000
    world.boot_ns += 60 * MS
    assert (clock.difference_ms or 0) < -9_000  # it is behind, and gains
    clock.on_received(world.median_ms())
    world.boot_ns += 40 * MS
    assert clock.now_ms() == world.median_ms()


def test_a_clock_that_is_ahead_at_the_start_stays_there():
    world = World()
    clock = world.clock(START_MS + HOUR_MS)
    assert (clock.now_ms(), clock.stepped_ms) == (START_MS + HOUR_MS, 0)


def test_after_eight_hours_with_all_processes_down_it_continues_at_the_median():
    world = World()
    last_ms = world.clock().now_ms()
    world.boot_ns += 8 * HOUR_MS * MS
    clock = world.clock(last_ms)
    assert clock.now_ms() == last_ms + 8 * HOUR_MS
    assert clock.stepped_ms == 8 * HOUR_MS


def test_a_follower_that_catches_up_with_old_entries_does_not_fall_back_to_their_time():
    """Cut off at 12:00, it gets the entry of 12:30 at 14:00, and leads: it is 14:00."""
    world = World()
    clock = world.clock()
    clock.on_received(clock.read_ms())
    at_noon_ms = clock.read_ms()
    world.boot_ns += 2 * HOUR_MS * MS
    clock.on_received(at_noon_ms + HOUR_MS // 2)
    assert clock.now_ms() == at_noon_ms + 2 * HOUR_MS


def test_without_a_quorum_nothing_is_stamped_beyond_the_last_entry():
    world = World()
    world.is_known = False
    clock = world.clock(START_MS - 5)
    world.boot_ns += HOUR_MS * MS
    assert (clock.now_ms(), clock.is_running, clock.difference_ms) == (START_MS - 5, False, None)
    clock.on_received(START_MS)
    assert (clock.now_ms(), clock.is_running) == (START_MS, False)
    world.is_known = True
    assert clock.now_ms() == START_MS + HOUR_MS + 7
    assert clock.is_running


def test_a_running_clock_continues_while_other_clocks_are_unknown():
    world = World()
    clock = world.clock()
    began_ms = clock.now_ms()
    world.is_known = False
    world.boot_ns += HOUR_MS * MS
    assert clock.now_ms() - began_ms == HOUR_MS


@pytest.mark.parametrize(
    ("target_ms", "is_known", "code"),
    [(-1, True, pb.INVALID_ARGUMENT), (0, True, pb.INVALID_ARGUMENT), (2 * HOUR_MS + 1, True, pb.INVALID_ARGUMENT),
     (1, False, pb.NOT_READY)],
)  # fmt: skip
def test_an_operator_can_neither_set_it_back_nor_ahead_of_the_brokers(target_ms, is_known, code):
    world = World()
    clock = world.clock()
    now_ms = clock.now_ms()
    world.wrong_ms, world.is_known = 2 * HOUR_MS, is_known
    with pytest.raises(RequestError) as refused:
        clock.step_to(now_ms + target_ms)
    assert refused.value.code == code
    assert clock.now_ms() == now_ms


def test_an_operator_sets_it_forward():
    world = World()
    clock = world.clock(START_MS - HOUR_MS)
    now_ms, stepped_ms = clock.now_ms(), clock.stepped_ms
    assert stepped_ms >= HOUR_MS, "the steps of operators are added to that of the start"
    world.wrong_ms = 2 * HOUR_MS
    clock.step_to(now_ms + 2 * HOUR_MS)
    assert (clock.now_ms(), clock.difference_ms) == (now_ms + 2 * HOUR_MS, 0)
    assert clock.stepped_ms == stepped_ms + 2 * HOUR_MS


# ---------------------------------------------------------------------------------------------------- leases


def led(world):
    """A clock whose replica leads, with no grace left."""
    clock = world.clock()
    clock.expire_before(0, START_MS)
    clock.now_ms()
    return clock


@pytest.mark.parametrize("lease_ms", [500, 30_000])
def test_leases_that_ended_without_a_leader_stay_valid_for_a_while(lease_ms):
    world = World()
    clock = led(world)
    last_ms = clock.now_ms()
    clock.on_received(last_ms)  # another one leads
    world.boot_ns += 5000 * MS
    clock.now_ms()  # the no-op of this replica
    assert clock.expire_before(lease_ms, 2 * START_MS) == last_ms
    grace_ms = min(lease_ms, GRACE_MS_MAX)
    assert clock.leases_end_from_ms == clock.read_ms() + grace_ms
    world.boot_ns += (grace_ms - 1) * MS
    assert clock.expire_before(lease_ms, 2 * START_MS) == last_ms
    world.boot_ns += MS
    assert clock.expire_before(lease_ms, 2 * START_MS) == clock.read_ms()
    assert clock.leases_end_from_ms == 0


def test_a_stall_is_a_gap_too_and_a_second_one_within_the_grace_extends_it():
    world = World()
    clock = led(world)
    last_ms = clock.now_ms()
    for _ in range(2):
        world.boot_ns += 4000 * MS
        clock.on_doubted()
        assert clock.expire_before(30_000, 2 * START_MS) == last_ms
        clock.now_ms()  # it leads, and stamps entries
    world.boot_ns += GRACE_MS_MAX * MS
    assert clock.expire_before(30_000, 2 * START_MS) == clock.read_ms() == last_ms + 8000 + GRACE_MS_MAX


def test_after_a_start_the_gap_begins_at_the_last_entry():
    world = World()
    clock = world.clock(START_MS - HOUR_MS)
    assert clock.expire_before(30_000, 2 * START_MS) == START_MS - HOUR_MS


def test_a_leader_without_doubt_expires_leases_immediately():
    world = World()
    clock = led(world)
    world.boot_ns += 1234 * MS
    assert clock.expire_before(30_000, 2 * START_MS) == clock.read_ms()


def test_only_leases_of_before_the_gap_are_spared():
    world = World()
    clock = led(world)
    assert clock.spared_through_ms == 0
    for _ in range(2):
        last_ms = clock.now_ms()
        clock.on_doubted()
        world.boot_ns += 4000 * MS
        clock.expire_before(30_000, 2 * START_MS)
        clock.now_ms()
        assert clock.spared_through_ms == last_ms
        world.boot_ns += 1000 * MS  # leases are granted, and end in the second gap
    world.boot_ns += GRACE_MS_MAX * MS
    clock.expire_before(30_000, 2 * START_MS)
    assert clock.spared_through_ms == 0


def test_a_leader_that_follows_one_within_its_grace_spares_the_same_leases():
    """Two elections in a row: the consumers did not meet the first of the new leaders."""
    world = World()
    clock = led(world)
    first_gap_ms = clock.now_ms()
    world.boot_ns += 4000 * MS
    clock.on_received(clock.read_ms())  # an entry of a leader that spares the leases that ended since `first_gap_ms`
    second_gap_ms = clock.read_ms()
    world.boot_ns += 4000 * MS
    assert clock.expire_before(30_000, first_gap_ms) == first_gap_ms
    assert clock.spared_through_ms == second_gap_ms


def test_a_clock_that_started_among_differing_clocks_steps_once_a_majority_agrees():
    """One wrong clock held a queue back: after a restart it was hours behind, and slewed for days."""
    world = World()
    world.wrong_ms, world.is_agreed = -8 * HOUR_MS, False
    clock = world.clock(START_MS - 8 * HOUR_MS)
    assert clock.read_ms() == START_MS - 8 * HOUR_MS + 7
    provisional = [clock.is_provisional]
    leased_until_ms = clock.now_ms() + 30_000
    world.wrong_ms = 0
    world.boot_ns += 1_000 * MS
    assert clock.read_ms() < START_MS - 7 * HOUR_MS, "still nobody knows which clock is right"
    world.is_agreed = True
    world.boot_ns += 1_000 * MS
    assert clock.read_ms() == START_MS + 2_007
    provisional.append(clock.is_provisional)
    assert provisional == [True, False]
    assert clock.stepped_ms > 7 * HOUR_MS
    assert clock.expire_before(30_000, 0) < leased_until_ms, "consumers of before the step may still settle"
    world.is_agreed, world.wrong_ms = False, 8 * HOUR_MS
    world.boot_ns += 1_000 * MS
    world.is_agreed = True
    assert clock.read_ms() < START_MS + HOUR_MS, "later it only slews"
