"""Looks at the free disk space all the time, and refuses appends while there is less than the reserve.

Disk full is prevented, not caught: LMDB reports it as an I/O error, after which nobody knows what is on disk. The ballast
is given back to the volume meanwhile, so that votes, hard state and trims still find room.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import structlog
from raftmq.broker.engine import Engine
from raftmq.broker.request_error import RequestError
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.disk_space import DiskReserve

T = TypeVar("T")

log = structlog.get_logger(__name__)

CHECK_SECONDS = 1.0


class DiskWatch:
    """One node's data volume. Sets and clears `Engine.write_refusal`."""

    def __init__(self, disk: DiskReserve, engine: Engine, data_dir: Path) -> None:
        self._disk = disk
        self._engine = engine
        self._data_dir = data_dir
        self.free_bytes = 0
        """On the volume, as seen last; 0 before the first look."""
        self.reserve_bytes = 0

    async def run(self) -> None:
        """Look for ever."""
        await self._in_thread(self._disk.create_ballast)
        while True:
            await self.look()
            await asyncio.sleep(CHECK_SECONDS)

    async def look(self) -> None:
        """One look."""
        engine = self._engine
        self.free_bytes, self.reserve_bytes = await self._in_thread(self._measure)
        has_room = await self._in_thread(self._disk.has_room, engine.inbound_bytes)
        if has_room and engine.write_refusal is not None:
            await self._in_thread(self._disk.create_ballast)
            log.info("disk_space_recovered", path=str(self._data_dir))
            engine.write_refusal = None
        elif not has_room and engine.write_refusal is None:
            log.error("disk_reserve_reached", path=str(self._data_dir))
            await self._in_thread(self._disk.release_ballast)
            engine.write_refusal = RequestError(
                pb.DISK_FULL,
                f"node {engine.node_id} has less free disk space than its reserve; free some or add disks",
                retry_after_ms=1000,
            )

    def _measure(self) -> tuple[int, int]:
        return self._disk.free_bytes(), self._disk.reserve_bytes

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._engine.loop.run_in_executor(None, function, *arguments)
