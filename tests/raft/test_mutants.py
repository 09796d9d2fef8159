"""Known bugs of Raft implementations are caught by the simulator, each within its budget of seeds (raft.md 5)."""

from __future__ import annotations

import pytest

from sim.core.mutants import MUTANTS, hunt
from sim.core.run import Verdict, run_seed


def test_there_are_enough_mutants() -> None:
    assert len(MUTANTS) >= 12


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_caught(name: str) -> None:
    """`-s` prints the table: mutant, seeds needed of its budget, found by."""
    outcome = hunt(name)

    assert outcome is not None, f"{name} survived {MUTANTS[name].seeds_max} seeds"
    mutant = MUTANTS[name]
    assert run_seed(outcome.seed, profile=mutant.profile).verdict is Verdict.OK, "the product fails on this seed too"
    found_by = outcome.detail.split(":")[0].removeprefix("invariant ").split(" violated")[0][:40]
    print(f"\n{name:30} {outcome.seed + 1:>4}/{mutant.seeds_max:<4} {outcome.verdict.name.lower():9} {found_by}")
