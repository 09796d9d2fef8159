from __future__ import annotations

import random
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    Row,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from raftmq.client.producer.partitioner import murmur2_partition
from raftmq.errors import RecordTooLargeError, UnknownPartitionError
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.sink import batch_writer, stream_writer
from raftmq.spark.sink_chunks import chunks_of_batches, chunks_of_rows
from raftmq.spark.sink_columns import NO_TIME, RowBuilder, SinkColumns, check_schema, pack_headers, unpack_headers
from raftmq.spark.sink_errors import InvalidSchemaError
from raftmq.spark.sink_fields import HEADERS_TYPE, TIMES, WHOLE
from raftmq.spark.sink_options import SinkOptions, read_sink_options

from tests.support.spark.columns import fields

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
VALUE = StructType([StructField("value", StringType())])


def options(**given: str) -> SinkOptions:
    return read_sink_options({"bootstrap.servers": "h:1", **given})


def columns_of(ddl: str, found: SinkOptions | None = None) -> SinkColumns:
    return check_schema(fields(ddl), found or options(topic="t"))


def rows_of(
    batch: pa.RecordBatch, ddl: str, found: SinkOptions, partitions: int = 4, record_bytes_max: int = 1 << 20
) -> list[tuple[object, ...]]:
    columns = columns_of(ddl, found)
    builder = RowBuilder(columns, found, lambda _topic, _partition: partitions, lambda _topic: record_bytes_max)
    return [row for chunk in chunks_of_batches([batch], columns) for row in builder.rows(chunk)[0]]


def test_columns_are_found_by_name_in_any_case_and_order():
    found = columns_of("other double, Value string, KEY binary, partition int, topic string")
    assert (found.value, found.key, found.partition, found.topic, found.headers) == (1, 2, 3, 4, None)
    assert columns_of("value binary, headers array<struct<key:string,value:binary>>").headers == 1


@pytest.mark.parametrize(
    ("ddl", "given", "says"),
    [
        ("key string", {"topic": "t"}, "no column 'value'"),
        ("value int", {"topic": "t"}, "'value' is string or binary, not int"),
        ("value string, key double", {"topic": "t"}, "'key' is string or binary, not double"),
        ("value string, partition string", {"topic": "t"}, "'partition' is a whole number, not string"),
        ("value string, headers map<string,binary>", {"topic": "t"}, "'headers' is array"),
        ("value string, topic int", {"topic": "t"}, "'topic' is string, not int"),
        ("value string", {}, "option topic"),
        ("value string, VALUE string", {"topic": "t"}, "twice"),
        ("value string, at string", {"topic": "t", "timestampColumn": "at"}, "'at' is a timestamp, not string"),
        ("value string", {"topic": "t", "orderColumn": "n"}, "orderColumn names 'n'"),
    ],
)
def test_a_schema_that_cannot_be_written_is_refused_with_the_reason(ddl, given, says):
    with pytest.raises(InvalidSchemaError) as raised:
        columns_of(ddl, options(**given))
    assert says in str(raised.value)


@pytest.mark.parametrize(
    "given",
    [
        {"compression.type": "brotli"},
        {"writerName": "x" * 201, "writerEpoch": "1"},
        {"delivery": "sometimes"},
        {"partitioner": "sticky"},
        {"batchRecords": "0"},
        {"kafka.security.protocol": "SSL"},
    ],
)
def test_invalid_or_incomplete_options_are_refused(given):
    with pytest.raises(InvalidOptionError):
        options(**given)


@pytest.mark.parametrize("given", [{"writerName": "a"}, {"writerEpoch": "1"}])
def test_a_batch_write_needs_both_the_name_and_the_epoch_of_its_writer(given):
    with pytest.raises(InvalidOptionError, match="set both, or neither"):
        batch_writer({"bootstrap.servers": "h:1", "topic": "t", **given}, VALUE, overwrite=False)


def test_the_batches_of_a_query_have_their_own_epochs():
    with pytest.raises(InvalidOptionError, match="writerEpoch is for batch writes"):
        stream_writer(
            {"bootstrap.servers": "h:1", "topic": "t", "writerName": "a", "writerEpoch": "1"},
            VALUE,
            overwrite=False,
        )


def test_rows_get_their_partitions_from_the_column_the_key_or_their_contents():
    batch = pa.record_batch(
        {
            "value": pa.array([b"a", b"b", b"c", None], pa.binary()),
            "key": pa.array(["k", None, "k", ""], pa.string()),
            "partition": pa.array([None, None, 3, None], pa.int32()),
        }
    )
    ddl = "value binary, key string, partition int"
    rows = rows_of(batch, ddl, options(topic="t"))
    assert [row[1] for row in rows] == [crc32(b"k") % 4, crc32(b"b") % 4, 3, 0]
    assert [(row[3], row[4], row[5], row[6]) for row in rows] == [
        (True, b"k", True, b"a"),
        (False, b"", True, b"b"),
        (True, b"k", True, b"c"),
        (True, b"", False, b""),
    ]
    murmur = rows_of(batch, ddl, options(topic="t", partitioner="murmur2"))
    assert [row[1] for row in murmur] == [murmur2_partition(b"k", 4), crc32(b"b") % 4, 3, murmur2_partition(b"", 4)]


