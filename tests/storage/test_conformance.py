"""The contract of `LogStore`, checked for both stores: a difference between the twins would invalidate the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq.errors import InvariantError
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import GENESIS, EntryKind, LogPosition
from raftmq.raft.membership import EMPTY_MEMBERSHIP, Membership
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.errors import LogRangeError, MissingReplicaError, ReplicaClosedError, ReplicaExistsError
from raftmq.storage.log_store import Update
from raftmq.storage.memory_log_store import MemoryLogStore
from raftmq.types import LogIndex, Offset, ReplicaId, Term

from tests.support.storage.log_builder import (
    KEY,
    OTHER,
    VOTERS,
    LogBuilder,
    Store,
    append,
    hard,
    index,
    initial_state,
    lmdb_store,
    offset,
    position_after,
    truncate,
)

MIB = 1 << 20


@pytest.fixture(params=["lmdb", "memory"])
def empty_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryLogStore()
        return
    with lmdb_store(tmp_path) as store:
        yield store


@pytest.fixture
def store(empty_store: Store) -> Store:
    """Return a store with one new, open replica."""
    empty_store.create(KEY, initial_state(), [])
    empty_store.open(KEY)
    return empty_store


def reopened(store: Store) -> RestoredState:
    store.close(KEY)
    return store.open(KEY)


def found_at(store: Store, time_ms: int, first_offset: int = 0) -> int | None:
    """Return the index of the batch that a search by timestamp finds."""
    while not (search := store.find_timestamp(KEY, time_ms, offset(first_offset))).is_complete:
        pass
    return search.header.index if search.header is not None else None


# ---------------------------------------------------------------------------------------------------- creation


def test_a_created_replica_opens_as_it_was_created(empty_store: Store) -> None:
    state = initial_state()
    empty_store.create(KEY, state, [(b"b", b"2"), (b"a", b"1"), (b"empty", b"")])
    assert empty_store.open(KEY) == state
    assert list(empty_store.state_rows(KEY)) == [(b"a", b"1"), (b"b", b"2"), (b"empty", b"")]


def test_a_joining_replica_starts_without_log_and_members(empty_store: Store) -> None:
    nothing = LogPosition(LogIndex(0), Term(0), Offset(0))
    state = initial_state(EMPTY_MEMBERSHIP, nothing)
    empty_store.create(KEY, state, [])
    assert empty_store.open(KEY) == state


def test_a_replica_is_created_once(empty_store: Store) -> None:
    empty_store.create(KEY, initial_state(), [])
    with pytest.raises(ReplicaExistsError):
        empty_store.create(KEY, initial_state(), [])


def test_a_replica_that_does_not_exist_is_missing(empty_store: Store) -> None:
    with pytest.raises(MissingReplicaError) as caught:
        empty_store.open(KEY)
    assert (caught.value.group_id, caught.value.replica_id) == KEY


def test_a_replica_is_opened_once(store: Store) -> None:
    with pytest.raises(InvariantError, match="opened_once"):
        store.open(KEY)


def test_a_closed_replica_refuses_everything(store: Store) -> None:
    store.close(KEY)
    store.close(KEY)
    with pytest.raises(ReplicaClosedError):
        append(store, LogBuilder().data())
    with pytest.raises(ReplicaClosedError):
        store.header(KEY, index(6))
    with pytest.raises(ReplicaClosedError):
        store.state_rows(KEY)


def test_a_replica_with_entries_cannot_be_created(empty_store: Store) -> None:
    state = initial_state()
    impossible = RestoredState(
        state.hard_state, state.position, index(9), Offset(3), 0, ((Term(5), index(6)),), VOTERS, state.state_index
    )
    with pytest.raises(InvariantError, match="new_replica_has_no_entries"):
        empty_store.create(KEY, impossible, [])
    assert not empty_store.exists(KEY)


# ---------------------------------------------------------------------------------------------------- appending


def test_everything_in_an_update_is_there_after_a_restart(store: Store) -> None:
    log = LogBuilder()
    entries = (log.empty(term=6), log.data(3, b"x" * 5000), log.command(), log.data(2, term=8))
    membership = Membership((ReplicaId(1),), (ReplicaId(2),), (ReplicaId(3), ReplicaId(4)), (ReplicaId(4),), True, 12)
    update = Update(hard(8, 2, 7), entries, None, ((b"k", b"v"), (b"gone", None)), index(7), membership)
    store.append_batch([(KEY, update)])
    restored = reopened(store)
    assert restored == RestoredState(
        hard(8, 2, 7),
        GENESIS,
        index(9),
        offset(5),
        log.time,
        ((Term(6), index(6)), (Term(8), index(9))),
        membership,
        index(7),
    )
    assert store.entries(KEY, index(6), index(9), MIB) == entries
    assert list(store.state_rows(KEY)) == [(b"k", b"v")]


def test_a_conflicting_suffix_is_replaced(store: Store) -> None:
    log = LogBuilder()
    kept = log.many(3)
    append(store, *kept, *LogBuilder().rewind(kept[-1]).many(5))
    new = LogBuilder().rewind(kept[-1]).data(7, term=9)
    append(store, new)
    assert store.entries(KEY, index(6), index(9), MIB) == (*kept, new)
    with pytest.raises(LogRangeError):
        store.header(KEY, index(10))
    restored = reopened(store)
    assert (restored.last_index, restored.last_next_offset) == (9, 10)
    assert restored.term_starts == ((5, 6), (9, 9))


def test_replacing_the_whole_log_leaves_the_new_entries(store: Store) -> None:
    append(store, *LogBuilder().many(4))
    new = LogBuilder().data(2, term=7)
    append(store, new)
    assert reopened(store).last_index == new.index
    assert store.entries(KEY, index(6), index(6), MIB) == (new,)


def test_updates_of_one_replica_in_a_batch_apply_in_order(store: Store) -> None:
    log = LogBuilder()
    first, second = log.data(1, b"1"), log.data(1, b"2")
    other = LogBuilder().rewind(first).data(5, b"other", term=6)
    updates = [
        Update(entries=(first, second), state_rows=((b"k", b"1"), (b"l", b"1")), state_index=index(5)),
        Update(hard(6), (other,), state_rows=((b"k", b"2"), (b"l", None)), state_index=index(6)),
    ]
    store.append_batch([(KEY, update) for update in updates])
    assert store.entries(KEY, index(6), index(7), MIB) == (first, other)
    assert list(store.state_rows(KEY)) == [(b"k", b"2")]
    assert reopened(store).state_index == 6


def test_state_rows_are_added_replaced_and_deleted(store: Store) -> None:
    first = ((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    store.append_batch([(KEY, Update(state_rows=first, state_index=index(5)))])
    second = ((b"b", b"2"), (b"a", None), (b"d", b"2"), (b"unknown", None))
    store.append_batch([(KEY, Update(state_rows=second, state_index=index(5)))])
    assert list(store.state_rows(KEY)) == [(b"b", b"2"), (b"c", b"1"), (b"d", b"2")]
    reopened(store)
    assert list(store.state_rows(KEY)) == [(b"b", b"2"), (b"c", b"1"), (b"d", b"2")]


def test_a_batch_reaches_every_replica(store: Store) -> None:
    store.create(OTHER, initial_state(), [])
    store.open(OTHER)
    here, there = LogBuilder().data(1, b"here"), LogBuilder().data(1, b"there")
    store.append_batch([(KEY, Update(entries=(here,))), (OTHER, Update(entries=(there,)))])
    assert store.entries(KEY, index(6), index(6), MIB) == (here,)
    assert store.entries(OTHER, index(6), index(6), MIB) == (there,)
    assert store.open_replicas() == [KEY, OTHER] == store.stored_replicas()


@pytest.mark.parametrize(
    ("update", "rule"),
    [
        pytest.param(lambda log: Update(entries=(log.data(), log.data())[1:]), "log_has_no_gap", id="gap"),
        pytest.param(
            lambda log: Update(entries=(log.data(), log.data(), log.data())[::2]), "entries_continuous", id="hole"
        ),
        pytest.param(
            lambda log: Update(entries=(LogBuilder(LogPosition(GENESIS.index, Term(5), Offset(3))).data(),)),
            "entries_continuous",
            id="offset",
        ),
        pytest.param(
            lambda log: Update(entries=(LogBuilder(LogPosition(LogIndex(4), Term(5), Offset(0))).data(),)),
            "log_has_no_gap",
            id="truncated index",
        ),
        pytest.param(lambda log: Update(entries=(log.data(0),)), "only_data_has_records", id="data without records"),
        pytest.param(lambda log: Update(hard_state=hard(4)), "term_monotone", id="term falls"),
        pytest.param(lambda log: Update(state_rows=((b"k", b"v"),)), "state_rows_have_index", id="rows without index"),
        pytest.param(
            lambda log: Update(state_rows=((b"k" * 512, b"v"),), state_index=index(5)), "state_key_fits", id="long key"
        ),
        pytest.param(
            lambda log: Update(state_rows=((b"", None),), state_index=index(5)), "state_key_fits", id="empty key"
        ),
        pytest.param(lambda log: Update(state_index=index(4)), "state_index_monotone", id="state index falls"),
        pytest.param(lambda log: Update(membership=VOTERS), "membership_has_index", id="membership without index"),
        pytest.param(
            lambda log: Update(entries=(entry := log.data(),), truncation=position_after(entry)),
            "truncation_within_durable_state",
            id="truncation beyond the durable state",
        ),
        pytest.param(
            lambda log: Update(truncation=position_after(log.data()), state_index=index(6)),
            "truncation_within_durable_state",
            id="truncation beyond the log",
        ),
    ],
)
def test_an_impossible_update_changes_nothing(store: Store, update: object, rule: str) -> None:
    before = reopened(store)
    with pytest.raises(InvariantError, match=rule):
        store.append_batch([(KEY, update(LogBuilder()))])  # type: ignore[operator]
    assert reopened(store) == before


def test_a_vote_is_never_changed_within_a_term(store: Store) -> None:
    """Thesis 3.4: at most one vote per term, on a first-come-first-served basis."""
    store.append_batch([(KEY, Update(hard_state=hard(6, 2)))])
    with pytest.raises(InvariantError, match="vote_kept_within_term"):
        store.append_batch([(KEY, Update(hard_state=hard(6, 3)))])
    store.append_batch([(KEY, Update(hard_state=hard(7, 3)))])
    assert reopened(store).hard_state == hard(7, 3)


# ---------------------------------------------------------------------------------------------------- reading


def test_entries_stop_before_the_byte_limit_but_give_at_least_one(store: Store) -> None:
    log = LogBuilder()
    entries = tuple(log.data(1, b"x" * 100) for _ in range(5))
    append(store, *entries)
    assert store.entries(KEY, index(6), index(10), 1) == entries[:1]
    assert store.entries(KEY, index(6), index(10), 299) == entries[:2]
    assert store.entries(KEY, index(6), index(10), 300) == entries[:3]
    assert store.entries(KEY, index(7), index(8), MIB) == entries[1:3]


def test_indexes_outside_the_log_are_a_range_error(store: Store) -> None:
    append(store, *LogBuilder().many(2))
    for first, last in ((5, 6), (7, 8), (8, 8), (7, 6)):
        with pytest.raises(LogRangeError):
            store.entries(KEY, index(first), index(last), MIB)


def test_a_header_is_its_entry_without_the_payload(store: Store) -> None:
    entry = LogBuilder().data(4, b"abc")
    append(store, entry)
    header = store.header(KEY, entry.index)
    assert (header.index, header.term, header.kind) == (entry.index, entry.term, EntryKind.DATA)
    assert (header.base_offset, header.record_count, header.append_time_ms) == (0, 4, entry.append_time_ms)
    assert (header.payload_bytes, header.next_offset) == (3, 4)


def test_find_offset_skips_entries_without_records(store: Store) -> None:
    log = LogBuilder()
    append(store, log.empty(), log.data(3), log.command(), log.command(), log.data(1), log.empty(), log.data(2))
    found = [store.find_offset(KEY, offset(number)) for number in range(7)]
    assert found == [7, 7, 7, 10, 12, 12, None]


def test_find_offset_before_the_start_of_the_log_finds_nothing(store: Store) -> None:
    log = LogBuilder()
    first, second = log.data(3), log.data(2)
    append(store, first, second)
    truncate(store, first)
    assert store.find_offset(KEY, offset(2)) is None
    assert store.find_offset(KEY, offset(3)) == second.index


def test_find_time_finds_the_first_batch_at_or_after_it(store: Store) -> None:
    log = LogBuilder()
    a, _, b = log.data(1, later_ms=100), log.command(later_ms=100), log.data(1, later_ms=100)
    append(store, a, log.rewind(a).command(later_ms=100), b)
    assert [header and header.index for header in (store.find_time(KEY, t) for t in (0, 100, 101, 200, 300, 301))] == [
        6,
        6,
        8,
        8,
        8,
        None,
    ]


def test_find_time_ignores_entries_without_records_after_the_last_batch(store: Store) -> None:
    log = LogBuilder()
    append(store, log.data(later_ms=100), log.command(later_ms=100))
    assert store.find_time(KEY, 150) is None


def test_find_timestamp_finds_the_first_batch_with_a_record_at_or_after_it(store: Store) -> None:
    """Timestamps are in no order, so that a later batch may have only earlier records."""
    log = LogBuilder()
    append(store, log.batch(300), log.command(), log.batch(100), log.batch(500, 3), log.batch(400), log.empty())
    assert [found_at(store, time_ms) for time_ms in (0, 300, 301, 500, 501)] == [6, 6, 9, 9, None]


def test_find_timestamp_begins_at_an_offset(store: Store) -> None:
    log = LogBuilder()
    append(store, log.batch(500, 3), log.batch(100, 2), log.batch(200))
    found = [found_at(store, 100, first_offset) for first_offset in range(8)]
    assert found == [6, 6, 6, 7, 7, 8, None, None]


def test_find_timestamp_forgets_a_far_time_with_the_batch_that_had_it(store: Store) -> None:
    """A running maximum would always name the batch after it."""
    log = LogBuilder()
    first = log.batch(10**15)
    append(store, first, *(log.batch(time_ms) for time_ms in range(100, 400)))
    truncate(store, first)
    assert found_at(store, 10**15) is None
    assert found_at(store, 350) == 7 + 250


def test_find_timestamp_sees_entries_that_replace_others(store: Store) -> None:
    log = LogBuilder()
    kept = log.batch(1)
    append(store, kept, *(log.batch(1000) for _ in range(200)))
    assert found_at(store, 1000) == 7
    log.rewind(kept)
    append(store, *(log.batch(time_ms, term=9) for time_ms in range(2, 150)))
    assert found_at(store, 1000) is None
    assert found_at(store, 149) is not None


def test_find_timestamp_ignores_entries_that_are_no_record_batches(store: Store) -> None:
    log = LogBuilder()
    append(store, log.data(2, b"messages of a queue topic"), log.command())
    assert found_at(store, 0) is None


@pytest.mark.parametrize("time_ms", [-(1 << 63), -1, (1 << 63) - 2, (1 << 63) - 1])
def test_find_timestamp_knows_the_most_extreme_times(store: Store, time_ms: int) -> None:
    log = LogBuilder()
    append(store, *(log.batch(-(1 << 63)) for _ in range(200)), log.batch(time_ms), log.batch(-(1 << 63)))
    assert found_at(store, time_ms) == (206 if time_ms != -(1 << 63) else 6)
    assert found_at(store, time_ms) == (206 if time_ms != -(1 << 63) else 6), "also after the first look"


def test_nothing_is_found_in_an_empty_log(store: Store) -> None:
    assert found_at(store, 0) is None
    assert store.find_offset(KEY, offset(0)) is None
    assert store.find_time(KEY, 0) is None


# ---------------------------------------------------------------------------------------------------- truncation


def test_a_truncated_log_starts_after_its_position(store: Store) -> None:
    log = LogBuilder()
    entries = log.many(5)
    append(store, *entries)
    truncate(store, entries[2])
    with pytest.raises(LogRangeError):
        store.entries(KEY, index(8), index(9), MIB)
    assert store.entries(KEY, index(9), index(10), MIB) == entries[3:]
    restored = reopened(store)
    assert (restored.position, restored.last_index) == (position_after(entries[2]), 10)
    assert restored.term_starts == ((5, 9),)


def test_a_log_truncated_to_its_end_continues_there(store: Store) -> None:
    log = LogBuilder()
    entries = log.many(3)
    append(store, *entries)
    truncate(store, entries[-1])
    restored = reopened(store)
    assert (restored.position.index, restored.last_index, restored.term_starts) == (8, 8, ())
    assert (restored.last_next_offset, restored.last_append_time_ms) == (3, log.time)
    new = log.data(2)
    append(store, new)
    assert reopened(store).last_index == 9
    assert store.entries(KEY, index(9), index(9), MIB) == (new,)


def test_truncated_rows_are_deleted_in_slices(store: Store) -> None:
    entries = LogBuilder().many(10)
    append(store, *entries)
    assert not store.delete_truncated(KEY, 4)
    truncate(store, entries[7])
    assert store.delete_truncated(KEY, 4)
    assert not store.delete_truncated(KEY, 4)
    assert not store.delete_truncated(KEY, 4)
    assert reopened(store).position.index == 13
    assert store.entries(KEY, index(14), index(15), MIB) == entries[8:]


def test_slices_of_a_large_truncation_end(store: Store) -> None:
    entries = LogBuilder().many(900, b"y" * 300)
    append(store, *entries)
    truncate(store, entries[-1])
    slices = 1
    while store.delete_truncated(KEY, 64):
        slices += 1
    assert slices == 15
    assert reopened(store).last_index == entries[-1].index


def test_a_conflict_right_after_the_position_keeps_truncated_rows(store: Store) -> None:
    log = LogBuilder()
    entries = log.many(4)
    append(store, *entries)
    truncate(store, entries[1])
    new = log.rewind(entries[1]).data(1, b"new", term=7)
    append(store, new)
    assert store.entries(KEY, index(8), index(8), MIB) == (new,)
    assert reopened(store).last_index == 8
    assert not store.delete_truncated(KEY, 100)


# ---------------------------------------------------------------------------------------------------- snapshots


def snapshot_meta(position: LogPosition, state: int | None = None) -> SnapshotMeta:
    return SnapshotMeta(position, LogIndex(state if state is not None else position.index), VOTERS)


def test_an_installed_snapshot_replaces_log_and_state(store: Store) -> None:
    store.append_batch(
        [(KEY, Update(hard(6, 1), LogBuilder().many(4), state_rows=((b"old", b"1"),), state_index=index(6)))]
    )
    position = LogPosition(LogIndex(100), Term(6), Offset(5000), 77)
    store.install(KEY, hard(9, 2, 100), snapshot_meta(position, 120), iter([(b"b", b"2"), (b"a", b"1")]))
    expected = RestoredState(hard(9, 2, 100), position, index(100), Offset(5000), 77, (), VOTERS, index(120))
    assert list(store.state_rows(KEY)) == [(b"a", b"1"), (b"b", b"2")]
    assert reopened(store) == expected
    with pytest.raises(LogRangeError):
        store.header(KEY, index(6))
    entry = LogBuilder(position).data(2)
    store.append_batch([(KEY, Update(entries=(entry,)))])
    assert store.find_offset(KEY, offset(5001)) == 101
    assert reopened(store).last_index == 101


def test_a_snapshot_does_not_forget_term_or_vote(store: Store) -> None:
    store.append_batch([(KEY, Update(hard_state=hard(8, 2)))])
    with pytest.raises(InvariantError, match="term_monotone"):
        store.install(KEY, hard(7), snapshot_meta(LogPosition(LogIndex(9), Term(7), Offset(0))), [])
    with pytest.raises(InvariantError, match="vote_kept_within_term"):
        store.install(KEY, hard(8, 3), snapshot_meta(LogPosition(LogIndex(9), Term(7), Offset(0))), [])
    assert reopened(store).hard_state == hard(8, 2)


def test_a_snapshot_stream_does_not_see_later_writes(store: Store) -> None:
    rows = tuple((b"%04d" % number, b"before") for number in range(1000))
    store.append_batch([(KEY, Update(state_rows=rows, state_index=index(5), membership=VOTERS))])
    _, state_index, membership, stream = store.snapshot(KEY)
    changed = tuple((row, b"after") for row, _ in rows)
    single = Membership((ReplicaId(1),))
    append(store, LogBuilder().data())
    store.append_batch([(KEY, Update(state_rows=changed, state_index=index(6), membership=single))])
    assert (state_index, membership) == (5, VOTERS)
    assert list(stream) == list(rows)
    _, state_index, membership, stream = store.snapshot(KEY)
    assert (state_index, membership, next(stream)) == (6, single, (b"0000", b"after"))
    stream.close()
    assert list(stream) == []


def test_a_closed_stream_ends(store: Store) -> None:
    store.append_batch([(KEY, Update(state_rows=((b"a", b"1"), (b"b", b"2")), state_index=index(5)))])
    stream = store.state_rows(KEY)
    assert next(stream) == (b"a", b"1")
    stream.close()
    stream.close()
    assert list(stream) == []


def test_a_stream_ends_when_its_replica_is_replaced(store: Store) -> None:
    rows = tuple((b"%04d" % number, b"before") for number in range(1000))
    store.append_batch([(KEY, Update(state_rows=rows, state_index=index(5)))])
    stream = store.snapshot(KEY).rows
    next(stream)
    store.install(KEY, hard(5), snapshot_meta(LogPosition(LogIndex(9), Term(5), Offset(0))), [])
    with pytest.raises(ReplicaClosedError):
        list(stream)
    stream.close()


def test_a_stream_ends_when_its_replica_is_closed(store: Store) -> None:
    rows = tuple((b"%04d" % number, b"before") for number in range(1000))
    store.append_batch([(KEY, Update(state_rows=rows, state_index=index(5)))])
    stream = store.state_rows(KEY)
    next(stream)
    store.close(KEY)
    with pytest.raises(ReplicaClosedError):
        list(stream)


# ---------------------------------------------------------------------------------------------------- retirement


def test_a_retired_replica_is_missing(store: Store) -> None:
    append(store, LogBuilder().data())
    store.retire(KEY)
    assert not store.exists(KEY)
    assert store.open_replicas() == store.stored_replicas() == []
    with pytest.raises(MissingReplicaError):
        store.open(KEY)
    store.retire(KEY)
    assert store.empty_trash(0) == 1
    assert store.empty_trash(0) == 0


def test_file_bytes_grow_with_the_log(store: Store) -> None:
    before = store.file_bytes(KEY)
    append(store, *LogBuilder().many(20, b"z" * 4096))
    assert store.file_bytes(KEY) >= before + 20 * 4096
    assert store.file_bytes(OTHER) == 0
