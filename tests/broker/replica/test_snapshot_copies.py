"""Copies of states are shared by receivers, and deleted when nobody needs them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.replica.snapshot_copies import SharedCopy, SnapshotCopies
from raftmq.raft.entry import GENESIS
from raftmq.storage.errors import StorageFullError, StorageUnavailableError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.snapshot_spool import SnapshotSpools
from raftmq.storage.state_store import StateCopy, StateWrite
from raftmq.types import ReplicaId

from tests.support.broker.waiting import turn_until
from tests.support.storage.log_builder import KEY, OTHER, VOTERS, index, initial_state, lmdb_store

MEMBER = VOTERS.voters[0]
LIMITS = Limits(snapshot_copy_bytes_min=0)


class Site:
    """The copies of two replicas' real files."""

    def __init__(self, store: LmdbLogStore, directory: Path, limits: Limits = LIMITS) -> None:
        self.store = store
        self.spare_bytes = 1 << 40
        self.groups = directory / "groups"
        self.threads = ThreadPoolExecutor(2)
        self.time = 100.0
        self.replicas: dict[ReplicaKey, Any] = {}
        for key in (KEY, OTHER):
            store.create_with_state_file(key, initial_state())
            store.open(key)
            self.replicas[key] = SimpleNamespace(
                key=key,
                group_id=key.group_id,
                is_disk_backed=True,
                is_closed=False,
                log_start=GENESIS,
                pending_truncation=None,
            )
        loop: Any = asyncio.get_running_loop()
        space = SnapshotSpools(None, memory_bytes=0, files_max=9, spare_bytes=lambda: self.spare_bytes)
        self.copies = SnapshotCopies(
            _Clocked(loop, self), store, self.threads, limits, space, lambda: 1_700_000_000_000
        )

    async def acquire(self, key: ReplicaKey = KEY, target: ReplicaId = MEMBER) -> SharedCopy | None:
        return await self.copies.acquire(self.replicas[key], target)

    def on_disk(self) -> list[str]:
        return sorted(path.name for path in self.groups.glob("*.copy.*"))


class _Clocked:
    """The loop, with a time that the test sets."""

    def __init__(self, loop: Any, site: Site) -> None:
        self.run_in_executor = loop.run_in_executor
        self.time = lambda: site.time


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    with lmdb_store(tmp_path) as store:
        site = Site(store, tmp_path)
        yield site
        site.copies.close()
        site.threads.shutdown()
        assert site.on_disk() == []


async def test_receivers_at_the_same_time_share_one_copy(site: Site) -> None:
    first, second = await asyncio.gather(site.acquire(), site.acquire(target=VOTERS.voters[1]))
    assert first is second is not None
    assert (first.users, site.copies.made_total, site.copies.count) == (2, 1, 1)
    assert site.copies.disk_bytes == first.copy.file_bytes > 0
    site.copies.release(first)
    site.copies.release(first)
    assert await site.acquire() is first, "one that comes later continues with it"
    site.copies.release(first)


async def test_a_newer_copy_replaces_one_that_the_log_no_longer_continues(site: Site) -> None:
    old = await site.acquire()
    assert old is not None
    site.store.write_state(KEY, StateWrite(index(7), ((b"\x01row", b"new"),)))
    site.replicas[KEY].pending_truncation = replace(GENESIS, index=index(6))
    new = await site.acquire()
    assert new is not None
    assert (new.copy.state_index, old.copy.state_index) == (7, 5)
    assert new.snapshot_id != old.snapshot_id
    assert list(old.copy.rows_from(b"")) == [], "its stream goes on"
    site.copies.release(old)
    await turn_until(lambda: len(site.on_disk()) == 1)
    site.copies.release(new)


async def test_a_copy_that_does_not_name_the_receiver_as_a_member_is_replaced(site: Site) -> None:
    """The receiver would refuse it for as long as the leader sends it."""
    old = await site.acquire()
    assert old is not None
    site.copies.release(old)
    joiner = ReplicaId(77)
    members = replace(VOTERS, learners=(joiner,))
    site.store.write_state(KEY, StateWrite(index(6), (), members))
    new = await site.acquire(target=joiner)
    assert new is not None
    assert joiner in new.copy.membership.member_ids
    await turn_until(lambda: len(site.on_disk()) == 1)
    site.copies.release(new)


