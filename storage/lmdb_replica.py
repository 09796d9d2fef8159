"""The open file of a replica: its log, and its derived state unless that has a file of its own. Its transactions and reads.

One thread at a time writes (the replica's writer). `meta` mirrors the durable meta row in memory and is replaced after each commit.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from raftmq.batch_header import max_timestamp_of
from raftmq.errors import invariant
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import Entry, EntryHeader, EntryKind
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.storage.checksum import CHECKSUM_BYTES, seal
from raftmq.storage.disk_space import TIMES_SUFFIX
from raftmq.storage.entry_codec import (
    HEADER_BYTES,
    ROW_OVERHEAD_BYTES,
    CodecError,
    RowFields,
    decode_key,
    decode_row,
    decode_row_fields,
    encode_entry,
    encode_key,
    header_of,
)
from raftmq.storage.errors import (
    LogRangeError,
)
from raftmq.storage.lmdb_env import (
    Databases,
    Undisturbed,
    committing,
    disturbed,
    open_databases,
    open_environment,
    put_rows,
    reading,
)
from raftmq.storage.lmdb_file import LmdbFile, OpenStream
from raftmq.storage.log_scan import Borders, Scan, TermStarts, Verify, scan, term_at
from raftmq.storage.log_store import ReplicaKey, TimeSearch, Update
from raftmq.storage.meta_pages import check_pages
from raftmq.storage.page_release import FileSpace
from raftmq.storage.page_warming import warm_opening
from raftmq.storage.pending_state_write import plan_log_write
from raftmq.storage.pending_write import PendingWrite, plan_write
from raftmq.storage.replica_codec import (
    FORMAT_VERSION,
    FORMAT_WITH_STATE_FILE,
    FORMATS,
    IDENTITY_KEY,
    META_KEY,
    CommitNote,
    Identity,
    ReplicaMeta,
    check_identity,
    decode_meta,
    decode_note,
    encode_identity,
    encode_meta,
    replica_transaction_id,
)
from raftmq.storage.row_scrub import ScrubPlace, ScrubSlice, read_log_slice, read_state_slice
from raftmq.storage.row_stream import RowStream
from raftmq.storage.state_codec import StateMeta
from raftmq.storage.time_bounds import NOTHING, Block, Covered
from raftmq.storage.time_index import TimeIndex, TimesFile
from raftmq.types import LogIndex, Offset

if TYPE_CHECKING:
    from lmdb import Transaction, _Database


_SLICE_BYTES = 8 * 1024 * 1024
"""Bytes of the log that are in memory together while a file gets another owner."""


SEARCH_ROWS_MAX = 4096
SEARCH_BYTES_MAX = 16 * 1024 * 1024
"""The entries that one step of a search by time reads, beside its last block: some ten milliseconds of a reader thread."""


class BlockTimes(NamedTuple):
    """The result of reading a block of entries for a search by time."""

    found: RowFields | None
    latest_ms: int
    """The time of the latest record in the block."""
    size: int
    """Bytes read."""


class LmdbReplica(LmdbFile):
    """An open replica file. The file must exist. If the constructor fails, nothing stays open."""

    def __init__(
        self,
        key: ReplicaKey,
        path: Path,
        map_bytes: int,
        verify: Verify,
        touch: Callable[[ReplicaKey], None] | None = None,
        undisturbed: Undisturbed = disturbed,
    ) -> None:
        """Open the file. Each thread calls `touch` with the key before it reads the file (see `FaultBoard`)."""
        super().__init__(key, path, map_bytes, touch, undisturbed)
        self._databases: Databases
        self.has_state_file: bool
        """Whether the derived state is in a second file. The table `state` of this one is then empty."""
        self.meta: ReplicaMeta
        self.term_starts: TermStarts
        """The start of each term as of the last opening. After that the core keeps its own table."""
        self.scanned: Scan
        """The result of the last opening's check of the log."""
        self.verified_index: LogIndex
        """The clean point, see `CommitNote`. It is stored with the next write."""
        self._stored_verified_index: LogIndex
        self._replacements = 0
        """How often entries were replaced. A read that began before the latest replacement says nothing about the new entries."""
        self._without_truncated_rows_at: int | None = None
        """The last transaction of the file when `has_truncated_rows` found none. None: it must look."""
        self._times = TimeIndex(key, self._times_file())
        self._last_term: int
        """The term of the last entry."""
        self._verifying = threading.Lock()
        """Guards the clean point, which the writer moves back and the scrubber forward."""
        self.attach(verify)

    # ------------------------------------------------------------------------------------------------------ life

    def attach(self, verify: Verify) -> None:
        """Open the file and check it. The caller holds the gate alone, or no other thread knows the replica yet."""
        self._touch(self.key)
        with reading(self.key):
            self._checked(lambda: check_pages(self.path, b"meta", replica_transaction_id))
            borders = warm_opening(self.path) if verify is Verify.TAIL else ()
            environment = open_environment(self.path, self._map_bytes)
            try:
                databases = open_databases(environment)
                with environment.begin(buffers=True) as transaction:
                    self._checked(lambda: self._read_all_meta(transaction, databases, verify, borders))
            except BaseException:
                environment.close()
                raise
        self._environment, self._databases = environment, databases

    def _read_all_meta(
        self, transaction: Transaction[memoryview], databases: Databases, verify: Verify, borders: Borders = ()
    ) -> None:
        """Read and check the meta row and, as far as `verify` says, the log."""
        meta, note = self._read_meta(transaction, databases)
        if note.verified_index > meta.last_index:
            raise CodecError(
                f"entries up to {note.verified_index} were verified, but the last one is {meta.last_index}"
            )
        scanned = scan(transaction, databases, meta, verify, note.verified_index, borders)
        self.meta, self.scanned, self.term_starts = meta, scanned, scanned.term_starts
        self._last_term = scanned.term_starts[-1][0] if scanned.term_starts else meta.position.term
        # the row itself is perhaps not in memory, and would cost a read-ahead of the volume
        self._times.begin(meta.position.index + 1, meta.last_index, partial(term_at, scanned.term_starts))
        self._stored_verified_index = LogIndex(note.verified_index)
        # a tail that was checked may begin after unchecked entries: the clean point then stays before them
        is_gapless = scanned.checked_from <= max(note.verified_index, meta.position.index) + 1
        self.verified_index = meta.last_index if is_gapless else self._stored_verified_index

    def detach(self) -> None:
        """Close the file and end its streams. The caller holds the gate alone."""
        with self._verifying:
            self._replacements += 1
        self._without_truncated_rows_at = None
        if self._environment is not None:
            self._times.save(self._covered(), is_last=True)
        super().detach()

    def _times_file(self) -> TimesFile:
        """Return the file of the bounds for searches by time, which lies beside the replica's."""
        return TimesFile(self.path.with_suffix(TIMES_SUFFIX))

    def _covered(self) -> Covered:
        return Covered(self.meta.position.index + 1, self.meta.last_index, self._last_term)

    def _handles(self) -> Sequence[_Database]:
        return self._databases

    def _put_meta_again(self, transaction: Transaction[bytes]) -> None:
        self._put_meta(transaction, self.meta, self.meta.last_index)

    def _read_meta(self, transaction: Transaction[memoryview], databases: Databases) -> tuple[ReplicaMeta, CommitNote]:
        identity_row = transaction.get(IDENTITY_KEY, db=databases.meta)
        meta_row = transaction.get(META_KEY, db=databases.meta)
        if identity_row is None or meta_row is None:
            raise CodecError("a meta row is missing")
        identity = check_identity(self.key, identity_row, FORMATS)
        self.has_state_file = identity.format_version == FORMAT_WITH_STATE_FILE
        return decode_meta(meta_row), decode_note(meta_row)

    def restored(self) -> RestoredState:
        """Return the state from which the core starts."""
        meta = self.meta
        return RestoredState(
            meta.hard_state,
            meta.position,
            meta.last_index,
            meta.last_next_offset,
            meta.last_append_time_ms,
            self.term_starts,
            meta.membership,
            meta.state_index,
        )

    # ------------------------------------------------------------------------------------------------------ writes

    def append(self, updates: Sequence[Update], state: StateMeta | None = None) -> None:
        """Apply all updates in one transaction, durable on return. After `StorageFullError` nothing was applied.

        `state` is the durable meta row of the replica's state file, if it has one.
        """
        environment = self.environment
        self._touch(self.key)
        write = (
            plan_write(self.meta, updates) if state is None else plan_log_write(self.meta, updates, state.state_index)
        )
        # all rows are encoded before the transaction begins, so that it holds the file's lock only while it writes pages
        log_rows = [(encode_key(entry.index), encode_entry(entry)) for entry in write.entries]
        sealed_rows = [(key, seal(key, value)) for key, value in write.state_rows.items() if value is not None]
        delete_rows = [key for key, value in write.state_rows.items() if value is None]
        is_replacing = write.delete_from <= self.meta.last_index
        if is_replacing:
            self._unverify_from(write.delete_from)
        self._times.append(write.entries, is_replacing=is_replacing)
        with committing(self.key), environment.begin(write=True) as transaction:
            self._write_log(transaction, write, log_rows)
            with self._undisturbed(len(delete_rows)):
                for key in delete_rows:
                    transaction.delete(key, db=self._databases.state)
            if sealed_rows:
                with transaction.cursor(self._databases.state) as cursor:
                    put_rows(cursor, sealed_rows, self._undisturbed)
            self._put_meta(transaction, write.meta, write.delete_from - 1)
        truncated = write.meta.position.index > self.meta.position.index
        self.meta = write.meta
        if is_replacing:
            # the scrubber or a search may have read the old entries since the first calls
            self._unverify_from(write.delete_from)
            self._times.append(write.entries, is_replacing=True)
        if write.entries:
            self._last_term = write.entries[-1].term
        if truncated:
            self._times.truncated(write.meta.position.index + 1)
        self._times.save(self._covered())

    def _put_meta(self, transaction: Transaction[bytes], meta: ReplicaMeta, verified_max: int) -> None:
        """Write the meta row. Every transaction must do so, since the row names the transaction that wrote it."""
        verified_index = LogIndex(min(self.verified_index, verified_max))
        note = CommitNote(transaction.id(), verified_index)
        transaction.put(META_KEY, encode_meta(meta, note), db=self._databases.meta)
        self._stored_verified_index = verified_index

    def _write_log(
        self, transaction: Transaction[bytes], write: PendingWrite, log_rows: list[tuple[bytes, bytes]]
    ) -> None:
        if not log_rows:
            return
        replaced = range(write.delete_from, self.meta.last_index + 1)
        with self._undisturbed(len(replaced)):
            for index in replaced:
                is_there = transaction.delete(encode_key(index), db=self._databases.log)
                invariant(is_there, "log_has_no_gap", missing=index)
        with transaction.cursor(self._databases.log) as cursor:
            added = put_rows(cursor, log_rows, self._undisturbed, append=True)
            invariant(
                added == len(log_rows),
                "append_goes_to_the_end",
                group_id=self.key.group_id,
                replica_id=self.key.replica_id,
                first=write.entries[0].index,
                added=added,
                rows=len(log_rows),
            )

    def become(self, key: ReplicaKey, hard_state: HardState, membership: Membership, state_index: LogIndex) -> None:
        """Give the file another owner, which founds a new group with this log and state. The caller closes the file afterwards.

        Changes of membership after `state_index` name replicas of the old group, and would be applied in the new one. They become
        empty entries, which take no offsets either.
        """
        meta = dataclasses.replace(self.meta, hard_state=hard_state, membership=membership)
        emptied = [
            dataclasses.replace(entry, kind=EntryKind.EMPTY, payload=b"")
            for entry in self._entries_after(state_index)
            if entry.kind is EntryKind.MEMBERSHIP
        ]
        if emptied:
            self._unverify_from(emptied[0].index)
        version = FORMAT_WITH_STATE_FILE if self.has_state_file else FORMAT_VERSION
        identity = encode_identity(Identity(version, key.group_id, key.replica_id))
        with committing(self.key), self.environment.begin(write=True) as transaction:
            transaction.put(IDENTITY_KEY, identity, db=self._databases.meta)
            for entry in emptied:
                transaction.put(encode_key(entry.index), encode_entry(entry), db=self._databases.log)
            self._put_meta(transaction, meta, meta.last_index)
        self.meta = meta

    def _entries_after(self, index: LogIndex) -> Iterator[Entry]:
        first, last = LogIndex(max(index, self.meta.position.index) + 1), self.meta.last_index
        while first <= last:
            found = self.entries(first, last, _SLICE_BYTES)
            yield from found
            first = LogIndex(found[-1].index + 1)

    def delete_truncated(self, rows_max: int) -> bool:
        """Delete up to `rows_max` rows before the truncation point. Return True if more are left."""
        environment = self.environment
        self._touch(self.key)
        with reading(self.key), environment.begin() as look:
            first = self._checked(lambda: self._first_index(look))
        end = self.meta.position.index + 1
        if first is None or first >= end:
            return False
        slice_end = min(end, first + rows_max)
        with committing(self.key), environment.begin(write=True) as transaction:
            with self._undisturbed(slice_end - first):
                for index in range(first, slice_end):
                    transaction.delete(encode_key(index), db=self._databases.log)
            self._put_meta(transaction, self.meta, self.meta.last_index)
        return slice_end < end

    def has_truncated_rows(self) -> bool:
        """Return whether rows before the truncation point wait for deletion. Any thread may call it."""
        with self._read() as transaction:
            first = self._first_index(transaction)
            has_some = first is not None and first <= self._meta_in(transaction).position.index
            self._without_truncated_rows_at = None if has_some else transaction.id()
        return has_some

    def look(self) -> tuple[FileSpace, bool]:
        """Return `space` and `has_truncated_rows`. The file is not read unless something was written since the last call."""
        with self.gate.shared(), reading(self.key):
            last = self._last_transaction()
            space, is_unchanged = self._space(last), self._without_truncated_rows_at == last
        return space, not is_unchanged and self.has_truncated_rows()

    def _first_index(self, transaction: Transaction[bytes] | Transaction[memoryview]) -> int | None:
        with transaction.cursor(self._databases.log) as cursor:
            return decode_key(cursor.key()) if cursor.first() else None

    # ------------------------------------------------------------------------------------------------------ scrubbing

    def scrub(self, place: ScrubPlace, bytes_max: int, rows_max: int) -> ScrubSlice:
        """Read the next slice of the file back, in any thread. Raises `DamagedReplicaError`."""
        if not place.is_file_read:
            return self._read_file(place, bytes_max)
        with self._verifying:
            replacements = self._replacements
        with self._read() as transaction:
            if place.is_log_read:
                return read_state_slice(transaction, self._databases.state, place, bytes_max, rows_max)
            meta = self._meta_in(transaction)
            part = read_log_slice(transaction, self._databases, meta, place, bytes_max, rows_max)
        with self._verifying:
            # the clean point advances only if the slice continues it and no entries were replaced since the slice began
            clean = max(self.verified_index, self.meta.position.index)
            if replacements == self._replacements and part.verified_from <= clean + 1 <= part.verified_to:
                self.verified_index = LogIndex(part.verified_to)
        return part

    def _unverify_from(self, index: int) -> None:
        """Move the clean point to before `index`, since the entries from there on are replaced."""
        with self._verifying:
            self._replacements += 1
            self.verified_index = LogIndex(min(self.verified_index, index - 1))

    def store_verified(self) -> None:
        """Make the clean point durable, on the replica's writer, unless another write has stored it."""
        if self.verified_index > self._stored_verified_index:
            with committing(self.key), self.environment.begin(write=True) as transaction:
                self._put_meta(transaction, self.meta, self.meta.last_index)

    # ------------------------------------------------------------------------------------------------------ reads

    def entries(self, first: LogIndex, last: LogIndex, bytes_max: int) -> tuple[Entry, ...]:
        """See `LogStore.entries`."""
        self._check_range(first, last)
        found: list[Entry] = []
        size = 0
        with self._read() as transaction, transaction.cursor(self._databases.log) as cursor:
            if not cursor.set_key(encode_key(first)):
                self._missing_row(transaction, first)
            for row_key, value in cursor.iternext():
                size += len(value) - ROW_OVERHEAD_BYTES
                if found and (size > bytes_max or found[-1].index == last):
                    break
                found.append(decode_row(decode_key(row_key), value))
                if found[-1].index != first + len(found) - 1:
                    raise CodecError(f"log row {first + len(found) - 1} is missing or out of order")
            else:
                if not found or found[-1].index < last:
                    self._missing_row(transaction, LogIndex(first + len(found)))
        return tuple(found)

    def header(self, index: LogIndex) -> EntryHeader:
        """See `LogStore.header`."""
        self._check_range(index, index)
        with self._read() as transaction:
            return header_of(self._row(transaction, index))

    def find_offset(self, offset: Offset) -> LogIndex | None:
        """See `LogStore.find_offset`."""
        with self._read() as transaction:
            meta = self._meta_in(transaction)
            if not meta.position.next_offset <= offset < meta.last_next_offset:
                return None
            row = self._first_row(transaction, meta, lambda row: row.next_offset > offset)
            if not row.base_offset <= offset < row.next_offset:
                raise CodecError(f"entry {row.entry_index} does not hold offset {offset}, although it must")
            return LogIndex(row.entry_index)

    def find_time(self, append_time_ms: int) -> EntryHeader | None:
        """See `LogStore.find_time`."""
        with self._read() as transaction:
            meta = self._meta_in(transaction)
            if meta.last_index == meta.position.index or meta.last_append_time_ms < append_time_ms:
                return None
            timed = self._first_row(transaction, meta, lambda row: row.append_time_ms >= append_time_ms)
            if timed.base_offset >= meta.last_next_offset:
                return None
            # an entry without records may satisfy the condition: the next DATA entry holds the next offset
            return header_of(self._first_row(transaction, meta, lambda row: row.next_offset > timed.base_offset))

    def find_timestamp(self, timestamp_ms: int, first_offset: Offset) -> TimeSearch:
        """See `LogStore.find_timestamp`."""
        replacements = self._times.replacements
        rows = size = 0
        with self._read() as transaction:
            meta = self._meta_in(transaction)
            start = max(first_offset, meta.position.next_offset)
            if start >= meta.last_next_offset:
                return TimeSearch(None)
            index = self._first_row(transaction, meta, lambda row: row.next_offset > start).entry_index
            while (block := self._times.next_block(index, timestamp_ms)) is not None and index <= meta.last_index:
                if rows >= SEARCH_ROWS_MAX or size >= SEARCH_BYTES_MAX:
                    return TimeSearch(None, is_complete=False)
                read = self._read_times(transaction, meta, block, index, timestamp_ms)
                if block.last_index <= meta.last_index:
                    self._times.settle(block, read.latest_ms, read.size, replacements)
                if read.found is not None:
                    return TimeSearch(header_of(read.found))
                index = block.last_index + 1
                rows, size = rows + block.last_index - block.first_index + 1, size + read.size
        return TimeSearch(None)

    def _read_times(
        self, transaction: Transaction[memoryview], meta: ReplicaMeta, block: Block, index: int, timestamp_ms: int
    ) -> BlockTimes:
        """Read the entries of a block, and find the first one at or after `index` that has a record at or after a time."""
        first, last = max(block.first_index, meta.position.index + 1), min(block.last_index, meta.last_index)
        found: RowFields | None = None
        latest_ms, size, next_index = NOTHING, 0, first
        with transaction.cursor(self._databases.log) as cursor:
            has_row = cursor.set_key(encode_key(first))
            while has_row and next_index <= last:
                _, value = cursor.item()
                fields = decode_row_fields(next_index, value)
                time_ms = max_timestamp_of(value[HEADER_BYTES:-CHECKSUM_BYTES]) if fields.record_count else None
                if time_ms is not None:
                    latest_ms = max(latest_ms, time_ms)
                    if found is None and next_index >= index and time_ms >= timestamp_ms:
                        found = fields
                size, next_index = size + len(value), next_index + 1
                has_row = cursor.next()
        if next_index <= last:
            self._missing_row(transaction, LogIndex(next_index))
        return BlockTimes(found, latest_ms, size)

    def _first_row(
        self, transaction: Transaction[memoryview], meta: ReplicaMeta, is_reached: Callable[[RowFields], bool]
    ) -> RowFields:
        """Bisect for the first entry of the log that satisfies a condition.

        All entries after it must satisfy the condition, too, and the last entry of the log must. The first two entries are
        examined before the middle: housekeeping asks for the first record of each newly opened replica, and examining a row
        reads all of its bytes.
        """
        low, high = meta.position.index + 1, int(meta.last_index)
        first = low
        found: RowFields | None = None
        while low < high:
            middle = low if low <= first + 1 else (low + high) // 2
            row = self._row(transaction, middle)
            if is_reached(row):
                high, found = middle, row
            else:
                low = middle + 1
        if found is None or found.entry_index != low:
            found = self._row(transaction, low)
        return found

    def _row(self, transaction: Transaction[memoryview], index: int) -> RowFields:
        value = transaction.get(encode_key(index), db=self._databases.log)
        if value is None:
            self._missing_row(transaction, LogIndex(index))
        return decode_row_fields(index, value)

    def _meta_in(self, transaction: Transaction[memoryview]) -> ReplicaMeta:
        """Return the meta row as this transaction sees it. `self.meta` may be of an earlier or later commit."""
        return decode_meta(transaction.get(META_KEY, db=self._databases.meta) or b"")

    def _check_range(self, first: LogIndex, last: LogIndex) -> None:
        meta = self.meta
        if not meta.position.index < first <= last <= meta.last_index:
            raise LogRangeError(
                self.key, f"the log has the entries {meta.position.index + 1}..{meta.last_index}, not {first}..{last}"
            )

    def _missing_row(self, transaction: Transaction[memoryview], index: LogIndex) -> NoReturn:
        """Raise the error for an absent row: it was truncated since the caller looked, or the file has lost it."""
        meta = self._meta_in(transaction)
        if meta.position.index < index <= meta.last_index:
            raise CodecError(f"log row {index} is missing")
        raise LogRangeError(self.key, f"entry {index} was truncated")

    # ------------------------------------------------------------------------------------------------------ streams

    def stream(self) -> tuple[ReplicaMeta, RowStream]:
        """Return the meta row and all state rows, from one read transaction."""
        with self.gate.shared(), reading(self.key):
            stream = OpenStream(self, self.environment, self._databases.state)
            try:
                meta = self._checked(lambda: decode_meta(stream.get(META_KEY, self._databases.meta)))
            except BaseException:
                stream.cut()
                raise
            self._streams.add(stream)
        return meta, RowStream(stream.next_slice, stream.end)
