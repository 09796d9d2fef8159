"""Marks of retention by size agree with a slow obvious twin that knows every entry."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq.broker.partitions import size_index as byte_marks
from raftmq.broker.partitions.size_index import SizeIndex, spacing_for
from raftmq.raft.entry import EntryHeader, EntryKind
from raftmq.types import LogIndex, Offset, Term

KIB = 1024


def _headers(sizes: list[int]) -> dict[int, EntryHeader]:
    """Return the headers of a log of one-record batches. Size 0 is a command."""
    headers, offset = {}, 0
    for index, size in enumerate(sizes, 1):
        kind = EntryKind.DATA if size else EntryKind.COMMAND
        count = 1 if size else 0
        headers[index] = EntryHeader(LogIndex(index), Term(1), kind, Offset(offset), count, 0, size)
        offset += count
    return headers


def _read_back(marks: SizeIndex, headers, start: int, total: int) -> None:
    for _ in range(1000):
        if marks.is_complete:
            return
        marks.take_back(*marks.read_back(lambda index: headers[index], LogIndex(1), start, total))
    raise AssertionError("the way back has no end")


def _bytes_from(headers, offset: int) -> int:
    return sum(header.payload_bytes for header in headers.values() if header.base_offset >= offset)


@settings(max_examples=200, deadline=None)
@given(
    before=st.lists(st.sampled_from([0, 1, 5 * KIB, 40 * KIB, 300 * KIB]), max_size=40),
    after=st.lists(st.sampled_from([0, 1, 5 * KIB, 40 * KIB, 300 * KIB]), max_size=40),
    retention=st.sampled_from([0, 1, 100 * KIB, 1000 * KIB]),
    start=st.integers(0, 30),
)
def test_at_least_the_limit_stays_and_little_more(before, after, retention, start):
    """This holds for any log from before the marks began, and for any later records."""
    old = _headers(before)
    end = max((header.next_offset for header in old.values()), default=0)
    start = min(start, end)
    total = sum(before)
    marks = SizeIndex(retention, LogIndex(len(before)), end, total)
    _read_back(marks, old, start, total)
    everything = _headers([*before, *after])
    for index in range(len(before) + 1, len(everything) + 1):
        header = everything[index]
        total += header.payload_bytes
        if header.record_count:
            marks.applied(header.next_offset, total)
    target = marks.trim_target(start, total)
    kept = _bytes_from(everything, target if target is not None else start)
    if target is not None:
        assert start < target
        assert kept >= retention
    # one spacing of slack, plus the batch that crosses it at either end
    assert kept <= retention + 2 * spacing_for(retention) + 2 * 300 * KIB


def test_reading_back_proceeds_in_steps(monkeypatch):
    monkeypatch.setattr(byte_marks, "HEADERS_PER_STEP", 3)
    headers = _headers([100 * KIB] * 20)
    marks = SizeIndex(1000 * KIB, LogIndex(20), 20, 2000 * KIB)
    read = []

    def header(index):
        read.append(index)
        return headers[index]

    steps = 0
    while not marks.is_complete:
        marks.take_back(*marks.read_back(header, LogIndex(1), 0, 2000 * KIB))
        steps += 1
    assert steps == 4
    assert sorted(read) == list(range(10, 21)) or len(set(read)) == len(read)
    assert marks.trim_target(0, 2000 * KIB) == 10


def test_a_trim_by_others_needs_no_accounting():
    marks = SizeIndex(100 * KIB, LogIndex(0), 0, 0)
    marks.is_complete = True
    for number in range(1, 11):
        marks.applied(number, number * 64 * KIB)
    assert marks.trim_target(0, 640 * KIB) == 8
    assert marks.trim_target(9, 640 * KIB) is None
    marks.applied(11, 704 * KIB)
    marks.applied(12, 768 * KIB)
    assert marks.trim_target(9, 768 * KIB) == 10
