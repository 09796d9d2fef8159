"""The size and the time of a log's tail, as far as it was appended since the replica was opened."""

from __future__ import annotations

import pytest
from raftmq.broker.replica import log_marks
from raftmq.broker.replica.log_marks import ENTRY_BYTES, LogMarks
from raftmq.raft.entry import Entry, EntryKind
from raftmq.types import LogIndex, Offset, Term


def entries(first: int, *sizes: int, term: int = 1, at_ms: int = 0) -> tuple[Entry, ...]:
    return tuple(
        Entry(LogIndex(index), Term(term), EntryKind.COMMAND, Offset(0), 0, at_ms, bytes(size - ENTRY_BYTES))
        for index, size in enumerate(sizes, first)
    )


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> LogMarks:
    monkeypatch.setattr(log_marks, "MARK_BYTES", 100)
    return LogMarks()


def test_a_log_that_was_just_opened_tells_nothing(marks: LogMarks) -> None:
    assert (marks.opened_index, marks.index_before_bytes(1), marks.index_before_time(0)) == (None, 0, 0)


def test_at_least_the_bytes_of_the_tail_follow_its_index(marks: LogMarks) -> None:
    marks.append(entries(8, *[100] * 10))
    assert marks.opened_index == 7
    assert [marks.index_before_bytes(size) for size in (0, 1, 100, 101, 1_000, 1_001)] == [17, 16, 16, 15, 7, 0]
    assert marks.bytes_between(LogIndex(0), LogIndex(10)) == 300


def test_small_entries_share_a_mark_and_a_large_one_has_its_own(marks: LogMarks) -> None:
    marks.append(entries(1, 70, 70, 70, 70, 1_000))
    assert marks.index_before_bytes(900) == 4
    assert marks.index_before_bytes(1_001) == 2


def test_the_time_of_the_tail_counts_from_its_last_entry(marks: LogMarks) -> None:
    for number in range(5):
        marks.append(entries(1 + number, 100, at_ms=1_000 * number))
    assert [marks.index_before_time(elapsed) for elapsed in (0, 1, 2_000, 4_000, 4_001)] == [5, 4, 3, 1, 0]


def test_a_replaced_suffix_counts_no_more(marks: LogMarks) -> None:
    marks.append(entries(1, *[100] * 10))
    marks.append(entries(4, 100, term=2))
    assert marks.index_before_bytes(100) == 3
    assert marks.index_before_bytes(401) == 0
    marks.append(entries(1, 100, term=3))
    assert (marks.opened_index, marks.index_before_bytes(100)) == (0, 0)


def test_a_log_that_was_replaced_begins_again(marks: LogMarks) -> None:
    marks.append(entries(1, *[100] * 10))
    marks.clear()
    assert (marks.opened_index, marks.index_before_bytes(0)) == (None, 0)
    marks.append(entries(50, 100))
    assert (marks.opened_index, marks.index_before_bytes(100)) == (49, 49)


def test_the_number_of_marks_is_bounded(marks: LogMarks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_marks, "MARKS_MAX", 3)
    marks.append(entries(1, *[100] * 10))
    assert len(marks._marks) == 3
    assert marks.index_before_bytes(200) == 8
    assert marks.index_before_bytes(201) == 0
    assert marks.opened_index == 0
