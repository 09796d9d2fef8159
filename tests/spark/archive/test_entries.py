"""Entries of an archive and of the manifest of an earlier release: those that count, the names of their folders, and merging."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from raftmq.spark.archive.entries import Entry, FolderName, groups, new_folder, parse_folder
from raftmq.spark.archive.manifest import current


def entry(first: int, last: int | None = None, data_bytes: int = 1) -> Entry:
    return Entry(first, first if last is None else last, "q", records=1, data_bytes=data_bytes)


def test_an_entry_that_another_one_covers_is_ignored():
    """A compaction died after it wrote its entry and before it deleted the replaced entries."""
    found = [entry(4), entry(0, 3), entry(2), entry(1), entry(5, 9), entry(0, 1)]
    assert current(found) == [entry(0, 3), entry(4), entry(5, 9)]


def test_the_name_of_a_data_folder_tells_its_batches_and_its_age():
    assert parse_folder(new_folder(2, 5, 1700)) == FolderName(2, 5, 1700)
    assert parse_folder(entry(2, 5).folder_name) == FolderName(2, 5, 0)  # an earlier release wrote it
    assert new_folder(2, 5, 1700) != new_folder(2, 5, 1700)
    assert parse_folder("something") is None


@given(st.lists(st.integers(0, 30), max_size=30), st.integers(1, 40))
def test_neighbours_are_merged_up_to_the_size_of_one(sizes, small):
    entries = [entry(number, data_bytes=size) for number, size in enumerate(sizes)]
    found = list(groups(entries, small))
    for group in found:
        assert len(group) > 1
        assert all(known.data_bytes < small for known in group)
        assert sum(known.data_bytes for known in group) <= small
        assert all(one.last + 1 == other.first for one, other in pairwise(group))
    merged = [known for group in found for known in group]
    assert merged == sorted(merged, key=lambda known: known.first)
    assert len(merged) == len({known.first for known in merged})


def test_small_neighbours_are_merged():
    entries = [entry(number, data_bytes=size) for number, size in enumerate([3, 3, 3, 9, 2, 9, 1, 1, 0])]
    assert [[known.first for known in group] for group in groups(entries, 8)] == [[0, 1], [6, 7, 8]]
