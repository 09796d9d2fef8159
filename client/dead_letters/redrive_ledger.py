"""`RedriveLedger`: which letters of a stretch of a dead-letter partition were sent back, and which are on their way.

It is kept in the cluster as the stamp of a producer's name and changed by compare and swap (`client/producer/sequenced_append.py`). The rules:

1. Before letters are sent back, they are entered as the ledger's `chunk` under a new number.
2. The n-th letter of a chunk for a partition is appended under the name's producer id, the chunk's number as epoch and n as sequence.
   Whoever finds a chunk sends all of it again before anything else, so a letter is written once however often its chunk is sent.
3. When all of them are acknowledged, the chunk's letters are entered as `settled`.

A second process that works on the same stretch either sends the same chunk, which changes nothing, or loses the swap and stops.

Pure. Source: the ledger of Spark's sink (`spark/batch_ledger.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from raftmq.errors import ProtocolError

STRETCH_RECORDS: Final = 16_000
"""Offsets of one ledger: two bitmaps of as many bits fit a stamp, which has at most 4 KiB."""
_HEAD: Final = struct.Struct("<BQH")
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class RedriveLedger:
    """The ledger of offsets `first` to `first + STRETCH_RECORDS`, exclusive. A bit of number n stands for offset `first + n`."""

    first: int
    number: int = 0
    """Of the latest chunk; the epoch under which its letters are appended."""
    settled: int = 0
    """Bits of the letters that are no longer waiting: they were sent back, or purged."""
    chunk: int = 0
    """Bits of the letters on their way. They may be written; disjoint from `settled`."""

    def is_settled(self, offset: int) -> bool:
        """Whether the letter is no longer waiting."""
        return bool(self.settled >> offset - self.first & 1)

    def chunk_offsets(self) -> list[int]:
        """The letters on their way, in order."""
        return list(_offsets(self.chunk, self.first))

    def settled_count(self, start: int, end: int) -> int:
        """How many letters from `start` to `end`, exclusive, are no longer waiting."""
        low, high = max(start - self.first, 0), min(end - self.first, STRETCH_RECORDS)
        return (self.settled >> low & (1 << high - low) - 1).bit_count() if high > low else 0

    def first_waiting(self, start: int, end: int) -> int:
        """The first offset from `start` on that is not settled; at most `end`, which is in this stretch or just after it."""
        return next((offset for offset in range(start, end) if not self.is_settled(offset)), end)

    def with_chunk(self, offsets: Iterable[int]) -> RedriveLedger:
        """Letters are about to be sent back."""
        return replace(self, number=self.number + 1, chunk=_bits(offsets, self.first))

    def with_settled(self, offsets: Iterable[int]) -> RedriveLedger:
        """These letters are no longer waiting."""
        return replace(self, settled=self.settled | _bits(offsets, self.first))

    def without_chunk(self) -> RedriveLedger:
        """Nothing is on its way."""
        return replace(self, chunk=0)

    def encode(self) -> bytes:
        """As a stamp."""
        settled = _to_bytes(self.settled)
        return _HEAD.pack(_VERSION, self.number, len(settled)) + settled + _to_bytes(self.chunk)

    @staticmethod
    def decode(stamp: bytes, first: int) -> RedriveLedger:
        """Read a stamp back. Raises `ProtocolError` for one that is none."""
        if len(stamp) < _HEAD.size or stamp[0] != _VERSION:
            raise ProtocolError("the cluster's note about the redrive is of another version of RaftMQ")
        _, number, size = _HEAD.unpack_from(stamp)
        body = stamp[_HEAD.size :]
        settled, chunk = int.from_bytes(body[:size], "little"), int.from_bytes(body[size:], "little")
        return RedriveLedger(first, number, settled, chunk)


def stretches(start: int, end: int) -> Iterator[int]:
    """The first offset of each stretch that has offsets from `start` to `end`, exclusive."""
    if start < end:
        yield from range(start - start % STRETCH_RECORDS, end, STRETCH_RECORDS)


def _bits(offsets: Iterable[int], first: int) -> int:
    bits = 0
    for offset in offsets:
        bits |= 1 << offset - first
    return bits


def _offsets(bits: int, first: int) -> Iterator[int]:
    while bits:
        lowest = bits & -bits
        yield first + lowest.bit_length() - 1
        bits ^= lowest


def _to_bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
