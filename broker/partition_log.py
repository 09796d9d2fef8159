"""One log partition as the services see it: append, read, find, trim.

Judging and proposing happen without an `await` in between, in the order of the calls; only waiting is concurrent. Records
are never looked into: a batch is checked by its 64-byte header and its CRC, and stored and served as it came.

Source: KIP-98 (idempotent producers), Ongaro's thesis 6.4 (read-only queries).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar, cast

import structlog
from raftmq.batch_header import (
    BatchFormatError,
    BatchHeader,
    BatchTooLargeError,
    UnsupportedBatchVersionError,
    UnsupportedCodecError,
    validate,
)
from raftmq.broker.append_ticket import AppendTicket, Applied, expired, timed_out
from raftmq.broker.byte_marks import ByteMarks
from raftmq.broker.group import Group
from raftmq.broker.request_error import RequestError
from raftmq.broker.service_host import ServiceHost
from raftmq.fsm.append_judge import (
    Accept,
    AppendJudge,
    Duplicate,
    Fenced,
    Gap,
    JoinPending,
    Overlap,
    TooManyProducers,
)
from raftmq.fsm.log_commands import TrimLog, Trimmed, encode_command
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.metadata_commands import Rejected
from raftmq.fsm.metadata_views import TopicView
from raftmq.fsm.topic_config import TopicConfig, effective_config
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import Entry, EntryHeader, EntryKind, Proposal
from raftmq.raft.ready import Role
from raftmq.storage.errors import DamagedReplicaError, LogRangeError, ReplicaClosedError
from raftmq.storage.log_store import LogStore
from raftmq.types import LogIndex, Offset

log = structlog.get_logger(__name__)

T = TypeVar("T")

_READ_POSITIONS_MAX = 256
"""Readers of cold data whose next position is remembered per partition, so that a sequential read never bisects."""
_UNCONFIRMED_RETRY_MS = 20
_DEFAULT_CONFIG = TopicConfig()


class _InFlight(NamedTuple):
    first: LogIndex
    last: LogIndex
    applied: Applied


class _Run:
    """Batches accepted and not yet proposed: one proposal for all of them."""

    __slots__ = ("headers", "idempotent", "payloads")

    def __init__(self) -> None:
        self.headers: list[BatchHeader] = []
        self.payloads: list[bytes] = []
        self.idempotent: BatchHeader | None = None
        """The last one that has a producer."""

    def add(self, header: BatchHeader, payload: bytes) -> None:
        self.headers.append(header)
        self.payloads.append(payload)
        if header.producer_id:
            self.idempotent = header

    def is_continued_by(self, header: BatchHeader) -> bool:
        """Whether the judge, were it told of this run, would accept the batch: it follows the run's last sequence."""
        last = self.idempotent
        return last is not None and (
            header.producer_id == last.producer_id
            and header.producer_epoch == last.producer_epoch
            and header.first_sequence == last.last_sequence + 1
        )


