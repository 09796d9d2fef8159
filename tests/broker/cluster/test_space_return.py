"""The space of deleted data returns to the volume automatically, from real files, even if nothing is written or trimmed."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from raftmq.broker.base.limits import Timing
from raftmq.broker.cluster import space_return
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.cluster.space_return import FileLook, SpaceReturn
from raftmq.broker.replica.engine_counters import EngineCounters
from raftmq.broker.replica.initial_state import founder_state
from raftmq.raft.entry import Entry, EntryKind, LogPosition
from raftmq.raft.hard_state import HardState
from raftmq.raft.membership import Membership
from raftmq.storage.errors import (
    CommitFailedError,
    DamagedReplicaError,
    MissingReplicaError,
    ReplicaClosedError,
    StorageFullError,
)
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey, Update
from raftmq.storage.page_release import FileSpace
from raftmq.storage.state_store import FilePart, StateWrite
from raftmq.storage.writer_threads import WriterThreads
from raftmq.types import GroupId, LogIndex, Offset, ReplicaId, Term

from tests.support.broker.harness import StrictSupervisor

MIB = 1024 * 1024
KEYS = [ReplicaKey(GroupId(number), ReplicaId(number)) for number in (1, 2)]


class Site:
    """Two replicas' files, their writers, and the `SpaceReturn` under test."""

    def __init__(self, directory: Path) -> None:
        self.is_short = False
        self.broken: list[GroupId] = []
        self.asked: list[ReplicaKey] = []
        self.snapshot_rounds: list[bool] = []
        self.store = LmdbLogStore(directory)
        self.writers = WriterThreads(self.store, thread_count=1, on_done=lambda _: None, on_error=lambda _: None)
        self.readers = ThreadPoolExecutor(1)
        self.replicas: dict[GroupId, Any] = {}
        for key in KEYS:
            self.store.create(key, founder_state(Membership((key.replica_id,))), ())
            self.store.open(key)
            voters = Membership((key.replica_id, ReplicaId(8), ReplicaId(9)))
            core = SimpleNamespace(membership=voters)
            self.replicas[key.group_id] = SimpleNamespace(key=key, group_id=key.group_id, core=core)
        self.counters = EngineCounters()
        self.clocks = SimpleNamespace(is_trusted=True)
        engine: Any = SimpleNamespace(
            loop=asyncio.get_running_loop(),
            replicas=self.replicas,
            counters=self.counters,
            clocks=self.clocks,
            commits=SimpleNamespace(delete_truncated_rows=self._delete_rows),
            break_replica=lambda replica, error: self.broken.append(replica.group_id),
            return_snapshot_space=lambda *, is_short: self.snapshot_rounds.append(is_short),
        )
        nobody: Any = None
        replicas = ReplicaManager(
            engine.loop, engine, self.store, self.writers, nobody, StrictSupervisor(), nobody, nobody, nobody
        )
        self.space = SpaceReturn(
            engine, self.store, self.readers, replicas, lambda: self.is_short, Timing(), StrictSupervisor()
        )

    def _delete_rows(self, replica: Any) -> None:
        self.asked.append(replica.key)
        while self.store.delete_truncated(replica.key, 256):
            pass

    def fill(self, key: ReplicaKey, count: int, kept: int) -> None:
        """Append records of 100 kB and truncate all but some of them."""
        entries = tuple(
            Entry(LogIndex(6 + n), Term(6), EntryKind.DATA, Offset(n), 1, 0, b"x" * 100_000) for n in range(count)
        )
        last = entries[-1 - kept]
        position = LogPosition(last.index, last.term, last.next_offset, last.append_time_ms)
        hard_state = HardState(Term(6), ReplicaId(0), entries[-1].index)
        self.store.append_batch([(key, Update(hard_state, entries, state_index=entries[-1].index))])
        self.store.append_batch([(key, Update(truncation=position))])

    def close(self) -> None:
        self.writers.close()
        self.readers.shutdown()
        for key in self.store.open_replicas():
            self.store.close(key)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    yield site
    site.close()


