"""The data port of one broker: accept connections, and end them in order.

A client needs a token from the client port before it connects here. If this port cannot be bound, the broker does not start.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final

from raftmq.broker.base.budget import Budget
from raftmq.broker.base.listening import listen
from raftmq.broker.data_port.connection import LARGE_BUFFER_SECONDS, DataConnection
from raftmq.broker.grpc_port.methods import ROWS, Row
from raftmq.broker.grpc_port.server import GrpcServer
from raftmq.broker.services.append_session import AppendSession
from raftmq.broker.services.call import Call, Principal
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.poll import OnPolled, Poll
from raftmq.broker.services.queue.stream import ConsumerStream
from raftmq.frames import DATA_METHODS
from raftmq.methods import APPEND
from raftmq.proto import queue_pb2 as pb

TURN_SECONDS: Final = 0.01
"""How long the frames of all connections are worked on in one turn of the event loop: one read can bring two MiB of requests, each of
which names thousands of partitions, and elections, heartbeats and other clients wait for the next turn."""
_BACKLOG: Final = 1024
"""Connections that the kernel has accepted and the loop has not."""


class DataPort:
    """Satisfies `DataPortOwner`."""

    def __init__(self, host: ServiceHost, grpc: GrpcServer) -> None:
        self.loop = host.loop
        self.limits = host.limits
        self.metrics = grpc.metrics
        self.connections = Budget(host.loop, host.limits.data_connections_max, "data connections")
        self.receiving = grpc.admission.receiving
        self.requests = Budget(host.loop, host.limits.receiving_bytes_max, "requests without an answer")
        self.unsent = grpc.admission.unsent
        self.received_bytes = 0
        """Received on all connections since the start."""
        self.sent_bytes = 0
        """Sent on all connections since the start."""
        self.rows: tuple[Row, ...] = tuple(next(row for row in ROWS if row.method is method) for method in DATA_METHODS)
        services = grpc.services
        self.answers: Mapping[str, Any] = {row.method.name: row.service(services) for row in self.rows}
        self._log = services.log
        self._queue = services.queue
        self._tokens = grpc.data_tokens
        self._open: set[DataConnection] = set()
        self._greeting: dict[DataConnection, None] = {}
        """Connections that have not said HELLO, or were refused, the oldest first."""
        self.evicted_total = 0
        """Connections closed since the start because too many had not said HELLO."""
        self._all_closed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._is_stopping = False
        self._shrink_timer: asyncio.TimerHandle | None = None
        self._turn_ends_at = 0.0
        """When connections have used up this turn of the event loop. 0: none has begun to."""
        self._deferred: deque[DataConnection] = deque()
        """Connections that go on in a later turn."""

    async def start(self, host: str, port: int) -> int:
        """Listen on a host and port (0: any free one). Return the port that is bound.

        Raises:
            OSError: The address cannot be bound.
        """
        self._server, self._tokens.port = await listen(self.loop, lambda: DataConnection(self), host, port, _BACKLOG)
        self._shrink_timer = self.loop.call_later(LARGE_BUFFER_SECONDS, self._shrink_idle)
        return self._tokens.port

    def _shrink_idle(self) -> None:
        now = self.loop.time()
        for connection in self._open:
            connection.shrink_idle(now)
        self._shrink_timer = self.loop.call_later(LARGE_BUFFER_SECONDS, self._shrink_idle)

    async def stop(self, grace_seconds: float) -> None:
        """Accept no more connections and calls, answer those that are under way, and close within the grace."""
        self._is_stopping = True
        self._tokens.port = 0
        if self._shrink_timer is not None:
            self._shrink_timer.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self._open):
            connection.begin_shutdown()
        if self._open:
            try:
                await asyncio.wait_for(self._all_closed.wait(), grace_seconds)
            except TimeoutError:
                for connection in list(self._open):
                    connection.abort()
                await asyncio.sleep(0)  # and their ends are heard of

    @property
    def handshakes(self) -> int:
        """Return the number of connections that have not said HELLO."""
        return len(self._greeting)

    # ---------------------------------------------------------------------------------------------------- DataPortOwner

    def append_session(self) -> AppendSession:
        """See `DataPortOwner`."""
        return self._log.append_session(APPEND.name)

    def begin_poll(self, request: pb.PollRequest, call: Call, on_outcome: OnPolled) -> Poll:
        """See `DataPortOwner`."""
        return self._log.begin_poll(request, call, on_outcome)

    def consumer_stream(self, principal: Principal, on_changed: Callable[[], None]) -> ConsumerStream:
        """See `DataPortOwner`."""
        return self._queue.consumer_stream(principal, on_changed)

    def redeem(self, token: bytes) -> Principal | None:
        """See `DataPortOwner`."""
        return self._tokens.redeem(token)

    def may_go_on(self) -> bool:
        """See `DataPortOwner`."""
        now = time.perf_counter()  # uvloop's clock stands still within one turn
        if not self._turn_ends_at:
            self._turn_ends_at = now + TURN_SECONDS
            self.loop.call_soon(self._begin_turn)
        return now < self._turn_ends_at

    def defer(self, connection: DataConnection) -> None:
        """See `DataPortOwner`."""
        self._deferred.append(connection)

    def _begin_turn(self) -> None:
        self._turn_ends_at = 0.0
        for _ in range(len(self._deferred)):
            if not self.may_go_on():
                break
            self._deferred.popleft().resume()

    def on_opened(self, connection: DataConnection) -> None:
        """See `DataPortOwner`."""
        if len(self._greeting) >= self.limits.data_handshakes_max:
            self._evict(next(iter(self._greeting)))
        self._greeting[connection] = None
        self._open.add(connection)
        self._all_closed.clear()
        if self._is_stopping:
            connection.abort()

    def _evict(self, connection: DataConnection) -> None:
        """Close a connection without HELLO. A client says it within a round trip, so an old one is none of a client."""
        self.evicted_total += 1
        del self._greeting[connection]
        connection.abort()

    def on_greeted(self, connection: DataConnection) -> None:
        """See `DataPortOwner`."""
        self._greeting.pop(connection, None)

    def on_closed(self, connection: DataConnection) -> None:
        """See `DataPortOwner`."""
        self._greeting.pop(connection, None)
        self._open.discard(connection)
        if not self._open:
            self._all_closed.set()
