"""One log partition as the services see it: read, find and trim here; `appends`, `offsets` and `retention` are its other parts.

Records are never looked into: batches are served as they were stored, from memory or by a reader thread, and only committed
ones. Source: Ongaro's thesis 6.4 (read-only queries).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TypeVar

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.appends import PartitionAppends
from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.partitions.offsets import PartitionOffsets
from raftmq.broker.partitions.producer_fence import ProducerFence
from raftmq.broker.partitions.retention import PartitionRetention
from raftmq.broker.replica.commands import execute
from raftmq.broker.replica.log_tail import index_before_tail
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.log_commands import TrimLog, Trimmed, encode_command
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata_views import TopicView
from raftmq.fsm.topic_config import TopicConfig, effective_config
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import Entry, EntryHeader
from raftmq.raft.ready import Role
from raftmq.storage.errors import DamagedReplicaError, LogRangeError, ReplicaClosedError
from raftmq.storage.log_store import LogStore
from raftmq.types import LogIndex, Offset

log = structlog.get_logger(__name__)

T = TypeVar("T")

_READ_POSITIONS_MAX = 256
"""Readers of cold data whose next position is remembered per partition, so that a sequential read never bisects."""
_DEFAULT_CONFIG = TopicConfig()


class PartitionLog:
    """See the module. `on_damage` is told of a row that failed its check: the replica must go silent."""

    def __init__(
        self,
        replica: Replica[LogPartition],
        host: PartitionHost,
        store: LogStore,
        on_damage: Callable[[Replica[LogPartition], Exception], None] | None = None,
    ) -> None:
        self.replica = replica
        self._host = host
        self._store = store
        self._on_damage = on_damage
        self._read_positions: OrderedDict[int, LogIndex] = OrderedDict()
        """Offset → index of the entry that comes there: where cold readers will go on."""
        self._first_record: tuple[int, LogIndex] | None = None
        """(log start offset, index of the entry that holds it): found once, since a committed entry stays where it is."""
        self._topic: TopicView | None = None
        self._config = _DEFAULT_CONFIG
        self.appends = PartitionAppends(host.loop, replica, self.config, ProducerFence(lambda: host.metadata))
        self.offsets = PartitionOffsets(host.loop, replica, host.timing.offsets_retention_seconds)
        self.retention = PartitionRetention(self, host, store)
        replica.applied_listeners.append(self.retention.on_applied)
        replica.role_listeners.append(lambda _change: self.appends.start_term())
        replica.restored_listeners.append(self._on_restored)

    # ------------------------------------------------------------------------------------------------ positions

    @property
    def log_start_offset(self) -> int:
        """First readable offset (inclusive)."""
        return self.replica.state_machine.log_start_offset

    @property
    def high_watermark(self) -> int:
        """Offset after the last committed and applied record (exclusive)."""
        return self.replica.state_machine.next_offset

    def config(self) -> TopicConfig:
        """The topic's configuration in force, as this node's metadata has it."""
        metadata = self._host.metadata.state_machine
        partition = metadata.partition(self.replica.group_id)
        topic = metadata.topic(partition.topic_id) if partition is not None else None
        if topic is not self._topic:
            # views are replaced, never changed: identity is enough
            self._topic = topic
            self._config = effective_config(topic.config) if topic is not None else _DEFAULT_CONFIG
        return self._config

    # ------------------------------------------------------------------------------------------------ reading

    def is_readable(self, offset: int) -> bool:
        """Whether there is a record at `offset` now; False: wait.

        Raises:
            RequestError: OFFSET_OUT_OF_RANGE below the log's start; NOT_LEADER or NO_LEADER at the end of a replica that
                does not lead (it would learn of new records late); NOT_READY while the replica is being filled.
        """
        replica, machine = self.replica, self.replica.state_machine
        if offset < machine.log_start_offset:
            raise self._out_of_range(f"offset {offset} is below the log's start {machine.log_start_offset}")
        if replica.core.applied_index < replica.core.state_floor:
            raise RequestError(pb.NOT_READY, "this replica is still being filled", retry_after_ms=200)
        if offset < machine.next_offset:
            return True
        if replica.role is not Role.LEADER and offset == machine.next_offset:
            raise replica.not_leader()
        return False

    async def confirm_end(self, offset: int) -> None:
        """Raise OFFSET_OUT_OF_RANGE if `offset` is above the end of a leader that knows; else return.

        A quorum confirms it first: a leader cut off may have been succeeded by one whose log is longer, and its reader
        would be thrown back to an old position.
        """
        if offset > self.high_watermark and self.replica.is_leader:
            await self.replica.read_index()
            if offset > self.high_watermark and self.replica.is_leader:
                raise self._out_of_range(f"offset {offset} is above the log's end {self.high_watermark}")

    def not_available(self, offset: int) -> RequestError:
        """The answer when an offset above the high watermark did not come within the wait."""
        return RequestError(
            pb.OFFSET_NOT_AVAILABLE,
            f"offset {offset} is above this replica's high watermark {self.high_watermark}",
            retry_after_ms=50,
            high_watermark=self.high_watermark,
            log_start_offset=self.log_start_offset,
        )

    def _out_of_range(self, message: str) -> RequestError:
        return RequestError(
            pb.OFFSET_OUT_OF_RANGE,
            message,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
        )

    async def read(self, offset: int, bytes_max: int) -> list[Entry]:
        """DATA entries from the one that holds `offset` on, at least one, cut off before `bytes_max`; [] at the end.

        Raises:
            RequestError: as `is_readable`; REPLICA_QUARANTINED when a row is damaged.
        """
        if not self.is_readable(offset):
            return []
        found = self.read_recent(offset, bytes_max)
        if found is not None:
            return found
        return await self._read_cold(offset, bytes_max)

    def read_recent(self, offset: int, bytes_max: int) -> list[Entry] | None:
        """`read` of a readable offset, when memory has it; else None."""
        recent = self.replica.log.recent
        index = recent.index_of_offset(Offset(offset))
        if index is None:
            return None
        last = self.replica.core.applied_index  # what is behind it is not committed and nobody's to see
        while index <= last:
            entries = recent.slice(index, last, bytes_max)
            if entries is None:
                return None
            found = _data_from(entries, offset)
            if found:
                return found
            index = LogIndex(entries[-1].index + 1)  # commands only: go on
        return None

    async def _read_cold(self, offset: int, bytes_max: int) -> list[Entry]:
        index: LogIndex | None = self._read_positions.pop(offset, None)
        if index is not None and index <= self.replica.log_start.index:
            index = None
        is_remembered = index is not None
        found: list[Entry] = []
        failure: RequestError | None = None
        try:
            if index is None:
                index = await self.in_thread(self._store.find_offset, self.replica.key, Offset(offset))
            last = self.replica.core.applied_index
            if index is not None and index <= last:
                found = _data_from(await self._entries(index, last, bytes_max), offset)
            if is_remembered and not found:
                # commands came behind the last batch that was read, maybe very many: the next one is found past all of them
                index = await self.in_thread(self._store.find_offset, self.replica.key, Offset(offset))
                if index is not None and index <= last:
                    found = _data_from(await self._entries(index, last, bytes_max), offset)
        except RequestError as error:
            failure = error
        # while a thread read, a trim may have passed by: whatever came of the reading, that is what the reader must hear
        if offset < self.log_start_offset:
            raise self._out_of_range(f"offset {offset} is below the log's start {self.log_start_offset}") from failure
        if failure is not None:
            raise failure
        if found:
            self._remember_position(found[-1])
        return found

    async def _entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...]:
        return await self.in_thread(self._store.entries, self.replica.key, first, last, bytes_max)

    def _remember_position(self, last: Entry) -> None:
        positions = self._read_positions
        positions[last.next_offset] = LogIndex(last.index + 1)
        if len(positions) > _READ_POSITIONS_MAX:
            positions.popitem(last=False)

    async def in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        """Run a blocking read of the store on the reader threads. Raises RequestError for what it runs into."""
        try:
            return await self.replica.in_thread(function, *arguments)
        except LogRangeError as error:
            raise RequestError(pb.NOT_READY, "the log was trimmed meanwhile; try again", retry_after_ms=20) from error
        except ReplicaClosedError as error:
            raise self.replica.not_leader() from error
        except DamagedReplicaError as error:
            if self._on_damage is not None:
                self._on_damage(self.replica, error)
            raise RequestError(
                pb.REPLICA_QUARANTINED, f"this replica of group {self.replica.group_id} is damaged", retry_after_ms=500
            ) from error

    # ------------------------------------------------------------------------------------------------ positions by name

    async def latest_offset(self) -> int:
        """The end of the log, confirmed by a quorum."""
        await self.replica.read_index()
        return self.high_watermark

    async def offset_at_time(self, time_ms: int) -> tuple[int, int] | None:
        """(offset, append time) of the first record appended at or after that time; None when there is none."""
        await self.replica.read_index()
        header = await self.in_thread(self._store.find_time, self.replica.key, time_ms)
        start, end = self.log_start_offset, self.high_watermark
        if header is None or header.base_offset >= end or start >= end:
            return None
        if header.next_offset <= start:
            header = await self.header_at(start)
            if header is None:
                return None
        return max(header.base_offset, start), header.append_time_ms

    async def header_at(self, offset: int) -> EntryHeader | None:
        """Header of the entry that holds `offset`; None when there is none."""
        index = self.replica.log.recent.index_of_offset(Offset(offset))
        if index is not None:
            return self.replica.log.header(index)
        index = await self.in_thread(self._store.find_offset, self.replica.key, Offset(offset))
        if index is None:
            return None
        return await self.in_thread(self._store.header, self.replica.key, index)

    async def file_bytes(self) -> int:
        """Size of this replica's file. Raises RequestError as `in_thread`."""
        return await self.in_thread(self._store.file_bytes, self.replica.key)

    # ------------------------------------------------------------------------------------------------ trimming

    async def delete_records(self, before_offset: int, deadline: float) -> int:
        """Trim the log before `before_offset` (-1: all of it); returns the log's new start.

        Raises:
            RequestError: OFFSET_OUT_OF_RANGE above the end; REQUEST_TIMED_OUT or LEADERSHIP_LOST (outcome unknown).
        """
        self.replica.require_leader()
        end = self.high_watermark
        if before_offset < -1 or before_offset > end:
            raise self._out_of_range(f"cannot delete before offset {before_offset}: the log ends at {end}")
        before = end if before_offset == -1 else before_offset
        trimmed = await execute(self.replica, encode_command(TrimLog(before)), Trimmed, deadline)
        return trimmed.log_start_offset

    async def truncation_index(self) -> LogIndex | None:
        """The last log index whose row may be deleted here: everything up to it is below the log's start.

        None when nothing that is worth it can go. The caller still keeps to the durable state. A follower behind it gets a
        snapshot, which holds all there is to know of what is gone. Commands before the first record go, too, but for a tail.
        """
        machine, replica = self.replica.state_machine, self.replica
        has_records_to_delete = machine.log_start_offset > replica.log_start.next_offset
        before_tail = index_before_tail(replica)
        if not has_records_to_delete and before_tail is None:
            return None
        index = await self._index_before_records()
        if index is None or has_records_to_delete:
            return index
        # its own entries are few, and the same at the next look: a log that begins with a record has nothing to give
        before_tail = index_before_tail(replica)
        return min(index, before_tail) if before_tail is not None and index > replica.log_start.index else None

    async def _index_before_records(self) -> LogIndex | None:
        """The last index before the first record that is kept."""
        machine = self.replica.state_machine
        start = machine.log_start_offset
        if start >= machine.next_offset:
            return self.replica.core.applied_index
        if self._first_record is not None and self._first_record[0] == start:
            return LogIndex(self._first_record[1] - 1)
        index = self.replica.log.recent.index_of_offset(Offset(start))
        if index is None:
            index = await self.in_thread(self._store.find_offset, self.replica.key, Offset(start))
        if index is None:
            return None
        self._first_record = (start, index)
        return LogIndex(index - 1)

    def _on_restored(self) -> None:
        self.retention.on_restored()
        self._read_positions.clear()
        self._first_record = None


def _data_from(entries: Sequence[Entry], offset: int) -> list[Entry]:
    """Those with records at or after `offset`."""
    return [entry for entry in entries if entry.record_count and entry.next_offset > offset]
