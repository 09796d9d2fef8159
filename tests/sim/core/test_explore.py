"""The explorer finds known bugs within a few hundred states, and visits every state of a small scenario of the product."""

from __future__ import annotations

import pytest
from raftmq.raft.settings import RaftSettings

from sim.core.explore.scenarios import SCENARIOS
from sim.core.explore.search import Explorer, Scenario
from sim.core.mutants import MUTANTS

FINDINGS = {
    "vote-before-durable": ("campaigns", "VoteDurable"),
    "ack-before-durable": ("campaigns", "QuorumLog"),
    "state-not-restored": ("replication", "AppliedState"),
    "votes-twice": ("campaigns", "one_vote_per_term"),
    "counts-votes-by-number": ("campaigns", "VoteQuorum"),
    "asks-before-durable": ("campaigns", "RequestDurable"),
    "compares-index-first": ("diverged", "LeaderCompleteness"),
    "commits-earlier-term": ("earlier_term", "leader_commits_own_term"),
    "counts-own-before-durable": ("campaigns", "QuorumLog"),
    "counts-learners": ("learner", "QuorumLog"),
    "heartbeats-plain-commit": ("diverged_heartbeats", "LogInv"),
    "offsets-not-rewound": ("diverged", "base_offset_continuity"),
    "snapshot-keeps-suffix": ("diverged_snapshot", "LogInv"),
    "skips-joint": ("joint", "QuorumOverlap"),
    "many-pending-changes": ("changes", "OnePendingChange"),
    "reads-without-round": ("reads", "LinearizableRead"),
}
"""Mutant -> the scenario that finds it, and the rule that it breaks."""


@pytest.mark.parametrize("name", FINDINGS)
def test_a_mutant_is_found(name: str) -> None:
    scenario, rule = FINDINGS[name]
    explorer = Explorer(SCENARIOS[scenario], MUTANTS[name].build)

    explorer.explore(1_500)

    assert rule in str(explorer.error)
    assert 1 <= len(explorer.trace) <= 6


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_product_keeps_every_rule_and_recovers(name: str) -> None:
    explorer = Explorer(SCENARIOS[name])

    explorer.explore(1_000)

    assert explorer.error is None
    assert all(explorer.recover(state) for state in explorer.states[::50])


def test_every_state_of_two_campaigns_is_visited() -> None:
    """A scenario ends when each order of its events was tried, so that it proves something."""
    explorer = Explorer(Scenario({"campaign": 2}))

    explorer.explore(100_000)

    assert explorer.error is None
    assert explorer.is_complete
    assert len(explorer.states) > 2_000


def test_a_group_that_does_not_recover_is_found() -> None:
    budget = {"propose": 1, "late": 1}
    scenario = Scenario(budget, SCENARIOS["replication"].prelude, settings=RaftSettings(inflight_appends_max=1))
    explorer = Explorer(scenario, MUTANTS["lost-window-stalls"].build)

    explorer.explore(1_000)

    assert explorer.error is None
    assert None in [explorer.recover(state) for state in explorer.states]


def test_a_trace_is_a_shortest_way_to_the_finding() -> None:
    explorer = Explorer(SCENARIOS["campaigns"], MUTANTS["votes-twice"].build)

    explorer.explore(1_500)

    assert explorer.trace == [
        "r1 campaign",
        "r2 campaign",
        "r1 receives 2->1 VoteRequest term=6 last=5/5 commit=5/5 transfer",
    ]
