"""The lag of a query and its lost records, computed against a cluster in a dictionary."""

import pytest
from raftmq.spark.base.offsets import Position, TopicOffsets
from raftmq.spark.source.lag import (
    PartitionLag,
    QueryLag,
    lag_at,
    least_advanced,
    lost_records,
    lost_topics,
    position_in_progress,
)
from raftmq.types import TopicPartition

from tests.support.spark.fake_view import FakeView


def at(topic_id: int = 1, **offsets: int) -> Position:
    """Return a position in the topic `t`, with its offsets by partition: `at(p0=5, p1=3)`."""
    return Position({"t": TopicOffsets(topic_id, {int(name[1:]): offset for name, offset in offsets.items()})})


@pytest.fixture
def view() -> FakeView:
    made = FakeView()
    made.create("t", 10, 4)
    return made


def test_lag_is_the_distance_to_the_ends_of_the_partitions(view: FakeView) -> None:
    found = lag_at(view, at(p0=7, p1=4))
    assert found == {TopicPartition("t", 0): PartitionLag(7, 10), TopicPartition("t", 1): PartitionLag(4, 4)}
    assert [lag.records for lag in found.values()] == [3, 0]
    assert QueryLag("q", 0, found, 0, ()).records == 3


def test_a_leader_that_lags_behind_the_query_gives_no_negative_lag() -> None:
    assert PartitionLag(7, 5).records == 0


def test_a_deleted_topic_has_no_lag(view: FakeView) -> None:
    view.delete("t")
    assert lag_at(view, at(p0=7)) == {}
    view.create("t", 10)
    assert lag_at(view, at(p0=7)) == {}
    assert lag_at(view, Position({})) == {}


def test_positions_are_recognized_by_the_ids_of_their_topics() -> None:
    first = Position(at(p0=5).topics, initial=at(p0=2))
    for position in (at(p0=5), first):
        assert position_in_progress(position.to_json()) == position


@pytest.mark.parametrize(
    "written", [None, 7, "7", {}, [], {"logOffset": 3}, {"t": {"0": 5}}, {"t": {}}, {"t": {"0": {}}}]
)
def test_offsets_of_other_sources_are_none(written: object) -> None:
    """A Kafka source's offsets are `{"t": {"0": 5}}`, a file source's `{"logOffset": 3}` and a rate source's a number."""
    assert position_in_progress(written) is None


def test_a_topic_that_is_read_twice_counts_from_the_lower_offsets() -> None:
    assert least_advanced([at(p0=5, p1=3), at(p0=4, p2=9)]) == at(p0=4, p1=3, p2=9)
    assert least_advanced([at(p0=5), at(topic_id=2, p0=1), at(p0=6)]) == at(topic_id=2, p0=1)


def test_a_batch_with_all_of_its_rows_lost_nothing_and_asks_nobody(view: FakeView) -> None:
    assert lost_records(view, at(p0=2), at(p0=10, p1=4), 12) == 0
    assert view.looks == []


def test_records_that_were_trimmed_before_they_were_read_are_lost(view: FakeView) -> None:
    view.trim("t", 0, before=8)
    assert lost_records(view, at(p0=5, p1=0), at(p0=10, p1=4), 6) == 3
    assert lost_records(view, Position({}), Position(at(p0=10).topics, initial=at(p0=5)), 2) == 3


def test_records_that_were_trimmed_after_they_were_read_are_not_lost(view: FakeView) -> None:
    view.trim("t", 0, before=8)
    assert lost_records(view, at(p0=5), at(p0=10), 5) == 0
    assert lost_records(view, at(p0=5), at(p0=10), 4) == 1  # at most as many as are missing


def test_records_that_a_query_left_unread_are_not_lost(view: FakeView) -> None:
    assert lost_records(view, at(p0=5), at(p0=10), 1) == 0


def test_records_that_are_gone_with_their_topic_are_lost(view: FakeView) -> None:
    view.delete("t")
    assert lost_records(view, at(p0=5), at(p0=10), 2) == 3


def test_a_topic_without_a_known_start_loses_nothing(view: FakeView) -> None:
    view.trim("t", 0, before=8)
    assert lost_records(view, Position({}), at(p0=10), 2) == 0


def test_a_topic_that_was_deleted_or_created_again_is_lost() -> None:
    other = {"u": TopicOffsets(5, {0: 1})}
    assert lost_topics(at(p0=5), at(p0=5)) == []
    assert lost_topics(at(p0=5), Position(other)) == ["t"]
    assert lost_topics(at(p0=5), Position(at(topic_id=2, p0=5).topics)) == ["t"]
    assert lost_topics(Position(other), Position({**other, **at(p0=5).topics})) == []
