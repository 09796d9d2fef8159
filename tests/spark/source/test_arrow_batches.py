"""From batches to Arrow columns: the rows equal those of `decode_records` for every layout of a batch."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.batch_header import CODEC_LZ4, CODEC_NONE, parse_header
from raftmq.client.codec.batch import decode_records, encode_body
from raftmq.errors import CorruptBatchError
from raftmq.spark.base.schema import COLUMNS, arrow_schema, source_schema
from raftmq.spark.source import arrow_batches
from raftmq.spark.source.arrow_batches import TIMESTAMP_MS_MAX, record_batches
from raftmq.spark.source.planning import OffsetRange
from raftmq.spark.source.range_fetch import FetchedBatch
from raftmq.types import Record

SCHEMA = arrow_schema(source_schema(None, include_headers=True))
APPENDED_MS = 1_700_000_000_123
Row = tuple[Any, ...]
CELLS = st.one_of(st.none(), st.binary(max_size=9))
HEADERS = st.lists(st.tuples(st.text(max_size=3), CELLS), max_size=3).map(tuple)
ROWS = st.lists(st.tuples(CELLS, CELLS, st.integers(-(1 << 40), 1 << 45), HEADERS), min_size=1, max_size=20)


def batch_of(rows: Sequence[Row], codec: int = CODEC_NONE) -> bytes:
    keys, values, times, headers = (list(column) for column in zip(*rows, strict=True))
    return encode_body(values, keys, times, headers, codec).seal()


def fetched(data: bytes, base_offset: int, first: int = 0, end: int | None = None) -> FetchedBatch:
    header = parse_header(data)
    return FetchedBatch(base_offset, header, data, first, header.record_count if end is None else end, APPENDED_MS)


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[Row]:
    found = []
    for batch in batches:
        assert batch.schema.equals(SCHEMA)
        batch.validate(full=True)
        for row in batch.to_pylist():
            headers = row["headers"] and tuple((header["key"], header["value"]) for header in row["headers"])
            micros = round(row["timestamp"].timestamp() * 1000)
            found.append(
                (
                    row["key"],
                    row["value"],
                    row["topic"],
                    row["partition"],
                    row["offset"],
                    micros,
                    row["timestampType"],
                    headers,
                )
            )
    return found


def expected(records: list[Record]) -> list[Row]:
    return [(r.key, r.value, r.topic, r.partition, r.offset, r.timestamp, 0, r.headers or None) for r in records]


@given(
    st.lists(ROWS, min_size=1, max_size=4), st.sampled_from([CODEC_NONE, CODEC_LZ4]), st.integers(0, 1 << 40), st.data()
)
def test_columns_equal_the_decoded_records(
    batches: list[list[Row]], codec: int, base_offset: int, data: st.DataObject
) -> None:
    """The range may begin within the first batch and end within the last one."""
    made, records = [], []
    at = base_offset
    for number, rows in enumerate(batches):
        encoded = batch_of(rows, codec)
        first = data.draw(st.integers(0, len(rows) - 1)) if number == 0 else 0
        end = data.draw(st.integers(first + 1, len(rows))) if number == len(batches) - 1 else len(rows)
        made.append(fetched(encoded, at, first, end))
        records += decode_records(encoded, parse_header(encoded), "t", 3, at)[first:end]
        at += len(rows)
    range_ = OffsetRange("t", 1, 3, base_offset, at)
    assert rows_of(record_batches(iter(made), range_, SCHEMA)) == expected(records)


def test_small_batches_are_combined_and_a_gap_separates_them() -> None:
    data = batch_of([(None, b"x", 5, ())] * 10)
    batches = [fetched(data, base) for base in (0, 10, 20, 100, 110)]
    found = list(record_batches(iter(batches), OffsetRange("t", 1, 0, 0, 200), SCHEMA))
    assert [batch.num_rows for batch in found] == [30, 20]
    assert found[1].column("offset").to_pylist() == list(range(100, 120))


def test_combined_batches_end_at_the_target_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow_batches, "ROWS_TARGET", 20)
    data = batch_of([(None, b"x", 5, ())] * 10)
    batches = [fetched(data, base) for base in range(0, 50, 10)]
    found = list(record_batches(iter(batches), OffsetRange("t", 1, 0, 0, 50), SCHEMA))
    assert [batch.num_rows for batch in found] == [20, 20, 10]


@pytest.mark.parametrize("others", [[], [0]])
def test_a_time_beyond_the_range_of_arrow_becomes_the_nearest_time(others: list[int]) -> None:
    times = [(1 << 63) - 1, *others]
    data = batch_of([(None, b"x", time, ()) for time in times])
    [batch] = record_batches(iter([fetched(data, 0)]), OffsetRange("t", 1, 0, 0, 9), SCHEMA)
    micros = batch.column("timestamp").view(pa.int64()).to_pylist()
    assert micros == [TIMESTAMP_MS_MAX * 1000, *others]


def test_each_column_can_be_read_alone() -> None:
    data = batch_of([(b"k", b"x", 5, ())])
    for name in COLUMNS:
        schema = arrow_schema(source_schema([name], include_headers=False))
        [batch] = record_batches(iter([fetched(data, 7)]), OffsetRange("t", 1, 0, 0, 9), schema)
        assert batch.schema.equals(schema)
        assert batch.num_columns == 1


def test_records_have_the_append_times_of_their_batches() -> None:
    data = batch_of([(None, b"x", 5, ())] * 3)
    batches = [fetched(data, 0, first=1)._replace(append_time_ms=7), fetched(data, 3, end=2)]
    schema = arrow_schema(source_schema(["appendTime"], include_headers=False))
    [batch] = record_batches(iter(batches), OffsetRange("t", 1, 0, 1, 5), schema)
    micros = batch.column("appendTime").view(pa.int64()).to_pylist()
    assert micros == [7_000, 7_000, APPENDED_MS * 1000, APPENDED_MS * 1000]


def test_a_header_name_that_is_not_utf_8_is_damage() -> None:
    data = bytearray(batch_of([(None, b"x", 5, (("name", b"v"),))]))
    data[data.index(b"name")] = 0xFF
    with pytest.raises(CorruptBatchError, match=r"offsets 4\.\.4 of t/0"):
        list(record_batches(iter([fetched(bytes(data), 4)]), OffsetRange("t", 1, 0, 0, 9), SCHEMA))


def test_a_truncated_body_is_damage() -> None:
    data = batch_of([(None, b"x", 5, ())])
    with pytest.raises(CorruptBatchError, match=r"offsets 4\.\.4 of t/0"):
        list(record_batches(iter([fetched(data[:-8], 4)]), OffsetRange("t", 1, 0, 0, 9), SCHEMA))
