"""A log partition's state machine: what is derived from its log, and nothing that is in it.

Holds the producers' table, consumer groups' offsets with their fences, and where the log starts and ends. Records stay in
the log: of a batch only the 64-byte header is read. No data entry is ever refused here, since its offsets are taken: judging
happens before proposing (`sequence_validator`).

Invariants: 0 <= log_start_offset <= next_offset; equal logs give byte-equal rows; `apply` raises only for what a newer version wrote.
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


class LogScalars(msgspec.Struct, frozen=True):
    """The row of everything there is one of."""

    log_start_offset: int = 0
    """First readable offset (inclusive)."""
    next_offset: int = 0
    """Offset after the last applied record."""
    appended_bytes: int = 0
    """Payload bytes of all data entries ever applied, trimmed ones included."""
    forgotten_producer_id: int = 0
    """The highest id of an anonymous producer that was forgotten; 0: none was."""
    forgotten_named_producer_id: int = 0
    """The same of those with a name."""


class LogPartition:
    """State machine of a partition of kind "log"."""

    def __init__(self, applied_index: LogIndex = GENESIS.index) -> None:
        self.applied_index = applied_index
        self.log_start_offset = 0
        """First readable offset (inclusive); never decreases."""
        self.next_offset = 0
        """Offset after the last applied record: this replica's high watermark."""
        self.appended_bytes = 0
        """Payload bytes of all data entries ever applied, trimmed ones included; never decreases."""
        self.producers = ProducerTable(2)
        self._offsets = GroupOffsets(3)
        self.expiry = ExpiryClock(4)
        """By it producers are forgotten."""
        self._scalars: Table[int, LogScalars] = number_table(1, LogScalars)
        self._are_scalars_dirty = False

    # ------------------------------------------------------------------------------------------------------ state machine

    def apply(self, entry: Entry) -> LogResult | None:
        """Apply the next entry. None for data, for entries without a command and for those already applied."""
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
        """The feature level that a command needs; None when it cannot be read back."""
        return log_level(payload)

    def take_dirty_rows(self) -> tuple[tuple[bytes, bytes | None], ...]:
        """Rows changed since the last call, in key order; None: deleted."""
        self._write_scalars()
        dirty: tuple[DirtyRow, ...] = take_dirty(self._sources)
        return dirty

    def rows(self) -> Iterator[Row]:
        """All rows in key order."""
        self._write_scalars()
        return all_rows(self._sources)

    def adopt(self, other: StateMachine) -> None:
        """See `StateMachine`."""
        assert isinstance(other, type(self))
        vars(self).update(vars(other))

    def restore(self, rows: Iterable[Row], state_index: LogIndex) -> None:
        """Become the state that `rows` describe. Raises if a row does not decode: the caller quarantines the replica."""
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
        """A producer's applied state; valid until the next apply."""
        return self.producers.get(producer_id)

    def group_offset(self, group: str) -> GroupOffset | None:
        """A consumer group's committed offset and fence."""
        return self._offsets.get(group)

    def group_offsets(self) -> tuple[tuple[str, GroupOffset], ...]:
        """All groups with state here, by name."""
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
            # Taken by a leader that should have refused it. Its offsets are given; it has no producer to remember.
            return
        self.producers.record(header, entry.base_offset, now_ms)
        # After the producer of this very entry was touched: it has just shown that it lives.
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
        """The scalars live as plain attributes, because every batch changes them; they become a row when rows are asked."""
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