async def test_leftover_rows_and_their_pages_are_released_without_another_truncation(site: Site) -> None:
    """A crash or a lack of space may leave rows of a truncation. An idle partition has no later truncation that would delete them."""
    site.fill(KEYS[0], 200, kept=5)
    assert site.store.file_bytes(KEYS[0]) > 19 * MIB
    await site.space.round()
    await site.space.round()
    assert site.asked == [KEYS[0]]
    assert site.store.file_bytes(KEYS[0]) < 2 * MIB
    assert site.counters.space_returned_bytes_total > 18 * MIB
    assert len(site.store.entries(KEYS[0], LogIndex(201), LogIndex(205), 1 << 30)) == 5


async def test_a_file_with_little_to_give_is_left_alone_unless_the_disk_is_short(site: Site) -> None:
    site.fill(KEYS[0], 100, kept=80)
    site._delete_rows(site.replicas[KEYS[0].group_id])
    before = site.store.file_bytes(KEYS[0])
    await site.space.round()
    assert site.store.file_bytes(KEYS[0]) == before
    site.is_short = True
    await site.space.round()
    assert site.store.file_bytes(KEYS[0]) < before - MIB


@pytest.mark.parametrize(
    ("used_mib", "idle_mib", "is_due"),
    [(0, 3, False), (0, 4, True), (80, 9, False), (80, 10, True), (40_000, 4, False)],
)
def test_the_space_kept_for_next_appends_is_in_proportion(used_mib: int, idle_mib: int, is_due: bool) -> None:
    space = FileSpace((used_mib + idle_mib) * MIB, used_mib * MIB)
    assert FileLook(KEYS[0], space, has_truncated_rows=False).is_due(is_short=False) is is_due
    assert FileLook(KEYS[0], space, has_truncated_rows=False).is_due(is_short=True)


async def test_a_clock_that_is_not_trusted_makes_nothing_in_the_trash_old(site: Site, tmp_path: Path) -> None:
    """A leap of the clock emptied the trash, which is the way back from a mistake."""
    site.store.retire(KEYS[0])
    (file,) = (tmp_path / "trash").iterdir()
    os.utime(file, (0, 0))
    site.clocks.is_trusted = False
    await site.space.round()
    assert file.exists()
    site.clocks.is_trusted = True
    await site.space.round()
    assert not file.exists()


async def test_the_trash_is_kept_for_a_while_unless_the_disk_is_short(site: Site, tmp_path: Path) -> None:
    site.store.retire(KEYS[0])
    del site.replicas[KEYS[0].group_id]
    await site.space.round()
    assert len(list((tmp_path / "trash").iterdir())) == 1
    site.is_short = True
    await site.space.round()
    assert list((tmp_path / "trash").iterdir()) == []


async def test_the_file_with_most_to_give_is_first_and_a_round_ends(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, count in zip(KEYS, (60, 200), strict=True):
        site.fill(key, count, kept=5)
        site._delete_rows(site.replicas[key.group_id])
    monkeypatch.setattr(space_return, "ROUND_SECONDS", 0.0)
    reclaim, asked = site.store.reclaim, []

    def watched(key: ReplicaKey, part: FilePart) -> Any:
        asked.append(key)
        return reclaim(key, part)

    monkeypatch.setattr(site.store, "reclaim", watched)
    await site.space.round()
    assert asked == [KEYS[1]]
    while site.store.file_bytes(KEYS[0]) > 2 * MIB:
        await site.space.round()
    assert site.store.file_bytes(KEYS[1]) < 2 * MIB


@pytest.mark.parametrize(
    ("error", "broken"),
    [
        (DamagedReplicaError(KEYS[0], "a page"), [KEYS[0].group_id]),
        (ReplicaClosedError(KEYS[0], "cannot be opened again"), [KEYS[0].group_id]),
        (StorageFullError(KEYS[0], "no room"), []),
        (OSError(5, os.strerror(5)), []),
    ],
)
async def test_a_failing_file_delays_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception, broken: list[GroupId]
) -> None:
    for key in KEYS:
        site.fill(key, 100 + 100 * (key == KEYS[0]), kept=5)
        site._delete_rows(site.replicas[key.group_id])
    reclaim = site.store.reclaim

    def failing(key: ReplicaKey, part: FilePart) -> Any:
        if key == KEYS[0]:
            raise error
        return reclaim(key, part)

    monkeypatch.setattr(site.store, "reclaim", failing)
    await site.space.round()
    assert site.broken == broken
    assert site.store.file_bytes(KEYS[1]) < 2 * MIB


