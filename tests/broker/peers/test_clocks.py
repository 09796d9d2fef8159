"""Nodes trust the clock of the majority, and a node with a wrong clock limits itself."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.clock_watch import ClockWatch
from raftmq.broker.peers import clocks as clocks_module
from raftmq.broker.peers.clocks import Agreement, ClockStanding, PeerClocks
from raftmq.broker.peers.codec import FrameError, FrameType, encode_clock, encode_clock_question
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.ready import Role
from raftmq.types import NodeId

from tests.support.broker.engine_cluster import TIMING, EngineCluster, data
from tests.support.broker.waiting import until

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
TIMES = Timing()


class Loop:
    """A loop that has only a clock."""

    def __init__(self) -> None:
        self.seconds = 50.0

    def time(self) -> float:
        return self.seconds


class Cluster:
    """Nodes that receive each other's clocks after a delay, and have no other parts."""

    def __init__(self, *wrong_ms: int) -> None:
        """Take the errors of the clocks of nodes 1, 2, …"""
        self.loop = Loop()
        self.wrong_ms = dict(enumerate(wrong_ms, start=1))
        self.down: set[int] = set()
        self.ignorant: set[int] = set()
        """Nodes that do not know yet that there are others."""
        self.delay_seconds = 0.0
        self.slept_seconds = 0
        self.sent: list[tuple[int, int, FrameType, memoryview]] = []
        self.clocks = {node: self._clocks(node) for node in self.wrong_ms}

    @property
    def true_ms(self) -> float:
        return START_MS + self.loop.seconds * 1000

    def _clocks(self, node: int) -> PeerClocks:
        cluster = self

        class Transport:
            def send(self, target, channel, frame_type, body):
                cluster.sent.append((node, target, frame_type, memoryview(b"".join(map(bytes, body)))))
                return True

            def flush(self) -> None: ...

        class Wall:
            def now_ms(self) -> int:
                return int(cluster.true_ms + cluster.wrong_ms[node])

            def boottime_ns(self) -> int:
                return int((cluster.loop.seconds + cluster.slept_seconds) * 1_000_000_000)

        others = tuple(NodeId(other) for other in self.wrong_ms if other != node)
        return PeerClocks(self.loop, Wall(), Transport(), TIMES, lambda: () if node in cluster.ignorant else others)

    def deliver(self) -> None:
        while self.sent:
            sent, self.sent = self.sent, []
            self.loop.seconds += self.delay_seconds
            for source, target, kind, body in sent:
                if not {source, target} & self.down:
                    clocks = self.clocks[target]
                    (clocks.on_question if kind is FrameType.CLOCK_QUESTION else clocks.on_answer)(source, body)

    def check(self) -> None:
        """Send a round of questions, and deliver the answers."""
        for node, clocks in self.clocks.items():
            if node not in self.down:
                clocks.ask_all()
        self.deliver()
        self.loop.seconds += TIMES.clock_check_seconds

    def agreements(self) -> list[Agreement]:
        return [clocks.look().agreement for node, clocks in self.clocks.items() if node not in self.down]

    def takes_records(self, node: int) -> bool:
        return self.clocks[node].is_comparable

    def error_ms(self, node: int) -> float:
        """Return the error of the node's stamps."""
        return self.clocks[node].now_ms() - self.true_ms


A, D, X, U = Agreement.AGREES, Agreement.DIFFERS, Agreement.DISPUTED, Agreement.UNHEARD


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ([0], [A]),
        ([200 * HOUR_MS], [A]),
        ([0, 3_000], [A, A]),
        ([0, 200 * HOUR_MS], [X, X]),
        ([0, 0, 200 * HOUR_MS], [A, A, D]),
        ([0, 4_000, -25 * HOUR_MS], [A, A, D]),
        ([200 * HOUR_MS, 0, -25 * HOUR_MS], [X, X, X]),
        ([0, 0, 0, HOUR_MS], [A, A, A, D]),
        ([0, 0, HOUR_MS, HOUR_MS], [X, X, X, X]),
        ([0, 0, 0, HOUR_MS, -HOUR_MS], [A, A, A, D, D]),
    ],
)
def test_the_majority_of_all_nodes_is_trusted(wrong, expected):
    cluster = Cluster(*wrong)
    cluster.check()
    assert cluster.agreements() == expected
    assert [clocks.is_trusted for clocks in cluster.clocks.values()] == [one is A for one in expected]
    for node, agreement in zip(cluster.clocks, expected, strict=True):
        if agreement is D:
            assert abs(cluster.error_ms(node)) <= 5_000, "it stamps with the majority's time"
            assert cluster.clocks[node].look().offset_ms == pytest.approx(cluster.wrong_ms[node], abs=5_000)


