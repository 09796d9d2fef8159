"""Check medians, spreads, targets and ratios of the report."""

import pytest

from bench.report import RAFTMQ, number, rows_of, table
from bench.runner import Sample
from bench.workloads import Figure

FIGURES = {
    "produce": (Figure("rate", "records/s", True, 1000),),
    "latency": (Figure("p50", "ms", False, 2.0),),
    "idle": (Figure("cpu", "%", False),),
}


def sample(workload: str, system: str, **values: float) -> Sample:
    return Sample(workload, system, 1, 0.0, 50.0, 1.0, {name: [value] for name, value in values.items()})


def test_the_median_and_the_spread_cover_all_rounds() -> None:
    rounds = [sample("produce", RAFTMQ, rate=rate) for rate in (900.0, 1300.0, 1100.0)]
    (row,) = rows_of(FIGURES, rounds)
    assert (row.median, row.minimum, row.maximum) == (1100, 900, 1300)
    assert row.is_met is True


@pytest.mark.parametrize(
    ("workload", "figure", "value", "is_met"),
    [
        ("produce", "rate", 1000, True),
        ("produce", "rate", 999, False),
        ("latency", "p50", 2.0, True),
        ("latency", "p50", 2.1, False),
        ("idle", "cpu", 90.0, None),
    ],
)
def test_a_target_is_a_minimum_rate_or_a_maximum_time(
    workload: str, figure: str, value: float, is_met: bool | None
) -> None:
    (row,) = rows_of(FIGURES, [sample(workload, RAFTMQ, **{figure: value})])
    assert row.is_met is is_met


def test_a_ratio_is_above_one_where_raftmq_is_better() -> None:
    samples = [
        sample("produce", "Peer", rate=500.0),
        sample("produce", RAFTMQ, rate=1000.0),
        sample("latency", "Peer", p50=1.0),
        sample("latency", RAFTMQ, p50=4.0),
    ]
    rows = rows_of(FIGURES, samples)
    assert [(row.workload, row.system, row.ratio) for row in rows] == [
        ("produce", RAFTMQ, None),
        ("produce", "Peer", 2.0),
        ("latency", RAFTMQ, None),
        ("latency", "Peer", 0.25),
    ]
    assert [row.target for row in rows] == [1000, None, 2.0, None]


def test_a_peer_alone_has_no_ratio() -> None:
    (row,) = rows_of(FIGURES, [sample("produce", "Peer", rate=500.0)])
    assert (row.ratio, row.is_met, row.target) == (None, None, None)


def test_the_table_shows_each_row_once() -> None:
    samples = [sample("produce", RAFTMQ, rate=950.0), sample("produce", "Peer", rate=475.0)]
    header, ours, theirs = table(FIGURES, rows_of(FIGURES, samples)).splitlines()
    assert header.split()[0] == "workload"
    assert " ".join(ours.split()) == "produce rate, records/s RaftMQ 1 950 950 – 950 ≥ 1,000 short of it"
    assert " ".join(theirs.split()) == "Peer 1 475 475 – 475 2.00 x as good"


@pytest.mark.parametrize(
    ("value", "text"), [(1234567.8, "1,234,568"), (12.34, "12.3"), (1.234, "1.23"), (0.0, "0"), (3.0, "3")]
)
def test_a_number_has_about_three_significant_digits(value: float, text: str) -> None:
    assert number(value) == text
