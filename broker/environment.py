"""Give a node its access to the world: disk, threads, clock, randomness, ports. The simulator replaces these parts.

This module creates parts and does not know their use: the node does.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

import structlog
from raftmq.broker.base.clock import Clock, WallClock
from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.logs import set_log_level
from raftmq.broker.base.loop_pause import LoopPause
from raftmq.broker.base.watchdog import Watchdog
from raftmq.broker.data_port.port import DataPort
from raftmq.broker.grpc_port.server import GrpcHost, GrpcServer
from raftmq.broker.http_port.metrics import MetricsHost
from raftmq.broker.http_port.server import HttpServer
from raftmq.broker.replica.thread_pools import ThreadPools
from raftmq.broker.services.forwarder import Forwarder
from raftmq.broker.services.host import ServiceHost
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.storage.directory_lock import DirectoryLock
from raftmq.storage.disk_space import DiskReserve
from raftmq.storage.fault_board import FaultBoard, last_fault
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.registry import Registry
from raftmq.storage.snapshot_spool import SnapshotSpools
from raftmq.storage.writer_threads import Completion, WriterThreads

if TYPE_CHECKING:
    from raftmq.broker.base.tracing import Tracing

log = structlog.get_logger(__name__)

EXIT_ABNORMAL: Final = 70
"""Exit code of a process that ends without its clean-up. The next start treats it as a crash."""


class NodeEnvironment:
    """Creates a node's parts in production. Each method is called once, during the node's creation, unless it says otherwise."""

    def __init__(self, config: BrokerConfig, tracing: Tracing | None = None, lock: DirectoryLock | None = None) -> None:
        """Keep the configuration, the process's tracing if there is any, and the data directory's lock if the process holds it already."""
        self.config = config
        self._tracing = tracing
        self._lock = lock

    def feature_level(self) -> int:
        """Return the highest feature level that the program knows. Tests put an older program here."""
        return FEATURE_LEVEL

    def disk_reserve(self) -> DiskReserve:
        """Create the volume's disk reserve."""
        return DiskReserve(self.config.data_dir, reserve_bytes=self.config.disk_reserve_bytes)

    def registry(self) -> Registry:
        """Open the node's registry."""
        fault = last_fault(self.config.data_dir)
        if fault is not None:
            suspects = [f"{key.group_id}-{key.replica_id}" for key in sorted(fault.suspects)]
            log.error("last_exit_by_fault", replicas=suspects, reason=fault.trace)
        path = self.config.data_dir / "node.mdb"
        return Registry(path, suspects=fault.suspects if fault is not None else (), lock=self._lock)

    def store(self, disk: DiskReserve) -> LmdbLogStore:
        """Open the store of the replicas' files."""
        return LmdbLogStore(
            self.config.data_dir,
            map_bytes=self.config.map_bytes,
            spare_bytes=disk.copy_bytes,
            board=FaultBoard(self.config.data_dir),
            undisturbed=LoopPause(asyncio.get_running_loop()),
        )

    def snapshot_spools(self, limits: Limits, disk: DiskReserve) -> SnapshotSpools:
        """Create the spools that keep received snapshots until they are complete."""
        return SnapshotSpools(
            self.config.data_dir,
            memory_bytes=limits.snapshot_spool_memory_bytes,
            files_max=limits.snapshot_spool_files_max,
            disk_bytes_min=limits.snapshot_spool_disk_bytes_min,
            spare_bytes=disk.spare_bytes,
        )

    def readers(self, limits: Limits) -> ThreadPools:
        """Create the threads for blocking reads."""
        return ThreadPools.of(limits)

    def writers(
        self,
        store: LmdbLogStore,
        on_done: Callable[[list[Completion]], None],
        on_error: Callable[[BaseException], None],
    ) -> WriterThreads:
        """Create the threads that commit."""
        return WriterThreads(store, thread_count=self.config.writer_threads, on_done=on_done, on_error=on_error)

    def random(self) -> random.Random:
        """Create the random generator."""
        return random.Random()

    def clock(self) -> Clock:
        """Create the wall clock."""
        return WallClock()

    def watchdog(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> Watchdog:
        """Create the watchdog of the event loop."""
        return Watchdog(loop, stall_seconds)

    def grpc_server(self, host: GrpcHost, forwarder: Forwarder) -> GrpcServer:
        """Create the port for clients."""
        return GrpcServer(host, forwarder, tracing=self._tracing)

    def data_port(self, host: ServiceHost, grpc_server: GrpcServer) -> DataPort:
        """Return the port of data connections."""
        return DataPort(host, grpc_server)

    def http_server(self, host: MetricsHost) -> HttpServer:
        """Create the port for metrics and health."""
        return HttpServer(host)

    def set_log_level(self, level: str) -> None:
        """Change the minimum level of the process's log. Called whenever it changes."""
        set_log_level(level)

    def new_uuid(self) -> str:
        """Return a new unique id. Called whenever one is needed."""
        return uuid.uuid4().hex

    def end_process(self) -> None:
        """End the process immediately: no clean-up may run after a failed commit."""
        end_process()


def end_process() -> NoReturn:
    """End the process immediately. Callable from any thread."""
    try:
        sys.stderr.flush()
    finally:  # also if standard error cannot be written
        os._exit(EXIT_ABNORMAL)
