"""Appends are refused while there is less free space than the reserve, and taken again when it is back."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from raftmq.broker.disk_watch import DiskWatch
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.disk_space import DiskReserve

MIB = 1024 * 1024
BALLAST = MIB
RESERVE = 10 * MIB


class Volume:
    """Says how much is free besides what the ballast takes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.free = 100 * MIB

    def has_ballast(self) -> bool:
        return (self.directory / "ballast").exists()

    def free_bytes(self) -> int:
        return self.free - (BALLAST if self.has_ballast() else 0)


def refusal(engine: SimpleNamespace) -> Any:
    return engine.write_refusal


async def test_below_the_reserve_appends_are_refused_and_the_ballast_makes_room(tmp_path):
    volume = Volume(tmp_path)
    disk = DiskReserve(tmp_path, RESERVE, ballast_bytes=BALLAST, free_bytes=volume.free_bytes)
    engine = SimpleNamespace(loop=asyncio.get_running_loop(), inbound_bytes=0, write_refusal=None, node_id=1)
    watch = DiskWatch(disk, engine, tmp_path)
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

    volume.free = RESERVE + 2 * BALLAST
    await watch.look()
    assert refusal(engine) is None
    assert volume.has_ballast()


async def test_bytes_in_flight_count_as_used(tmp_path):
    volume = Volume(tmp_path)
    disk = DiskReserve(tmp_path, RESERVE, ballast_bytes=BALLAST, free_bytes=volume.free_bytes)
    disk.create_ballast()
    in_flight = 100 * MIB - BALLAST - RESERVE + 1
    engine = SimpleNamespace(loop=asyncio.get_running_loop(), inbound_bytes=in_flight, write_refusal=None, node_id=1)
    await DiskWatch(disk, engine, tmp_path).look()
    assert refusal(engine) is not None
