"""The bytes of copies of dead messages."""

from __future__ import annotations

import msgspec
import pytest
from crc32c import crc32c
from raftmq.batch_header import CODEC_ZSTD, QUEUE_BATCH_MAGIC, parse_header
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.bodies import StoredBody
from raftmq.broker.partitions.queue.copy_batch import HEADERS, Source, encode_copies
from raftmq.broker.partitions.queue.copy_plan import CopyRun, CopyTarget
from raftmq.fsm.queue.message import DEAD, DeadReason, Message
from raftmq.message_checks import HEADERS_BYTES_MAX, BatchLimits
from raftmq.message_headers import DEAD_LETTER_PREFIX, decode_headers, encode_headers
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import QueueBodies, QueueFields, parse_fields, validate_queue

SOURCE = Source("jobs", 3)
RUN = CopyRun(epoch=2, first_sequence=5, first_number=9, last_number=9)
TARGET = CopyTarget("letters", 7, 0, message_bytes_max=1 << 20, batch_bytes_max=1 << 20)


def dead(**fields: object) -> Message:
    known = {
        "sequence": 41, "state": DEAD, "tenant": 1, "priority": -2, "due": 0, "enqueued_at": 10, "body_bytes": 4,
        "attempts": 6, "error": "late", "dead_number": 9, "dead_at": 99, "dead_reason": DeadReason.EXHAUSTED, "id": b"i",
    }  # fmt: skip
    return Message(**(known | fields))


def stored(body: bytes = b"body", position: int = 6, codec: int = 0, headers: bytes | None = None) -> StoredBody:
    return StoredBody(body, position, crc32c(body, crc32c(position.to_bytes(4, "little"))), codec, headers)


def copied(message: Message, body: StoredBody) -> tuple[bytes, QueueFields]:
    batch = encode_copies(SOURCE, TARGET, RUN, 77, [message], ["acme"], [body])
    return batch, parse_fields(batch)


def headers_of(fields: QueueFields) -> dict[str, bytes | None]:
    assert fields.headers is not None
    return dict(decode_headers(fields.headers[0] or b""))


def test_a_broker_accepts_the_batch_under_the_producers_sequence() -> None:
    batch, fields = copied(dead(key=b"k"), stored(b"\4\0\0\0zstd", codec=CODEC_ZSTD))
    validate_queue(batch, len(batch), BatchLimits())
    header = parse_header(batch, QUEUE_BATCH_MAGIC)
    assert (header.producer_id, header.producer_epoch, header.first_sequence) == (77, 2, 5)
    assert list(fields.priorities or ()) == [-2]
    assert (fields.keys, fields.tenants.to_list()) == ([b"k"], [b"acme"])
    assert list(fields.codecs or ()) == [CODEC_ZSTD]
    assert (fields.ids, fields.due, fields.expiry) == (None, None, None)
    assert bytes(QueueBodies(batch).body(0)) == b"\4\0\0\0zstd"


def test_the_headers_are_those_of_the_table() -> None:
    _, fields = copied(dead(), stored())
    said = headers_of(fields)
    assert list(said) == [DEAD_LETTER_PREFIX + name for name in HEADERS]
    assert said[DEAD_LETTER_PREFIX + "reason"] == b"exhausted"


def test_what_a_message_does_not_have_is_not_said() -> None:
    _, fields = copied(dead(id=b"", error=""), stored())
    assert not {DEAD_LETTER_PREFIX + "id", DEAD_LETTER_PREFIX + "error"} & set(headers_of(fields))


def test_headers_that_no_sdk_wrote_stay_as_they_are() -> None:
    _, fields = copied(dead(), stored(headers=b"\xff"))
    assert fields.headers == [b"\xff"]


def test_own_headers_come_before_added_ones() -> None:
    own = encode_headers((("big", b"x" * (HEADERS_BYTES_MAX - 100)),))
    _, fields = copied(dead(), stored(headers=own))
    assert fields.headers == [own]


def test_a_damaged_body_is_not_copied() -> None:
    damaged = msgspec.structs.replace(stored(), body=b"bodX")
    with pytest.raises(RequestError, match="message 41 is damaged") as raised:
        copied(dead(), damaged)
    assert raised.value.code == pb.CORRUPT_BATCH
