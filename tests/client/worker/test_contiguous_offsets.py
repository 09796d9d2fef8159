"""The progress of a partition that may be committed, compared with a slow twin that examines every record each time."""

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.client.worker.contiguous_offsets import ContiguousOffsets, Progress
from raftmq.errors import InvariantError
from raftmq.offset_ranges import decode_ranges, encode_ranges


class SlowTwin:
    """All records taken, in order, with whether each is done."""

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
        """Return the offsets before the first one that is not done."""
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
    """Generate takes in ascending order with gaps, and finishes of taken records in any order."""
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
def test_the_progress_equals_the_twins_after_every_step(steps: list[tuple[str, int]]) -> None:
    tracker, twin = ContiguousOffsets(), SlowTwin()
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


def test_the_prefix_does_not_pass_an_unfinished_record() -> None:
    tracker = ContiguousOffsets()
    for offset in range(5, 9):
        tracker.take(offset)
    assert [tracker.finish(offset) for offset in (6, 7, 8)] == [False] * 3
    assert (tracker.prefix, tracker.span) == (None, 4)
    assert tracker.finish(5)
    assert (tracker.prefix, tracker.span) == (9, 0)


def test_taking_a_record_twice_violates_an_invariant() -> None:
    """Otherwise it would be processed twice simultaneously, and the order of its key would be lost."""
    tracker = ContiguousOffsets()
    tracker.take(7)
    with pytest.raises(InvariantError, match="offsets_are_taken_in_order"):
        tracker.take(7)


def offsets_of(progress: Progress) -> set[int]:
    """Return the offsets that a progress declares done, from offset 0 on."""
    beyond = decode_ranges(progress.offset, progress.finished)
    return {*range(progress.offset), *(offset for start, end in beyond for offset in range(start, end))}


@given(st.lists(st.booleans(), max_size=40), st.integers(0, 40), st.data())
def test_finished_records_remain_finished_through_any_number_of_owners(
    before: list[bool], taken_count: int, data: st.DataObject
) -> None:
    """`before` says which records earlier owners finished. The current owner takes some and finishes some of those."""
    first = before.index(False) if False in before else len(before)
    done = {*range(first), *(offset for offset, is_done in enumerate(before) if is_done)}
    tracker = ContiguousOffsets(ranges_of(sorted(one for one in done if one > first)))
    taken = range(first, min(first + taken_count, len(before)))
    open_ = [offset for offset in taken if tracker.take(offset)]
    assert open_ == [offset for offset in taken if offset not in done]
    finished = data.draw(st.lists(st.sampled_from(open_), unique=True) if open_ else st.just([]))
    for offset in finished:
        tracker.finish(offset)
        done.add(offset)
        progress = tracker.progress
        assert progress is not None
        assert offsets_of(progress) == done
    left = [offset for offset in open_ if offset not in finished]
    assert tracker.span == (taken.stop - left[0] if left else 0)


def ranges_of(offsets: list[int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for offset in offsets:
        if found and found[-1][1] == offset:
            found[-1] = (found[-1][0], offset + 1)
        else:
            found.append((offset, offset + 1))
    return tuple(found)


def test_there_is_no_progress_before_a_record_is_done() -> None:
    tracker = ContiguousOffsets(((7, 9),))
    assert tracker.progress is None
    assert tracker.take(5)
    assert tracker.progress is None
    tracker.finish(5)
    assert tracker.progress == Progress(6, encode_ranges(6, [(7, 9)]))


def test_trimmed_records_do_not_block_the_prefix() -> None:
    """Nobody, or an earlier owner, may have finished them."""
    tracker = ContiguousOffsets(((7, 9), (20, 22)))
    assert tracker.take(12)
    tracker.finish(12)
    assert tracker.progress == Progress(13, encode_ranges(13, [(20, 22)]))
    assert not tracker.take(21)
    assert tracker.progress == Progress(22)


def test_the_lowest_of_too_many_ranges_are_kept() -> None:
    tracker = ContiguousOffsets()
    for offset in range(5000):
        tracker.take(offset)
    for offset in range(4999, 0, -2):
        tracker.finish(offset)
    assert tracker.progress is not None
    kept = decode_ranges(0, tracker.progress.finished)
    assert kept == tuple((offset, offset + 1) for offset in range(1, 2001, 2))