class PartitionLog:
    """See the module. `on_damage` is told of a row that failed its check: the replica must go silent."""

    def __init__(
        self,
        group: Group[LogPartition],
        host: ServiceHost,
        store: LogStore,
        on_damage: Callable[[Group[LogPartition], Exception], None] | None = None,
    ) -> None:
        self.group = group
        self._host = host
        self._store = store
        self._on_damage = on_damage
        self._judge = AppendJudge(group.machine)
        self._judged_term = group.term
        self._in_flight: deque[_InFlight] = deque()
        """Proposals of this term whose result may still be asked for, by ascending index."""
        self._read_positions: OrderedDict[int, LogIndex] = OrderedDict()
        """Offset → index of the entry that comes there: where cold readers will go on."""
        self._topic: TopicView | None = None
        self._config = _DEFAULT_CONFIG
        self._marks: ByteMarks | None = None
        self._oldest: tuple[int, int] | None = None
        """(log start offset, append time of the entry that holds it)."""
        group.on_applied = self._on_applied
        group.on_leadership = self._on_leadership
        group.on_restored = self._on_restored

    # ------------------------------------------------------------------------------------------------ positions

    @property
    def log_start_offset(self) -> int:
        """First readable offset (inclusive)."""
        return self.group.machine.log_start_offset

    @property
    def high_watermark(self) -> int:
        """Offset after the last committed and applied record (exclusive)."""
        return self.group.machine.next_offset

    def config(self) -> TopicConfig:
        """The topic's configuration in force, as this node's metadata has it."""
        metadata = self._host.metadata.machine
        partition = metadata.partition(self.group.group_id)
        topic = metadata.topic(partition.topic_id) if partition is not None else None
        if topic is not self._topic:
            # views are replaced, never changed: identity is enough
            self._topic = topic
            self._config = effective_config(topic.config) if topic is not None else _DEFAULT_CONFIG
        return self._config

    def _require_leader(self) -> None:
        group = self.group
        if group.is_leader:
            return
        if group.role is Role.LEADER and not group.is_closed:
            raise RequestError(
                pb.NO_LEADER,
                f"the leader of group {group.group_id} is being confirmed; try again",
                retry_after_ms=_UNCONFIRMED_RETRY_MS,
            )
        raise group.not_leader()

    # ------------------------------------------------------------------------------------------------ append

    async def append(self, batches: Sequence[bytes], deadline: float) -> pb.PartitionAppendResult:
        """Append batches and wait until they are committed and applied, at most until `deadline` (loop time)."""
        ticket = self.begin_append(batches, deadline)
        await self.finish_append(ticket, deadline)
        return self.append_result(ticket)

    def begin_append(self, batches: Sequence[bytes], deadline: float) -> AppendTicket:
        """Check, judge and propose, in this order and at once. What it says is final only after `finish_append`."""
        ticket = AppendTicket(batches)
        if self._host.loop.time() >= deadline:
            ticket.refuse(expired())
            return ticket
        self._propose_from(ticket, 0, is_confirmed=False)
        return ticket

    async def finish_append(self, ticket: AppendTicket, deadline: float) -> None:
        """Wait for what the ticket's batches wait for. Cancelling it undoes nothing."""
        if ticket.gap_position is not None:
            await self._resolve_gap(ticket, deadline)
        waiting = ticket.pending()
        if waiting:
            await asyncio.wait(waiting, timeout=max(0.0, deadline - self._host.loop.time()))

    def append_result(self, ticket: AppendTicket) -> pb.PartitionAppendResult:
        """The answer as of now: what is still pending is answered as timed out."""
        return ticket.result(self.log_start_offset)

    def _propose_from(self, ticket: AppendTicket, position: int, *, is_confirmed: bool) -> None:
        try:
            self._require_leader()
            bytes_max = self.config().batch_bytes_max
        except RequestError as error:
            ticket.refuse(error)
            return
        self._start_term()
        ticket.leader_epoch = self.group.term
        run = _Run()
        for number in range(position, len(ticket.batches)):
            batch = ticket.batches[number]
            try:
                header = validate(batch, bytes_max)
            except BatchFormatError as error:
                self._flush(ticket, run)
                if not ticket.has_failed:
                    ticket.refuse(_format_error(error, number))
                return
            if header.producer_id and run.idempotent is not None and not run.is_continued_by(header):
                run = self._flush(ticket, run)
                if ticket.has_failed:
                    return
            if header.producer_id == 0 or run.idempotent is not None:
                run.add(header, batch)
            elif not self._judge_one(ticket, run, header, number, is_confirmed=is_confirmed):
                return
        self._flush(ticket, run)

    def _start_term(self) -> None:
        if self.group.term != self._judged_term:
            self._judge.clear()
            self._in_flight.clear()
            self._judged_term = self.group.term

    def _judge_one(
        self, ticket: AppendTicket, run: _Run, header: BatchHeader, number: int, *, is_confirmed: bool
    ) -> bool:
        """Judge a batch of a producer that has none in the run; False: the batches after it may not be tried."""
        verdict = self._judge.judge(header)
        if isinstance(verdict, Accept):
            run.add(header, ticket.batches[number])
            return True
        self._flush(ticket, run)
        run.headers, run.payloads = [], []
        if ticket.has_failed:
            return False
        match verdict:
            case Duplicate(base_offset):
                ticket.outcomes.append((base_offset, None))
                return True
            case JoinPending(index, base_offset):
                self._join(ticket, base_offset, index)
                return not ticket.has_failed
            case Overlap(last_sequence, pending_index):
                error = RequestError(
                    pb.SEQUENCE_OVERLAP,
                    f"records up to sequence {last_sequence} were written before; send only what comes after",
                    last_sequence=last_sequence,
                )
                if pending_index:
                    self._join(ticket, error, pending_index)
                else:
                    ticket.refuse(error)
            case Fenced(epoch):
                ticket.refuse(
                    RequestError(pb.PRODUCER_FENCED, f"this producer's epoch is {epoch} now: another one took over")
                )
            case TooManyProducers():
                ticket.refuse(
                    RequestError(
                        pb.TOO_MANY_PRODUCERS,
                        "the partition remembers as many producers as it may; try again when some have expired",
                        retry_after_ms=1000,
                    )
                )
            case Gap(last_sequence):
                if is_confirmed:
                    ticket.refuse(_out_of_order(header, last_sequence))
                else:
                    ticket.gap_position = number
        return False

    def _join(self, ticket: AppendTicket, outcome: int | RequestError, index: LogIndex) -> None:
        """Answer `outcome` once the entry at `index` is applied: never before it is committed."""
        for held in reversed(self._in_flight):
            if held.first <= index <= held.last:
                ticket.outcomes.append((outcome, held.applied))
                return
        # cannot happen while the judge and `_in_flight` begin together; an unknown outcome is the safe answer
        ticket.refuse(RequestError(pb.LEADERSHIP_LOST, "the original of this batch is no longer known; retry"))

    def _flush(self, ticket: AppendTicket, run: _Run) -> _Run:
        """Propose the run in one piece and tell the judge. Returns a new, empty run."""
        if not run.headers:
            return run
        proposals = [
            Proposal(EntryKind.DATA, payload, header.record_count)
            for header, payload in zip(run.headers, run.payloads, strict=True)
        ]
        try:
            appended, applied = self.group.propose(proposals)
        except RequestError as error:
            ticket.refuse(error)
            return _Run()
        entries = appended.entries
        for header, entry in zip(run.headers, entries, strict=True):
            self._judge.appended(header, entry.index, entry.base_offset)
            ticket.outcomes.append((entry.base_offset, applied))
        ticket.append_time_ms = entries[-1].append_time_ms
        in_flight = self._in_flight
        while in_flight and in_flight[0].applied.done():
            in_flight.popleft()
        if run.idempotent is not None:
            in_flight.append(_InFlight(entries[0].index, entries[-1].index, applied))
        return _Run()

    async def _resolve_gap(self, ticket: AppendTicket, deadline: float) -> None:
        """Before a gap is called one, a quorum confirms that this leader knows the newest sequences; then judge again."""
        position = ticket.gap_position
        assert position is not None
        try:
            async with asyncio.timeout_at(deadline):
                await self.group.read_index()
        except RequestError as error:
            ticket.refuse(error)
        except TimeoutError:
            ticket.refuse(expired())
        else:
            ticket.gap_position = None
            self._propose_from(ticket, position, is_confirmed=True)

    # ------------------------------------------------------------------------------------------------ reading

    def is_readable(self, offset: int) -> bool:
        """Whether there is a record at `offset` now; False: wait.

        Raises:
            RequestError: OFFSET_OUT_OF_RANGE below the log's start; NOT_LEADER or NO_LEADER at the end of a replica that
                does not lead (it would learn of new records late); NOT_READY while the replica is being filled.
        """
        group, machine = self.group, self.group.machine
        if offset < machine.log_start_offset:
            raise self._out_of_range(f"offset {offset} is below the log's start {machine.log_start_offset}")
        if group.core.applied_index < group.core.state_floor:
            raise RequestError(pb.NOT_READY, "this replica is still being filled", retry_after_ms=200)
        if offset < machine.next_offset:
            return True
        if group.role is not Role.LEADER and offset == machine.next_offset:
            raise group.not_leader()
        return False

    async def confirm_end(self, offset: int) -> None:
        """Raise OFFSET_OUT_OF_RANGE if `offset` is above the end of a leader that knows; else return.

        A quorum confirms it first: a leader cut off may have been succeeded by one whose log is longer, and its reader
        would be thrown back to an old position.
        """
        if offset > self.high_watermark and self.group.is_leader:
            await self.group.read_index()
            if offset > self.high_watermark and self.group.is_leader:
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
        recent = self.group.recent
        index = recent.index_of_offset(Offset(offset))
        if index is None:
            return None
        last = self.group.core.applied_index  # what is behind it is not committed and nobody's to see
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
        if index is not None and index <= self.group.log_start.index:
            index = None
        found: list[Entry] = []
        try:
            if index is None:
                index = await self._in_thread(self._store.find_offset, self.group.key, Offset(offset))
            last = self.group.core.applied_index
            while not found and index is not None and index <= last:
                entries = await self._in_thread(self._store.entries, self.group.key, index, last, bytes_max)
                if not entries:
                    break
                found = _data_from(entries, offset)
                index = LogIndex(entries[-1].index + 1)
        finally:
            # while a thread read, a trim may have passed by: whatever else happened, that is what the reader must hear
            if offset < self.log_start_offset:
                raise self._out_of_range(f"offset {offset} is below the log's start {self.log_start_offset}")
        if found:
            self._remember_position(found[-1])
        return found

    def _remember_position(self, last: Entry) -> None:
        positions = self._read_positions
        positions[last.next_offset] = LogIndex(last.index + 1)
        if len(positions) > _READ_POSITIONS_MAX:
            positions.popitem(last=False)

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        try:
            return await self.group.in_thread(function, *arguments)
        except LogRangeError as error:
            raise RequestError(pb.NOT_READY, "the log was trimmed meanwhile; try again", retry_after_ms=20) from error
        except ReplicaClosedError as error:
            raise self.group.not_leader() from error
        except DamagedReplicaError as error:
            if self._on_damage is not None:
                self._on_damage(self.group, error)
            raise RequestError(
                pb.REPLICA_QUARANTINED, f"this replica of group {self.group.group_id} is damaged", retry_after_ms=500
            ) from error

    # ------------------------------------------------------------------------------------------------ positions by name

    async def latest_offset(self) -> int:
        """The end of the log, confirmed by a quorum."""
        await self.group.read_index()
        return self.high_watermark

    async def offset_at_time(self, time_ms: int) -> tuple[int, int] | None:
        """(offset, append time) of the first record appended at or after that time; None when there is none."""
        await self.group.read_index()
        header = await self._in_thread(self._store.find_time, self.group.key, time_ms)
        start, end = self.log_start_offset, self.high_watermark
        if header is None or header.base_offset >= end or start >= end:
            return None
        if header.next_offset <= start:
            header = await self._header_at(start)
            if header is None:
                return None
        return max(header.base_offset, start), header.append_time_ms

    async def _header_at(self, offset: int) -> EntryHeader | None:
        index = self.group.recent.index_of_offset(Offset(offset))
        if index is not None:
            return self.group.header(index)
        index = await self._in_thread(self._store.find_offset, self.group.key, Offset(offset))
        if index is None:
            return None
        return await self._in_thread(self._store.header, self.group.key, index)

    # ------------------------------------------------------------------------------------------------ trimming

    async def delete_records(self, before_offset: int, deadline: float) -> int:
        """Trim the log before `before_offset` (-1: all of it); returns the log's new start.

        Raises:
            RequestError: OFFSET_OUT_OF_RANGE above the end; REQUEST_TIMED_OUT or LEADERSHIP_LOST (outcome unknown).
        """
        if self._host.loop.time() >= deadline:
            raise expired()
        self._require_leader()
        end = self.high_watermark
        if before_offset < -1 or before_offset > end:
            raise self._out_of_range(f"cannot delete before offset {before_offset}: the log ends at {end}")
        before = end if before_offset == -1 else before_offset
        _, applied = self.group.propose([Proposal(EntryKind.COMMAND, encode_command(TrimLog(before)))])
        await asyncio.wait((applied,), timeout=max(0.0, deadline - self._host.loop.time()))
        if not applied.done():
            raise timed_out()
        result = applied.result()[0]
        if isinstance(result, Rejected):
            raise RequestError(cast("pb.ErrorCode", result.code), result.message)
        assert isinstance(result, Trimmed)
        return result.log_start_offset

    async def enforce_retention(self) -> None:
        """Trim what is too old or too much, if this replica leads. Called from time to time, also on idle partitions."""
        if not self.group.is_leader or self.log_start_offset >= self.high_watermark:
            return
        try:
            config = self.config()
            target = max(
                await self._target_by_time(config.retention_ms), await self._target_by_size(config.retention_bytes)
            )
            if target > self.log_start_offset and self.group.is_leader:
                start = await self.delete_records(
                    min(target, self.high_watermark), self._host.loop.time() + self._host.timing.retention_check_seconds
                )
                log.info("log_trimmed", group_id=self.group.group_id, offset=start, reason="retention")
        except RequestError as error:
            log.info("retention_postponed", group_id=self.group.group_id, error_code=pb.ErrorCode.Name(error.code))

    async def _target_by_time(self, retention_ms: int) -> int:
        start = self.log_start_offset
        if retention_ms < 0:
            return start
        cutoff_ms = self._host.now_ms() - retention_ms
        if self._oldest is None or self._oldest[0] != start:
            header = await self._header_at(start)
            if header is None:
                return start
            self._oldest = (start, header.append_time_ms)
        if self._oldest[1] >= cutoff_ms:
            return start
        kept = await self._in_thread(self._store.find_time, self.group.key, cutoff_ms)
        # beyond the applied end an entry may not be committed: it is nobody's to delete
        return min(kept.base_offset, self.high_watermark) if kept is not None else self.high_watermark

    async def _target_by_size(self, retention_bytes: int) -> int:
        start, machine = self.log_start_offset, self.group.machine
        if retention_bytes < 0:
            self._marks = None
            return start
        if self._marks is None or self._marks.retention_bytes != retention_bytes:
            self._marks = ByteMarks(retention_bytes, machine.applied_index, machine.next_offset, machine.appended_bytes)
        marks = self._marks
        if not marks.is_complete:
            step = await self._in_thread(
                marks.read_back,
                lambda index: self._store.header(self.group.key, index),
                LogIndex(self.group.log_start.index + 1),
                start,
                machine.appended_bytes,
            )
            if marks is not self._marks:
                return start
            marks.take_back(*step)
        return marks.trim_target(self.log_start_offset, machine.appended_bytes) or start

    async def truncation_index(self) -> LogIndex | None:
        """The last log index whose row may be deleted here: everything up to it is below the log's start.

        None when no record can go. The caller still keeps to the durable state. A follower behind it gets a snapshot,
        which holds all there is to know of what is gone.
        """
        machine, core = self.group.machine, self.group.core
        start = machine.log_start_offset
        if start <= self.group.log_start.next_offset:
            return None
        if start >= machine.next_offset:
            return core.applied_index
        index = self.group.recent.index_of_offset(Offset(start))
        if index is None:
            index = await self._in_thread(self._store.find_offset, self.group.key, Offset(start))
        return LogIndex(index - 1) if index is not None else None

    # ------------------------------------------------------------------------------------------------ hooks of the group

    def _on_applied(self, entry: Entry, result: object) -> None:
        if self._marks is not None and entry.record_count:
            self._marks.applied(self.group.machine.next_offset, self.group.machine.appended_bytes)

    def _on_leadership(self) -> None:
        self._start_term()

    def _on_restored(self) -> None:
        self._marks = None
        self._oldest = None
        self._read_positions.clear()


def _data_from(entries: Sequence[Entry], offset: int) -> list[Entry]:
    """Those with records at or after `offset`."""
    return [entry for entry in entries if entry.record_count and entry.next_offset > offset]


def _format_error(error: BatchFormatError, number: int) -> RequestError:
    code = pb.CORRUPT_BATCH
    match error:
        case BatchTooLargeError():
            code = pb.RECORD_TOO_LARGE
        case UnsupportedBatchVersionError():
            code = pb.UNSUPPORTED_VERSION
        case UnsupportedCodecError():
            code = pb.UNSUPPORTED_COMPRESSION
    return RequestError(code, f"batch {number}: {error.reason}")


def _out_of_order(header: BatchHeader, last_sequence: int) -> RequestError:
    known = f"the last sequence known is {last_sequence}" if last_sequence >= 0 else "no batch of this epoch is known"
    return RequestError(
        pb.OUT_OF_ORDER_SEQUENCE,
        f"batch begins at sequence {header.first_sequence}, {known}",
        last_sequence=max(last_sequence, 0),
    )
