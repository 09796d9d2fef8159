"""The state machine of a log partition: the state derived from its log, without the records.

It holds the table of producers, the offsets of consumer groups with their fences, and the bounds of the log. Records
stay in the log: only the 64-byte header of a batch is read. No data entry is ever refused here, because its offsets are
already assigned. Batches are checked before they are proposed (`sequence_validator`).

Invariants: 0 <= log_start_offset <= next_offset. Equal logs give byte-equal rows. `apply` raises only for entries that
a newer version wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
from raftmq.batch_header import BatchFormatError, UnsupportedBatchVersionError, parse_header
from raftmq.errors import invariant
from raftmq.fsm.expiry_clock import ExpiryClock
from raftmq.fsm.feature_levels import log_level
from raftmq.fsm.group_offsets import GroupOffset, GroupOffsets
from raftmq.fsm.log_commands import (
    CommitOffset,
    CommitOffsets,
    ForgetOffsets,
    LogPartitionCommand,
    LogResult,
    OpenPartition,
    ResetOffset,
    Results,
    TrimLog,
    Trimmed,
    decode_command,
)
from raftmq.fsm.producer_table import ProducerState, ProducerTable
from raftmq.fsm.state_machine import StateMachine, UnsupportedCommandError
from raftmq.fsm.tables import DirtyRow, Row, RowSource, Table, all_rows, load_rows, number_table, take_dirty
from raftmq.raft.entry import GENESIS, Entry, EntryKind
from raftmq.types import LogIndex


class LogScalars(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The row that holds the partition's scalar values."""

    log_start_offset: int = 0
    """First readable offset (inclusive)."""
    next_offset: int = 0
    """Offset after the last applied record."""
    appended_bytes: int = 0
    """Payload bytes of all data entries ever applied, including trimmed ones."""
    forgotten_producer_id: int = 0
    """The highest id of a forgotten anonymous producer; 0 if none was forgotten."""
    forgotten_named_producer_id: int = 0
    """The highest id of a forgotten named producer; 0 if none was forgotten."""


