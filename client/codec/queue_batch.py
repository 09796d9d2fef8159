"""Encode a program's values as a message batch, and decode the block of messages that a broker sends.

Bodies are compressed one by one, so that a broker can send any of them alone. Must not talk to the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import msgspec
from raftmq import queue_batch
from raftmq.batch_header import (
    CODEC_LZ4,
    CODEC_NONE,
    QUEUE_BATCH_MAGIC,
    BatchFormatError,
    BatchTooLargeError,
    Buffer,
    parse_header,
)
from raftmq.client.base.texts import check_texts
from raftmq.client.codec.batch import Headers, compress, decompress
from raftmq.errors import InvalidArgumentError, RecordTooLargeError, UnsupportedCompressionError
from raftmq.message_block import MessageBlock
from raftmq.message_checks import (
    MESSAGE_BYTES_MAX,
    TIME_AFTER,
    TIME_AT,
    TIME_NONE,
    BatchLimits,
    Times,
    check_count,
    check_sizes,
)
from raftmq.message_headers import decode_headers, encode_headers
from raftmq.queue_batch import RAW_SIZE, MessageColumns, QueueBodies, check_body

T = TypeVar("T")

COMPRESS_BYTES_MIN = 512
"""Minimum size of a value that is compressed. Shorter ones rarely become smaller by more than the raw size in front of them."""
_RAW_LIMITS = BatchLimits(message_bytes_max=MESSAGE_BYTES_MAX)
_NO_HEADERS: Headers = ()


@dataclass(frozen=True, slots=True)
class EncodedMessages:
    """Messages ready for sealing."""

    body: bytes
    message_count: int

    def seal(self, producer_id: int = 0, producer_epoch: int = 0, first_sequence: int = 0, flags: int = 0) -> bytes:
        """Return the whole batch under a producer's identity. A producer id of 0 means not idempotent."""
        return queue_batch.seal_queue_batch(
            self.body,
            message_count=self.message_count,
            flags=flags,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            first_sequence=first_sequence,
        )


class TimeColumns(NamedTuple):
    """Times of messages as programs give them. At most one of both is not None for each message."""

    after_ms: Sequence[int | None] | None = None
    """Milliseconds from the enqueuing."""
    at_ms: Sequence[int | None] | None = None
    """Milliseconds since 1970."""


_NO_TIMES = TimeColumns()


# ------------------------------------------------------------------------------------------------------------ encoding


def encode_messages(
    values: Sequence[bytes],
    *,
    keys: Sequence[bytes | None] | None = None,
    tenants: Sequence[str] | None = None,
    priorities: Sequence[int] | None = None,
    due: TimeColumns = _NO_TIMES,
    expiry: TimeColumns = _NO_TIMES,
    ids: Sequence[str | None] | None = None,
    headers: Sequence[Headers] | None = None,
    replaces: Sequence[bool] | None = None,
    codec: int = CODEC_NONE,
    limits: BatchLimits = BatchLimits(),  # noqa: B008 - immutable
) -> EncodedMessages:
    """Encode 1 to 1,000 messages. A column that is None holds the default for every message.

    Args:
        values: one per message. An empty value is allowed.
        keys: 1 to 249 bytes each, or None for a message without a key.
        tenants: paths of at most 8 levels between dots. The empty text is the root.
        priorities: signed 32-bit numbers, smaller first. Default: 0.
        due: the delay or the time before which a message is not delivered. Default: now.
        expiry: the time to live or the time at which an undelivered message is given up. Default: the topic's.
        ids: names for deduplication, 1 to 249 bytes of UTF-8 each, or None for a message without an id.
        headers: one tuple of (name, value) pairs per message.
        replaces: whether a message replaces the unfinished one with its id.
        codec: a codec number of the batch header. Only values of `COMPRESS_BYTES_MIN` bytes or more are compressed, and only when this makes
            them smaller.
        limits: those of the topic.

    Raises:
        InvalidArgumentError: a value is out of its range. The text names the position of its message.
        RecordTooLargeError: a message, its headers or the number of messages is above its limit.
        UnsupportedCompressionError: the codec is unknown.
    """
    try:
        check_count(len(values), limits)
        check_sizes(list(map(len, values)), None, _RAW_LIMITS)
        bodies, codecs = _compress_all(values, codec)
        columns = MessageColumns(
            bodies=bodies,
            codecs=codecs,
            priorities=priorities,
            due=_times(due, len(values), "due time"),
            expiry=_times(expiry, len(values), "expiry"),
            replaces=None if replaces is None else list(map(int, replaces)),
            tenants=None if tenants is None else _utf8(tenants, "tenant"),
            ids=None if ids is None else _utf8_or_none(ids),
            keys=keys,
            headers=None if headers is None else list(map(encode_headers, headers)),
        )
        return EncodedMessages(queue_batch.encode(columns, limits), len(values))
    except BatchTooLargeError as error:
        raise RecordTooLargeError(error.reason) from error
    except BatchFormatError as error:
        raise InvalidArgumentError(error.reason) from error


