"""The rows of log topics, column by column, beside a twin that works row by row."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import groupby, pairwise
from struct import pack
from typing import Any, NamedTuple
from zlib import crc32

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql.types import Row
from raftmq.batch_header import parse_header
from raftmq.client.base.settings import BATCH_FRAME_BYTES
from raftmq.client.codec.batch import encode_body
from raftmq.client.producer.partitioner import PARTITIONERS, murmur2_partition
from raftmq.errors import RecordTooLargeError, UnknownPartitionError
from raftmq.spark.errors import InvalidSchemaError
from raftmq.spark.sink.columns.chunks import batches_of_rows
from raftmq.spark.sink.columns.log import check_schema
from raftmq.spark.sink.ledger.batch_ledger import ROWS_DIGEST_BYTES
from raftmq.spark.sink.options import SinkOptions, read_sink_options
from raftmq.spark.sink.rows import log_rows
from raftmq.spark.sink.rows.log_batches import ROW_OVERHEAD_BYTES, LogBatches
from raftmq.spark.sink.rows.log_rows import LogRowBuilder
from raftmq.spark.sink.rows.log_sorter import LogSorter
from raftmq.spark.sink.rows.partition_writer import Identity

from tests.support.spark.columns import fields

COLUMNS = {
    "value": ("binary", pa.binary()),
    "key": ("string", pa.string()),
    "headers": (
        "array<struct<key:string,value:binary>>",
        pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
    ),
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "n": ("bigint", pa.int64()),
    "at": ("timestamp", pa.timestamp("us", tz="UTC")),
}
COUNTS = {"t": 5, "ü": 3, "one": 1}
IDENTITY = Identity(7, 3)
BATCH_TIME = 1_700_000_000_000
Cell = dict[str, Any]  # Any: a cell of any column


def options(**given: str) -> SinkOptions:
    return read_sink_options({"bootstrap.servers": "h:1", **given})


def batch_of_cells(cells: Sequence[Cell], names: Sequence[str]) -> pa.RecordBatch:
    schema = pa.schema([(name, COLUMNS[name][1]) for name in names])
    return pa.RecordBatch.from_pylist([{name: cell[name] for name in names} for cell in cells], schema=schema)


def ddl_of(names: Sequence[str]) -> str:
    return ", ".join(f"{name} {COLUMNS[name][0]}" for name in names)


def builder_of(
    names: Sequence[str], found: SinkOptions, record_bytes_max: int = 1 << 20, *, by_crc: bool = False
) -> LogRowBuilder:
    columns = check_schema(fields(ddl_of(names)), found)
    return LogRowBuilder(
        columns,
        found,
        lambda topic, _partition: COUNTS[topic],
        lambda _topic: record_bytes_max,
        spreads_by_crc=by_crc,
    )


class Result(NamedTuple):
    """The output of a task: the batches of each partition, and the digest of its rows."""

    batches: dict[tuple[str, int], list[bytes]]
    digest: bytes
    spilled: int


def columnar(
    pieces: Sequence[Sequence[Cell]],
    names: Sequence[str],
    found: SinkOptions,
    memory_bytes: int = 1 << 30,
    bytes_max: int = 400,
    *,
    by_crc: bool = False,
) -> Result:
    builder = builder_of(names, found, by_crc=by_crc)
    batches = LogBatches(found.codec, found.batch_records_max, None if "at" in names else 5, lambda: BATCH_TIME)
    with closing(LogSorter(memory_bytes, builder.schema, builder.places)) as sorter:
        for cells in pieces:
            for rows in builder.rows(batch_of_cells(cells, names)):
                sorter.add(rows)
        digest = sorter.digest()
        written: dict[tuple[str, int], list[bytes]] = {}
        for topic, partition, rows in sorter.groups():
            sequence = 0
            for piece in batches.cut(rows, bytes_max):
                written.setdefault((topic, partition), []).append(batches.seal(piece, IDENTITY, sequence))
                sequence += len(piece)
        return Result(written, digest, sorter.spilled_runs)


class Plain(NamedTuple):
    """A row of the twin."""

    topic: str
    partition: int
    order: tuple[bool, int]
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    time_ms: int | None


def plain_rows(cells: Sequence[Cell], names: Sequence[str], found: SinkOptions, *, by_crc: bool = False) -> list[Plain]:
    """Work row by row, in the plainest way."""
    rows = []
    for full in cells:
        cell = {name: full[name] if name in names else None for name in COLUMNS}
        key = None if cell["key"] is None else cell["key"].encode()
        value = cell["value"]
        headers = tuple((pair["key"], pair["value"]) for pair in cell["headers"] or ())
        packed = b"".join(
            len(name.encode()).to_bytes(4, "little")
            + name.encode()
            + (b"\xff" * 4 if held is None else len(held).to_bytes(4, "little") + held)
            for name, held in headers
        )
        topic = found.topic or cell["topic"]
        partition = cell["partition"]
        if partition is None:
            if key or (key is not None and found.partitioner == "murmur2"):
                partition = PARTITIONERS[found.partitioner](key, COUNTS[topic])
            elif by_crc:
                partition = crc32(packed, crc32(value or b"")) % COUNTS[topic]
            else:
                at = 0 if "at" not in names else -(1 << 63) if cell["at"] is None else cell["at"] // 1000
                partition = partition_of(value, key, packed, at, COUNTS[topic])
        order = (cell["n"] is not None, cell["n"] or 0) if "n" in names else (True, 0)
        time_ms = (cell["at"] // 1000 if cell["at"] is not None else BATCH_TIME) if "at" in names else 5
        rows.append(Plain(topic, partition, order, key, value, headers, time_ms))
    return sorted(rows, key=lambda row: (row.topic, row.partition, row.order))


def partition_of(value: bytes | None, key: bytes | None, packed: bytes, time_ms: int, count: int) -> int:
    contents = (value or b"") + (key or b"") + packed + bytes([value is not None])
    contents += pack("<iiq", -1 if key is None else len(key), len(packed), time_ms)
    return int.from_bytes(blake2b(contents, digest_size=16).digest()[:4], "little") % count


def plain(
    cells: Sequence[Cell], names: Sequence[str], found: SinkOptions, bytes_max: int = 400, *, by_crc: bool = False
) -> Any:
    written: dict[tuple[str, int], list[bytes]] = {}
    rows = plain_rows(cells, names, found, by_crc=by_crc)
    for place, group in groupby(rows, key=lambda row: (row.topic, row.partition)):
        sequence = 0
        for piece in plain_pieces(list(group), found.batch_records_max, bytes_max):
            body = encode_body(
                [row.value for row in piece],
                [row.key for row in piece],
                [row.time_ms or 0 for row in piece],
                [row.headers for row in piece],
                found.codec,
            )
            written.setdefault(place, []).append(body.seal(IDENTITY.producer_id, IDENTITY.epoch, sequence))
            sequence += len(piece)
    return written


def plain_pieces(rows: list[Plain], records_max: int, bytes_max: int) -> Iterator[list[Plain]]:
    piece: list[Plain] = []
    size = 0
    for row in rows:
        headers = sum(8 + len(name.encode()) + len(held or b"") for name, held in row.headers)
        needed = len(row.key or b"") + len(row.value or b"") + headers + ROW_OVERHEAD_BYTES
        if piece and (len(piece) == records_max or size + needed > bytes_max):
            yield piece
            piece, size = [], 0
        piece.append(row)
        size += needed
    if piece:
        yield piece


cells_lists = st.lists(
    st.fixed_dictionaries(
        {
            "value": st.none() | st.binary(max_size=4) | st.just(b"v" * 300),
            "key": st.none() | st.text(max_size=3),
            "headers": st.none()
            | st.lists(
                st.fixed_dictionaries({"key": st.text(max_size=2), "value": st.none() | st.binary(max_size=2)}),
                max_size=2,
            ),
            "topic": st.sampled_from(sorted(COUNTS)),
            "partition": st.none() | st.just(0),
            "n": st.none() | st.integers(-3, 3),
            "at": st.none() | st.sampled_from([0, -1, -1500, 1_700_000_000_123_456]),
        }
    ),
    max_size=40,
)
names_lists = st.lists(st.sampled_from(sorted(set(COLUMNS) - {"value"})), unique=True).map(
    lambda names: ["value", *names]
)


@settings(max_examples=150, deadline=None)
@given(
    cells=cells_lists,
    names=names_lists,
    partitioner=st.sampled_from(["crc32", "murmur2"]),
    codec=st.sampled_from(["none", "lz4"]),
    memory_bytes=st.sampled_from([1, 300, 1 << 30]),
    cuts=st.lists(st.integers(0, 40), max_size=6),
    by_crc=st.booleans(),
)
def test_columns_give_the_batches_that_a_twin_makes_row_by_row(
    cells, names, partitioner, codec, memory_bytes, cuts, by_crc
):
    given_options = {"partitioner": partitioner, "compression.type": codec, "batchRecords": "7"}
    given_options |= {"orderColumn": "n"} if "n" in names else {}
    given_options |= {"timestampColumn": "at"} if "at" in names else {}
    given_options |= {} if "topic" in names else {"topic": "t"}
    found = options(**given_options)
    bounds = [0, *sorted(min(at, len(cells)) for at in cuts), len(cells)]
    pieces = [cells[start:end] for start, end in pairwise(bounds)]
    result = columnar(pieces, names, found, memory_bytes, by_crc=by_crc)
    assert result.batches == plain(cells, names, found, by_crc=by_crc)
    assert result.digest == columnar([cells], names, found, by_crc=by_crc).digest


@settings(max_examples=100, deadline=None)
@given(cells=cells_lists, other=cells_lists, names=names_lists, seed=st.randoms())
def test_digests_are_equal_exactly_if_the_rows_and_their_order_are(cells, other, names, seed):
    found = options(
        **({"timestampColumn": "at"} if "at" in names else {}) | ({} if "topic" in names else {"topic": "t"})
    )
    names = [name for name in names if name != "n"]
    shuffled = cells.copy()
    seed.shuffle(shuffled)
    digests = {id(rows): columnar([rows], names, found).digest for rows in (cells, other, shuffled)}
    sorted_rows = {id(rows): plain_rows(rows, names, found) for rows in (cells, other, shuffled)}
    for rows in (other, shuffled):
        one, two = digests[id(cells)], digests[id(rows)]
        first, second = sorted_rows[id(cells)], sorted_rows[id(rows)]
        assert (one == two) == (first == second)
        has_same_rows = sorted(map(repr, first)) == sorted(map(repr, second))
        assert (one[:ROWS_DIGEST_BYTES] == two[:ROWS_DIGEST_BYTES]) == has_same_rows


def test_many_rows_are_merged_from_files_in_order_and_stably():
    rng = random.Random(3)
    cells = [{**dict.fromkeys(COLUMNS), "value": b"%d" % number, "n": rng.randint(0, 40)} for number in range(3000)]
    found = options(topic="t", orderColumn="n", batchRecords="100")
    pieces = [cells[start : start + 100] for start in range(0, 3000, 100)]
    result = columnar(pieces, ["value", "n"], found, 20_000, 1 << 19)
    assert result.spilled > 3
    assert result.batches == plain(cells, ["value", "n"], found, 1 << 19)


def test_equal_contents_have_equal_digests_whichever_columns_there_are():
    """A frame that is read back, or a program that adds a column without values, does not change the rows."""
    cells = [{**dict.fromkeys(COLUMNS), "value": value} for value in (b"a", b"", None)]
    full = columnar([cells], ["value", "key", "headers", "partition"], options(topic="t"))
    assert columnar([cells], ["value"], options(topic="t")).digest == full.digest


def test_the_digest_is_the_same_in_every_process_and_version():
    program = (
        "import pyarrow as pa\n"
        "from raftmq.spark.sink.rows.hashes import content_hashes, pack_headers\n"
        "headers = pa.array([[(b'h', None), (b'', b'1')], None], pa.list_(pa.struct([('k', pa.binary()), ('v', pa.binary())])))\n"
        "found = content_hashes(pa.array([b'v', None]), pa.array([None, b'k']), pack_headers(headers), pa.array([-5, None]))\n"
        "print(*(cell.hex() for cell in found.to_pylist()))"
    )
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert found.split() == HASHES


HASHES = ["863aea32b7d6636633f606460b18e858", "56c292c850e4c416e2ae45ac4f84182c"]
"""Changed hashes would begin a generation for each batch that was begun by an earlier version: then change `LOG_DIGESTS`, too."""


def test_no_batch_exceeds_its_limit_when_every_part_of_its_rows_is_there():
    names = ["value", "key", "headers", "at"]
    bytes_max = 20_000
    cells = [
        {
            "value": None if n % 5 == 0 else b"",
            "key": None if n % 3 == 0 else "",
            "headers": [{"key": "", "value": None if n % 2 else b""}] * (n % 7),
            "at": n % 2 * 10**15,
        }
        for n in range(3000)
    ]
    written = columnar(
        [cells],
        names,
        options(topic="one", batchRecords="100000", timestampColumn="at"),
        bytes_max=bytes_max - BATCH_FRAME_BYTES,
    )
    [batches] = written.batches.values()
    assert len(batches) > 3
    assert max(map(len, batches)) <= bytes_max


def test_rows_get_their_partitions_from_the_column_the_key_or_their_contents():
    names = ["value", "key", "partition"]
    cells = [
        {"value": b"a", "key": "k", "partition": None},
        {"value": b"b", "key": None, "partition": None},
        {"value": b"c", "key": "k", "partition": 3},
        {"value": None, "key": "", "partition": None},
    ]

    def partitions(*, by_crc: bool = False, **given: str) -> list[int]:
        builder = builder_of(names, options(topic="t", **given), by_crc=by_crc)
        (rows,) = builder.rows(batch_of_cells(cells, names))
        return [builder.places.of(number)[1] for number in rows.column(log_rows.PLACE).to_pylist()]

    by_hash = partition_of(b"b", None, b"", 0, 5), partition_of(None, b"", b"", 0, 5)
    assert partitions() == [crc32(b"k") % 5, by_hash[0], 3, by_hash[1]]
    assert partitions(by_crc=True) == [crc32(b"k") % 5, crc32(b"b") % 5, 3, 0]
    assert partitions(partitioner="murmur2") == [
        murmur2_partition(b"k", 5),
        by_hash[0],
        3,
        murmur2_partition(b"", 5),
    ]


def test_rows_without_a_key_are_spread_evenly():
    cells = [{"value": b"%d" % number} for number in range(10_000)]
    builder = builder_of(["value"], options(topic="t"))
    (rows,) = builder.rows(batch_of_cells(cells, ["value"]))
    counts = Counter(builder.places.of(number)[1] for number in rows.column(log_rows.PLACE).to_pylist())
    assert sorted(counts) == list(range(5))
    assert max(counts.values()) < 2200


def test_the_topic_option_overrides_the_column_and_a_null_topic_is_refused():
    cells = [{"value": b"a", "topic": "x"}, {"value": b"b", "topic": None}]
    batch = batch_of_cells(cells, ["value", "topic"])
    builder = builder_of(["value", "topic"], options(topic="t"))
    (rows,) = builder.rows(batch)
    assert {builder.places.of(number)[0] for number in rows.column(log_rows.PLACE).to_pylist()} == {"t"}
    with pytest.raises(InvalidSchemaError, match="null"):
        list(builder_of(["value", "topic"], options()).rows(batch))


def test_a_header_without_a_name_is_refused():
    batch = batch_of_cells([{"value": b"a", "headers": [{"key": None, "value": b""}]}], ["value", "headers"])
    with pytest.raises(InvalidSchemaError, match="a header's key is null"):
        list(builder_of(["value", "headers"], options(topic="t")).rows(batch))


@pytest.mark.parametrize("partition", [-1, 5])
def test_a_partition_that_does_not_exist_is_refused(partition):
    cells = [{"value": b"a", "partition": partition}, {"value": b"a", "partition": 1}]
    with pytest.raises(UnknownPartitionError):
        list(builder_of(["value", "partition"], options(topic="t")).rows(batch_of_cells(cells, ["value", "partition"])))


@pytest.mark.parametrize("names", [["value"], ["value", "topic", "partition"]])
def test_a_row_above_the_limit_of_its_topic_is_refused(names):
    cells = [
        {"value": b"", "topic": "ü", "partition": 0},
        {"value": bytes((2 << 20) - 16), "topic": "t", "partition": 0},
    ]
    found = options() if "topic" in names else options(topic="t")
    batch = batch_of_cells(cells, names)
    for bytes_max in (1 << 20, (2 << 20) - 1):
        with pytest.raises(RecordTooLargeError, match=f"at most {bytes_max - 16} are allowed"):
            list(builder_of(names, found, bytes_max).rows(batch))
    assert sum(rows.num_rows for rows in builder_of(names, found, 2 << 20).rows(batch)) == 2


def test_a_large_batch_is_converted_in_pieces(monkeypatch):
    monkeypatch.setattr(log_rows, "PIECE_BYTES_MAX", 1000)
    cells = [{"value": b"%d" % number * 10} for number in range(300)]
    pieces = list(builder_of(["value"], options(topic="t")).rows(batch_of_cells(cells, ["value"])))
    assert max(piece.num_rows for piece in pieces) < 100
    assert [cell for piece in pieces for cell in piece.column("value").to_pylist()] == [cell["value"] for cell in cells]


def test_rows_keep_no_memory_of_columns_that_are_ignored():
    """Spark's batches have one buffer for all columns, and the rows held it: a wide frame took gigabytes of an executor."""
    stream = pa.BufferOutputStream()
    ignored = pa.array([b"x" * 10_000] * 1000)
    batch = pa.RecordBatch.from_arrays([pa.array([b"value"] * 1000), ignored], ["value", "ignored"])
    with pa.ipc.new_stream(stream, batch.schema) as written:
        for _ in range(20):
            written.write_batch(batch)
    pipe = io.BytesIO(stream.getvalue().to_pybytes())
    builder = LogRowBuilder(
        check_schema(fields("value binary, ignored binary"), options(topic="t")), options(topic="t"), lambda *_: 5, len
    )
    tracemalloc.start()
    try:
        kept = [rows for received in pa.ipc.open_stream(pipe) for rows in builder.rows(received)]
        assert tracemalloc.get_traced_memory()[0] < 50_000_000
    finally:
        tracemalloc.stop()
    assert sum(rows.num_rows for rows in kept) == 20_000
    assert set(kept[-1].column("value").to_pylist()) == {b"value"}


