"""Every known bug is found: the net has no hole where somebody fell through before. Each is replayed by its known seed."""

from __future__ import annotations

import pytest

from sim.core.mutants import MUTANTS as CORE_MUTANTS
from sim.mutant_table import BEGIN, END, NOTHING, PAGE, Row, hunt, known_seeds, with_table
from sim.node.mutants import MUTANTS
from sim.node.run import Verdict

KNOWN_SEEDS = known_seeds(PAGE.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(MUTANTS))
def test_a_mutant_is_found(name: str) -> None:
    assert hunt(MUTANTS[name], KNOWN_SEEDS.get(name, 0)).verdict is not Verdict.OK


def test_there_are_thirty_mutants_of_whole_nodes_in_all_parts() -> None:
    assert len(MUTANTS) >= 30
    assert {mutant.part for mutant in MUTANTS.values()} == {"core", "store", "engine", "machine", "service", "client"}


def test_the_page_names_mutants_that_there_are_and_each_is_found() -> None:
    """One that is new comes into the page with the next `make mutants`; until then it is hunted from seed 0 on."""
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]

    assert set(KNOWN_SEEDS) <= {*MUTANTS, *CORE_MUTANTS}
    assert len(KNOWN_SEEDS) >= len(MUTANTS) // 2
    assert NOTHING not in text


def test_a_table_is_written_in_the_place_of_the_old_one() -> None:
    rows = [Row("a-bug", "what it does", "core alone", "liveness", 7)]
    page = with_table(f"before\n{BEGIN}old\n{END}after\n", rows)

    assert page.startswith(f"before\n{BEGIN}| mutant |")
    assert page.endswith(f"| `a-bug` | what it does | core alone | liveness | 7 |\n{END}after\n")
    assert known_seeds(page) == {"a-bug": 6}