async def test_idle_copies_are_deleted_after_their_time_and_used_ones_never(site: Site) -> None:
    idle, used = await site.acquire(), await site.acquire(OTHER)
    assert idle is not None
    assert used is not None
    site.copies.release(idle)
    site.time += 59
    site.copies.drop_idle(60)
    assert site.copies.count == 2
    site.time += 1
    site.copies.drop_idle(60)
    site.copies.drop_idle(0)
    assert site.copies.count == 1
    await turn_until(lambda: len(site.on_disk()) == 1)
    assert list(used.copy.rows_from(b"")) == []
    site.copies.release(used)
    site.copies.drop_idle(0)
    await turn_until(lambda: site.on_disk() == [])


async def test_a_closed_replica_leaves_no_copy(site: Site) -> None:
    shared = await site.acquire()
    assert shared is not None
    site.copies.forget(KEY)
    assert site.copies.count == 1, "its stream ends by itself"
    site.copies.release(shared)
    assert site.copies.count == 0


async def test_a_replica_that_is_closed_while_it_is_copied_leaves_no_copy(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_state = site.store.copy_state

    def close_behind(key: ReplicaKey) -> StateCopy:
        copy = copy_state(key)
        site.replicas[key].is_closed = True
        return copy

    monkeypatch.setattr(site.store, "copy_state", close_behind)
    shared = await site.acquire()
    assert shared is not None
    site.copies.release(shared)
    assert site.copies.count == 0


async def test_without_room_the_file_itself_is_streamed(site: Site) -> None:
    site.spare_bytes = 100
    assert await site.acquire() is None
    site.spare_bytes = 1 << 40
    shared = await site.acquire()
    assert shared is not None
    site.copies.release(shared)


@pytest.mark.parametrize("error", [StorageFullError(KEY, "no room"), StorageUnavailableError(KEY, "cannot be copied")])
async def test_a_copy_that_fails_delays_no_snapshot(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(key: ReplicaKey) -> StateCopy:
        raise error

    monkeypatch.setattr(site.store, "copy_state", fail)
    assert await site.acquire() is None
    assert (site.copies.count, site.copies.made_total) == (0, 0)


async def test_a_copy_that_does_not_read_back_is_not_used_again(site: Site) -> None:
    shared = await site.acquire()
    assert shared is not None
    site.copies.distrust(shared)
    site.copies.release(shared)
    assert site.copies.count == 0
    assert await site.acquire() is None
    site.time += 600
    site.copies.drop_idle(600)
    again = await site.acquire()
    assert again is not None
    site.copies.release(again)


async def test_only_states_in_files_of_their_own_that_are_large_enough_are_copied(tmp_path: Path) -> None:
    with lmdb_store(tmp_path) as store:
        site = Site(store, tmp_path, Limits(snapshot_copy_bytes_min=1 << 20))
        assert await site.acquire() is None
        rows = tuple((b"\x01%05d" % number, bytes(1000)) for number in range(1200))
        store.write_state(KEY, StateWrite(index(6), rows))
        shared = await site.acquire()
        assert shared is not None
        site.copies.release(shared)
        site.replicas[KEY].is_disk_backed = False
        assert await site.acquire() is None
        site.copies.close()
        site.threads.shutdown()


async def test_copies_are_bounded_and_the_longest_idle_one_makes_room(tmp_path: Path) -> None:
    with lmdb_store(tmp_path) as store:
        site = Site(store, tmp_path, replace(LIMITS, snapshot_copies_max=1))
        first = await site.acquire()
        assert first is not None
        assert await site.acquire(OTHER) is None
        site.copies.release(first)
        second = await site.acquire(OTHER)
        assert second is not None
        assert [one.key for one in site.copies._copies] == [OTHER]
        site.copies.release(second)
        site.copies.close()
        site.threads.shutdown()


async def test_nothing_is_copied_after_the_end(site: Site) -> None:
    site.copies.close()
    assert await site.acquire() is None
