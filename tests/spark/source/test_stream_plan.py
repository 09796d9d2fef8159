"""The ranges that each trigger of a query reads, planned for a cluster in a dictionary."""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.errors import NotReadyError, UnknownPartitionError, UnknownTopicError
from raftmq.spark.base.offsets import Position, TopicOffsets, position_from_json
from raftmq.spark.errors import InvalidOptionError, RaftMQSparkWarning, RecordsLostError
from raftmq.spark.source.options import SourceOptions, read_source_options
from raftmq.spark.source.planning import OffsetRange
from raftmq.spark.source.range_plan import refuse_reversed
from raftmq.spark.source.stream_plan import UNLIMITED, Limits, StreamPlan, check_blind_cap
from raftmq.types import TopicPartition

from tests.support.spark.fake_view import FakeView


def options(**given: str) -> SourceOptions:
    base = {"bootstrap.servers": "a:1"} | ({} if {"subscribePattern", "assign"} & given.keys() else {"subscribe": "t"})
    return read_source_options(base | given, is_streaming=True)[0]


def position(**topics: dict[int, int]) -> Position:
    """Return a position in topics whose ids are 1, 2, … in the given order."""
    return Position({name: TopicOffsets(number, offsets) for number, (name, offsets) in enumerate(topics.items(), 1)})


def spans(tasks: list[tuple[OffsetRange, ...]]) -> set[tuple[str, int, int, int]]:
    return {(range_.topic, range_.partition, range_.start, range_.end) for (range_,) in tasks}


def again(value: Position) -> Position:
    """Return the position as Spark returns it from a checkpoint."""
    return position_from_json(json.loads(json.dumps(value.to_json())))


def test_a_new_query_begins_at_the_end_and_reads_new_records() -> None:
    view = FakeView()
    view.create("t", 5, 7)
    plan = StreamPlan(view, options())
    start = plan.initial()
    assert start == position(t={0: 5, 1: 7})
    assert plan.next_end(start, UNLIMITED) is start
    view.grow("t", 0, 8)
    assert plan.initial() == start  # Spark asks again until the first batch is logged
    end = plan.next_end(start, UNLIMITED)
    assert spans(plan.tasks(start, end)) == {("t", 0, 5, 8)}
    assert plan.next_end(end, UNLIMITED) is end


def test_a_crash_in_the_first_batch_loses_nothing() -> None:
    """At the restart `latest` is another offset, so the end of the first batch contains its start."""
    view = FakeView()
    view.create("t", 5)
    first = StreamPlan(view, options())
    view_start = first.initial()
    view.grow("t", 0, 8)
    logged = again(first.next_end(view_start, UNLIMITED))
    view.grow("t", 0, 20)
    second = StreamPlan(view, options())
    assert spans(second.tasks(second.initial(), logged)) == {("t", 0, 5, 8)}
    after = second.next_end(logged, UNLIMITED)
    assert spans(second.tasks(logged, after)) == {("t", 0, 8, 20)}
    assert after.initial is None


@pytest.mark.parametrize("known", [True, False])
def test_the_start_is_found_although_spark_before_4_2_does_not_pass_it(known: bool) -> None:
    """A continued query learns its start from `partitions(offset, offset)`. A new query asks for the latest offset first."""
    view = FakeView()
    view.create("t", 5)
    plan = StreamPlan(view, options(startingOffsets="earliest"))
    if known:
        assert plan.tasks(position(t={0: 2}), position(t={0: 2})) == []
    end = plan.next_end(None, Limits(rows_max=2))
    assert end.topics == position(t={0: 4 if known else 2}).topics
    plan.tasks(position(t={0: 2}) if known else plan.initial(), end)
    assert plan.next_end(None, Limits(rows_max=2)).topics == position(t={0: 5 if known else 4}).topics


