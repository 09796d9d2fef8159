"""Define a fault, which begins when its context is entered and is undone when it is left, and helpers that several kinds of faults share.

A fault must undo itself in every case. It must restart every broker that it stopped, without waiting for readiness. It may damage data only
while all replicas are whole (`needs_whole`), because RaftMQ survives the loss of a minority and no more.
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
from tests.chaos.operator import Operator

STARTS_MAX = 4
"""The starts after which a broker must serve, since a damaged file may end it a few times."""
START_SECONDS = 60.0
LAST_LINES = 8
"""Lines of a broker's log in a finding."""


class FaultError(AssertionError):
    """Raised when a broker did not react to a fault as it must."""


@dataclass(frozen=True)
class Target:
    """The cluster and topic that a fault hits, and the random generator for its choices."""

    cluster: ChaosCluster
    topic: str
    chance: random.Random
    stop: threading.Event = field(default_factory=threading.Event)
    """Set when the run must end now."""
    given_operator: Operator | None = None

    @property
    def operator(self) -> Operator:
        """Return the operator of the run, who knows the earlier orders."""
        assert self.given_operator is not None, "this fault needs an operator"
        return self.given_operator

    def any_broker(self, *but: int) -> int:
        return self.chance.choice([broker_id for broker_id in self.cluster.broker_ids if broker_id not in but])

    def leader_or_any(self) -> int:
        """Return the busiest leader in 70 % of cases, since faults hurt most there, otherwise any broker."""
        wants_leader, other = self.chance.random() < 0.7, self.any_broker()
        return busiest_leader(self.cluster, self.topic) if wants_leader else other


Act = Callable[[Target], AbstractContextManager[str]]
"""Begins the fault and yields a description of it and its victims."""


@dataclass(frozen=True)
class Fault:
    """One kind of fault."""

    name: str
    family: str
    act: Act
    hold_seconds: tuple[float, float]
    """Shortest and longest duration."""
    needs_whole: bool = False
    """Whether every replica must be whole before this fault and before the next one.

    Needed by faults that damage data, and by faults during which every broker must be reachable."""
    is_light: bool = False
    """Whether another fault may overlap, because this one stops no process and touches no file."""


FAULTS: dict[str, Fault] = {}


def fault(
    family: str, hold_seconds: tuple[float, float], *, needs_whole: bool = False, is_light: bool = False
) -> Callable[[Callable[[Target], Iterator[str]]], Act]:
    """Register a generator that begins the fault, yields its description, and undoes it."""

    def register(function: Callable[[Target], Iterator[str]]) -> Act:
        act = contextmanager(function)
        name = function.__name__
        FAULTS[name] = Fault(name, family, act, hold_seconds, needs_whole, is_light)
        return act

    return register


def families() -> list[str]:
    """Return every family, in the order in which their files are imported."""
    return list(dict.fromkeys(one.family for one in FAULTS.values()))


def last_lines(target: Target, broker_id: int) -> str:
    """Return the last lines of the broker's log, for a finding."""
    return "\n".join(target.cluster.logs(broker_id).splitlines()[-LAST_LINES:])


def served_or_ended(target: Target, broker_id: int, why: str) -> bool:
    """Wait until a started broker serves or ends, or the run stops. Return whether the broker still runs."""
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
    """Damage files of a stopped broker, then start it until it serves: a damaged page may end the first starts, but not every one."""
    victim = target.any_broker()
    target.cluster.kill(victim)
    said = "nothing was damaged"
    try:
        time.sleep(target.chance.uniform(0.0, 1.0))  # the others continue without it
        said = damage(victim)
    finally:
        for _ in range(STARTS_MAX):
            target.cluster.restart(victim, wait=False)
            if served_or_ended(target, victim, said):
                break
    if not target.cluster.is_running(victim):
        raise FaultError(f"broker {victim} died {STARTS_MAX} times of damage to replicas of a minority ({said})")
    yield said