def test_an_agreement_is_reused_until_the_clock_leaps_or_an_answer_disagrees(monkeypatch):
    """Housekeeping asks for each replica."""
    cluster = Cluster(0, 0, 0)
    cluster.check()
    clocks = cluster.clocks[1]
    looks = []
    look = clocks.look

    def counted():
        looks.append(1)
        return look()

    def trusted():
        looks.clear()
        return clocks.is_trusted

    monkeypatch.setattr(clocks, "look", counted)
    assert trusted()
    assert trusted()
    assert looks == []
    cluster.wrong_ms[1] += HOUR_MS
    assert not trusted(), "its clock leapt"
    assert looks != []


@pytest.mark.parametrize(
    ("wrong", "down", "median"),
    [
        ([5_000], 0, 5_000),
        ([0, HOUR_MS], 0, 0),
        ([0, HOUR_MS], 1, None),
        ([0, HOUR_MS, 72 * HOUR_MS], 0, HOUR_MS),
        ([0, HOUR_MS, 72 * HOUR_MS], 1, 0),
        ([0, HOUR_MS, 72 * HOUR_MS], 2, None),
        ([HOUR_MS, 0, 2, 1], 0, 1),
        ([HOUR_MS, 0, 2, 1], 1, 2),
        ([HOUR_MS, 0, 2, 1], 2, None),
    ],
)
def test_the_median_is_that_of_more_than_half_of_all_nodes(wrong, down, median):
    """Also of clocks that do not agree. `down` nodes at the end are silent."""
    cluster = Cluster(*wrong)
    cluster.down = set(range(len(wrong) - down + 1, len(wrong) + 1))
    cluster.check()
    clocks = cluster.clocks[1]
    found = clocks.median_ms()
    expected = None if median is None else cluster.true_ms + median
    is_disputed = down > 0 and median is not None and not clocks.is_agreed
    assert found == (None if is_disputed else expected), "a node that is silent may still show which clock is right"
    for _ in range(10):
        cluster.check()
    assert cluster.clocks[1].median_ms() == (None if median is None else cluster.true_ms + median)


def test_nodes_that_are_down_count_as_silent():
    cluster = Cluster(0, 0, 0)
    cluster.down = {2, 3}
    cluster.check()
    assert cluster.agreements() == [U]
    cluster.down = {3}
    cluster.check()
    assert cluster.agreements() == [A, A]
    cluster.down = {2, 3}
    for _ in range(7):
        cluster.check()
    assert cluster.agreements() == [U], "an old answer says nothing of the present"
    assert abs(cluster.error_ms(1)) <= 1


def test_without_a_majority_no_stamp_is_earlier_than_the_latest_clock():
    """Records that are stamped too early would be deleted too early once the clock is right."""
    cluster = Cluster(0, -200 * HOUR_MS)
    cluster.check()
    assert cluster.agreements() == [X, X]
    assert abs(cluster.error_ms(2)) <= 1
    assert abs(cluster.error_ms(1)) <= 1


def test_a_clock_that_was_contradicted_is_not_followed_when_the_other_one_falls_silent():
    """Old answers were forgotten, and records were stamped by the wrong clock of a broker that had just started (seed 1000945)."""
    cluster = Cluster(-25 * HOUR_MS, 0, 0)
    cluster.down = {3}
    cluster.check()
    assert cluster.agreements() == [X, X]
    cluster.down = {2, 3}
    for _ in range(7):
        cluster.check()
    assert cluster.agreements() == [U]
    assert cluster.takes_records(1), "the others may be down for long"
    assert abs(cluster.error_ms(1)) <= 1


