"""Upper bounds of the record timestamps in blocks of a log, so that a search by time reads few entries.

Record timestamps come from producers and are in no order, so they cannot be bisected. A running maximum could be, but it would name the
wrong batch once the record that set it was trimmed. Here a block of consecutive entries has a bound: no record in it has a later
timestamp. A bound may be too high, for instance after entries were replaced, which costs a search one look into the block. It is never
too low. It is pure, and must not read entries.

The bounds are not part of the log's format. They follow from the entries, and a replica that lacks them reads the entries once. They are
kept in a file of their own, which may be lost or outdated: by Raft's log matching, an entry with the same index and term follows the
same entries, so the bounds up to such an entry hold.

Source: Ongaro's thesis 3.5 (log matching).
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from raftmq.storage.checksum import CHECKSUM_BYTES, is_intact, seal
from raftmq.storage.entry_codec import CodecError

BLOCK_ENTRIES: Final = 64
"""Entries of a block in a log that is not long: a search reads a few of them."""
BLOCKS_MAX: Final = 4096
"""Bounds of one replica, 32 KiB. A longer log has larger blocks: pairs are merged."""
SAVE_BYTES: Final = 64 << 20
"""Bytes of batches after which the bounds are saved, and the most that the first search after a crash must read."""
FORMAT_VERSION: Final = 1

UNKNOWN: Final = (1 << 63) - 1
"""The bound of a block whose entries were not read. It is also a timestamp, which then looks unknown and is read, too."""
NOTHING: Final = -(1 << 63)
"""The bound of a block without records."""

_KEY: Final = b"times"
_HEADER: Final = struct.Struct("<IQQQQQQQI")
"""format, group, replica, first and last covered index, term of the last, entries per block, number of the first block, blocks."""


class Block(NamedTuple):
    """A block of entries that may hold a record at or after a time."""

    first_index: int
    last_index: int
    """Inclusive. Its last entries may not exist yet."""


class Covered(NamedTuple):
    """The entries that saved bounds cover. The bounds hold for a log that starts no earlier and has the last entry, with its term."""

    first_index: int
    last_index: int
    """Inclusive."""
    last_term: int


class SavedBounds(NamedTuple):
    """The content of a file of bounds."""

    key: tuple[int, int]
    """The group and the replica."""
    covered: Covered
    bounds: TimeBounds


class TimeBounds:
    """The bounds of one log."""

    def __init__(self, first_index: int, last_index: int) -> None:
        """Begin with the entries `first_index`..`last_index` (none if it is smaller), none of which were read."""
        self.block_entries = BLOCK_ENTRIES
        while (last_index - first_index) // self.block_entries >= BLOCKS_MAX // 2:
            self.block_entries *= 2
        self._first_block = first_index // self.block_entries
        count = last_index // self.block_entries - self._first_block + 1 if last_index >= first_index else 0
        self._bounds = array("q", [UNKNOWN]) * count

    def raise_to(self, index: int, timestamp_ms: int) -> None:
        """Add an entry whose latest record has this timestamp. Entries without records need not be added."""
        position = index // self.block_entries - self._first_block
        if position >= len(self._bounds):
            self._bounds.extend([NOTHING] * (position + 1 - len(self._bounds)))
            while len(self._bounds) > BLOCKS_MAX:
                self._merge_pairs()
            position = index // self.block_entries - self._first_block
        if self._bounds[position] < timestamp_ms:
            self._bounds[position] = timestamp_ms

    def drop_before(self, index: int) -> None:
        """Forget the blocks that lie wholly before an entry, since the log was truncated."""
        first_block = index // self.block_entries
        if first_block > self._first_block:
            del self._bounds[: first_block - self._first_block]
            self._first_block = first_block

    def next_block(self, index: int, timestamp_ms: int) -> Block | None:
        """Return the first block that ends at `index` or later and may hold a record at or after a time, or None."""
        start = max(0, index // self.block_entries - self._first_block)
        for position in range(start, len(self._bounds)):
            if self._bounds[position] >= timestamp_ms:
                return self._block(position)
        return None

    def settle(self, block: Block, bound: int) -> None:
        """Set the bound of a block all of whose entries were read. Does nothing if blocks were merged or dropped since."""
        position = block.first_index // self.block_entries - self._first_block
        if 0 <= position < len(self._bounds) and self._block(position) == block:
            self._bounds[position] = bound

    def adopt(self, saved: TimeBounds, covered_index: int) -> None:
        """Take saved bounds for blocks that were not read, as far as the entries up to `covered_index` fill them."""
        for position, bound in enumerate(self._bounds):
            block = self._block(position)
            if bound == UNKNOWN and block.last_index <= covered_index:
                self._bounds[position] = saved.bound_of(block)

    def bound_of(self, block: Block) -> int:
        """Return a bound for a block of any size. Entries outside the own blocks are truncated, or have no records."""
        first = max(0, block.first_index // self.block_entries - self._first_block)
        end = max(0, block.last_index // self.block_entries - self._first_block + 1)
        return max(self._bounds[first:end], default=NOTHING)

    def _block(self, position: int) -> Block:
        first_index = (self._first_block + position) * self.block_entries
        return Block(first_index, first_index + self.block_entries - 1)

    def _merge_pairs(self) -> None:
        """Double the size of the blocks."""
        old = self._bounds
        if self._first_block % 2:
            old.insert(0, NOTHING)
        if len(old) % 2:
            old.append(NOTHING)
        self._bounds = array("q", map(max, old[::2], old[1::2]))
        self._first_block //= 2
        self.block_entries *= 2

    def encode(self, key: tuple[int, int], covered: Covered) -> bytes:
        """Return the content of the file."""
        count = len(self._bounds)
        header = _HEADER.pack(FORMAT_VERSION, *key, *covered, self.block_entries, self._first_block, count)
        return seal(_KEY, header + struct.pack(f"<{count}q", *self._bounds))

    @classmethod
    def restored(cls, block_entries: int, first_block: int, bounds: Iterable[int]) -> TimeBounds:
        """Return bounds as they were when they were saved."""
        found = cls(0, -1)
        found.block_entries, found._first_block, found._bounds = block_entries, first_block, array("q", bounds)
        return found

    def __iter__(self) -> Iterator[tuple[Block, int]]:
        """Yield each block with its bound."""
        return ((self._block(position), bound) for position, bound in enumerate(self._bounds))


def decode_bounds(value: bytes) -> SavedBounds:
    """Decode the content of a file of bounds. Raises `CodecError` if it is damaged, cut off, or of another version."""
    if len(value) < _HEADER.size + CHECKSUM_BYTES or not is_intact(_KEY, value):
        raise CodecError("the saved bounds do not match their checksum")
    version, group, replica, first, last, term, block_entries, first_block, count = _HEADER.unpack_from(value)
    if version != FORMAT_VERSION or block_entries < 1 or len(value) != _HEADER.size + 8 * count + CHECKSUM_BYTES:
        raise CodecError(f"saved bounds of version {version} with {count} blocks in {len(value)} bytes")
    bounds = TimeBounds.restored(block_entries, first_block, struct.unpack_from(f"<{count}q", value, _HEADER.size))
    return SavedBounds((group, replica), Covered(first, last, term), bounds)
