"""The check of claims agrees with the search for a valid order, and its recorder tells the history as it was."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, cast

import pytest
from raftmq.client.producer.sequenced_append import NamedEpoch, SequencedAppender, StampClaim
from raftmq.errors import NoLeaderError

from sim.history.checker import judge
from sim.history.claims import FENCED
from sim.history.events import Event, HistoryError
from sim.history.linearizability import Call, Linearizable, check_linearizable
from sim.history.recorder import Recorder
from sim.history.recording_appender import RecordingAppender
from sim.history.tables import NEVER, Claim, History

NAME = "n"
State = tuple[int, str] | None
"""The epoch and the stamp of a name. None: nobody has claimed it."""

# ---------------------------------------------------------------------------------------------------------------- a twin


@dataclass(frozen=True)
class Write:
    """An attempt of a claim, which may happen at any time after the claim began."""

    claim: Claim


@dataclass(frozen=True)
class Answer:
    """An answer of a claim, which shows the state."""

    claim: Claim


def applied(state: State, claim: Claim) -> State:
    """Return the state after a claim, as `fsm/metadata_producers.py` defines it."""
    if state is None or claim.epoch > state[0] or (claim.epoch, claim.replaces) == state:
        return claim.epoch, claim.stamp
    return state


def step(state: State, operation: Write | Answer) -> tuple[bool, State]:
    claim = operation.claim
    after = applied(state, claim)
    if isinstance(operation, Write):
        return True, after
    if claim.error == FENCED:
        return state is not None and state[0] > claim.epoch, state
    return after == claim.answer, after


def is_explained_by_some_order(claims: list[Claim]) -> bool:
    """Search for an order of all answers, and of any attempts before them. A client repeats a claim until it is answered."""
    calls: list[Call[Any]] = []
    for claim in claims:
        calls.append(Call(Write(claim), claim.process, claim.invoked_at, NEVER, is_required=False))
        if claim.answer is not None or claim.error == FENCED:
            calls.append(Call(Answer(claim), claim.process, claim.invoked_at, claim.ended_at, is_required=True))
    found = check_linearizable(calls, cast("Any", None), step)
    assert found.answer is not Linearizable.UNDECIDED
    return found.answer is Linearizable.YES


# ---------------------------------------------------------------------------------------------------------------- histories


class Run:
    """A few processes that claim a name, and a register that is sometimes wrong."""

    def __init__(self, random: Random, wrong_share: float) -> None:
        self.random = random
        self.wrong_share = wrong_share
        self.events: list[Event] = []
        self.time = 0
        recorder = Recorder(self.events.append, lambda: self.time)
        self.recorder = recorder
        self.states: list[State] = [None]
        """All states of the register, the last one last."""
        self.seen: dict[str, tuple[int, str]] = {}

    def run(self, count: int) -> list[Event]:
        under_way: dict[str, tuple[Any, Claim, bool]] = {}
        for number in range(count):
            self.time += 1
            process = self.random.choice("abc")
            if process in under_way:
                self._end(process, *under_way.pop(process))
                continue
            claim = self._claim(process, number)
            operation = self.recorder.invoke(
                process, "claim", name=NAME, epoch=claim.epoch, stamp=claim.stamp, replaces=claim.replaces
            )
            under_way[process] = (operation, claim, self.random.random() < 0.3 and self._apply(claim))
        return self.events

    def _claim(self, process: str, number: int) -> Claim:
        """Read, replace the stamp that the process saw last, or begin an epoch."""
        epoch, stamp = self.seen.get(process, (1, None))
        what = self.random.choice(("read", "replace", "replace", "raise"))
        if what == "replace" and stamp is not None:
            return Claim(process, NAME, epoch, f"{number}", stamp, 0)
        if what == "raise" and self.random.random() < 0.4:
            return Claim(process, NAME, epoch + 1, self.random.choice((f"{number}", "")), None, 0)
        return Claim(process, NAME, epoch, "", None, 0)

    def _apply(self, claim: Claim) -> bool:
        self.states.append(applied(self.states[-1], claim))
        return True

    def _end(self, process: str, operation: Any, claim: Claim, is_applied: bool) -> None:
        if self.random.random() < 0.15:
            operation.info(error="RequestTimedOutError")
            return
        if not is_applied:
            self._apply(claim)
        state = self.states[-1]
        if self.random.random() < self.wrong_share:
            asked = {(event.epoch, event.stamp): None for event in self.events if event.kind == "invoke"}
            state = self.random.choice([*self.states[1:], *cast("list[State]", list(asked))])
        assert state is not None
        if state[0] > claim.epoch:
            operation.info(error=FENCED)
            self.seen[process] = (claim.epoch + 1, cast("Any", None))
            return
        self.seen[process] = state
        operation.ok(epoch=state[0], stamp=state[1])


def claims_of(events: list[Event]) -> list[Claim]:
    return History.of(events).claims[NAME]


def test_a_register_without_faults_is_clean() -> None:
    for seed in range(300):
        judge(Run(Random(seed), 0.0).run(60)).demand_clean()


def test_the_check_agrees_with_the_search_for_an_order() -> None:
    """A refusal by a later epoch says less here than it might: not which claim began that epoch. Elsewhere both agree exactly."""
    agreed = {True: 0, False: 0}
    for seed in range(1200):
        random = Random(seed)
        events = Run(random, random.choice((0.1, 0.3, 0.6))).run(random.randrange(4, 20))
        is_clean, is_explained = judge(events).is_clean, is_explained_by_some_order(claims_of(events))
        if any(event.error == FENCED for event in events):
            assert is_clean or not is_explained, seed
        else:
            assert is_clean is is_explained, seed
        agreed[is_clean] += 1
    assert min(agreed.values()) > 200


# ---------------------------------------------------------------------------------------------------------------- contradictions


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        ({"stamp": "1"}, "was claimed before"),
        ({"stamp": "", "replaces": "1"}, "replaces a stamp by none"),
        ({"stamp": "2", "after": 9}, "is not under way"),
        ({"stamp": None}, "stamp is missing"),
    ],
)
def test_claims_that_nobody_can_make_are_no_history(second: dict[str, Any], reason: str) -> None:
    first = Event("p", 1, "invoke", "claim", 1, name=NAME, epoch=1, stamp="1")
    again = {"name": NAME, "epoch": 1, **second}
    with pytest.raises(HistoryError, match=reason):
        judge([first, Event("p", 2, "invoke", "claim", 2, **again)])


# ---------------------------------------------------------------------------------------------------------------- the recorder


class FakeAppender:
    """Answers each claim with the next of its answers."""

    def __init__(self, *answers: NamedEpoch | Exception) -> None:
        self.answers = list(answers)

    async def claim(self, *arguments: object, **more: object) -> NamedEpoch:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_claim_is_recorded_with_its_second_one_and_any_error_is_an_unknown_outcome() -> None:
    events: list[Event] = []
    answered = NamedEpoch(7, 3, b"1.p", then=b"1.q")
    fake = FakeAppender(answered, answered._replace(stamp=b"2.q", then=None), NoLeaderError("none"))
    appender = RecordingAppender(cast("SequencedAppender", fake), Recorder(events.append, lambda: 5), "p")
    second = StampClaim("m", 4, b"1.m", b"")

    assert await appender.claim("n", 3, b"1.p", then=second) is answered
    await appender.claim("n", 3, b"2.p", b"1.p", then=second._replace(stamp=b"2.m"))
    with pytest.raises(NoLeaderError):
        await appender.claim("n", 3)

    assert [(e.kind, e.name, e.epoch, e.stamp, e.replaces, e.after) for e in events if e.kind == "invoke"] == [
        ("invoke", "n", 3, "1.p", None, None),
        ("invoke", "m", 4, "1.m", "", 1),
        ("invoke", "n", 3, "2.p", "1.p", None),
        ("invoke", "m", 4, "2.m", "", 3),
        ("invoke", "n", 3, "", None, None),
    ]
    assert [(e.kind, e.id, e.epoch, e.stamp, e.error) for e in events if e.kind != "invoke"] == [
        ("ok", 1, 3, "1.p", None),
        ("ok", 2, 4, "1.q", None),
        ("ok", 3, 3, "2.q", None),
        ("info", 4, None, None, None),
        ("info", 5, None, None, "NoLeaderError"),
    ]
