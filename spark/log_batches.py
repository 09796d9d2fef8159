"""Cut the sorted rows of a log topic's partition into record batches, and encode them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from raftmq.client.base import settings
from raftmq.client.codec.batch import encode_body
from raftmq.spark.sink_columns import NO_TIME, unpack_headers

if TYPE_CHECKING:
    from raftmq.spark.partition_writer import Identity
    from raftmq.spark.sink_columns import SinkRow


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

    def cut(self, rows: Iterator[SinkRow], bytes_max: int) -> Iterator[list[SinkRow]]:
        """Cut rows into pieces of at most `bytes_max` bytes. A larger row is a piece of its own."""
        records_max = self._records_max
        piece: list[SinkRow] = []
        size = 0
        for row in rows:
            row_bytes = len(row[4]) + len(row[6]) + len(row[7]) + settings.RECORD_OVERHEAD_BYTES
            if piece and (len(piece) >= records_max or size + row_bytes > bytes_max):
                yield piece
                piece, size = [], 0
            piece.append(row)
            size += row_bytes
        if piece:
            yield piece

    def seal(self, rows: list[SinkRow], identity: Identity, first_sequence: int) -> bytes:
        """Return the batch of a piece."""
        _, _, _, has_keys, keys, has_values, values, headers, timestamps = zip(*rows, strict=True)
        body = encode_body(
            values if all(has_values) else [v if has else None for has, v in zip(has_values, values, strict=True)],
            None if not any(has_keys) else [k if has else None for has, k in zip(has_keys, keys, strict=True)],
            self._times(timestamps) if self._timestamp_ms is None else self._timestamp_ms,
            list(map(unpack_headers, headers)) if any(headers) else None,
            self._codec,
        )
        return body.seal(identity.producer_id, identity.epoch, first_sequence)

    def _times(self, timestamps: tuple[int, ...]) -> list[int]:
        no_time_ms = self._no_time_ms()
        return [no_time_ms if time_ms == NO_TIME else time_ms for time_ms in timestamps]
