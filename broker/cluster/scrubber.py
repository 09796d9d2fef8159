"""Read every replica's file in the background, at a bounded rate, to find damaged pages while other replicas have the data.

Opening a file reads only its tail. The rest is read here, in slices, by a reader thread. Each slice has its own transaction, so no
freed page is held for long, and replacing a file waits for one slice at most. A damaged file is treated like any other damaged read:
the replica is quarantined and rebuilt from its peers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar, TypeVarTuple

import structlog
from raftmq.broker.base.limits import Timing
from raftmq.broker.cluster.replica_manager import ReplicaManager
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.storage.errors import CommitFailedError, DamagedReplicaError, ReplicaStorageError
from raftmq.storage.lmdb_log_store import LmdbLogStore
from raftmq.storage.registry import Registry
from raftmq.storage.row_scrub import ScrubPlace

log = structlog.get_logger(__name__)

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

SLICE_BYTES = 256 * 1024
SLICE_ROWS = 256
"""Bounds of one slice: about a millisecond of a reader thread."""
ROW_COST_BYTES = 300
"""Processor cost of a row, in bytes. Without it files of small rows would cost many times the work of others."""


class Scrubber:
    """Scrubs all replicas of one node."""

    def __init__(
        self,
        engine: Engine,
        store: LmdbLogStore,
        readers: Executor,
        registry: Registry,
        replicas: ReplicaManager,
        bytes_per_second: int,
        timing: Timing,
    ) -> None:
        self._engine = engine
        self._store = store
        self._readers = readers
        self._registry = registry
        self._replicas = replicas
        self.bytes_per_second = bytes_per_second
        """The rate, which may be changed at any time."""
        self._timing = timing
        self._trusted_at: float | None = None
        """Loop time at which this process has run long enough to clear files suspected of killing one. None: they are cleared."""
        self.bytes_total = 0
        """Bytes of files and rows read."""
        self.damaged_total = 0
        """Replicas that were found damaged."""
        self.passes_total = 0
        self.last_pass_ms = 0
        """End of the last complete pass in milliseconds since the epoch, or 0 if there was none."""

    async def run(self) -> None:
        """Begin a pass every `Timing.scrub_pass_seconds`, until cancelled."""
        loop = self._engine.loop
        self._trusted_at = loop.time() + self._timing.suspicion_seconds
        next_pass = loop.time()
        while True:
            if loop.time() >= next_pass:
                next_pass = loop.time() + self._timing.scrub_pass_seconds
                await self.one_pass()
            await self._end_suspicion()
            await asyncio.sleep(max(0.0, self._due(next_pass) - loop.time()))

    def _due(self, next_pass: float) -> float:
        """Return the loop time of the next action."""
        return next_pass if self._trusted_at is None else min(next_pass, self._trusted_at)

    async def one_pass(self) -> None:
        """Read every replica that is served now, in random order, so that a node that restarts often reaches all of them."""
        replicas = list(self._engine.replicas.values())
        self._engine.shuffle(replicas)
        for replica in replicas:
            await self._scrub(replica)
            await self._end_suspicion()
        self.passes_total += 1
        self.last_pass_ms = self._engine.now_ms()

    async def _scrub(self, replica: Replica[StateMachine]) -> None:
        key, place = replica.key, ScrubPlace()
        try:
            while not place.is_done:
                if replica.is_closed:
                    return
                part = await self._in_thread(self._store.scrub, key, place, SLICE_BYTES, SLICE_ROWS)
                self.bytes_total += part.size
                cost = part.size + part.rows * ROW_COST_BYTES
                await asyncio.sleep(cost / self.bytes_per_second)
            await self._replicas.on_writer(key, partial(self._store.store_verified, key))
        except DamagedReplicaError as error:
            self.damaged_total += 1
            self._engine.break_replica(replica, error)
        except CommitFailedError:
            raise
        except ReplicaStorageError as error:  # closed, or temporarily unreadable: the next pass tries again
            log.debug("scrub_postponed", group_id=key.group_id, reason=str(error))

    async def _end_suspicion(self) -> None:
        if self._trusted_at is not None and self._engine.loop.time() >= self._trusted_at:
            self._trusted_at = None
            await self._in_thread(self._registry.forget_exits)

    async def _in_thread(self, function: Callable[[*Arguments], T], *arguments: *Arguments) -> T:
        return await self._engine.loop.run_in_executor(self._readers, function, *arguments)
