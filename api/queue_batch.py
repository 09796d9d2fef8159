"""A batch of messages for a queue topic, and a schedule's firing: the bytes of their entries, and the checks of a broker on them.

Layout of a message batch, little-endian, frozen once released (ADR 0013):

    header    64 bytes of `batch_header` with the magic 0x5152, codec 0, raw_body_bytes = body_bytes and no timestamps
    columns   as `columns` packs them, in clear. `COLUMNS` has their order
    bodies    one after the other, each compressed on its own or not at all

A firing has the magic 0x4652 and exactly one message. Between its header and its columns are the revision (u64), the due time (i64) and the next
due time (i64, -1: none) of its schedule, and the schedule's name after its u8 length.

A compressed body begins with its raw size (u32). The checksum of a body covers its position in the batch (u32) and its stored bytes, so it
travels with the body to wherever the body is kept or sent.

The broker reads columns and slices bodies. It decompresses none and makes no object per message. This module imports nothing of RaftMQ but
`batch_header`, `columns` and `message_checks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c
from raftmq import batch_header
from raftmq.batch_header import (
    CODEC_MAX,
    CODEC_NONE,
    FIRING_MAGIC,
    HEADER_BYTES,
    QUEUE_BATCH_MAGIC,
    BatchFormatError,
    BatchHeader,
    BatchTooLargeError,
    Buffer,
    UnsupportedCodecError,
)
from raftmq.columns import Cells, Column, ColumnReader, ColumnWriter, KnownColumns, Names, distinct_names
from raftmq.message_checks import (
    MESSAGE_BYTES_MAX,
    MESSAGE_COUNT_MAX,
    TIME_MAX_MS,
    BatchLimits,
    Times,
    check_count,
    check_ids,
    check_names,
    check_priorities,
    check_replaces,
    check_schedule,
    check_sizes,
    check_tenants,
    check_times,
)

BODY_LENGTHS = Column(0, "I")
BODY_CHECKSUMS = Column(1, "I", may_be_constant=False)
BODY_CODECS = Column(2, "B")
PRIORITIES = Column(3, "i")
DUE_KINDS = Column(4, "B")
DUE_TIMES = Column(5, "q")
EXPIRY_KINDS = Column(6, "B")
EXPIRY_TIMES = Column(7, "q")
REPLACES = Column(8, "B")
TENANTS = Column(9, "H", Cells.NAMES)
IDS = Column(10, "B", Cells.BYTES, may_be_constant=False)
KEYS = Column(11, "B", Cells.BYTES)
HEADERS = Column(12, "I", Cells.BYTES)

COLUMNS = KnownColumns(
    *(BODY_LENGTHS, BODY_CHECKSUMS, BODY_CODECS, PRIORITIES, DUE_KINDS, DUE_TIMES),
    *(EXPIRY_KINDS, EXPIRY_TIMES, REPLACES, TENANTS, IDS, KEYS, HEADERS),
)
"""All columns. Only those of the lengths and of the checksums are required."""
_BODY_COLUMNS = KnownColumns(BODY_LENGTHS, BODY_CHECKSUMS, BODY_CODECS, are_all=False)

ROOT_TENANT = b""
NO_NEXT_DUE = -1
RAW_SIZE = Struct("<I")
"""The raw size in front of a compressed body."""
_SCHEDULE = Struct("<QqqB")
_CHECKSUM_SEEDS = tuple(crc32c(position.to_bytes(4, "little")) for position in range(MESSAGE_COUNT_MAX))
"""The CRC of each position, from which the checksum of a body continues."""


class MessageColumns(NamedTuple):
    """Messages to encode, column by column. A column that is None holds its default for every message."""

    bodies: Sequence[Buffer]
    """As they are stored. A compressed one begins with its raw size."""
    codecs: Sequence[int] | None = None
    """The codec of each body, a number of `batch_header`. Default: not compressed."""
    priorities: Sequence[int] | None = None
    """Smaller first. Default: 0."""
    due: Times | None = None
    """Default: now."""
    expiry: Times | None = None
    """Default: the topic's."""
    replaces: Sequence[int] | None = None
    """1: replace the unfinished message with the same id. Default: 0."""
    tenants: Sequence[bytes] | None = None
    """Default: the root tenant, which is the empty name."""
    ids: Sequence[bytes | None] | None = None
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[bytes | None] | None = None
    """Encoded by the producer and opaque to the broker."""


class QueueFields(NamedTuple):
    """The columns of a batch, unpacked. None: every message has the default."""

    message_count: int
    body_start: int
    """The place in the payload where the first body begins."""
    body_lengths: Sequence[int]
    body_checksums: Sequence[int]
    codecs: Sequence[int] | None
    priorities: Sequence[int] | None
    due: Times | None
    expiry: Times | None
    replaces: Sequence[int] | None
    tenants: Names
    ids: list[bytes | None] | None
    keys: list[bytes | None] | None
    headers: list[bytes | None] | None

    def sizes(self) -> Sequence[int]:
        """Return the stored bytes of each message: its body and its headers."""
        if self.headers is None:
            return self.body_lengths
        return [size + len(cell or b"") for size, cell in zip(self.body_lengths, self.headers, strict=True)]


