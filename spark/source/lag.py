"""Compute how far a streaming query is behind the ends of its partitions, and how many records it lost.

Works from the offsets in a query's progress and the answers of a `ClusterView`. Must not import Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from raftmq.client.connection.leader_calls import LATEST_TIME
from raftmq.spark.base.offsets import TOPIC_ID_KEY, Position, TopicOffsets, position_from_json
from raftmq.spark.cluster.cluster import ClusterView
from raftmq.spark.source.range_plan import edge_offsets, first_offsets
from raftmq.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """Hold a query's place in one partition."""

    offset: int
    """The next record that the query will read."""
    end_offset: int
    """The end of the partition when it was asked for."""

    @property
    def records(self) -> int:
        """Return the number of records that the query has not read."""
        return max(0, self.end_offset - self.offset)


@dataclass(frozen=True, slots=True)
class QueryLag:
    """Hold a query's lag at one moment, and its losses so far."""

    query: str
    """The query's name, or its id if it has no name."""
    batch_id: int
    """The last finished batch."""
    partitions: Mapping[TopicPartition, PartitionLag]
    """The partitions that the query has read. A partition or topic that it has not noticed yet is missing."""
    lost_records: int
    """Records that were deleted before the query read them, in all batches that the listener was told of."""
    lost_topics: tuple[str, ...]
    """Topics that were deleted, or deleted and created again, while the query read them. Their records are not in `lost_records`."""

    @property
    def records(self) -> int:
        """Return the number of records that the query has not read."""
        return sum(lag.records for lag in self.partitions.values())


def position_in_progress(written: object) -> Position | None:
    """Return the position in the JSON of a source's progress, or None if the source has no offset or is not RaftMQ's."""
    if not isinstance(written, dict) or not written or not all(_is_topic(offsets) for offsets in written.values()):
        return None
    return position_from_json(written)


def _is_topic(offsets: object) -> bool:
    """Return whether these are a topic's offsets as RaftMQ's source writes them, or a query's first position, which holds such offsets."""
    if not isinstance(offsets, dict):
        return False
    return TOPIC_ID_KEY in offsets or (bool(offsets) and all(map(_is_topic, offsets.values())))


def least_advanced(positions: Iterable[Position]) -> Position:
    """Return the lower offset of each partition. A query may read a topic by several sources."""
    found: dict[str, TopicOffsets] = {}
    for position in positions:
        for topic, known in position.topics.items():
            other = found.get(topic, known)
            if other.topic_id != known.topic_id:
                found[topic] = max(other, known, key=lambda one: one.topic_id)
                continue
            lower = {number: min(offset, other.offsets.get(number, offset)) for number, offset in known.offsets.items()}
            found[topic] = TopicOffsets(known.topic_id, {**other.offsets, **lower})
    return Position(found)


def lag_at(view: ClusterView, position: Position) -> dict[TopicPartition, PartitionLag]:
    """Return the lag of each partition whose topic still exists under its id. Raises as `ClusterView` does."""
    ids = {partition: position.topics[partition.topic].topic_id for partition, _ in position.partitions()}
    ends = edge_offsets(view, ids, LATEST_TIME) if ids else {}
    return {p: PartitionLag(offset, ends[p]) for p, offset in position.partitions() if p in ends}


def lost_topics(start: Position, end: Position) -> list[str]:
    """Return the topics whose incarnation in `start` is not in `end`. A topic that is only unsubscribed stays in it."""
    ids = {topic: known.topic_id for topic, known in end.topics.items()}
    return [topic for topic, known in start.topics.items() if ids.get(topic) != known.topic_id]


def lost_records(view: ClusterView, start: Position, end: Position, rows: int) -> int:
    """Return how many records of a batch were deleted before it read them.

    Offsets have no gaps, so a batch that lost nothing has as many rows as there are offsets between `start` and `end`. A query may leave
    records unread, for example by a limit. So the records that are missing count only as far as their partitions were trimmed.
    A query that reads its source several times per batch has more rows than records, which hides losses.

    Args:
        view: The cluster. It is asked only if rows are missing.
        start: The start of the batch.
        end: The end of the batch.
        rows: The rows that the source gave to the batch.
    """
    start = end.initial or start
    spans: dict[TopicPartition, tuple[int, int]] = {}
    for partition, stop in end.partitions():
        topic_id = end.topics[partition.topic].topic_id
        known = start.topics.get(partition.topic)
        if known is None or known.topic_id != topic_id:
            continue  # read from its first remaining record, whatever that was
        begin = known.offsets.get(partition.partition, 0)
        if begin < stop:
            spans[partition] = begin, stop
    missing = sum(stop - begin for begin, stop in spans.values()) - rows
    if missing <= 0:
        return 0
    firsts = first_offsets(view, {partition: end.topics[partition.topic].topic_id for partition in spans})
    trimmed = sum(max(0, min(firsts.get(p, stop), stop) - begin) for p, (begin, stop) in spans.items())
    return min(missing, trimmed)