def test_one_machine_whose_clock_is_wrong_is_no_majority_when_it_gets_another_disk():
    """Its clock was counted as that of the broker that it was, and of the broker that it is (seed 1061495)."""
    wrong_ms = -200 * HOUR_MS
    cluster = Cluster(0, wrong_ms, 0)
    cluster.check()
    cluster.down, cluster.wrong_ms[3] = {2}, wrong_ms
    cluster.clocks[1].on_process_started()
    assert cluster.clocks[1].look().agreement is A, "what was known before still counts"
    for _ in range(7):
        cluster.deliver()
        assert cluster.clocks[1].look().agreement in (A, X)
        assert abs(cluster.error_ms(1)) <= 1
        cluster.check()
    assert cluster.clocks[1].look().agreement is X, "broker 2 has been silent for too long to count"
    cluster.down, cluster.wrong_ms[2] = set(), 0
    cluster.clocks[1].on_process_started()
    cluster.deliver()
    assert cluster.clocks[1].look().agreement is A, "all answered again at once"


def test_a_clock_that_was_contradicted_stamps_nothing_until_every_node_had_time_to_answer(monkeypatch):
    monkeypatch.setattr(clocks_module, "_CHECKS_KEPT", 1)
    cluster = Cluster(-25 * HOUR_MS, 0, 0)
    cluster.down = {3}
    cluster.check()
    cluster.down = {2, 3}
    cluster.check()
    assert cluster.agreements() == [U]
    assert not cluster.takes_records(1), "the third may decide which clock is wrong"
    cluster.down = {2}
    cluster.check()
    assert cluster.agreements() == [X, X]
    assert cluster.takes_records(1), "every node has answered"
    assert abs(cluster.error_ms(1)) <= 1


def test_the_time_of_a_node_without_known_peers_is_not_a_majoritys():
    """Readiness is requested before a broker has read the list of its peers. Its clock went wrong while it was down."""
    cluster = Cluster(-25 * HOUR_MS, 0, 0)
    cluster.ignorant = {1}
    assert cluster.clocks[1].look().agreement is A
    cluster.ignorant = set()
    cluster.down = {3}
    cluster.check()
    assert cluster.agreements() == [X, X]
    assert not cluster.takes_records(1)
    for _ in range(6):
        cluster.check()
    assert cluster.takes_records(1), "the third stays silent"
    assert abs(cluster.error_ms(1)) <= 1, "not by its own clock, which no other node has confirmed"


def test_a_clock_that_turns_wrong_is_not_followed_while_another_contradicts_it():
    cluster = Cluster(0, 0)
    cluster.check()
    cluster.wrong_ms[1] = 200 * HOUR_MS
    cluster.clocks[1].look()
    cluster.deliver()
    assert cluster.agreements()[0] is X
    cluster.check()
    assert cluster.agreements() == [X, X]
    assert abs(cluster.error_ms(1)) <= 1
    assert abs(cluster.error_ms(2)) <= 1
    cluster.wrong_ms[1] = 0
    cluster.clocks[1].look()
    cluster.check()
    assert cluster.agreements() == [A, A]


def test_a_cluster_that_slept_trusts_its_clocks_again_after_one_round():
    """The loops' clocks pause for a day, the wall clocks do not."""
    cluster = Cluster(0, 0, 0)
    cluster.check()
    for node in cluster.wrong_ms:
        cluster.wrong_ms[node] = 25 * HOUR_MS
    for clocks in cluster.clocks.values():
        assert not clocks.is_trusted, "earlier answers are void"
        assert not clocks.is_comparable
    cluster.deliver()
    assert cluster.agreements() == [A, A, A]
    assert cluster.error_ms(1) == pytest.approx(25 * HOUR_MS, abs=1)


