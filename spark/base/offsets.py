"""Represent a query's offsets, and convert them to and from the JSON that Spark keeps.

Offsets hold each topic's incarnation and the next offset to read of each partition. The shape is the Kafka connector's,
``{"flights": {"0": 12, "1": 7, "topic_id": 3, "group_ids": {"0": 5, "1": 6}}}``, with the topic's id and the partitions' Raft groups beside the
partitions. A topic that was deleted and created again has another id, so its offsets are never mistaken for those of its predecessor. A
partition that was recovered has another group, in which other records may have offsets that were read before.
Must not import Spark or call the cluster.

Invariants: equal offsets are equal JSON, because Spark compares the texts. Topics are sorted by name, partitions by number.
Source: Kafka's ``JsonUtils.partitionOffsets`` (Spark SQL Kafka integration).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from raftmq.types import TopicPartition

TOPIC_ID_KEY: Final = "topic_id"
GROUP_IDS_KEY: Final = "group_ids"
INITIAL_KEY: Final = "@initial"
"""No topic can have this name: topic names consist of letters, digits, ``.``, ``_`` and ``-``."""

OffsetsJson = dict[str, "int | OffsetsJson"]
"""An offset as Spark accepts it: a dictionary of primitive values and such dictionaries."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """Hold the offsets of one incarnation of a topic."""

    topic_id: int
    offsets: Mapping[int, int]
    """The next offset to read, by partition. A missing partition was not known yet."""
    groups: Mapping[int, int] = field(default_factory=dict)
    """The Raft group that served the records before the offset, or an earlier one, by partition. Missing: an earlier version wrote the offsets."""


@dataclass(frozen=True, slots=True)
class Position:
    """Hold the next offsets that a query will read."""

    topics: Mapping[str, TopicOffsets]
    initial: Position | None = None
    """The position at which the query began. Set only in the end of its first batch.

    Scenario: a query starts at ``latest``, logs the end of batch 0 and dies before it finishes that batch. At the restart Spark asks
    for the initial offset again, and ``latest`` has moved by then. The records between the two would never be read. So the end of
    batch 0 also stores the beginning of that batch.
    """

    def get(self, topic: str, topic_id: int, partition: int) -> int | None:
        """Return the next offset of a partition, or None when this incarnation or partition was not known."""
        known = self.topics.get(topic)
        return None if known is None or known.topic_id != topic_id else known.offsets.get(partition)

    def group(self, topic: str, partition: int) -> int:
        """Return the Raft group that a partition's offset names, or 0 without one."""
        known = self.topics.get(topic)
        return 0 if known is None else known.groups.get(partition, 0)

    def partitions(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yield every partition and its next offset."""
        for topic, known in self.topics.items():
            for partition, offset in known.offsets.items():
                yield TopicPartition(topic, partition), offset

    def to_json(self) -> OffsetsJson:
        """Return the position in the form that Spark keeps."""
        written: OffsetsJson = {}
        if self.initial is not None:
            written[INITIAL_KEY] = self.initial.to_json()
        for topic, known in sorted(self.topics.items()):
            offsets: OffsetsJson = {str(partition): offset for partition, offset in sorted(known.offsets.items())}
            groups: OffsetsJson = {str(partition): group for partition, group in sorted(known.groups.items())}
            written[topic] = offsets | {TOPIC_ID_KEY: known.topic_id} | ({GROUP_IDS_KEY: groups} if groups else {})
        return written


def not_before(position: Position, start: Position) -> Position:
    """Return the position without the partitions' offsets that are lower than in `start`, which replace them."""
    topics = {}
    for topic, known in position.topics.items():
        begins = {number: start.get(topic, known.topic_id, number) or 0 for number in known.offsets}
        offsets = {number: max(offset, begins[number]) for number, offset in known.offsets.items()}
        topics[topic] = TopicOffsets(known.topic_id, offsets)
    return Position(topics)


def position_from_json(written: Mapping[str, object]) -> Position:
    """Return the position that `Position.to_json` wrote. Raises `ValueError` for anything else."""
    topics: dict[str, TopicOffsets] = {}
    initial: Position | None = None
    for name, value in written.items():
        if not isinstance(value, Mapping):
            raise ValueError(f"{name!r} in the offsets of a query is not a topic's offsets: {value!r}")  # noqa: TRY004
        if name == INITIAL_KEY:
            initial = position_from_json(value)
        else:
            numbers = {str(key): number for key, number in value.items()}
            topic_id, groups = int(numbers.pop(TOPIC_ID_KEY, 0)), numbers.pop(GROUP_IDS_KEY, {})
            topics[name] = TopicOffsets(topic_id, _whole(numbers), _whole(groups))
    return Position(topics, initial)


def _whole(numbers: Mapping[str, int]) -> dict[int, int]:
    return {int(key): int(number) for key, number in numbers.items()}
