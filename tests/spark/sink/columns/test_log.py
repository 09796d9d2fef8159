from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    ByteType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)
from raftmq.spark.errors import InvalidOptionError, InvalidSchemaError
from raftmq.spark.sink.columns.fields import HEADERS_TYPE, TIMES, WHOLE
from raftmq.spark.sink.columns.log import SinkColumns, check_schema
from raftmq.spark.sink.options import SinkOptions, read_sink_options
from raftmq.spark.sink.writers import batch_writer, stream_writer

from tests.support.spark.columns import fields

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
VALUE = StructType([StructField("value", StringType())])


def options(**given: str) -> SinkOptions:
    return read_sink_options({"bootstrap.servers": "h:1", **given})


def columns_of(ddl: str, found: SinkOptions | None = None) -> SinkColumns:
    return check_schema(fields(ddl), found or options(topic="t"))


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
