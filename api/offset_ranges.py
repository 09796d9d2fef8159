"""Ranges of offsets beside a committed offset: the records of a partition that are finished beyond it, in few bytes.

Shared by the client, which encodes and decodes them, and the broker, which validates and stores them. Pure. The bytes are LEB128 numbers in
pairs: the number of offsets that are not finished, then the number of those that are. The first pair begins at the committed offset. Every
number is at least 1 and has the minimum number of bytes, so equal sets have equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

RANGES_MAX: Final = 1000
"""Maximum number of ranges beside one offset. A worker with its default of 1,000 records of a partition in work never has more than 500."""
RANGES_BYTES_MAX: Final = 4096
"""Maximum bytes of the ranges, as of a commit's note. A range usually takes two to four bytes, so 1,000 of them usually fit."""
OFFSET_MAX: Final = (1 << 63) - 1
_NUMBER_BYTES_MAX: Final = 9
"""Maximum bytes of one number, because offsets have 63 bits."""

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges, ascending, never adjacent."""


class OffsetRangesError(ValueError):
    """The bytes are not valid ranges, or too many."""


def encode_ranges(offset: int, ranges: Iterable[tuple[int, int]]) -> bytes:
    """Encode the ranges beside a committed offset. If there are too many, the lowest are kept. All must begin above the offset."""
    out = bytearray()
    at = offset
    for count, (start, end) in enumerate(ranges):
        pair = _number(start - at) + _number(end - start)
        if count == RANGES_MAX or len(out) + len(pair) > RANGES_BYTES_MAX:
            break
        out += pair
        at = end
    return bytes(out)


def decode_ranges(offset: int, data: bytes) -> Ranges:
    """Decode the bytes of `encode_ranges`. Raises `OffsetRangesError` before it does much work for invalid bytes."""
    if len(data) > RANGES_BYTES_MAX:
        raise OffsetRangesError(
            f"ranges of finished records must have at most {RANGES_BYTES_MAX} bytes, not {len(data)}"
        )
    ends = [offset]
    for number in _numbers(data):
        ends.append(ends[-1] + number)
    if len(ends) % 2 == 0:
        raise OffsetRangesError("ranges of finished records must be pairs of numbers, but the last one is incomplete")
    if len(ends) > 2 * RANGES_MAX + 1:
        raise OffsetRangesError(f"at most {RANGES_MAX} ranges of finished records are allowed, not {len(ends) // 2}")
    if ends[-1] > OFFSET_MAX:
        raise OffsetRangesError("ranges of finished records end above the largest offset")
    return tuple(pairwise(ends))[1::2]


def _number(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(0x80 | (value & 0x7F))
        value >>= 7
    out.append(value)
    return bytes(out)


def _numbers(data: bytes) -> Iterable[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte & 0x80:
            if shift >= 7 * _NUMBER_BYTES_MAX:
                raise OffsetRangesError("a number in the ranges of finished records is too long")
            continue
        if byte == 0:
            raise OffsetRangesError("a number in the ranges of finished records is 0, or has more bytes than necessary")
        yield value
        value = shift = 0
    if shift:
        raise OffsetRangesError("the ranges of finished records end within a number")
