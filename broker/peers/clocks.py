"""Compare this node's wall clock with the clocks of the other nodes.

Every few seconds a node asks each peer for its time. The answer carries the number of the question, so the round trip is known,
and the error is at most half of it. The node stores the offset between the peer's wall clock and its own monotonic clock. So a leap
of its own clock shows immediately, and a leap of the peer's with its next answer.

A majority is more than half of all nodes, with clocks within `Timing.clock_difference_seconds` of the median. A node whose clock is
in the majority trusts it. Any other node stamps entries with the majority's time and leaves it to others to expire records. Without
a majority no clock is trusted, and nothing expires. A node that is alone in its cluster trusts its own clock.

This module must not decide what is deleted or who leads. Source: NTP (RFC 5905: offset and round trip, falsetickers).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple

from raftmq.broker.base.clock import Clock
from raftmq.broker.base.limits import Timing
from raftmq.broker.peers.codec import (
    FrameType,
    decode_clock,
    decode_clock_question,
    encode_clock,
    encode_clock_question,
)
from raftmq.broker.peers.protocol import Channel, Transport
from raftmq.types import NodeId

_CHECKS_KEPT: Final = 5
"""Checks without an answer after which a peer's clock counts as unknown."""
_AGREED_SECONDS: Final = 0.05
"""Time for which the last agreement is reused without a new comparison, unless the clock leaps. It is far shorter than the
interval of the checks."""


class Agreement(Enum):
    """The result of comparing this node's wall clock with the others."""

    AGREES = "agrees"
    """The clock is in the majority, so it may be used for everything."""
    DIFFERS = "differs"
    """There is a majority, and this clock is not in it."""
    DISPUTED = "disputed"
    """The clock differs from another one, and no majority shows which is wrong."""
    UNHEARD = "unheard"
    """Too few other nodes have answered."""


class ClockStanding(NamedTuple):
    """The result of comparing all clocks."""

    agreement: Agreement
    offset_ms: float
    """This clock minus the majority's. Without a majority, minus the clock that differs most."""
    majority: frozenset[NodeId]
    """Other nodes whose clocks are in the majority."""


class _Heard(NamedTuple):
    """A peer's answer."""

    ahead_ms: float
    """Its wall clock minus this node's loop time."""
    asked_at: float
    """Loop time of the question."""


