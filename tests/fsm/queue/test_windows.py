"""A window is a complete prefix of its index, whatever came, went, was written, read and trimmed."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from operator import itemgetter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from raftmq.fsm.queue.delayed_window import DelayedWindow
from raftmq.fsm.queue.rows import RUN_BITS, SPAN_BITS
from raftmq.fsm.queue.windows import BY_DUE, BY_TIME, END, START, Window
from raftmq.fsm.row_reads import RowRange

PREFIX = b"\x11\0\0\0\0"
SPAN, RUN = 1 << SPAN_BITS, 1 << RUN_BITS
DUES = [0, 1, 2, SPAN - 1, SPAN, SPAN + 1, SPAN + 5, 2 * SPAN, 3 * SPAN + 5, 3 * SPAN + 6]
SEQUENCES = [0, 1, 2, RUN - 1, RUN, RUN + 1, RUN + 5, 2 * RUN, 9 * RUN + 5, 9 * RUN + 6]
"""Due times and sequences of several spans and runs, some at their ends."""
PLACES = st.tuples(st.sampled_from(DUES), st.sampled_from(SEQUENCES))


class WindowMachine(RuleBasedStateMachine):
    """A set of live keys, of which a part is on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.live: set[tuple[int, int]] = set()
        self.disk: set[tuple[int, int]] = set()
        self.window = self.new_window(is_complete=True)

    def new_window(self, *, is_complete: bool) -> Window:
        return Window(PREFIX, BY_TIME, self.live.__contains__, is_complete=is_complete)

    @initialize(written=st.sets(PLACES, max_size=12))
    def begin(self, written: set[tuple[int, int]]) -> None:
        self.live.update(written)
        self.disk |= written
        self.window = self.new_window(is_complete=not written)

    @rule(place=PLACES)
    def come(self, place: tuple[int, int]) -> None:
        if place not in self.live:
            self.live.add(place)
            self.window.insert(place)

    @rule(data=st.data())
    def leave_and_come_back(self, data: st.DataObject) -> None:
        """A released message has its old key again, which may still be in the heap."""
        if self.live:
            self.window.insert(data.draw(st.sampled_from(sorted(self.live))))

    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        if self.live:
            self.live.remove(data.draw(st.sampled_from(sorted(self.live))))

    @rule()
    def write_back(self) -> None:
        self.disk = set(self.live)
        self.window.retain_beyond(lambda key: False)

    @rule(rows_max=st.sampled_from([1, 2, 5, 12, 40]))
    def read_until_something_is_known(self, rows_max: int) -> None:
        """A window that is read again and again ends with a first key, or knows that there is none."""
        reads = 0
        while self.window.is_unread():
            self.read(rows_max, 3)
            reads += 1
            assert reads <= 4 * len(self.disk) + 9

    @rule(rows_max=st.sampled_from([1, 2, 5, 12, 40]), keys_max=st.integers(1, 3))
    def read(self, rows_max: int, keys_max: int) -> None:
        window = self.window
        if window.is_complete:
            return
        ranges = window.next_ranges(rows_max)
        rows = sorted((PREFIX + window.codec.encode(place), b"") for place in self.disk)
        found = [[row for row in rows if one.first_key <= row[0] < one.end_key][: one.rows_max] for one in ranges]
        placed, fence = window.accept(found, rows_max)
        assert fence == END or fence >= window.fence
        assert all(window.fence < place <= fence for place, _ in placed)
        window.extend([place for place, _ in placed if place in self.live], fence, keys_max)

    @rule(keep=st.integers(0, 4))
    def trim(self, keep: int) -> None:
        before = self.window.fence
        cut = self.window.trim(keep)
        assert not set(cut) & set(self.window.heap), "the messages of keys that were cut are evicted"
        assert len(self.window.heap) <= keep or self.window.fence == before
        self.window.retain_beyond(lambda key: key in self.live and key not in self.disk)

    @invariant()
    def it_is_complete_up_to_its_fence(self) -> None:
        window = self.window
        inside = {key for key in window.heap if key in self.live}
        assert inside == {place for place in self.live if place <= window.fence}
        assert all(place in self.disk or place in window.beyond for place in self.live if place > window.fence)

    @invariant()
    def its_first_key_is_the_smallest_or_unread(self) -> None:
        first = self.window.first()
        if first is None:
            assert self.window.is_unread() or not self.live
        else:
            assert first == min(self.live)

    @rule(time=st.integers(0, 12), keys_max=st.integers(1, 5))
    def look_at_what_is_due(self, time: int, keys_max: int) -> None:
        heap = self.window.heap
        due = [key for key in heap if key[0] <= time]
        found = self.window.keys_until(time, keys_max)
        assert len(found) == min(len(due), keys_max)
        assert set(found) <= set(due)
        later = min((key[0] for key in heap if key[0] > time), default=None)
        assert self.window.next_time_after(time, keys_max) == (later if len(due) < keys_max else None)

    @invariant()
    def its_next_time_is_never_too_late(self) -> None:
        if self.live:
            time = self.window.next_time()
            assert time is not None
            assert time <= min(self.live)[0]


