"""The contract of `StateStore`, checked for both stores: replicas whose derived state has a file of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq.errors import InvariantError
from raftmq.raft.core import RestoredState
from raftmq.raft.entry import GENESIS, LogPosition
from raftmq.raft.membership import Membership
from raftmq.raft.messages import SnapshotMeta
from raftmq.storage.errors import LogRangeError, MissingReplicaError, ReplicaClosedError, ReplicaExistsError
from raftmq.storage.log_store import StateRow, Update
from raftmq.storage.memory_log_store import MemoryLogStore
from raftmq.storage.state_store import EVACUATED_BODIES_MAX, StateWrite, body_key, location_key, sequence_of
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
    position_after,
)

MIB = 1 << 20
SNAPSHOT = SnapshotMeta(LogPosition(LogIndex(50), Term(6), Offset(70), 44), LogIndex(60), VOTERS)


@pytest.fixture(params=["lmdb", "memory"])
def empty_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "memory":
        yield MemoryLogStore()
        return
    with lmdb_store(tmp_path) as store:
        yield store


@pytest.fixture
def store(empty_store: Store) -> Store:
    """Return a store with one new, open replica that has a state file."""
    empty_store.create_with_state_file(KEY, initial_state())
    empty_store.open(KEY)
    return empty_store


def reopened(store: Store) -> RestoredState:
    store.close(KEY)
    return store.open(KEY)


def write(store: Store, state_index: int, *rows: StateRow) -> None:
    store.write_state(KEY, StateWrite(index(state_index), rows))


def location(sequence: int, generation: int = 0) -> bytes:
    return location_key(generation, sequence)


def located(*sequences: int, generation: int = 0) -> tuple[StateRow, ...]:
    return tuple((location(sequence, generation), b"home") for sequence in sequences)


def evacuate(store: Store, *sequences: int, generation: int = 0) -> None:
    bodies = [(location(sequence, generation), b"body %d" % sequence) for sequence in sequences]
    assert store.evacuate(KEY, bodies, store.evacuated_through(KEY))


def rows_of(store: Store) -> list[tuple[bytes, bytes]]:
    return list(store.state_rows(KEY))


# ---------------------------------------------------------------------------------------------------- creation


def test_a_created_replica_has_an_empty_state(empty_store: Store) -> None:
    empty_store.create_with_state_file(KEY, initial_state())
    empty_store.create(OTHER, initial_state(), [])
    assert empty_store.open(KEY) == initial_state() == empty_store.open(OTHER)
    assert empty_store.has_state_file(KEY)
    assert not empty_store.has_state_file(OTHER)
    assert rows_of(empty_store) == []
    assert empty_store.evacuated_through(KEY) == -1
    with pytest.raises(ReplicaExistsError):
        empty_store.create_with_state_file(OTHER, initial_state())


def test_a_replica_without_a_state_file_refuses_its_methods(empty_store: Store) -> None:
    empty_store.create(KEY, initial_state(), [])
    empty_store.open(KEY)
    with pytest.raises(ReplicaClosedError):
        write(empty_store, 5)
    with pytest.raises(ReplicaClosedError):
        empty_store.read_rows(KEY, [(b"a", b"b", 1)])
    with pytest.raises(ReplicaClosedError):
        empty_store.evacuated_through(KEY)


def test_a_closed_replica_refuses_everything(store: Store) -> None:
    store.close(KEY)
    with pytest.raises(ReplicaClosedError):
        write(store, 5)
    with pytest.raises(ReplicaClosedError):
        store.read_body(KEY, 1)


def test_a_retired_replica_is_missing(store: Store) -> None:
    write(store, 5, (b"a", b"1"))
    store.retire(KEY)
    with pytest.raises(MissingReplicaError):
        store.open(KEY)
    store.create_with_state_file(KEY, initial_state())
    store.open(KEY)
    assert rows_of(store) == []


# ---------------------------------------------------------------------------------------------------- write-backs


def test_a_write_back_is_there_after_a_restart(store: Store) -> None:
    membership = Membership((ReplicaId(1),), (ReplicaId(2),), (ReplicaId(3), ReplicaId(4)), (ReplicaId(4),), True, 12)
    append(store, *LogBuilder().many(4))
    write(store, 6, (b"b", b"1"), (b"a", b"1"), (b"gone", b"1"))
    store.write_state(KEY, StateWrite(index(8), ((b"b", b"2"), (b"gone", None), (b"never", None)), membership))
    restored = reopened(store)
    assert (restored.state_index, restored.membership, restored.last_index) == (8, membership, 9)
    assert rows_of(store) == [(b"a", b"1"), (b"b", b"2")]


def test_the_log_s_file_says_nothing_about_the_state(store: Store) -> None:
    """The two files commit on their own, and only the state file knows the rows."""
    write(store, 9, (b"a", b"1"))
    append(store, *LogBuilder().many(2))
    assert reopened(store).state_index == 9
    for update in (
        Update(state_rows=((b"k", b"v"),), state_index=index(9)),
        Update(state_index=index(9)),
        Update(state_index=index(9), membership=VOTERS),
    ):
        with pytest.raises(InvariantError, match="state_is_in_its_own_file"):
            store.append_batch([(KEY, update)])


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        (StateWrite(index(4)), "state_index_monotone"),
        (StateWrite(index(5), ((b"k" * 512, b"v"),)), "state_key_fits"),
        (StateWrite(index(5), ((b"", None),)), "state_key_fits"),
        (StateWrite(index(5), ((body_key(3), b"v"),)), "bodies_are_evacuated"),
        (StateWrite(index(5), ((body_key(3), None),)), "bodies_are_evacuated"),
    ],
)
def test_an_impossible_write_back_changes_nothing(store: Store, wrong: StateWrite, rule: str) -> None:
    write(store, 5, (b"a", b"1"))
    with pytest.raises(InvariantError, match=rule):
        store.write_state(KEY, wrong)
    assert reopened(store).state_index == 5
    assert rows_of(store) == [(b"a", b"1")]


# ---------------------------------------------------------------------------------------------------- reads


def test_ranges_give_their_first_rows(store: Store) -> None:
    write(store, 5, *((b"%d" % number, b"v%d" % number) for number in range(6)))
    found = store.read_rows(KEY, [(b"1", b"3", 9), (b"0", b"9", 2), (b"5", b"5", 9), (b"4x", b"9", 1), (b"9", b"a", 9)])
    assert found == [
        [(b"1", b"v1"), (b"2", b"v2")],
        [(b"0", b"v0"), (b"1", b"v1")],
        [],
        [(b"5", b"v5")],
        [],
    ]
    assert store.read_rows(KEY, [(b"0", b"9", 0)]) == [[]]
    assert store.read_rows(KEY, []) == []


def test_resident_rows_are_those_of_some_ranges(store: Store) -> None:
    write(store, 5, *((b"%03d" % number, b"v") for number in range(900)))
    ranges = [(b"", b"002"), (b"100", b"100"), (b"300", b"700"), (b"898", None), (b"9", None)]
    found = [int(key) for key, _ in store.resident_rows(KEY, ranges)]
    assert found == [0, 1, *range(300, 700), 898, 899]
    assert list(store.resident_rows(KEY, [])) == []


def test_a_snapshot_does_not_see_later_write_backs(store: Store) -> None:
    log = LogBuilder()
    entries = log.many(4)
    append(store, *entries)
    store.write_state(KEY, StateWrite(index(7), tuple((b"%04d" % number, b"before") for number in range(1000))))
    snapshot = store.snapshot(KEY)
    store.append_batch([(KEY, Update(truncation=position_after(entries[1])))])
    single = Membership((ReplicaId(1),))
    store.write_state(KEY, StateWrite(index(9), ((b"0001", b"after"), (b"0002", None)), single))
    assert (snapshot.position, snapshot.state_index, snapshot.membership) == (GENESIS, 7, VOTERS)
    assert list(snapshot.rows) == [(b"%04d" % number, b"before") for number in range(1000)]
    later = store.snapshot(KEY)
    assert (later.position, later.state_index, later.membership) == (position_after(entries[1]), 9, single)
    assert [next(later.rows), next(later.rows)] == [(b"0000", b"before"), (b"0001", b"after")]
    later.rows.close()


# ---------------------------------------------------------------------------------------------------- bodies


def test_evacuated_bodies_are_read_back(store: Store) -> None:
    large = b"x" * (3 * MIB)
    write(store, 20, *located(3, 5, 8))
    evacuate(store, 3)
    store.evacuate(KEY, [(location(5), large), (location(8), b"")], 3)
    reopened(store)
    assert [store.read_body(KEY, sequence) for sequence in (3, 4, 5, 8, 9)] == [b"body 3", None, large, b"", None]
    assert store.evacuated_through(KEY) == 8


def test_a_body_goes_with_its_location(store: Store) -> None:
    write(store, 20, *located(3, 5, 8), (b"\x10home", b"row"))
    evacuate(store, 3, 5)
    write(store, 21, (location(5), None), (location(8), None), (b"\x10home", None))
    assert rows_of(store) == [(location(3), b"home"), (body_key(3), b"body 3")]


def test_the_body_of_a_message_that_was_finished_in_the_meantime_is_not_written(store: Store) -> None:
    """Bodies are read from the log while a write-back is under way, and it may delete their locations first."""
    write(store, 20, *located(3, 5, 8))
    write(store, 21, (location(3), None), (location(8), None))
    evacuate(store, 3, 5, 8)
    assert rows_of(store) == [(location(5), b"home"), (body_key(5), b"body 5")]
    assert store.evacuated_through(KEY) == 8


def test_no_message_is_passed_over(store: Store) -> None:
    write(store, 20, *located(3, 5, 8))
    with pytest.raises(InvariantError, match="evacuation_is_complete"):
        evacuate(store, 3, 8)
    assert (store.evacuated_through(KEY), len(rows_of(store))) == (-1, 3)
    evacuate(store, 3)
    evacuate(store, 5)
    assert store.evacuated_through(KEY) == 5


@pytest.mark.parametrize(
    ("bodies", "rule"),
    [
        ([], "evacuation_is_bounded"),
        ([(location(n), b"") for n in range(EVACUATED_BODIES_MAX + 1)], "evacuation_is_bounded"),
        ([(location(8), b""), (location(5), b"")], "evacuation_is_ordered"),
        ([(location(5), b""), (location(5), b"")], "evacuation_is_ordered"),
        ([(location(5), b""), (location(8, 1), b"")], "evacuation_is_ordered"),
        ([(b"\x10other", b"")], "evacuation_is_ordered"),
        ([(location(3), b"")], "evacuation_advances"),
    ],
)
def test_an_impossible_evacuation_changes_nothing(store: Store, bodies: list[tuple[bytes, bytes]], rule: str) -> None:
    write(store, 20, *located(3, 5, 8))
    evacuate(store, 3)
    with pytest.raises(InvariantError, match=rule):
        store.evacuate(KEY, bodies, 3)
    assert store.evacuated_through(KEY) == 3


def test_rows_of_an_earlier_generation_are_deleted_in_slices(store: Store) -> None:
    write(store, 20, *located(3, 5, 8), *located(9, 11, generation=1))
    evacuate(store, 3, 5)
    dead = (location(0), location(0, 1))
    assert store.delete_rows(KEY, dead, 1)
    assert rows_of(store)[-1] == (body_key(5), b"body 5")
    assert store.delete_rows(KEY, dead, 2)
    assert not store.delete_rows(KEY, dead, 2)
    assert rows_of(store) == list(located(9, 11, generation=1))
    evacuate(store, 9, generation=1)
    assert store.read_body(KEY, 9) == b"body 9"
    assert reopened(store).state_index == 20


def test_a_dead_generation_need_not_be_evacuated(store: Store) -> None:
    write(store, 20, *located(3, 5, 8), *located(9, generation=1))
    evacuate(store, 9, generation=1)
    write(store, 21, *((location(sequence), None) for sequence in (3, 5, 8)))
    assert rows_of(store) == [*located(9, generation=1), (body_key(9), b"body 9")]


# ---------------------------------------------------------------------------------------------------- truncation


def test_the_first_location_is_the_lowest_of_any_generation(store: Store) -> None:
    assert store.first_location(KEY, -1) is None
    write(store, 20, (b"\x10first", b""), *located(3, 5), *located(4, 9, generation=7), (b"\x21last", b""))
    assert [store.first_location(KEY, after) for after in (-1, 3, 4, 5, 8, 9)] == [3, 4, 5, 9, 9, None]


def test_a_truncation_keeps_the_entries_of_waiting_bodies(store: Store) -> None:
    entries = LogBuilder().many(6)  # the sequences 0 to 5 in the entries 6 to 11
    append(store, *entries)
    write(store, 10, *located(2, 4))
    for entry in (entries[2], entries[3]):
        with pytest.raises(InvariantError, match="truncation_keeps_bodies"):
            store.append_batch([(KEY, Update(truncation=position_after(entry)))])
    store.append_batch([(KEY, Update(truncation=position_after(entries[1])))])
    evacuate(store, 2)
    store.append_batch([(KEY, Update(truncation=position_after(entries[3])))])
    write(store, 10, (location(4), None))
    store.append_batch([(KEY, Update(truncation=position_after(entries[4])))])
    assert reopened(store).position == position_after(entries[4])


def test_a_truncation_does_not_pass_the_durable_state(store: Store) -> None:
    entries = LogBuilder().many(6)
    append(store, *entries)
    write(store, 8)
    with pytest.raises(InvariantError, match="truncation_within_durable_state"):
        store.append_batch([(KEY, Update(truncation=position_after(entries[3])))])
    store.append_batch([(KEY, Update(truncation=position_after(entries[2])))])
    with pytest.raises(LogRangeError):
        store.header(KEY, index(8))


# ---------------------------------------------------------------------------------------------------- installation


def test_bodies_that_were_read_before_a_snapshot_are_not_evacuated(store: Store) -> None:
    """Its file may need bodies that were evacuated in the one before it."""
    append(store, *LogBuilder().many(4))
    write(store, 8, *located(1, 2))
    evacuate(store, 1)
    after = store.evacuated_through(KEY)
    store.install(KEY, hard(9, 2, 50), SNAPSHOT, iter([*located(1, 2)]))
    before = (rows_of(store), store.evacuated_through(KEY))

    assert not store.evacuate(KEY, [(location(2), b"body 2")], after)
    assert (rows_of(store), store.evacuated_through(KEY)) == before


def test_an_installed_snapshot_replaces_both_files(store: Store) -> None:
    append(store, *LogBuilder().many(4))
    write(store, 8, *located(1, 2), (b"old", b"row"))
    evacuate(store, 1)
    rows = [(b"new", b"row"), *located(30, 80), (body_key(30), b"body")]
    store.install(KEY, hard(9, 2, 50), SNAPSHOT, iter(rows))
    position = SNAPSHOT.position
    expected = RestoredState(hard(9, 2, 50), position, index(50), Offset(70), 44, (), VOTERS, index(60))
    assert rows_of(store) == sorted(rows)
    assert reopened(store) == expected
    assert store.evacuated_through(KEY) == 69
    store.append_batch([(KEY, Update(entries=(LogBuilder(position).data(5, term=9),)))])
    assert reopened(store).last_index == 51


def test_bodies_that_come_with_the_log_are_not_installed(store: Store) -> None:
    """The sender has evacuated further than its log was truncated. Such a body would outlive its message here."""
    rows = [*located(69, 70), (body_key(69), b"a"), (body_key(70), b"b")]
    store.install(KEY, hard(9), SNAPSHOT, rows)
    assert rows_of(store) == [*located(69, 70), (body_key(69), b"a")]
    append(store, LogBuilder(SNAPSHOT.position).data(2, term=9))
    write(store, 61, (location(70), None), (location(69), None))
    assert rows_of(store) == []


def test_an_older_snapshot_is_refused(store: Store) -> None:
    store.install(KEY, hard(9), SNAPSHOT, [])
    older = SnapshotMeta(LogPosition(LogIndex(49), Term(6), Offset(70)), LogIndex(70), VOTERS)
    with pytest.raises(InvariantError, match="snapshot_is_newer"):
        store.install(KEY, hard(9), older, [])


def test_file_bytes_grow_with_the_state(store: Store) -> None:
    before = store.file_bytes(KEY)
    write(store, 5, *((b"%d" % number, b"z" * 4096) for number in range(20)))
    assert store.file_bytes(KEY) >= before + 20 * 4096


# ---------------------------------------------------------------------------------------------------- copies and staged snapshots


def test_a_copy_keeps_the_state_of_one_transaction(store: Store) -> None:
    append(store, *LogBuilder().many(4))
    write(store, 8, *located(0, 1, 2), (b"\x01row", b"old"))
    evacuate(store, 0, 1)
    copy = store.copy_state(KEY)
    before = rows_of(store)
    write(store, 9, (location(0), None), (b"\x01row", b"new"), *located(3))
    evacuate(store, 2)
    store.append_batch([(KEY, Update(truncation=position_after(store.entries(KEY, index(8), index(8), MIB)[0])))])
    assert list(copy.rows_from(b"")) == before
    assert (body_key(0), b"body 0") in before
    assert (copy.state_index, copy.membership, copy.position) == (8, VOTERS, GENESIS)
    copy.close()


def test_a_copy_is_read_from_any_key_on(store: Store) -> None:
    write(store, 5, *located(1, 5, 9))
    copy = store.copy_state(KEY)
    for first, expected in ((location(0), [1, 5, 9]), (location(5), [5, 9]), (location(6), [9]), (location(10), [])):
        assert [sequence_of(key) for key, _ in copy.rows_from(first)] == expected
    copy.close()


def test_a_copy_outlives_its_replica_until_it_is_closed(store: Store) -> None:
    write(store, 5, *((b"\x01%05d" % number, b"") for number in range(600)))
    copy = store.copy_state(KEY)
    rows = copy.rows_from(b"")
    next(rows)
    store.retire(KEY)
    assert sum(1 for _ in rows) == 599
    rows = copy.rows_from(b"")
    next(rows)
    copy.close()
    with pytest.raises(ReplicaClosedError):
        list(rows)
    copy.close()


def test_only_an_open_state_file_is_copied(store: Store) -> None:
    write(store, 5, *located(1))
    assert store.state_bytes(KEY) > 0
    store.close(KEY)
    for call in (store.copy_state, store.state_bytes):
        with pytest.raises(ReplicaClosedError):
            call(KEY)


def test_a_staged_snapshot_is_installed_as_one_that_is_given_at_once(store: Store) -> None:
    write(store, 5, (b"\x01old", b"state"))
    staged = store.stage(KEY, SNAPSHOT.position)
    rows = [*located(3, 69, 70), (b"\x30row", b"value"), (body_key(3), b"body 3"), (body_key(70), b"with the log")]
    staged.put(rows[:2])
    staged.put(rows[2:])
    staged.finish()
    assert rows_of(store) == [(b"\x01old", b"state")]
    store.install_staged(KEY, hard(6, 0, 50), SNAPSHOT, staged)
    assert rows_of(store) == rows[:-1]
    restored = reopened(store)
    assert (restored.position, restored.state_index) == (SNAPSHOT.position, 60)
    assert (restored.last_index, restored.hard_state) == (50, hard(6, 0, 50))
    assert rows_of(store) == rows[:-1]
    assert store.evacuated_through(KEY) == 69
    write(store, 61, (b"\x30row", b"next"))
    append(store, *LogBuilder(SNAPSHOT.position).many(2))


def test_staged_rows_are_read_back_by_ranges(store: Store) -> None:
    staged = store.stage(KEY, SNAPSHOT.position)
    staged.put([(b"\x01%03d" % number, b"%d" % number) for number in range(50)])
    found = list(staged.rows([(b"\x01010", b"\x01013"), (b"\x01048", None)]))
    assert found == [(b"\x01%03d" % number, b"%d" % number) for number in (10, 11, 12, 48, 49)]
    staged.close()


def test_a_staged_snapshot_that_is_given_up_leaves_the_replica_as_it_was(store: Store) -> None:
    write(store, 6, (b"\x01old", b"state"))
    staged = store.stage(KEY, SNAPSHOT.position)
    staged.put([(b"\x01new", b"state")])
    staged.close()
    assert reopened(store).state_index == 6
    assert rows_of(store) == [(b"\x01old", b"state")]
