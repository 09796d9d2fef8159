"""What may be committed of a partition, against a twin that looks at every record each time."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.client.worker.prefix import PrefixTracker
from raftmq.errors import InvariantError


class SlowTwin:
    """Every record ever taken, in order, with whether it is done."""

    def __init__(self) -> None:
        self.records: list[list[int | bool]] = []

    def take(self, offset: int) -> None:
        self.records.append([offset, False])

    def finish(self, offset: int) -> None:
        for record in self.records:
            if record[0] == offset:
                record[1] = True

    @property
    def done(self) -> list[int]:
        """The offsets before the first that is not done."""
        found = []
        for offset, is_done in self.records:
            if not is_done:
                break
            found.append(int(offset))
        return found

    @property
    def prefix(self) -> int | None:
        return self.done[-1] + 1 if self.done else None


@st.composite
def runs(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Takings in ascending order with gaps, finishes in any order among what is taken."""
    offsets = list(accumulate(draw(st.lists(st.integers(1, 3), max_size=30)), initial=draw(st.integers(0, 5))))
    steps: list[tuple[str, int]] = []
    running: list[int] = []
    while offsets or running:
        if offsets and (not running or draw(st.booleans())):
            running.append(offsets.pop(0))
            steps.append(("take", running[-1]))
        else:
            steps.append(("finish", running.pop(draw(st.integers(0, len(running) - 1)))))
    return steps


@given(runs())
def test_it_says_what_the_twin_says_after_every_step(steps: list[tuple[str, int]]) -> None:
    tracker, twin = PrefixTracker(), SlowTwin()
    for name, offset in steps:
        before = tracker.prefix
        if name == "take":
            tracker.take(offset)
            twin.take(offset)
        else:
            has_moved = tracker.finish(offset)
            twin.finish(offset)
            assert has_moved == (tracker.prefix != before)
        assert tracker.prefix == twin.prefix
        assert tracker.span == len(twin.records) - len(twin.done)
    assert tracker.span == 0


def test_a_slow_record_holds_the_prefix_until_it_is_done() -> None:
    tracker = PrefixTracker()
    for offset in range(5, 9):
        tracker.take(offset)
    assert [tracker.finish(offset) for offset in (6, 7, 8)] == [False] * 3
    assert (tracker.prefix, tracker.span) == (None, 4)
    assert tracker.finish(5)
    assert (tracker.prefix, tracker.span) == (9, 0)


def test_a_record_that_comes_twice_is_a_defect() -> None:
    """It would be worked on twice at once, and the order of its key would be gone."""
    tracker = PrefixTracker()
    tracker.take(7)
    with pytest.raises(InvariantError, match="offsets_are_taken_in_order"):
        tracker.take(7)
