"""The ids of messages, by which repeated ones are recognized.

An id belongs to one message until the message is finished and the window that began with its first enqueue has ended. Its row names the
first sequence, which a repeat is answered with. An index by the end of the window holds the ids of finished messages only: an
unfinished message keeps its id without one.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heappop
from typing import NamedTuple

from raftmq.fsm.queue import rows as keys
from raftmq.fsm.queue.limits import MemoryBounds
from raftmq.fsm.queue.point_table import PointTable, Unread
from raftmq.fsm.queue.store import Reading
from raftmq.fsm.queue.windows import BY_TIME_AND_ID, Key, Window
from raftmq.fsm.row_reads import RowsFound, RowsNeeded
from raftmq.fsm.tables import DirtyRow


class IdRow(NamedTuple):
    """An id that is known."""

    sequence: int
    until: int
    """End of its window."""
    is_finished: bool = False
    """Whether its message is finished."""


class IdTable:
    """Hold the ids of one partition."""

    def __init__(self, bounds: MemoryBounds) -> None:
        self._bounds = bounds
        self._rows = PointTable(keys.IDS, IdRow, bounds.points_max, is_complete=not bounds.is_cold)
        self._generation = 0
        self.ending_count = 0
        """Rows of the index. Stored with the scalars."""
        self._changed: dict[Key, bool] = {}
        """Changed rows of the index: whether it exists."""
        self._frozen: dict[Key, bool] = {}
        self.ends = self._window(is_complete=not bounds.is_cold)

    def fetch(self, ids: Iterable[bytes]) -> Reading[None]:
        """Read the ids that memory does not know."""
        yield from self._rows.fetch(ids)

    def find(self, id_: bytes, now: int) -> IdRow | None:
        """Return a known id, or None if a message may take it. `fetch` must have come before."""
        row = self._rows.read(id_)
        return None if row is None or (row.is_finished and row.until <= now) else row

    def look_up(self, id_: bytes) -> IdRow | Unread | None:
        """Return the row of an id, also one whose window has ended, None if there is none, or `UNREAD` if memory does not know."""
        return self._rows.get(id_)

    def claim(self, id_: bytes, sequence: int, until: int) -> None:
        """Give an id to an enqueued message, also one that another message has: it is replaced."""
        row = self._rows.read(id_)
        if row is not None and row.is_finished:
            self._put_end((row.until, id_), exists=False)
        self._rows.put(id_, IdRow(sequence, until))

    def release(self, id_: bytes, sequence: int, until: int, now: int) -> None:
        """Record that the message of an id is finished. Its row need not be in memory: the message is its owner."""
        if until <= now:
            self._rows.delete(id_)
        else:
            self._rows.put_unseen(id_, IdRow(sequence, until, is_finished=True))
            self._put_end((until, id_), exists=True)

    def sweep(self, now: int, count_max: int) -> Reading[None]:
        """Forget the ids whose windows ended first, at most `count_max`."""
        missing = count_max
        while missing:
            due = yield from self._take_due(now, missing)
            if not due:
                return
            yield from self._rows.fetch(key[1] for key in due)
            for until, id_ in due:
                row = self._rows.read(id_)
                # Outdated keys do not count: how many there are depends on the memory.
                if row is not None and row.is_finished and row.until == until:
                    self._rows.delete(id_)
                    self._put_end((until, id_), exists=False)
                    missing -= 1

    def _take_due(self, now: int, count_max: int) -> Reading[list[Key]]:
        due: list[Key] = []
        while len(due) < count_max:
            if self.ends.is_unread():
                yield from self._fill()
                continue
            key = self.ends.first()
            if key is None or key[0] > now:
                break
            due.append(heappop(self.ends.heap))
        return due

    def next_end(self) -> int | None:
        """Return the earliest end of a window, or a time before it, or None."""
        return self.ends.next_time()

    def _put_end(self, key: Key, *, exists: bool) -> None:
        self.ending_count += 1 if exists else -1
        self._changed[key] = exists
        if exists:
            self.ends.insert(key)

    def _fill(self) -> Reading[None]:
        rows_max = self._bounds.read_rows
        found = yield RowsNeeded(self.ends.next_ranges(rows_max))
        self.admit(found, rows_max)

    def admit(self, found: RowsFound, rows_max: int) -> None:
        """Add the rows that were read for the index. When a row is due, it is checked whether it still counts."""
        placed, fence = self.ends.accept(found, rows_max)
        self.ends.extend([place for place, _ in placed if self._is_valid(place)], fence, rows_max)

    def _is_valid(self, key: Key) -> bool:
        return self._changed.get(key, self._frozen.get(key, True))

    def _is_unwritten(self, key: Key) -> bool:
        return self._changed.get(key, False) or self._frozen.get(key, False)

    def _window(self, *, is_complete: bool) -> Window:
        prefix = keys.table_prefix(keys.ID_EXPIRY_ROWS, self._generation)
        return Window(prefix, BY_TIME_AND_ID, self._is_valid, is_complete=is_complete)

    # --------------------------------------------------------------------------------------------------------------- rows

    @property
    def dirty_count(self) -> int:
        """Return the number of changed rows."""
        return self._rows.dirty_count + len(self._changed)

    def take_dirty(self) -> list[DirtyRow]:
        """Return the rows changed since the last call."""
        self._frozen, self._changed = self._changed, {}
        out = self._rows.take_dirty()
        for (until, id_), exists in self._frozen.items():
            out.append((keys.id_expiry_key(self._generation, until, id_), b"" if exists else None))
        return out

    def on_written(self) -> None:
        """Treat the taken rows as rows on disk."""
        self._rows.on_written()
        self._frozen = {}
        self.ends.retain_beyond(self._is_unwritten)

    def trim(self) -> None:
        """Keep memory within its bounds. Called between entries."""
        self._rows.trim()
        if len(self.ends.heap) > 2 * self._bounds.points_max:
            self.ends.trim(self._bounds.points_max)
            self.ends.retain_beyond(self._is_unwritten)

    def reset(self, generation: int, ending_count: int, *, is_complete: bool) -> None:
        """Forget the content of the memory, after a purge (then nothing is on disk) or for a restore."""
        self._generation = generation
        self._rows.reset(generation, is_complete=is_complete)
        self._changed.clear()
        self._frozen = {}
        self.ending_count = ending_count
        self.ends = self._window(is_complete=ending_count == 0)