def test_new_partitions_are_read_from_their_first_record() -> None:
    view = FakeView()
    view.create("t", 5)
    plan = StreamPlan(view, options())
    start = plan.initial()
    view.grow("t", 1, 0)
    assert plan.next_end(start, UNLIMITED) is start  # the partition is empty, so there is no batch
    view.grow("t", 1, 3)
    end = plan.next_end(start, UNLIMITED)
    assert spans(plan.tasks(start, end)) == {("t", 1, 0, 3)}


def test_new_topics_of_a_pattern_are_read_from_their_first_record() -> None:
    view = FakeView()
    view.create("t1", 5)
    plan = StreamPlan(view, options(subscribePattern="t."))
    start = plan.initial()
    view.create("t2", 4)
    view.trim("t2", 0, 1)  # before the query knew the topic
    view.create("other", 4)
    end = plan.next_end(start, UNLIMITED)
    assert spans(plan.tasks(start, end)) == {("t2", 0, 1, 4)}


def test_a_cap_is_divided_in_proportion() -> None:
    view = FakeView()
    view.create("t", 900, 100)
    plan = StreamPlan(view, options(startingOffsets="earliest"))
    end = plan.next_end(plan.initial(), Limits(rows_max=500))
    assert end.topics == position(t={0: 450, 1: 50}).topics


