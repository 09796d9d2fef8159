"""Find the columns that a write to log topics accepts, and convert chunks of them to sortable rows.

Must not import Spark. Invariant: the result depends on a row's contents alone, so a row that is computed again goes to the same
partition and to the same place in the order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import add
from typing import TYPE_CHECKING, Final
from zlib import crc32

from raftmq.client.base import settings
from raftmq.client.producer.partitioner import PARTITIONERS
from raftmq.errors import UnknownPartitionError
from raftmq.spark.sink_chunks import Chunk, bytes_of, header_of, order_of
from raftmq.spark.sink_errors import InvalidSchemaError
from raftmq.spark.sink_fields import (
    BYTES_IN_WORDS,
    TIME_IN_WORDS,
    TIMES,
    WHOLE,
    WHOLE_IN_WORDS,
    Field,
    FieldFinder,
    is_bytes,
    is_text,
)

if TYPE_CHECKING:
    from raftmq.client.codec.batch import Headers
    from raftmq.spark.sink_options import SinkOptions

_LENGTH = struct.Struct("<i")
_NULL = _LENGTH.pack(-1)


SinkRow = tuple[bytes, int, int, bool, bytes, bool, bytes, bytes, int]
"""A row that is sorted by its first `SORTED_PARTS` parts. It is a plain tuple, for speed and for `marshal`.

