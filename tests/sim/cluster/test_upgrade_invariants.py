"""Each invariant of upgrades is broken by a state made for it."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from raftmq.fsm.metadata import Metadata

from sim.cluster.invariants.row_levels import RowLevels
from sim.cluster.upgrades.next_version import NextVersion
from sim.cluster.upgrades.roller import Roller
from tests.support.sim.broken import broken


def cluster_row(**changes: Any) -> Any:
    machine = Metadata()
    machine._tables.cluster = msgspec.structs.replace(machine._tables.cluster, **changes)
    return SimpleNamespace(state_machine=machine)


def test_a_row_that_is_ahead_of_the_level() -> None:
    RowLevels().check(cluster_row(feature_level=5, bytes_per_second=1))
    with broken("RowLevels"):
        RowLevels().check(cluster_row(feature_level=4, bytes_per_second=1))


def roller(*, level: int, is_silent: bool, is_next_version: bool) -> tuple[Roller, NextVersion]:
    """Return the roller of one broker that knows level 5."""
    standing = SimpleNamespace(silence="it is too old" if is_silent else None)
    node = SimpleNamespace(_metadata=SimpleNamespace(feature_level=lambda: level), _feature_level=5, standing=standing)
    machine = SimpleNamespace(name="n1", is_next_version=is_next_version)
    cluster: Any = SimpleNamespace(
        machines={"n1": machine}, running=lambda: [SimpleNamespace(node=node, machine=machine)]
    )
    checker: Any = SimpleNamespace(judge=lambda check, *arguments: check(*arguments))
    version = NextVersion()
    return Roller(cluster, checker, random.Random(1), version, lambda: pytest.fail("nothing is raised here")), version


def test_a_level_that_a_broker_does_not_know() -> None:
    roller(level=5, is_silent=False, is_next_version=False)[0].look()
    with broken("LevelIsSupported"):
        roller(level=6, is_silent=True, is_next_version=False)[0].look()


def test_a_broker_that_serves_above_its_level() -> None:
    roller(level=6, is_silent=True, is_next_version=True)[0].look()
    with broken("SilentAboveItsLevel"):
        roller(level=6, is_silent=False, is_next_version=True)[0].look()


def test_a_frame_of_a_later_wire_version() -> None:
    _, version = roller(level=5, is_silent=False, is_next_version=False)
    with broken("FramesAreUnderstood"):
        version.on_refused_frame("a frame of type 200")
