"""A window: a complete prefix of an ordered index whose rows are on disk.

The window of an index holds the smallest keys, up to a fence. Every live key at or below the fence is in the heap, and no other. Beyond
the fence keys may be on disk, and those that may not be there yet are remembered in `beyond`. An empty window whose fence is not the end
means "read first", never "nothing".

Keys leave a heap lazily: a key is valid while its message is in that place, which the owner of the window decides. A key may be in the
heap twice, which is harmless for the same reason.

A window cannot influence a result, because the owner reads until the key that it needs is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from struct import Struct
from typing import Any, Final

from raftmq.fsm.queue.rows import READY_SIGN, after, delayed_suffix, place_of_delayed
from raftmq.fsm.row_reads import RowRange, RowsFound
from raftmq.fsm.tables import Row

Key = tuple[Any, ...]  # numbers; an id is the second part of the key of an id's expiry
"""Place in a window: the parts of a row's key after the prefix that all rows of the window have. The sequence is its last part."""
Placed = tuple[Key, Row]
"""A row with its place in a window."""

START: Final[Key] = (-(1 << 63),)
"""A fence below every key: nothing is known."""
END: Final[Key] = (1 << 65,)
"""A fence above every key: the window is complete."""

_READY = Struct(">IQQ")
_TIME = Struct(">QQ")
_NUMBER = Struct(">Q")


class KeyCodec:
    """Translate between the keys of a window and the ends of its rows' keys."""

    def __init__(self, encode: Callable[[Key], bytes], decode: Callable[[bytes], Key]) -> None:
        self.encode = encode
        self.decode = decode


def _decode_ready(suffix: bytes) -> Key:
    priority, due, sequence = _READY.unpack(suffix)
    return (priority - READY_SIGN, due, sequence)


BY_PRIORITY: Final = KeyCodec(lambda key: _READY.pack(key[0] + READY_SIGN, key[1], key[2]), _decode_ready)
"""(priority, due, sequence)"""
BY_TIME: Final = KeyCodec(lambda key: _TIME.pack(*key), _TIME.unpack)
"""(time, sequence)"""
BY_NUMBER: Final = KeyCodec(lambda key: _NUMBER.pack(*key), _NUMBER.unpack)
"""(sequence,)"""
BY_DUE: Final = KeyCodec(lambda key: delayed_suffix(*key), place_of_delayed)
"""(due, sequence). The order of the rows is another one: see `delayed_window`."""
BY_TIME_AND_ID: Final = KeyCodec(
    lambda key: _NUMBER.pack(key[0]) + key[1], lambda suffix: (*_NUMBER.unpack(suffix[:8]), suffix[8:])
)
"""(time, id)"""


