"""The columnar body of a record batch: encodes records, and decodes a body into Python values or Arrow-ready columns.

Layout (little-endian; every section starts at a multiple of 8 and is padded with zeros; ADR 0002 has the measurements):

    prelude     u8 values_mode, u8 keys_mode, u8 timestamps_mode, u8 headers_mode, u32 zero
    timestamps  constant: nothing · u32 or u64: one delta from base_timestamp_ms per record
    values      all null: nothing · none null: u32 length per record, blob · some null: presence bitmap, lengths, blob
    keys        as values
    headers     none: nothing · else: u32 header count per record, a column of names (UTF-8), a column of their values

The bitmap is Arrow's (bit i of byte i // 8, least significant first, 1 = present). A null has length 0. The format stores lengths instead of
offsets, because they compress better and a list of values is one `map` over them. Arrow's offsets are one vectorized cumulative sum. The
whole body is compressed as one piece: LZ4 block with its u32 size in front, zstd frame, raw snappy, or gzip.

Must not talk to the network. Invariant: no claim is used for an allocation before it is compared with a limit, and no read leaves the
body. Damage raises `BatchFormatError`, never anything else.
"""

from __future__ import annotations

import io
import sys
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise, repeat
from operator import add
from struct import Struct
from typing import Literal

from raftmq import batch_header, message_headers
from raftmq.batch_header import BatchFormatError, BatchHeader, BatchTooLargeError
from raftmq.errors import UnsupportedCompressionError
from raftmq.types import Record

Headers = message_headers.Headers

MODE_ALL_NULL = 0
MODE_NONE_NULL = 1
MODE_SOME_NULL = 2
TIMESTAMPS_CONSTANT = 0
TIMESTAMPS_U32 = 1
TIMESTAMPS_U64 = 2
HEADERS_NONE = 0
HEADERS_SOME = 1

ZSTD_LEVEL = 1
"""Compresses 340 MB/s on one core. Level 3 takes as long and saves 2 % on JSON records."""
GZIP_LEVEL = 1
"""Compresses 160 MB/s on one core. Level 6, the usual one, saves another fifth of JSON records at 18 MB/s, so a batch of 512 KiB would
block the event loop for 30 ms."""

_PRELUDE = Struct("<BBBBI")
_PADDING = tuple(bytes(-n % 8) for n in range(8))
_IS_LITTLE = sys.byteorder == "little"
_NO_HEADERS: Headers = ()


@dataclass(frozen=True, slots=True)
class EncodedBody:
    """A body ready for `batch_header.seal`."""

    body: bytes
    codec: int
    record_count: int
    raw_body_bytes: int
    base_timestamp_ms: int
    max_timestamp_ms: int

    def seal(self, producer_id: int = 0, producer_epoch: int = 0, first_sequence: int = 0, flags: int = 0) -> bytes:
        """Return the whole batch under a producer's identity. A producer id of 0 means not idempotent."""
        return batch_header.seal(
            self.body,
            record_count=self.record_count,
            raw_body_bytes=self.raw_body_bytes,
            base_timestamp_ms=self.base_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            codec=self.codec,
            flags=flags,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            first_sequence=first_sequence,
        )


# ------------------------------------------------------------------------------------------------------------- encoding


def encode_body(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None,
    timestamps_ms: int | Sequence[int],
    headers: Sequence[Headers] | None = None,
    codec: int = batch_header.CODEC_NONE,
) -> EncodedBody:
    """Encode 1 to 2**20 records.

    Args:
        values: one per record. None is a tombstone.
        keys: one per record, or None if no record has a key.
        timestamps_ms: one time for all records, or one per record (milliseconds since the epoch).
        headers: one tuple of (name, value) pairs per record, or None if no record has headers.
        codec: a codec number of the batch header.

    Raises:
        TypeError: a value or key is neither bytes-like nor None.
        UnsupportedCompressionError: the codec is unknown.
    """
    parts: list[bytes | memoryview] = []
    base, latest, timestamps_mode = _write_timestamps(parts, timestamps_ms)
    values_mode = _write_column(parts, values)
    keys_mode = MODE_ALL_NULL if keys is None else _write_column(parts, keys)
    headers_mode = HEADERS_NONE if headers is None else _write_headers(parts, headers)
    return body_of((values_mode, keys_mode, timestamps_mode, headers_mode), parts, codec, len(values), base, latest)