class LogPartition:
    """Apply the log of a partition of kind "log"."""

    def __init__(self, applied_index: LogIndex = GENESIS.index) -> None:
        self.applied_index = applied_index
        self.log_start_offset = 0
        """First readable offset (inclusive); never decreases."""
        self.next_offset = 0
        """Offset after the last applied record: this replica's high watermark."""
        self.appended_bytes = 0
        """Payload bytes of all data entries ever applied, including trimmed ones; never decreases."""
        self.producers = ProducerTable(2)
        self._offsets = GroupOffsets(3)
        self.expiry = ExpiryClock(4)
        """The clock by which producers are forgotten."""
        self._scalars: Table[int, LogScalars] = number_table(1, LogScalars)
        self._are_scalars_dirty = False

    # ------------------------------------------------------------------------------------------------------ state machine

    def apply(self, entry: Entry) -> LogResult | None:
        """Apply the next entry. Return None for data, for entries without a command and for entries already applied."""
        index = entry.index
        if index <= self.applied_index:
            return None
        invariant(index == self.applied_index + 1, "apply_is_contiguous", index=index, applied_index=self.applied_index)
        result: LogResult | None = None
        if entry.kind is EntryKind.DATA:
            self._apply_data(entry)
        elif entry.kind is EntryKind.COMMAND:
            result = self._apply_command(entry)
        self.applied_index = index
        return result

    def level_needed(self, payload: bytes) -> int | None:
        """Return the feature level that a command needs, or None when it cannot be read back."""
        return log_level(payload)

    def take_dirty_rows(self) -> tuple[tuple[bytes, bytes | None], ...]:
        """Return the rows changed since the last call, in key order. None means deleted."""
        self._write_scalars()
        dirty: tuple[DirtyRow, ...] = take_dirty(self._sources)
        return dirty

    def rows(self) -> Iterator[Row]:
        """Return all rows in key order."""
        self._write_scalars()
        return all_rows(self._sources)

    def adopt(self, other: StateMachine) -> None:
        """Take over the state of `other`, a log partition that nobody uses afterwards."""
        assert isinstance(other, type(self))
        vars(self).update(vars(other))

    def restore(self, rows: Iterable[Row], state_index: LogIndex) -> None:
        """Replace the state by the one that `rows` describe. Raises if a row does not decode: the caller quarantines
        the replica.
        """
        load_rows(self._sources, rows)
        self.producers.rebuild_order()
        scalars = self._scalars.get(0) or LogScalars()
        self.log_start_offset = scalars.log_start_offset
        self.next_offset = scalars.next_offset
        self.appended_bytes = scalars.appended_bytes
        self.producers.forgotten_id = scalars.forgotten_producer_id
        self.producers.forgotten_named_id = scalars.forgotten_named_producer_id
        self._are_scalars_dirty = False
        self.applied_index = state_index

    # -------------------------------------------------------------------------------------------------------------- views

    def producer(self, producer_id: int) -> ProducerState | None:
        """Return a producer's applied state. It is valid until the next apply."""
        return self.producers.get(producer_id)

    def group_offset(self, group: str) -> GroupOffset | None:
        """Return a consumer group's committed offset and fence."""
        return self._offsets.get(group)

    def group_offsets(self) -> tuple[tuple[str, GroupOffset], ...]:
        """Return all consumer groups with state in this partition, by name."""
        return self._offsets.groups()

    # ------------------------------------------------------------------------------------------------------------ applying

    def _apply_data(self, entry: Entry) -> None:
        try:
            header = parse_header(entry.payload)
        except UnsupportedBatchVersionError:
            raise UnsupportedCommandError(entry, "batch") from None
        except BatchFormatError:
            header = None
        self.next_offset = entry.base_offset + entry.record_count
        self.appended_bytes += len(entry.payload)
        self._are_scalars_dirty = True
        now_ms = self.expiry.advance(entry.append_time_ms)
        if header is None:
            # A leader appended this batch although it should have refused it. Its offsets are assigned; there is no
            # producer to remember.
            return
        self.producers.record(header, entry.base_offset, now_ms)
        # Expire after recording this entry's producer: the entry has just shown that the producer is alive.
        self._expire_producers(now_ms)

    def _apply_command(self, entry: Entry) -> LogResult:
        command = decode_command(entry.payload)
        if command is None:
            raise UnsupportedCommandError(entry, "command")
        self._expire_producers(self.expiry.advance(entry.append_time_ms))
        return self._execute(command, entry.append_time_ms)

    def _expire_producers(self, now_ms: int) -> None:
        known = len(self.producers)
        self.producers.expire(now_ms)
        self._are_scalars_dirty |= len(self.producers) != known

    def _execute(self, command: LogPartitionCommand, now_ms: int) -> LogResult:
        match command:
            case CommitOffset():
                return self._offsets.commit(command, self.next_offset, now_ms)
            case CommitOffsets():
                return Results(tuple(self._offsets.commit(one, self.next_offset, now_ms) for one in command.commits))
            case OpenPartition():
                return self._offsets.open(command, now_ms)
            case ResetOffset():
                return self._offsets.reset(command, self.next_offset, now_ms)
            case ForgetOffsets():
                return self._offsets.forget(command)
            case TrimLog():
                return self._trim(command)

    def _trim(self, command: TrimLog) -> Trimmed:
        start = min(max(command.before_offset, self.log_start_offset), self.next_offset)
        if start != self.log_start_offset:
            self.log_start_offset = start
            self._are_scalars_dirty = True
        return Trimmed(start)

    # ---------------------------------------------------------------------------------------------------------------- rows

    @property
    def _sources(self) -> tuple[RowSource, ...]:
        return (self._scalars, self.producers, self._offsets.table, self.expiry)

    def _write_scalars(self) -> None:
        """Store the scalars as a row. They live as plain attributes because every batch changes them."""
        if self._are_scalars_dirty:
            self._are_scalars_dirty = False
            self._scalars.put(
                0,
                LogScalars(
                    self.log_start_offset,
                    self.next_offset,
                    self.appended_bytes,
                    self.producers.forgotten_id,
                    self.producers.forgotten_named_id,
                ),
            )
