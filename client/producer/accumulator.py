"""Holds records until they are sent: the queues of each topic, the choice of partitions, and the filling of batches.

Must not await, send, or account for buffer space (the producer has reserved it). Invariant: a batch never has more than
`PartitionQueue.batch_bytes_max` bytes of records, unless it holds a single one.

Source: KIP-480 and KIP-794 (sticky partitions).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast
from zlib import crc32

from raftmq.client.base import settings
from raftmq.client.codec.batch import Headers
from raftmq.client.connection.resolver import TopicInfo
from raftmq.client.connection.topic_kinds import require_writable_log
from raftmq.client.producer.batch import BulkDelivery, Delivery, ProducerBatch
from raftmq.client.producer.partition_queue import PartitionQueue, ProducerIdentity
from raftmq.client.producer.partitioner import Partitioner, crc32_partition
from raftmq.client.producer.record_checks import Columns, prefix_that_fits, record_sizes, records_bytes
from raftmq.errors import UnknownPartitionError

T = TypeVar("T")
RecordQueue = PartitionQueue[ProducerBatch]


class TopicState:
    """The queues of one incarnation of a topic, and the current partition for records without a key."""

    __slots__ = ("info", "queues", "sticky", "sticky_bytes", "sticky_until")

    def __init__(self, info: TopicInfo, sticky: int) -> None:
        self.info = info
        self.queues: list[RecordQueue] = []
        self.sticky = sticky
        """The current partition of records without a key."""
        self.sticky_bytes = 0
        self.sticky_until = 0.0
        """The loop time after which the next batch without keys goes to the next partition."""


class _Group(NamedTuple):
    """Records of one piece that go to one partition, and their bytes with overhead."""

    queue: RecordQueue
    keys: Sequence[bytes | None] | None
    values: Sequence[bytes | None]
    headers: Sequence[Headers] | None
    timestamps: Sequence[int | None] | None
    records_bytes: int


class Accumulator:
    """Assigns records to partitions and fills the open batch of each partition."""

    def __init__(
        self,
        *,
        batch_bytes_max: int,
        codec: int,
        linger_seconds: float,
        delivery_timeout_seconds: float,
        partitioner: Partitioner,
        rng: random.Random,
        has_leader: Callable[[int], bool],
        on_active: Callable[[RecordQueue], None],
        on_ready: Callable[[RecordQueue], None],
    ) -> None:
        self.producer_id = 0
        """The producer id, written by the producer when it has one. 0: not idempotent."""
        self.producer_epoch = 0
        self._batch_bytes_max = batch_bytes_max
        self._codec = codec
        self._linger_seconds = linger_seconds
        self._delivery_timeout_seconds = delivery_timeout_seconds
        self._partition_of = partitioner
        self._rng = rng
        self._has_leader = has_leader
        self._on_active = on_active
        self._on_ready = on_ready
        self._topics: dict[str, TopicState] = {}

    def topic(self, info: TopicInfo) -> TopicState:
        """Return the queues of a topic, updated to the current topology. Raises `TopicKindMismatchError` for a queue topic."""
        state = self._topics.get(info.name)
        if state is not None and state.info is info:
            return state
        require_writable_log(info)
        if state is None or state.info.topic_id != info.topic_id:
            # Another incarnation: brokers will refuse the batches that are still in the old queues, and the producer reports that.
            state = self._topics[info.name] = TopicState(info, self._rng.randrange(max(1, info.partition_count)))
        state.info = info
        for number in range(len(state.queues), info.partition_count):
            identity = ProducerIdentity(self.producer_id, self.producer_epoch)
            state.queues.append(PartitionQueue(info.name, info.topic_id, number, info.group_ids[number], identity))
        # A topic may allow smaller batches than the configured size. Brokers refuse a single record that is larger.
        allowed = max(1, info.batch_bytes_max - settings.BATCH_FRAME_BYTES)
        for queue in state.queues:
            queue.batch_bytes_max = min(self._batch_bytes_max, allowed)
        return state

    def add(
        self,
        state: TopicState,
        value: bytes | None,
        key: bytes | None,
        partition: int | None,
        timestamp_ms: int | None,
        headers: Headers,
        record_bytes: int,
    ) -> Delivery:
        """Append one record to its queue. Raises `UnknownPartitionError`."""
        queue = self._choose_queue(state, key, partition, record_bytes)
        time_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        batch = self._open_batch(queue, record_bytes, time_ms)
        position = batch.append(value, key, time_ms, headers, record_bytes)
        if not queue.is_scheduled:
            self._on_ready(queue)
        return Delivery(batch, position)

    def add_many(
        self,
        state: TopicState,
        records: Columns,
        partition: int | None,
        timestamp_ms: int | None,
        delivery: BulkDelivery,
    ) -> bool:
        """Append records to their queues. Return whether a batch was filled. An error is raised before any record is appended."""
        keys, numbers = records.keys, None
        if partition is not None or keys is None:
            queue = self._choose_queue(state, None, partition, records.size)
            groups = [_Group(queue, keys, records.values, records.headers, records.timestamps, records.size)]
        else:
            numbers = self._partition_numbers(state, keys)
            groups = _group_by_partition(state, numbers, keys, records)
        has_filled = False
        delivery.begin(numbers)
        for group in groups:
            has_filled |= self._fill(group, timestamp_ms, delivery)
            if not group.queue.is_scheduled:
                self._on_ready(group.queue)
        if has_filled and keys is None and partition is None:
            self._move_on(state)
        elif keys is None:
            state.sticky_bytes = (
                0  # bulk loads change partitions with full batches, or each load would be cut into small ones
            )
        return has_filled

    def _choose_queue(self, state: TopicState, key: bytes | None, partition: int | None, size: int) -> RecordQueue:
        count = len(state.queues)
        if partition is not None:
            if not 0 <= partition < count:
                raise UnknownPartitionError(f"{state.info.name} has partitions 0 to {count - 1}, not {partition}")
            return state.queues[partition]
        if key or (key is not None and self._partition_of is not crc32_partition):
            return state.queues[self._partition_of(key, count)]
        queue = state.queues[state.sticky]
        is_stale = queue.open is None and asyncio.get_running_loop().time() >= state.sticky_until
        if is_stale or state.sticky_bytes >= settings.STICKY_BYTES:
            self._move_on(state)
            queue = state.queues[state.sticky]
        state.sticky_bytes += size
        return queue

    def _move_on(self, state: TopicState) -> None:
        """Choose the next partition in turn for records without a key, preferably one with a leader."""
        state.sticky_bytes = 0
        state.sticky_until = asyncio.get_running_loop().time() + settings.STICKY_SECONDS
        count = len(state.queues)
        for step in range(1, count + 1):
            candidate = (state.sticky + step) % count
            if self._has_leader(state.queues[candidate].group_id):
                break
        else:
            candidate = (state.sticky + 1) % count
        state.sticky = candidate

    def _open_batch(self, queue: RecordQueue, size: int, time_ms: int) -> ProducerBatch:
        """Return the open batch for the next `size` bytes. A batch without enough room is closed first."""
        batch = queue.open
        if batch is not None and batch.reserved_bytes + size > queue.batch_bytes_max:
            queue.close_open(self._codec)
            self._on_ready(queue)
            batch = None
        if batch is None:
            now = asyncio.get_running_loop().time()
            batch = ProducerBatch(
                queue.topic,
                queue.partition,
                time_ms,
                now + self._linger_seconds,
                now + self._delivery_timeout_seconds,
            )
            queue.open = batch
            self._on_active(queue)
        return batch

    def _partition_numbers(self, state: TopicState, keys: Sequence[bytes | None]) -> list[int]:
        """Return the partition of each record."""
        count, sticky, partition_of = len(state.queues), state.sticky, self._partition_of
        if partition_of is crc32_partition:
            # Inlined, because calling the function for each key takes twice as long. An empty key is no key, as in librdkafka.
            if None in keys or b"" in keys:
                numbers = [crc32(key) % count if key else sticky for key in keys]
                self._move_on(state)
            else:
                numbers = [crc32(key) % count for key in cast("Sequence[bytes]", keys)]
        elif None in keys:
            numbers = [sticky if key is None else partition_of(key, count) for key in keys]
            self._move_on(state)
        else:
            numbers = [partition_of(key, count) for key in cast("Sequence[bytes]", keys)]
        return numbers

    def _fill(self, group: _Group, timestamp_ms: int | None, delivery: BulkDelivery) -> bool:
        """Append records to the queue's batches, as many as fit into each. Return whether a batch was filled."""
        queue, keys, values, headers, timestamps, total = group
        time_ms = int(time.time() * 1000) if timestamp_ms is None else timestamp_ms
        batch = self._open_batch(queue, min(total, 1), time_ms)
        if batch.reserved_bytes + total <= queue.batch_bytes_max:
            position = batch.extend(values, keys, timestamp_ms, total, headers, timestamps)
            delivery.add(batch, position, 0, len(values))
            return False
        sizes = record_sizes(keys, values, headers)
        start = 0
        while start < len(values):
            batch = self._open_batch(queue, min(sizes[start], queue.batch_bytes_max), time_ms)
            room = queue.batch_bytes_max - batch.reserved_bytes
            taken, taken_bytes = prefix_that_fits(sizes, start, room, must_take_one=batch.count == 0)
            end = start + taken
            position = batch.extend(
                values[start:end],
                None if keys is None else keys[start:end],
                timestamp_ms,
                taken_bytes,
                None if headers is None else headers[start:end],
                None if timestamps is None else timestamps[start:end],
            )
            delivery.add(batch, position, start, taken)
            start = end
            if start < len(values):
                queue.close_open(self._codec)
                self._on_ready(queue)
        return True


def _group_by_partition(
    state: TopicState, numbers: Sequence[int], keys: Sequence[bytes | None], records: Columns
) -> list[_Group]:
    values, headers, timestamps = records.values, records.headers, records.timestamps
    grouped: dict[int, tuple[list[bytes | None], list[bytes | None]]] = {n: ([], []) for n in set(numbers)}
    for number, key, value in zip(numbers, keys, values, strict=True):
        group_keys, group_values = grouped[number]
        group_keys.append(key)
        group_values.append(value)
    groups = []
    for number, (group_keys, group_values) in grouped.items():
        group_headers = None if headers is None else _cells_of(number, numbers, headers)
        group_times = None if timestamps is None else _cells_of(number, numbers, timestamps)
        size = records_bytes(group_keys, group_values, group_headers)
        groups.append(_Group(state.queues[number], group_keys, group_values, group_headers, group_times, size))
    return groups


def _cells_of(number: int, numbers: Sequence[int], cells: Sequence[T]) -> list[T]:
    return [cell for at, cell in zip(numbers, cells, strict=True) if at == number]
