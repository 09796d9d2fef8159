"""The fixed 64-byte header of a batch. Of a record batch a broker reads nothing else: the body is opaque to it.

Message batches and firings, the entries of queue topics, have the same header with another magic (`queue_batch`).

Layout, little-endian, without padding, frozen once released:

    offset size field              offset size field
         0    2 magic                  20    8 base_timestamp_ms (signed)
         2    1 version                28    8 max_timestamp_ms (signed)
         3    1 codec                  36    8 producer_id (0: none)
         4    4 flags                  44    8 producer_epoch
         8    4 record_count           52    8 first_sequence
        12    4 body_bytes             60    4 crc32c of bytes 0..59 and the body
        16    4 raw_body_bytes

Imports nothing of RaftMQ. It neither reads nor decompresses the body, so a forged claim about sizes costs nothing here.

Source: CRC32C (Castagnoli), RFC 3720 appendix B.4.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

BATCH_MAGIC = 0x4D52
QUEUE_BATCH_MAGIC = 0x5152
FIRING_MAGIC = 0x4652
KIND_BY_MAGIC = {
    BATCH_MAGIC: "a record batch of a log topic",
    QUEUE_BATCH_MAGIC: "a message batch of a queue topic",
    FIRING_MAGIC: "a schedule's firing",
}
"""The kinds of batches in words, for errors."""
BATCH_VERSION = 1
HEADER_BYTES = 64
RECORD_COUNT_MAX = 1 << 20
"""Maximum number of records in one batch. It limits the offset space that a forged count can take. Batches of 1 MiB stay far below it."""
RAW_BODY_BYTES_MAX = 64 << 20
"""Maximum decompressed size of a body, which limits the memory that one batch can make a reader allocate."""
SEQUENCE_MAX = (1 << 64) - 1

CODEC_NONE = 0
CODEC_LZ4 = 1
CODEC_ZSTD = 2
CODEC_SNAPPY = 3
CODEC_GZIP = 4
CODEC_MAX = CODEC_GZIP

Buffer = bytes | bytearray | memoryview

_HEADER = Struct("<HBBIIIIqqQQQI")
_TIMES = Struct("<H26xq")
"""magic and max_timestamp_ms."""
_CRC = Struct("<I")
_CRC_OFFSET = HEADER_BYTES - _CRC.size


class BatchFormatError(ValueError):
    """The bytes are not a batch that this version accepts. They had no effect.

    The reason is for people. The subclasses distinguish the cases to which a caller can react.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BatchTooLargeError(BatchFormatError):
    """The batch, or its claimed content, is larger than allowed."""


class BatchKindError(BatchFormatError):
    """The bytes begin like a batch of another kind, such as messages that are sent to a log topic."""


class UnsupportedBatchVersionError(BatchFormatError):
    """The bytes begin like a batch, of a version that this software does not know."""


class UnsupportedCodecError(BatchFormatError):
    """The body is compressed with a codec that this software does not know."""


class BatchHeader(NamedTuple):
    """A parsed header, in the order of the layout."""

    magic: int
    version: int
    codec: int
    flags: int
    """The lower 8 bits belong to the format, the upper 24 to the writer (Spark's task count)."""
    record_count: int
    body_bytes: int
    """Size as stored, after compression."""
    raw_body_bytes: int
    """Size after decompression, as the writer claims."""
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    """0: the batch is not idempotent, and epoch and sequence have no meaning."""
    producer_epoch: int
    first_sequence: int
    """Sequence of the first record. Record i has first_sequence + i."""
    crc: int

    @property
    def last_sequence(self) -> int:
        """Return the sequence of the last record (inclusive)."""
        return self.first_sequence + self.record_count - 1


def parse_header(buffer: Buffer, magic: int = BATCH_MAGIC) -> BatchHeader:
    """Read the header's fields without checking the CRC or the body. Raises `BatchFormatError` if the bytes cannot be a header."""
    if len(buffer) < HEADER_BYTES:
        raise BatchFormatError(f"a batch has at least {HEADER_BYTES} bytes, but this one has {len(buffer)}")
    header = BatchHeader._make(_HEADER.unpack_from(buffer))
    if header.magic != magic:
        raise _magic_error(header.magic, magic)
    if header.version != BATCH_VERSION:
        raise UnsupportedBatchVersionError(
            f"batch version {header.version} is not supported, only {BATCH_VERSION} is: upgrade the older side"
        )
    return header


