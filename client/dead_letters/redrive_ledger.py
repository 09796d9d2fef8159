"""`RedriveLedger`: which letters of a stretch of a dead-letter partition were sent back, and which are being sent.

It is stored in the cluster as the stamp of a producer name, and changed by compare and swap (`client/producer/sequenced_append.py`). The rules:

1. Before letters are sent back, they are entered as the ledger's `chunk` under a new number.
2. The n-th letter of a chunk for a partition is appended under the name's producer id, the chunk's number as epoch and n as sequence. A
   process that finds a chunk first sends all of it again. So a letter is written once, however often its chunk is sent.
3. When all of them are acknowledged, the chunk's letters are entered as `settled`.

A second process that works on the same stretch either sends the same chunk, which changes nothing, or loses the swap and stops.

Pure. Source: the ledger of Spark's sink (`spark/sink/ledger/batch_ledger.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final

from raftmq.errors import ProtocolError

STRETCH_RECORDS: Final = 16_000
"""The number of offsets of one ledger. Two bitmaps of that many bits fit into a stamp, which has at most 4 KiB."""
_HEAD: Final = struct.Struct("<BQH")
_GROUP: Final = struct.Struct("<Q")
_VERSION: Final = 1
"""Of a ledger without a group."""
_GROUP_VERSION: Final = 2


@dataclass(frozen=True, slots=True)
class RedriveLedger:
    """The ledger of offsets `first` to `first + STRETCH_RECORDS`, exclusive. Bit n stands for offset `first + n`."""

    first: int
    number: int = 0
    """The number of the latest chunk, which is the epoch under which its letters are appended."""
    settled: int = 0
    """The bits of the letters that no longer wait, because they were sent back or purged."""
    chunk: int = 0
    """The bits of the letters that are being sent. They may have been written. Disjoint from `settled`."""
    group_id: int = 0
    """The Raft group whose offsets these are. A later one, of a recovery, may have given some of them to other letters. 0: not known."""

    def is_settled(self, offset: int) -> bool:
        """Return whether the letter no longer waits."""
        return bool(self.settled >> offset - self.first & 1)

    def chunk_offsets(self) -> list[int]:
        """Return the letters that are being sent, in order."""
        return list(_offsets(self.chunk, self.first))

    def settled_count(self, start: int, end: int) -> int:
        """Return the number of letters from `start` to `end`, exclusive, that no longer wait."""
        low, high = max(start - self.first, 0), min(end - self.first, STRETCH_RECORDS)
        return (self.settled >> low & (1 << high - low) - 1).bit_count() if high > low else 0

    def first_waiting(self, start: int, end: int) -> int:
        """Return the first offset from `start` on that is not settled, at most `end`, which is in this stretch or just after it."""
        return next((offset for offset in range(start, end) if not self.is_settled(offset)), end)

    def with_chunk(self, offsets: Iterable[int]) -> RedriveLedger:
        """Return the ledger with a new chunk of letters to send back."""
        return replace(self, number=self.number + 1, chunk=_bits(offsets, self.first))

    def with_settled(self, offsets: Iterable[int]) -> RedriveLedger:
        """Return the ledger with these letters settled."""
        return replace(self, settled=self.settled | _bits(offsets, self.first))

    def without_chunk(self) -> RedriveLedger:
        """Return the ledger without a chunk."""
        return replace(self, chunk=0)

    def encode(self) -> bytes:
        """Encode it as a stamp."""
        settled = _to_bytes(self.settled)
        version, group = (_GROUP_VERSION, _GROUP.pack(self.group_id)) if self.group_id else (_VERSION, b"")
        return _HEAD.pack(version, self.number, len(settled)) + group + settled + _to_bytes(self.chunk)

    @staticmethod
    def decode(stamp: bytes, first: int) -> RedriveLedger:
        """Decode a stamp. Raises `ProtocolError` if it is no ledger."""
        has_group = stamp[:1] == bytes((_GROUP_VERSION,))
        start = _HEAD.size + (_GROUP.size if has_group else 0)
        if len(stamp) < start or stamp[0] not in (_VERSION, _GROUP_VERSION):
            raise ProtocolError("another version of RaftMQ wrote the state of the redrive in the cluster")
        _, number, size = _HEAD.unpack_from(stamp)
        (group_id,) = _GROUP.unpack_from(stamp, _HEAD.size) if has_group else (0,)
        body = stamp[start:]
        settled, chunk = int.from_bytes(body[:size], "little"), int.from_bytes(body[size:], "little")
        return RedriveLedger(first, number, settled, chunk, group_id)


def stretches(start: int, end: int) -> Iterator[int]:
    """Yield the first offset of each stretch that has offsets from `start` to `end`, exclusive."""
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
