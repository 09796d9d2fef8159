"""Every known bug is found: the net has no hole where somebody fell through before."""

from __future__ import annotations

import pytest

from sim.node.mutant_table import BEGIN, END, PAGE, hunt, known_seeds, table, with_table
from sim.node.mutants import MUTANTS
from sim.node.run import Verdict

KNOWN_SEEDS = known_seeds(PAGE.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_found(name: str) -> None:
    assert hunt(MUTANTS[name], KNOWN_SEEDS.get(name, 0)).verdict is not Verdict.OK


def test_the_page_names_every_mutant_and_that_it_is_found() -> None:
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]

    assert {line.split("`")[1] for line in text.splitlines() if line.startswith("| `")} == set(MUTANTS)
    assert "nothing" not in text
    assert with_table(PAGE.read_text(), text) == PAGE.read_text()
    assert table({}).count("\n") == 2
