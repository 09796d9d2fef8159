"""Check the free disk space continuously, and refuse appends while less than the reserve is free.

A full disk is prevented, not handled: LMDB reports it as an I/O error, after which the disk's contents are unknown. While appends are
refused the ballast is released to the volume, so that votes, hard state and trims still find space.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from math import inf
from pathlib import Path
from typing import TypeVar

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Supervisor, Work
from raftmq.broker.replica.engine import Engine
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.disk_space import DiskReserve
from raftmq.types import NO_NODE

T = TypeVar("T")

log = structlog.get_logger(__name__)

CHECK_SECONDS = 1.0
NEAR_BYTES = 1024 * 1024 * 1024
"""Free space above the reserve below which checks are frequent. A fast disk could otherwise fill a small volume between two checks."""
NEAR_CHECK_SECONDS = 0.1
BALLAST_RETRY_SECONDS = 60.0
"""Pause after a failed allocation of the ballast. Under a quota that the free space of the volume does not show, each attempt holds what is
left of the quota for a moment, and a commit in that moment fails."""


class DiskWatch:
    """Watches one node's data volume. Sets and clears `Engine.write_refusal`."""

    def __init__(
        self,
        disk: DiskReserve,
        engine: Engine,
        data_dir: Path,
        supervisor: Supervisor,
        thread: Executor | None = None,
        end_copies: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the parts.

        Args:
            disk: The reserve.
            engine: The engine whose appends are refused.
            data_dir: The data directory.
            supervisor: Counts failures.
            thread: The thread that looks at the disk. None: one of the loop's, which others may occupy.
            end_copies: Ends the copies of state files that are being written. They were begun with room for them, which appends have taken.
        """
        self._disk = disk
        self._engine = engine
        self._data_dir = data_dir
        self._supervisor = supervisor
        self._thread = thread
        self._end_copies = end_copies
        self._ballast_failed_at = -inf
        """Loop time of the last failed allocation of the ballast."""
        self.free_bytes = 0
        """Free bytes of the volume at the last check, less a released ballast. 0 before the first check."""
        self.reserve_bytes = 0

    async def run(self) -> None:
        """Check until cancelled."""
        while True:
            with self._supervisor.step(Work.DISK_WATCH):
                await self.look()
            await asyncio.sleep(self._pause_seconds())

    def _pause_seconds(self) -> float:
        is_known = self.reserve_bytes > 0
        is_near = is_known and self.free_bytes - self.reserve_bytes < NEAR_BYTES
        # below the reserve entries of other leaders still arrive, until they are refused, too
        return NEAR_CHECK_SECONDS if is_near and not self._engine.refuses_entries else CHECK_SECONDS

    async def look(self) -> None:
        """Check the free space once."""
        engine = self._engine
        self.free_bytes, self.reserve_bytes = await self._in_thread(self._measure)
        has_room = await self._in_thread(self._disk.has_room, engine.inbound_bytes)
        engine.refuses_entries = not await self._in_thread(self._disk.has_room_for_entries, engine.inbound_bytes)
        if has_room:
            if engine.write_refusal is not None:
                log.info("disk_space_recovered", path=str(self._data_dir))
                engine.write_refusal = None
            await self._restore_ballast()  # afterwards, because it may fail
        else:
            if engine.write_refusal is None:
                log.error("disk_reserve_reached", path=str(self._data_dir))
                engine.write_refusal = RequestError(
                    pb.DISK_FULL,
                    f"{self._who()} has less free disk space than its reserve; free some or add disks",
                    retry_after_ms=1000,
                )
            # not before: it syncs a directory, for which a busy disk may take seconds. If it fails, the next check tries again
            await self._in_thread(self._make_room)

    async def _restore_ballast(self) -> None:
        """Allocate the ballast if it is missing, unless an attempt has just failed."""
        now = self._engine.loop.time()
        if now - self._ballast_failed_at < BALLAST_RETRY_SECONDS:
            return
        self._ballast_failed_at = now
        await self._in_thread(self._disk.create_ballast)
        if self._disk.ballast_error:
            log.warning("ballast_not_allocated", path=str(self._data_dir), reason=self._disk.ballast_error)
        else:
            self._ballast_failed_at = -inf

    def _who(self) -> str:
        """Name this broker, or its data directory before a cluster has assigned an id to it."""
        node_id = self._engine.node_id
        return f"broker {node_id}" if node_id != NO_NODE else f"the volume of data directory {self._data_dir}"

    def _measure(self) -> tuple[int, int]:
        return self._disk.usable_bytes(), self._disk.reserve_bytes

    def _make_room(self) -> None:
        self._end_copies()
        self._disk.release_ballast()

    async def _in_thread(self, function: Callable[..., T], *arguments: object) -> T:
        return await self._engine.loop.run_in_executor(self._thread, function, *arguments)
