"""Runs with clients that claim producer names: some seeds have them, and they do everything."""

from __future__ import annotations

from collections import Counter

import pytest

from sim.cluster.batch import run_isolated
from sim.cluster.claimers import has_claimers
from sim.cluster.mutants.registry import SEEDS_MAX
from sim.cluster.run import Build, Verdict, is_upgraded
from tests.support.sim.calm import calm_options


def test_some_ordinary_seeds_have_claimers_and_none_of_those_that_mutants_are_found_by() -> None:
    drawn = [seed for seed in range(200) if has_claimers(seed)]

    assert drawn[:5] == [18, 23, 28, 33, 38]
    assert any(map(is_upgraded, drawn))
    assert not any(map(has_claimers, range(SEEDS_MAX)))


def test_claimers_read_and_replace_stamps_and_raise_epochs() -> None:
    one, other = (run_isolated(seed, Build(has_claimers=True), calm_options()) for seed in (0, 2))

    assert (one.detail, other.detail) == ("", "")
    counts = Counter(one.counts) + Counter(other.counts)
    for name in ("ok", "replaced", "too late", "raised", "fenced", "second ok"):
        assert counts[f"claim {name}"] > 0, name


@pytest.mark.slow
def test_claims_are_linearizable_under_faults() -> None:
    outcome = run_isolated(0, Build(has_claimers=True))

    assert (outcome.verdict, outcome.detail) == (Verdict.OK, "")
    assert outcome.counts["claim replaced"] > 20
    assert outcome.counts["leaders"] > 5
