"""Columns and cells of a write to a queue topic: found, converted, routed, or refused with the column's name."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any
from zlib import crc32

import pyarrow as pa
import pytest
from pyspark.sql.types import Row
from raftmq.client.connection.resolver import TopicInfo
from raftmq.errors import RecordTooLargeError
from raftmq.message_checks import HEADERS_BYTES_MAX, TIME_MAX_MS
from raftmq.message_headers import decode_headers
from raftmq.spark.errors import InvalidOptionError, InvalidSchemaError
from raftmq.spark.sink.columns.chunks import NULL_ORDER, batches_of_rows, chunk_of
from raftmq.spark.sink.columns.queue import DUE_NOW, QueueColumns, QueueRow, QueueRowBuilder, check_queue_schema
from raftmq.spark.sink.options import read_sink_options

from tests.support.spark.columns import fields

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
DDL = (
    "value binary, key string, id string, tenant string, priority int, not_before timestamp,"
    " headers array<struct<key:string,value:binary>>, n bigint"
)
SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.string()),
        ("id", pa.string()),
        ("tenant", pa.string()),
        ("priority", pa.int32()),
        ("not_before", pa.timestamp("us", tz="UTC")),
        ("headers", HEADERS),
        ("n", pa.int64()),
    ]
)
NOTHING: dict[str, Any] = dict.fromkeys(SCHEMA.names)


def columns_of(ddl: str = DDL, **given: str) -> QueueColumns:
    return check_queue_schema(fields(ddl), read_sink_options({"bootstrap.servers": "h:1", "topic": "q", **given}))


def builder(
    columns: QueueColumns, partitions: int = 4, *, is_ordered: bool = False, bytes_max: int = 1000
) -> QueueRowBuilder:
    info = TopicInfo(
        "q", 1, tuple(range(partitions)), kind="queue", is_ordered_by_key=is_ordered, message_bytes_max=bytes_max
    )
    return QueueRowBuilder(columns, info, lambda _topic, _partition: partitions)


def rows_of(*cells: dict[str, Any], is_ordered: bool = False, **given: str) -> list[QueueRow]:
    batch = pa.RecordBatch.from_pylist([NOTHING | {"value": b"v"} | row for row in cells], schema=SCHEMA)
    columns = columns_of(**given)
    chunk = chunk_of(batch, columns)
    return builder(columns, is_ordered=is_ordered).rows(chunk)[0]


def test_columns_are_found_by_name_and_others_are_ignored() -> None:
    found = columns_of("state string, VALUE string, Tenant string, due_at timestamp, not_before timestamp_ntz")
    assert (found.value, found.tenant, found.not_before) == (1, 2, 4)
    assert (found.key, found.id, found.priority, found.headers, found.order) == (None, None, None, None, None)
    assert found.used == {1, 2, 4}


@pytest.mark.parametrize(
    ("ddl", "says"),
    [
        ("key string", "no column 'value'"),
        ("value int", "'value' is string or binary, not int"),
        ("value string, id bigint", "'id' is string, not bigint"),
        ("value string, tenant binary", "'tenant' is string, not binary"),
        ("value string, priority double", "'priority' is a whole number, not double"),
        ("value string, not_before bigint", "'not_before' is a timestamp, not bigint"),
        ("value string, headers map<string,binary>", "'headers' is array"),
        ("value string, partition int", "'partition' is for log topics, and 'q' is a queue topic"),
        ("value string, ID string, id string", "twice"),
    ],
)
def test_a_schema_that_a_queue_topic_does_not_take_is_refused_with_the_column(ddl: str, says: str) -> None:
    with pytest.raises(InvalidSchemaError) as raised:
        columns_of(ddl)
    assert says in str(raised.value)


@pytest.mark.parametrize(("option", "value"), [("timestampColumn", "not_before"), ("partitioner", "murmur2")])
def test_an_option_for_log_topics_is_refused(option: str, value: str) -> None:
    with pytest.raises(InvalidOptionError, match=f"{option}.*'q' is a queue topic"):
        columns_of(**{option: value})


def test_a_row_has_all_fields_of_its_message() -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    full, plain = rows_of(
        {
            "key": "k",
            "id": "i",
            "tenant": "acme.eu",
            "priority": -5,
            "not_before": due,
            "headers": [{"key": "h", "value": b"1"}, {"key": "", "value": None}],
            "n": 7,
        },
        {},
        orderColumn="n",
    )
    assert full[2:9] == (7, b"k", b"i", b"acme.eu", -5, round(due.timestamp() * 1000), b"v")
    assert decode_headers(full[9]) == (("h", b"1"), ("", None))
    assert plain[2:] == (NULL_ORDER, b"", b"", b"", 0, DUE_NOW, b"v", b"")
    assert {row[0] for row in (full, plain)} == {b"q"}


def test_a_due_time_is_rounded_up_so_that_no_message_is_early() -> None:
    times = [0, 1, 1000, 1001]
    rows = rows_of(*({"not_before": pa.scalar(time, pa.timestamp("us", tz="UTC")).as_py()} for time in times))
    assert [row[7] for row in rows] == [0, 1, 1, 2]


def test_messages_are_routed_by_key_in_an_ordered_topic_else_by_id_else_by_contents() -> None:
    cells = [{"key": "k", "id": "i"}, {"key": "k"}, {"id": "i"}, {"value": b"w"}]
    by_key, by_id, by_contents = (crc32(text) % 4 for text in (b"k", b"i", b"w"))
    assert len({by_key, by_id, by_contents, crc32(b"v") % 4}) >= 3
    assert [row[1] for row in rows_of(*cells, is_ordered=True)] == [by_key, by_key, by_id, by_contents]
    assert [row[1] for row in rows_of(*cells)] == [by_id, crc32(b"v") % 4, by_id, by_contents]


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({"value": None}, "value is null"),
        ({"key": ""}, "'key'.*0 bytes"),
        ({"key": "k" * 250}, "'key'.*250 bytes"),
        ({"id": ""}, "'id'.*0 bytes"),
        ({"id": "ü" * 125}, "'id'.*250 bytes"),
        ({"tenant": "acme..eu"}, "'tenant'.*empty level"),
        ({"tenant": "a.b.c.d.e.f.g.h.i"}, "'tenant'.*9 levels"),
        ({"not_before": datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)}, "'not_before'.*1970"),
        ({"headers": [{"key": None, "value": b""}]}, "header's key is null"),
    ],
)
def test_a_cell_that_no_message_can_have_is_refused_with_the_column(cells: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSchemaError, match=says):
        rows_of({}, cells)


@pytest.mark.parametrize("priority", [-(1 << 31) - 1, 1 << 31])
def test_a_priority_beyond_32_bits_is_refused(priority: int) -> None:
    columns = columns_of("value string, priority bigint")
    with pytest.raises(InvalidSchemaError, match=f"'priority' has {priority}"):
        builder(columns).rows([[b"v", b"v"], [0, priority]])


def test_a_time_after_the_year_9999_is_refused() -> None:
    columns = columns_of("value string, not_before timestamp")
    assert builder(columns).rows([[b"v"], [TIME_MAX_MS * 1000]])[0][0][7] == TIME_MAX_MS
    with pytest.raises(InvalidSchemaError, match="'not_before'"):
        builder(columns).rows([[b"v"], [TIME_MAX_MS * 1000 + 1]])


def test_bytes_that_are_not_utf8_are_refused_as_an_id() -> None:
    """Spark casts any bytes to a string."""
    columns = columns_of("value string, id string")
    with pytest.raises(InvalidSchemaError, match=r"'id'.*UTF-8"):
        builder(columns).rows([[b"v"], [b"\xff"]])


def test_a_message_above_the_limit_of_its_topic_is_refused() -> None:
    assert len(rows_of({"value": bytes(1000)})) == 1
    with pytest.raises(RecordTooLargeError, match="1001 bytes, but at most 1000"):
        rows_of({"value": bytes(1001)})
    with pytest.raises(RecordTooLargeError, match=f"at most {HEADERS_BYTES_MAX}"):
        rows_of({"headers": [{"key": "h", "value": bytes(HEADERS_BYTES_MAX)}]})


def test_rows_and_arrow_batches_give_the_same_messages() -> None:
    """PySpark 4.0 gives a stream's sink rows, and later versions give it Arrow. A query that is upgraded must get the same digests."""
    rng = random.Random(5)
    cells = [
        {
            "value": rng.randbytes(5),
            "key": rng.choice([None, "ключ"]),
            "id": rng.choice([None, f"id {number}"]),
            "tenant": rng.choice([None, "", "acme"]),
            "priority": rng.choice([None, -3, 3]),
            "not_before": rng.choice([None, datetime(2030, 1, 1, 0, 0, 0, 123_456, tzinfo=UTC)]),
            "headers": rng.choice([None, [], [{"key": "a", "value": b"1"}, {"key": "", "value": None}]]),
            "n": rng.randint(-5, 5),
        }
        for number in range(50)
    ]
    columns = columns_of(orderColumn="n")
    spark_rows = [
        Row(
            **cell
            | {
                "value": bytearray(cell["value"]),
                "headers": None if cell["headers"] is None else [Row(**pair) for pair in cell["headers"]],
            }
        )
        for cell in cells
    ]
    (batch,) = batches_of_rows(spark_rows, fields(DDL))
    chunk = chunk_of(batch, columns)
    assert builder(columns, is_ordered=True).rows(chunk)[0] == rows_of(*cells, is_ordered=True, orderColumn="n")
