"""A simulated node's access to its world, in place of the production parts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import grpc.aio
from raftmq.broker.base.clock import Clock
from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.watchdog import Watchdog
from raftmq.broker.consumer_groups.assignor_process import InlinePlanRunner
from raftmq.broker.data_port.port import DataPort
from raftmq.broker.environment import NodeEnvironment
from raftmq.broker.grpc_port.server import GrpcHost, GrpcServer
from raftmq.broker.http_port.metrics import MetricsHost
from raftmq.broker.http_port.server import HttpServer
from raftmq.broker.replica.thread_pools import ThreadPools
from raftmq.broker.services.forwarder import Forwarder
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.request_metrics import RequestMetrics
from raftmq.storage.disk_space import DiskReserve
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.registry import Registry
from raftmq.storage.snapshot_spool import SnapshotSpools
from raftmq.storage.writer_threads import Completion, WriterThreads

from sim.cluster.rpc.server import RpcServer
from sim.cluster.world.disk import (
    Disk,
    SimDiskReaders,
    SimExecutor,
    SimLogStore,
    SimRegistry,
    SimReserve,
    SimRowReaders,
    SimWriters,
)
from sim.cluster.world.loop import VirtualLoop
from sim.cluster.world.network import Network
from sim.cluster.world.write_back import SimWriteBackThread

MAP_BYTES = 1 << 40


class ProcessEnded(BaseException):
    """Replaces `os._exit`. The host is dead already, and this only ends its last callback."""


class WallTime:
    """A machine's clocks: the wall clock may jump."""

    def __init__(self, loop: VirtualLoop, epoch_ms: int) -> None:
        self._loop = loop
        self.epoch_ms = epoch_ms
        """The clock's time at the beginning of the simulation. A jump changes it."""
        self.jumps_read = 0
        """Number of jumps after which the clock was read."""
        self._has_jumped = False
        self._slept_ms = 0

    def sleep(self, slept_ms: int) -> None:
        """Let the machine be suspended for a time."""
        self.set(self.epoch_ms + slept_ms)
        self._slept_ms += slept_ms

    def set(self, epoch_ms: int) -> None:
        """Set the clock forward or back."""
        self._has_jumped |= epoch_ms != self.epoch_ms
        self.epoch_ms = epoch_ms

    def now_ms(self) -> int:
        """See `Clock`."""
        if self._has_jumped:
            self._has_jumped = False
            self.jumps_read += 1
        return self.epoch_ms + int(self._loop.now * 1000)

    def boottime_ns(self) -> int:
        """See `Clock`."""
        return int(self._loop.now * 1_000_000_000) + self._slept_ms * 1_000_000


class _GrpcServer(GrpcServer):
    """The production server on a simulated port."""

    def __init__(
        self,
        host: GrpcHost,
        forwarder: Forwarder,
        loop: VirtualLoop,
        network: Network,
        address: str,
        metrics: RequestMetrics,
    ) -> None:
        super().__init__(host, forwarder, metrics, plans=InlinePlanRunner())
        self._loop = loop
        self._network = network
        self._address = address

    def _new_server(self, interceptors: Sequence[grpc.aio.ServerInterceptor]) -> grpc.aio.Server:
        return cast("grpc.aio.Server", RpcServer(self._loop, self._network, interceptors, self._address))

    def _watch_connections(self, port: int) -> None:
        """Do nothing, since the operating system has no connections here."""

    async def _start_server(self, server: grpc.aio.Server) -> None:
        await server.start()


class _Watchdog:
    """A watchdog without function, since the simulated loop cannot hang."""

    lag_seconds = 0.0

    def lag_seconds_max(self, window_seconds: float = 0.0) -> float:
        """Return 0, since the loop never lags."""
        return 0.0

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""


class _Http:
    """An HTTP server without function."""

    async def start(self, host: str, port: int) -> int:
        """Do nothing."""
        return port

    async def stop(self) -> None:
        """Do nothing."""


class _DataPort:
    """No data connections: clients use the RPC stand-in."""

    async def start(self, host: str, port: int) -> int:
        """Listen to nobody."""
        return port

    async def stop(self, grace_seconds: float) -> None:
        """Do nothing."""


