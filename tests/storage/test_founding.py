"""A replica's files become those of the founder of another group, with their data, at whatever point the process ends."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from raftmq.raft.entry import Entry, EntryKind
from raftmq.raft.membership import EMPTY_MEMBERSHIP, Membership, MembershipChange, MembershipOp, encode_change
from raftmq.storage import lmdb_log_store
from raftmq.storage.errors import DamagedReplicaError, MissingReplicaError
from raftmq.storage.file_check import find_problem
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.lmdb_replica import LmdbReplica
from raftmq.storage.lmdb_state_file import LmdbStateFile
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.state_store import StateWrite
from raftmq.types import GroupId, ReplicaId, Term

from tests.support.storage.log_builder import KEY, LogBuilder, hard, index, initial_state, lmdb_store

FOUNDER = ReplicaKey(GroupId(90), ReplicaId(91))
ALONE = Membership((FOUNDER.replica_id,))
TERM = Term(40)
CHANGE = encode_change(MembershipChange(((MembershipOp.ADD_LEARNER, ReplicaId(8)),), 3))


class ProcessEndedError(BaseException):
    """Simulates a kill."""


@pytest.fixture(params=["one file", "two files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LmdbLogStore]:
    with lmdb_store(tmp_path / "node") as store:
        if request.param == "two files":
            store.create_with_state_file(KEY, initial_state())
        else:
            store.create(KEY, initial_state(), ())
        store.open(KEY)
        store.append_batch([(KEY, Update(hard_state=hard(7, 2, 7), entries=tuple(entries())))])
        rows = ((b"key", b"value"),)
        if request.param == "two files":
            store.write_state(KEY, StateWrite(index(6), rows))
        else:
            store.append_batch([(KEY, Update(state_rows=rows, state_index=index(6)))])
        store.close(KEY)
        yield store


def entries() -> list[Entry]:
    """Return entries 6 to 9. The third is a change of membership that is not applied at state index 6."""
    log = LogBuilder()
    return [log.data(2), log.data(3), log._make(EntryKind.MEMBERSHIP, 0, CHANGE, 0, None), log.data(1)]


def check_founded(store: LmdbLogStore) -> None:
    restored = store.open(FOUNDER)
    assert restored.membership == ALONE != EMPTY_MEMBERSHIP
    assert restored.hard_state == hard(TERM, 0, 7), "the vote was given in the old group"
    assert (restored.state_index, restored.last_index, restored.last_next_offset) == (6, 9, 6)
    old = entries()
    found = store.entries(FOUNDER, index(6), index(9), 1 << 20)
    assert [found[0], found[1], found[3]] == [old[0], old[1], old[3]]
    assert (found[2].kind, found[2].payload, found[2].term) == (EntryKind.EMPTY, b"", old[2].term)
    assert list(store.state_rows(FOUNDER)) == [(b"key", b"value")]
    store.close(FOUNDER)
    assert store.stored_replicas() == [FOUNDER]
    assert {path.name for path in store.path(KEY).parent.iterdir() if path.name.startswith(f"{KEY.group_id}-")} == set()
    assert find_problem(store.path(FOUNDER)) is None


def test_a_founder_continues_the_data_of_the_old_replica(store: LmdbLogStore) -> None:
    store.found(FOUNDER, KEY, TERM)
    check_founded(store)
    store.found(FOUNDER, KEY, TERM)
    check_founded(store)


def test_a_later_term_of_the_old_replica_stays(store: LmdbLogStore) -> None:
    store.found(FOUNDER, KEY, Term(3))
    assert store.open(FOUNDER).hard_state == hard(7, 0, 7)


@pytest.mark.parametrize("step", range(6))
def test_a_kill_at_any_point_is_harmless(store: LmdbLogStore, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps are: the state's rows, the log's rows, and the two renames, each before and after."""
    reached = 0

    def killed(place: type | object, name: str) -> None:
        real = getattr(place, name)

        def run(*arguments: object) -> None:
            nonlocal reached
            for is_after in (False, True):
                if reached == step:
                    raise ProcessEndedError
                reached += 1
                if not is_after:
                    real(*arguments)

        monkeypatch.setattr(place, name, run)

    with monkeypatch.context() as patched:
        monkeypatch = patched
        killed(LmdbStateFile, "become")
        killed(LmdbReplica, "become")
        killed(lmdb_log_store, "replace_file")
        with contextlib.suppress(ProcessEndedError):
            store.found(FOUNDER, KEY, TERM)
    store.found(FOUNDER, KEY, TERM)
    check_founded(store)


def test_files_that_are_missing_or_damaged_found_nothing(store: LmdbLogStore) -> None:
    with pytest.raises(MissingReplicaError, match="no file to continue"):
        store.found(FOUNDER, ReplicaKey(KEY.group_id, ReplicaId(77)), TERM)
    store.path(KEY).write_bytes(b"x" * 9000)
    with pytest.raises(DamagedReplicaError, match="meta page"):
        store.found(FOUNDER, KEY, TERM)
    assert store.stored_replicas() == [KEY]