class Firing(NamedTuple):
    """A schedule's firing, which enqueues one message."""

    schedule: bytes
    """The schedule's name in UTF-8."""
    revision: int
    """The revision of the schedule that fires. A firing of an older one makes no message."""
    due_ms: int
    next_due_ms: int
    """Later than `due_ms`, or `NO_NEXT_DUE`."""
    fields: QueueFields


# ------------------------------------------------------------------------------------------------------------ encoding


def encode(messages: MessageColumns, limits: BatchLimits = BatchLimits()) -> bytes:  # noqa: B008 - immutable
    """Return columns and bodies of 1 to `MESSAGE_COUNT_MAX` messages, which `seal_queue_batch` and `encode_firing` take.

    Raises:
        BatchTooLargeError: a size or the count is above its limit.
        UnsupportedCodecError: a codec is unknown.
        BatchFormatError: another column has a value that a broker refuses. The reason names the position of the message.
    """
    bodies = messages.bodies
    count = len(bodies)
    lengths = list(map(len, bodies))
    check_count(count, limits)
    check_sizes(lengths, messages.headers, limits)
    _check_columns(messages)
    tenants = None if messages.tenants is None else distinct_names(messages.tenants)
    if tenants is not None:
        check_tenants(*tenants)
    _check_codecs(bodies, messages.codecs)
    writer = ColumnWriter(count)
    writer.numbers(BODY_LENGTHS, lengths)
    writer.numbers(BODY_CHECKSUMS, list(map(crc32c, bodies, _CHECKSUM_SEEDS)))
    writer.numbers(BODY_CODECS, messages.codecs, default=CODEC_NONE)
    writer.numbers(PRIORITIES, messages.priorities, default=0)
    _write_times(writer, DUE_KINDS, DUE_TIMES, messages.due)
    _write_times(writer, EXPIRY_KINDS, EXPIRY_TIMES, messages.expiry)
    writer.numbers(REPLACES, messages.replaces, default=0)
    writer.names(TENANTS, tenants)
    writer.cells(IDS, messages.ids)
    writer.cells(KEYS, messages.keys)
    writer.cells(HEADERS, messages.headers)
    return b"".join((writer.finish(), *bodies))


def _write_times(writer: ColumnWriter, kinds: Column, values: Column, times: Times | None) -> None:
    if times is not None and any(times.kinds):
        writer.numbers(kinds, times.kinds)
        writer.numbers(values, times.values_ms)


def seal_queue_batch(
    body: Buffer,
    *,
    message_count: int,
    flags: int = 0,
    producer_id: int = 0,
    producer_epoch: int = 0,
    first_sequence: int = 0,
) -> bytes:
    """Return the whole batch: the header with its CRC in front of encoded messages."""
    return batch_header.seal(
        body,
        record_count=message_count,
        raw_body_bytes=len(body),
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        flags=flags,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        first_sequence=first_sequence,
        magic=QUEUE_BATCH_MAGIC,
    )


def encode_firing(schedule: bytes, revision: int, due_ms: int, next_due_ms: int, message: Buffer) -> bytes:
    """Return the payload of a firing's entry.

    Args:
        schedule: the schedule's name.
        revision: the revision of the schedule that fires.
        due_ms: the time at which it was due, by the queue clock.
        next_due_ms: the time at which it is due next, after `due_ms`, or `NO_NEXT_DUE`.
        message: one message, as `encode` returns it.

    Raises:
        BatchFormatError: the name is not allowed, or the times contradict each other.
    """
    check_schedule(schedule)
    _check_due(due_ms, next_due_ms)
    body = b"".join((_SCHEDULE.pack(revision, due_ms, next_due_ms, len(schedule)), schedule, message))
    return batch_header.seal(
        body,
        record_count=1,
        raw_body_bytes=len(body),
        base_timestamp_ms=0,
        max_timestamp_ms=0,
        magic=FIRING_MAGIC,
    )


# ------------------------------------------------------------------------------------------------------------- reading


def parse_fields(payload: Buffer) -> QueueFields:
    """Unpack the columns of a message batch that was validated before. Neither the bodies nor the checksums are read.

    Raises:
        UnsupportedBatchVersionError: a newer version wrote the batch.
        BatchFormatError: the bytes are not a message batch.
    """
    header = batch_header.parse_header(payload, QUEUE_BATCH_MAGIC)
    return unpack_fields(payload, HEADER_BYTES, header.record_count)


