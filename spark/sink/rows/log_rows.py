"""Convert Spark's Arrow batches to the rows of log topics, column by column: partition, size, hash and contents of each row.

Must not import Spark. Invariant: the result depends on a row's contents alone, so a row that is computed again goes to the same
partition and to the same place in the order.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

import pyarrow as pa
import pyarrow.compute
from raftmq.client.base import settings
from raftmq.client.producer.partitioner import KEY_HASHES
from raftmq.errors import UnknownPartitionError
from raftmq.spark.errors import InvalidSchemaError
from raftmq.spark.sink.rows.hashes import HASH_TYPE, cells_of, content_hashes, first_words, join, pack_headers

if TYPE_CHECKING:
    from raftmq.spark.sink.columns.log import SinkColumns
    from raftmq.spark.sink.options import SinkOptions

pc: Any = pyarrow.compute  # Any: pyarrow creates its functions at run time, so no type checker sees them

HEADERS_TYPE: Final = pa.list_(pa.struct([("key", pa.binary()), ("value", pa.binary())]))
PIECE_BYTES_MAX: Final = 32 << 20
"""Larger batches of Spark are converted in pieces, which bounds the memory of the conversion."""
PLACE, ORDER, SIZE, HASH = "place", "order", "size", "hash"
VALUE, KEY, HEADERS, TIME = "value", "key", "headers", "time"
_TOPIC_SHIFT: Final = 32
_ORDER_MIN: Final = -(1 << 63)


def log_schema(*, has_order: bool, has_key: bool, has_headers: bool, has_time: bool) -> pa.Schema:
    """Return the columns of a task's rows.

    - place: the number of the topic's partition in the task's `Places`
    - order: the place in the order column, if there is one
    - size: bytes of key, value and headers
    - hash: hash of the contents (`hashes`)
    - value, key, headers, time: the contents. A null time is that of the batch.
    """
    present = [(PLACE, pa.int64(), True), (ORDER, pa.int64(), has_order), (SIZE, pa.int64(), True)]
    present += [(HASH, HASH_TYPE, True), (VALUE, pa.binary(), True), (KEY, pa.binary(), has_key)]
    present += [(HEADERS, HEADERS_TYPE, has_headers), (TIME, pa.int64(), has_time)]
    return pa.schema([(name, kind) for name, kind, is_present in present if is_present])


def row_at(place: int, contents: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return rows that were read back as rows to write to a place."""
    known = {name: contents.column(name) for name in contents.schema.names}
    packed = pack_headers(known[HEADERS]) if HEADERS in known else None
    cells = [column for column in (known[VALUE], known.get(KEY), packed) if column is not None]
    known[PLACE] = pa.repeat(pa.scalar(place, pa.int64()), contents.num_rows)
    known[SIZE] = _sum(*(pc.binary_length(column).fill_null(0).cast(pa.int64()) for column in cells))
    known[HASH] = content_hashes(known[VALUE], known.get(KEY), packed, known.get(TIME))
    absent = (pa.nulls(contents.num_rows, field.type) for field in schema)
    columns = [known.get(field.name, nothing) for field, nothing in zip(schema, absent, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


class Places:
    """Number the partitions to which a task writes."""

    def __init__(self) -> None:
        self._topics: list[str] = []

    def base(self, topic: str) -> int:
        """Return the number of the topic's partition 0. Those of the others follow."""
        if topic not in self._topics:
            self._topics.append(topic)
        return self._topics.index(topic) << _TOPIC_SHIFT

    def of(self, number: int) -> tuple[str, int]:
        """Return the topic and the partition of a number."""
        return self._topics[number >> _TOPIC_SHIFT], number & ((1 << _TOPIC_SHIFT) - 1)


class LogRowBuilder:
    """Build rows from Spark's batches. Each task has one."""

    def __init__(
        self,
        columns: SinkColumns,
        options: SinkOptions,
        partition_count: Callable[[str, int | None], int],
        record_bytes_max: Callable[[str], int],
        *,
        spreads_by_crc: bool = False,
    ) -> None:
        """Create a builder of rows.

        Args:
            columns: The positions of the columns in a batch.
            options: The sink's options.
            partition_count: Returns the number of partitions of a topic, given the highest partition that rows name, or None for rows
                that name none. Raises if the topic does not exist.
            record_bytes_max: Returns the size of the largest record of a topic, overhead included. Called for large rows only.
            spreads_by_crc: Whether the partition of a row without a key comes from the CRC-32 of its value and headers, as in earlier
                versions. Otherwise it comes from the row's hash, which is known anyway.
        """
        self._columns = columns
        self._topic = options.topic
        self._key_hash = KEY_HASHES[options.partitioner]
        self._is_empty_a_key = options.partitioner != "crc32"  # as in the SDK
        self._partition_count = partition_count
        self._record_bytes_max = record_bytes_max
        self._spreads_by_crc = spreads_by_crc
        self.places = Places()
        self.schema = log_schema(
            has_order=columns.order is not None,
            has_key=columns.key is not None,
            has_headers=columns.headers is not None,
            has_time=columns.timestamp is not None,
        )

    def rows(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Yield all rows of a batch of Spark, in pieces of bounded size.

        Raises:
            InvalidSchemaError: a row's topic or a header's name is null.
            UnknownTopicError: a topic does not exist.
            UnknownPartitionError: a partition is negative or above the topic's last.
            RecordTooLargeError: a row is larger than the largest record of its topic.
        """
        if batch.num_rows > 1 and batch.nbytes > PIECE_BYTES_MAX:
            half = batch.num_rows // 2
            yield from self.rows(batch.slice(0, half))
            yield from self.rows(batch.slice(half))
        elif batch.num_rows:
            piece = self._piece(batch)
            # Spark's batch has one buffer for all columns, which the piece would keep
            is_wide = batch.nbytes > 2 * piece.nbytes
            yield pa.ipc.read_record_batch(piece.serialize(), piece.schema) if is_wide else piece

    def _piece(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = self._columns
        values = _binary(batch.column(columns.value))
        keys = _binary(batch.column(columns.key)) if columns.key is not None else None
        headers = _headers(batch.column(columns.headers)) if columns.headers is not None else None
        packed = pack_headers(headers) if headers is not None else None
        times_us = whole_numbers(batch.column(columns.timestamp)) if columns.timestamp is not None else None
        times_ms = _floor_divided(times_us, 1000) if times_us is not None else None
        contents = [column for column in (values, keys, packed) if column is not None]
        sizes = _sum(*(pc.binary_length(column).fill_null(0).cast(pa.int64()) for column in contents))
        topics, topic_of_row = self._topics(batch)
        self._check_sizes(topics, topic_of_row, sizes)
        named = whole_numbers(batch.column(columns.partition)) if columns.partition is not None else None
        hashes = content_hashes(values, keys, packed, times_ms)
        order = whole_numbers(batch.column(columns.order)) if columns.order is not None else None
        by_name: dict[str, pa.Array | None] = {
            PLACE: self._places(topics, topic_of_row, named, lambda: self._routes(values, keys, packed, hashes)),
            ORDER: order.fill_null(_ORDER_MIN) if order is not None else None,
            SIZE: sizes,
            HASH: hashes,
            VALUE: values,
            KEY: keys,
            HEADERS: headers,
            TIME: times_ms,
        }
        return pa.RecordBatch.from_arrays([by_name[name] for name in self.schema.names], schema=self.schema)

    def _topics(self, batch: pa.RecordBatch) -> tuple[list[str], pa.Array | None]:
        """Return the topics, and the number of each row's topic. None: all rows have the first topic."""
        if self._topic is not None or self._columns.topic is None:
            assert self._topic is not None  # `check_schema` demands a column without it
            return [self._topic], None
        column = batch.column(self._columns.topic)
        if column.null_count:
            raise InvalidSchemaError("a row's topic is null; the option topic gives all rows one")
        encoded = column.cast(pa.string()).dictionary_encode()
        topics = encoded.dictionary.to_pylist()
        return topics, encoded.indices if len(topics) > 1 else None

    def _check_sizes(self, topics: list[str], topic_of_row: pa.Array | None, sizes: pa.Array) -> None:
        for topic, size in zip(topics, _maxima(topic_of_row, len(topics), sizes), strict=True):
            needed = (size or 0) + settings.RECORD_OVERHEAD_BYTES
            if needed > settings.RECORD_BYTES_MAX and needed > (bytes_max := self._record_bytes_max(topic)):
                from raftmq.client.producer.record_checks import (
                    too_large,  # imported here, because it loads codecs, which a driver does not need
                )

                raise too_large(needed, bytes_max)

    def _places(
        self,
        topics: list[str],
        topic_of_row: pa.Array | None,
        named: pa.Array | None,
        routes: Callable[[], pa.Int64Array],
    ) -> pa.Int64Array:
        """Return the number of each row's partition."""
        partitions = None
        if named is not None:
            self._check_named(topics, topic_of_row, named)
        if named is None or named.null_count:
            counts = [self._partition_count(topic, None) for topic in topics]
            partitions = _modulo(routes(), _per_row(counts, topic_of_row))
        if named is not None:
            partitions = named if partitions is None else pc.coalesce(named, partitions)
        bases = [self.places.base(topic) for topic in topics]
        return pc.add(partitions, _per_row(bases, topic_of_row))

    def _check_named(self, topics: list[str], topic_of_row: pa.Array | None, named: pa.Array) -> None:
        least, most = (_maxima(topic_of_row, len(topics), column) for column in (pc.negate(named), named))
        for topic, negated, highest in zip(topics, least, most, strict=True):
            if negated is None or highest is None:
                continue
            count = self._partition_count(topic, max(highest, 0))
            for partition in (-negated, highest):
                if not 0 <= partition < count:
                    raise UnknownPartitionError(f"{topic} has partitions 0 to {count - 1}, not {partition}")

    def _routes(
        self,
        values: pa.BinaryArray,
        keys: pa.BinaryArray | None,
        packed: pa.BinaryArray | None,
        hashes: pa.FixedSizeBinaryArray,
    ) -> pa.Int64Array:
        """Return the number that, modulo the number of partitions, is the partition of each row that names none."""

        # by contents, not in turn, because the row must go to the same partition when it is computed again
        def by_contents() -> pa.Int64Array:
            return _numbers(crc32, _contents(values, packed)) if self._spreads_by_crc else first_words(hashes)

        if keys is None:
            return by_contents()
        has_key = pc.is_valid(keys) if self._is_empty_a_key else pc.greater(pc.binary_length(keys).fill_null(0), 0)
        if not pc.any(has_key).as_py():
            return by_contents()
        by_key = _numbers(self._key_hash, keys)
        if pc.all(has_key).as_py():
            return by_key
        return pc.if_else(has_key, by_key, by_contents())


def _contents(values: pa.BinaryArray, packed: pa.BinaryArray | None) -> pa.BinaryArray:
    return values if packed is None else join([values, packed])


def _numbers(hash_of: Callable[[bytes], int], column: pa.BinaryArray) -> pa.Int64Array:
    found = array("q", map(hash_of, cells_of(column)))
    return pa.Array.from_buffers(pa.int64(), len(found), [None, pa.py_buffer(found)])


def _per_row(of_topic: list[int], topic_of_row: pa.Array | None) -> pa.Scalar | pa.Int64Array:
    if topic_of_row is None:
        return pa.scalar(of_topic[0], pa.int64())
    return pa.array(of_topic, pa.int64()).take(topic_of_row)


def _maxima(topic_of_row: pa.Array | None, count: int, numbers: pa.Array) -> list[int | None]:
    """Return the largest number of each topic's rows, or None for those without one."""
    if topic_of_row is None:
        return [pc.max(numbers).as_py()]
    table = pa.table({"topic": topic_of_row, "number": numbers}).group_by("topic", use_threads=False)
    found: Mapping[int, int | None] = dict(
        zip(
            *(
                column.to_pylist()
                for column in table.aggregate([("number", "max")]).select(["topic", "number_max"]).columns
            ),
            strict=True,
        )
    )
    return [found.get(number) for number in range(count)]


def _modulo(numbers: pa.Int64Array, count: pa.Scalar | pa.Int64Array) -> pa.Int64Array:
    return pc.subtract(numbers, pc.multiply(pc.divide(numbers, count), count))


def _floor_divided(numbers: pa.Int64Array, divisor: int) -> pa.Int64Array:
    by = pa.scalar(divisor, pa.int64())
    truncated = pc.divide(numbers, by)
    return pc.subtract(truncated, pc.greater(pc.multiply(truncated, by), numbers).cast(pa.int64()))


def _sum(first: pa.Array, *others: pa.Array) -> pa.Array:
    for other in others:
        first = pc.add(first, other)
    return first


def whole_numbers(column: pa.Array) -> pa.Int64Array:
    """Return a column of whole numbers or times as 64-bit numbers, times in microseconds."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz=column.type.tz))
    return column.cast(pa.int64())


def _binary(column: pa.Array) -> pa.BinaryArray:
    return column if column.type == pa.binary() else column.cast(pa.binary())


def _headers(column: pa.Array) -> pa.ListArray:
    """Return headers as lists of pairs of binaries, whatever their fields' names and nullability are."""
    pairs = column.flatten()
    names, values = (_binary(field) for field in pairs.flatten())
    counts = pc.list_value_length(column)
    ends = pc.cumulative_sum(counts.fill_null(0).cast(pa.int32()))
    starts = pa.concat_arrays([pa.array([0], pa.int32()), ends])
    fields = list(HEADERS_TYPE.value_type)
    return pa.ListArray.from_arrays(starts, pa.StructArray.from_arrays([names, values], fields=fields)).cast(
        HEADERS_TYPE
    )
