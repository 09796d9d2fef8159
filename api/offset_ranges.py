"""Ranges of offsets beside a committed offset: what of a partition is finished beyond it, as few bytes.

Shared by the client, which writes and reads them, and the broker, which judges and keeps them. Pure. The bytes are LEB128 numbers in
pairs: how many offsets are not finished, then how many are. The first pair begins at the committed offset. Every number is at least 1
and has no more bytes than it needs, so equal sets are equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

RANGES_MAX: Final = 1000
"""Ranges beside one offset. A worker that has 1,000 records of a partition in work, its default, never has more than 500."""
RANGES_BYTES_MAX: Final = 4096
"""Bytes of them, as much as a commit's note may have. A range takes two to four bytes, so 1,000 of them fit as a rule."""
OFFSET_MAX: Final = (1 << 63) - 1
_NUMBER_BYTES_MAX: Final = 9
"""Of one number: offsets have 63 bits."""

Ranges = tuple[tuple[int, int], ...]
"""Half-open, ascending, and never touching each other."""


class OffsetRangesError(ValueError):
    """The bytes are not ranges, or too many."""


def encode_ranges(offset: int, ranges: Iterable[tuple[int, int]]) -> bytes:
    """The ranges beside a committed offset, the lowest first and as many as may be kept; all of them begin above the offset."""
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
    """The ranges that `encode_ranges` was given. Raises `OffsetRangesError`, before it does much work for nothing."""
    if len(data) > RANGES_BYTES_MAX:
        raise OffsetRangesError(f"ranges of finished records have at most {RANGES_BYTES_MAX} bytes, not {len(data)}")
    ends = [offset]
    for number in _numbers(data):
        ends.append(ends[-1] + number)
    if len(ends) % 2 == 0:
        raise OffsetRangesError("ranges of finished records are pairs of numbers, and the last one is alone")
    if len(ends) > 2 * RANGES_MAX + 1:
        raise OffsetRangesError(f"there are at most {RANGES_MAX} ranges of finished records, not {len(ends) // 2}")
    if ends[-1] > OFFSET_MAX:
        raise OffsetRangesError("ranges of finished records end above every offset")
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
            raise OffsetRangesError("a number in the ranges of finished records is 0, or longer than it need be")
        yield value
        value = shift = 0
    if shift:
        raise OffsetRangesError("the ranges of finished records end within a number")