def parse_firing(payload: Buffer) -> Firing:
    """Unpack a firing. Raises as `parse_fields` does."""
    header = batch_header.parse_header(payload, FIRING_MAGIC)
    if header.record_count != 1:
        raise BatchFormatError(f"a firing has one message, but this one has {header.record_count}")
    start, name_bytes = _schedule_end(payload)
    revision, due_ms, next_due_ms, _ = _SCHEDULE.unpack_from(payload, HEADER_BYTES)
    schedule = bytes(memoryview(payload)[start - name_bytes : start])
    check_schedule(schedule)
    _check_due(due_ms, next_due_ms)
    return Firing(schedule, revision, due_ms, next_due_ms, unpack_fields(payload, start, 1))


def unpack_fields(buffer: Buffer, start: int, count: int) -> QueueFields:
    """Unpack the columns of `count` messages that begin at `start`, and check that the bodies fill the rest of the buffer.

    Raises:
        UnsupportedBatchVersionError: there are columns that this version does not know.
        BatchFormatError: count, lengths or columns contradict each other or the buffer.
    """
    if not 1 <= count <= MESSAGE_COUNT_MAX:
        raise BatchFormatError(f"{count} messages instead of 1 to {MESSAGE_COUNT_MAX}")
    reader = ColumnReader(buffer, start, count, COLUMNS)
    fields = QueueFields(
        message_count=count,
        body_start=reader.end,
        body_lengths=reader.required_numbers(BODY_LENGTHS),
        body_checksums=reader.required_numbers(BODY_CHECKSUMS),
        codecs=reader.numbers(BODY_CODECS),
        priorities=reader.numbers(PRIORITIES),
        due=_read_times(reader, DUE_KINDS, DUE_TIMES),
        expiry=_read_times(reader, EXPIRY_KINDS, EXPIRY_TIMES),
        replaces=reader.numbers(REPLACES),
        tenants=reader.names(TENANTS) or Names((ROOT_TENANT,), (0,) * count),
        ids=reader.cells(IDS),
        keys=reader.cells(KEYS),
        headers=reader.cells(HEADERS),
    )
    reader.finish()
    _check_total(fields.body_lengths, len(buffer) - reader.end)
    return fields


def _read_times(reader: ColumnReader, kinds_column: Column, values_column: Column) -> Times | None:
    kinds, values = reader.numbers(kinds_column), reader.numbers(values_column)
    if kinds is None or values is None:
        if kinds is not values:
            raise BatchFormatError(f"only one of the columns {kinds_column.number} and {values_column.number} is there")
        return None
    return Times(kinds, values)


def _schedule_end(payload: Buffer) -> tuple[int, int]:
    """Return the place after a firing's schedule, and the length of its name."""
    start = HEADER_BYTES + _SCHEDULE.size
    if len(payload) < start:
        raise BatchFormatError(f"a firing has at least {start} bytes, but this one has {len(payload)}")
    name_bytes = payload[start - 1]
    return start + name_bytes, name_bytes


class QueueBodies:
    """The bodies of a message batch or a firing. Only their own columns are read, and the payload is not copied."""

    __slots__ = ("_checksums", "_starts", "_view", "codecs", "count")

    def __init__(self, payload: Buffer) -> None:
        """Take the payload of a validated entry. Raises `BatchFormatError` if it is none."""
        is_firing = batch_header.magic_of(payload) == FIRING_MAGIC
        header = batch_header.parse_header(payload, FIRING_MAGIC if is_firing else QUEUE_BATCH_MAGIC)
        self.count = header.record_count
        if not 1 <= self.count <= MESSAGE_COUNT_MAX:
            raise BatchFormatError(f"{self.count} messages instead of 1 to {MESSAGE_COUNT_MAX}")
        start = _schedule_end(payload)[0] if is_firing else HEADER_BYTES
        reader = ColumnReader(payload, start, self.count, _BODY_COLUMNS)
        lengths = reader.required_numbers(BODY_LENGTHS)
        self._checksums = reader.required_numbers(BODY_CHECKSUMS)
        self.codecs = reader.numbers(BODY_CODECS)
        """The codec of each body. None: no body is compressed."""
        _check_total(lengths, len(payload) - reader.end)
        self._starts = list(accumulate(lengths, initial=reader.end))
        self._view = memoryview(payload)

    def body(self, position: int) -> memoryview:
        """Return a body as it is stored, without checking it. It shares the payload's memory.

        Args:
            position: the message's place in the batch, from 0.
        """
        return self._view[self._starts[position] : self._starts[position + 1]]

    def checksum(self, position: int) -> int:
        """Return the checksum that the batch has for a body."""
        return self._checksums[position]

    def check_body(self, position: int) -> None:
        """Raise `BatchFormatError` if a body does not have its checksum."""
        check_body(self.body(position), position, self._checksums[position])