class Window:
    """Hold the smallest keys of one index."""

    __slots__ = ("beyond", "codec", "fence", "heap", "is_valid", "prefix")

    def __init__(self, prefix: bytes, codec: KeyCodec, is_valid: Callable[[Key], bool], *, is_complete: bool) -> None:
        self.prefix = prefix
        """The bytes with which the keys of the index's rows begin."""
        self.codec = codec
        self.is_valid = is_valid
        """Whether a key in memory still names something in this index."""
        self.heap: list[Key] = []
        self.beyond: list[Key] = []
        """A heap of keys above the fence whose rows may not be on disk yet."""
        self.fence = END if is_complete else START
        """The window is complete up to this key, inclusive."""

    def insert(self, key: Key) -> None:
        """Add a key that came into the index."""
        heappush(self.heap if key <= self.fence else self.beyond, key)

    def first(self) -> Key | None:
        """Return the smallest key in memory without removing it, or None if none is known (see `is_unread`)."""
        heap = self.heap
        while heap:
            if self.is_valid(heap[0]):
                return heap[0]
            heappop(heap)
        return None

    def is_unread(self) -> bool:
        """Return whether the smallest key must be read from disk."""
        return self.fence != END and self.first() is None

    @property
    def is_complete(self) -> bool:
        """Return whether nothing of the index lies beyond the fence."""
        return self.fence == END

    def may_be_due(self, now: int) -> bool:
        """Return False if it is certain that no key's time has come. Costs nothing: most entries find nothing due."""
        heap = self.heap
        return bool(heap[0][0] <= now) if heap else self.fence != END

    def next_time(self) -> int | None:
        """Return the time in the smallest key, or a time before it if it is not in memory, or None if there is no key."""
        first = self.first()
        if first is not None:
            return int(first[0])
        return None if self.fence == END else max(int(self.fence[0]), 0)

    def keys_until(self, time: int, keys_max: int) -> list[Key]:
        """Return keys in memory that are not after a time, in no order, at most `keys_max`. Some may not be valid any more.

        It looks only at the top of the heap, so that its cost does not depend on the keys of later times.
        """
        heap, found, places = self.heap, list[Key](), [0]
        while places and len(found) < keys_max:
            place = places.pop()
            if place < len(heap) and heap[place][0] <= time:
                found.append(heap[place])
                places += (2 * place + 1, 2 * place + 2)
        return found

    def next_time_after(self, time: int, keys_max: int) -> int | None:
        """Return the earliest time in memory that is after `time`, or None if there is none or `keys_max` keys come before it."""
        heap, found, places, passed = self.heap, list[int](), [0], 0
        while places:
            place = places.pop()
            if place >= len(heap):
                continue
            if heap[place][0] > time:
                found.append(heap[place][0])
                continue
            passed += 1
            if passed == keys_max:
                return None
            places += (2 * place + 1, 2 * place + 2)
        return min(found, default=None)

    def next_ranges(self, rows_max: int) -> tuple[RowRange, ...]:
        """Return about `rows_max` rows to read that follow the fence of an incomplete window."""
        first = self.prefix if self.fence == START else self.prefix + self.codec.encode(self.fence) + b"\0"
        return (RowRange(first, after(self.prefix), rows_max),)

    def accept(self, found: RowsFound, rows_max: int) -> tuple[Sequence[Placed], Key]:
        """Take the rows of `next_ranges`. Return those between the fence and a new one, up to which they are complete."""
        placed = [(self.key_of(row), row) for row in found[0]]
        return placed, placed[-1][0] if len(placed) >= rows_max else END

    def key_of(self, row: Row) -> Key:
        """Return the place of a row of this index."""
        return self.codec.decode(row[0][len(self.prefix) :])

    def extend(self, keys: Sequence[Key], fence: Key, keys_max: int) -> None:
        """Add the keys that were read between the present fence and a new one.

        If nothing was read because everything there is still unwritten, only the first `keys_max` of those keys move inside: a backlog of
        unwritten messages would otherwise move in and out with each refill.
        """
        heap, beyond = self.heap, self.beyond
        for key in keys:
            heappush(heap, key)
        limit = keys_max if not keys and len(beyond) > keys_max else 0
        moved = 0
        while beyond and beyond[0] <= fence:
            moved += 1
            if moved == limit:
                fence = beyond[0]
            heappush(heap, heappop(beyond))
        self.fence = fence

    def trim(self, keep: int) -> list[Key]:
        """Lower the fence so that at most `keep` keys stay in the heap, and return those that are beyond it now."""
        if len(self.heap) <= keep:
            return []
        self.heap.sort()
        fence = self.heap[keep - 1] if keep else START
        cut = [key for key in self.heap[keep:] if key > fence]  # a key may be there twice, on both sides
        del self.heap[keep:]
        self.fence = fence
        for key in cut:
            heappush(self.beyond, key)
        return cut

    def compact(self) -> None:
        """Remove the keys that are not valid any more."""
        self.heap = [key for key in self.heap if self.is_valid(key)]
        heapify(self.heap)

    def retain_beyond(self, is_unwritten: Callable[[Key], bool]) -> None:
        """Forget keys beyond the fence whose rows are on disk."""
        self.beyond = [key for key in self.beyond if is_unwritten(key)]
        heapify(self.beyond)