def test_a_trigger_waits_for_the_minimum_and_at_most_for_the_delay() -> None:
    view, now = FakeView(), [0.0]
    view.create("t", 0)
    plan = StreamPlan(view, options(minOffsetsPerTrigger="10", maxTriggerDelay="60s"), lambda: now[0])
    limits = Limits(rows_min=10)
    view_start = plan.initial()
    view.grow("t", 0, 3)
    first = plan.next_end(view_start, limits)  # the first trigger does not wait
    assert first.topics == position(t={0: 3}).topics
    view.grow("t", 0, 12)
    assert plan.next_end(first, limits) is first
    now[0] = 59.9
    assert plan.next_end(first, limits) is first
    view.grow("t", 0, 13)
    second = plan.next_end(first, limits)
    assert second.topics == position(t={0: 13}).topics
    view.grow("t", 0, 14)
    now[0] = 119.8
    assert plan.next_end(second, limits) is second
    now[0] = 119.9
    assert plan.next_end(second, limits).topics == position(t={0: 14}).topics


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=4),
    st.integers(1, 25),
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=10),
)
def test_available_now_reads_the_records_of_its_start_and_ends(
    counts: list[int], rows_max: int, growth: list[tuple[int, int]]
) -> None:
    """Records that are written during the query do not extend it, even in new partitions."""
    view = FakeView()
    view.create("t", *counts)
    plan = StreamPlan(view, options(startingOffsets="earliest", minOffsetsPerTrigger="5"))
    plan.prepare_available_now()
    at, triggers, seen = plan.initial(), 0, dict.fromkeys(range(len(counts)), 0)
    while True:
        if growth:
            partition, more = growth.pop()
            view.grow("t", partition, len(view.by_name["t"].logs.get(partition, [])) + more)
        end = plan.next_end(at, Limits(rows_max=rows_max, rows_min=5))
        if end is at:
            break
        for (range_,) in plan.tasks(at, end):
            assert range_.start == seen[range_.partition]
            seen[range_.partition] = range_.end
        at, triggers = again(end), triggers + 1
    assert list(seen.values()) == counts
    assert triggers == -(-sum(counts) // rows_max)


def test_an_offset_never_decreases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new leader may briefly report a lower end."""
    view = FakeView()
    view.create("t", 3, 4)
    plan = StreamPlan(view, options())
    start, offsets, answers = position(t={0: 5, 1: 3}), view.offsets, []

    def lower_at_first(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        answers.append(offsets(times))
        view.grow("t", 0, 5)
        return answers[-1]

    monkeypatch.setattr(view, "offsets", lower_at_first)
    end = plan.next_end(start, UNLIMITED)
    assert answers == [{TopicPartition("t", 0): 3, TopicPartition("t", 1): 4}, {TopicPartition("t", 0): 5}]
    assert end == position(t={0: 5, 1: 4})


def test_records_lost_in_a_recovery_are_reported_and_hide_no_later_ones() -> None:
    """The query waited for its offset without a word, and left out the records that the partition got until then."""
    view = FakeView()
    view.create("t", 50, 50)
    start = position(t={0: 100, 1: 50})
    with pytest.raises(RecordsLostError, match="t/0: the query has reached offset 100, and the log ends at 50"):
        StreamPlan(view, options()).next_end(start, UNLIMITED)
    plan = StreamPlan(view, options(failOnDataLoss="false"))
    plan.prepare_available_now()
    with pytest.warns(RaftMQSparkWarning, match="the log ends at 50"):
        end = plan.next_end(start, UNLIMITED)
    assert end == position(t={0: 50, 1: 50})
    assert plan.tasks(start, again(end)) == []
    view.grow("t", 0, 60)
    later = StreamPlan(view, options(failOnDataLoss="false"))
    assert spans(later.tasks(end, later.next_end(end, UNLIMITED))) == {("t", 0, 50, 60)}


def test_a_repeated_batch_whose_records_a_recovery_has_lost_is_no_endless_wait() -> None:
    view = FakeView()
    view.create("t", 50)
    start, end = position(t={0: 40}), position(t={0: 100})
    with pytest.raises(RecordsLostError, match="the log ends at 50"):
        StreamPlan(view, options()).tasks(start, end)
    with pytest.warns(RaftMQSparkWarning, match="the log ends at 50"):
        tasks = StreamPlan(view, options(failOnDataLoss="false")).tasks(start, end)
    assert spans(tasks) == {("t", 0, 40, 50)}


@pytest.mark.parametrize("fail", [True, False])
def test_records_that_take_offsets_of_lost_ones_are_not_skipped(fail: bool) -> None:
    """The partition has the query's offset again, so its end shows no loss, but its group is another one."""
    view = grouped(100, 50)
    plan = StreamPlan(view, options(startingOffsets="earliest"))
    start = again(plan.next_end(plan.initial(), UNLIMITED))
    assert start.topics["t"].groups == {0: 100, 1: 101}
    view.recover("t", 0, 40)
    view.grow("t", 0, 120)
    view.grow("t", 1, 60)
    if fail:
        with pytest.raises(RecordsLostError, match="t/0: the query has reached offset 100, and records from offset 40"):
            StreamPlan(view, options()).next_end(start, UNLIMITED)
        return
    plan = StreamPlan(view, options(failOnDataLoss="false"))
    plan.prepare_available_now()
    with pytest.warns(RaftMQSparkWarning, match="records from offset 40 on were lost"):
        back = plan.next_end(start, UNLIMITED)
    assert plan.tasks(start, again(back)) == []
    end = plan.next_end(again(back), UNLIMITED)
    assert spans(plan.tasks(back, end)) == {("t", 0, 40, 120), ("t", 1, 50, 60)}
    assert end.topics["t"].groups == {0: 200, 1: 101}


def test_a_recovery_that_lost_nothing_of_a_query_makes_no_batch() -> None:
    view = grouped(100)
    plan = StreamPlan(view, options(startingOffsets="earliest"))
    start = again(plan.next_end(plan.initial(), UNLIMITED))
    view.recover("t", 0, 100)
    plan = StreamPlan(view, options())
    assert [plan.next_end(start, UNLIMITED) for _ in range(3)] == [start] * 3
    assert plan.next_end(start, UNLIMITED) is start
    assert view.kept_end_calls == 1, "the answer never changes"
    view.grow("t", 0, 120)
    end = plan.next_end(start, UNLIMITED)
    assert end.topics["t"].groups == {0: 200}
    ((range_,),) = plan.tasks(start, end)
    assert range_ == OffsetRange("t", 1, 0, 100, 120, 200)


def test_offsets_of_an_earlier_version_get_groups_with_the_next_records() -> None:
    view = grouped(50)
    start, plan = position(t={0: 50}), StreamPlan(view, options())
    assert plan.next_end(start, UNLIMITED) is start
    view.grow("t", 0, 60)
    assert plan.next_end(start, UNLIMITED).topics["t"].groups == {0: 100}


def test_a_repeated_batch_reads_no_record_that_took_the_offset_of_a_lost_one() -> None:
    """The records up to its end are others than those that it may have written already."""
    view = grouped(40)
    first = StreamPlan(view, options(startingOffsets="earliest"))
    start = again(first.next_end(first.initial(), UNLIMITED))
    view.grow("t", 0, 100)
    end = again(first.next_end(start, UNLIMITED))
    view.recover("t", 0, 50)
    view.grow("t", 0, 120)
    with pytest.raises(RecordsLostError, match="records from offset 50 on were lost"):
        StreamPlan(view, options()).tasks(start, end)
    plan = StreamPlan(view, options(failOnDataLoss="false"))
    with pytest.warns(RaftMQSparkWarning, match="records from offset 50 on were lost"):
        assert spans(plan.tasks(start, end)) == {("t", 0, 40, 50)}
    with pytest.warns(RaftMQSparkWarning, match="records from offset 50 on were lost"):
        back = plan.next_end(end, UNLIMITED)
    assert spans(plan.tasks(back, plan.next_end(back, UNLIMITED))) == {("t", 0, 50, 120)}


def test_new_records_below_the_kept_end_are_not_left_out_if_the_log_is_shorter_than_the_offset() -> None:
    view = grouped(100)
    plan = StreamPlan(view, options(startingOffsets="earliest", failOnDataLoss="false"))
    start = plan.next_end(plan.initial(), UNLIMITED)
    view.recover("t", 0, 40)
    view.grow("t", 0, 60)
    with pytest.warns(RaftMQSparkWarning, match="records from offset 40 on were lost"):
        back = plan.next_end(start, UNLIMITED)
    assert back.topics["t"].offsets == {0: 40}
    assert spans(plan.tasks(back, plan.next_end(back, UNLIMITED))) == {("t", 0, 40, 60)}


def test_a_view_that_is_behind_names_no_earlier_group() -> None:
    """The next driver would take the records that were read since the recovery for lost ones."""
    view = grouped(50)
    plan = StreamPlan(view, options(startingOffsets="earliest"))
    view.recover("t", 0, 40)
    start = again(plan.next_end(plan.initial(), UNLIMITED))
    view.grow("t", 0, 60)
    view.by_name["t"].groups = {}
    assert plan.next_end(start, UNLIMITED).topics["t"].groups == {0: 200}


def grouped(*counts: int) -> FakeView:
    """Return a view of the topic t that shows the partitions' Raft groups."""
    view = FakeView()
    view.names_groups = True
    view.create("t", *counts)
    return view


def test_a_topic_that_was_created_again_as_a_queue_is_gone() -> None:
    """With a pattern the query failed for good, although it may lose records."""
    view = FakeView()
    view.create("t1", 10)
    view.create("t2", 10)
    start = position(t1={0: 4}, t2={0: 3})
    view.delete("t1")
    view.create_queue("t1")
    with pytest.raises(RecordsLostError, match="topic t1 was deleted"):
        StreamPlan(view, options(subscribePattern="t.")).next_end(start, UNLIMITED)
    plan = StreamPlan(view, options(subscribePattern="t.", failOnDataLoss="false"))
    with pytest.warns(RaftMQSparkWarning, match="topic t1 was deleted"):
        end = plan.next_end(start, UNLIMITED)
    assert spans(plan.tasks(start, end)) == {("t2", 0, 3, 10)}
    logged = position(t1={0: 6}, t2={0: 5})
    with pytest.warns(RaftMQSparkWarning, match="t1/0: offsets 4 to 5 are gone with their topic"):
        assert spans(plan.tasks(start, logged)) == {("t2", 0, 3, 5)}


def test_trimmed_records_are_an_error_or_are_skipped() -> None:
    view = FakeView()
    view.create("t", 10)
    view.trim("t", 0, 6)
    start = position(t={0: 2})
    strict = StreamPlan(view, options())
    end = strict.next_end(start, UNLIMITED)
    with pytest.raises(RecordsLostError, match=r"offsets 2 to 5 were deleted.*failOnDataLoss=false"):
        strict.tasks(start, end)
    lenient = StreamPlan(view, options(failOnDataLoss="false"))
    with pytest.warns(RaftMQSparkWarning, match="offsets 2 to 5 were deleted"):
        assert spans(lenient.tasks(start, lenient.next_end(start, UNLIMITED))) == {("t", 0, 6, 10)}


def test_trimmed_records_do_not_count_for_a_cap() -> None:
    view = FakeView()
    view.create("t", 1_000)
    view.trim("t", 0, 900)
    plan = StreamPlan(view, options(failOnDataLoss="false"))
    assert plan.next_end(position(t={0: 0}), Limits(rows_max=10)) == position(t={0: 910})


def test_a_deleted_topic_is_an_error_or_is_dropped() -> None:
    view = FakeView()
    view.create("t", 10)
    view.create("u", 10)
    start = position(t={0: 2}, u={0: 10})
    view.delete("t")
    strict = StreamPlan(view, options(subscribe="t,u"))
    with pytest.raises(RecordsLostError, match="topic t was deleted"):
        strict.next_end(start, UNLIMITED)
    lenient = StreamPlan(view, options(subscribe="t,u", failOnDataLoss="false"))
    with pytest.warns(RaftMQSparkWarning, match="topic t was deleted"):
        end = lenient.next_end(start, UNLIMITED)
    assert end == Position({"u": TopicOffsets(2, {0: 10})})
    assert lenient.tasks(start, end) == []
    with pytest.warns(RaftMQSparkWarning, match="there is no topic t"):
        assert lenient.next_end(end, UNLIMITED) is end
    view.create("t", 3)  # the name returns as another topic, all of which is new
    after = lenient.next_end(end, UNLIMITED)
    assert spans(lenient.tasks(end, after)) == {("t", 0, 0, 3)}


def test_a_topic_that_was_created_again_is_not_taken_for_the_old_one() -> None:
    view = FakeView()
    view.create("t", 10)
    start = position(t={0: 4})
    view.delete("t")
    view.create("t", 20)
    with pytest.raises(RecordsLostError, match="deleted and created again"):
        StreamPlan(view, options()).next_end(start, UNLIMITED)
    lenient = StreamPlan(view, options(failOnDataLoss="false"))
    with pytest.warns(RaftMQSparkWarning, match="deleted and created again"):
        end = lenient.next_end(start, UNLIMITED)
    assert spans(lenient.tasks(start, end)) == {("t", 0, 0, 20)}


def test_a_repeated_batch_of_a_deleted_topic_is_an_error_or_is_skipped() -> None:
    view = FakeView()
    view.create("t", 10)
    start, end = position(t={0: 4}), position(t={0: 9})
    view.delete("t")
    with pytest.raises(RecordsLostError, match="offsets 4 to 8 are gone with their topic"):
        StreamPlan(view, options()).tasks(start, end)
    with pytest.warns(RaftMQSparkWarning, match="offsets 4 to 8 are gone"):
        assert StreamPlan(view, options(failOnDataLoss="false")).tasks(start, end) == []


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stale_view_of_topics_is_refreshed_and_loses_nothing(fails: str) -> None:
    """A new driver learns of topics from a broker that does not know the last changes yet."""
    view = FakeView()
    view.create("t", 10)
    old = deepcopy(view.by_name)
    view.delete("t")
    view.create("t", 20, 20)
    start = Position({"t": TopicOffsets(2, {0: 5, 1: 0})})
    truth, view.by_name = view.by_name, old
    view.hold()
    view.by_name = truth
    plan = StreamPlan(view, options(failOnDataLoss=fails))
    end = plan.next_end(start, UNLIMITED)
    assert view.looks == [False, True]
    assert spans(plan.tasks(start, end)) == {("t", 0, 5, 20), ("t", 1, 0, 20)}


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_repeated_batch_finds_a_partition_that_is_not_known_yet(fails: str) -> None:
    view = FakeView()
    view.create("t", 10)
    view.hold()
    view.grow("t", 1, 5)
    plan = StreamPlan(view, options(failOnDataLoss=fails))
    assert spans(plan.tasks(position(t={0: 10}), position(t={0: 10, 1: 5}))) == {("t", 1, 0, 5)}


def test_brokers_that_stay_stale_are_a_retriable_error_and_not_a_loss() -> None:
    view = FakeView()
    view.create("t", 10)
    start = Position({"t": TopicOffsets(2, {0: 5})})
    plan = StreamPlan(view, options(failOnDataLoss="false"))
    with pytest.raises(NotReadyError, match="know an older topic t"):
        plan.next_end(start, UNLIMITED)
    with pytest.raises(NotReadyError, match="know an older topic t"):
        plan.tasks(start, Position({"t": TopicOffsets(2, {0: 7})}))


def test_a_topic_that_was_just_deleted_is_looked_up_again() -> None:
    """The client's table still contains the topic, but the leader of its partition knows that it was deleted."""
    view = FakeView()
    view.create("t", 10)
    view.create("u", 10)
    start = position(t={0: 2}, u={0: 9})
    view.hold()
    view.delete("t")
    plan = StreamPlan(view, options(subscribe="t,u", failOnDataLoss="false"))
    with pytest.warns(RaftMQSparkWarning, match="topic t was deleted"):
        end = plan.next_end(start, UNLIMITED)
    assert end == Position({"u": TopicOffsets(2, {0: 10})})


def test_available_now_ends_with_the_existing_records_and_not_with_a_stale_view() -> None:
    view = FakeView()
    view.create("t", 3)
    view.hold()
    view.grow("t", 1, 4)
    plan = StreamPlan(view, options(startingOffsets="earliest"))
    plan.prepare_available_now()
    end = plan.next_end(plan.initial(), UNLIMITED)
    assert end.topics == position(t={0: 3, 1: 4}).topics


def test_a_new_topic_that_was_deleted_before_it_was_read_is_a_loss() -> None:
    view = FakeView()
    view.create("t1", 1)
    plan = StreamPlan(view, options(subscribePattern="t."))
    start = plan.initial()
    view.create("t2", 4)
    end = plan.next_end(start, UNLIMITED)
    view.delete("t2")
    with pytest.raises(RecordsLostError, match="t2/0: offsets the first to 3 are gone with their topic"):
        plan.tasks(start, end)


def test_a_topic_that_is_no_longer_subscribed_to_keeps_its_offsets() -> None:
    view = FakeView()
    view.create("t", 10)
    view.create("u", 10)
    start = position(t={0: 4}, u={0: 10})
    without = StreamPlan(view, options(subscribe="u"))
    assert without.next_end(start, UNLIMITED) is start
    view.grow("u", 0, 11)
    end = without.next_end(start, UNLIMITED)
    assert spans(without.tasks(start, end)) == {("u", 0, 10, 11)}
    again_with = StreamPlan(view, options(subscribe="t,u"))
    assert spans(again_with.tasks(end, again_with.next_end(end, UNLIMITED))) == {("t", 0, 4, 10)}
    view.delete("t")  # the query without it does not read it, so it loses nothing
    assert StreamPlan(view, options(subscribe="u")).next_end(end, UNLIMITED) is end
    with pytest.raises(RecordsLostError, match="topic t was deleted"):
        StreamPlan(view, options(subscribe="t,u")).next_end(end, UNLIMITED)


def test_ranges_are_split_into_the_minimum_number_of_partitions() -> None:
    view = FakeView()
    view.create("t", 100)
    plan = StreamPlan(view, options(startingOffsets="earliest", minPartitions="4"))
    start = plan.initial()
    tasks = plan.tasks(start, plan.next_end(start, UNLIMITED))
    assert spans(tasks) == {("t", 0, n, n + 25) for n in (0, 25, 50, 75)}


def test_small_ranges_are_read_by_one_task_if_the_options_want_it() -> None:
    view = FakeView()
    view.create("t", 2, 0, 3, 100, 1)
    plan = StreamPlan(view, options(startingOffsets="earliest", minRecordsPerPartition="5"))
    start = plan.initial()
    tasks = plan.tasks(start, plan.next_end(start, UNLIMITED))
    assert [[range_.partition for range_ in task] for task in tasks] == [[0, 2], [3], [4]]


def test_a_query_can_start_at_a_time() -> None:
    view = FakeView()
    view.create("t", 5, 3)
    assert StreamPlan(view, options(startingTimestamp="1002")).initial() == position(t={0: 2, 1: 2})
    with pytest.raises(
        InvalidOptionError, match="t/1 has no record with a timestamp at or after the starting time 1004"
    ):
        StreamPlan(view, options(startingTimestamp="1004")).initial()
    lenient = options(startingTimestamp="1004", startingOffsetsByTimestampStrategy="latest")
    assert StreamPlan(view, lenient).initial() == position(t={0: 4, 1: 3})


def test_starting_offsets_must_name_exactly_the_subscribed_partitions() -> None:
    view = FakeView()
    view.create("t", 5, 3)
    given = '{"t": {"0": 1, "1": -1}}'
    assert StreamPlan(view, options(startingOffsets=given)).initial() == position(t={0: 1, 1: 3})
    with pytest.raises(InvalidOptionError, match="t/1 is missing"):
        StreamPlan(view, options(startingOffsets='{"t": {"0": 1}}')).initial()
    with pytest.raises(InvalidOptionError, match="u/0 is not read"):
        StreamPlan(view, options(startingOffsets='{"t": {"0": 1, "1": 1}, "u": {"0": 0}}')).initial()


def test_a_starting_offset_beyond_the_end_is_refused() -> None:
    """The query would silently wait for it and skip all earlier records."""
    view = FakeView()
    view.create("t", 5)
    assert StreamPlan(view, options(startingOffsets='{"t": {"0": 5}}')).initial() == position(t={0: 5})
    with pytest.raises(InvalidOptionError, match="startingOffsets: t/0 ends at 5, before 6"):
        StreamPlan(view, options(startingOffsets='{"t": {"0": 6}}')).initial()


def test_a_new_query_is_refused_if_its_topics_do_not_exist() -> None:
    view = FakeView()
    view.create("t", 5)
    with pytest.raises(UnknownTopicError, match="'u'"):
        StreamPlan(view, options(subscribe="t,u")).initial()
    with pytest.raises(UnknownPartitionError, match="t has no partition 3"):
        StreamPlan(view, options(assign='{"t": [0, 3]}')).initial()


def test_a_cap_without_admission_control_needs_a_second_option() -> None:
    check_blind_cap(options())
    check_blind_cap(options(maxOffsetsPerTrigger="5", allowCapWithoutAdmissionControl="true"))
    for name in ("maxOffsetsPerTrigger", "minOffsetsPerTrigger"):
        with pytest.raises(InvalidOptionError, match="allowCapWithoutAdmissionControl"):
            check_blind_cap(replace(options(**{name: "5"})))


def test_a_batch_read_that_ends_before_it_starts_is_refused() -> None:
    """Its rows were left out in silence."""
    start = position(t={0: 5, 1: 2}, u={0: 0})
    refuse_reversed(start, position(t={0: 5, 1: 9}, u={0: 0}))
    with pytest.raises(InvalidOptionError, match="t/0 from 5 to 4"):
        refuse_reversed(start, position(t={0: 4, 1: 9}, u={0: 0}))