def body_of(
    modes: tuple[int, int, int, int],
    sections: Sequence[bytes | memoryview],
    codec: int,
    count: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
) -> EncodedBody:
    """Put a body together. `modes` are those of the values, keys, timestamps and headers. Raises `UnsupportedCompressionError`."""
    parts: list[bytes | memoryview] = [_PRELUDE.pack(*modes, 0)]
    for section in sections:
        parts.append(section)
        if padding := _PADDING[len(section) % 8]:
            parts.append(padding)
    raw = b"".join(parts)
    return EncodedBody(compress(raw, codec), codec, count, len(raw), base_timestamp_ms, max_timestamp_ms)


def compress(raw: bytes, codec: int) -> bytes:
    """Compress a whole body. Raises `UnsupportedCompressionError` for an unknown codec."""
    if codec == batch_header.CODEC_NONE:
        return raw
    import cramjam  # 1.5 MB that programs without compression do not need

    if codec == batch_header.CODEC_LZ4:
        return bytes(cramjam.lz4.compress_block(raw, store_size=True))
    if codec == batch_header.CODEC_ZSTD:
        return bytes(cramjam.zstd.compress(raw, level=ZSTD_LEVEL))
    if codec == batch_header.CODEC_SNAPPY:
        return bytes(cramjam.snappy.compress_raw(raw))
    if codec == batch_header.CODEC_GZIP:
        return bytes(cramjam.gzip.compress(raw, level=GZIP_LEVEL))
    raise UnsupportedCompressionError(f"codec {codec} is not supported")


def _little(numbers: array[int]) -> bytes:
    if not _IS_LITTLE:
        numbers.byteswap()
    return numbers.tobytes()


def _write_timestamps(parts: list[bytes | memoryview], timestamps_ms: int | Sequence[int]) -> tuple[int, int, int]:
    if isinstance(timestamps_ms, int):
        return timestamps_ms, timestamps_ms, TIMESTAMPS_CONSTANT
    base, latest = min(timestamps_ms), max(timestamps_ms)
    if base == latest:
        return base, latest, TIMESTAMPS_CONSTANT
    mode, typecode = (TIMESTAMPS_U32, "I") if latest - base < 1 << 32 else (TIMESTAMPS_U64, "Q")
    parts.append(_little(array(typecode, map((-base).__add__, timestamps_ms))))
    return base, latest, mode


def _write_column(parts: list[bytes | memoryview], cells: Sequence[bytes | None]) -> int:
    try:
        # Both raise TypeError on None, so the common case, a column without nulls, needs no check.
        lengths = array("I", map(len, cells))  # type: ignore[arg-type]
        blob = b"".join(cells)  # type: ignore[arg-type]
    except TypeError:
        return _write_nullable_column(parts, cells)
    parts.append(_little(lengths))
    parts.append(blob)
    return MODE_NONE_NULL


def _write_nullable_column(parts: list[bytes | memoryview], cells: Sequence[bytes | None]) -> int:
    present = [cell is not None for cell in cells]
    if not any(present):
        return MODE_ALL_NULL
    if all(present):
        raise TypeError("keys and values must be bytes or None: pass a serializer for other types")
    parts.append(pack_bits(present))
    filled = [b"" if cell is None else cell for cell in cells]
    parts.append(_little(array("I", map(len, filled))))
    parts.append(b"".join(filled))
    return MODE_SOME_NULL


def _write_headers(parts: list[bytes | memoryview], headers: Sequence[Headers]) -> int:
    if not any(headers):
        return HEADERS_NONE
    pairs = list(chain.from_iterable(headers))
    parts.append(_little(array("I", map(len, headers))))
    _write_column(parts, [name.encode() for name, _ in pairs])
    # The prelude has no field for the mode of the header values, so it is a section of its own before the column.
    at = len(parts)
    parts.append(b"")
    parts[at] = _write_column(parts, [value for _, value in pairs]).to_bytes(8, "little")
    return HEADERS_SOME


