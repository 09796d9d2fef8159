"""A query's offsets: per topic its incarnation and, per partition, the next offset to read; to and from the JSON that Spark keeps.

The shape is the Kafka connector's, ``{"flights": {"0": 12, "1": 7, "topic_id": 3}}``, with the topic's id beside the partitions: a
topic that was deleted and created again has another one, so its offsets are never taken for those of its predecessor.
Must not import Spark or ask anybody.

Invariants: equal offsets are equal JSON, as Spark compares the texts: topics are sorted, then partitions by number.
Source: Kafka's ``JsonUtils.partitionOffsets`` (Spark SQL Kafka integration).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from raftmq.types import TopicPartition

TOPIC_ID_KEY: Final = "topic_id"
INITIAL_KEY: Final = "@initial"
"""Not a topic's name: those have letters, digits, ``.``, ``_`` and ``-``."""

OffsetsJson = dict[str, "int | OffsetsJson"]
"""What Spark takes as an offset: a dictionary of primitive values and such dictionaries."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """One incarnation of a topic."""

    topic_id: int
    offsets: Mapping[int, int]
    """Partition → the next offset to read. A partition that is not there was not known yet."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a query stands."""

    topics: Mapping[str, TopicOffsets]
    initial: Position | None = None
    """Where the query began; only in the end of its first batch.

    Scenario: a query starts at ``latest``, logs the end of batch 0 and dies before it finished it. At the restart Spark asks for the
    initial offset again, and ``latest`` is another one by then: between the two lie records that nobody would read. So the end of
    batch 0 says where that batch began.
    """

    def get(self, topic: str, topic_id: int, partition: int) -> int | None:
        """The next offset of a partition; None when this incarnation or partition was not known."""
        known = self.topics.get(topic)
        return None if known is None or known.topic_id != topic_id else known.offsets.get(partition)

    def partitions(self) -> Iterator[tuple[TopicPartition, int]]:
        """Every partition and its next offset."""
        for topic, known in self.topics.items():
            for partition, offset in known.offsets.items():
                yield TopicPartition(topic, partition), offset

    def to_json(self) -> OffsetsJson:
        """As Spark keeps it."""
        written: OffsetsJson = {}
        if self.initial is not None:
            written[INITIAL_KEY] = self.initial.to_json()
        for topic, known in sorted(self.topics.items()):
            offsets: OffsetsJson = {str(partition): offset for partition, offset in sorted(known.offsets.items())}
            written[topic] = offsets | {TOPIC_ID_KEY: known.topic_id}
        return written


def position_from_json(written: Mapping[str, object]) -> Position:
    """What `Position.to_json` wrote. Raises `ValueError` for anything else."""
    topics: dict[str, TopicOffsets] = {}
    initial: Position | None = None
    for name, value in written.items():
        if not isinstance(value, Mapping):
            raise ValueError(f"{name!r} in the offsets of a query is not a topic's offsets: {value!r}")  # noqa: TRY004
        if name == INITIAL_KEY:
            initial = position_from_json(value)
        else:
            numbers = {str(key): int(number) for key, number in value.items()}
            topic_id = numbers.pop(TOPIC_ID_KEY, 0)
            topics[name] = TopicOffsets(topic_id, {int(key): number for key, number in numbers.items()})
    return Position(topics, initial)
