"""Find the offsets at which a query begins and a batch read ends, as the options define them.

Must not import Spark. It calls a `ClusterView` and decides nothing about data loss.
Source: "Structured Streaming + Kafka Integration Guide", startingOffsets to endingOffsetsByTimestamp.
"""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.client.connection.leader_calls import LATEST_TIME
from raftmq.errors import UnknownPartitionError, UnknownTopicError
from raftmq.spark.base.offsets import Position, TopicOffsets
from raftmq.spark.cluster.cluster import ClusterView, TopicView
from raftmq.spark.cluster.subscriptions import Assigned, Named, Subscription
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.source.options import AtOffsets, AtTimes, Bound, Everywhere, SourceOptions
from raftmq.types import TopicPartition


def existing_topics(view: ClusterView, subscription: Subscription) -> dict[str, TopicView]:
    """Return the current topics of a new query. Every topic and partition that it names must exist.

    Raises:
        UnknownTopicError, UnknownPartitionError: a topic or partition does not exist.
    """
    topics = view.topics(subscription, is_fresh=True)
    match subscription:
        case Named(names):
            missing = [name for name in names if name not in topics]
        case Assigned(partitions):
            missing = sorted({partition.topic for partition in partitions} - topics.keys())
        case _:
            missing = []
    if missing:
        raise UnknownTopicError(f"there is no topic {', '.join(map(repr, missing))}")
    if isinstance(subscription, Assigned):
        counts = view.topics(Named(tuple(topics)))
        for topic, number in sorted(subscription.partitions):
            if number not in counts[topic].partitions:
                raise UnknownPartitionError(f"assign: {topic} has no partition {number}")
    return topics


def starting_position(view: ClusterView, options: SourceOptions, topics: Mapping[str, TopicView]) -> Position:
    """Return the position at which a new query begins.

    Raises `InvalidOptionError` when the options do not name exactly these partitions, or when a log has not reached an offset or time.
    """
    missing = LATEST_TIME if options.latest_without_match else None
    return _position(view, "starting", options.starting, topics, missing)


def ending_position(view: ClusterView, options: SourceOptions, topics: Mapping[str, TopicView]) -> Position:
    """Return the position at which a batch read ends. A time after the last record means the end of the partition."""
    return _position(view, "ending", options.ending, topics, LATEST_TIME)


def position_at(view: ClusterView, topics: Mapping[str, TopicView], time_ms: int) -> Position:
    """Return the position of all partitions at one time. `EARLIEST_TIME` and `LATEST_TIME` are the ends of the log."""
    return _position(view, "", Everywhere(time_ms), topics, None)


def _position(
    view: ClusterView, side: str, bound: Bound, topics: Mapping[str, TopicView], without_match: int | None
) -> Position:
    partitions = [
        TopicPartition(topic, number) for topic, known in topics.items() for number in sorted(known.partitions)
    ]
    match bound:
        case Everywhere(time_ms):
            found = _at_times(view, side, dict.fromkeys(partitions, time_ms), without_match)
        case AtTimes(times_ms):
            _check_complete(f"{side}OffsetsByTimestamp", times_ms, partitions)
            found = _at_times(view, side, times_ms, without_match)
        case AtOffsets(offsets):
            _check_complete(f"{side}Offsets", offsets, partitions)
            relative = {partition: offset for partition, offset in offsets.items() if offset < 0}
            _check_reached(view, f"{side}Offsets", {p: offset for p, offset in offsets.items() if offset >= 0})
            found = {**offsets, **view.offsets(relative)}  # -2 and -1 are also the times of the two ends
    return Position(
        {
            topic: TopicOffsets(
                known.topic_id, {number: found[TopicPartition(topic, number)] for number in sorted(known.partitions)}
            )
            for topic, known in topics.items()
        }
    )


def _check_complete(name: str, given: Mapping[TopicPartition, int], partitions: list[TopicPartition]) -> None:
    wrong = sorted(set(given) ^ set(partitions))
    if wrong:
        problems = ", ".join(
            f"{topic}/{number} {'is not read' if (topic, number) in given else 'is missing'}"
            for topic, number in wrong[:5]
        )
        raise InvalidOptionError(f"{name} must name every partition that is read, and no other: {problems}")


def _check_reached(view: ClusterView, name: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Refuse an offset that its partition has not reached.

    Such an offset was meant for another topic, or for this one before it was created again. A streaming query would silently wait for
    that offset and skip all records before it. A batch read would wait until it times out.
    """
    ends = view.offsets(
        dict.fromkeys(offsets, LATEST_TIME)
    )  # confirmed by a quorum: never below an offset that was read
    beyond = sorted(partition for partition, offset in offsets.items() if offset > ends[partition])
    if beyond:
        problems = ", ".join(f"{p.topic}/{p.partition} ends at {ends[p]}, before {offsets[p]}" for p in beyond[:5])
        raise InvalidOptionError(f"{name}: {problems}; -1 is the latest offset")


def _at_times(
    view: ClusterView, side: str, times_ms: Mapping[TopicPartition, int], without_match: int | None
) -> dict[TopicPartition, int]:
    found = view.offsets(times_ms)
    unmatched = sorted(partition for partition, offset in found.items() if offset < 0)
    if not unmatched:
        return found
    if without_match is None:
        topic, number = unmatched[0]
        raise InvalidOptionError(
            f"{topic}/{number} has no record with a timestamp at or after the {side} time {times_ms[unmatched[0]]};"
            " set startingOffsetsByTimestampStrategy=latest to begin at the end there"
        )
    return {**found, **view.offsets(dict.fromkeys(unmatched, without_match))}
