"""What a node has of the world: disk, threads, clock, chance, ports. Production's; the simulator hands in its own.

Makes parts and knows none of them: what they are for is the node's.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc.aio
from raftmq.broker.clock import Clock, WallClock
from raftmq.broker.config import BrokerConfig
from raftmq.broker.grpc_server import GrpcHost, GrpcServer
from raftmq.broker.http_server import HttpHost, HttpServer
from raftmq.broker.watchdog import Watchdog
from raftmq.storage.disk_space import DiskReserve
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.registry import Registry
from raftmq.storage.writer_threads import Completion, WriterThreads

if TYPE_CHECKING:
    from concurrent.futures import Executor

_READER_THREADS = 4
"""Cold reads, snapshots and registry writes: enough that one slow disk read does not hold the others up."""


class NodeParts:
    """See the module. Each method is called once, while the node is made, unless it says otherwise."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config

    def disk_reserve(self) -> DiskReserve:
        """The volume's reserve."""
        return DiskReserve(self.config.data_dir, reserve_bytes=self.config.disk_reserve_bytes)

    def registry(self) -> Registry:
        """The node's own memory."""
        return Registry(self.config.data_dir / "node.mdb")

    def store(self, disk: DiskReserve) -> LmdbLogStore:
        """The replicas' files."""
        return LmdbLogStore(self.config.data_dir, map_bytes=self.config.map_bytes, spare_bytes=disk.spare_bytes)

    def readers(self) -> Executor:
        """Who blocks on reads."""
        return ThreadPoolExecutor(_READER_THREADS, thread_name_prefix="raftmq-reader")

    def writers(
        self,
        store: LmdbLogStore,
        on_done: Callable[[list[Completion]], None],
        on_error: Callable[[BaseException], None],
    ) -> WriterThreads:
        """Who commits."""
        return WriterThreads(store, thread_count=self.config.writer_threads, on_done=on_done, on_error=on_error)

    def random(self) -> random.Random:
        """Chance."""
        return random.Random()

    def clock(self) -> Clock:
        """Wall time."""
        return WallClock()

    def watchdog(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> Watchdog:
        """Who watches the loop."""
        return Watchdog(loop, stall_seconds)

    def grpc_server(self, host: GrpcHost) -> GrpcServer:
        """The clients' port."""
        return GrpcServer(host)

    def http_server(self, host: HttpHost) -> HttpServer:
        """The port for metrics and health."""
        return HttpServer(host)

    def open_channel(self, address: str) -> grpc.aio.Channel:
        """A way to another node's client port. Called for each registration."""
        return grpc.aio.insecure_channel(address)

    def new_uuid(self) -> str:
        """An id that nobody else has. Called whenever one is needed."""
        return uuid.uuid4().hex

    def end_process(self) -> None:
        """End the process at once: no clean-up may run after a failed commit."""
        sys.stderr.flush()
        os._exit(70)
