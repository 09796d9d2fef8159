"""Appends are refused while less space than the reserve is free, and accepted again afterwards."""

import asyncio
import dataclasses
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from raftmq.broker.base.limits import Limits
from raftmq.broker.cluster.disk_watch import CHECK_SECONDS, NEAR_CHECK_SECONDS, DiskWatch
from raftmq.broker.replica.thread_pools import ThreadPools
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.disk_space import DiskReserve

from tests.support.broker.harness import StrictSupervisor
from tests.support.broker.waiting import until

MIB = 1024 * 1024
BALLAST = MIB
RESERVE = 10 * MIB


class Volume:
    """A volume with a given amount of free space, less the ballast."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.free = 100 * MIB

    def has_ballast(self) -> bool:
        return (self.directory / "ballast").exists()

    def free_bytes(self) -> int:
        return self.free - (BALLAST if self.has_ballast() else 0)


def refusal(engine: SimpleNamespace) -> Any:
    return engine.write_refusal


def watched(directory):
    """Return a volume, its reserve, an engine that only takes refusals, and their watch."""
    volume = Volume(directory)
    disk = DiskReserve(directory, RESERVE, ballast_bytes=BALLAST, free_bytes=volume.free_bytes)
    engine = SimpleNamespace(
        loop=asyncio.get_running_loop(), inbound_bytes=0, write_refusal=None, refuses_entries=False, node_id=1
    )
    return volume, disk, engine, DiskWatch(disk, engine, directory, StrictSupervisor())


async def test_below_the_reserve_appends_are_refused_and_the_ballast_makes_room(tmp_path):
    volume, disk, engine, watch = watched(tmp_path)
    disk.create_ballast()

    await watch.look()
    assert refusal(engine) is None
    assert volume.has_ballast()

    volume.free = RESERVE
    await watch.look()
    assert refusal(engine).code == pb.DISK_FULL
    assert not volume.has_ballast(), "votes, hard state and trims may need it"

    volume.free = RESERVE + BALLAST - 1
    await watch.look()
    assert refusal(engine) is not None, "room for the ballast must come back first"
    assert watch.free_bytes < watch.reserve_bytes, "the metrics show why appends are refused"

    volume.free = RESERVE + 2 * BALLAST
    await watch.look()
    assert refusal(engine) is None
    assert volume.has_ballast()


async def test_a_missing_ballast_is_allocated_again_although_no_append_was_refused(tmp_path):
    """If its allocation had failed once, the next full disk found a broker without space for votes and trims."""
    volume, _, engine, watch = watched(tmp_path)
    await watch.look()
    assert refusal(engine) is None
    assert volume.has_ballast()


async def test_an_impossible_ballast_is_attempted_at_a_slow_interval(tmp_path, monkeypatch):
    """Under a user's quota each attempt holds the rest of it for a moment, and a commit then fails and ends the process."""
    volume, _, _, watch = watched(tmp_path)
    allocate, attempts = os.posix_fallocate, []

    def over_quota(*_range):
        attempts.append(1)
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr("os.posix_fallocate", over_quota)
    with structlog.testing.capture_logs() as logs:
        for _ in range(5):
            await watch.look()
    assert len(attempts) == 1
    (logged,) = logs
    assert logged["event"] == "ballast_not_allocated"
    assert "Disk quota exceeded" in logged["reason"]

    monkeypatch.setattr("raftmq.broker.cluster.disk_watch.BALLAST_RETRY_SECONDS", 0.0)
    monkeypatch.setattr("os.posix_fallocate", allocate)
    await watch.look()
    assert volume.has_ballast()


async def test_appends_are_accepted_again_although_the_ballast_cannot_be_restored(tmp_path, monkeypatch):
    """Its directory could not be synced, and appends were refused until it could be, on a volume with room."""
    volume, _, engine, watch = watched(tmp_path)
    volume.free = RESERVE
    await watch.look()
    assert refusal(engine).code == pb.DISK_FULL

    def fail(_directory):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("raftmq.storage.disk_space.sync_directory", fail)
    volume.free = 100 * MIB
    with pytest.raises(OSError, match="Too many"):
        await watch.look()
    assert refusal(engine) is None


async def test_appends_are_refused_before_the_ballast_is_released_and_if_that_fails(tmp_path, monkeypatch):
    """The release syncs a directory. Until it had ended, appends went on filling the volume."""
    volume = Volume(tmp_path)
    disk = DiskReserve(tmp_path, RESERVE, ballast_bytes=BALLAST, free_bytes=volume.free_bytes)
    engine = SimpleNamespace(
        loop=asyncio.get_running_loop(), inbound_bytes=0, write_refusal=None, refuses_entries=False, node_id=1
    )
    volume.free = RESERVE

    def fail():
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(disk, "release_ballast", fail)
    with pytest.raises(OSError, match="Input/output"):
        await DiskWatch(disk, engine, tmp_path, StrictSupervisor()).look()
    assert refusal(engine).code == pb.DISK_FULL


