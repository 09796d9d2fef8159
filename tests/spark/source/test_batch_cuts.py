"""A query with ``isolation=batch`` plans to the end of the last whole batch, for a cluster in a dictionary."""

from __future__ import annotations

import warnings

import pytest
from raftmq.spark.atomic.batch_marks import Writer, close_batch, open_batch
from raftmq.spark.base.offsets import Position, TopicOffsets
from raftmq.spark.cluster.subscriptions import Named
from raftmq.spark.errors import InvalidOptionError, RaftMQSparkWarning, RecordsLostError
from raftmq.spark.source.batch_cuts import HIDDEN_LOOK_SECONDS, LONG_OPEN_MS, BatchCuts
from raftmq.spark.source.options import SourceOptions, read_source_options
from raftmq.spark.source.stream_plan import UNLIMITED, StreamPlan

from tests.support.spark.fake_view import FakeView

WRITER = Writer.of("delays", "delays")
PATIENCE_MS = 1000


def options(**given: str) -> SourceOptions:
    base = {"bootstrap.servers": "a:1", "subscribe": "t", "isolation": "batch"}
    return read_source_options(base | given, is_streaming=True)[0]


def at(*offsets: int, topic_id: int = 1) -> Position:
    return Position({"t": TopicOffsets(topic_id, dict(enumerate(offsets)))})


def opened(view: FakeView) -> None:
    view.run_marks("t", open_batch(WRITER, 7, len(view.by_name["t"].logs), PATIENCE_MS))


def closed(view: FakeView) -> None:
    view.run_marks("t", close_batch(WRITER, 7))


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def view() -> FakeView:
    view = FakeView()
    view.create("t", 5, 7)
    return view


def test_a_new_query_begins_after_the_last_whole_batch_and_reads_the_next_one_when_it_is_complete(view: FakeView):
    clock = Clock()
    opened(view)
    view.grow("t", 0, 8)
    plan = StreamPlan(view, options(), clock)
    start = plan.initial()
    assert start == at(5, 7)
    assert plan.next_end(start, UNLIMITED) is start
    assert plan.newest == at(8, 7)  # the lag is that of all records
    closed(view)
    clock.seconds += HIDDEN_LOOK_SECONDS
    end = plan.next_end(start, UNLIMITED)
    assert (end.topics, plan.newest) == (at(8, 7).topics, at(8, 7))


def test_only_partitions_that_begin_at_the_latest_offset_begin_at_the_cut(view: FakeView):
    opened(view)
    view.grow("t", 0, 8)
    view.grow("t", 1, 9)
    assert StreamPlan(view, options(startingOffsets='{"t": {"0": -1, "1": 8}}')).initial() == at(5, 8)
    assert StreamPlan(view, options(startingOffsets="earliest")).initial() == at(0, 0)


def test_a_topic_with_an_open_batch_is_looked_at_only_now_and_then(view: FakeView):
    clock = Clock()
    cuts = BatchCuts(view, clock)
    topics = view.topics(Named(("t",)))
    opened(view)
    view.grow("t", 0, 8)
    assert cuts.position(topics) == at(5, 7)
    closed(view)
    assert cuts.position(topics) == at(5, 7)
    assert cuts.has_hidden
    clock.seconds += HIDDEN_LOOK_SECONDS
    assert cuts.position(topics) == at(8, 7)
    assert not cuts.has_hidden


def test_a_batch_that_is_open_for_long_is_reported(view: FakeView):
    opened(view)
    cuts = BatchCuts(view, now=lambda: (view.time_ms + LONG_OPEN_MS + 1) / 1000)
    with pytest.warns(RaftMQSparkWarning, match="batch 7 of writer 'delays'.* abandon it"):
        cuts.position(view.topics(Named(("t",))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        BatchCuts(view, now=lambda: view.time_ms / 1000).position(view.topics(Named(("t",))))


def test_a_topic_that_is_created_again_has_no_open_batch(view: FakeView):
    opened(view)
    view.delete("t")
    view.create("t", 3)
    assert BatchCuts(view).position(view.topics(Named(("t",)))) == at(3, topic_id=2)


def test_records_of_an_open_batch_that_are_trimmed_are_reported_when_it_is_closed(view: FakeView):
    clock = Clock()
    opened(view)
    plan = StreamPlan(view, options(), clock)
    start = plan.initial()
    view.grow("t", 0, 9)
    view.trim("t", 0, 7)
    assert plan.next_end(start, UNLIMITED) is start
    closed(view)
    clock.seconds += HIDDEN_LOOK_SECONDS
    with pytest.raises(RecordsLostError, match="offsets 5 to 6"):
        plan.tasks(start, plan.next_end(start, UNLIMITED))


@pytest.mark.parametrize("given", [{"maxOffsetsPerTrigger": "5"}, {"isolation": "batches"}])
def test_options_that_would_divide_batches_are_refused(given: dict[str, str]):
    with pytest.raises(InvalidOptionError):
        options(**given)


@pytest.mark.parametrize("given", [{"endingOffsets": '{"t": {"0": 5}}'}, {"endingTimestamp": "5"}])
def test_an_end_within_a_batch_is_refused(given: dict[str, str]):
    base = {"bootstrap.servers": "a:1", "subscribe": "t", "isolation": "batch"}
    with pytest.raises(InvalidOptionError, match="whole batch"):
        read_source_options(base | given, is_streaming=False)
