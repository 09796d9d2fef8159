"""The check of sets that only grow agrees with the search for a valid order."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, cast

import pytest

from sim.history.checker import judge
from sim.history.events import Event, HistoryError
from sim.history.linearizability import Call, Linearizable, check_linearizable
from sim.history.recorder import Recorder
from sim.history.tables import NEVER, Entry, History

NAME = "ledger"
Members = frozenset[str]


@dataclass(frozen=True)
class Made:
    """An entry is made, at any time after its attempt began."""

    member: str


@dataclass(frozen=True)
class Shown:
    """An answer shows the set, which must have the answer's own entry, if it makes one."""

    member: str
    members: Members


def step(state: Members, operation: Made | Shown) -> tuple[bool, Members]:
    after = state | {operation.member} if operation.member else state
    return isinstance(operation, Made) or after == operation.members, after


def is_explained_by_some_order(entries: list[Entry]) -> bool:
    """Search for an order of all answers, and of the attempts without an answer. A client repeats an attempt until it is answered."""
    calls: list[Call[Any]] = []
    for entry in entries:
        if entry.member:
            calls.append(Call(Made(entry.member), entry.process, entry.invoked_at, NEVER, is_required=False))
        if entry.answer is not None:
            shown = Shown(entry.member, entry.answer)
            calls.append(Call(shown, entry.process, entry.invoked_at, entry.ended_at, is_required=True))
    found = check_linearizable(calls, cast("Any", frozenset()), step)
    assert found.answer is not Linearizable.UNDECIDED
    return found.answer is Linearizable.YES


def run(random: Random, wrong_share: float, count: int) -> list[Event]:
    """Let a few processes enter and read a set that is sometimes wrong."""
    events: list[Event] = []
    recorder = Recorder(events.append, lambda: len(events))
    states: list[Members] = [frozenset()]
    under_way: dict[str, tuple[Any, str]] = {}
    asked = [""]
    for number in range(count):
        process = random.choice("abc")
        if process not in under_way:
            member = random.choice(("", f"{number}", f"{number}"))
            asked.append(member)
            under_way[process] = (recorder.invoke(process, "enter", name=NAME, stamp=member), member)
            if random.random() < 0.3:
                states.append(states[-1] | set(filter(None, (member,))))
            continue
        operation, member = under_way.pop(process)
        if random.random() < 0.15:
            operation.info()
            continue
        states.append(states[-1] | set(filter(None, (member,))))
        shown = states[-1]
        if random.random() < wrong_share:
            wrong = random.choice([*states, frozenset(filter(None, random.sample(asked, min(2, len(asked)))))])
            shown = random.choice((wrong, wrong | set(filter(None, (member,)))))
        operation.ok(stamp=",".join(sorted(shown)))
    return events


def test_a_set_without_faults_is_clean() -> None:
    for seed in range(300):
        judge(run(Random(seed), 0.0, 60)).demand_clean()


def test_the_check_agrees_with_the_search_for_an_order() -> None:
    agreed = {True: 0, False: 0}
    for seed in range(3000):
        random = Random(seed)
        events = run(random, random.choice((0.1, 0.3, 0.6)), random.randrange(4, 20))
        is_clean = judge(events).is_clean
        assert is_clean is is_explained_by_some_order(History.of(events).entries.get(NAME, [])), seed
        agreed[is_clean] += 1
    assert min(agreed.values()) > 500


@pytest.mark.parametrize(("stamp", "reason"), [("1", "entered ledger before"), (None, "stamp is missing")])
def test_entries_that_nobody_can_make_are_no_history(stamp: str | None, reason: str) -> None:
    first = Event("p", 1, "invoke", "enter", 1, name=NAME, stamp="1")
    with pytest.raises(HistoryError, match=reason):
        judge([first, Event("p", 2, "invoke", "enter", 2, name=NAME, stamp=stamp)])
