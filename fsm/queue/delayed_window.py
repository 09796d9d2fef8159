"""The window of delayed messages, whose rows are not in the order of their due times.

A **cell** holds the delayed messages of a span of due times and a run of sequences (`rows.delayed_suffix`). The cells of a span are
neighbours on the disk, and only the rows inside a cell have the order of (due, sequence). The order of all is made here, when rows are read.

Most reads have whole spans. If one span has more rows than a read, its cells are merged. First they are surveyed: each read takes one
row of each of the next runs, and a few rows after them, to pass over runs that have none. Then each read takes rows of the cells that come
first, up to the first row of the others.

All that is known of a cell is the smallest place at which it may have an unread row. This holds until rows are written, because only a
write-back adds rows to the disk, and until the fence is lowered.

Memory holds one place for each cell of one span. Results do not depend on these places, as on no window.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Final

from raftmq.fsm.queue.rows import RUN_BITS, SPAN_BITS, after
from raftmq.fsm.queue.windows import BY_DUE, END, START, Key, Placed, Window
from raftmq.fsm.row_reads import RowRange, RowsFound

SURVEY_PART: Final = 16
"""One part in so many of a read's rows is the number of runs that one read surveys. Each takes a search of its own."""
CELL_ROWS_MIN: Final = 4
"""Rows of each of the cells that are read together, if a read has so many: all but the one that ends first may have rows left over."""
_NO_SPAN: Final = -1


