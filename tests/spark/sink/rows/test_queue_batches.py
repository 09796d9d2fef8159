"""Message batches of a write to a queue topic: cut within their limits, and encoded with all fields."""

from __future__ import annotations

import random

from raftmq.batch_header import HEADER_BYTES
from raftmq.client.base import settings
from raftmq.message_checks import MESSAGE_COUNT_MAX, TIME_AT, TIME_NONE, BatchLimits, Times
from raftmq.message_headers import encode_headers
from raftmq.queue_batch import QueueBodies, validate_queue
from raftmq.spark.sink.columns.queue import DUE_NOW, QueueRow
from raftmq.spark.sink.rows.partition_writer import Identity
from raftmq.spark.sink.rows.queue_batches import QueueBatches

MIB = 1 << 20
IDENTITY = Identity(7, 3)
HEADERS = encode_headers((("h", b"1"),)) or b""


def row(value: bytes = b"v", *, name: str = "", tenant: str = "", key: bytes = b"") -> QueueRow:
    return (b"q", 0, 0, key, name.encode(), tenant.encode(), 0, DUE_NOW, value, b"")


def test_a_batch_has_every_field_of_its_rows() -> None:
    rows: list[QueueRow] = [
        (b"q", 0, 0, b"k", b"i", b"acme", -5, 1_700_000_000_000, b"a", HEADERS),
        (b"q", 0, 0, b"", b"", b"", 0, DUE_NOW, b"b", b""),
    ]
    batch = QueueBatches(0, 1000).seal(rows, IDENTITY, 40)
    header, fields = validate_queue(batch, MIB)
    assert (header.producer_id, header.producer_epoch, header.first_sequence) == (7, 3, 40)
    assert (fields.keys, fields.ids) == ([b"k", None], [b"i", None])
    assert fields.tenants.to_list() == [b"acme", b""]
    assert fields.priorities == (-5, 0)
    assert fields.due == Times((TIME_AT, TIME_NONE), (1_700_000_000_000, 0))
    assert fields.headers == [HEADERS, None]
    assert [bytes(QueueBodies(batch).body(at)) for at in range(2)] == [b"a", b"b"]


def test_columns_that_no_row_uses_are_left_out() -> None:
    batch = QueueBatches(0, 1000).seal([row(b"a"), row(b"b")], IDENTITY, 0)
    _, fields = validate_queue(batch, MIB)
    assert (fields.keys, fields.ids, fields.priorities, fields.due, fields.headers) == (None,) * 5
    assert len(batch) < HEADER_BYTES + 40


def test_a_batch_has_at_most_as_many_messages_as_brokers_accept() -> None:
    rows = [row()] * (2 * MESSAGE_COUNT_MAX + 5)
    assert [len(piece) for piece in QueueBatches(0, 5000).cut(iter(rows), MIB)] == [1000, 1000, 5]
    assert [len(piece) for piece in QueueBatches(0, 7).cut(iter(rows[:15]), MIB)] == [7, 7, 1]


def test_a_batch_of_several_messages_fits_its_bytes_and_a_larger_message_is_alone() -> None:
    rng = random.Random(7)
    rows: list[QueueRow] = [
        (
            b"q",
            0,
            0,
            rng.randbytes(rng.choice([0, 249])),
            b"%0249d" % number,
            b"%0200d.%d" % (number, number),
            number,
            1_700_000_000_000 + number,
            rng.randbytes(rng.choice([0, 10, 5000, 30_000])),
            rng.choice([b"", HEADERS]),
        )
        for number in range(500)
    ]
    bytes_max = 20_000
    batches = QueueBatches(0, 1000)
    pieces = list(batches.cut(iter(rows), bytes_max))
    assert [found for piece in pieces for found in piece] == rows
    limits = BatchLimits(MIB)
    for piece in pieces:
        batch = batches.seal(piece, IDENTITY, 0)
        validate_queue(batch, MIB, limits)
        assert len(piece) == 1 or len(batch) <= bytes_max + settings.BATCH_FRAME_BYTES
    assert max(map(len, pieces)) > 5
    assert any(len(piece) == 1 and len(piece[0][8]) > bytes_max for piece in pieces)
