"""Turn two positions into the ranges that tasks read, and report records that were trimmed or deleted in between.

Must not import Spark. Invariant: a record between two positions is read, or its loss is reported. No record is skipped silently.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import suppress

from raftmq.client.connection.leader_calls import EARLIEST_TIME
from raftmq.errors import NotReadyError, TopicKindMismatchError, UnknownPartitionError, UnknownTopicError
from raftmq.spark.base.offsets import Position
from raftmq.spark.cluster.cluster import ClusterView, TopicView
from raftmq.spark.cluster.subscriptions import Named, Subscription
from raftmq.spark.errors import InvalidOptionError, RaftMQSparkWarning, RecordsLostError
from raftmq.spark.source.planning import OffsetRange
from raftmq.types import TopicPartition

NAMED_MAX = 5
"""Partitions that an error names."""
LOOKS_MAX = 3
"""How often a topic may vanish between two requests about it before that is an error."""


def report_loss(message: str, fail: bool) -> None:
    """Report lost records. Raise `RecordsLostError` if `fail`, otherwise warn, and the caller continues after them."""
    if fail:
        raise RecordsLostError(message)
    warnings.warn(f"raftmq: {message}; going on without them", RaftMQSparkWarning, stacklevel=2)


def look(
    view: ClusterView, subscription: Subscription, known: Mapping[str, int], *, is_fresh: bool = False
) -> dict[str, TopicView]:
    """Return the topics that exist, in a state that is not older than the ids that the query has learned, `known`.

    Scenario: a topic is deleted and created again, a query reads the new one, and the driver dies. The next driver asks a broker that
    lags and still shows the deleted topic. Ids ascend, so the lower id does not mean that the query's own topic was deleted.

    Raises:
        NotReadyError: the brokers know only older topics than the query does.
    """
    behind: list[str] = []
    for fresh in (True,) if is_fresh else (False, True):
        topics = view.topics(subscription, is_fresh=fresh)
        behind = [name for name, topic in topics.items() if topic.topic_id < known.get(name, 0)]
        if not behind:
            return topics
    raise NotReadyError(f"the brokers that were asked know an older topic {behind[0]} than the query has read")


def first_offsets(view: ClusterView, topic_ids: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return the log start of each partition whose topic still exists under its id."""
    return edge_offsets(view, topic_ids, EARLIEST_TIME)


def look_for(view: ClusterView, known: Mapping[str, int], *, is_fresh: bool = False) -> dict[str, TopicView]:
    """Return those of the topics `known` that exist as logs, as `look` does. One that was created again as a queue topic is gone."""
    try:
        return look(view, Named(tuple(known)), known, is_fresh=is_fresh)
    except TopicKindMismatchError:
        found: dict[str, TopicView] = {}
        for topic, topic_id in known.items():
            with suppress(TopicKindMismatchError):
                found |= look(view, Named((topic,)), {topic: topic_id}, is_fresh=is_fresh)
        return found


def edge_offsets(view: ClusterView, topic_ids: Mapping[TopicPartition, int], time_ms: int) -> dict[TopicPartition, int]:
    """Return one end of the log, `EARLIEST_TIME` or `LATEST_TIME`, of each partition whose topic still exists under its id."""
    known = {partition.topic: topic_id for partition, topic_id in topic_ids.items()}
    for number in range(LOOKS_MAX):
        topics = look_for(view, known, is_fresh=number > 0)
        there = {topic for topic, topic_id in known.items() if topic in topics and topics[topic].topic_id == topic_id}
        try:
            return view.offsets({partition: time_ms for partition in topic_ids if partition.topic in there})
        except (UnknownTopicError, UnknownPartitionError):
            continue  # deleted after the first request
    raise UnknownTopicError(f"{', '.join(known)}: topics keep vanishing")


def plan_ranges(view: ClusterView, start: Position, end: Position, *, fail_on_data_loss: bool) -> list[OffsetRange]:
    """Return the ranges between two positions.

    A topic (or incarnation of one) that `start` does not know begins at its first remaining record. A new partition of a known topic
    begins at offset 0.

    Raises:
        RecordsLostError: some of the records are gone, and `fail_on_data_loss` is set.
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
            ranges.append(OffsetRange(topic, topic_id, partition, begin, stop, end.group(topic, partition)))
    return ranges


def refuse_reversed(start: Position, end: Position) -> None:
    """Refuse a batch read that ends before it starts. Raises `InvalidOptionError`, which names the first few partitions."""
    reversed_ = [
        f"{topic}/{partition} from {begin} to {stop}"
        for topic, known in end.topics.items()
        for partition, stop in known.offsets.items()
        if (begin := start.get(topic, known.topic_id, partition)) is not None and begin > stop
    ]
    if reversed_:
        raise InvalidOptionError(
            f"the read ends before it starts: {', '.join(reversed_[:NAMED_MAX])}; check the starting and ending options, and whether"
            " records up to the end were deleted"
        )


def _wanted(start: Position, end: Position) -> list[tuple[str, int, int, int | None, int]]:
    """Return topic, topic id, partition, first offset (None: the first remaining) and end of each partition with new records."""
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
