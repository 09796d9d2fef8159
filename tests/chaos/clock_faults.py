"""Faults of wall clocks. A time that is wrong on one machine, or leaps on all, deletes nothing, expires nobody and reorders nothing.

They are light: they stop no process and touch no file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.condition import busiest_leader
from tests.chaos.fault import Target, fault

HOUR_SECONDS = 3600.0
DAY_AHEAD_SECONDS = 25 * HOUR_SECONDS
"""More than the time after which an idle producer is forgotten."""
WEEK_AHEAD_SECONDS = 200 * HOUR_SECONDS
"""More than the retention of records and of offsets by default, seven days."""


@contextmanager
def _off(target: Target, seconds: float, *victims: int) -> Iterator[None]:
    try:
        for victim in victims:
            target.cluster.clock(victim).be_off(seconds)
        yield
    finally:
        for victim in victims:
            target.cluster.clock(victim).work()


@fault("clock", (7.0, 10.0), is_light=True)
def leader_a_week_ahead(target: Target) -> Iterator[str]:
    """It holds for longer than housekeeping takes to look at every replica: what it takes for old would be gone everywhere."""
    leader = busiest_leader(target.cluster, target.topic)
    with _off(target, WEEK_AHEAD_SECONDS, leader):
        yield f"the clock of {leader} is 200 h ahead"


@fault("clock", (2.0, 6.0), is_light=True)
def leader_a_day_ahead(target: Target) -> Iterator[str]:
    leader = busiest_leader(target.cluster, target.topic)
    with _off(target, DAY_AHEAD_SECONDS, leader):
        yield f"the clock of {leader} is 25 h ahead"


@fault("clock", (2.0, 6.0), is_light=True)
def one_behind(target: Target) -> Iterator[str]:
    victim = target.leader_or_any()
    with _off(target, -target.chance.uniform(1.0, WEEK_AHEAD_SECONDS), victim):
        yield f"the clock of {victim} is behind"


@fault("clock", (0.5, 2.0), is_light=True)
def leaping_clock(target: Target) -> Iterator[str]:
    victim = target.leader_or_any()
    leaps = [target.chance.choice((-1, 1)) * 10 ** target.chance.uniform(-1, 6) for _ in range(6)]
    try:
        for leap in leaps:
            target.cluster.clock(victim).be_off(leap)
            time.sleep(0.5)
        yield f"the clock of {victim} leaps by {', '.join(f'{leap:.1f}' for leap in leaps)} s"
    finally:
        target.cluster.clock(victim).work()


@fault("clock", (2.0, 5.0), is_light=True)
def all_a_day_ahead(target: Target) -> Iterator[str]:
    """As machines that were suspended together: nobody can tell that no time went by for the clients."""
    with _off(target, DAY_AHEAD_SECONDS, *target.cluster.broker_ids):
        yield "all clocks are 25 h ahead"