async def test_copies_that_are_being_written_end_below_the_reserve(tmp_path):
    volume = Volume(tmp_path)
    disk = DiskReserve(tmp_path, RESERVE, ballast_bytes=BALLAST, free_bytes=volume.free_bytes)
    engine = SimpleNamespace(
        loop=asyncio.get_running_loop(), inbound_bytes=0, write_refusal=None, refuses_entries=False, node_id=1
    )
    ended = []
    watch = DiskWatch(disk, engine, tmp_path, StrictSupervisor(), end_copies=lambda: ended.append(1))
    await watch.look()
    assert ended == []
    volume.free = RESERVE
    await watch.look()
    assert ended == [1]


async def test_bytes_in_flight_count_as_used(tmp_path):
    volume = Volume(tmp_path)
    disk = DiskReserve(tmp_path, RESERVE, ballast_bytes=BALLAST, free_bytes=volume.free_bytes)
    disk.create_ballast()
    in_flight = 100 * MIB - BALLAST - RESERVE + 1
    engine = SimpleNamespace(
        loop=asyncio.get_running_loop(), inbound_bytes=in_flight, write_refusal=None, refuses_entries=False, node_id=1
    )
    await DiskWatch(disk, engine, tmp_path, StrictSupervisor()).look()
    assert refusal(engine) is not None


async def test_entries_accepted_by_leaders_are_written_into_half_of_the_reserve(tmp_path):
    """A trim that frees space comes after these entries in the log. A replica that refused them would stay full."""
    volume, _, engine, watch = watched(tmp_path)
    volume.free = RESERVE // 2 + MIB
    await watch.look()
    assert refusal(engine) is not None
    assert not engine.refuses_entries
    engine.inbound_bytes = MIB + 1
    await watch.look()
    assert engine.refuses_entries
    engine.inbound_bytes, volume.free = 0, RESERVE // 2 - 1
    await watch.look()
    assert engine.refuses_entries


async def test_the_disk_is_short_before_it_is_full(tmp_path):
    volume = Volume(tmp_path)
    disk = DiskReserve(tmp_path, RESERVE, ballast_bytes=BALLAST, free_bytes=volume.free_bytes)
    disk.create_ballast()
    volume.free = RESERVE + BALLAST + RESERVE // 4
    assert not disk.is_short()
    assert disk.has_room(0)
    volume.free -= 1
    assert disk.is_short()
    assert disk.has_room(0)
    assert disk.copy_bytes() == volume.free_bytes() // 2, "a compaction frees more than it takes"


async def test_before_the_node_has_an_id_the_data_directory_is_named(tmp_path):
    """Before a broker has an id the text names its data directory, because 0 is no broker's id."""
    volume = Volume(tmp_path)
    volume.free = 0
    disk = DiskReserve(tmp_path, RESERVE, ballast_bytes=BALLAST, free_bytes=volume.free_bytes)
    engine = SimpleNamespace(
        loop=asyncio.get_running_loop(), inbound_bytes=0, write_refusal=None, refuses_entries=False, node_id=0
    )
    watch = DiskWatch(disk, engine, tmp_path, StrictSupervisor())
    await watch.look()
    assert "broker 0" not in str(refusal(engine))
    assert str(tmp_path) in str(refusal(engine))

    engine.write_refusal, engine.node_id = None, 4
    await watch.look()
    assert "broker 4 has less free disk space" in str(refusal(engine))


async def test_a_small_volume_is_checked_often_enough_for_a_fast_disk(tmp_path):
    """A volume of 200 MB has a reserve of 40 MB, and producers can write 130 MB in a second."""
    volume, _, engine, watch = watched(tmp_path)
    watching = asyncio.create_task(watch.run())
    try:
        while not watch.reserve_bytes:
            await asyncio.sleep(0.001)
        assert watch._pause_seconds() == NEAR_CHECK_SECONDS
        volume.free = RESERVE
        await until(lambda: refusal(engine) is not None)
        assert watch._pause_seconds() == NEAR_CHECK_SECONDS, "entries of other leaders are still written"
        volume.free = RESERVE // 2 - 1
        await until(lambda: engine.refuses_entries)
        assert watch._pause_seconds() == CHECK_SECONDS
    finally:
        watching.cancel()


async def test_the_space_is_watched_while_every_other_thread_waits_for_the_disk(tmp_path):
    """Each partition of a deleted topic occupied a thread of the loop for a sync of the registry, one after another, before the next look."""
    volume = Volume(tmp_path)
    volume.free = RESERVE - 1
    disk = DiskReserve(tmp_path, RESERVE, ballast_bytes=BALLAST, free_bytes=volume.free_bytes)
    loop = asyncio.get_running_loop()
    engine = SimpleNamespace(loop=loop, inbound_bytes=0, write_refusal=None, refuses_entries=False, node_id=1)
    may_end = threading.Event()
    pools = ThreadPools.of(Limits())
    others = [
        pool for pool in (getattr(pools, field.name) for field in dataclasses.fields(pools)) if pool is not pools.disk
    ]
    with ThreadPoolExecutor(1) as of_loop:
        loop.set_default_executor(of_loop)
        for pool in (of_loop, *others):
            for _ in range(10):
                pool.submit(may_end.wait)
        try:
            async with asyncio.timeout(10):
                await DiskWatch(disk, engine, tmp_path, StrictSupervisor(), pools.disk).look()
            assert refusal(engine) is not None
        finally:
            may_end.set()
            pools.shutdown()
