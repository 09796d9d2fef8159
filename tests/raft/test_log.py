"""The log: terms by bisection, the unstable tail, and truncation that rewinds the caches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raftmq.errors import InvariantError
from raftmq.raft.entry import GENESIS, Entry, EntryKind, LogPosition
from raftmq.raft.log import RaftLog
from raftmq.raft.messages import InstallSnapshot, SnapshotMeta
from raftmq.types import LogIndex, Offset, ReplicaId, Term

from tests.support.raft.harness import START, MemoryLog, entry, membership, now


def make_log(disk: MemoryLog | None = None) -> tuple[RaftLog, MemoryLog]:
    disk = disk or MemoryLog(GENESIS, membership(1))
    state = disk.restored()
    log = RaftLog(
        disk, state.position, state.last_index, state.last_next_offset, state.last_append_time_ms, state.term_starts
    )
    return log, disk


def filled(terms: list[int], *, durable: int = 0) -> tuple[RaftLog, MemoryLog]:
    """Create a log with one entry of one record per term from index 6 on, the first `durable` of them on disk."""
    log, disk = make_log()
    for step, term in enumerate(terms):
        log.append([entry(START + 1 + step, term, b"p", base_offset=step, count=1, time_ms=100 + step)])
    if durable:
        write(log, disk, START + durable)
    return log, disk


def write(log: RaftLog, disk: MemoryLog, index: int) -> None:
    entries, _ = log.take_pending(1)
    for item in entries:
        if item.index <= index:
            disk.rows[item.index] = item
    assert log.mark_durable(index, log.term_at(index))


TERMS = st.lists(st.integers(5, 12), max_size=30).map(sorted)


@given(TERMS)
def test_terms_are_those_of_the_entries(terms: list[int]) -> None:
    log, _ = filled(terms)
    assert [log.term_at(START + 1 + i) for i in range(len(terms))] == terms
    assert log.term_at(START) == GENESIS.term
    assert log.term_at(START - 1) == 0
    assert log.term_at(log.last_index + 1) == 0
    assert log.last_term == (terms[-1] if terms else GENESIS.term)


@given(TERMS, st.integers(0, 40), st.integers(0, 14))
def test_the_hint_equals_a_walk_down_the_log(terms: list[int], index: int, term: int) -> None:
    """The slow twin walks down one entry at a time, as in the thesis and in etcd."""
    log, _ = filled(terms)
    walk = min(index, log.last_index)
    while walk >= START and log.term_at(walk) > term:
        walk -= 1
    expected = (walk, log.term_at(walk)) if walk >= START else (walk, 0)
    assert log.find_hint(index, term) == expected


@given(TERMS, st.data())
def test_truncation_rewinds_terms_offset_and_time(terms: list[int], draw: st.DataObject) -> None:
    durable = draw.draw(st.integers(0, len(terms)))
    keep = draw.draw(st.integers(0, len(terms)))
    log, disk = filled(terms, durable=durable)
    log.truncate_after(START + keep)
    twin, _ = filled(terms[:keep])
    assert (log.last_index, log.last_term, log.next_offset) == (twin.last_index, twin.last_term, twin.next_offset)
    assert log.append_time_ms == twin.append_time_ms
    assert [log.term_at(i) for i in range(START, START + 35)] == [twin.term_at(i) for i in range(START, START + 35)]
    assert log.offset == min(START + durable, START + keep) + 1
    assert log.offset_in_progress <= log.last_index + 1
    # the durable header is read only if the kept end is inside the durable log
    assert len(disk.header_reads) == (START < START + keep < START + durable or 0 < keep == durable < len(terms))


@given(TERMS.filter(bool), st.data())
def test_compaction_keeps_the_terms_after_it(terms: list[int], draw: st.DataObject) -> None:
    log, _ = filled(terms, durable=len(terms))
    cut = draw.draw(st.integers(1, len(terms)))
    log.commit = log.applying = log.applied = log.last_index
    position = LogPosition(LogIndex(START + cut), Term(terms[cut - 1]), Offset(cut), 100 + cut - 1)
    log.compacted(position)
    assert [log.term_at(START + 1 + i) for i in range(cut - 1, len(terms))] == terms[cut - 1 :]
    assert log.term_at(START + cut - 1) == 0
    assert log.has(position.index, position.term)
    log.compacted(GENESIS)
    assert log.position == position


def test_compaction_of_unapplied_entries_is_a_violation() -> None:
    log, _ = filled([5, 6], durable=2)
    log.commit = START + 1
    with pytest.raises(InvariantError, match="compacted_applied"):
        log.compacted(LogPosition(LogIndex(START + 1), Term(5), Offset(1)))


def test_committed_entries_are_never_truncated() -> None:
    log, _ = filled([6, 6, 6])
    log.commit_to(START + 2)
    with pytest.raises(InvariantError, match="truncate_committed"):
        log.truncate_after(START + 1)
    log.truncate_after(START + 2)
    assert log.last_index == START + 2


def test_a_gap_in_offsets_is_a_violation() -> None:
    """Offsets are dense and permanent: a mismatch is divergence, not something to repair."""
    log, _ = filled([6])
    with pytest.raises(InvariantError, match="base_offset_continuity"):
        log.append([entry(START + 2, 6, b"p", base_offset=7, count=1)])


def test_a_gap_in_indexes_or_a_falling_term_is_a_violation() -> None:
    log, _ = filled([6])
    with pytest.raises(InvariantError, match="log_contiguous"):
        log.append([entry(START + 3, 6, base_offset=1)])
    with pytest.raises(InvariantError, match="log_terms"):
        log.append([entry(START + 2, 5, base_offset=1)])


def test_the_commit_index_never_exceeds_the_log_and_never_falls() -> None:
    log, _ = filled([6, 6])
    log.commit_to(START + 2)
    log.commit_to(START + 1)
    assert log.commit == START + 2
    with pytest.raises(InvariantError, match="commit_within_log"):
        log.commit_to(START + 3)


def test_only_the_handed_out_part_of_the_tail_becomes_durable() -> None:
    log, _ = filled([6, 6])
    assert not log.mark_durable(START + 1, 6)
    log.take_pending(1)
    log.append([entry(START + 3, 6, base_offset=2)])
    assert not log.mark_durable(START + 3, 6)
    assert not log.mark_durable(START + 2, 5)
    assert log.mark_durable(START + 2, 6)
    assert (log.durable_index, len(log.unstable)) == (START + 2, 1)
    assert not log.mark_durable(START + 1, 6), "durability never moves back"


def test_a_truncated_tail_is_handed_out_again() -> None:
    log, _ = filled([6, 6, 6])
    log.take_pending(1)
    assert not log.has_pending_write
    log.truncate_after(START + 1)
    log.append([entry(START + 2, 7, base_offset=1)])
    entries, _ = log.take_pending(2)
    assert [(e.index, e.term) for e in entries] == [(START + 2, 7)]


def test_only_conflicting_or_missing_entries_of_an_append_are_new() -> None:
    log, _ = filled([6, 6, 7])
    same = [entry(START + 2, 6), entry(START + 3, 7)]
    assert log.find_news(same) == 2
    assert log.find_news([*same, entry(START + 4, 7)]) == 2
    assert log.find_news([entry(START + 2, 6), entry(START + 3, 8)]) == 1
    assert log.find_news([]) == 0


def test_entries_come_from_the_tail_or_the_view_within_the_bytes() -> None:
    log, disk = filled([6] * 6, durable=3)
    assert [e.index for e in log.entries_from(START + 1, 2) or ()] == [START + 1, START + 2]
    assert [e.index for e in log.entries_from(START + 3, 9) or ()] == [START + 3]
    assert [e.index for e in log.entries_from(START + 4, 2) or ()] == [START + 4, START + 5]
    assert [e.index for e in log.entries_from(START + 5, 0) or ()] == [START + 5], "one always fits"
    assert log.entries_from(START + 7, 9) == ()
    disk.is_cold = True
    assert log.entries_from(START + 1, 9) is None


def test_membership_entries_are_known_until_applied_or_truncated() -> None:
    log, _ = make_log()
    for index in (START + 1, START + 2):
        log.append([Entry(LogIndex(index), Term(6), EntryKind.MEMBERSHIP, Offset(0), 0, 0, b"")])
    assert not now(log.has_committed_membership)
    log.commit_to(START + 1)
    assert now(log.has_committed_membership)
    log.truncate_after(START + 1)
    assert log.membership_indexes == [START + 1]
    log.applying = START + 1
    log.applied_to(START + 1)
    assert log.membership_indexes == []


def test_a_snapshot_discards_the_whole_log() -> None:
    log, _ = filled([6, 6, 6, 6], durable=2)
    position = LogPosition(LogIndex(START + 3), Term(9), Offset(30), 7)
    meta = SnapshotMeta(position, LogIndex(START + 3), membership(1))
    log.restore(InstallSnapshot(ReplicaId(2), ReplicaId(1), Term(9), meta))
    assert (log.last_index, log.last_term, log.next_offset, log.append_time_ms) == (START + 3, 9, 30, 7)
    assert (log.commit, log.applied, log.offset, log.unstable) == (START + 3, START + 3, START + 4, [])
    assert log.has_pending_write
    assert log.take_pending(4)[1] is not None
    assert not log.has_pending_write