def test_an_answer_from_before_a_sleep_is_ignored():
    cluster = Cluster(0, 0, 0, 0)
    cluster.check()
    cluster.clocks[1].ask(NodeId(2))
    ((_, _, _, question),) = cluster.sent
    cluster.sent.clear()
    cluster.clocks[2].on_question(NodeId(1), question)  # its answer is under way when all nodes fall asleep
    for node in cluster.wrong_ms:
        cluster.wrong_ms[node] += 25 * HOUR_MS
    ((_, _, _, answer),) = cluster.sent
    cluster.sent.clear()
    cluster.clocks[1].on_answer(NodeId(2), answer)
    assert not cluster.clocks[1].is_comparable, "no answer has arrived since the leap"
    assert [kind for _, _, kind, _ in cluster.sent] == [FrameType.CLOCK_QUESTION] * 3, "every node is asked again"
    cluster.deliver()
    assert cluster.error_ms(1) == pytest.approx(25 * HOUR_MS, abs=1)


def test_an_agreement_ends_with_a_leap_that_an_answer_shows_first():
    """For up to 50 ms the clock counted as agreed after the leap. Records with such a stamp were deleted too early (seed 981079)."""
    cluster = Cluster(0, 0, 0)
    cluster.check()
    clocks = cluster.clocks[1]
    assert clocks.look().agreement is A
    cluster.wrong_ms[1] = -960 * HOUR_MS
    clocks.on_answer(NodeId(2), memoryview(b"".join(map(bytes, encode_clock(1, START_MS)))))
    assert not clocks.is_trusted, "nothing expires by it"
    assert not cluster.takes_records(1)
    assert cluster.error_ms(1) == pytest.approx(0, abs=1)


def test_a_sleep_in_which_the_own_clock_stood_still_ends_the_agreement():
    """Answers from before it, relative to a loop that stood still too, made the stopped clock look right (7134 with clock faults)."""
    cluster = Cluster(0, 0, 0)
    cluster.check()
    clocks = cluster.clocks[1]
    assert clocks.look().agreement is A
    cluster.slept_seconds = 25 * 3_600
    cluster.wrong_ms[2] = cluster.wrong_ms[3] = 25 * HOUR_MS
    assert not clocks.is_trusted
    assert not cluster.takes_records(1)
    assert clocks.median_ms() is None
    cluster.deliver()
    assert clocks.look().agreement is D
    assert cluster.error_ms(1) == pytest.approx(25 * HOUR_MS, abs=1)


def test_after_a_sleep_a_stopped_clock_is_not_trusted_before_the_others_answered():
    """Node 2 wakes with the time at which it fell asleep, which was also the last trusted time, and it answers first."""
    cluster = Cluster(0, 0, 0)
    cluster.check()
    cluster.wrong_ms[1] = cluster.wrong_ms[3] = 25 * HOUR_MS
    cluster.down = {3}
    assert not cluster.takes_records(1)
    cluster.deliver()
    assert cluster.agreements()[0] is X
    assert not cluster.takes_records(1), "the third may decide which of them is wrong"
    cluster.down = set()
    cluster.check()
    assert cluster.agreements() == [A, D, A]
    assert cluster.error_ms(1) == pytest.approx(25 * HOUR_MS, abs=1)
    assert cluster.takes_records(1)


@pytest.mark.parametrize("stopped", [1, 2])
def test_the_last_trusted_time_runs_on_during_a_sleep(stopped):
    """It stood still with the loop. So one clock that stood still, too, seemed to confirm it, and records were stamped a day too early."""
    cluster = Cluster(0, 0, 0)
    cluster.check()
    cluster.slept_seconds = 25 * 3_600
    for node in cluster.wrong_ms:
        cluster.wrong_ms[node] = 0 if node == stopped else 25 * HOUR_MS
    cluster.down = {3}
    for _ in range(7):
        cluster.check()
    assert cluster.agreements() == [X, X]
    assert cluster.takes_records(1), "the third stays silent"
    assert cluster.error_ms(1) == pytest.approx(25 * HOUR_MS, abs=1)


