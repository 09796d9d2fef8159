"""From two positions to the ranges that tasks read: what is new, what was trimmed or deleted meanwhile, and what that means.

Must not import Spark. Invariant: a record between two positions is read, or its loss is reported: nothing is skipped in silence.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from raftmq.client.connection.leader_calls import EARLIEST_TIME
from raftmq.errors import NotReadyError, UnknownPartitionError, UnknownTopicError
from raftmq.spark.cluster import ClusterView, TopicView
from raftmq.spark.errors import RaftMQSparkWarning, RecordsLostError
from raftmq.spark.offsets import Position
from raftmq.spark.planning import OffsetRange
from raftmq.spark.source_options import Named, Subscription
from raftmq.types import TopicPartition

LOOKS_MAX = 3
"""How often a topic may vanish between two questions about it before that is an error."""


def report_loss(message: str, fail: bool) -> None:
    """Records are gone. Raises `RecordsLostError` if `fail`; otherwise warns, and the caller goes on behind them."""
    if fail:
        raise RecordsLostError(message)
    warnings.warn(f"raftmq: {message}; going on without them", RaftMQSparkWarning, stacklevel=2)


def look(
    view: ClusterView, subscription: Subscription, known: Mapping[str, int], *, is_fresh: bool = False
) -> dict[str, TopicView]:
    """The topics there are, as of a moment that is not before the one in which the query learned their ids, `known`.

    Scenario: a topic is deleted and created again, and a query reads it; the driver dies. The next driver hears of the topic from a broker that
    is behind and shows the topic that was deleted. Ids ascend, so the lower one is no reason to call the query's own topic deleted.

    Raises:
        NotReadyError: the brokers do not know yet what the query knows.
    """
    behind: list[str] = []
    for fresh in (True,) if is_fresh else (False, True):
        topics = view.topics(subscription, is_fresh=fresh)
        behind = [name for name, topic in topics.items() if topic.topic_id < known.get(name, 0)]
        if not behind:
            return topics
    raise NotReadyError(f"the brokers that were asked know an older topic {behind[0]} than the query has read")


def first_offsets(view: ClusterView, topic_ids: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The log start of each partition whose topic, the one with that id, is still there."""
    known = {partition.topic: topic_id for partition, topic_id in topic_ids.items()}
    for number in range(LOOKS_MAX):
        topics = look(view, Named(tuple(known)), known, is_fresh=number > 0)
        there = {topic for topic, topic_id in known.items() if topic in topics and topics[topic].topic_id == topic_id}
        try:
            return view.offsets({partition: EARLIEST_TIME for partition in topic_ids if partition.topic in there})
        except (UnknownTopicError, UnknownPartitionError):
            continue  # deleted after the first question
    raise UnknownTopicError(f"{', '.join(known)}: topics keep vanishing")


def plan_ranges(view: ClusterView, start: Position, end: Position, *, fail_on_data_loss: bool) -> list[OffsetRange]:
    """What lies between two positions.

    A topic (or incarnation of one) that `start` does not know begins at its first record that is left, a new partition of a known one
    at offset 0.

    Raises:
        RecordsLostError: some of it is gone, and `fail_on_data_loss`.
    """
    start = end.initial or start
    wanted = _wanted(start, end)
    ids = {TopicPartition(topic, partition): topic_id for topic, topic_id, partition, _, _ in wanted}
    firsts = first_offsets(view, ids) if ids else {}
    ranges = []
    for topic, topic_id, partition, begin, stop in wanted:
        earliest = firsts.get(TopicPartition(topic, partition))
        if earliest is None:
            first = "the first" if begin is None else begin
            report_loss(
                f"{topic}/{partition}: offsets {first} to {stop - 1} are gone with their topic", fail_on_data_loss
            )
            continue
        first_left = min(earliest, stop)
        if begin is not None and begin < first_left:
            report_loss(
                f"{topic}/{partition}: offsets {begin} to {first_left - 1} were deleted before they were read",
                fail_on_data_loss,
            )
        begin = first_left if begin is None else max(begin, first_left)
        if begin < stop:
            ranges.append(OffsetRange(topic, topic_id, partition, begin, stop))
    return ranges


def _wanted(start: Position, end: Position) -> list[tuple[str, int, int, int | None, int]]:
    """Topic, its id, partition, first offset (None: whatever is left) and end, of each partition with something between."""
    wanted = []
    for topic, known in end.topics.items():
        is_known = topic in start.topics and start.topics[topic].topic_id == known.topic_id
        for partition, stop in known.offsets.items():
            begin = start.get(topic, known.topic_id, partition)
            if begin is None and is_known:
                begin = 0
            if (begin or 0) < stop:
                wanted.append((topic, known.topic_id, partition, begin, stop))
    return wanted
