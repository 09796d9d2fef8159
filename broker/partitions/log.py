"""Serve one log partition: read, find and trim records. `appends`, `committed_offsets` and `retention` serve its other requests.

Records are never looked into: batches are served as they were stored, from memory or by a reader thread. Only committed
records are served. Source: Ongaro's thesis 6.4 (read-only queries).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.append_gate import LogGate
from raftmq.broker.partitions.appends import PartitionAppends
from raftmq.broker.partitions.committed_offsets import PartitionOffsets
from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.partitions.producer_fence import ProducerFence
from raftmq.broker.partitions.retention import PartitionRetention
from raftmq.broker.partitions.store_reads import read_in_thread
from raftmq.broker.replica.commands import execute
from raftmq.broker.replica.log_tail import index_before_tail
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.log_commands import TrimLog, Trimmed, encode_command
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata_views import TopicView
from raftmq.fsm.producer_table import ProducerTable
from raftmq.fsm.topic_config import TopicConfig, effective_config
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import Entry, EntryHeader
from raftmq.raft.ready import Role
from raftmq.storage.log_store import LogStore
from raftmq.types import LogIndex, Offset

log = structlog.get_logger(__name__)

T = TypeVar("T")

_READ_POSITIONS_MAX = 256
"""Sequential readers of old records whose next position is remembered per partition, so that they need no binary search."""
_SEARCH_SECONDS_MAX = 1.0
"""How long one request may read entries to learn their times. Later requests continue, and their client sees that the leader is alive."""
_SEARCH_RETRY_MS = 20
_DEFAULT_CONFIG = TopicConfig()


class PartitionLog:
    """A log partition as the services see it."""

    def __init__(
        self,
        replica: Replica[LogPartition],
        host: PartitionHost,
        store: LogStore,
        on_damage: Callable[[Replica[LogPartition], Exception], None] | None = None,
    ) -> None:
        """Take `on_damage`, which is called when a row failed its check and must make the replica silent."""
        self.replica = replica
        self._host = host
        self._store = store
        self._on_damage = on_damage
        self._read_positions: OrderedDict[int, LogIndex] = OrderedDict()
        """Offset → index of the entry that holds it: the positions where readers of old records will continue."""
        self._first_record: tuple[int, LogIndex] | None = None
        """(log start offset, index of the entry that holds it). It is looked up only once, because a committed entry never moves."""
        self._topic: TopicView | None = None
        self._defaults: Mapping[str, str] | None = None
        self._config = _DEFAULT_CONFIG
        self.appends = PartitionAppends(
            host.loop, replica, lambda: self.config().batch_bytes_max, ProducerFence(lambda: host.metadata), LogGate()
        )
        self.offsets = PartitionOffsets(host.loop, replica, lambda: host.timing.offsets_retention_seconds)
        self.retention = PartitionRetention(self, host, store)
        replica.applier.listeners.append(self.retention.on_applied)
        replica.role_listeners.append(lambda _change: self.appends.start_term())
        replica.restored_listeners.append(self._on_restored)

    # ------------------------------------------------------------------------------------------------ positions

    @property
    def log_start_offset(self) -> int:
        """Return the first readable offset (inclusive)."""
        return self.replica.state_machine.log_start_offset

    @property
    def high_watermark(self) -> int:
        """Return the offset after the last committed and applied record (exclusive)."""
        return self.replica.state_machine.next_offset

    def config(self) -> TopicConfig:
        """Return the topic's configuration in force, according to this node's metadata."""
        metadata = self._host.metadata.state_machine
        partition = metadata.partition(self.replica.group_id)
        topic = metadata.topic(partition.topic_id) if partition is not None else None
        defaults = metadata.config()
        if topic is not self._topic or defaults is not self._defaults:
            # views are replaced, never changed, so comparing identities is enough
            self._topic, self._defaults = topic, defaults
            self._config = effective_config(topic.config, defaults) if topic is not None else _DEFAULT_CONFIG
        return self._config

    # ------------------------------------------------------------------------------------------------ as any partition

    @property
    def producers(self) -> ProducerTable:
        """See `Partition`."""
        return self.replica.state_machine.producers

    @property
    def expiry_now_ms(self) -> int:
        """See `Partition`."""
        return self.replica.state_machine.expiry.now_ms

    async def settle_producer(self, producer_id: int, epoch_min: int, deadline: float) -> None:
        """See `Partition`."""
        await self.appends.settle(producer_id, epoch_min, deadline)

    async def file_bytes(self) -> int:
        """See `Partition`. Raises RequestError as `in_thread`."""
        return await self.in_thread(self._store.file_bytes, self.replica.key)

    async def maintain(self) -> None:
        """Delete records that are too old or too many, and the offsets of groups that are gone."""
        await self.retention.enforce()
        await self._expire_offsets()

    async def _expire_offsets(self) -> None:
        """Forget offsets that were not used for the retention time, of groups that metadata does not have.

        Metadata has a group while it has members, and for the retention time after its last member left.
        """
        host = self._host
        if not self.replica.is_leader or not host.is_clock_trusted:
            return
        machine = host.metadata.state_machine
        before_ms = host.now_ms() - int(self.offsets.kept_seconds() * 1000)
        deadline = host.loop.time() + host.timing.retention_check_seconds
        count = await self.offsets.expire(lambda name: machine.consumer_group(name) is not None, before_ms, deadline)
        if count:
            log.info("offsets_expired", group_id=self.replica.group_id, count=count)

    def samples(self) -> Iterable[tuple[str, float]]:
        """See `Partition`."""
        machine = self.replica.state_machine
        return (
            ("raftmq_partition_log_start_offset", machine.log_start_offset),
            ("raftmq_partition_high_watermark", machine.next_offset),
            ("raftmq_partition_appended_bytes_total", machine.appended_bytes),
        )

    # ------------------------------------------------------------------------------------------------ reading

    def is_readable(self, offset: int) -> bool:
        """Return whether `offset` has a record now. If not, the caller waits.

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
        """Raise OFFSET_OUT_OF_RANGE if `offset` is above the end of a leader's log.

        A quorum confirms the end first. A leader that is cut off may have a successor with a longer log, and the error would
        reset its reader to an old position.
        """
        if offset > self.high_watermark and self.replica.is_leader:
            await self.replica.read_index()
            if offset > self.high_watermark and self.replica.is_leader:
                raise self._out_of_range(f"offset {offset} is above the log's end {self.high_watermark}")

    def check_reader(self, offset: int, group_id: int) -> None:
        """Raise OFFSET_OUT_OF_RANGE if the records before `offset`, which were read from the group `group_id`, were lost in a recovery.

        Other records may have their offsets by now, so the reader would silently skip these. 0 stands for an unknown group.
        """
        end = self._host.metadata.state_machine.kept_end_offset(self.replica.group_id, group_id)
        if end is not None and offset > end:
            raise RequestError(
                pb.OFFSET_OUT_OF_RANGE,
                f"records from offset {end} on were lost when the partition was recovered, and the reader is at offset {offset}: go on from {end}",
                log_start_offset=self.log_start_offset,
                high_watermark=self.high_watermark,
                kept_end_offset=end,
            )

    def not_available(self, offset: int) -> RequestError:
        """Return the error for an offset above the high watermark that did not become available within the wait."""
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
        """Return DATA entries from the entry that holds `offset`: at least one, then up to `bytes_max`. Empty at the log's end.

        Raises:
            RequestError: As `is_readable`. REPLICA_QUARANTINED when a row is damaged.
        """
        if not self.is_readable(offset):
            return []
        found = self.read_recent(offset, bytes_max)
        if found is not None:
            return found
        return await self._read_cold(offset, bytes_max)

    def read_recent(self, offset: int, bytes_max: int) -> list[Entry] | None:
        """Return the entries of a readable offset if memory holds them, else None. Otherwise like `read`."""
        recent = self.replica.log.recent
        index = recent.index_of_offset(Offset(offset))
        if index is None:
            return None
        last = self._last_applied()
        while index <= last:
            entries = recent.slice(index, last, bytes_max)
            if entries is None:
                return None
            found = _data_from(entries, offset)
            if found:
                return found
            index = LogIndex(entries[-1].index + 1)  # only commands were found: continue after them
        return None

    def _last_applied(self) -> LogIndex:
        """Return the last entry that may be served: later ones may not be committed.

        The core is ahead of the machine and of the log here from the arrival of a snapshot until it is installed.
        """
        replica = self.replica
        return LogIndex(min(replica.core.applied_index, replica.state_machine.applied_index))

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
            last = self._last_applied()
            if index is not None and index <= last:
                found = _data_from(await self._entries(index, last, bytes_max), offset)
            if is_remembered and not found:
                # commands follow the last batch that was read, possibly very many: find the next batch beyond all of them
                index = await self.in_thread(self._store.find_offset, self.replica.key, Offset(offset))
                if index is not None and index <= last:
                    found = _data_from(await self._entries(index, last, bytes_max), offset)
        except RequestError as error:
            failure = error
        # the log may have been trimmed while a thread read: the reader must learn of the trim, whatever the read returned
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
        """Run a blocking read of the store on the reader threads. Translate the store's errors to RequestError."""
        return await read_in_thread(self.replica, self._on_damage, function, *arguments)

    # ------------------------------------------------------------------------------------------------ positions by name

    async def latest_offset(self) -> int:
        """Return the end of the log, confirmed by a quorum."""
        await self.replica.read_index()
        return self.high_watermark

    async def offset_at_time(self, time_ms: int) -> tuple[int, int] | None:
        """Return (offset, append time) of the first record appended at or after that time, or None if there is none."""
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

    async def batch_at_timestamp(self, time_ms: int, from_offset: int) -> tuple[int, int] | None:
        """Return (offset, append time) of the first batch whose latest record has this timestamp or a later one, or None.

        The offset is the batch's first, but at least `from_offset` and the log's start. Batches that end before them are ignored. Which
        record of the batch it is, and whether it is at or after the offset, only a reader of the batch can tell.

        Raises:
            RequestError: NOT_READY if many entries must be read first, because the bounds of their times were lost. The next
                request continues.
        """
        await self.replica.read_index()
        loop = self._host.loop
        give_up_at = loop.time() + _SEARCH_SECONDS_MAX
        while True:
            first = max(self.log_start_offset, from_offset)
            search = await self.in_thread(self._store.find_timestamp, self.replica.key, time_ms, first)
            header = search.header
            if search.is_complete and (header is None or header.next_offset > self.log_start_offset):
                break  # otherwise the batch was trimmed in the meantime
            if loop.time() >= give_up_at:
                raise RequestError(
                    pb.NOT_READY,
                    f"the timestamps of partition group {self.replica.group_id} are being read; try again",
                    retry_after_ms=_SEARCH_RETRY_MS,
                )
        if header is None or header.base_offset >= self.high_watermark:
            return None
        return max(header.base_offset, first, self.log_start_offset), header.append_time_ms

    async def header_at(self, offset: int) -> EntryHeader | None:
        """Return the header of the entry that holds `offset`, or None if there is none."""
        index = self.replica.log.recent.index_of_offset(Offset(offset))
        if index is not None:
            return self.replica.log.header(index)
        index = await self.in_thread(self._store.find_offset, self.replica.key, Offset(offset))
        if index is None:
            return None
        return await self.in_thread(self._store.header, self.replica.key, index)

    # ------------------------------------------------------------------------------------------------ trimming

    async def delete_records(self, before_offset: int, deadline: float) -> int:
        """Trim the log before `before_offset` (-1: all of it) and return the log's new start.

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
        """Return the last log index whose row may be deleted here, or None if nothing worth it can be deleted.

        Everything up to this index is below the log's start. The caller must still keep rows beyond the durable state. A follower
        that needs deleted rows gets a snapshot, which contains all of their effects. Commands before the first record are deleted
        too, except a tail of them.
        """
        machine, replica = self.replica.state_machine, self.replica
        has_records_to_delete = machine.log_start_offset > replica.log_start.next_offset
        before_tail = index_before_tail(replica)
        if not has_records_to_delete and before_tail is None:
            return None
        index = await self._index_before_records()
        if index is None or has_records_to_delete:
            return index
        # a log that begins with a record has only few commands before it, and the next call would find the same ones
        before_tail = index_before_tail(replica)
        return min(index, before_tail) if before_tail is not None and index > replica.log_start.index else None

    async def _index_before_records(self) -> LogIndex | None:
        """Return the last index before the first record that is kept."""
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
    """Return the entries with records at or after `offset`."""
    return [entry for entry in entries if entry.record_count and entry.next_offset > offset]
