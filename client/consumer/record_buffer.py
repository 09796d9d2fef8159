"""Returns fetched records: from each partition in turn, as records or as the program's own types. No `await`, no network.

Invariants: records of a partition are returned in offset order. An error is raised after all records before it were returned. A record on
which a deserializer fails remains the next record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

import msgspec
from raftmq.client.consumer.partition_fetch import PartitionFetch
from raftmq.errors import RaftMQError
from raftmq.types import Record, TopicPartition

Deserializer = Callable[[bytes], object]
AnyRecord = Record[Any, Any]  # Any: the types of the deserializers, which only the program knows


class RecordBuffer:
    """The partitions of one consumer that may be read."""

    def __init__(self, key_deserializer: Deserializer | None, value_deserializer: Deserializer | None) -> None:
        self.order: list[PartitionFetch] = []
        """All partitions. The one read last is at the end."""
        self._current: PartitionFetch | None = None
        """The partition whose records are iterated."""
        self._at_work: list[PartitionFetch] = []
        """Partitions whose records were returned to the program, which has not asked for more since."""
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer

    def add(self, state: PartitionFetch) -> None:
        """Add a partition."""
        self.order.append(state)

    def remove(self, state: PartitionFetch) -> None:
        """Remove a partition."""
        self.order.remove(state)
        self.leave_current()

    def leave_current(self) -> None:
        """Let the iteration choose a partition again, because one has changed."""
        self._current = None

    def record_poll(self) -> None:
        """Record that the program asks for more, so the records that it has are processed."""
        for partition in self._at_work:
            partition.processed = partition.position
        self._at_work.clear()

    # ---------------------------------------------------------------------------------------------------- one by one

    def next_of_current(self) -> tuple[AnyRecord | None, bool]:
        """Return the next record of the iterated partition, or None if there is none, and whether space for a fetch was freed."""
        current = self._current
        if current is None or current.is_paused or current.is_withheld:
            return None, False
        buffered_bytes = current.buffered_bytes
        self._current = None  # after an error it is the turn of another partition
        record: AnyRecord | None = current.take_one()
        if record is None:
            return None, False
        if self._key_deserializer is not None or self._value_deserializer is not None:
            try:
                record = self._deserialized(record)
            except BaseException:
                current.give_back((record,))
                raise
        self._current = current
        self._at_work.append(current)
        return record, current.buffered_bytes != buffered_bytes

    def choose_current(self) -> bool:
        """Iterate the partition that waited longest. Return whether there is one with records."""
        self._current = self._next_with_records(())
        return self._current is not None

    # ------------------------------------------------------------------------------------------------------- many

    def collect(self, chosen: set[TopicPartition], count_max: int) -> dict[TopicPartition, list[AnyRecord]]:
        """Return buffered records of as many partitions and batches as fit, beginning with the partition that waited longest."""
        found: dict[TopicPartition, list[Sequence[AnyRecord]]] = {}
        room = count_max
        while room > 0 and (state := self._next_with_records(chosen)) is not None:
            try:
                records: Sequence[AnyRecord] = state.take(room)
            except RaftMQError:
                if found:
                    break  # first return the records before the error
                raise
            if self._key_deserializer is not None or self._value_deserializer is not None:
                whole = len(records)
                records = self._deserialized_part(state, records, must_succeed=bool(found))
                if len(records) < whole:
                    room = 0  # first return the records before the failed one
            if records:
                if state.topic_partition not in found:
                    self._at_work.append(state)
                found.setdefault(state.topic_partition, []).append(records)
                room -= len(records)
        return {partition: _joined(parts) for partition, parts in found.items()}

    def _deserialized_part(
        self, state: PartitionFetch, records: Sequence[AnyRecord], *, must_succeed: bool
    ) -> Sequence[AnyRecord]:
        """Deserialize records up to the first failure, and put the rest back.

        Raises the deserializer's exception if the first record fails, unless `must_succeed`.
        """
        made: list[AnyRecord] = []
        try:
            for record in records:
                made.append(self._deserialized(record))  # noqa: PERF401 -- keeps the records before a failure
        except BaseException as error:
            state.give_back(records[len(made) :])
            if (not made and not must_succeed) or not isinstance(error, Exception):
                raise
        return made

    def _next_with_records(self, chosen: Iterable[TopicPartition]) -> PartitionFetch | None:
        for at, state in enumerate(self.order):
            if state.has_records and (not chosen or state.topic_partition in chosen):
                self.order.append(self.order.pop(at))
                return state
        return None

    def _deserialized(self, record: AnyRecord) -> AnyRecord:
        keys, values = self._key_deserializer, self._value_deserializer
        try:
            if keys is not None and record.key is not None:
                record = msgspec.structs.replace(record, key=keys(record.key))  # the user's own type
            if values is not None and record.value is not None:
                record = msgspec.structs.replace(record, value=values(record.value))
        except Exception as error:
            error.add_note(f"raised by a deserializer of {record.topic}/{record.partition} at offset {record.offset}")
            raise
        return record


def _joined(parts: list[Sequence[AnyRecord]]) -> list[AnyRecord]:
    return list(parts[0]) if len(parts) == 1 else list(chain.from_iterable(parts))
