"""Pages of messages become Arrow record batches of exactly the schema that Spark expects."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from raftmq.batch_header import CODEC_LZ4
from raftmq.client.codec.queue_batch import compress_body
from raftmq.errors import UnsupportedCompressionError
from raftmq.message_block import MessageBlock, pack_block, unpack_block
from raftmq.message_headers import encode_headers
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import MessageColumns, QueueBodies, encode, parse_fields, seal_queue_batch
from raftmq.spark.base.schema import BROWSE_COLUMNS, arrow_schema, browse_schema
from raftmq.spark.browse.arrow import browsed_batches
from raftmq.spark.browse.pages import Browsed, Page
from raftmq.spark.errors import RaftMQSparkWarning
from raftmq.spark.source.arrow_batches import micros

READ_MS = 1_800_000_000_000
JOBS = Browsed("jobs", 7, 2)


def page(bodies: list[bytes], *statuses: pb.MessageStatus, **columns: Any) -> Page:
    """Return a page as a broker sends it."""
    count = len(bodies)
    codecs = columns.pop("codecs", None)
    batch = seal_queue_batch(encode(MessageColumns(bodies, codecs)), message_count=count)
    block = MessageBlock(
        sequences=range(10, 10 + count),
        lease_numbers=[0] * count,
        attempts=columns.pop("attempts", [0] * count),
        enqueued_ms=[READ_MS - 5000] * count,
        bodies=[QueueBodies(batch).body(at) for at in range(count)],
        body_checksums=parse_fields(batch).body_checksums,
        body_positions=range(count),
        codecs=codecs,
        **columns,
    )
    return Page(unpack_block(pack_block(block)), statuses or [pb.MessageStatus(state=pb.READY)] * count, READ_MS)


def cells(found: Page, *columns: str) -> list[dict[str, Any]]:
    schema = arrow_schema(browse_schema(columns or None))
    (batch,) = browsed_batches([found], JOBS, schema)
    assert batch.schema.equals(schema)
    batch.validate(full=True)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def at(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def test_a_row_has_everything_that_is_known_of_a_message() -> None:
    (row,) = cells(
        page(
            [b"body"],
            pb.MessageStatus(
                state=pb.DEAD,
                version=9,
                due_in_ms=-1000,
                expires_in_ms=60_000,
                error="no such address",
                progress="half",
                dead_reason="rejected",
                dead_since_ms=READ_MS - 2000,
            ),
            attempts=[3],
            priorities=[-5],
            tenants=[b"acme.eu"],
            ids=[b"i"],
            keys=[b"k"],
            headers=[encode_headers((("a", b"1"), ("b", None)))],
        )
    )
    assert row == {
        "topic": "jobs",
        "partition": 2,
        "sequence": 10,
        "state": "dead",
        "tenant": "acme.eu",
        "key": b"k",
        "id": "i",
        "priority": -5,
        "attempts": 3,
        "version": 9,
        "enqueued_at": at(READ_MS - 5000),
        "due_at": None,
        "lease_left_ms": None,
        "expires_at": at(READ_MS + 60_000),
        "error": "no such address",
        "progress": "half",
        "dead_reason": "rejected",
        "dead_since": at(READ_MS - 2000),
        "headers": [{"key": "a", "value": b"1"}, {"key": "b", "value": None}],
        "value": b"body",
    }
    assert list(row) == list(BROWSE_COLUMNS)


def test_what_a_message_does_not_have_is_null() -> None:
    (row,) = cells(page([b""], pb.MessageStatus(state=pb.READY, due_in_ms=-10)))
    absent = {name for name, cell in row.items() if cell is None}
    assert absent == {
        *("key", "id", "lease_left_ms", "expires_at", "error", "progress", "dead_reason", "dead_since", "headers")
    }
    assert (row["tenant"], row["priority"], row["value"]) == ("", 0, b"")


def test_times_are_those_of_the_state() -> None:
    statuses = [
        pb.MessageStatus(state=pb.DELAYED, due_in_ms=1000),
        pb.MessageStatus(state=pb.LEASED, due_in_ms=-1000, lease_left_ms=29_000),
    ]
    rows = cells(page([b"a", b"b"], *statuses), "state", "due_at", "lease_left_ms")
    assert rows == [
        {"state": "delayed", "due_at": at(READ_MS + 1000), "lease_left_ms": None},
        {"state": "leased", "due_at": at(READ_MS - 1000), "lease_left_ms": 29_000},
    ]


def test_a_time_beyond_those_of_arrow_is_clamped() -> None:
    found = page([b"a"], pb.MessageStatus(state=pb.DELAYED, due_in_ms=1 << 62))
    (batch,) = browsed_batches([found], JOBS, arrow_schema(browse_schema(["due_at"])))
    assert batch.column(0).cast("int64").to_pylist() == [micros(1 << 62)]


def test_bodies_are_decompressed_and_a_damaged_one_is_null_with_a_warning() -> None:
    long = b"x" * 5000
    found = page([compress_body(long, CODEC_LZ4), b"plain", b"other"], codecs=[CODEC_LZ4, 0, 0])
    checksums = [*found.block.body_checksums[:2], 1]
    damaged = found._replace(block=found.block._replace(body_checksums=checksums))
    with pytest.warns(RaftMQSparkWarning, match="the body of message 12 of jobs/2 is damaged"):
        rows = cells(damaged, "value")
    assert [row["value"] for row in rows] == [long, b"plain", None]


def test_a_body_of_an_unknown_codec_is_an_error() -> None:
    """It is no damage: a newer version of the program shows it."""
    found = page([b"\1\0\0\0a"])
    with pytest.raises(UnsupportedCompressionError):
        cells(found._replace(block=found.block._replace(codecs=[99])), "value")


def test_headers_of_another_programs_format_do_not_hide_the_message() -> None:
    (row,) = cells(page([b"a"], headers=[b"not headers"]), "headers", "value")
    assert row == {"headers": None, "value": b"a"}


def test_without_bodies_the_other_columns_are_there() -> None:
    found = page([b"a", b"b"])
    bare = found._replace(block=found.block._replace(bodies=[b"", b""]))
    assert [row["sequence"] for row in cells(bare, "sequence", "tenant")] == [10, 11]
