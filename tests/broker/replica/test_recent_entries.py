"""The cache of recent entries holds contiguous runs under one budget."""

import sys

from hypothesis import given
from hypothesis import strategies as st
from raftmq.broker.replica.recent_entries import RecentEntries, RecentEntriesBudget
from raftmq.raft.entry import Entry, EntryKind


def entry(index, term=1, base_offset=0, record_count=1, size=100):
    return Entry(
        index, term, EntryKind.DATA if record_count else EntryKind.EMPTY, base_offset, record_count, 0, b"x" * size
    )


def run(first, count, term=1):
    return tuple(entry(i, term, base_offset=i * 10, record_count=10) for i in range(first, first + count))


def test_appended_entries_are_found_by_index_and_offset():
    recent = RecentEntries(RecentEntriesBudget(10**9))
    recent.append(run(5, 10))

    assert recent.first_index == 5
    assert [e.index for e in recent.slice(7, 9, 10**9)] == [7, 8, 9]
    assert recent.slice(4, 9, 10**9) is None
    assert recent.slice(15, 15, 10**9) is None
    assert recent.index_of_offset(79) == 7
    assert recent.index_of_offset(80) == 8
    assert recent.index_of_offset(49) is None
    assert recent.index_of_offset(150) is None


def test_a_slice_ends_before_the_byte_limit_but_has_one_entry():
    recent = RecentEntries(RecentEntriesBudget(10**9))
    recent.append(run(1, 10))

    assert len(recent.slice(1, 10, 250)) == 2
    assert len(recent.slice(1, 10, 1)) == 1


def test_entries_without_records_do_not_hide_an_offset():
    recent = RecentEntries(RecentEntriesBudget(10**9))
    recent.append(
        (
            entry(1, base_offset=0, record_count=5),
            entry(2, base_offset=5, record_count=0),
            entry(3, base_offset=5, record_count=2),
        )
    )

    assert recent.index_of_offset(4) == 1
    assert recent.index_of_offset(5) == 3


def test_a_replaced_suffix_is_removed_and_a_gap_starts_a_new_run():
    recent = RecentEntries(RecentEntriesBudget(10**9))
    recent.append(run(1, 5, term=1))
    recent.append(run(3, 1, term=2))

    assert [(e.index, e.term) for e in recent.slice(1, 9, 10**9)] == [(1, 1), (2, 1), (3, 2)]
    recent.append(run(9, 1, term=2))
    assert recent.first_index == 9


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.integers(0, 3)), max_size=60))
def test_the_budget_holds_over_all_groups_and_runs_stay_contiguous(steps):
    budget = RecentEntriesBudget(2000)
    replicas = [RecentEntries(budget) for _ in range(3)]
    last = [0, 0, 0]
    for which, count, back in steps:
        first = max(1, last[which] + 1 - back)
        replicas[which].append(run(first, count))
        last[which] = first + count - 1
        held = [g.slice(g.first_index, 10**9, 10**9) or () for g in replicas]
        assert budget.bytes_used == sum(300 for run_ in held for _ in run_)
        assert budget.bytes_used <= max(2000, 300)
        for run_ in held:
            assert [e.index for e in run_] == list(range(run_[0].index, run_[0].index + len(run_))) if run_ else True


def test_evicted_entries_are_not_referenced_any_more():
    # the budget counted evicted batches as freed while the slots at the front of the list still held them: 256 for each group
    recent = RecentEntries(RecentEntriesBudget(1000))
    first = entry(1)
    held_elsewhere = sys.getrefcount(first)
    recent.append((first, *run(2, 2)))
    assert sys.getrefcount(first) > held_elsewhere

    recent.append(run(4, 20))

    assert recent.first_index > 1
    assert sys.getrefcount(first) == held_elsewhere


def test_trimmed_entries_are_forgotten_even_below_the_budget():
    """A log that retention keeps short left a trace of each entry it ever had, as long as the process lived."""
    budget = RecentEntriesBudget(10**9)
    idle, busy = RecentEntries(budget), RecentEntries(budget)
    idle.append(run(1, 3))
    for index in range(1, 20_001):
        busy.append((entry(index),))
        busy.evict_through(index - 10)
    assert len(budget._order) < 10_000
    assert [e.index for e in idle.slice(1, 3, 10**9)] == [1, 2, 3]
    assert budget.bytes_used == 13 * 300


def test_a_run_shrinks_to_its_share_but_keeps_the_entries_that_are_not_applied():
    budget = RecentEntriesBudget(10**9)
    recent, other = RecentEntries(budget), RecentEntries(budget)
    recent.append(run(1, 10))
    other.append(run(1, 3))
    one = budget.bytes_used // 13

    recent.shrink(4 * one, through=3)
    assert (recent.first_index, recent.bytes_used) == (4, 7 * one)
    recent.shrink(4 * one, through=10)
    assert (recent.first_index, recent.bytes_used) == (7, 4 * one)
    assert budget.bytes_used == 7 * one
    recent.shrink(0, through=10)
    assert recent.first_index == 0
    assert (recent.bytes_used, budget.bytes_used) == (0, 3 * one)


def test_a_run_counts_its_bytes_through_evictions_and_replacements():
    budget = RecentEntriesBudget(2_500)
    recent, other = RecentEntries(budget), RecentEntries(budget)
    other.append(run(1, 2))
    recent.append(run(1, 8))
    recent.append(run(6, 4, term=2))
    assert recent.bytes_used + other.bytes_used == budget.bytes_used <= 2_500
    recent.clear()
    assert recent.bytes_used == 0
