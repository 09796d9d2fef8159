"""A block of leased or browsed messages of one partition, as a broker sends them to a consumer.

Layout, little-endian (ADR 0013):

    offset size field
         0    4 crc32c of bytes 4..7 and of the columns with their prelude
         4    4 message_count
         8    n columns, as `columns` packs them. `COLUMNS` has their order
    8 + n    m bodies, one after the other, as they are stored

The broker copies columns from its state and slices of bodies from batches. It decodes no body. The receiver compares the block's checksum, then
each body with the checksum that the producer has made of it. So a body that was damaged anywhere between them is noticed.

This module imports nothing of RaftMQ but `batch_header`, `columns` and `message_checks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c
from raftmq.batch_header import CODEC_NONE, BatchFormatError, Buffer
from raftmq.columns import Cells, Column, ColumnReader, ColumnWriter, KnownColumns, Names, distinct_names
from raftmq.message_checks import MESSAGE_COUNT_MAX

SEQUENCES = Column(0, "Q", may_be_constant=False)
LEASE_NUMBERS = Column(1, "I")
ATTEMPTS = Column(2, "I")
ENQUEUED_TIMES = Column(3, "q")
BODY_LENGTHS = Column(4, "I")
BODY_CHECKSUMS = Column(5, "I", may_be_constant=False)
BODY_POSITIONS = Column(6, "I")
BODY_CODECS = Column(7, "B")
LEASE_REMAINING = Column(8, "Q")
PRIORITIES = Column(9, "i")
TENANTS = Column(10, "H", Cells.NAMES)
IDS = Column(11, "B", Cells.BYTES)
KEYS = Column(12, "B", Cells.BYTES)
HEADERS = Column(13, "I", Cells.BYTES)

COLUMNS = KnownColumns(
    *(SEQUENCES, LEASE_NUMBERS, ATTEMPTS, ENQUEUED_TIMES, BODY_LENGTHS, BODY_CHECKSUMS, BODY_POSITIONS),
    *(BODY_CODECS, LEASE_REMAINING, PRIORITIES, TENANTS, IDS, KEYS, HEADERS),
)
"""All columns. Those before the codecs are required."""

_HEAD = Struct("<II")


class MessageBlock(NamedTuple):
    """Messages of one partition, column by column. A column that is None holds its default for every message."""

    sequences: Sequence[int]
    lease_numbers: Sequence[int]
    """With the sequence, the token that settles the message."""
    attempts: Sequence[int]
    """Counted leases, with the present one."""
    enqueued_ms: Sequence[int]
    """Queue time at which the message was enqueued, in milliseconds since 1970."""
    bodies: Sequence[Buffer]
    """As they are stored. In a block that was unpacked they share its memory."""
    body_checksums: Sequence[int]
    body_positions: Sequence[int]
    """Each message's place in the batch of its producer, which its checksum covers."""
    codecs: Sequence[int] | None = None
    """Default: not compressed."""
    lease_remaining_ms: Sequence[int] | None = None
    """Time until each lease ends, when the block was sent. None: the messages were not leased for the receiver."""
    priorities: Sequence[int] | None = None
    """Default: 0."""
    tenants: Sequence[bytes] | None = None
    """Default: the root tenant."""
    ids: Sequence[bytes | None] | None = None
    keys: Sequence[bytes | None] | None = None
    headers: Sequence[bytes | None] | None = None


def pack_block(block: MessageBlock) -> bytes:
    """Return the bytes of 1 to `MESSAGE_COUNT_MAX` messages. Raises `struct.error` for a number that does not fit into its column."""
    count = len(block.sequences)
    writer = ColumnWriter(count)
    writer.numbers(SEQUENCES, block.sequences)
    writer.numbers(LEASE_NUMBERS, block.lease_numbers)
    writer.numbers(ATTEMPTS, block.attempts)
    writer.numbers(ENQUEUED_TIMES, block.enqueued_ms)
    writer.numbers(BODY_LENGTHS, list(map(len, block.bodies)))
    writer.numbers(BODY_CHECKSUMS, block.body_checksums)
    writer.numbers(BODY_POSITIONS, block.body_positions)
    writer.numbers(BODY_CODECS, block.codecs, default=CODEC_NONE)
    writer.numbers(LEASE_REMAINING, block.lease_remaining_ms)
    writer.numbers(PRIORITIES, block.priorities, default=0)
    writer.names(TENANTS, None if block.tenants is None else distinct_names(block.tenants))
    writer.cells(IDS, block.ids)
    writer.cells(KEYS, block.keys)
    writer.cells(HEADERS, block.headers)
    columns = writer.finish()
    return b"".join((_HEAD.pack(_checksum(count, columns), count), columns, *block.bodies))


def unpack_block(data: Buffer) -> MessageBlock:
    """Unpack a block. Its own checksum is compared, those of the bodies are not: `check_body` of `queue_batch` does that.

    Raises:
        UnsupportedBatchVersionError: a newer broker sent columns that this version does not know.
        BatchFormatError: the bytes are damaged, or are not a block.
    """
    if len(data) < _HEAD.size:
        raise BatchFormatError(f"a block has at least {_HEAD.size} bytes, but this one has {len(data)}")
    crc, count = _HEAD.unpack_from(data)
    if not 1 <= count <= MESSAGE_COUNT_MAX:
        raise BatchFormatError(f"a block has 1 to {MESSAGE_COUNT_MAX} messages, but this one has {count}")
    reader = ColumnReader(data, _HEAD.size, count, COLUMNS)
    view = memoryview(data)
    actual = _checksum(count, view[_HEAD.size : reader.end])
    if actual != crc:
        raise BatchFormatError(f"the block's CRC32C is 0x{actual:08x}, but it says 0x{crc:08x}")
    block = MessageBlock(  # in the order of the columns
        sequences=reader.required_numbers(SEQUENCES),
        lease_numbers=reader.required_numbers(LEASE_NUMBERS),
        attempts=reader.required_numbers(ATTEMPTS),
        enqueued_ms=reader.required_numbers(ENQUEUED_TIMES),
        bodies=_slices(view, reader.end, reader.required_numbers(BODY_LENGTHS)),
        body_checksums=reader.required_numbers(BODY_CHECKSUMS),
        body_positions=reader.required_numbers(BODY_POSITIONS),
        codecs=reader.numbers(BODY_CODECS),
        lease_remaining_ms=reader.numbers(LEASE_REMAINING),
        priorities=reader.numbers(PRIORITIES),
        tenants=_all_names(reader.names(TENANTS)),
        ids=reader.cells(IDS),
        keys=reader.cells(KEYS),
        headers=reader.cells(HEADERS),
    )
    reader.finish()
    return block


def _slices(view: memoryview, start: int, lengths: Sequence[int]) -> list[memoryview]:
    total = sum(lengths)
    if total != len(view) - start:
        raise BatchFormatError(f"the bodies claim to have {total} bytes, but {len(view) - start} are there")
    return [view[first:end] for first, end in pairwise(accumulate(lengths, initial=start))]


def _all_names(tenants: Names | None) -> list[bytes] | None:
    return None if tenants is None else tenants.to_list()


def _checksum(count: int, columns: Buffer) -> int:
    return crc32c(columns, crc32c(count.to_bytes(4, "little")))
