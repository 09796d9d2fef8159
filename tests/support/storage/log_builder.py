"""Builds entries and replicas for storage tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lmdb
from raftmq.batch_header import seal
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import GENESIS, Entry, EntryKind, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import LogStore, ReplicaKey, Update
from raftmq.storage.memory_log_store import MemoryLogStore
from raftmq.storage.replica_codec import META_KEY, CommitNote, decode_meta, decode_note, encode_meta
from raftmq.types import GroupId, LogIndex, Offset, ReplicaId, Term

KEY = ReplicaKey(GroupId(7), ReplicaId(3))
OTHER = ReplicaKey(GroupId(8), ReplicaId(4))
VOTERS = Membership(voters=(ReplicaId(1), ReplicaId(2), ReplicaId(3)), revision=11)
MAP_BYTES = 1 << 28
Store = LmdbLogStore | MemoryLogStore


def initial_state(membership: Membership = VOTERS, position: LogPosition = GENESIS) -> RestoredState:
    return RestoredState(
        hard_state=HardState(position.term, ReplicaId(0), position.index),
        position=position,
        last_index=position.index,
        last_next_offset=position.next_offset,
        last_append_time_ms=position.append_time_ms,
        term_starts=(),
        membership=membership,
        state_index=position.index,
    )


class LogBuilder:
    """Creates consecutive entries. `rewind` starts another suffix."""

    def __init__(self, position: LogPosition = GENESIS) -> None:
        self.index, self.term = position.index, position.term
        self.next_offset, self.time = position.next_offset, position.append_time_ms

    def data(self, count: int = 1, payload: bytes = b"batch", *, later_ms: int = 10, term: int | None = None) -> Entry:
        return self._make(EntryKind.DATA, count, payload, later_ms, term)

    def batch(self, latest_ms: int, count: int = 1, *, body: bytes = b"", term: int | None = None) -> Entry:
        """Create a record batch whose latest record has this timestamp."""
        payload = seal(
            body, record_count=count, raw_body_bytes=len(body), base_timestamp_ms=latest_ms, max_timestamp_ms=latest_ms
        )
        return self.data(count, payload, term=term)

    def empty(self, *, term: int | None = None) -> Entry:
        return self._make(EntryKind.EMPTY, 0, b"", 0, term)

    def command(self, payload: bytes = b"command", *, later_ms: int = 0) -> Entry:
        return self._make(EntryKind.COMMAND, 0, payload, later_ms, None)

    def many(self, count: int, payload: bytes = b"batch") -> tuple[Entry, ...]:
        return tuple(self.data(1, payload) for _ in range(count))

    def rewind(self, last: Entry) -> LogBuilder:
        """Continue after `last`."""
        self.index, self.term = last.index, last.term
        self.next_offset, self.time = last.next_offset, last.append_time_ms
        return self

    def _make(self, kind: EntryKind, count: int, payload: bytes, later_ms: int, term: int | None) -> Entry:
        self.term = Term(term) if term is not None else self.term
        self.time += later_ms
        self.index = LogIndex(self.index + 1)
        entry = Entry(self.index, self.term, kind, self.next_offset, count, self.time, payload)
        self.next_offset = entry.next_offset
        return entry


def renumber(transaction: lmdb.Transaction, databases: dict[str, Any]) -> None:
    """Write the transaction's own number into the meta row, as every transaction of the store does and a test's transaction must."""
    row = transaction.get(META_KEY, db=databases["meta"])
    with suppress(CodecError, TypeError):  # the test damages the row itself
        meta, note = decode_meta(row), decode_note(row)
        row = encode_meta(meta, CommitNote(transaction.id(), note.verified_index))
        transaction.put(META_KEY, row, db=databases["meta"])


def position_after(entry: Entry) -> LogPosition:
    return LogPosition(entry.index, entry.term, entry.next_offset, entry.append_time_ms)


def append(store: LogStore, *entries: Entry, key: ReplicaKey = KEY) -> None:
    """Append entries as a core does, with their term if it is new."""
    term = entries[-1].term
    store.append_batch([(key, Update(hard(term) if term > GENESIS.term else None, entries))])


def truncate(store: LogStore, entry: Entry, key: ReplicaKey = KEY) -> None:
    store.append_batch([(key, Update(truncation=position_after(entry), state_index=entry.index))])


def index(number: int) -> LogIndex:
    return LogIndex(number)


def offset(number: int) -> Offset:
    return Offset(number)


def hard(term: int, vote: int = 0, commit: int = 5) -> HardState:
    return HardState(Term(term), ReplicaId(vote), LogIndex(commit))


@contextmanager
def lmdb_store(directory: Path, **options: object) -> Iterator[LmdbLogStore]:
    """Return a store whose open files are closed at the end of the test."""
    store = LmdbLogStore(directory, map_bytes=options.pop("map_bytes", MAP_BYTES), **options)
    try:
        yield store
    finally:
        for key in store.open_replicas():
            store.close(key)