def pack_bits(flags: Sequence[int]) -> bytes:
    """Pack in Arrow's bit order. `int` of a binary string is linear in C, while shifting bit by bit in Python is 10 times slower."""
    digits = bytes(map(add, reversed(flags), repeat(48)))
    return int(digits, 2).to_bytes((len(flags) + 7) // 8, "little")


# ------------------------------------------------------------------------------------------------------------- decoding


@dataclass(frozen=True, slots=True)
class BinaryColumn:
    """A column of byte strings within the body. The views share the body's memory."""

    body: bytes
    count: int
    presence: memoryview | None
    """Arrow's validity bitmap, or None if no cell is null or all cells are."""
    lengths: memoryview | None
    """One u32 (machine byte order) per cell, or None if all cells are null."""
    blob_start: int
    blob_bytes: int

    @property
    def blob(self) -> memoryview:
        """Return the concatenated bytes of the cells."""
        return memoryview(self.body)[self.blob_start : self.blob_start + self.blob_bytes]

    def to_list(self) -> list[bytes | None]:
        """Return the cells as Python values."""
        if self.lengths is None:
            return [None] * self.count
        # A BytesIO over exact bytes shares their memory, and `map(read, lengths)` never returns to the interpreter loop: it takes 40 ns per cell,
        # slicing by offsets 97 ns.
        reader = io.BytesIO(self.body)
        reader.seek(self.blob_start)
        cells: list[bytes | None] = list(map(reader.read, self.lengths))
        if self.presence is not None:
            bits = format(int.from_bytes(self.presence, "little"), f"0{self.count}b")
            at = bits.find("0")
            while at >= 0:
                cells[self.count - 1 - at] = None
                at = bits.find("0", at + 1)
        return cells


@dataclass(frozen=True)
class BatchColumns:
    """A decoded batch, column by column. Records are copied only on demand."""

    header: BatchHeader
    timestamp_deltas: memoryview | None
    """One u32 or u64 per record, relative to `header.base_timestamp_ms`, or None if all records have that time."""
    values: BinaryColumn
    keys: BinaryColumn
    header_counts: memoryview | None
    """One u32 per record, or None if no record has headers."""
    header_names: BinaryColumn | None
    header_values: BinaryColumn | None

    @property
    def record_count(self) -> int:
        """Return the number of records, at least 1."""
        return self.header.record_count

    def timestamps(self) -> list[int]:
        """Return one timestamp per record, in milliseconds since the epoch."""
        base = self.header.base_timestamp_ms
        if self.timestamp_deltas is None:
            return [base] * self.record_count
        return list(map(base.__add__, self.timestamp_deltas))

    @cached_property
    def headers(self) -> list[Headers] | None:
        """Return one tuple of (name, value) pairs per record, or None if no record has any. Raises `BatchFormatError`."""
        if self.header_counts is None or self.header_names is None or self.header_values is None:
            return None
        try:
            names = [str(name, "utf-8") for name in self.header_names.to_list() if name is not None]
        except UnicodeDecodeError as error:
            raise BatchFormatError(f"a header name is not UTF-8: {error}") from error
        pairs = list(zip(names, self.header_values.to_list(), strict=True))
        bounds = accumulate(self.header_counts, initial=0)
        return [tuple(pairs[start:end]) if start != end else _NO_HEADERS for start, end in pairwise(bounds)]


class _BodyReader:
    """Reads the sections of a body. Every step is checked against the end of the body."""

    def __init__(self, body: bytes, start: int) -> None:
        self.body = body
        self._view = memoryview(body)
        self._at = start

    def take(self, size: int) -> memoryview:
        start = self._at
        end = start + size
        if end > len(self.body):
            raise BatchFormatError(f"a section of {size} bytes runs past the body's end")
        # Sections are aligned to the body's start, and the header's 64 bytes before it keep that alignment.
        self._at = end + -end % 8
        return self._view[start:end]

    def numbers(self, count: int, typecode: Literal["I", "Q"]) -> memoryview:
        section = self.take(count * (4 if typecode == "I" else 8))
        if _IS_LITTLE:
            return section.cast(typecode)
        swapped = array(typecode, section.tobytes())
        swapped.byteswap()
        return memoryview(swapped)

    def column(self, mode: int, count: int) -> BinaryColumn:
        if mode == MODE_ALL_NULL:
            return BinaryColumn(self.body, count, None, None, 0, 0)
        if mode not in (MODE_NONE_NULL, MODE_SOME_NULL):
            raise BatchFormatError(f"unknown column mode {mode}")
        presence = self.take((count + 7) // 8) if mode == MODE_SOME_NULL else None
        if presence is not None and count % 8 and presence[-1] >> (count % 8):
            raise BatchFormatError("the presence bitmap has bits beyond the last record")
        lengths = self.numbers(count, "I")
        blob_bytes = sum(lengths)
        start = self._at
        self.take(blob_bytes)
        return BinaryColumn(self.body, count, presence, lengths, start, blob_bytes)

    def finish(self) -> None:
        if self._at != len(self.body):
            raise BatchFormatError(f"{len(self.body) - self._at} bytes follow the last section")


def decode_columns(batch: bytes, header: BatchHeader | None = None) -> BatchColumns:
    """Decode a batch whose CRC was checked. `header` is its parsed header, if the caller has it.

    An uncompressed batch is not copied: the columns share its memory.

    Raises:
        BatchFormatError: the body violates the format, or claims more than a limit allows.
        UnsupportedCompressionError: the codec is unknown.
    """
    if header is None:
        header = batch_header.parse_header(batch)
    count = header.record_count
    if not 1 <= count <= batch_header.RECORD_COUNT_MAX:
        raise BatchFormatError(f"{count} records instead of 1 to {batch_header.RECORD_COUNT_MAX}")
    if header.codec == batch_header.CODEC_NONE:
        if len(batch) - batch_header.HEADER_BYTES != header.raw_body_bytes:
            raise BatchFormatError("the sizes of an uncompressed body differ")
        body, start = batch, batch_header.HEADER_BYTES
    else:
        body, start = decompress(memoryview(batch)[batch_header.HEADER_BYTES :], header.codec, header.raw_body_bytes), 0
    if len(body) - start < _PRELUDE.size:
        raise BatchFormatError("the body is shorter than its prelude")
    reader = _BodyReader(body, start)
    values_mode, keys_mode, timestamps_mode, headers_mode, reserved = _PRELUDE.unpack(reader.take(_PRELUDE.size))
    if timestamps_mode > TIMESTAMPS_U64 or headers_mode > HEADERS_SOME or reserved:
        raise BatchFormatError("the prelude has unknown modes")
    deltas = None
    if timestamps_mode != TIMESTAMPS_CONSTANT:
        deltas = reader.numbers(count, "I" if timestamps_mode == TIMESTAMPS_U32 else "Q")
    values = reader.column(values_mode, count)
    keys = reader.column(keys_mode, count)
    counts = names = header_values = None
    if headers_mode == HEADERS_SOME:
        counts = reader.numbers(count, "I")
        total = sum(counts)
        names = reader.column(MODE_NONE_NULL, total)  # needs 4 bytes for each: a forged total runs past the end
        header_values = reader.column(int.from_bytes(reader.take(8), "little"), total)
    reader.finish()
    return BatchColumns(header, deltas, values, keys, counts, names, header_values)


def decompress(
    body: memoryview, codec: int, raw_body_bytes: int, bytes_max: int = batch_header.RAW_BODY_BYTES_MAX
) -> bytes:
    """Decompress a body into exactly `raw_body_bytes`. A claim above `bytes_max` is refused before anything is allocated.

    Raises:
        BatchTooLargeError: the claim is above the limit.
        BatchFormatError: the data does not decompress to exactly that size.
        UnsupportedCompressionError: the codec is unknown.
    """
    if raw_body_bytes > bytes_max:
        raise BatchTooLargeError(
            f"the body claims to have {raw_body_bytes} bytes when decompressed, but at most {bytes_max} are allowed"
        )
    import cramjam  # as in `compress`

    into: Callable[[memoryview, bytearray], int]
    if codec == batch_header.CODEC_LZ4:
        if int.from_bytes(body[:4], "little") != raw_body_bytes:
            raise BatchFormatError("the size of the LZ4 block differs from the header's")
        into = cramjam.lz4.decompress_block_into
    elif codec == batch_header.CODEC_ZSTD:
        into = cramjam.zstd.decompress_into
    elif codec == batch_header.CODEC_SNAPPY:
        into = cramjam.snappy.decompress_raw_into
    elif codec == batch_header.CODEC_GZIP:
        into = cramjam.gzip.decompress_into
    else:
        raise UnsupportedCompressionError(f"codec {codec} is not supported")
    raw = bytearray(raw_body_bytes)
    try:
        written = into(body, raw)
    except cramjam.DecompressionError as error:
        raise BatchFormatError(f"the body does not decompress: {error}") from error
    if written != raw_body_bytes:
        raise BatchFormatError(f"the body decompresses to {written} bytes, but the header says {raw_body_bytes}")
    return bytes(raw)


def decode_records(batch: bytes, header: BatchHeader, topic: str, partition: int, base_offset: int) -> list[Record]:
    """Return all records of a batch. Raises as `decode_columns` does.

    `map` over the columns calls the class from C, without a tuple of arguments or a Python frame per record.
    """
    columns = decode_columns(batch, header)
    count = header.record_count
    headers = columns.headers
    timestamps = repeat(header.base_timestamp_ms) if columns.timestamp_deltas is None else columns.timestamps()
    keys = repeat(None) if columns.keys.lengths is None else columns.keys.to_list()
    return list(
        map(
            Record,
            repeat(topic, count),
            repeat(partition),
            range(base_offset, base_offset + count),
            timestamps,
            keys,
            columns.values.to_list(),
            repeat(_NO_HEADERS) if headers is None else headers,
        )
    )
