"""Runs with clients that enter shared sets: some seeds have them, and entries that are made side by side are all kept."""

from __future__ import annotations

import pytest

from sim.cluster.batch import run_isolated
from sim.cluster.claimers import has_claimers
from sim.cluster.entrants import has_entrants, members_of, stamp_of
from sim.cluster.mutants.registry import SEEDS_MAX
from sim.cluster.run import Build, Verdict, is_upgraded
from tests.support.sim.calm import calm_options


def test_some_ordinary_seeds_have_entrants_and_none_of_those_that_others_are_known_by() -> None:
    drawn = [seed for seed in range(200) if has_entrants(seed)]

    assert drawn[:5] == [19, 24, 29, 34, 39]
    assert any(map(is_upgraded, drawn))
    assert not any(map(has_claimers, drawn))
    assert not any(map(has_entrants, range(SEEDS_MAX)))


def test_a_stamp_holds_a_set() -> None:
    for members in (frozenset[int](), frozenset({0}), frozenset({7, 8, 300})):
        assert members_of(stamp_of(members)) == members
    assert members_of(b"") == frozenset()


def test_entrants_enter_side_by_side() -> None:
    outcome = run_isolated(2, Build(has_entrants=True), calm_options())

    assert (outcome.verdict, outcome.detail) == (Verdict.OK, "")
    for what in ("read", "made", "beside others"):
        assert outcome.counts[f"entry {what}"] > 0, what
    assert "entry too late" not in outcome.counts


@pytest.mark.slow
def test_no_entry_is_lost_under_faults() -> None:
    outcome = run_isolated(0, Build(has_entrants=True))

    assert (outcome.verdict, outcome.detail) == (Verdict.OK, "")
    assert outcome.counts["entry made"] > 20
    assert outcome.counts["leaders"] > 5