class PeerClocks:
    """The clocks of all nodes as one node sees them."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        transport: Transport,
        timing: Timing,
        peers: Callable[[], Sequence[NodeId]],
    ) -> None:
        """Take `peers`, which returns every other node of the cluster, including nodes that are down."""
        self._loop = loop
        self._clock = clock
        self._transport = transport
        self._timing = timing
        self._peers = peers
        self._bound_ms = timing.clock_difference_seconds * 1000
        self._heard: dict[NodeId, _Heard] = {}
        """The last answer of each node."""
        self._counted: dict[NodeId, _Heard] = {}
        """The answers that a majority is sought among: those of one time (see `on_process_started`)."""
        self._process_started_at = -math.inf
        """Loop time at which the last process of another node greeted this one for the first time."""
        self._asked: dict[NodeId, tuple[int, float]] = {}
        """The last question to each node: its number and the loop time at which it was sent."""
        self._questions = 0
        self._held_ms: float | None = None
        """Offset of the last time that could be trusted to the time since the machine's start, which runs on during a suspension. None if
        there was none since the start."""
        self._ahead_ms: tuple[float, float] | None = None
        """Offsets to loop time of this node's clock and of the time since the machine's start, at the last comparison."""
        self._agreed_until = 0.0
        """Loop time until which the last agreement is reused."""
        self._began_at = loop.time()
        """Loop time of the start, or of the last leap of the clock, which invalidates all answers."""

    # ------------------------------------------------------------------------------------------------ asking

    def on_process_started(self) -> None:
        """Ask every node again, as another node was started, perhaps on the machine of a third one.

        The new process's answers count once every node whose answer counts now has answered again, or is silent for as long as answers
        are kept. Scenario, if they counted immediately:
        1. The clock of broker 2's machine is 200 h behind. Broker 1 hears it.
        2. The machine loses power, gets the data directory of broker 3, and is started.
        3. Broker 1 hears the same clock as that of broker 3. It would count twice, and be the majority.
        """
        self._process_started_at = self._loop.time()
        self.ask_all()

    def ask_all(self) -> None:
        """Ask every other node."""
        for node_id in self._peers():
            self.ask(node_id)

    def ask(self, node_id: NodeId) -> None:
        """Ask a node for its time."""
        self._questions += 1
        self._asked[node_id] = (self._questions, self._loop.time())
        self._transport.send(node_id, Channel.CONTROL, FrameType.CLOCK_QUESTION, encode_clock_question(self._questions))
        self._transport.flush()

    def on_question(self, node_id: NodeId, body: memoryview) -> None:
        """Answer a node with this node's clock, right or wrong."""
        answer = encode_clock(decode_clock_question(body), self._clock.now_ms())
        self._transport.send(node_id, Channel.CONTROL, FrameType.CLOCK, answer)
        self._transport.flush()

    def on_answer(self, node_id: NodeId, body: memoryview) -> None:
        """Process a node's answer. Late and unsolicited answers are ignored."""
        number, wall_ms = decode_clock(body)
        self._look_for_leap()  # it forgets the questions from before the machine slept
        asked_number, asked_at = self._asked.get(node_id, (0, 0.0))
        now = self._loop.time()
        if number != asked_number or now - asked_at > self._timing.clock_difference_seconds / 2:
            return
        del self._asked[node_id]
        self._heard[node_id] = _Heard(wall_ms - (asked_at + now) / 2 * 1000, asked_at)
        self.look()

    # ------------------------------------------------------------------------------------------------ comparing

    def look(self) -> ClockStanding:
        """Compare all clocks now."""
        self._look_for_leap()
        now = self._loop.time()
        own_ms, heard = float(self._clock.now_ms()), self._fresh(now)
        clocks = sorted([own_ms, *heard.values()])
        middle_ms, bound_ms = clocks[(len(clocks) - 1) // 2], self._bound_ms
        # each answer of each peer comes here, so `_is_near` is not called for each clock
        near_count = len([True for clock_ms in clocks if abs(clock_ms - middle_ms) <= bound_ms])
        if 2 * near_count > len(self._peers()) + 1:
            agrees = self._is_near(own_ms, middle_ms)
            self._agreed_until = now + _AGREED_SECONDS if agrees else 0.0
            if self._peers():  # a node without peers agrees only with itself, and may not know its peers yet
                self._held_ms = (own_ms if agrees else middle_ms) - self._boottime_ms()
            majority = frozenset(
                [node_id for node_id, clock_ms in heard.items() if abs(clock_ms - middle_ms) <= bound_ms]
            )
            return ClockStanding(Agreement.AGREES if agrees else Agreement.DIFFERS, own_ms - middle_ms, majority)
        self._agreed_until = 0.0
        offset_ms = max((own_ms - clock_ms for clock_ms in heard.values()), key=abs, default=0.0)
        agreement = Agreement.DISPUTED if abs(offset_ms) > self._bound_ms else Agreement.UNHEARD
        return ClockStanding(agreement, offset_ms, frozenset())

    def boottime_ns(self) -> int:
        """Return the nanoseconds since the machine was started, suspension included."""
        return self._clock.boottime_ns()

    def median_ms(self) -> int | None:
        """Return the median of the wall clocks of more than half of all nodes, or None if too few have answered.

        The clocks need not agree: half of them are not later than the result. Of two in the middle it is the earlier one, because a
        time that is too early only delays. Without a majority it is an earlier clock than the median, if that may be wrong: less than
        half of all nodes may have wrong clocks, and the right ones may be silent. While clocks differ and another node may still show
        which is right, the result is None (see `is_comparable`).
        """
        if not self.is_comparable:
            return None
        clocks = sorted([float(self._clock.now_ms()), *self._fresh(self._loop.time()).values()])
        peer_count = len(self._peers())
        if 2 * len(clocks) <= peer_count + 1:
            return None
        last = len(clocks) - 1
        wrong_max = peer_count // 2
        return int(clocks[last // 2 if self.is_agreed else min(last // 2, last - wrong_max)])

    @property
    def is_agreed(self) -> bool:
        """Return whether the clocks of a majority agree, this node's or not. Every queue asks, so the last agreement is reused."""
        return self._agreed_ms() is not None or self.look().agreement in (Agreement.AGREES, Agreement.DIFFERS)

    @property
    def is_trusted(self) -> bool:
        """Return whether records may be expired by this node's clock. Every replica asks, so the last agreement is reused."""
        return self._agreed_ms() is not None or self.look().agreement is Agreement.AGREES

    @property
    def is_comparable(self) -> bool:
        """Return whether entries may be stamped.

        This is the case after one of these since the start, or since this clock's last leap: a majority was found, half of all
        clocks are known and none differs, or every node answered. Answers from before the last start of a node only contradict.
        After `Timing.clock_wait_seconds` it is always True, because peers may be down.
        """
        if self._agreed_ms() is not None or self.look().agreement in (Agreement.AGREES, Agreement.DIFFERS):
            return True
        now, own_ms = self._loop.time(), self._clock.now_ms()
        answers = self._answers(now).values()
        # an earlier answer may be of a machine that answers as another node now (see `on_process_started`)
        known_count = len(self._present(self._heard, now, self._process_started_at))
        peer_count = len(self._peers())
        has_heard_all = known_count == peer_count
        # of five clocks two may be wrong, by the same time
        has_heard_half = known_count > 0 and 2 * (known_count + 1) >= peer_count + 1
        is_confirmed = has_heard_half and all(self._is_near(own_ms, clock_ms) for clock_ms in answers)
        return has_heard_all or is_confirmed or now - self._began_at > self._timing.clock_wait_seconds

    def now_ms(self) -> int:
        """Return the time to stamp entries with: this clock's, unless others are more trustworthy."""
        if (agreed_ms := self._agreed_ms()) is not None:
            return agreed_ms
        standing = self.look()
        own_ms = self._clock.now_ms()
        if standing.agreement is Agreement.AGREES:
            return own_ms
        if standing.agreement is Agreement.DIFFERS:
            return int(own_ms - standing.offset_ms)
        now = self._loop.time()
        held_ms = own_ms if self._held_ms is None else self._held_ms + self._boottime_ms()
        if self._held_ms is not None and self._is_near(own_ms, held_ms):
            return own_ms
        heard = self._fresh(now).values()
        is_confirmed = self._held_ms is not None and any(self._is_near(clock_ms, held_ms) for clock_ms in heard)
        if is_confirmed:
            return int(held_ms)
        answers = self._answers(now).values()
        if not self.is_comparable:
            # Only commands whose time does not count are stamped now. Append times never go back: after a stamp that is a year too late,
            # everything that follows would be stamped too late for a year.
            return int(min((own_ms, *answers)) if self._held_ms is None else held_ms)
        # A stamp that is too late keeps records for too long, but one that is too early would delete them too early. So old answers count, too:
        # a clock that was contradicted does not become right when the other node falls silent.
        return int(max(own_ms, held_ms, *answers))

    def _agreed_ms(self) -> int | None:
        """Return this clock's time if it agreed a moment ago and has not leapt since, else None. The fast path of `now_ms`."""
        now, own_ms, before_ms = self._loop.time(), self._clock.now_ms(), self._ahead_ms
        has_leapt = before_ms is None or self._is_leap(before_ms, self._ahead_of_loop_ms(now, own_ms))
        return None if now >= self._agreed_until or has_leapt else own_ms

    def _fresh(self, now: float) -> dict[NodeId, float]:
        """Return the other nodes' present wall clock times, computed from their recent answers of one time."""
        since = now - _CHECKS_KEPT * self._timing.clock_check_seconds
        newest_since = max(since, self._process_started_at)
        newest = {node_id: heard for node_id, heard in self._heard.items() if heard.asked_at >= newest_since}
        if all(node_id in newest or heard.asked_at < since for node_id, heard in self._counted.items()):
            self._counted = newest
        return self._present(self._counted, now, since)

    def _answers(self, now: float) -> dict[NodeId, float]:
        """Return the other nodes' present wall clock times, computed from their last answers since the last leap."""
        return self._present(self._heard, now)

    def _present(self, answers: dict[NodeId, _Heard], now: float, since: float = -math.inf) -> dict[NodeId, float]:
        """Return the nodes' present wall clock times, computed from answers to questions since a loop time."""
        peers = set(self._peers())
        return {
            node_id: heard.ahead_ms + now * 1000
            for node_id, heard in answers.items()
            if node_id in peers and heard.asked_at >= since
        }

    def _is_near(self, one_ms: float, other_ms: float) -> bool:
        return abs(one_ms - other_ms) <= self._bound_ms

    def _ahead_of_loop_ms(self, now: float, own_ms: float) -> tuple[float, float]:
        return own_ms - now * 1000, self._boottime_ms() - now * 1000

    def _boottime_ms(self) -> float:
        return self._clock.boottime_ns() / 1_000_000

    def _is_leap(self, before_ms: tuple[float, float], ahead_ms: tuple[float, float]) -> bool:
        return not (self._is_near(ahead_ms[0], before_ms[0]) and self._is_near(ahead_ms[1], before_ms[1]))

    def _look_for_leap(self) -> None:
        """Forget all answers, and ask every node again, if loop time has become another one since the last comparison.

        Either this clock was set, or the machine slept and loop time was paused. This clock may have been paused, too. Answers are kept
        relative to loop time.
        """
        before_ms, self._ahead_ms = self._ahead_ms, self._ahead_of_loop_ms(self._loop.time(), self._clock.now_ms())
        if before_ms is not None and self._is_leap(before_ms, self._ahead_ms):
            self._heard.clear()
            self._counted.clear()
            self._asked.clear()
            self._agreed_until = 0.0
            self._began_at = self._loop.time()
            self.ask_all()
