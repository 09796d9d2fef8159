"""`RecordingConsumer`: a consumer of the SDK that records its assignments, positions and polls.

It must not change the consumer's behaviour, and must not return records that are not recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Self

from raftmq.client.consumer.consumer import Consumer
from raftmq.types import Record, TopicPartition

from sim.history.events import Partition, Records, Start
from sim.history.recorder import Recorder
from sim.history.recording_client import RecordingClient

READ_ALL_POLL_MS = 500
"""Time that one poll of `read_all` waits for a first record."""


class RecordingConsumer(RecordingClient):
    """A recording `Consumer`, see `RecordingClient`. Used by one task at a time.

    Args:
        consumer: The consumer, which must have no deserializers.
        recorder: Records the operations.
        process: The name of this client.
        start: The consumer's ``auto_offset_reset``. None, also for ``"none"``: the start of a partition is not judged.
    """

    def __init__(self, consumer: Consumer, recorder: Recorder, process: str, *, start: Start | None = None) -> None:
        super().__init__(consumer, recorder, process)
        self.consumer = consumer
        self._start: Start | None = start

    async def start(self) -> None:
        """See `Consumer.start`."""
        await super().start()
        if assigned := self.consumer.assignment():
            self._record_assignment(assigned)

    # ------------------------------------------------------------------------------------------------------- positions

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """See `Consumer.assign`."""
        wanted = list(partitions)
        self.consumer.assign(wanted)
        self._record_assignment(wanted)

    def _record_assignment(self, partitions: Collection[TopicPartition]) -> None:
        assignment = [Partition(*partition) for partition in sorted(partitions)]
        self._recorder.invoke(self.process, "assign", assignment=assignment, start=self._start).ok(
            assignment=assignment, start=self._start
        )

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """See `Consumer.seek`."""
        operation = self._recorder.invoke(
            self.process, "seek", topic=partition.topic, partition=partition.partition, offset=offset
        )
        try:
            await self.consumer.seek(partition, offset)
        except BaseException as error:
            operation.end_read(error, topic=partition.topic, partition=partition.partition)
            raise
        operation.ok(topic=partition.topic, partition=partition.partition, offset=offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """See `Consumer.seek_to_beginning`."""
        await self._seek_to(partitions, is_beginning=True)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """See `Consumer.seek_to_end`."""
        await self._seek_to(partitions, is_beginning=False)

    async def _seek_to(self, partitions: Sequence[TopicPartition], *, is_beginning: bool) -> None:
        targets = list(partitions) or sorted(self.consumer.assignment())
        operations = [
            self._recorder.invoke(self.process, "seek", topic=target.topic, partition=target.partition)
            for target in targets
        ]
        try:
            if is_beginning:
                await self.consumer.seek_to_beginning(*targets)
            else:
                await self.consumer.seek_to_end(*targets)
        except BaseException as error:
            for operation, target in zip(operations, targets, strict=True):
                operation.end_read(error, topic=target.topic, partition=target.partition)
            raise
        for operation, target in zip(operations, targets, strict=True):
            # the position is known, so this does not wait and nobody else can read in between
            offset = await self.consumer.position(target)
            operation.ok(topic=target.topic, partition=target.partition, offset=offset)

    # --------------------------------------------------------------------------------------------------------- reading

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """See `Consumer.getmany`."""
        operation = self._recorder.invoke(self.process, "poll")
        try:
            found = await self.consumer.getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records)
        except BaseException as error:
            operation.end_read(error)
            raise
        operation.ok(records=self._records(found))
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Record:
        """Return the next record of the consumer's iteration, and record it as a poll."""
        operation = self._recorder.invoke(self.process, "poll")
        try:
            record = await anext(self.consumer)
        except BaseException as error:
            operation.end_read(error)
            raise
        operation.ok(records=self._records({TopicPartition(record.topic, record.partition): [record]}))
        return record

    async def read_all(self, partitions: Iterable[TopicPartition] = ()) -> dict[TopicPartition, list[Record]]:
        """Read partitions (by default the assigned ones) from their beginning to their current end, and record it.

        The checker then demands that every record acknowledged before the call was read. The call waits without limit: put a
        timeout around it. Records after that end may be returned too.
        """
        targets = sorted(partitions) or sorted(self.consumer.assignment())
        operation = self._recorder.invoke(
            self.process, "read_all", assignment=[Partition(*target) for target in targets]
        )
        try:
            if set(targets) != self.consumer.assignment():
                self.assign(targets)
            ends = await self.consumer.end_offsets(targets)
            await self.seek_to_beginning(*targets)
            read: dict[TopicPartition, list[Record]] = {target: [] for target in targets}
            while not await self._is_past(ends):
                for target, records in (await self.getmany(timeout_ms=READ_ALL_POLL_MS)).items():
                    read[target].extend(records)
        except BaseException as error:
            operation.end_read(error)
            raise
        operation.ok(ends=[(target.topic, target.partition, ends[target]) for target in targets])
        return read

    async def _is_past(self, ends: Mapping[TopicPartition, int]) -> bool:
        for target, end in ends.items():
            if await self.consumer.position(target) < end:
                return False
        return True

    def _records(self, found: Mapping[TopicPartition, Sequence[Record]]) -> list[Records]:
        value_id = self._recorder.value_id
        return [
            Records(
                target.topic,
                target.partition,
                [record.offset for record in records],
                [value_id(record.value) for record in records],
            )
            for target, records in found.items()
        ]
