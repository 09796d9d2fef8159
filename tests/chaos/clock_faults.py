"""Faults of wall clocks: a wrong clock on one machine, or a leap on all, must delete no record, expire no client and reorder nothing.

They are light faults: they stop no process and touch no file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.chaos.condition import busiest_leader
from tests.chaos.fault import Target, fault

HOUR_SECONDS = 3600.0
DAY_AHEAD_SECONDS = 25 * HOUR_SECONDS
"""Longer than an idle producer is remembered."""
WEEK_AHEAD_SECONDS = 200 * HOUR_SECONDS
"""Longer than the default retention of records and offsets, seven days."""


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
    """Hold the offset for longer than housekeeping needs for all replicas: records that the leader takes for old would be deleted everywhere."""
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
    """Act like machines that were suspended together: no broker can tell that no time passed for the clients."""
    with _off(target, DAY_AHEAD_SECONDS, *target.cluster.broker_ids):
        yield "all clocks are 25 h ahead"