class SimParts(NodeEnvironment):
    """The simulated `NodeEnvironment` of one start of a process."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: VirtualLoop,
        network: Network,
        disk: Disk,
        wall: WallTime,
        rng: random.Random,
        end_process: Callable[[], None],
        metrics: RequestMetrics,
    ) -> None:
        super().__init__(config)
        self._loop = loop
        self._network = network
        self._disk = disk
        self._wall = wall
        self._rng = rng
        self._end_process = end_process
        self._metrics = metrics
        self.sim_store: SimLogStore | None = None
        self.sim_writers: SimWriters | None = None
        self.sim_write_back: SimWriteBackThread | None = None

    def disk_reserve(self) -> DiskReserve:
        """See `NodeEnvironment`."""
        return SimReserve(self._disk, self.config.disk_reserve_bytes or 0)

    def set_log_level(self, level: str) -> None:
        """See `NodeEnvironment`. The log is of the whole simulation, and stays as it is."""

    def registry(self) -> Registry:
        """See `NodeEnvironment`."""
        return SimRegistry(self._disk)

    def store(self, disk: DiskReserve) -> LmdbLogStore:
        """See `NodeEnvironment`."""
        self.sim_store = self.make_store(self._disk)
        return self.sim_store

    def make_store(self, disk: Disk) -> SimLogStore:
        """Create the store. Mutants override it."""
        return SimLogStore(disk, map_bytes=MAP_BYTES)

    def snapshot_spools(self, limits: Limits, disk: DiskReserve) -> SnapshotSpools:
        """See `NodeEnvironment`. Spools stay in memory, since the simulated disk holds rows, not files."""
        return SnapshotSpools(
            None,
            memory_bytes=limits.snapshot_spool_memory_bytes,
            files_max=limits.snapshot_spool_files_max,
            disk_bytes_min=limits.snapshot_spool_disk_bytes_min,
            spare_bytes=disk.spare_bytes,
        )

    def readers(self, limits: Limits) -> ThreadPools:
        """See `NodeEnvironment`."""
        self.sim_write_back = SimWriteBackThread(self._loop, self._disk)
        return replace(
            ThreadPools.shared(SimDiskReaders(self._loop, self._disk)),
            rows=SimRowReaders(self._loop, self._disk),
            disk=SimExecutor(self._loop),
            write_back=self.sim_write_back,
        )

    def writers(
        self,
        store: LmdbLogStore,
        on_done: Callable[[list[Completion]], None],
        on_error: Callable[[BaseException], None],
    ) -> WriterThreads:
        """See `NodeEnvironment`."""
        assert isinstance(store, SimLogStore)
        self.sim_writers = SimWriters(self._loop, self._disk, store, self.config.writer_threads, on_done, on_error)
        return cast("WriterThreads", self.sim_writers)

    def random(self) -> random.Random:
        """See `NodeEnvironment`."""
        return random.Random(self._rng.getrandbits(64))

    def clock(self) -> Clock:
        """See `NodeEnvironment`."""
        return self._wall

    def watchdog(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> Watchdog:
        """See `NodeEnvironment`."""
        return cast("Watchdog", _Watchdog())

    def grpc_server(self, host: GrpcHost, forwarder: Forwarder) -> GrpcServer:
        """See `NodeEnvironment`."""
        return _GrpcServer(host, forwarder, self._loop, self._network, self.config.listen, self._metrics)

    def data_port(self, host: ServiceHost, grpc_server: GrpcServer) -> DataPort:
        """See `NodeEnvironment`: clients of a simulation call over gRPC's stand-in."""
        return cast("DataPort", _DataPort())

    def http_server(self, host: MetricsHost) -> HttpServer:
        """See `NodeEnvironment`."""
        return cast("HttpServer", _Http())

    def new_uuid(self) -> str:
        """See `NodeEnvironment`."""
        return f"{self._rng.getrandbits(128):032x}"

    def end_process(self) -> None:
        """See `NodeEnvironment`."""
        self._end_process()
        raise ProcessEnded
