"""The simulation finds every known bug. Each mutant is replayed by its known seed."""

from __future__ import annotations

import pytest

from sim import mutant_table
from sim.cluster.mutants import MUTANTS
from sim.cluster.run import Outcome, Verdict
from sim.core.mutants import MUTANTS as CORE_MUTANTS
from sim.mutant_table import BEGIN, END, NOTHING, PAGE, Row, StaleMutantError, hunt, known_seeds, with_table

KNOWN_SEEDS = known_seeds(PAGE.read_text())


QUICK_MUTANTS = (
    "acknowledged_by_the_leader_alone", "answers_before_durable", "applied_index_without_rows", "applies_local_state",
    "budget_leaks", "half_is_a_majority", "reads_uncommitted", "same_producer_ids", "votes_twice",
)  # fmt: skip
"""The mutants that every run replays: their runs end early. `make test-long` replays the others."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [name if name in QUICK_MUTANTS else pytest.param(name, marks=pytest.mark.long) for name in sorted(MUTANTS)],
)
def test_a_mutant_is_found(name: str) -> None:
    assert hunt(MUTANTS[name], KNOWN_SEEDS[name]) is not None


def test_there_are_thirty_mutants_of_whole_nodes_in_all_parts() -> None:
    assert len(MUTANTS) >= 30
    parts = {mutant.part for mutant in MUTANTS.values()}
    assert parts == {"core", "store", "engine", "machine", "service", "client", "queue"}


def test_there_are_twenty_mutants_of_queues() -> None:
    assert sum(mutant.part == "queue" for mutant in MUTANTS.values()) >= 20


def test_the_page_names_every_mutant_and_each_is_found() -> None:
    """`make mutants ARGS=--missing` hunts the new ones."""
    text = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]

    assert set(KNOWN_SEEDS) == {*MUTANTS, *CORE_MUTANTS}
    assert NOTHING not in text


@pytest.mark.parametrize(
    ("verdict", "detail"),
    [
        (Verdict.SAFETY, "NoDefect: n1 r1 of g0: TypeError(\"hasty() got an unexpected keyword argument 'new'\")"),
        (Verdict.CRASH, "AttributeError: type object 'Commits' has no attribute 'begin'"),
    ],
)
def test_a_mutant_that_does_not_fit_the_product_is_not_found_by_its_own_error(
    monkeypatch: pytest.MonkeyPatch, verdict: Verdict, detail: str
) -> None:
    monkeypatch.setattr(mutant_table, "_outcome", lambda seed, build: Outcome(seed, verdict, detail))
    with pytest.raises(StaleMutantError, match="votes_twice"):
        hunt(MUTANTS["votes_twice"])


def test_a_new_table_replaces_the_old_one() -> None:
    rows = [Row("a-bug", "what it does", "core alone", "liveness", 7)]
    page = with_table(f"before\n{BEGIN}old\n{END}after\n", rows)

    assert page.startswith(f"before\n{BEGIN}| mutant |")
    assert page.endswith(f"| `a-bug` | what it does | core alone | liveness | 7 |\n{END}after\n")
    assert known_seeds(page) == {"a-bug": 6}