def test_two_wrong_clocks_of_five_do_not_confirm_each_other():
    cluster = Cluster(-25 * HOUR_MS, -25 * HOUR_MS, 0, 0, 0)
    cluster.down = {3, 4, 5}
    cluster.check()
    assert not cluster.takes_records(1), "the three others may show that both are wrong"
    cluster.down = {4, 5}
    cluster.check()
    for _ in range(6):
        cluster.check()
    assert cluster.takes_records(1)
    assert abs(cluster.error_ms(1)) <= 1


@pytest.mark.parametrize(
    "wrong", [(-25 * HOUR_MS, -25 * HOUR_MS, 0, 0, 0), (365 * 24 * HOUR_MS, 0, 0)], ids=["half of five", "all of three"]
)
def test_a_machine_that_gets_another_disk_is_not_two_nodes_that_have_answered(wrong):
    """It made up half of the clocks, or all, so a broker that had just started stamped records by its own clock, which was wrong."""
    cluster = Cluster(*wrong)
    cluster.down = {3, 4, 5}
    cluster.check()
    assert not cluster.takes_records(1)
    cluster.down, cluster.wrong_ms[3] = {2, 4, 5}, wrong[1]
    cluster.clocks[1].on_process_started()
    cluster.deliver()
    assert not cluster.takes_records(1), "the machine of broker 3 may show that the clocks are wrong"
    cluster.loop.seconds += 1
    cluster.down, cluster.wrong_ms[3] = set(), wrong[2]
    cluster.clocks[1].on_process_started()
    cluster.deliver()
    assert cluster.takes_records(1), "every machine has answered"
    assert abs(cluster.error_ms(1)) <= 1


def test_before_the_clocks_are_compared_commands_are_stamped_with_the_earliest():
    """Append times never go back: after one command of this clock, nothing in the partition would be old enough for a year."""
    cluster = Cluster(365 * 24 * HOUR_MS, 0, 0)
    assert cluster.clocks[1].now_ms() == cluster.true_ms + cluster.wrong_ms[1], "no other clock is known"
    cluster.down = {3}
    cluster.check()
    assert not cluster.takes_records(1)
    assert abs(cluster.error_ms(1)) <= 1
    cluster.down = set()
    cluster.check()
    assert cluster.agreements() == [D, A, A]
    assert abs(cluster.error_ms(1)) <= 1


def test_a_median_without_a_majority_is_not_later_than_the_right_clock():
    """Two of five clocks are wrong, and two right ones are silent. Messages of queues would come a day too early."""
    cluster = Cluster(25 * HOUR_MS, 25 * HOUR_MS, 0, 0, 0)
    cluster.down = {4, 5}
    for _ in range(7):
        cluster.check()
    assert cluster.agreements() == [X, X, X]
    assert [clocks.median_ms() for node, clocks in cluster.clocks.items() if node <= 3] == [int(cluster.true_ms)] * 3
    cluster.down = set()
    cluster.check()
    assert [clocks.median_ms() for clocks in cluster.clocks.values()] == [int(cluster.true_ms)] * 5


def test_records_are_accepted_only_after_the_clock_was_compared_or_no_peer_answers():
    cluster, lonely = Cluster(0, 0, 0), Cluster(0, 0, 0)
    lonely.down = {2, 3}
    found = []
    for one in (cluster, lonely):
        found.append(one.clocks[1].is_comparable)
        one.check()
        found.append(one.clocks[1].is_comparable)
    assert found == [False, True, False, False]
    lonely.loop.seconds += TIMES.clock_wait_seconds
    assert lonely.clocks[1].is_comparable
    assert Cluster(0).clocks[1].is_comparable, "a node that is alone has no peer to ask"


def test_late_and_unsolicited_answers_are_ignored():
    cluster = Cluster(0, 0)
    cluster.delay_seconds = TIMES.clock_difference_seconds / 4 + 0.1
    cluster.check()
    assert cluster.agreements() == [U, U]
    cluster.delay_seconds = 0.5
    cluster.clocks[1].on_answer(2, memoryview(b"".join(map(bytes, encode_clock(77, START_MS)))))
    assert cluster.agreements() == [U, U]
    cluster.check()
    assert cluster.agreements() == [A, A]
    assert abs(cluster.clocks[1].look().offset_ms) <= 500


