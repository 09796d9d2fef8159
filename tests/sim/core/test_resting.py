"""A shell may leave out the ticks of a core that rests: the run of a seed stays the same, event for event."""

from __future__ import annotations

import pytest
from raftmq.raft.ready import Role

from sim.core.cluster import PRODUCT, Build
from sim.core.run import Verdict, run_seed
from tests.support.raft.resting_core import RestingCore


def trace_of(seed: int, build: Build) -> list[str]:
    lines: list[str] = []
    assert run_seed(seed, build, lines.append).verdict is Verdict.OK
    return lines


@pytest.mark.parametrize(("first", "count"), [(0, 20), pytest.param(20, 380, marks=pytest.mark.long)])
def test_runs_without_the_ticks_of_resting_cores_are_the_same_runs(first: int, count: int) -> None:
    RestingCore.left_out.clear()
    RestingCore.repeated.clear()

    for seed in range(first, first + count):
        assert trace_of(seed, Build(core=RestingCore)) == trace_of(seed, PRODUCT), seed

    assert RestingCore.left_out[Role.FOLLOWER] > 25 * count
    assert set(RestingCore.left_out) <= {Role.FOLLOWER, Role.LEADER}
    assert RestingCore.repeated[Role.FOLLOWER] > 5 * count
    assert RestingCore.repeated[Role.LEADER] > count
