"""Convert RaftMQ batches to Arrow record batches column by column, without a Python object per record.

Keys, values and presence bitmaps are the batch's own bytes. Offsets into them are a cumulative sum. Columns with the same value in
every record are slices of arrays created once. Must not import Spark or fetch. Needs pyarrow 18.

Invariant: every record batch has exactly the given schema, in which Spark looks up its columns without another check.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from raftmq.batch_header import BatchFormatError
from raftmq.client.codec.arrow import binary_array, timestamp_array
from raftmq.client.codec.batch import BatchColumns, BinaryColumn, decode_columns
from raftmq.errors import CorruptBatchError, UnsupportedCompressionError
from raftmq.spark.source.planning import OffsetRange
from raftmq.spark.source.range_fetch import FetchedBatch

ROWS_TARGET: Final = 16_384
"""Small batches are gathered up to so many records. The JVM's work per record batch is then negligible beside that per record."""
BYTES_TARGET: Final = 4 << 20
"""Small batches are gathered up to so many decompressed bytes."""
CREATE_TIME: Final = 0
"""``timestampType``: RaftMQ's timestamps are the producer's, which Kafka calls CreateTime."""
TIMESTAMP_MS_MAX: Final = (1 << 63) // 1000 - 1
"""The largest time that fits Arrow's microseconds. Producers may write any number, and one outside is clamped: otherwise the query
would fail at each run."""
_TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

Decoded = tuple[FetchedBatch, BatchColumns]
Part = tuple[BinaryColumn, int, int]
"""A column of one batch, and the first and the end (exclusive) of its cells that are used."""
Builder = Callable[[Sequence[Decoded]], pa.Array]


