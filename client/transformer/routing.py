"""Choose the partition of each output, and group the outputs of a chunk by partition. Pure."""

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
    """A serialized output."""

    topic: str
    partition: int | None
    """None: the partition of its key."""
    cells: Cells


@dataclass(slots=True)
class Stretch:
    """Consecutive outputs of one output partition."""

    topic: TopicInfo
    partition: int
    first_offset: int
    """The offset of the input record of the first output."""
    records: list[Cells] = field(default_factory=list)


class Routed(NamedTuple):
    """The destinations of a chunk's outputs."""

    stretches: list[Stretch]
    record_count: int
    """The number of input records whose outputs are included."""
    failure: RaftMQError | None
    """The reason why the outputs of the next input record cannot be written."""


def route(
    records: Sequence[Record],
    outputs: Sequence[Sequence[MadeOutput]],
    topics: Mapping[str, TopicInfo],
    state: OutputState,
    partitioner: Partitioner,
) -> Routed:
    """Assign each output to a partition, in the order of the input, up to the first record whose outputs cannot be written.

    The result depends only on the records, the outputs and the numbers of partitions in the state.
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
    """Return the partition of one output. Raises `UnknownPartitionError` or `RecordTooLargeError`."""
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
    if key is None or (not key and partitioner is crc32_partition):  # as the producer does
        return record.partition % partition_count
    return partitioner(key, partition_count)
