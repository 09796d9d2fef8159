"""Brokers of two versions serve together while both are rolled: the parts that the next version added are used only when all brokers have them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.metadata import Metadata

from sim.cluster.batch import run_isolated
from sim.cluster.invariants.row_levels import RowLevels
from sim.cluster.mutants.registry import SEEDS_MAX
from sim.cluster.run import Build, Verdict, is_upgraded
from sim.cluster.upgrades.next_version import NEXT_LEVEL, NextClusterRow, NextVersion, SetNote
from sim.core.invariants.violation import InvariantViolation

UPGRADE = Build(is_upgraded=True, has_queues=False)


def test_some_ordinary_seeds_are_upgrades_and_none_of_those_that_mutants_are_found_by() -> None:
    assert [seed for seed in range(40) if is_upgraded(seed)] == [20, 27, 34]
    assert not any(map(is_upgraded, range(SEEDS_MAX)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.long) for seed in (6, 9, 22))])
def test_a_cluster_is_upgraded_and_downgraded_and_its_level_raised_under_faults(seed: int) -> None:
    outcome = run_isolated(seed, UPGRADE)

    assert (outcome.verdict, outcome.detail) == (Verdict.OK, "")
    counts = outcome.counts
    assert counts["rolled up"] >= 3
    assert counts["rolled down"]
    assert counts["refused by level"], "what was added was tried too early"
    assert counts["raised too early"], "the level was tried too early"
    assert counts["levels raised"]
    assert counts["used"], "what was added was used in the end"
    assert counts["greetings_received"], "the higher wire version was used"
    assert counts["greetings_kept"], "the lower wire version was used"
    assert counts["states_compared"]
    assert sum(outcome.faults.values()) >= 3


def metadata_of(row: Any) -> Any:
    machine = Metadata()
    machine._tables.cluster = row
    return SimpleNamespace(state_machine=machine)


def test_the_next_version_is_withdrawn_completely() -> None:
    payload = mc.encode_command(SetNote(1))
    before = Metadata.level_needed, Metadata().level_needed(payload)
    version = NextVersion()
    undo = version.install()
    with pytest.raises(InvariantViolation):
        RowLevels().check(metadata_of(NextClusterRow(feature_level=FEATURE_LEVEL, note=1)))
    RowLevels().check(metadata_of(NextClusterRow(feature_level=NEXT_LEVEL, note=1)))
    undo()
    assert (Metadata.level_needed, Metadata().level_needed(payload)) == before == (Metadata.level_needed, None)