- topic (UTF-8), partition
- place in the order column, or 0 without one
- whether there is a key, the key, whether there is a value, the value
- headers, packed by `pack_headers`, or empty for none
- value of the timestamp column in milliseconds, `NO_TIME` for null, or 0 without the column
"""

NO_TIME: Final = -(1 << 63)
"""The record gets the time at which the batch began, which is the same when the batch runs again."""

SORTED_PARTS: Final = 3
"""Topic, partition and order. Rows that are equal in them keep their order of arrival."""
OFFSET: Final = "offset"
"""The column that orders the rows if the option ``orderColumn`` names none: rows that were read from a topic have it."""


@dataclass(frozen=True, slots=True)
class SinkColumns:
    """Hold the position of each column in the data. None means that the column is absent."""

    value: int
    key: int | None
    headers: int | None
    topic: int | None
    partition: int | None
    order: int | None
    timestamp: int | None
    width: int
    """Number of all columns. Columns with other names are ignored."""

    @property
    def used(self) -> frozenset[int]:
        """Return the positions of the columns that are written."""
        positions = (self.value, self.key, self.headers, self.topic, self.partition, self.order, self.timestamp)
        return frozenset(position for position in positions if position is not None)

    @property
    def as_bytes(self) -> frozenset[int]:
        """Return the positions of the columns in which text is converted to bytes."""
        return frozenset(position for position in (self.key, self.value) if position is not None)


def check_schema(fields: Sequence[Field], options: SinkOptions) -> SinkColumns:
    """Find the columns. Raises `InvalidSchemaError` when a column is missing, duplicated or of another type."""
    finder = FieldFinder(fields)
    found = SinkColumns(
        value=finder.value(),
        key=finder.find("key", BYTES_IN_WORDS, is_bytes),
        headers=finder.headers(),
        topic=finder.find("topic", "string", is_text),
        partition=finder.find("partition", WHOLE_IN_WORDS, WHOLE.__contains__),
        order=find_order(finder, options.order_column),
        timestamp=finder.find(options.timestamp_column, TIME_IN_WORDS, TIMES.__contains__),
        width=len(fields),
    )
    if found.topic is None and options.topic is None:
        raise InvalidSchemaError("nothing says where to write: set the option topic, or add a column 'topic'")
    if options.timestamp_column is not None and found.timestamp is None:
        raise InvalidSchemaError(f"timestampColumn names {options.timestamp_column!r}, and there is no such column")
    return found


def find_order(finder: FieldFinder, name: str | None) -> int | None:
    """Return the position of the column that orders the rows: the named one, else ``offset`` if it holds whole numbers.

    Raises `InvalidSchemaError` when the named column does not exist or has another type.
    """
    if name is not None:
        return finder.order(name)
    return finder.find_typed(OFFSET, WHOLE.__contains__)


class RowBuilder:
    """Build sortable rows from chunks. Each task has one."""

    def __init__(
        self,
        columns: SinkColumns,
        options: SinkOptions,
        partition_count: Callable[[str, int | None], int],
        record_bytes_max: Callable[[str], int],
    ) -> None:
        """Create a builder of rows.

        Args:
            columns: The positions of the columns in a chunk.
            options: The sink's options.
            partition_count: Returns the number of partitions of a topic, given the partition that a row names, or None. Raises if
                the topic does not exist.
            record_bytes_max: Returns the size of the largest record of a topic, overhead included. Called for large rows only.
        """
        self._columns = columns
        self._topic = options.topic
        self._partitioner = PARTITIONERS[options.partitioner]
        self._is_empty_a_key = options.partitioner != "crc32"  # as in the SDK
        self._partition_count = partition_count
        self._record_bytes_max = record_bytes_max

    def rows(self, chunk: Chunk) -> tuple[list[SinkRow], int]:
        """Return all rows of a chunk, and the total bytes of their keys, values and headers.

        Raises:
            InvalidSchemaError: a row's topic or a header's name is null.
            UnknownTopicError: a topic does not exist.
            UnknownPartitionError: a partition is negative or above the topic's last.
            RecordTooLargeError: a row is larger than the largest record of its topic.
        """
        columns = self._columns
        if self._topic is not None and columns.headers is None and columns.partition is None:
            return self._plain_rows(chunk, self._topic)
        values = chunk[columns.value]
        count = len(values)
        rows: list[SinkRow] = []
        total = 0

        def column(position: int | None) -> Sequence[object]:
            return chunk[position] if position is not None else (None,) * count

        topics = (self._topic,) * count if self._topic is not None else column(columns.topic)
        for value, key, headers, topic, partition, order, time_us in zip(
            values,
            column(columns.key),
            column(columns.headers),
            topics,
            column(columns.partition),
            column(columns.order),
            column(columns.timestamp),
            strict=True,
        ):
            row, size = self._row(value, key, headers, topic, partition, order, time_us)
            rows.append(row)
            total += size
        return rows, total

    def _plain_rows(self, chunk: Chunk, topic: str) -> tuple[list[SinkRow], int]:
        """Return the rows in the usual case, keys and values for one topic. Working by column takes a third of the time."""
        columns = self._columns
        cells = chunk[columns.value]
        values = list(map(bytes_of, cells))
        key_cells = chunk[columns.key] if columns.key is not None else (None,) * len(cells)
        keys = list(map(bytes_of, key_cells))
        sizes = list(map(add, map(len, values), map(len, keys)))
        if sizes:
            self._check_size(max(sizes), topic)
        has_keys = [cell is not None for cell in key_cells]
        partition_count = self._partition_count(topic, None)
        rows = zip(
            repeat(topic.encode()),
            [self._chosen(*cell, partition_count) for cell in zip(has_keys, keys, values, strict=True)]
            if columns.key is not None
            else [crc32(value) % partition_count for value in values],
            repeat(0) if columns.order is None else map(order_of, chunk[columns.order]),
            has_keys,
            keys,
            [cell is not None for cell in cells],
            values,
            repeat(b""),
            repeat(0) if columns.timestamp is None else map(_millis, chunk[columns.timestamp]),
            strict=False,  # some are endless
        )
        return list(rows), sum(sizes)

    def _check_size(self, size: int, topic: str) -> None:
        needed = size + settings.RECORD_OVERHEAD_BYTES
        if needed > settings.RECORD_BYTES_MAX and needed > (bytes_max := self._record_bytes_max(topic)):
            from raftmq.client.producer.record_checks import (
                too_large,  # imported here, because it loads codecs, which a driver does not need
            )

            raise too_large(needed, bytes_max)

    def _chosen(self, has_key: bool, key: bytes, value: bytes, partition_count: int, packed: bytes = b"") -> int:
        """Return the partition of a row that names none."""
        if key or (has_key and self._is_empty_a_key):
            return self._partitioner(key, partition_count)
        # by contents, not in turn, because the row must go to the same partition when it is computed again
        return crc32(packed, crc32(value)) % partition_count

    def _row(
        self,
        value: object,
        key: object,
        headers: object,
        topic: object,
        partition: object,
        order: object,
        time_us: object,
    ) -> tuple[SinkRow, int]:
        if not isinstance(topic, str):
            raise InvalidSchemaError("a row's topic is null; the option topic gives all rows one")
        value_bytes, key_bytes, packed = bytes_of(value), bytes_of(key), pack_headers(headers)
        size = len(value_bytes) + len(key_bytes) + len(packed)
        self._check_size(size, topic)
        named = partition if isinstance(partition, int) else None
        partition_count = self._partition_count(topic, named)
        if isinstance(partition, int):
            if not 0 <= partition < partition_count:
                raise UnknownPartitionError(f"{topic} has partitions 0 to {partition_count - 1}, not {partition}")
            chosen = partition
        else:
            chosen = self._chosen(key is not None, key_bytes, value_bytes, partition_count, packed)
        row = (
            topic.encode(),
            chosen,
            0 if self._columns.order is None else order_of(order),
            key is not None,
            key_bytes,
            value is not None,
            value_bytes,
            packed,
            0 if self._columns.timestamp is None else _millis(time_us),
        )
        return row, size


def _millis(time_us: object) -> int:
    return time_us // 1000 if isinstance(time_us, int) else NO_TIME


def pack_headers(headers: object) -> bytes:
    """Pack a row's headers into bytes that can be compared and hashed.

    They hold the length and the bytes of each name and value. A null value has length -1. Raises `InvalidSchemaError` for a header
    without a name.
    """
    if not headers:
        return b""
    assert isinstance(headers, Sequence)
    return pack_pairs(map(header_of, headers))


def pack_pairs(pairs: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Pack names and values as `pack_headers` does."""
    parts: list[bytes] = []
    for name, value in pairs:
        encoded = name.encode()
        parts += (_LENGTH.pack(len(encoded)), encoded)
        parts += (_NULL,) if value is None else (_LENGTH.pack(len(value)), value)
    return b"".join(parts)


def unpack_headers(packed: bytes) -> Headers:
    """Return the headers that `pack_headers` packed."""
    pairs: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(packed):
        name, at = _cell(packed, at)
        value, at = _cell(packed, at)
        assert name is not None
        pairs.append((name.decode(), value))
    return tuple(pairs)


def _cell(packed: bytes, at: int) -> tuple[bytes | None, int]:
    (length,) = _LENGTH.unpack_from(packed, at)
    start = at + _LENGTH.size
    return (None, start) if length < 0 else (packed[start : start + length], start + length)
