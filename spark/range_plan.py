"""From two positions to the ranges that tasks read: what is new, what was trimmed or deleted meanwhile, and what that means.

Must not import Spark. Invariant: a record between two positions is read, or its loss is reported: nothing is skipped in silence.
"""

from __future__ import annotations

import warnings

from raftmq.client.leader_calls import EARLIEST_TIME
from raftmq.errors import UnknownTopicError
from raftmq.spark.cluster import ClusterView
from raftmq.spark.errors import RaftMQSparkWarning, RecordsLostError
from raftmq.spark.offsets import Position
from raftmq.spark.planning import OffsetRange
from raftmq.spark.source_options import Named
from raftmq.types import TopicPartition

LOOKS_MAX = 3
"""How often a topic may vanish between two questions about it before that is an error."""


def report_loss(message: str, fail: bool) -> None:
    """Records are gone. Raises `RecordsLostError` if `fail`; otherwise warns, and the caller goes on behind them."""
    if fail:
        raise RecordsLostError(message)
    warnings.warn(f"raftmq: {message}; going on without them", RaftMQSparkWarning, stacklevel=2)


def first_offsets(view: ClusterView, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
    """The log start of each partition whose topic is still there."""
    for _ in range(LOOKS_MAX):
        topics = view.topics(Named(tuple(dict.fromkeys(partition.topic for partition in partitions))))
        times = {
            partition: EARLIEST_TIME
            for partition in partitions
            if partition.topic in topics and partition.partition in topics[partition.topic].partitions
        }
        try:
            return view.offsets(times)
        except UnknownTopicError:
            continue  # deleted after the first question
    raise UnknownTopicError(f"{partitions[0].topic} and others keep vanishing")


def plan_ranges(view: ClusterView, start: Position, end: Position, *, fail_on_data_loss: bool) -> list[OffsetRange]:
    """What lies between two positions.

    A topic (or incarnation of one) that `start` does not know begins at its first record that is left, a new partition of a known one
    at offset 0.

    Raises:
        RecordsLostError: some of it is gone, and `fail_on_data_loss`.
    """
    start = end.initial or start
    wanted = _wanted(start, end)
    topics = view.topics(Named(tuple(dict.fromkeys(topic for topic, *_ in wanted)))) if wanted else {}
    here = []
    for topic, topic_id, partition, begin, stop in wanted:
        if topic in topics and topics[topic].topic_id == topic_id:
            here.append((topic, topic_id, partition, begin, stop))
        else:
            first = "the first" if begin is None else begin
            report_loss(
                f"{topic}/{partition}: offsets {first} to {stop - 1} are gone with their topic", fail_on_data_loss
            )
    firsts = (
        first_offsets(view, [TopicPartition(topic, partition) for topic, _, partition, _, _ in here]) if here else {}
    )
    ranges = []
    for topic, topic_id, partition, begin, stop in here:
        earliest = firsts.get(TopicPartition(topic, partition))
        first_left = stop if earliest is None else min(earliest, stop)
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