def test_rows_and_arrow_batches_give_the_same_records():
    """PySpark 4.0 gives a stream's sink rows, and later versions give it Arrow. A query that is upgraded must get the same digests."""
    rng = random.Random(5)
    names = ["value", "key", "headers", "at", "n"]
    cells: list[Cell] = [
        {
            "value": rng.choice([None, b"", rng.randbytes(5)]),
            "key": rng.choice([None, "", "ключ"]),
            "headers": rng.choice([None, [], [{"key": "a", "value": b"1"}, {"key": "", "value": None}]]),
            "at": rng.choice([None, 0, 1_700_000_000_123_456]),
            "n": rng.randint(-5, 5),
        }
        for _ in range(50)
    ]
    found = options(topic="t", timestampColumn="at", orderColumn="n")
    spark_rows = [
        Row(
            value=None if cell["value"] is None else bytearray(cell["value"]),
            key=cell["key"],
            headers=[Row(**pair) for pair in cell["headers"]] if cell["headers"] is not None else None,
            at=None if cell["at"] is None else datetime.fromtimestamp(cell["at"] / 1e6, UTC),
            n=cell["n"],
            other=1.5,
        )
        for cell in cells
    ]
    (batch,) = batches_of_rows(spark_rows, fields(ddl_of(names) + ", other double"))
    builder = builder_of(names, found)
    (expected,) = builder.rows(batch_of_cells(cells, names))
    (rows,) = builder.rows(batch)
    assert rows.equals(expected)


def test_the_first_and_last_sequence_of_batches_follow_each_other():
    cells = [{"value": b"%d" % number} for number in range(50)]
    result = columnar([cells], ["value"], options(topic="one"))
    headers = [parse_header(batch) for batch in result.batches["one", 0]]
    assert [header.first_sequence for header in headers] == [
        0,
        *(header.last_sequence + 1 for header in headers[:-1]),
    ]
    assert headers[-1].last_sequence == 49
