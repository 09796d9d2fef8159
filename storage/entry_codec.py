"""The bytes of a log entry: the row of the `log` database, which is also a self-contained frame for the peer transport.

The key of a row is its index in 8 bytes, big-endian, so that rows sort by index. The value is a header, the payload, and a
CRC32C over key and value. The header repeats the index, so `encode_entry` equals the stored value and can be sent as it is.
The layout is on disk: a change needs a new format version (`replica_codec.FORMAT_VERSION`).
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from crc32c import crc32c
from raftmq.raft.entry import Entry, EntryHeader, EntryKind
from raftmq.storage.checksum import CHECKSUM, CHECKSUM_BYTES, Buffer, is_intact
from raftmq.types import LogIndex, Offset, Term

KEY = struct.Struct(">Q")
HEADER = struct.Struct("<QQQqIIB3x")
"""index, term, base_offset, append_time_ms, record_count, payload bytes, kind, three reserved zero bytes."""
HEADER_BYTES = HEADER.size
ROW_OVERHEAD_BYTES = HEADER_BYTES + CHECKSUM_BYTES

_KINDS = {int(kind): kind for kind in EntryKind}


class CodecError(ValueError):
    """Bytes that cannot be decoded: a failed checksum, a wrong length, an impossible value."""


def encode_key(index: int) -> bytes:
    """Return the key of the row at `index`."""
    return KEY.pack(index)


def decode_key(key: Buffer) -> LogIndex:
    """Decode the key of a row. Raises `CodecError`."""
    if len(key) != KEY.size:
        raise CodecError(f"log key of {len(key)} bytes")
    return LogIndex(KEY.unpack(key)[0])


def encode_entry(entry: Entry) -> bytes:
    """Return the value of the entry's row: header, payload and checksum. Copies the payload once."""
    payload = entry.payload
    header = HEADER.pack(
        entry.index,
        entry.term,
        entry.base_offset,
        entry.append_time_ms,
        entry.record_count,
        len(payload),
        entry.kind,
    )
    checksum = crc32c(payload, crc32c(KEY.pack(entry.index) + header))
    return b"".join((header, payload, CHECKSUM.pack(checksum)))


class RowFields(NamedTuple):
    """The unpacked header of a row, for scans and bisections: an `EntryHeader` costs five times as much."""

    entry_index: int
    """Not called `index`, since that is a method of tuples."""
    term: int
    base_offset: int
    append_time_ms: int
    record_count: int
    payload_bytes: int
    kind: int

    @property
    def next_offset(self) -> int:
        """The offset after this entry's records."""
        return self.base_offset + self.record_count


def decode_fields(buffer: Buffer) -> RowFields:
    """Check a whole encoded entry and return its header. Raises `CodecError` unless the entry is intact."""
    if len(buffer) < ROW_OVERHEAD_BYTES:
        raise CodecError(f"entry of {len(buffer)} bytes is shorter than its header")
    fields = RowFields._make(HEADER.unpack_from(buffer))
    if not is_intact(KEY.pack(fields.entry_index), buffer):
        raise CodecError(f"entry {fields.entry_index} does not match its checksum")
    if fields.kind not in _KINDS or fields.payload_bytes != len(buffer) - ROW_OVERHEAD_BYTES:
        # the checksum is right but the content is impossible: a defect or another version wrote it
        raise CodecError(f"impossible entry of {len(buffer)} bytes: {fields}")
    return fields


def decode_row_fields(index: int, value: Buffer) -> RowFields:
    """Check the row stored under `index` and return its header. Raises `CodecError`, also for another index's entry."""
    fields = decode_fields(value)
    if fields.entry_index != index:
        raise CodecError(f"row {index} holds entry {fields.entry_index}")
    return fields


def decode_entry(buffer: Buffer) -> Entry:
    """Decode an encoded entry and copy its payload. Raises `CodecError`."""
    return _entry(decode_fields(buffer), buffer)


def decode_row(index: int, value: Buffer) -> Entry:
    """Decode the entry stored under `index`. Raises `CodecError`, also for another index's entry."""
    return _entry(decode_row_fields(index, value), value)


def _entry(fields: RowFields, buffer: Buffer) -> Entry:
    index, term, base_offset, append_time_ms, record_count, _, kind = fields
    payload = bytes(buffer[HEADER_BYTES:-CHECKSUM_BYTES])
    return Entry(LogIndex(index), Term(term), _KINDS[kind], Offset(base_offset), record_count, append_time_ms, payload)


def header_of(fields: RowFields) -> EntryHeader:
    """Convert the fields to the core's header."""
    index, term, base_offset, append_time_ms, record_count, payload_bytes, kind = fields
    return EntryHeader(
        LogIndex(index), Term(term), _KINDS[kind], Offset(base_offset), record_count, append_time_ms, payload_bytes
    )
