"""What a fault is: begun when its context is entered, undone when it is left. And what several kinds of faults need.

A fault must undo itself whatever happens in the meantime, must leave every broker that it stopped started again (not necessarily ready), and must
damage no data unless all replicas are whole (`needs_whole`): losing more than a minority is not promised to be survived.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from tests.chaos.cluster import ChaosCluster
from tests.chaos.condition import busiest_leader, is_ready, wait_until

STARTS_MAX = 4
"""So often a broker may die of a damaged file before it serves without it."""
START_SECONDS = 60.0
LAST_LINES = 8
"""Of a broker's log, in a finding."""


class FaultError(AssertionError):
    """A broker did not react to a fault as it must."""


@dataclass(frozen=True)
class Target:
    """What faults are done to, and the choice of it."""

    cluster: ChaosCluster
    topic: str
    chance: random.Random
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the run is to end now."""

    def any_broker(self, *but: int) -> int:
        return self.chance.choice([broker_id for broker_id in self.cluster.broker_ids if broker_id not in but])

    def leader_or_any(self) -> int:
        """Mostly the busiest leader, since that is where faults hurt."""
        wants_leader, other = self.chance.random() < 0.7, self.any_broker()
        return busiest_leader(self.cluster, self.topic) if wants_leader else other


Act = Callable[[Target], AbstractContextManager[str]]
"""Enters the fault, says what it did to whom."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    family: str
    act: Act
    hold_seconds: tuple[float, float]
    """It holds for a time in this range."""
    needs_whole: bool = False
    """Only when every replica is whole before, and the next fault only when it is again. For faults that damage data, and those that ask
    something of every broker, which no other fault may then keep from hearing of it."""
    is_light: bool = False
    """It stops no process and touches no file, so another fault can happen in the meantime."""


FAULTS: dict[str, Fault] = {}


def fault(
    family: str, hold_seconds: tuple[float, float], *, needs_whole: bool = False, is_light: bool = False
) -> Callable[[Callable[[Target], Iterator[str]]], Act]:
    """Register a generator that begins the fault, yields what it did, and undoes it."""

    def register(function: Callable[[Target], Iterator[str]]) -> Act:
        act = contextmanager(function)
        name = function.__name__
        FAULTS[name] = Fault(name, family, act, hold_seconds, needs_whole, is_light)
        return act

    return register


def families() -> list[str]:
    """Every family, in the order in which their files are imported."""
    return list(dict.fromkeys(one.family for one in FAULTS.values()))


def last_lines(target: Target, broker_id: int) -> str:
    """What the broker logged last, for a finding."""
    return "\n".join(target.cluster.logs(broker_id).splitlines()[-LAST_LINES:])


def served_or_ended(target: Target, broker_id: int, why: str) -> bool:
    """Wait until a broker that was started serves or ends; whether it serves (the run may have stopped the wait)."""
    cluster = target.cluster
    if not wait_until(
        lambda: not cluster.is_running(broker_id) or is_ready(cluster, broker_id), START_SECONDS, target.stop
    ):
        raise FaultError(
            f"broker {broker_id} neither serves nor ends {START_SECONDS:.0f} s after its start, {why}:\n"
            f"{last_lines(target, broker_id)}"
        )
    return cluster.is_running(broker_id)


def damaged(target: Target, damage: Callable[[int], str]) -> Iterator[str]:
    """Damage files of a broker that is down, then start it until it serves: a damaged page may kill it, but not for ever."""
    victim = target.any_broker()
    target.cluster.kill(victim)
    try:
        time.sleep(target.chance.uniform(0.0, 1.0))  # the others go on
        said = damage(victim)
    finally:
        for _ in range(STARTS_MAX):
            target.cluster.restart(victim, wait=False)
            if served_or_ended(target, victim, said):
                break
    if not target.cluster.is_running(victim):
        raise FaultError(f"broker {victim} died {STARTS_MAX} times of damage to replicas of a minority ({said})")
    yield said
