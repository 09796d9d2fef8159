"""Rows that are read back are recognized: their hashes are those with which they were written."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.batch_header import parse_header
from raftmq.client.codec.batch import decode_columns
from raftmq.spark.sink.columns.log import check_schema
from raftmq.spark.sink.options import read_sink_options
from raftmq.spark.sink.rows.log_batches import LogBatches
from raftmq.spark.sink.rows.log_rows import HASH, HEADERS, KEY, TIME, VALUE, LogRowBuilder, row_at
from raftmq.spark.sink.rows.partition_writer import Identity
from raftmq.spark.sink.rows.written_rows import contents_of, hashes_of

from tests.support.spark.columns import fields

BATCH_TIME_MS = 1_700_000_000_000
SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.string()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
Cell = dict[str, Any]  # Any: a cell of any column

cells = st.fixed_dictionaries(
    {
        "value": st.none() | st.binary(max_size=20),
        "key": st.none() | st.text(max_size=5),
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"key": st.text(max_size=4), "value": st.none() | st.binary(max_size=4)}), max_size=3
        ),
        "timestamp": st.none() | st.integers(0, 4_000_000_000_000_000),
    }
)


def written(rows: list[Cell], names: list[str], codec: str) -> tuple[pa.RecordBatch, bytes]:
    """Return the rows of a task and the batch that they become."""
    kinds = {
        "value": "binary",
        "key": "string",
        "headers": "array<struct<key:string,value:binary>>",
        "timestamp": "timestamp",
    }
    given_options = {"bootstrap.servers": "h:1", "topic": "t", "compression.type": codec}
    if "timestamp" in names:
        given_options["timestampColumn"] = "timestamp"
    options = read_sink_options(given_options)
    columns = check_schema(fields(", ".join(f"{name} {kinds[name]}" for name in names)), options)
    builder = LogRowBuilder(columns, options, lambda _topic, _partition: 1, lambda _topic: 1 << 20)
    schema = pa.schema([SCHEMA.field(name) for name in names])
    batch = pa.RecordBatch.from_pylist([{name: row[name] for name in names} for row in rows], schema=schema)
    (found,) = builder.rows(batch)
    batches = LogBatches(options.codec, 10_000, None if "timestamp" in names else BATCH_TIME_MS, lambda: BATCH_TIME_MS)
    return found, batches.seal(found, Identity(7, 3), 0)


@pytest.mark.parametrize("codec", ["none", "lz4"])
@given(st.lists(cells, min_size=1, max_size=12), st.sets(st.sampled_from(["key", "headers", "timestamp"])))
def test_rows_that_were_read_back_have_the_hashes_with_which_they_were_written(
    codec: str, rows: list[Cell], others: set[str]
):
    names = ["value", *sorted(others)]
    given_rows, sealed = written(rows, names, codec)
    has_times = "timestamp" in names
    contents = contents_of(decode_columns(sealed, parse_header(sealed)), has_times=has_times)

    read = hashes_of(contents, BATCH_TIME_MS)

    assert read == hashes_of(given_rows, BATCH_TIME_MS)
    if not has_times or not given_rows.column(TIME).null_count:
        assert read == given_rows.column(HASH).to_pylist()


@given(st.lists(cells, min_size=1, max_size=12))
def test_rows_that_were_read_back_can_be_written_again(rows: list[Cell]):
    given_rows, sealed = written(rows, ["value", "key", "headers", "timestamp"], "none")
    contents = contents_of(decode_columns(sealed, parse_header(sealed)), has_times=True)

    again = row_at(0, contents, given_rows.schema)

    assert again.column(VALUE).equals(given_rows.column(VALUE))
    assert again.column(KEY).equals(given_rows.column(KEY))
    assert [headers or [] for headers in again.column(HEADERS).to_pylist()] == [
        headers or [] for headers in given_rows.column(HEADERS).to_pylist()
    ]
    assert again.column(TIME).equals(given_rows.column(TIME).fill_null(BATCH_TIME_MS))
    assert again.column("size").equals(given_rows.column("size"))
