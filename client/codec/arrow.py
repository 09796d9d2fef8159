"""Converts the columns of a decoded batch to Arrow arrays without copying values and presence. Needs the extra pyarrow.

The offsets, which the format does not store (ADR 0002), are one cumulative sum over the lengths.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from raftmq.client.codec.batch import BatchColumns, BinaryColumn

_ZERO = b"\0\0\0\0"


def binary_array(column: BinaryColumn) -> pa.BinaryArray:
    """Return a `pa.binary()` array that keeps the batch's memory alive. A body is at most 64 MiB, so 32-bit offsets fit."""
    count = column.count
    if column.lengths is None:
        return pa.nulls(count, pa.binary())
    lengths = pa.Array.from_buffers(pa.int32(), count, [None, pa.py_buffer(column.lengths)])
    # pyarrow creates its compute functions at run time, so pyright does not see them
    ends = pc.cumulative_sum(lengths).buffers()[1]  # pyright: ignore[reportAttributeAccessIssue]
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
    array = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(deltas)])
    return pc.add(array.cast(pa.int64()), pa.scalar(base, pa.int64()))  # pyright: ignore[reportAttributeAccessIssue]
