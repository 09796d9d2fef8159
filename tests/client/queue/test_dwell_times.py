"""Quantiles of dwell times, and their sum over partitions."""

from __future__ import annotations

import pytest
from raftmq.client.queue.dwell_times import DwellTimes, read_dwell
from raftmq.errors import InvalidArgumentError
from raftmq.proto import queue_pb2 as pb


def test_a_quantile_is_estimated_between_two_bounds() -> None:
    times = DwellTimes((1.0, 2.0, 4.0), (10, 0, 10, 0), 40.0)
    assert [times.quantile(share) for share in (0.0, 0.25, 0.5, 0.75, 1.0)] == [0.0, 0.5, 1.0, 3.0, 4.0]
    assert (times.count, times.mean_seconds) == (20, 2.0)


def test_a_time_above_all_bounds_is_at_least_the_largest() -> None:
    assert DwellTimes((1.0, 2.0), (1, 0, 9), 900.0).quantile(0.9) == 2.0


def test_without_a_lease_there_is_no_quantile() -> None:
    assert DwellTimes().quantile(0.5) is None
    assert DwellTimes((1.0,), (0, 0), 0.0).quantile(0.5) is None
    assert DwellTimes().mean_seconds is None


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_is_between_0_and_1(share: float) -> None:
    with pytest.raises(InvalidArgumentError):
        DwellTimes().quantile(share)


def test_partitions_are_added_also_with_other_bounds() -> None:
    old = pb.DwellTimes(bounds_seconds=[1.0, 10.0], counts=[5, 1, 2], total_seconds=50.0)
    new = pb.DwellTimes(bounds_seconds=[0.5, 1.0], counts=[3, 4, 1], total_seconds=20.0)
    assert read_dwell([old, new, pb.DwellTimes()]) == DwellTimes((0.5, 1.0, 10.0), (3, 9, 1, 3), 70.0)
