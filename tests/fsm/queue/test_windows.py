"""A window is a complete prefix of its index, whatever came, went, was written, read and trimmed."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from raftmq.fsm.queue.windows import BY_TIME, END, START, Window

PREFIX = b"\x11\0\0\0\0"
PLACES = st.tuples(st.integers(0, 9), st.integers(0, 30))


class WindowMachine(RuleBasedStateMachine):
    """A set of live keys, of which a part is on disk."""

    def __init__(self) -> None:
        super().__init__()
        self.live: set[tuple[int, int]] = set()
        self.disk: set[tuple[int, int]] = set()
        self.window = Window(PREFIX, BY_TIME, self.live.__contains__, is_complete=True)

    @initialize(written=st.sets(PLACES, max_size=12))
    def begin(self, written: set[tuple[int, int]]) -> None:
        self.live.update(written)
        self.disk |= written
        self.window = Window(PREFIX, BY_TIME, self.live.__contains__, is_complete=not written)

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

    @rule(rows_max=st.integers(1, 5), keys_max=st.integers(1, 3))
    def read(self, rows_max: int, keys_max: int) -> None:
        window = self.window
        if window.is_complete:
            return
        range_ = window.next_range(rows_max)
        rows = [(PREFIX + BY_TIME.encode(place), b"") for place in sorted(self.disk)]
        rows = [row for row in rows if range_.first_key <= row[0] < range_.end_key][:rows_max]
        found = [BY_TIME.decode(key[len(PREFIX) :]) for key, _ in rows]
        fence = window.fence_after(rows, rows_max)
        assert fence == END or fence > window.fence
        window.extend([place for place in found if place in self.live], fence, keys_max)

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

    @invariant()
    def its_next_time_is_never_too_late(self) -> None:
        if self.live:
            time = self.window.next_time()
            assert time is not None
            assert time <= min(self.live)[0]


WindowMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestWindow = WindowMachine.TestCase


def test_an_incomplete_empty_window_means_read_first() -> None:
    window = Window(PREFIX, BY_TIME, lambda key: True, is_complete=False)
    assert window.fence == START
    assert window.is_unread()
    assert window.next_time() == 0
    assert window.next_range(7) == (PREFIX, b"\x11\0\0\0\1", 7)


def test_a_complete_empty_window_has_nothing() -> None:
    window = Window(PREFIX, BY_TIME, lambda key: True, is_complete=True)
    assert (window.first(), window.is_unread(), window.next_time()) == (None, False, None)