def check_body(body: Buffer, position: int, checksum: int) -> None:
    """Raise `BatchFormatError` if a body that was kept or sent does not have the checksum of its batch.

    Args:
        body: the stored bytes.
        position: the message's place in its batch, from 0.
        checksum: the number in the batch's column.
    """
    if not 0 <= position < MESSAGE_COUNT_MAX:
        raise BatchFormatError(f"{position} is not a position in a batch")
    actual = crc32c(body, _CHECKSUM_SEEDS[position])
    if actual != checksum:
        raise BatchFormatError(
            f"the body at position {position} has the CRC32C 0x{actual:08x}, but its batch says 0x{checksum:08x}"
        )


# ---------------------------------------------------------------------------------------------------------- validation


def validate_queue(
    buffer: Buffer,
    bytes_max: int,
    limits: BatchLimits = BatchLimits(),  # noqa: B008 - immutable
) -> tuple[BatchHeader, QueueFields]:
    """Perform all checks of a broker on a message batch of at most `bytes_max` bytes, including the header.

    A batch that passes cannot fail on a replica or be undeliverable to a consumer: the checksum of each body is compared, too.

    Raises:
        BatchTooLargeError: the batch, the count or a message is above its limit.
        UnsupportedBatchVersionError: the version, or a column, is not supported.
        UnsupportedCodecError: a body's codec is not supported.
        BatchFormatError: anything else is wrong. The reason names the position of the message.
    """
    header = batch_header.validate(buffer, bytes_max, QUEUE_BATCH_MAGIC)
    if header.codec != CODEC_NONE or header.raw_body_bytes != header.body_bytes:
        raise BatchFormatError("a message batch is not compressed as a whole: compress each body")
    if header.base_timestamp_ms or header.max_timestamp_ms:
        raise BatchFormatError("a message batch has no timestamps: messages get the time of the queue's clock")
    return header, validate_messages(buffer, HEADER_BYTES, header.record_count, limits)


def validate_messages(buffer: Buffer, start: int, count: int, limits: BatchLimits) -> QueueFields:
    """Check encoded messages that begin at `start`, such as the message of a schedule. Raises as `validate_queue` does."""
    check_count(count, limits)
    fields = unpack_fields(buffer, start, count)
    check_sizes(fields.body_lengths, fields.headers, limits)
    _check_columns(fields)
    check_tenants(*fields.tenants)
    view = memoryview(buffer)
    starts = accumulate(fields.body_lengths, initial=fields.body_start)
    bodies = [view[first:end] for first, end in pairwise(starts)]
    if tuple(map(crc32c, bodies, _CHECKSUM_SEEDS)) != fields.body_checksums:
        for position, body in enumerate(bodies):
            check_body(body, position, fields.body_checksums[position])
    _check_codecs(bodies, fields.codecs)
    return fields


def _check_columns(messages: MessageColumns | QueueFields) -> None:
    check_priorities(messages.priorities)
    check_times(messages.due, "a due time")
    check_times(messages.expiry, "an expiry")
    check_ids(messages.ids)
    check_names(messages.keys, "a key")
    check_replaces(messages.replaces, messages.ids)


def _check_codecs(bodies: Sequence[Buffer], codecs: Sequence[int] | None) -> None:
    if codecs is None:
        return
    for position, (body, codec) in enumerate(zip(bodies, codecs, strict=True)):
        if codec == CODEC_NONE:
            continue
        if not 0 <= codec <= CODEC_MAX:
            raise UnsupportedCodecError(f"the message at position {position} has the unknown codec {codec}")
        if len(body) < RAW_SIZE.size:
            raise BatchFormatError(
                f"the message at position {position} is compressed, but does not begin with its raw size"
            )
        (raw_bytes,) = RAW_SIZE.unpack_from(body)
        if raw_bytes > MESSAGE_BYTES_MAX:
            raise BatchTooLargeError(
                f"the message at position {position} claims to have {raw_bytes} bytes when decompressed, "
                f"but at most {MESSAGE_BYTES_MAX} are allowed"
            )


def _check_total(lengths: Sequence[int], bytes_there: int) -> None:
    total = sum(lengths)
    if total != bytes_there:
        raise BatchFormatError(f"the bodies claim to have {total} bytes, but {bytes_there} are there")


def _check_due(due_ms: int, next_due_ms: int) -> None:
    if not 0 <= due_ms <= TIME_MAX_MS:
        raise BatchFormatError(f"a firing is due between 0 and {TIME_MAX_MS} ms, not at {due_ms}")
    if next_due_ms != NO_NEXT_DUE and not due_ms < next_due_ms <= TIME_MAX_MS:
        raise BatchFormatError(f"a schedule that was due at {due_ms} ms cannot be due next at {next_due_ms}")
