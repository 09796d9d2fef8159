"""Encode copies of dead messages as one batch for another queue topic, with headers that say where they come from. Pure.

A copy has the value, the key, the tenant, the priority and the headers of its message. It has no id, no due time and no expiry of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from raftmq.batch_header import BatchFormatError
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.bodies import StoredBody
from raftmq.broker.partitions.queue.copy_plan import CopyRun, CopyTarget
from raftmq.fsm.queue.message import DeadReason, Message
from raftmq.message_checks import HEADERS_BYTES_MAX, MESSAGE_BYTES_MAX, BatchLimits
from raftmq.message_headers import DEAD_LETTER_PREFIX, Headers, decode_headers, encode_headers
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import MessageColumns, check_body, encode, seal_queue_batch

HEADERS: Final = {
    "topic": "the message's topic",
    "partition": "the message's partition, decimal",
    "sequence": "the message's sequence, decimal",
    "id": "the message's id, if it had one",
    "timestamp": "the time at which it was enqueued, in milliseconds since 1970",
    "attempts": "the number of attempts",
    "reason": "rejected, exhausted (it had no attempt left) or expired",
    "time": "the time at which it died, in milliseconds since 1970",
    "error": "the last error that a consumer gave, if any, at most 1 KiB",
}
"""Names of the added headers, without the prefix, and their meaning. Values are UTF-8. Headers of an earlier copy are replaced."""
_LIMITS: Final = BatchLimits(message_bytes_max=MESSAGE_BYTES_MAX)
"""The target judges the batch by the limits of its topic."""


class Source(NamedTuple):
    """The partition whose dead are copied."""

    topic: str
    partition: int


def encode_copies(
    source: Source,
    target: CopyTarget,
    run: CopyRun,
    producer_id: int,
    messages: Sequence[Message],
    tenants: Sequence[str],
    bodies: Sequence[StoredBody],
) -> bytes:
    """Return the batch with the copies of a run.

    Raises:
        RequestError: CORRUPT_BATCH for a body that does not have its checksum.
    """
    for message, body in zip(messages, bodies, strict=True):
        _check(message, body)
    codecs = [body.codec for body in bodies]
    columns = MessageColumns(
        bodies=[body.body for body in bodies],
        codecs=codecs if any(codecs) else None,
        priorities=[message.priority for message in messages],
        tenants=[tenant.encode() for tenant in tenants],
        keys=[message.key or None for message in messages],
        headers=[
            _headers_of(source, message, body, target.message_bytes_max)
            for message, body in zip(messages, bodies, strict=True)
        ],
    )
    return seal_queue_batch(
        encode(columns, _LIMITS),
        message_count=len(messages),
        producer_id=producer_id,
        producer_epoch=run.epoch,
        first_sequence=run.first_sequence,
    )


def _check(message: Message, body: StoredBody) -> None:
    """Compare a body with its checksum before it gets another one."""
    try:
        check_body(body.body, body.position, body.checksum)
    except BatchFormatError as error:
        raise RequestError(pb.CORRUPT_BATCH, f"the body of message {message.sequence} is damaged: {error}") from error


def _headers_of(source: Source, message: Message, body: StoredBody, message_bytes_max: int) -> bytes | None:
    """Return the headers of a copy: the message's own, and as many of the added ones as the target's limits allow.

    A message that was accepted by a topic with the same limits always fits without them.
    """
    try:
        own = decode_headers(body.headers or b"")
    except BatchFormatError:
        return body.headers  # no SDK wrote them, and nothing can be said after them
    kept = tuple(pair for pair in own if not pair[0].startswith(DEAD_LETTER_PREFIX))
    bytes_max = min(HEADERS_BYTES_MAX, message_bytes_max - len(body.body))
    for added in _choices(source, message):
        encoded = encode_headers((*kept, *added))
        if encoded is None or len(encoded) <= bytes_max:
            return encoded
    return encode_headers(kept)


def _choices(source: Source, message: Message) -> Iterator[Headers]:
    """Yield the headers to add: all of them, and then those without the error, which is the longest."""
    said = {
        "topic": source.topic,
        "partition": str(source.partition),
        "sequence": str(message.sequence),
        "id": message.id.decode(),
        "timestamp": str(message.enqueued_at),
        "attempts": str(message.attempts),
        "reason": DeadReason(message.dead_reason).name.lower(),
        "time": str(message.dead_at),
        "error": message.error,
    }
    named = tuple((DEAD_LETTER_PREFIX + name, text.encode()) for name, text in said.items() if text)
    yield named
    if message.error:
        yield named[:-1]
