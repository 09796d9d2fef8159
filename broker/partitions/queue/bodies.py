"""Find the bodies of messages: in the entries that brought them, or evacuated in the state file. Bodies are never decoded.

A body that was evacuated keeps the facts that its batch had about it: its place, its checksum, its codec and the message's headers.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from struct import Struct
from typing import Final

import msgspec
from raftmq.batch_header import CODEC_NONE
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.enqueued import read_messages
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.raft.entry import Entry
from raftmq.storage.errors import DamagedReplicaError, LogRangeError
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.state_store import StateStore
from raftmq.types import LogIndex, Offset

CACHED_COLUMNS_BYTES_MAX: Final = 1 << 20
"""Columns of one partition's batches that stay unpacked, for consumers that take their messages one by one. One batch always does."""
_UNPACKED_MESSAGE_BYTES: Final = 128
"""Memory of an unpacked message beside the bytes of its columns: its numbers, and their places in lists."""
_READ_BYTES_MAX: Final = 1 << 20
_HEAD: Final = Struct("<IIBI")
"""Position in the batch, checksum, codec, and length of the headers (`_NO_HEADERS`: none)."""
_NO_HEADERS: Final = (1 << 32) - 1


class StoredBody(msgspec.Struct, frozen=True, gc=False):
    """A message's body, and the facts that its batch has about it."""

    body: bytes | memoryview
    position: int
    checksum: int
    codec: int
    headers: bytes | None


class _Columns:
    """The unpacked columns of one entry's messages. They do not hold the entry, which is larger and may leave the memory before them."""

    __slots__ = ("_fields", "_starts", "base_offset", "bytes")

    def __init__(self, entry: Entry) -> None:
        payload, fields = read_messages(entry.payload)
        self.base_offset = entry.base_offset
        self._fields = fields
        before = len(entry.payload) - len(payload)
        self._starts = list(accumulate(fields.body_lengths, initial=before + fields.body_start))
        self.bytes = fields.body_start + _UNPACKED_MESSAGE_BYTES * fields.message_count

    def body(self, entry: Entry, sequence: int) -> StoredBody:
        """Return the body of one of the entry's messages. It shares the entry's memory."""
        position, fields, starts = sequence - self.base_offset, self._fields, self._starts
        return StoredBody(
            memoryview(entry.payload)[starts[position] : starts[position + 1]],
            position,
            fields.body_checksums[position],
            fields.codecs[position] if fields.codecs is not None else CODEC_NONE,
            fields.headers[position] if fields.headers is not None else None,
        )

    def encoded(self, entry: Entry, sequence: int) -> bytes:
        """Return the value of the row to which the body of one of the entry's messages is evacuated."""
        position, fields, starts = sequence - self.base_offset, self._fields, self._starts
        headers = None if fields.headers is None else fields.headers[position]
        codec = CODEC_NONE if fields.codecs is None else fields.codecs[position]
        length = _NO_HEADERS if headers is None else len(headers)
        head = _HEAD.pack(position, fields.body_checksums[position], codec, length)
        return b"".join((head, headers or b"", entry.payload[starts[position] : starts[position + 1]]))


def decode_body(value: bytes) -> StoredBody:
    """Return the body in the value of an evacuated body's row, as `_Columns.encoded` made it."""
    position, checksum, codec, length = _HEAD.unpack_from(value)
    start = _HEAD.size
    headers = None if length == _NO_HEADERS else value[start : start + length]
    if headers is not None:
        start += length
    return StoredBody(memoryview(value)[start:], position, checksum, codec, headers)


