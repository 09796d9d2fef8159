"""Bytes of a log entry: the row of the `log` database, which is also a self-contained frame for the peer transport.

Row: key = index, 8 bytes big-endian (so rows sort by index); value = header, payload, CRC32C over key and value.
The index is in the header as well, so `encode_entry` of a row equals its stored value and can be sent as it is.
Layout is on disk: a change needs a new format version (`replica_codec.FORMAT_VERSION`).
"""

from __future__ import annotations

import struct
from typing import NoReturn

from crc32c import crc32c
from raftmq.raft.entry import Entry, EntryHeader, EntryKind
from raftmq.storage.checksum import CHECKSUM, CHECKSUM_BYTES, Buffer, is_sound
from raftmq.types import LogIndex, Offset, Term

KEY = struct.Struct(">Q")
HEADER = struct.Struct("<QQQqIIB3x")
"""index, term, base_offset, append_time_ms, record_count, payload bytes, kind, three reserved zero bytes."""
HEADER_BYTES = HEADER.size
ROW_OVERHEAD_BYTES = HEADER_BYTES + CHECKSUM_BYTES

_KINDS = {int(kind): kind for kind in EntryKind}


class CodecError(ValueError):
    """Bytes that are not what they should be: a failed checksum, a wrong length, an impossible value."""


def encode_key(index: int) -> bytes:
    """The key of the row at `index`."""
    return KEY.pack(index)


def decode_key(key: Buffer) -> LogIndex:
    """The reverse of `encode_key`."""
    if len(key) != KEY.size:
        raise CodecError(f"log key of {len(key)} bytes")
    return LogIndex(KEY.unpack(key)[0])


def encode_entry(entry: Entry) -> bytes:
    """Header, payload and checksum: the value of the entry's row. Copies the payload once."""
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


def decode_entry(buffer: Buffer) -> Entry:
    """The reverse of `encode_entry`; the payload is copied out. Raises `CodecError` for anything but a sound entry."""
    header = decode_header(buffer)
    return Entry(
        header.index,
        header.term,
        header.kind,
        header.base_offset,
        header.record_count,
        header.append_time_ms,
        bytes(buffer[HEADER_BYTES:-CHECKSUM_BYTES]),
    )


def decode_header(buffer: Buffer) -> EntryHeader:
    """The header of an encoded entry; the whole of it is checked. Raises `CodecError`."""
    if len(buffer) < ROW_OVERHEAD_BYTES:
        raise CodecError(f"entry of {len(buffer)} bytes is shorter than its header")
    index, term, base_offset, append_time_ms, record_count, payload_bytes, kind_number = HEADER.unpack_from(buffer)
    if not is_sound(KEY.pack(index), buffer):
        raise CodecError(f"entry {index} does not match its checksum")
    kind = _KINDS.get(kind_number)
    if kind is None or payload_bytes != len(buffer) - ROW_OVERHEAD_BYTES:
        _refuse(index, kind_number, payload_bytes, len(buffer))
    return EntryHeader(
        LogIndex(index), Term(term), kind, Offset(base_offset), record_count, append_time_ms, payload_bytes
    )


def decode_row(index: int, value: Buffer) -> Entry:
    """The entry stored under `index`. Raises `CodecError` also when it is another index's row."""
    entry = decode_entry(value)
    if entry.index != index:
        raise CodecError(f"row {index} holds entry {entry.index}")
    return entry


def decode_row_header(index: int, value: Buffer) -> EntryHeader:
    """The header stored under `index`; the row's checksum is verified. Raises `CodecError`."""
    header = decode_header(value)
    if header.index != index:
        raise CodecError(f"row {index} holds entry {header.index}")
    return header


def _refuse(index: int, kind: int, payload_bytes: int, size: int) -> NoReturn:
    """The checksum is right and the content impossible: written by a defect or by another version."""
    raise CodecError(f"entry {index}: kind {kind}, payload of {payload_bytes} bytes in {size}")
