"""Finds the offsets that the options mean: where a query begins, and where a batch read ends.

Must not import Spark; asks a `ClusterView` and decides nothing about data loss.
Source: "Structured Streaming + Kafka Integration Guide", startingOffsets to endingOffsetsByTimestamp.
"""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.client.connection.leader_calls import LATEST_TIME
from raftmq.errors import UnknownPartitionError, UnknownTopicError
from raftmq.spark.cluster import ClusterView, TopicView
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.offsets import Position, TopicOffsets
from raftmq.spark.source_options import (
    Assigned,
    AtOffsets,
    AtTimes,
    Bound,
    Everywhere,
    Named,
    SourceOptions,
    Subscription,
)
from raftmq.types import TopicPartition


def existing_topics(view: ClusterView, subscription: Subscription) -> dict[str, TopicView]:
    """The topics of a query that begins, as they are now: every one that it names must be there.

    Raises:
        UnknownTopicError, UnknownPartitionError: one is not.
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
    """Where a new query begins. Raises `InvalidOptionError` when the options do not say it for exactly these partitions."""
    missing = LATEST_TIME if options.latest_without_match else None
    return _position(view, "starting", options.starting, topics, missing)


def ending_position(view: ClusterView, options: SourceOptions, topics: Mapping[str, TopicView]) -> Position:
    """Where a batch read ends. A time after the last record is the end of the partition."""
    return _position(view, "ending", options.ending, topics, LATEST_TIME)


def position_at(view: ClusterView, topics: Mapping[str, TopicView], time_ms: int) -> Position:
    """All partitions at one end."""
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
            found = {**offsets, **view.offsets(relative)}  # -2 and -1 are the times of the two ends, too
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
    """An offset that a partition has not reached was meant for another topic, or for this one before it was made again.

    A query would wait for that offset without a word and leave out all before it; a batch read would wait until it times out.
    """
    ends = view.offsets(dict.fromkeys(offsets, LATEST_TIME))  # confirmed by a quorum: never behind what was read
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
            f"{topic}/{number} has no record appended at or after the {side} time {times_ms[unmatched[0]]};"
            " set startingOffsetsByTimestampStrategy=latest to begin at the end there"
        )
    return {**found, **view.offsets(dict.fromkeys(unmatched, without_match))}
