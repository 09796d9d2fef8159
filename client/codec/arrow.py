"""Convert between the columns of a batch and Arrow arrays, without a Python object per record. Needs the extra pyarrow.

Values and presence are decoded without a copy. The offsets, which the format does not store (ADR 0002), are one cumulative sum over
the lengths. Invariant: `encode_arrow` gives the bytes that `batch.encode_body` gives for the same records.
"""

from __future__ import annotations

import sys
from array import array
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute
from raftmq import batch_header
from raftmq.client.codec.batch import (
    HEADERS_NONE,
    HEADERS_SOME,
    MODE_ALL_NULL,
    MODE_NONE_NULL,
    MODE_SOME_NULL,
    TIMESTAMPS_CONSTANT,
    TIMESTAMPS_U32,
    TIMESTAMPS_U64,
    BatchColumns,
    BinaryColumn,
    EncodedBody,
    body_of,
    pack_bits,
)

pc: Any = pyarrow.compute  # Any: pyarrow creates its functions at run time, so no type checker sees them
_ZERO = b"\0\0\0\0"
_IS_LITTLE: Final = sys.byteorder == "little"


# ------------------------------------------------------------------------------------------------------------- decoding


def binary_array(column: BinaryColumn) -> pa.BinaryArray:
    """Return a `pa.binary()` array that keeps the batch's memory alive. A body is at most 64 MiB, so 32-bit offsets fit."""
    count = column.count
    if column.lengths is None:
        return pa.nulls(count, pa.binary())
    lengths = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(column.lengths)])
    ends = pc.cumulative_sum(lengths).buffers()[1]
    offsets = pa.py_buffer(_ZERO + memoryview(ends)[: 4 * count])
    presence = None if column.presence is None else pa.py_buffer(column.presence)
    return pa.Array.from_buffers(pa.binary(), count, [presence, offsets, pa.py_buffer(column.blob)])


def timestamp_array(columns: BatchColumns) -> pa.Int64Array:
    """Return the timestamps as int64 milliseconds since the epoch."""
    base = columns.header.base_timestamp_ms
    deltas = columns.timestamp_deltas
    count = columns.record_count
    if deltas is None:
        return pa.repeat(pa.scalar(base, pa.int64()), count)
    kind = pa.uint32() if deltas.itemsize == 4 else pa.int64()
    added = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(deltas)])
    return pc.add(added.cast(pa.int64()), pa.scalar(base, pa.int64()))


# ------------------------------------------------------------------------------------------------------------- encoding


def encode_arrow(
    values: pa.BinaryArray,
    keys: pa.BinaryArray | None,
    timestamps_ms: int | pa.Int64Array,
    headers: pa.ListArray | None = None,
    codec: int = batch_header.CODEC_NONE,
) -> EncodedBody:
    """Encode 1 to 2**20 records from Arrow columns. Slices of larger arrays are encoded without copying the rest.

    Args:
        values: one per record. Null is a tombstone.
        keys: one per record, or None if no record has a key.
        timestamps_ms: one time for all records, or one per record (milliseconds since the epoch), without nulls.
        headers: one list of (name, value) structs of binaries per record, or None if no record has headers. A null is an empty list.
        codec: a codec number of the batch header.

    Raises:
        UnsupportedCompressionError: the codec is unknown.
    """
    parts: list[bytes | memoryview] = []
    base, latest, timestamps_mode = _write_timestamps(parts, timestamps_ms)
    values_mode = _write_column(parts, values)
    keys_mode = MODE_ALL_NULL if keys is None else _write_column(parts, keys)
    headers_mode = HEADERS_NONE if headers is None else _write_headers(parts, headers)
    modes = (values_mode, keys_mode, timestamps_mode, headers_mode)
    return body_of(modes, parts, codec, len(values), base, latest)


def numbers_of(column: pa.Array) -> memoryview:
    """Return the numbers of a column without nulls as a view of its memory."""
    width = column.type.bit_width // 8
    start = column.offset * width
    view = memoryview(column.buffers()[1])[start : start + len(column) * width]
    numbers: memoryview = view.cast(_TYPECODES[column.type.id])
    return numbers


_TYPECODES: Final[dict[int, Any]] = {  # Any: mypy wants literals
    pa.int32().id: "i",
    pa.uint32().id: "I",
    pa.int64().id: "q",
    pa.uint64().id: "Q",
}


def lengths_and_blob(column: pa.BinaryArray) -> tuple[memoryview, memoryview]:
    """Return the length of each cell and the bytes of all cells. A null has length 0."""
    if column.null_count:
        column = column.fill_null(b"")  # Arrow allows bytes behind a null
    lengths = numbers_of(pc.binary_length(column))
    _, offsets, blob = column.buffers()
    bounds = memoryview(offsets).cast("i")
    start, end = bounds[column.offset], bounds[column.offset + len(column)]
    return lengths, memoryview(blob)[start:end] if blob is not None else memoryview(b"")


def _little(numbers: memoryview) -> bytes | memoryview:
    if _IS_LITTLE:
        return numbers.cast("B")
    swapped = array(numbers.format, numbers)
    swapped.byteswap()
    return swapped.tobytes()


def _write_timestamps(parts: list[bytes | memoryview], timestamps_ms: int | pa.Int64Array) -> tuple[int, int, int]:
    if isinstance(timestamps_ms, int):
        return timestamps_ms, timestamps_ms, TIMESTAMPS_CONSTANT
    bounds = pc.min_max(timestamps_ms)
    base, latest = bounds["min"].as_py(), bounds["max"].as_py()
    if base == latest:
        return base, latest, TIMESTAMPS_CONSTANT
    deltas = pc.subtract(
        timestamps_ms, pa.scalar(base, pa.int64())
    )  # wraps where the distance exceeds 63 bits, as u64 does not
    if latest - base < 1 << 32:
        parts.append(_little(numbers_of(deltas.cast(pa.uint32()))))
        return base, latest, TIMESTAMPS_U32
    parts.append(_little(numbers_of(deltas.view(pa.uint64()))))
    return base, latest, TIMESTAMPS_U64


def _write_column(parts: list[bytes | memoryview], column: pa.BinaryArray) -> int:
    if column.null_count == len(column) and len(column):
        return MODE_ALL_NULL
    mode = MODE_NONE_NULL
    if column.null_count:
        flags = pc.is_valid(column).cast(pa.uint8())
        parts.append(pack_bits(memoryview(flags.buffers()[1])[flags.offset : flags.offset + len(flags)]))
        mode = MODE_SOME_NULL
    lengths, blob = lengths_and_blob(column)
    parts += (_little(lengths), blob)
    return mode


def _write_headers(parts: list[bytes | memoryview], headers: pa.ListArray) -> int:
    counts = pc.list_value_length(headers).fill_null(0)
    pairs = headers.flatten()
    if not len(pairs):
        return HEADERS_NONE
    names, values = pairs.flatten()
    parts.append(_little(numbers_of(counts)))
    _write_column(parts, names)
    # The prelude has no field for the mode of the header values, so it is a section of its own before the column.
    at = len(parts)
    parts.append(b"")
    parts[at] = _write_column(parts, values).to_bytes(8, "little")
    return HEADERS_SOME