def tail_of_messages(batch: Buffer, skipped: int) -> bytes:
    """Return a batch without its first messages, as a batch of the same producer, epoch and flags.

    Args:
        batch: as `EncodedMessages.seal` returns it.
        skipped: number of messages to leave out, less than the batch has.
    """
    header = parse_header(batch, QUEUE_BATCH_MAGIC)
    fields, bodies = queue_batch.parse_fields(batch), QueueBodies(batch)
    kept = slice(skipped, None)
    columns = MessageColumns(
        bodies=[bodies.body(position) for position in range(skipped, bodies.count)],
        codecs=_part(fields.codecs, kept),
        priorities=_part(fields.priorities, kept),
        due=_times_part(fields.due, kept),
        expiry=_times_part(fields.expiry, kept),
        replaces=_part(fields.replaces, kept),
        tenants=fields.tenants.to_list()[kept],
        ids=_part(fields.ids, kept),
        keys=_part(fields.keys, kept),
        headers=_part(fields.headers, kept),
    )
    encoded = EncodedMessages(queue_batch.encode(columns, _RAW_LIMITS), bodies.count - skipped)
    return encoded.seal(header.producer_id, header.producer_epoch, header.first_sequence + skipped, header.flags)


def _part(column: Sequence[T] | None, kept: slice) -> Sequence[T] | None:
    return None if column is None else column[kept]


def _times_part(times: Times | None, kept: slice) -> Times | None:
    return None if times is None else Times(times.kinds[kept], times.values_ms[kept])


def compress_body(value: bytes, codec: int) -> bytes:
    """Return a value compressed, after its raw size. Raises `UnsupportedCompressionError` for an unknown codec."""
    compressed = compress(value, codec)
    return compressed if codec == CODEC_LZ4 else RAW_SIZE.pack(len(value)) + compressed  # LZ4 blocks have it already


def _compress_all(values: Sequence[bytes], codec: int) -> tuple[Sequence[bytes], Sequence[int] | None]:
    """Return the bodies and their codecs. A value that compression does not make smaller is stored as it is."""
    if codec == CODEC_NONE:
        return values, None
    bodies = [compress_body(value, codec) if len(value) >= COMPRESS_BYTES_MIN else value for value in values]
    smaller = [len(body) < len(value) for body, value in zip(bodies, values, strict=True)]
    kept = [body if is_smaller else value for body, value, is_smaller in zip(bodies, values, smaller, strict=True)]
    return kept, [codec if is_smaller else CODEC_NONE for is_smaller in smaller]


