"""`OutputState`: the number of outputs that a transformer has written to each output partition, for one input partition. Pure.

It is committed with the partition's offset, as its note, so both change together. These rules make outputs exactly once:

1. The outputs of the records below the committed offset are written, and `count` is their number in each output partition. The n-th output
   there is appended under the state's producer id with sequence n (from 0). An owner that handles the records from the offset on again
   therefore appends the same sequences, and brokers acknowledge outputs that exist without writing them again.
2. Every fact that determines an output's destination is in a committed state before the first output goes there: the topic's id, and the
   number of partitions by which keys are routed.
3. Outputs of records at or above `until` have not been written by any owner. An owner handles only records below the committed `until`. While
   it handles any, it never commits a lower `until` than it found or committed. When its offset has passed the `until` that it found, no
   earlier owner can write anything new, however late it resumes. Only then may a changed number of partitions be used.
4. An output that is not written yet was not written before `since_s` either. Brokers forget a producer 14 days after its last batch in a
   partition. Therefore, while `since_s` is younger, a producer that they do not know has not written there since.
5. A recovery of the input partition that kept an older replica gives offsets of lost records to new ones, and loses the latest commits. The
   sequences of the lost records' outputs may be used. So no record from the kept end on is handled under a state that names an earlier Raft
   group. An owner handles the records before, and then begins a new state. If it has begun the state itself, it knows every used sequence,
   and commits the state with the new group.

A state begins under a new generation: the owner epoch of the member that begins it. Owner epochs only rise, so a member that lost the
partition cannot fence its successor. Within a generation each output partition has an epoch of its own. It is raised when the brokers have
forgotten the producer there and its sequences begin again at 0.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from raftmq.client.base import settings
from raftmq.client.connection.resolver import TopicInfo
from raftmq.errors import TransformStateError

RESTART_BITS: Final = 16
"""The lower bits of a batch's epoch count how often its partition's sequences restarted. The upper bits are the generation."""
_PREFIX: Final = "raftmq.transform/"
_VERSION: Final = "1:"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """The state of one output partition."""

    count: int = 0
    """The number of outputs written, which is the sequence of the next one."""
    restarts: int = 0
    """The number of times that the count restarted at 0."""


NOTHING_WRITTEN: Final = PartitionState()


@dataclass(frozen=True, slots=True)
class TopicState:
    """The state of one incarnation of an output topic."""

    partition_count: int
    """The number of partitions by which keys are routed. The topic may have more partitions by now."""
    partitions: Mapping[int, PartitionState] = field(default_factory=dict)
    """The output partitions that have outputs."""


@dataclass(frozen=True, slots=True)
class OutputState:
    """The outputs written for one input partition, under the rules of this module. Immutable: methods return changed copies."""

    producer_id: int
    generation: int
    until: int
    """Exclusive bound of the offsets of records whose outputs may have been written."""
    since_s: int
    """Seconds since 1970. No output that is not counted was written before."""
    topics: Mapping[int, TopicState] = field(default_factory=dict)
    """By topic id."""
    group_id: int = 0
    """The Raft group of the input that served the records (rule 5). 0: a version wrote the state that did not know it."""

    def at(self, topic_id: int, partition: int) -> PartitionState:
        """Return the state of an output partition."""
        return self.topics[topic_id].partitions.get(partition, NOTHING_WRITTEN)

    def epoch(self, topic_id: int, partition: int) -> int:
        """Return the epoch of batches for an output partition."""
        return first_epoch(self.generation) + self.at(topic_id, partition).restarts

    # ---------------------------------------------------------------------------------------------------------- changes

    def declared(self, topics: Iterable[TopicInfo], *, is_alone: bool) -> OutputState:
        """Return the state under which outputs may go to these topics. If it is a new state, commit it before the first output.

        Args:
            topics: The topics as the cluster has them now.
            is_alone: No earlier owner can write anything new, so numbers of partitions may change (rule 3).
        """
        changed = dict(self.topics)
        for topic in topics:
            known = changed.get(topic.topic_id)
            if known is None:
                changed[topic.topic_id] = TopicState(topic.partition_count)
            elif is_alone and known.partition_count != topic.partition_count:
                changed[topic.topic_id] = replace(known, partition_count=topic.partition_count)
        return self if changed == self.topics else replace(self, topics=changed)

    def restarted(self, topic_id: int, partition: int) -> OutputState:
        """Return the state after brokers forgot the producer in a partition. Commit it before the next output goes there."""
        return self._with(topic_id, partition, PartitionState(0, self.at(topic_id, partition).restarts + 1))

    def written(self, topic_id: int, partition: int, count: int) -> OutputState:
        """Return the state after `count` more outputs were written to a partition."""
        known = self.at(topic_id, partition)
        return self._with(topic_id, partition, replace(known, count=known.count + count))

    def _with(self, topic_id: int, partition: int, state: PartitionState) -> OutputState:
        topic = self.topics[topic_id]
        changed = replace(topic, partitions={**topic.partitions, partition: state})
        return replace(self, topics={**self.topics, topic_id: changed})

    # ------------------------------------------------------------------------------------------------------------ note

    def encode(self) -> str:
        """Encode it as a commit's note. Raises `TransformStateError` when it has too many output partitions to fit."""
        numbers = [self.producer_id, self.generation, self.until, self.since_s, len(self.topics)]
        for topic_id, topic in sorted(self.topics.items()):
            numbers += (topic_id, topic.partition_count, len(topic.partitions))
            before = -1
            for partition, state in sorted(topic.partitions.items()):
                numbers += (partition - before - 1, state.count << 1 | bool(state.restarts))
                if state.restarts:
                    numbers.append(state.restarts)
                before = partition
        if self.group_id:
            numbers.append(self.group_id)  # at the end, where earlier versions do not look
        note = _PREFIX + _VERSION + base64.b85encode(b"".join(map(_to_varint, numbers))).decode()
        if len(note) > settings.TRANSFORM_NOTE_BYTES_MAX:
            partitions = sum(len(topic.partitions) for topic in self.topics.values())
            raise TransformStateError(
                f"one partition of the input writes to {partitions} output partitions, whose state takes {len(note)} bytes. A commit's note holds"
                f" {settings.TRANSFORM_NOTE_BYTES_MAX} bytes, enough for about"
                f" {partitions * settings.TRANSFORM_NOTE_BYTES_MAX // len(note)}: write to fewer partitions, or in two steps"
            )
        return note

    @staticmethod
    def decode(note: str) -> OutputState | None:
        """Decode a note, or return None if no transformer wrote it. Raises `TransformStateError` if a newer version wrote it."""
        if not note.startswith(_PREFIX):
            return None
        body = note.removeprefix(_PREFIX)
        if not body.startswith(_VERSION):
            raise TransformStateError("a newer version of RaftMQ wrote the transformer's state: run that version")
        try:
            numbers = _Numbers(base64.b85decode(body.removeprefix(_VERSION)))
            producer_id, generation, until, since_s, topic_count = (numbers.take() for _ in range(5))
            topics = {numbers.take(): _decode_topic(numbers) for _ in range(topic_count)}
            group_id = 0 if numbers.is_over else numbers.take()
        except (ValueError, IndexError) as error:
            raise TransformStateError(
                f"the transformer's state is damaged ({error}): reset the group's offsets"
            ) from error
        return OutputState(producer_id, generation, until, since_s, topics, group_id)


def first_epoch(generation: int) -> int:
    """Return the lowest epoch of a generation's batches, with which its producer claims its name."""
    return generation << RESTART_BITS


def _decode_topic(numbers: _Numbers) -> TopicState:
    partition_count, count = numbers.take(), numbers.take()
    partitions: dict[int, PartitionState] = {}
    partition = -1
    for _ in range(count):
        partition += numbers.take() + 1
        written = numbers.take()
        partitions[partition] = PartitionState(written >> 1, numbers.take() if written & 1 else 0)
    return TopicState(partition_count, partitions)


def _to_varint(number: int) -> bytes:
    """Encode a number as unsigned LEB128."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class _Numbers:
    """Reads one varint after another. `take` raises `IndexError` at the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def is_over(self) -> bool:
        return self._at == len(self._data)

    def take(self) -> int:
        number = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