class DelayedWindow(Window):
    """Hold the smallest (due, sequence) of delayed messages."""

    __slots__ = ("_cells", "_span", "_unsurveyed_run", "_width")

    def __init__(self, prefix: bytes, is_valid: Callable[[Key], bool], *, is_complete: bool) -> None:
        super().__init__(prefix, BY_DUE, is_valid, is_complete=is_complete)
        self._span = _NO_SPAN
        """The span whose cells are merged."""
        self._cells: list[Key] = []
        """For each cell of the span the smallest place that may have an unread row. The place names the cell. Sorted."""
        self._unsurveyed_run: int | None = None
        """The cells of the span from this run on are not known. None: all are."""
        self._width = 1
        """Cells to read together. It follows from how much of the last read was of use."""

    def forget_cells(self) -> None:
        """Forget the places of cells, because the rows on disk or the fence have changed."""
        self._span, self._unsurveyed_run, self._width = _NO_SPAN, None, 1
        self._cells.clear()

    def trim(self, keep: int) -> list[Key]:
        """Lower the fence so that at most `keep` keys stay in the heap, and return those that are beyond it now."""
        self.forget_cells()
        return super().trim(keep)

    # ------------------------------------------------------------------------------------------------------------ reading

    def next_ranges(self, rows_max: int) -> tuple[RowRange, ...]:
        """Return about `rows_max` rows to read that follow the fence of an incomplete window."""
        if self._span == _NO_SPAN:
            first = (self._unread()[0] >> SPAN_BITS << SPAN_BITS, 0)
            return (RowRange(self._key_at(first), after(self.prefix), rows_max),)
        if self._unsurveyed_run is not None:
            return self._ranges_of_survey(rows_max)
        cells, end = self._chosen()
        each = _rows_of_each(cells, rows_max)
        runs = [cell[1] >> RUN_BITS for cell in cells]
        read = [
            RowRange(self._key_at(cell), self._key_in(run, end), each) for run, cell in zip(runs, cells, strict=True)
        ]
        # the row after those names the place at which the cell comes again
        return (*read, *(RowRange(self._key_in(run, end), self._end_of(run), 1) for run in runs))

    def accept(self, found: RowsFound, rows_max: int) -> tuple[Sequence[Placed], Key]:
        """Take the rows of `next_ranges`. Return those between the fence and a new one, up to which they are complete.

        The rows of a survey are of no other use: the fence stays.
        """
        placed = [[(self.key_of(row), row) for row in rows] for rows in found]
        if self._span == _NO_SPAN:
            return self._accept_spans(placed[0], rows_max)
        if self._unsurveyed_run is not None:
            return (), self._survey(placed[:-1], placed[-1], rows_max // SURVEY_PART)
        return self._merge(placed, rows_max)

    # -------------------------------------------------------------------------------------------------------- whole spans

    def _unread(self) -> Key:
        """Return the first place beyond the fence."""
        return (0, 0) if self.fence == START else (self.fence[0], self.fence[1] + 1)

    def _accept_spans(self, placed: Sequence[Placed], rows_max: int) -> tuple[Sequence[Placed], Key]:
        fence = END
        if len(placed) >= rows_max:
            first, last = (key[0] >> SPAN_BITS for key, _ in (placed[0], placed[-1]))
            if first == last:
                self._span = first
                return (), self._survey((), placed, rows_max)
            fence = _before((last << SPAN_BITS, 0))
        return [one for one in placed if self.fence < one[0] <= fence], fence

    # -------------------------------------------------------------------------------------------------------------- cells

    def _ranges_of_survey(self, rows_max: int) -> tuple[RowRange, ...]:
        assert self._unsurveyed_run is not None
        unread, end = self._unread(), self._unsurveyed_run + max(1, rows_max // SURVEY_PART)
        probes = [RowRange(self._key_in(run, unread), self._end_of(run), 1) for run in range(self._unsurveyed_run, end)]
        span_end = self._key_at((self._span + 1 << SPAN_BITS, 0))
        return (*probes, RowRange(self._end_of(end - 1), span_end, max(1, rows_max // SURVEY_PART)))

    def _survey(self, probes: Sequence[Sequence[Placed]], following: Sequence[Placed], rows_max: int) -> Key:
        """Take the first rows of cells, and the rows that follow them, at most `rows_max`.

        Return the fence, which rises only if no cell of the span has an unread row.
        """
        unread = self._unread()
        for rows in probes:
            if rows:
                self._keep(self._cells, rows[0][0][1] >> RUN_BITS, rows[0][0])
        run = -1
        for place, _ in following:
            if place[1] >> RUN_BITS != run:
                run = place[1] >> RUN_BITS
                self._keep(self._cells, run, max(place, unread))
        self._unsurveyed_run = run + 1 if len(following) >= max(1, rows_max) else None
        return self.fence if self._unsurveyed_run is not None or self._cells else self._end_span()

    def _merge(self, placed: Sequence[Sequence[Placed]], rows_max: int) -> tuple[Sequence[Placed], Key]:
        """Take the rows of the chosen cells as far as no cell may have a smaller unread one."""
        cells, end = self._chosen()
        each, count = _rows_of_each(cells, rows_max), len(cells)
        fence = min((rows[-1][0] for rows in placed[:count] if len(rows) >= each), default=_before(end))
        accepted: list[Placed] = []
        unread = self._cells[count:]
        for cell, rows, later in zip(cells, placed[:count], placed[count:], strict=True):
            run = cell[1] >> RUN_BITS
            known = bisect_right(rows, fence, key=itemgetter(0))
            accepted += rows[:known]
            if known < len(rows):
                self._keep(unread, run, rows[known][0])
            elif len(rows) >= each:
                self._keep(unread, run, (fence[0], fence[1] + 1))
            elif later:
                self._keep(unread, run, later[0][0])
        self._cells = unread
        self._follow_use(len(accepted), sum(map(len, placed[:count])), rows_max)
        return accepted, fence if unread else self._end_span()

    def _chosen(self) -> tuple[list[Key], Key]:
        """Return the cells of the next read, and the place where it ends: the first one of the other cells."""
        width = min(self._width, len(self._cells))
        return self._cells[:width], self._cells[width] if width < len(self._cells) else (self._span + 1 << SPAN_BITS, 0)

    def _follow_use(self, used_count: int, read_count: int, rows_max: int) -> None:
        """Read more cells together if few rows were before the first one of the others, and fewer if most rows are left over.

        Cells with later and later due times are read one by one, and those with equal ranges of due times together.
        """
        if 2 * read_count < rows_max:
            self._width = min(2 * self._width, max(1, rows_max // CELL_ROWS_MIN))
        elif 2 * used_count <= read_count:
            self._width = max(1, self._width // 2)

    def _keep(self, cells: list[Key], run: int, place: Key) -> None:
        """Add the cell of a run to sorted ones, with its first place that is not before this one, if it has any in the span."""
        place = _place_in_run(run, place)
        if place[0] >> SPAN_BITS == self._span:
            insort(cells, place)

    def _end_span(self) -> Key:
        """Return the fence after the span, which is complete now."""
        fence = _before((self._span + 1 << SPAN_BITS, 0))
        self.forget_cells()
        return fence

    def _key_in(self, run: int, place: Key) -> bytes:
        """Return the first key of a run's cell that is not before a place, which may be before or after the span."""
        place = _place_in_run(run, max(place, (self._span << SPAN_BITS, 0)))
        return self._key_at(place) if place[0] >> SPAN_BITS == self._span else self._end_of(run)

    def _end_of(self, run: int) -> bytes:
        """Return the key at which the rows of a run's cell end."""
        return self._key_at((self._span << SPAN_BITS, run + 1 << RUN_BITS))

    def _key_at(self, place: Key) -> bytes:
        return self.prefix + self.codec.encode(place)


def _before(place: Key) -> Key:
    """Return the fence below a place."""
    return (place[0], place[1] - 1)


def _place_in_run(run: int, place: Key) -> Key:
    """Return the smallest place of a run's message that is not before another place."""
    due, sequence = place
    if sequence >> RUN_BITS == run:
        return place
    return (due + (sequence >> RUN_BITS > run), run << RUN_BITS)


def _rows_of_each(cells: Sequence[Key], rows_max: int) -> int:
    return max(1, rows_max // len(cells))
