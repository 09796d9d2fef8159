"""Clients of a run that claim producer names: each connects, takes steps for a while, and is replaced by a new one.

Claimers and entrants are such clients, and define the steps. All draw from one random stream of their own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

from raftmq.client.connection.resolver import Resolver
from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.errors import RaftMQError

from sim.cluster.cluster import Cluster
from sim.cluster.options import Options
from sim.cluster.rpc.client_transport import ClientTransport
from sim.cluster.workload import Workload
from sim.history.recorder import Recorder

_HASTY_SECONDS = 0.4
"""Time after which half of the clients give a claim up. The others still wait for the old leader when there is a new one."""
_RECONNECT_SECONDS: Final = 0.2
"""Average pause before a new client replaces one that could not connect."""

Step = Callable[[], Awaitable[None]]
"""A step of one client."""


class AppenderClients:
    """Runs the clients of one kind."""

    def __init__(self, kind: str, cluster: Cluster, workload: Workload, options: Options, rng: random.Random) -> None:
        """Take the `kind`, under which failed connections are counted."""
        self._kind = kind
        self._cluster = cluster
        self._workload = workload
        self._options = options
        self.rng = rng
        """The random generator of all clients of this kind."""
        # Not the recorder of the others: a run is as long as they need to do enough.
        self.recorder = Recorder(workload.history.append, lambda: int(cluster.loop.now * 1e9))

    def start(
        self,
        client: str,
        step_of: Callable[[SequencedAppender, str], Step],
        pauses: Sequence[float],
        error_kind: str,
    ) -> None:
        """Run one client after the other under a name, until the workload stops.

        Args:
            client: The name, to which each client adds its number.
            step_of: Returns the step of a new client, which has this appender and this process name.
            pauses: Average pauses between two steps in seconds. Each client draws one of them.
            error_kind: The kind under which failed steps are counted.
        """
        self._workload.spawn(client, self._live(client, step_of, pauses, error_kind))

    async def _live(
        self,
        client: str,
        step_of: Callable[[SequencedAppender, str], Step],
        pauses: Sequence[float],
        error_kind: str,
    ) -> None:
        life = 0
        while not self._workload.is_stopping:
            life += 1
            try:
                async with self._connected() as appender:
                    step = step_of(appender, f"{client}.{life}")
                    await self._repeat(step, self.rng.choice(pauses), error_kind)
            except RaftMQError as error:
                self._workload.count_error(self._kind, error)
                await self._pause(_RECONNECT_SECONDS)

    async def _repeat(self, step: Step, pause_seconds: float, error_kind: str) -> None:
        loop = self._cluster.loop
        until = loop.time() + self.rng.uniform(2.0, 8.0)
        while not self._workload.is_stopping and loop.time() < until:
            try:
                await step()
            except RaftMQError as error:
                self._workload.count_error(error_kind, error)
            await self._pause(pause_seconds)

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(self.rng.expovariate(1.0 / seconds))

    def verify(self, client: str, step_of: Callable[[SequencedAppender, str], Step]) -> asyncio.Task[None]:
        """Take one step, with one client after the other until it succeeds."""
        return self._workload.spawn(client, self._succeed(client, step_of))

    async def _succeed(self, client: str, step_of: Callable[[SequencedAppender, str], Step]) -> None:
        life = 0
        while True:
            life += 1
            try:
                async with self._connected() as appender:
                    await step_of(appender, f"{client}.{life}")()
                    return
            except RaftMQError as error:
                self._workload.count_error("verify", error)
                await asyncio.sleep(_RECONNECT_SECONDS)

    @asynccontextmanager
    async def _connected(self) -> AsyncIterator[SequencedAppender]:
        """Connect a client, which gives a claim up early or late."""
        seconds = self.rng.choice((_HASTY_SECONDS, self._options.delivery_seconds))
        transport = ClientTransport(self._cluster.loop, self._cluster.network)
        resolver = Resolver(self._cluster.addresses(), transport, rng=random.Random(self.rng.getrandbits(64)))
        try:
            await resolver.start(4.0)
            yield SequencedAppender(resolver, delivery_timeout_seconds=seconds)
        finally:
            await resolver.close()
