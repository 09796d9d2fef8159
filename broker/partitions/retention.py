"""Retain the records of one partition: the leader trims records that are too old or exceed the topic's size.

Only the leader decides, by the entries' append times and sizes. The trim itself is a replicated command, so the log starts at
the same offset on every replica. Whole batches are deleted, oldest first, also in idle partitions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import structlog
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.partitions.size_index import SizeIndex
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.topic_config import TopicConfig
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import Entry, EntryHeader
from raftmq.storage.log_store import LogStore
from raftmq.types import LogIndex

log = structlog.get_logger(__name__)

T = TypeVar("T")


class RetainedLog(Protocol):
    """The partition's log as retention sees it. All its errors are RequestError."""

    replica: Replica[LogPartition]

    @property
    def log_start_offset(self) -> int:
        """Return the first readable offset (inclusive)."""
        ...

    @property
    def high_watermark(self) -> int:
        """Return the offset after the last committed and applied record (exclusive)."""
        ...

    def config(self) -> TopicConfig:
        """Return the topic's configuration in force."""
        ...

    async def header_at(self, offset: int) -> EntryHeader | None:
        """Return the header of the entry that holds an offset."""
        ...

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking read of the store."""
        ...

    async def delete_records(self, before_offset: int, deadline: float) -> int:
        """Trim the log and return its new start."""
        ...


class PartitionRetention:
    """Trims one partition while this replica leads it."""

    def __init__(self, partition: RetainedLog, host: PartitionHost, store: LogStore) -> None:
        self._partition = partition
        self._host = host
        self._store = store
        self._size_index: SizeIndex | None = None
        """Byte counts at offsets. None unless the topic is bounded by size."""
        self._oldest: tuple[int, int] | None = None
        """(log start offset, append time of the entry that holds it)."""
        self._postponed_throttle = LogThrottle()

    def on_applied(self, entry: Entry, result: object) -> None:
        """Record an applied entry. The replica calls this for each one."""
        if self._size_index is not None and entry.record_count:
            machine = self._partition.replica.state_machine
            self._size_index.applied(machine.next_offset, machine.appended_bytes)

    def on_restored(self) -> None:
        """Forget everything remembered of the log, because a snapshot replaced the state."""
        self._size_index = None
        self._oldest = None

    async def enforce(self) -> None:
        """Trim records that are too old or too many, if this replica leads. Called regularly, also for idle partitions."""
        partition = self._partition
        if not partition.replica.is_leader or partition.log_start_offset >= partition.high_watermark:
            return
        try:
            config = partition.config()
            target = max(
                await self._target_by_time(config.retention_ms), await self._target_by_size(config.retention_bytes)
            )
            if target > partition.log_start_offset and partition.replica.is_leader:
                start = await partition.delete_records(
                    min(target, partition.high_watermark),
                    self._host.loop.time() + self._host.timing.retention_check_seconds,
                )
                log.info("log_trimmed", group_id=partition.replica.group_id, offset=start, reason="retention")
        except RequestError as error:
            if self._postponed_throttle.is_due(error.code):
                code = pb.ErrorCode.Name(error.code)
                log.info("retention_postponed", group_id=partition.replica.group_id, error_code=code)

    async def _target_by_time(self, retention_ms: int) -> int:
        partition = self._partition
        start = partition.log_start_offset
        if retention_ms < 0 or not self._host.is_clock_trusted:
            return start
        cutoff_ms = self._host.now_ms() - retention_ms
        if self._oldest is None or self._oldest[0] != start:
            header = await partition.header_at(start)
            if header is None:
                return start
            self._oldest = (start, header.append_time_ms)
        if self._oldest[1] >= cutoff_ms:
            return start
        kept = await partition.in_thread(self._store.find_time, partition.replica.key, cutoff_ms)
        # an entry beyond the applied end may not be committed, so it must not be deleted
        return min(kept.base_offset, partition.high_watermark) if kept is not None else partition.high_watermark

    async def _target_by_size(self, retention_bytes: int) -> int:
        partition = self._partition
        start, machine = partition.log_start_offset, partition.replica.state_machine
        if retention_bytes < 0:
            self._size_index = None
            return start
        if self._size_index is None or self._size_index.retention_bytes != retention_bytes:
            self._size_index = SizeIndex(
                retention_bytes, machine.applied_index, machine.next_offset, machine.appended_bytes
            )
        size_index = self._size_index
        if not size_index.is_complete:
            step = await partition.in_thread(
                size_index.read_back,
                lambda index: self._store.header(partition.replica.key, index),
                LogIndex(partition.replica.log_start.index + 1),
                start,
                machine.appended_bytes,
            )
            if size_index is not self._size_index:
                return start
            size_index.take_back(*step)
        return size_index.trim_target(partition.log_start_offset, machine.appended_bytes) or start