async def test_a_file_closed_during_the_round_is_skipped(site: Site) -> None:
    site.fill(KEYS[0], 100, kept=5)
    site.store.close(KEYS[0])
    site.store.close(KEYS[1])
    await site.space.round()
    assert site.asked == []


async def test_a_file_that_somebody_removed_is_noticed_while_it_is_in_use(site: Site) -> None:
    """After its file was removed the replica could still acknowledge records, which the next start could not read."""
    await site.space.round()
    assert site.broken == []
    site.store.path(KEYS[0]).unlink()
    await site.space.round()
    assert site.broken == [KEYS[0].group_id]


async def test_a_removed_file_without_another_replica_is_reported_and_kept_open(site: Site) -> None:
    site.replicas[KEYS[0].group_id].core.membership = Membership((KEYS[0].replica_id,))
    site.store.path(KEYS[0]).unlink()
    with pytest.raises(MissingReplicaError, match="removed while it was in use"):
        await site.space.round()
    assert site.broken == []
    assert KEYS[0] in site.store.open_replicas()


QUEUE = ReplicaKey(GroupId(3), ReplicaId(3))


def churn_state(site: Site) -> None:
    """Add a replica with a state file that has 20 MiB of free pages."""
    site.store.create_with_state_file(QUEUE, founder_state(Membership((QUEUE.replica_id,))))
    site.store.open(QUEUE)
    site.replicas[QUEUE.group_id] = SimpleNamespace(key=QUEUE, group_id=QUEUE.group_id, core=None)
    rows = [(b"%05d" % number, b"x" * 8000) for number in range(2500)]
    site.store.write_state(QUEUE, StateWrite(LogIndex(5), tuple(rows)))
    site.store.write_state(QUEUE, StateWrite(LogIndex(5), tuple((key, None) for key, _ in rows)))


async def test_free_pages_of_a_state_file_are_released_without_its_log_s_writer(site: Site) -> None:
    """An acknowledgement would wait there."""
    churn_state(site)
    assert site.store.file_bytes(QUEUE) > 19 * MIB
    may_go_on = threading.Event()
    busy = site.writers.run(QUEUE, lambda: may_go_on.wait(30))
    await site.space.round()
    assert site.store.file_bytes(QUEUE) < 2 * MIB
    assert site.counters.space_returned_bytes_total > 18 * MIB
    may_go_on.set()
    busy.result(30)


async def test_a_failed_commit_in_a_state_file_ends_the_process(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """No writer thread reports it."""
    churn_state(site)

    def failing(key: ReplicaKey, part: FilePart) -> Any:
        raise CommitFailedError(key, "commit failed")

    monkeypatch.setattr(site.store, "reclaim", failing)
    with pytest.raises(CommitFailedError):
        await site.space._reclaim(QUEUE, FilePart.STATE, 0.0)
    await site.space._reclaim(QUEUE, FilePart.LOG, 0.0)


async def test_snapshots_return_their_space_in_each_round(site: Site) -> None:
    await site.space.round()
    site.is_short = True
    await site.space.round()
    assert site.snapshot_rounds == [False, True]