def record_batches(fetched: Iterator[FetchedBatch], range_: OffsetRange, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the Arrow record batches of all records, in order. Raises `CorruptBatchError`."""
    builders = _builders(range_, schema)
    for group in _groups(fetched, range_):
        yield pa.RecordBatch.from_arrays([builders[name](group) for name in schema.names], schema=schema)


def _groups(fetched: Iterator[FetchedBatch], range_: OffsetRange) -> Iterator[list[Decoded]]:
    """Yield groups of decoded batches. Each group becomes one record batch and has no gap in its offsets."""
    group: list[Decoded] = []
    rows = size = next_offset = 0
    for batch in fetched:
        columns = _decode(batch, range_)
        if group and batch.base_offset + batch.first != next_offset:
            yield group
            group, rows, size = [], 0, 0
        group.append((batch, columns))
        rows += batch.end - batch.first
        size += batch.header.raw_body_bytes
        next_offset = batch.base_offset + batch.end
        if rows >= ROWS_TARGET or size >= BYTES_TARGET:
            yield group
            group, rows, size = [], 0, 0
    if group:
        yield group


def _decode(batch: FetchedBatch, range_: OffsetRange) -> BatchColumns:
    try:
        return decode_columns(batch.data, batch.header)
    except (BatchFormatError, UnsupportedCompressionError) as error:
        raise _corrupt(batch, range_, error) from error


def _corrupt(batch: FetchedBatch, range_: OffsetRange, error: Exception) -> CorruptBatchError:
    next_offset = batch.base_offset + batch.header.record_count
    return CorruptBatchError(range_.topic, range_.partition, batch.base_offset, next_offset, str(error))


# ------------------------------------------------------------------------------------------------------------- columns


def _builders(range_: OffsetRange, schema: pa.Schema) -> Mapping[str, Builder]:
    """Return the function that builds each column from a group of batches."""

    def headers(group: Sequence[Decoded]) -> pa.Array:
        kind = schema.field("headers").type
        arrays = []
        for batch, columns in group:
            try:
                arrays.append(_headers(columns, kind).slice(batch.first, batch.end - batch.first))
            except (pa.ArrowInvalid, BatchFormatError) as error:
                raise _corrupt(batch, range_, error) from error
        return _joined(arrays)

    return {
        "key": lambda group: _binary([(columns.keys, batch.first, batch.end) for batch, columns in group]),
        "value": lambda group: _binary([(columns.values, batch.first, batch.end) for batch, columns in group]),
        "topic": lambda group: _repeated(pa.scalar(range_.topic, pa.string()), _rows(group)),
        "partition": lambda group: _repeated(pa.scalar(range_.partition, pa.int32()), _rows(group)),
        "offset": _offsets,
        "timestamp": _timestamps,
        "timestampType": lambda group: _repeated(pa.scalar(CREATE_TIME, pa.int32()), _rows(group)),
        "headers": headers,
        "appendTime": _append_times,
    }


def _rows(group: Sequence[Decoded]) -> int:
    return sum(batch.end - batch.first for batch, _ in group)


def _binary(parts: Sequence[Part]) -> pa.Array:
    """Concatenate columns. Lengths and blobs are joined before the Arrow call.

    An Arrow call for each batch of a hundred records would cost more than the records.
    """
    if all(column.lengths is None for column, _, _ in parts):
        return pa.nulls(sum(end - first for _, first, end in parts), pa.binary())
    if len(parts) == 1 or any(column.lengths is None or column.presence is not None for column, _, _ in parts):
        return _joined([binary_array(column).slice(first, end - first) for column, first, end in parts])
    lengths, blobs = [], []
    for column, first, end in parts:
        assert column.lengths is not None
        lengths.append(column.lengths[first:end])
        start = sum(column.lengths[:first])
        blobs.append(column.blob[start : start + sum(lengths[-1])] if end - first < column.count else column.blob)
    blob, counts = b"".join(blobs), memoryview(b"".join(lengths)).cast("I")
    return binary_array(BinaryColumn(blob, len(counts), None, counts, 0, len(blob)))


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


@lru_cache(maxsize=8)
def _constant(value: pa.Scalar, rows: int) -> pa.Array:
    return pa.repeat(value, rows)


def _repeated(value: pa.Scalar, rows: int) -> pa.Array:
    """Return a column with one value, as a slice of an array that is created once per power of two."""
    return _constant(value, 1 << (rows - 1).bit_length()).slice(0, rows)


@lru_cache(maxsize=8)
def _counting(rows: int) -> pa.Array:
    return pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(array("q", range(rows)))])


def _offsets(group: Sequence[Decoded]) -> pa.Array:
    rows = _rows(group)
    first = group[0][0].base_offset + group[0][0].first
    counting = _counting(1 << (rows - 1).bit_length()).slice(0, rows)
    return pc.add(counting, pa.scalar(first, pa.int64()))  # pyright: ignore[reportAttributeAccessIssue]


def _timestamps(group: Sequence[Decoded]) -> pa.Array:
    if all(columns.timestamp_deltas is None for _, columns in group):
        return _times_of_batches(group, [columns.header.base_timestamp_ms for _, columns in group])
    return _joined([_batch_timestamps(columns).slice(b.first, b.end - b.first) for b, columns in group])


def _append_times(group: Sequence[Decoded]) -> pa.Array:
    return _times_of_batches(group, [batch.append_time_ms for batch, _ in group])


def _times_of_batches(group: Sequence[Decoded], times_ms: Sequence[int]) -> pa.Array:
    """Return a column in which all records of a batch have one time."""
    runs = [array("q", [micros(time)]) * (b.end - b.first) for (b, _), time in zip(group, times_ms, strict=True)]
    return pa.Array.from_buffers(_TIMESTAMP, _rows(group), [None, pa.py_buffer(b"".join(runs))])


def micros(time_ms: int) -> int:
    """Return milliseconds as Arrow's microseconds, clamped to the times that these can express."""
    return max(-TIMESTAMP_MS_MAX, min(time_ms, TIMESTAMP_MS_MAX)) * 1000


def _batch_timestamps(columns: BatchColumns) -> pa.Array:
    earliest, latest = columns.header.base_timestamp_ms, columns.header.max_timestamp_ms
    millis = timestamp_array(columns)
    if earliest < -TIMESTAMP_MS_MAX or latest > TIMESTAMP_MS_MAX:
        least, most = pa.scalar(-TIMESTAMP_MS_MAX, pa.int64()), pa.scalar(TIMESTAMP_MS_MAX, pa.int64())
        millis = pc.max_element_wise(pc.min_element_wise(millis, most), least)  # pyright: ignore[reportAttributeAccessIssue]
    return pc.multiply(millis, pa.scalar(1000, pa.int64())).view(_TIMESTAMP)  # pyright: ignore[reportAttributeAccessIssue]


def _headers(columns: BatchColumns, kind: pa.ListType) -> pa.Array:
    """Return a list of (name, value) per record, or null for a record without headers, as the Kafka connector does."""
    count = columns.record_count
    if columns.header_counts is None or columns.header_names is None or columns.header_values is None:
        return pa.nulls(count, kind)
    names = binary_array(columns.header_names).cast(pa.string())  # checks that they are UTF-8
    pairs = pa.StructArray.from_arrays([names, binary_array(columns.header_values)], fields=list(kind.value_type))
    counts = pa.Array.from_buffers(pa.uint32(), count, [None, pa.py_buffer(columns.header_counts)])
    ends = pc.cumulative_sum(counts.view(pa.int32())).buffers()[1]  # pyright: ignore[reportAttributeAccessIssue]
    offsets = pa.py_buffer(b"\0\0\0\0" + memoryview(ends)[: 4 * count])
    present = pc.not_equal(counts, pa.scalar(0, pa.uint32())).buffers()[1]  # pyright: ignore[reportAttributeAccessIssue]
    return pa.Array.from_buffers(kind, count, [present, offsets], children=[pairs])