@pytest.mark.parametrize("size", [0, 7, 9, 15, 17])
def test_frames_of_another_length_are_refused(size):
    clocks = Cluster(0, 0).clocks[1]
    with pytest.raises(FrameError):
        clocks.on_question(2, memoryview(bytes(size)))
    with pytest.raises(FrameError):
        clocks.on_answer(2, memoryview(bytes(size)))
    with pytest.raises(FrameError):
        clocks.on_answer(2, memoryview(bytes(8) + b"\xff" * 8))
    assert b"".join(map(bytes, encode_clock(1, -5))) == b"\x01" + bytes(15)
    assert len(b"".join(map(bytes, encode_clock_question(3)))) == 8


@given(wrong=st.lists(st.sampled_from([0, 2_000, -3_000, HOUR_MS, -HOUR_MS, 900 * HOUR_MS]), min_size=1, max_size=7))
def test_a_trusted_clock_is_right_if_most_are_and_never_alone(wrong):
    cluster = Cluster(*wrong)
    cluster.check()
    right = sum(abs(one) <= 3_000 for one in wrong)
    for node, clocks in cluster.clocks.items():
        alike = sum(abs(one - wrong[node - 1]) <= 2 * TIMES.clock_difference_seconds * 1000 for one in wrong)
        if clocks.is_trusted:
            assert 2 * alike > len(wrong)
        if 2 * right > len(wrong):
            assert abs(cluster.error_ms(node)) <= 5_000 + 1
            assert clocks.is_trusted == (abs(wrong[node - 1]) <= 3_000)


# ------------------------------------------------------------------------------------------------------------ engines


class SetClock:
    """A wall clock of one node, which the test may set."""

    def __init__(self, loop_clock) -> None:
        self._loop_clock = loop_clock
        self.wrong_ms = 0

    def now_ms(self) -> int:
        return START_MS + int(self._loop_clock() * 1000) + self.wrong_ms

    def boottime_ns(self) -> int:
        return int(self._loop_clock() * 1_000_000_000)


QUICK = replace(TIMING, clock_check_seconds=0.05, clock_difference_seconds=1.0)


class ClockCluster(EngineCluster):
    """Engines with a wall clock each."""

    def __init__(self, size=3, limits=None):
        super().__init__(size, limits, clock=self, timing=QUICK)
        self.walls: dict[int, SetClock] = {}

    async def __aenter__(self):
        await super().__aenter__()
        for node_id, node in self.nodes.items():
            self.walls[node_id] = node.engine.clocks._clock = SetClock(self.loop.time)
        return self

    def now_ms(self) -> int:
        return START_MS

    def boottime_ns(self) -> int:
        return int(self.loop.time() * 1_000_000_000)

    async def until(self, node_id, agreement):
        await until(lambda: self.nodes[node_id].engine.clocks.look().agreement is agreement)


async def propose(leader, number):
    """Propose, and repeat the proposal after a retriable error, as a client does."""
    async with asyncio.timeout(5):
        while True:
            try:
                return leader.propose([data(number)])
            except RequestError as error:
                if error.code != pb.NOT_READY:
                    raise
                await asyncio.sleep(0.01)


async def test_a_leader_with_a_wrong_clock_stamps_with_the_majoritys_time() -> None:
    async with ClockCluster() as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        wall = cluster.walls[leader.replica_id]
        for wrong_ms in (0, 200 * HOUR_MS, -200 * HOUR_MS, 0):
            wall.wrong_ms = wrong_ms
            await cluster.until(leader.replica_id, D if wrong_ms else A)
            appended, _ = await propose(leader, 0)
            assert abs(appended.entries[0].append_time_ms - (wall.now_ms() - wrong_ms)) < 2_000