def test_the_topic_option_overrides_the_column_and_a_null_topic_is_refused():
    batch = pa.record_batch({"value": pa.array(["a", "b"]), "topic": pa.array(["x", None])})
    assert [row[0] for row in rows_of(batch, "value string, topic string", options(topic="t"))] == [b"t", b"t"]
    with pytest.raises(InvalidSchemaError, match="null"):
        rows_of(batch, "value string, topic string", options())


@pytest.mark.parametrize("partition", [-1, 4])
def test_a_partition_that_does_not_exist_is_refused(partition):
    batch = pa.record_batch({"value": pa.array(["a"]), "partition": pa.array([partition])})
    with pytest.raises(UnknownPartitionError):
        rows_of(batch, "value string, partition bigint", options(topic="t"))


@pytest.mark.parametrize("ddl", ["value binary", "value binary, partition bigint"])
def test_a_row_above_the_limit_of_its_topic_is_refused(ddl):
    columns = {"value": pa.array([bytes((2 << 20) - 16)]), "partition": pa.array([0])}
    batch = pa.record_batch({name: columns[name] for name in ("value", "partition") if name in ddl})
    for bytes_max in (1 << 20, (2 << 20) - 1):
        with pytest.raises(RecordTooLargeError, match=f"at most {bytes_max - 16} are allowed"):
            rows_of(batch, ddl, options(topic="t"), record_bytes_max=bytes_max)
    assert len(rows_of(batch, ddl, options(topic="t"), record_bytes_max=2 << 20)) == 1


def test_rows_and_arrow_batches_give_the_same_records():
    """PySpark 4.0 gives a stream's sink rows, and later versions give it Arrow. A query that is upgraded must get the same digests."""
    source = random.Random(5)
    ddl = "value binary, key string, headers array<struct<key:string,value:binary>>, at timestamp, n bigint"
    at = [None, 0, 1_700_000_000_123_456]
    cells = [
        {
            "value": source.choice([None, b"", source.randbytes(5)]),
            "key": source.choice([None, "", "ключ"]),
            "headers": source.choice([None, [], [{"key": "a", "value": b"1"}, {"key": "", "value": None}]]),
            "at": source.choice(at),
            "n": source.randint(-5, 5),
        }
        for _ in range(50)
    ]
    found = options(topic="t", timestampColumn="at", orderColumn="n")
    schema = pa.schema(
        [
            ("value", pa.binary()),
            ("key", pa.string()),
            ("headers", HEADERS),
            ("at", pa.timestamp("us", tz="UTC")),
            ("n", pa.int64()),
        ]
    )
    batch = pa.RecordBatch.from_pylist(cells, schema=schema)
    expected = rows_of(batch, ddl, found)
    columns = columns_of(ddl, found)
    builder = RowBuilder(columns, found, lambda _topic, _partition: 4, lambda _topic: 1 << 20)
    spark_rows = [
        Row(
            value=None if cell["value"] is None else bytearray(cell["value"]),
            key=cell["key"],
            headers=[Row(**pair) for pair in cell["headers"]] if cell["headers"] is not None else None,
            at=batch.column("at")[number].as_py(),
            n=cell["n"],
        )
        for number, cell in enumerate(cells)
    ]
    assert [row for chunk in chunks_of_rows(spark_rows, columns) for row in builder.rows(chunk)[0]] == expected
    assert {row[8] for row in expected} == {NO_TIME, 0, 1_700_000_000_123}


def test_packed_headers_unpack_to_the_same_headers():
    pairs = [("a", b"1"), ("", None), ("ü" * 300, b""), ("a", b"2")]
    packed = pack_headers([{"key": name, "value": value} for name, value in pairs])
    assert unpack_headers(packed) == tuple(pairs)
    assert (pack_headers(None), pack_headers([]), unpack_headers(b"")) == (b"", b"", ())
    with pytest.raises(InvalidSchemaError):
        pack_headers([{"key": None, "value": b""}])


def test_the_names_of_types_equal_those_of_spark():
    pair = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
    assert ArrayType(pair).simpleString() == HEADERS_TYPE
    assert {kind().simpleString() for kind in (ByteType, ShortType, IntegerType, LongType)} == WHOLE
    assert {kind().simpleString() for kind in (TimestampType, TimestampNTZType)} == TIMES


def test_a_column_offset_orders_the_rows_unless_another_one_is_named():
    ddl = "value string, offset bigint, n int"
    assert columns_of(ddl, options(topic="t")).order == 1
    assert columns_of(ddl, options(topic="t", orderColumn="n")).order == 2
    assert columns_of("value string, offset string", options(topic="t")).order is None
