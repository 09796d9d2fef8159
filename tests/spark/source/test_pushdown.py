"""Pushed filters reduce the planned ranges and never exclude a matching record."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import datasource
from raftmq.spark.source.planning import OffsetRange
from raftmq.spark.source.pushdown import NOTHING_PUSHED, pushed_from

pytestmark = pytest.mark.skipif(
    not hasattr(datasource, "Filter"), reason="Spark 4.0 pushes no filters into Python sources"
)
COMPARE = {
    "EqualTo": lambda a, b: a == b,
    "EqualNullSafe": lambda a, b: a == b,
    "GreaterThan": lambda a, b: a > b,
    "GreaterThanOrEqual": lambda a, b: a >= b,
    "LessThan": lambda a, b: a < b,
    "LessThanOrEqual": lambda a, b: a <= b,
}


@given(st.lists(st.tuples(st.sampled_from(sorted(COMPARE)), st.integers(-5, 25)), max_size=4))
def test_no_matching_offset_is_excluded(filters: list[tuple[str, int]]) -> None:
    pushed = pushed_from([getattr(datasource, name)(("offset",), value) for name, value in filters])
    kept = {
        offset for range_ in pushed.cut([OffsetRange("t", 1, 0, 0, 20)]) for offset in range(range_.start, range_.end)
    }
    matching = {offset for offset in range(20) if all(COMPARE[name](offset, value) for name, value in filters)}
    assert matching <= kept
    # Strict comparisons keep one more offset at each end. Nothing else is kept.
    assert len(kept) <= len(matching) + 2


def test_filters_of_partitions_and_topics_select_ranges() -> None:
    ranges = [OffsetRange(topic, 1, number, 0, 5) for topic in "ab" for number in range(3)]
    pushed = pushed_from([datasource.In(("partition",), (0, 2)), datasource.EqualTo(("topic",), "b")])
    assert [(range_.topic, range_.partition) for range_ in pushed.cut(ranges)] == [("b", 0), ("b", 2)]
    both = pushed_from([datasource.In(("partition",), (0, 2)), datasource.EqualTo(("partition",), 1)])
    assert both.cut(ranges) == []


@dataclass
class Times:
    base_timestamp_ms: int
    max_timestamp_ms: int


@pytest.mark.parametrize(
    ("name", "base", "latest", "may_match"),
    [
        ("GreaterThan", 0, 4_999, False),
        ("GreaterThan", 0, 5_000, True),  # 5.0005 s is looked up as 5 s, and Spark filters again
        ("LessThan", 5_001, 6_000, False),
        ("LessThan", 5_000, 6_000, True),
        ("EqualTo", 4_000, 6_000, True),
        ("EqualTo", 6_000, 7_000, False),
    ],
)
def test_batches_outside_the_time_are_not_decoded(name: str, base: int, latest: int, may_match: bool) -> None:
    moment = datetime(1970, 1, 1, 0, 0, 5, 500, tzinfo=UTC)
    pushed = pushed_from([getattr(datasource, name)(("timestamp",), moment)])
    assert pushed.may_match_times(Times(base, latest)) is may_match


def test_filters_that_cannot_be_pushed_change_nothing() -> None:
    filters = [
        datasource.Not(datasource.EqualTo(("partition",), 1)),
        datasource.StringStartsWith(("topic",), "a"),
        datasource.IsNotNull(("offset",)),
        datasource.EqualTo(("headers", "key"), "x"),
        datasource.GreaterThan(("timestamp",), datetime(2020, 1, 1)),  # noqa: DTZ001 - its time zone is unknown
        datasource.EqualTo(("value",), b"x"),
    ]
    assert pushed_from(filters) == NOTHING_PUSHED
