"""`OutputState`: how many outputs a transformer has written where, for one partition of its input. Pure.

It is committed with the partition's offset, as its note, so both change together. The rules that make outputs exactly once:

1. The outputs of the records below the committed offset are written, and `count` says how many there are in each output partition.
   The n-th one there is appended under the state's producer id with sequence n (from 0), so whoever handles the records from the offset
   on again appends the same sequences, and the brokers acknowledge without writing what is there.
2. What decides where an output goes is in a committed state before the first output goes there: the topic's id, and the number of
   partitions by which keys are routed.
3. Outputs of records at or above `until` were not written by anybody. An owner handles only records below the `until` that is committed,
   and as long as it handles any never commits a lower one than it found or committed. Once its offset has passed the one it found, no owner before it, however late it
   wakes up, can write anything that is not written: only then may a changed number of partitions be used.
4. What is not written yet was not written before `since_s` either. Brokers forget a producer 14 days after its last batch in a
   partition, so as long as `since_s` is younger, a producer they do not know has not written there since.

A state begins under a new epoch (`generation`): the owner epoch of the member that begins it. Those only rise, so a member that lost the
partition cannot fence its successor. Under it each output partition has an epoch of its own, which is raised when the brokers have
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
"""The lower bits of a batch's epoch count how often its partition's sequences began again; the upper ones are the generation."""
_PREFIX: Final = "raftmq.transform/"
_VERSION: Final = "1:"


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One output partition."""

    count: int = 0
    """Outputs written, and the sequence of the next one."""
    restarts: int = 0
    """How often the count began again at 0."""


NOTHING_WRITTEN: Final = PartitionState()


@dataclass(frozen=True, slots=True)
class TopicState:
    """One incarnation of an output topic."""

    partition_count: int
    """By which keys are routed; the topic may have more partitions by now."""
    partitions: Mapping[int, PartitionState] = field(default_factory=dict)
    """Those with outputs."""


@dataclass(frozen=True, slots=True)
class OutputState:
    """See the module. Changed by making another one."""

    producer_id: int
    generation: int
    until: int
    """Exclusive bound of the offsets of records whose outputs may be written."""
    since_s: int
    """Seconds since 1970: outputs that are not counted were written later, if they are."""
    topics: Mapping[int, TopicState] = field(default_factory=dict)
    """By topic id."""

    def at(self, topic_id: int, partition: int) -> PartitionState:
        """The state of an output partition."""
        return self.topics[topic_id].partitions.get(partition, NOTHING_WRITTEN)

    def epoch(self, topic_id: int, partition: int) -> int:
        """Under which batches are appended there."""
        return first_epoch(self.generation) + self.at(topic_id, partition).restarts

    # ---------------------------------------------------------------------------------------------------------- changes

    def declared(self, topics: Iterable[TopicInfo], *, is_alone: bool) -> OutputState:
        """The state under which outputs may go to these topics: to be committed before the first one does, if it is another one.

        Args:
            topics: As the cluster has them now.
            is_alone: Rule 3: nobody before this owner can write anything more, so numbers of partitions may change.
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
        """The state after the brokers have forgotten the producer in a partition: to be committed before the next output goes there."""
        return self._with(topic_id, partition, PartitionState(0, self.at(topic_id, partition).restarts + 1))

    def written(self, topic_id: int, partition: int, count: int) -> OutputState:
        """The state after so many outputs more were written to a partition."""
        known = self.at(topic_id, partition)
        return self._with(topic_id, partition, replace(known, count=known.count + count))

    def _with(self, topic_id: int, partition: int, state: PartitionState) -> OutputState:
        topic = self.topics[topic_id]
        changed = replace(topic, partitions={**topic.partitions, partition: state})
        return replace(self, topics={**self.topics, topic_id: changed})

    # ------------------------------------------------------------------------------------------------------------ note

    def encode(self) -> str:
        """As a commit's note. Raises `TransformStateError` when it has more output partitions than fit."""
        numbers = [self.producer_id, self.generation, self.until, self.since_s, len(self.topics)]
        for topic_id, topic in sorted(self.topics.items()):
            numbers += (topic_id, topic.partition_count, len(topic.partitions))
            before = -1
            for partition, state in sorted(topic.partitions.items()):
                numbers += (partition - before - 1, state.count << 1 | bool(state.restarts))
                if state.restarts:
                    numbers.append(state.restarts)
                before = partition
        note = _PREFIX + _VERSION + base64.b85encode(b"".join(map(_to_varint, numbers))).decode()
        if len(note) > settings.TRANSFORM_NOTE_BYTES_MAX:
            partitions = sum(len(topic.partitions) for topic in self.topics.values())
            raise TransformStateError(
                f"one partition of the input writes to {partitions} output partitions, and what is known of them takes {len(note)} bytes of"
                f" the {settings.TRANSFORM_NOTE_BYTES_MAX} of a commit's note, enough for about"
                f" {partitions * settings.TRANSFORM_NOTE_BYTES_MAX // len(note)}: write to fewer, or in two steps"
            )
        return note

    @staticmethod
    def decode(note: str) -> OutputState | None:
        """Read a note back; None for one that no transformer wrote. Raises `TransformStateError` for one of a newer version."""
        if not note.startswith(_PREFIX):
            return None
        body = note.removeprefix(_PREFIX)
        if not body.startswith(_VERSION):
            raise TransformStateError("a newer version of RaftMQ wrote the transformer's state: run that version")
        try:
            numbers = _Numbers(base64.b85decode(body.removeprefix(_VERSION)))
            producer_id, generation, until, since_s, topic_count = (numbers.take() for _ in range(5))
            topics = {numbers.take(): _decode_topic(numbers) for _ in range(topic_count)}
        except (ValueError, IndexError) as error:
            raise TransformStateError(
                f"the transformer's state is damaged ({error}): reset the group's offsets"
            ) from error
        return OutputState(producer_id, generation, until, since_s, topics)


def first_epoch(generation: int) -> int:
    """The lowest epoch of a generation's batches, at which its producer claims its name."""
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
    """Unsigned LEB128."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


class _Numbers:
    """Reads varints one after the other. `take` raises `IndexError` at the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self) -> int:
        number = shift = 0
        while True:
            byte = self._data[self._at]
            self._at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7