async def test_no_records_are_accepted_after_a_leap_until_the_clock_was_compared() -> None:
    async with ClockCluster() as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        await propose(leader, 0)
        cluster.walls[leader.replica_id].wrong_ms = 25 * HOUR_MS
        with pytest.raises(RequestError) as raised:
            leader.propose([data(1)])
        assert (raised.value.code, raised.value.detail.retriable) == (pb.NOT_READY, True)
        assert raised.value.detail.outcome == pb.NOT_APPLIED
        refusal = leader.refusal_of_time()
        assert refusal is not None, "nor commands whose time counts"
        assert refusal.code == pb.NOT_READY
        await propose(leader, 1)
        assert leader.refusal_of_time() is None


async def test_leaderships_move_from_a_wrong_clock_to_agreeing_nodes_a_few_at_a_time() -> None:
    async with ClockCluster(limits=Limits(clock_transfers_max=2)) as cluster:
        replicas = range(1, 8)
        for group_id in replicas:
            cluster.create_group(group_id)
            leader = await cluster.leader(group_id)
            if leader.replica_id != 1:
                leader.core.transfer_leader(1)
                cluster.nodes[leader.replica_id].engine.mark_dirty(leader)
        engine = cluster.nodes[1].engine
        await until(lambda: all(engine.replicas[group_id].is_leader for group_id in replicas))
        watch = ClockWatch(engine, lambda node_id: True)
        watch.look()
        assert watch.not_ready() is None
        assert led(engine) == len(replicas)
        cluster.walls[1].wrong_ms = 200 * HOUR_MS
        await cluster.until(1, D)
        reason = watch.not_ready()
        assert reason is not None
        assert reason.reason is Reason.CLOCK_DIFFERS
        assert "720,000 s ahead" in reason.message
        assert watch.offset_seconds == pytest.approx(720_000, abs=2)
        for left in range(len(replicas) - 2, -2, -2):
            watch.look()
            await until(partial(leads_at_most, engine, left))
            assert led(engine) >= left
        for group_id in replicas:
            assert (await cluster.leader(group_id, among=[2, 3])).replica_id != 1


def led(engine) -> int:
    return sum(replica.core.role is Role.LEADER for replica in engine.replicas.values())


def leads_at_most(engine, count: int) -> bool:
    return led(engine) <= max(0, count)


async def test_leaderships_stay_if_no_agreeing_node_can_take_them() -> None:
    async with ClockCluster() as cluster:
        cluster.create_group(1, (1,))
        cluster.create_group(2, (1, 2))
        await cluster.leader(1)
        leader = await cluster.leader(2)
        if leader.replica_id != 1:
            leader.core.transfer_leader(1)
            cluster.nodes[2].engine.mark_dirty(leader)
        engine = cluster.nodes[1].engine
        await until(lambda: engine.replicas[2].is_leader)
        cluster.walls[1].wrong_ms = cluster.walls[2].wrong_ms = 200 * HOUR_MS
        cluster.walls[2].wrong_ms += HOUR_MS
        watch = ClockWatch(engine, lambda node_id: True)
        await cluster.until(1, X)
        watch.look()
        assert "no majority" in watch.not_ready().message
        cluster.walls[2].wrong_ms = 0
        await cluster.until(1, D)
        disconnected = ClockWatch(engine, lambda node_id: False)
        disconnected.look()
        assert led(engine) == 2, "no peer is reachable"
        watch.look()
        await until(lambda: not engine.replicas[2].is_leader)
        assert engine.replicas[1].is_leader, "it is the only voter"


async def test_a_clock_that_differs_is_logged_once_and_again_after_it_agreed() -> None:
    found = [D, D, U, D, A, D, D]
    clocks = SimpleNamespace(look=lambda: ClockStanding(found.pop(0), 11_000.0, frozenset()))
    engine = SimpleNamespace(clocks=clocks, replicas={}, limits=Limits())
    watch = ClockWatch(engine, lambda node_id: True)
    with structlog.testing.capture_logs() as logs:
        while found:
            watch.look()
    assert [one["event"] for one in logs] == ["clock_differs", "clock_agrees", "clock_differs"]
