"""Layout and checks of the batch header."""

import struct

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq import batch_header
from raftmq.batch_header import BatchFormatError, parse_header, seal, validate

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)


def sealed(body: bytes = b"body", **fields: int) -> bytes:
    values = {"record_count": 3, "raw_body_bytes": len(body), "base_timestamp_ms": 10, "max_timestamp_ms": 12}
    return seal(body, **(values | fields))


def test_header_is_64_bytes_in_the_documented_layout() -> None:
    batch = seal(
        b"xyz",
        record_count=7,
        raw_body_bytes=99,
        base_timestamp_ms=-5,
        max_timestamp_ms=6,
        codec=2,
        flags=0xABCDEF01,
        producer_id=11,
        producer_epoch=12,
        first_sequence=13,
    )
    assert struct.calcsize("<HBBIIIIqqQQQI") == batch_header.HEADER_BYTES == 64
    head = struct.pack("<HBBIIIIqqQQQ", 0x4D52, 1, 2, 0xABCDEF01, 7, 3, 99, -5, 6, 11, 12, 13)
    assert batch == head + struct.pack("<I", crc32c.crc32c(head + b"xyz")) + b"xyz"


def test_a_batch_of_release_0_1_can_be_read() -> None:
    """Released bytes must remain readable indefinitely."""
    frozen = bytes.fromhex(
        "524d0100"
        "00000000"
        "01000000"
        "02000000"
        "02000000"
        "e803000000000000"
        "e903000000000000"
        "0500000000000000"
        "0600000000000000"
        "0700000000000000"
        "50aa0f3a"
        "6869"
    )
    header = validate(frozen, 1 << 20)
    assert header[:12] == (0x4D52, 1, 0, 0, 1, 2, 2, 1000, 1001, 5, 6, 7)
    assert frozen == sealed(
        b"hi",
        record_count=1,
        base_timestamp_ms=1000,
        max_timestamp_ms=1001,
        producer_id=5,
        producer_epoch=6,
        first_sequence=7,
    )


@given(
    body=st.binary(max_size=200),
    count=st.integers(1, batch_header.RECORD_COUNT_MAX),
    times=st.tuples(I64, I64),
    producer=st.tuples(U64, U64, st.integers(0, 2**63)),
    codec=st.integers(0, 3),
    flags=st.integers(0, 2**32 - 1),
)
def test_a_sealed_batch_validates_and_reads_back(
    body: bytes, count: int, times: tuple[int, int], producer: tuple[int, int, int], codec: int, flags: int
) -> None:
    batch = seal(
        body,
        record_count=count,
        raw_body_bytes=len(body),
        base_timestamp_ms=times[0],
        max_timestamp_ms=times[1],
        codec=codec,
        flags=flags,
        producer_id=producer[0],
        producer_epoch=producer[1],
        first_sequence=producer[2],
    )
    header = validate(memoryview(batch), len(batch))
    assert header == parse_header(batch)
    assert header[2:12] == (codec, flags, count, len(body), len(body), *times, *producer)
    assert header.last_sequence == producer[2] + count - 1


@given(data=st.data())
def test_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    batch = bytearray(sealed(data.draw(st.binary(max_size=40)), producer_id=9))
    position = data.draw(st.integers(0, len(batch) * 8 - 1))
    batch[position // 8] ^= 1 << (position % 8)
    with pytest.raises(BatchFormatError):
        validate(batch, 1 << 20)


@given(garbage=st.binary(max_size=200))
def test_garbage_is_refused_with_the_typed_error_only(garbage: bytes) -> None:
    with pytest.raises(BatchFormatError):
        validate(garbage, 1 << 20)


@given(fields=st.lists(U64, min_size=13, max_size=13), body=st.binary(max_size=20))
def test_hostile_headers_are_refused_or_consistent(fields: list[int], body: bytes) -> None:
    widths = [16, 8, 8, 32, 32, 32, 32, 63, 63, 64, 64, 64, 32]
    values = [value % (1 << width) for value, width in zip(fields, widths, strict=True)]
    values[0], values[1], values[5] = 0x4D52, 1, len(body)
    head = struct.pack("<HBBIIIIqqQQQ", *values[:12])
    batch = head + struct.pack("<I", crc32c.crc32c(head + body)) + body
    try:
        header = validate(batch, 1 << 20)
    except BatchFormatError:
        return
    assert 1 <= header.record_count <= batch_header.RECORD_COUNT_MAX
    assert header.last_sequence <= 2**64 - 1
    assert header.raw_body_bytes <= batch_header.RAW_BODY_BYTES_MAX


@pytest.mark.parametrize(
    ("batch", "error"),
    [
        (b"", BatchFormatError),
        (sealed()[:63], BatchFormatError),
        (sealed()[:-1], BatchFormatError),
        (sealed() + b"x", BatchFormatError),
        (sealed(record_count=0), BatchFormatError),
        (sealed(record_count=batch_header.RECORD_COUNT_MAX + 1), batch_header.BatchTooLargeError),
        (sealed(raw_body_bytes=2**32 - 1), batch_header.BatchTooLargeError),
        (sealed(bytes(2000)), batch_header.BatchTooLargeError),
        (sealed(codec=5), batch_header.UnsupportedCodecError),
        (sealed(first_sequence=2**64 - 2), BatchFormatError),
        (b"RM\x02" + sealed()[3:], batch_header.UnsupportedBatchVersionError),
    ],
)
def test_each_defect_has_its_error(batch: bytes, error: type[BatchFormatError]) -> None:
    with pytest.raises(BatchFormatError) as caught:
        validate(batch, 1000)
    assert type(caught.value) is error
    assert caught.value.reason


def test_the_largest_sequence_fits() -> None:
    assert validate(sealed(first_sequence=2**64 - 3), 1000).last_sequence == 2**64 - 1