def _times(columns: TimeColumns, count: int, name: str) -> Times | None:
    after, at = columns
    if after is None and at is None:
        return None
    kinds = [TIME_NONE] * count
    values = [0] * count
    for kind, cells in ((TIME_AFTER, after), (TIME_AT, at)):
        for position, cell in enumerate(cells or ()):
            if cell is None:
                continue
            if kinds[position] != TIME_NONE:
                raise InvalidArgumentError(
                    f"the message at position {position} has both a relative and an absolute {name}"
                )
            kinds[position], values[position] = kind, cell
    return Times(kinds, values)


def _utf8(texts: Sequence[str], name: str) -> list[bytes]:
    check_texts(texts, name)
    return list(map(str.encode, texts))


def _utf8_or_none(ids: Sequence[str | None]) -> list[bytes | None]:
    check_texts(ids, "id")
    return [None if text is None else text.encode() for text in ids]


# ------------------------------------------------------------------------------------------------------------ decoding


class ReceivedMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as it was received. The garbage collector does not track it, as it refers to plain values only."""

    sequence: int
    lease_number: int
    attempts: int
    enqueued_ms: int
    """Queue time at which it was enqueued, in milliseconds since 1970."""
    lease_remaining_ms: int | None
    """Time until its lease ends, when the block was sent. None: it is not leased for the receiver."""
    priority: int
    tenant: str
    id: str | None
    key: bytes | None
    headers: Headers
    value: bytes


class DamagedMessage(NamedTuple):
    """A message that cannot be decoded. It can be rejected by its token, so that it is kept with this reason."""

    sequence: int
    lease_number: int
    reason: str


def decode_messages(block: MessageBlock, positions: range) -> list[ReceivedMessage | DamagedMessage]:
    """Check and decode some messages of a block.

    A message that cannot be decoded does not hide the others. Each takes at most `MESSAGE_BYTES_MAX` of memory, which may be a thousand
    times its stored size: a caller that prefetches keeps the block, and decodes only the messages that it returns.

    Args:
        block: as `message_block.unpack_block` returns it.
        positions: places of messages in the block.
    """
    return [decode_message(block, position) for position in positions]


def decode_message(block: MessageBlock, at: int) -> ReceivedMessage | DamagedMessage:
    """Check and decode the message at a place of a block."""
    sequence, lease_number = block.sequences[at], block.lease_numbers[at]
    try:
        check_body(block.bodies[at], block.body_positions[at], block.body_checksums[at])
        name = block.ids[at] if block.ids is not None else None
        encoded_headers = block.headers[at] if block.headers is not None else None
        return ReceivedMessage(
            sequence,
            lease_number,
            block.attempts[at],
            block.enqueued_ms[at],
            block.lease_remaining_ms[at] if block.lease_remaining_ms is not None else None,
            block.priorities[at] if block.priorities is not None else 0,
            block.tenants[at].decode() if block.tenants is not None else "",
            name.decode() if name is not None else None,
            block.keys[at] if block.keys is not None else None,
            decode_headers(encoded_headers) if encoded_headers is not None else _NO_HEADERS,
            decompress_body(block.bodies[at], block.codecs[at] if block.codecs is not None else CODEC_NONE),
        )
    except BatchFormatError as error:
        return DamagedMessage(sequence, lease_number, error.reason)
    except (UnicodeDecodeError, UnsupportedCompressionError) as error:
        return DamagedMessage(sequence, lease_number, str(error))


def decompress_body(body: Buffer, codec: int) -> bytes:
    """Return a body's value.

    Raises:
        BatchFormatError: the body is damaged, or claims more than `MESSAGE_BYTES_MAX`.
        UnsupportedCompressionError: the codec is unknown.
    """
    if codec == CODEC_NONE:
        return bytes(body)
    if len(body) < RAW_SIZE.size:
        raise BatchFormatError("a compressed body begins with its raw size")
    (raw_bytes,) = RAW_SIZE.unpack_from(body)
    block = memoryview(body)
    return decompress(block if codec == CODEC_LZ4 else block[RAW_SIZE.size :], codec, raw_bytes, MESSAGE_BYTES_MAX)
