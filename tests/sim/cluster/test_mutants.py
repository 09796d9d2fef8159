"""The simulation finds every known bug. Each mutant is replayed by its known seed."""

from __future__ import annotations

import pytest

from sim import mutant_table
from sim.cluster.mutants import MUTANTS
from sim.cluster.run import Outcome, Verdict
from sim.core.mutants import MUTANTS as CORE_MUTANTS
from sim.mutant_table import BEGIN, END, NOTHING, PAGE, Row, StaleMutantError, hunt, known_seeds, with_table

KNOWN_SEEDS = known_seeds(PAGE.read_text())


QUICK_QUEUE_MUTANTS = (
    "applies_local_time", "bytes_leak", "firings_not_compared", "ids_leak", "write_back_loses_a_row",
)  # fmt: skip
"""Mutants of queues that every run replays. `make test-long` replays the others."""
SLOW_MUTANTS = (
    "balance_flaps", "drain_stops_early", "gap_called_failure", "kept_replica_is_retired", "move_forgets_joint", "quarantine_forgotten",
    "recovered_group_keeps_its_id", "removal_forgets_replicas", "removed_leader_stays", "space_asked_for_too_early",
    "stale_leadership_table", "stopped_replica_stays_stopped", "truncated_rows_left",
)  # fmt: skip
"""Mutants of logs and clusters whose run takes three times as long as that of most: `make test-long` replays them."""


def _is_long(name: str) -> bool:
    return name in SLOW_MUTANTS or (MUTANTS[name].part == "queue" and name not in QUICK_QUEUE_MUTANTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if _is_long(name) else name for name in sorted(MUTANTS)]
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