def _magic_error(found: int, expected: int) -> BatchFormatError:
    begins = f"{KIND_BY_MAGIC[expected]} begins with 0x{expected:04x}"
    kind = KIND_BY_MAGIC.get(found)
    if kind is None:
        return BatchFormatError(f"{begins}, but this begins with 0x{found:04x}")
    return BatchKindError(f"{begins}, but this is {kind}, which begins with 0x{found:04x}")


def max_timestamp_of(buffer: Buffer) -> int | None:
    """Return the time of the latest record according to the header of a record batch. None: these bytes are no record batch."""
    if len(buffer) < HEADER_BYTES:
        return None
    magic: int
    max_timestamp_ms: int
    magic, max_timestamp_ms = _TIMES.unpack_from(buffer)
    return max_timestamp_ms if magic == BATCH_MAGIC else None


def magic_of(buffer: Buffer) -> int:
    """Return the number that tells the kind of a batch, or of other bytes. It is 0 for fewer than 2 bytes."""
    return int.from_bytes(buffer[:2], "little") if len(buffer) >= 2 else 0


def validate(buffer: Buffer, bytes_max: int, magic: int = BATCH_MAGIC) -> BatchHeader:
    """Check the header and the CRC of a batch of at most `bytes_max` bytes, including the header.

    These are all checks of a broker on a record batch. `queue_batch.validate_queue` adds those on messages.

    Raises:
        BatchTooLargeError: the buffer, the record count or the claimed decompressed size exceeds its limit.
        UnsupportedBatchVersionError: the version is not supported.
        UnsupportedCodecError: the codec is not supported.
        BatchFormatError: length, magic, count, sequence or CRC is wrong.
    """
    size = len(buffer)
    if size > bytes_max:
        raise BatchTooLargeError(f"the batch has {size} bytes, but at most {bytes_max} are allowed")
    header = parse_header(buffer, magic)
    if header.body_bytes != size - HEADER_BYTES:
        raise BatchFormatError(f"the header says {header.body_bytes} body bytes, but there are {size - HEADER_BYTES}")
    if header.record_count < 1:
        raise BatchFormatError("a batch must have at least one record")
    if header.record_count > RECORD_COUNT_MAX:
        raise BatchTooLargeError(
            f"the batch claims {header.record_count} records, but at most {RECORD_COUNT_MAX} are allowed"
        )
    if header.raw_body_bytes > RAW_BODY_BYTES_MAX:
        raise BatchTooLargeError(
            f"the body claims to have {header.raw_body_bytes} bytes when decompressed, but at most {RAW_BODY_BYTES_MAX} are allowed"
        )
    if header.codec > CODEC_MAX:
        raise UnsupportedCodecError(f"codec {header.codec} is not supported")
    if header.last_sequence > SEQUENCE_MAX:
        raise BatchFormatError("the sequence exceeds 64 bits")
    actual = _checksum(buffer)
    if actual != header.crc:
        raise BatchFormatError(f"CRC32C is 0x{actual:08x}, but the header says 0x{header.crc:08x}")
    return header


def seal(
    body: Buffer,
    *,
    record_count: int,
    raw_body_bytes: int,
    base_timestamp_ms: int,
    max_timestamp_ms: int,
    codec: int = CODEC_NONE,
    flags: int = 0,
    producer_id: int = 0,
    producer_epoch: int = 0,
    first_sequence: int = 0,
    magic: int = BATCH_MAGIC,
) -> bytes:
    """Put the header with its CRC in front of an encoded (and compressed) body.

    Raises `struct.error` for a number that does not fit into its field. `validate` checks limits.
    """
    head = _HEADER.pack(
        magic,
        BATCH_VERSION,
        codec,
        flags,
        record_count,
        len(body),
        raw_body_bytes,
        base_timestamp_ms,
        max_timestamp_ms,
        producer_id,
        producer_epoch,
        first_sequence,
        0,
    )[:_CRC_OFFSET]
    return b"".join((head, _CRC.pack(crc32c(body, crc32c(head))), body))


def _checksum(buffer: Buffer) -> int:
    view = memoryview(buffer)
    return crc32c(view[HEADER_BYTES:], crc32c(view[:_CRC_OFFSET]))