class DelayedWindowMachine(WindowMachine):
    """The same for rows that are in another order, so that a read has a part of what is between two places."""

    window: DelayedWindow

    def new_window(self, *, is_complete: bool) -> Window:
        return DelayedWindow(PREFIX, self.live.__contains__, is_complete=is_complete)

    @rule()
    def write_back(self) -> None:
        super().write_back()
        self.window.forget_cells()


SETTINGS = settings(max_examples=120, stateful_step_count=30, deadline=None)
WindowMachine.TestCase.settings = DelayedWindowMachine.TestCase.settings = SETTINGS
TestWindow = WindowMachine.TestCase
TestDelayedWindow = DelayedWindowMachine.TestCase


def test_an_incomplete_empty_window_means_read_first() -> None:
    window = Window(PREFIX, BY_TIME, lambda key: True, is_complete=False)
    assert window.fence == START
    assert window.is_unread()
    assert window.next_time() == 0
    assert window.next_ranges(7) == ((PREFIX, b"\x11\0\0\0\1", 7),)


def test_a_complete_empty_window_has_nothing() -> None:
    window = Window(PREFIX, BY_TIME, lambda key: True, is_complete=True)
    assert (window.first(), window.is_unread(), window.next_time()) == (None, False, None)


class Shelf:
    """Rows of delayed messages on disk under a window that reads them all."""

    def __init__(self, places: Iterable[tuple[int, int]]) -> None:
        self.rows = sorted((PREFIX + BY_DUE.encode(place), b"") for place in places)
        self.window = DelayedWindow(PREFIX, lambda key: True, is_complete=False)
        self.reads = self.rows_read = 0

    def take_all(self, rows_max: int) -> list[tuple[int, int]]:
        """Return all places in the order in which they become known, with reads of so many rows."""
        taken: list[tuple[int, int]] = []
        while not self.window.is_complete:
            found = [self._range(one) for one in self.window.next_ranges(rows_max)]
            self.reads += 1
            self.rows_read += sum(map(len, found))
            placed, fence = self.window.accept(found, rows_max)
            taken += sorted(place for place, _ in placed)
            self.window.extend([], fence, rows_max)
        return taken

    def _range(self, one: RowRange) -> list[tuple[bytes, bytes]]:
        first, end = (bisect_left(self.rows, key, key=itemgetter(0)) for key in (one.first_key, one.end_key))
        return self.rows[first : min(end, first + one.rows_max)]


def test_spans_with_few_messages_are_read_together_and_once() -> None:
    places = [(due * SPAN + sequence, sequence) for due in range(30) for sequence in range(30)]
    shelf = Shelf(places)
    assert shelf.take_all(100) == sorted(places)
    assert shelf.reads == 10
    assert shelf.rows_read < 1.2 * len(places)


@pytest.mark.parametrize(
    "due_of",
    [lambda at: at // 100, lambda at: 7, lambda at: at * 40_503 % SPAN, lambda at: SPAN - 1 - at // 100],
    ids=["later and later", "all at one time", "random", "earlier and earlier"],
)
def test_a_span_with_many_messages_is_merged_without_reading_its_rows_many_times(due_of: Callable[[int], int]) -> None:
    """A hundred cells with as many messages each as a read has rows. The survey reads each cell's first rows once."""
    places = [(due_of(at), at // 100 * RUN + at % 100) for at in range(10_000)]
    shelf = Shelf(places)
    assert shelf.take_all(100) == sorted(places)
    assert shelf.rows_read < 3 * len(places)
    assert shelf.reads < 1_000