class QueueBodiesReader:
    """Finds the bodies of one partition's messages."""

    def __init__(self, replica: Replica[QueuePartition], store: StateStore) -> None:
        self._replica = replica
        self._store = store
        self._columns: OrderedDict[LogIndex, _Columns] = OrderedDict()
        self._columns_bytes = 0

    def clear(self) -> None:
        """Forget unpacked columns: a snapshot replaced the log."""
        self._columns.clear()
        self._columns_bytes = 0

    def in_memory(self, sequences: Sequence[int]) -> list[StoredBody] | None:
        """Return the bodies of messages, or None if one is not in memory."""
        found: list[StoredBody] = []
        entry: Entry | None = None
        columns: _Columns | None = None
        for sequence in sequences:
            if (
                entry is None
                or columns is None
                or not entry.base_offset <= sequence < entry.base_offset + entry.record_count
            ):
                entry = self._recent_entry(sequence)
                if entry is None:
                    return None
                columns = self._columns.get(entry.index) or self._remember(entry.index, _Columns(entry))
            found.append(columns.body(entry, sequence))
        return found

    def _recent_entry(self, sequence: int) -> Entry | None:
        recent = self._replica.log.recent
        index = recent.index_of_offset(Offset(sequence))
        return None if index is None else recent.get(index)

    def _remember(self, index: LogIndex, columns: _Columns) -> _Columns:
        self._columns[index] = columns
        self._columns_bytes += columns.bytes
        while self._columns_bytes > CACHED_COLUMNS_BYTES_MAX and len(self._columns) > 1:
            self._columns_bytes -= self._columns.popitem(last=False)[1].bytes
        return columns

    def read(self, sequences: Sequence[int], bytes_max: int | None = None) -> list[StoredBody | None]:
        """Read bodies in a thread, in this order, up to the one with which they exceed `bytes_max`. None: finished in the meantime.

        Raises as the store's reads.
        """
        found: list[StoredBody | None] = []
        size = 0
        for _, body in each_body(self._store, self._replica.key, sequences):
            found.append(body)
            size += 0 if body is None else len(body.body)
            if bytes_max is not None and size > bytes_max:
                break
        return found


def read_bodies(store: StateStore, key: ReplicaKey, sequences: Iterable[int]) -> dict[int, StoredBody]:
    """Read the bodies of messages from a replica's files. Those of messages that are finished may be missing."""
    return {sequence: body for sequence, body in each_body(store, key, sorted(sequences)) if body is not None}


def each_body(store: StateStore, key: ReplicaKey, sequences: Iterable[int]) -> Iterator[tuple[int, StoredBody | None]]:
    """Read bodies one by one. None: the message is finished. Neighbors share the read of their entry.

    The bodies are copies, and only the entry of the last one is held: a small body may be in a large entry.
    """
    through = store.evacuated_through(key)
    columns: _Columns | None = None
    entry: Entry | None = None
    for sequence in sequences:
        if sequence <= through:
            yield sequence, _evacuated(store, key, sequence)
            continue
        if columns is None or entry is None or not entry.base_offset <= sequence < entry.next_offset:
            entry = _entry_of(store, key, sequence)
            if entry is None:  # evacuated since `through` was read, or finished
                yield sequence, _evacuated(store, key, sequence)
                continue
            columns = _columns_of(key, entry)
        found = columns.body(entry, sequence)
        yield sequence, msgspec.structs.replace(found, body=bytes(found.body))


def bodies_to_evacuate(
    store: StateStore, key: ReplicaKey, sequences: Iterable[int], through_index: LogIndex
) -> Iterator[tuple[int, bytes]]:
    """Read bodies of messages that have a location and were not evacuated, as far as their entries go up to an index. Yield their rows' values.

    After the installation of a snapshot the state may be ahead of the log, whose entries follow.
    """
    columns: _Columns | None = None
    entry: Entry | None = None
    for sequence in sequences:
        if columns is None or entry is None or not entry.base_offset <= sequence < entry.next_offset:
            entry = _entry_of(store, key, sequence)
            if entry is None or entry.index > through_index:
                return
            columns = _columns_of(key, entry)
        yield sequence, columns.encoded(entry, sequence)


def _columns_of(key: ReplicaKey, entry: Entry) -> _Columns:
    try:
        return _Columns(entry)
    except ValueError as error:
        raise DamagedReplicaError(key, f"entry {entry.index} is no batch of messages: {error}") from error


def _evacuated(store: StateStore, key: ReplicaKey, sequence: int) -> StoredBody | None:
    value = store.read_body(key, sequence)
    return None if value is None else decode_body(value)


def _entry_of(store: StateStore, key: ReplicaKey, sequence: int) -> Entry | None:
    """Return the entry that holds a message, or None if the log has been truncated beyond it."""
    index = store.find_offset(key, Offset(sequence))
    if index is None:
        return None
    try:
        (entry,) = store.entries(key, index, index, _READ_BYTES_MAX)
    except LogRangeError:
        return None
    return entry
