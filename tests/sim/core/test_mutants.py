"""The simulator catches known bugs of Raft implementations, each within its budget of seeds, beginning with the last known seed."""

from __future__ import annotations

import pytest

from sim.core.mutants import MUTANTS
from sim.core.run import Verdict, run_seed
from sim.mutant_table import hunt_core, known_seed


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 12


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_caught(name: str) -> None:
    outcome = hunt_core(name, known_seed(name))

    assert outcome is not None, f"{name} survived {MUTANTS[name].seeds_max} seeds"
    mutant = MUTANTS[name]
    assert run_seed(outcome.seed, profile=mutant.profile).verdict is Verdict.OK, "the product fails on this seed too"
