"""Cut the sorted rows of a log topic's partition into record batches, and encode them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute
from raftmq.client.base import settings
from raftmq.client.codec.arrow import encode_arrow, numbers_of
from raftmq.spark.sink.rows.log_rows import HEADERS, KEY, SIZE, TIME, VALUE
from raftmq.spark.sink.rows.log_sorter import joined

if TYPE_CHECKING:
    from raftmq.spark.sink.rows.partition_writer import Identity

pc: Any = pyarrow.compute  # Any: pyarrow creates its functions at run time, so no type checker sees them

ROW_OVERHEAD_BYTES: Final = settings.RECORD_OVERHEAD_BYTES + 8
"""Bytes of a row beside its cells: lengths of value and key, number of headers (12), a wide timestamp (8) and three bits of bitmaps."""


class LogBatches:
    """Make the batches of one task for log topics."""

    def __init__(
        self, codec: int, records_max: int, timestamp_ms: int | None, no_time_ms: Callable[[], int] = lambda: 0
    ) -> None:
        """Create the batches of one task.

        Args:
            codec: Codec number of the batch header.
            records_max: Maximum number of records of a batch.
            timestamp_ms: The time of every record. None: each row has its own.
            no_time_ms: Returns the time of rows without one.
        """
        self._no_time_ms = no_time_ms
        self._codec = codec
        self._records_max = records_max
        self._timestamp_ms = timestamp_ms

    def cut(self, rows: Iterator[pa.RecordBatch], bytes_max: int) -> Iterator[pa.RecordBatch]:
        """Cut rows into pieces of at most `bytes_max` bytes. A larger row is a piece of its own."""
        piece: list[pa.RecordBatch] = []
        count = size = 0
        for block in rows:
            overhead = pa.scalar(ROW_OVERHEAD_BYTES, pa.int64())
            ends = numbers_of(pc.cumulative_sum(pc.add(block.column(SIZE), overhead)))
            at = cut_at = 0
            while at < len(ends):
                end = min(bisect_right(ends, cut_at + bytes_max - size), at + self._records_max - count)
                if end <= at and not piece:
                    end = at + 1
                if end > at:
                    piece.append(block.slice(at, end - at))
                    count += end - at
                    size += ends[end - 1] - cut_at
                    at, cut_at = end, ends[end - 1]
                if at < len(ends):
                    yield joined(piece)
                    piece, count, size = [], 0, 0
        if piece:
            yield joined(piece)

    def seal(self, rows: pa.RecordBatch, identity: Identity, first_sequence: int) -> bytes:
        """Return the batch of a piece."""
        names = rows.schema.names
        body = encode_arrow(
            rows.column(VALUE),
            rows.column(KEY) if KEY in names else None,
            rows.column(TIME).fill_null(self._no_time_ms()) if self._timestamp_ms is None else self._timestamp_ms,
            rows.column(HEADERS) if HEADERS in names else None,
            self._codec,
        )
        return body.seal(identity.producer_id, identity.epoch, first_sequence)
