"""Every known bug is found by its seed: the net has no hole where somebody fell through before."""

from __future__ import annotations

import pytest

from sim.node.batch import run_isolated
from sim.node.mutants import MUTANTS
from sim.node.run import Verdict


@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_found_by_its_seed(name: str) -> None:
    mutant = MUTANTS[name]

    assert run_isolated(mutant.seed, mutant.build).verdict is not Verdict.OK
