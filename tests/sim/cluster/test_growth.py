"""A large cluster grows and shrinks in the simulator. `python -m sim.cluster.growth` does it with 1,000 partitions."""

from __future__ import annotations

import pytest

from sim.cluster.growth import grow

STEPS = 5


@pytest.mark.long
def test_ten_brokers_with_sixty_partitions_go_through_joins_drains_and_deaths() -> None:
    steps: list[str] = []
    outcome = grow(1, 60, steps.append)
    assert not outcome.verdict, outcome.detail
    assert len(steps) == STEPS
    assert (outcome.faults["remove_node"], outcome.faults["power_cut"]) == (1, 1)
    assert outcome.acknowledged > 200
