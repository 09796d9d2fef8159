"""Encoded ranges of finished offsets: they round-trip, equal sets have equal bytes, and foreign bytes are refused or are ranges."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.offset_ranges import (
    OFFSET_MAX,
    RANGES_BYTES_MAX,
    RANGES_MAX,
    OffsetRangesError,
    decode_ranges,
    encode_ranges,
)

STEPS = st.integers(1, 300) | st.integers(1, 1 << 40)


@given(st.integers(0, 1 << 50), st.lists(st.tuples(STEPS, STEPS), max_size=50))
def test_encoded_ranges_decode_to_the_same_ranges(offset: int, steps: list[tuple[int, int]]) -> None:
    ranges, at = [], offset
    for gap, length in steps:
        ranges.append((at + gap, at + gap + length))
        at += gap + length
    assert decode_ranges(offset, encode_ranges(offset, ranges)) == tuple(ranges)


def test_ranges_are_encoded_as_the_documented_bytes() -> None:
    """These bytes are part of the protocol and of the format on disk."""
    assert encode_ranges(10, []) == b""
    assert encode_ranges(10, [(11, 13), (20, 21)]) == bytes([1, 2, 7, 1])
    assert encode_ranges(0, [(128, 428)]) == bytes([0x80, 0x01, 0xAC, 0x02])


@given(st.binary(max_size=200) | st.binary(min_size=2, max_size=50).map(lambda data: data + b"\x01"))
def test_any_bytes_are_refused_or_are_ranges_with_a_unique_encoding(data: bytes) -> None:
    try:
        ranges = decode_ranges(5, data)
    except OffsetRangesError:
        return
    ends = [5, *(end for one in ranges for end in one)]
    assert ends == sorted(set(ends))
    assert ends[-1] <= OFFSET_MAX
    assert encode_ranges(5, ranges) == data


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x01", "the last one is incomplete"),
        (b"\x00\x01", "is 0"),
        (b"\x01\x00", "is 0"),
        (b"\x81\x00\x01", "more bytes than necessary"),
        (b"\x01\x81", "end within a number"),
        (b"\xff" * 10 + b"\x01\x01", "too long"),
        (b"\xff" * 8 + b"\x7f\x01", "above the largest offset"),
        (b"\x01\x01" * (RANGES_MAX + 1), f"at most {RANGES_MAX} ranges"),
        (b"\x80\x80\x01\x01" * (RANGES_BYTES_MAX // 4) + b"\x01\x01", f"at most {RANGES_BYTES_MAX} bytes"),
    ],
)
def test_refused_ranges_raise_an_error_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(OffsetRangesError, match=message):
        decode_ranges(5, data)


def test_the_lowest_of_too_many_ranges_are_kept() -> None:
    many = [(2 * number + 1, 2 * number + 2) for number in range(RANGES_MAX + 5)]
    assert decode_ranges(0, encode_ranges(0, many)) == tuple(many[:RANGES_MAX])
    wide = [(number << 40, (number << 40) + 1) for number in range(1, RANGES_MAX)]
    data = encode_ranges(0, wide)
    assert RANGES_BYTES_MAX - 8 < len(data) <= RANGES_BYTES_MAX
    assert decode_ranges(0, data) == tuple(wide[: len(decode_ranges(0, data))])
