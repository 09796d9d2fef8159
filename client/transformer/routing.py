"""Where outputs go: the partition of each, and all outputs of a chunk by partition. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raftmq.client.connection.resolver import TopicInfo
from raftmq.client.producer.partitioner import Partitioner, crc32_partition
from raftmq.client.producer.record_checks import too_large
from raftmq.client.producer.sequenced_batches import Cells
from raftmq.client.transformer.output_state import OutputState
from raftmq.errors import RaftMQError, UnknownPartitionError
from raftmq.types import Record


class MadeOutput(NamedTuple):
    """An output as bytes."""

    topic: str
    partition: int | None
    """None: where its key belongs."""
    cells: Cells


@dataclass(slots=True)
class Stretch:
    """Consecutive outputs of one output partition."""

    topic: TopicInfo
    partition: int
    first_offset: int
    """Of the input record that the first one is of."""
    records: list[Cells] = field(default_factory=list)


class Routed(NamedTuple):
    """Where a chunk's outputs go."""

    stretches: list[Stretch]
    record_count: int
    """Input records whose outputs are in them."""
    failure: RaftMQError | None
    """Why the outputs of the next input record cannot be written."""


def route(
    records: Sequence[Record],
    outputs: Sequence[Sequence[MadeOutput]],
    topics: Mapping[str, TopicInfo],
    state: OutputState,
    partitioner: Partitioner,
) -> Routed:
    """Give each output its partition, in the order of the input, up to the first record whose outputs cannot be written.

    The same records, outputs and numbers of partitions in the state give the same result.
    """
    found: dict[tuple[str, int], Stretch] = {}
    for number, (record, made) in enumerate(zip(records, outputs, strict=False)):
        try:
            places = [(one.topic, _place(record, one, topics[one.topic], state, partitioner)) for one in made]
        except RaftMQError as error:
            return Routed(list(found.values()), number, error)
        for one, place in zip(made, places, strict=True):
            stretch = found.get(place)
            if stretch is None:
                stretch = found[place] = Stretch(topics[one.topic], place[1], record.offset)
            stretch.records.append(one.cells)
    return Routed(list(found.values()), len(outputs), None)


def _place(record: Record, made: MadeOutput, topic: TopicInfo, state: OutputState, partitioner: Partitioner) -> int:
    """The partition of one output. Raises `UnknownPartitionError` or `RecordTooLargeError`."""
    if made.cells.size > topic.record_bytes_max:
        raise too_large(made.cells.size, topic.record_bytes_max)
    if made.partition is not None:
        if not 0 <= made.partition < topic.partition_count:
            raise UnknownPartitionError(
                f"{topic.name} has partitions 0 to {topic.partition_count - 1}, not {made.partition}"
            )
        return made.partition
    partition_count = state.topics[topic.topic_id].partition_count
    key = made.cells.key
    if key is None or (not key and partitioner is crc32_partition):  # as the producer
        return record.partition % partition_count
    return partitioner(key, partition_count)
