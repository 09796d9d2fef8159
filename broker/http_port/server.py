"""The HTTP port: metrics for Prometheus, liveness and readiness for whoever runs the broker.

Runs on the broker's loop, so that an answer of /healthz is the proof that the loop turns: there is no way for it to say no. It must not take the process's
signals, nor log per request. Whatever connects, /healthz must answer: connections that say nothing, send a header byte by
byte or do not read their answer are closed in time, and the longest of them first when there are many.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import h11
import structlog
import uvicorn
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.supervisor import Work
from raftmq.broker.http_port.metrics import BrokerMetrics, MetricsHost
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

log = structlog.get_logger(__name__)

_KEEP_ALIVE_SECONDS = 5
_HEAD_BYTES_MAX: Final = 16 * 1024
"""Of a request line with its headers."""
_UNSENT_BYTES_MAX: Final = 64 * 1024
"""Pipelined requests wait while more of the answers before them is not taken."""
_BACKLOG = 1024


class _Server(uvicorn.Server):
    """Uvicorn without signal handlers, and with a way to wait until it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are the broker's."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Also tell that it listens."""
        await super().startup(sockets)
        self.is_listening.set()


class _Connection(H11Protocol):
    """Uvicorn's, with an end: it may not wait for a request, nor hold an answer, for longer than the limit.

    Uvicorn's own limits do not do: its concurrency limit counts idle connections and then refuses everybody, and it times
    only what follows an answer.
    """

    def __init__(
        self,
        limits: Limits,
        on_evicted: Callable[[], None],
        on_refused: Callable[[str], None],
        **arguments: Any,  # noqa: ANN401 -- uvicorn's
    ) -> None:
        super().__init__(**arguments)
        self._limits = limits
        self._on_evicted = on_evicted
        self._on_refused = on_refused
        self._ending: asyncio.TimerHandle | None = None
        self._cycle_seen: object = None
        self.began_at = 0.0
        """Loop time when it was opened, or when its newest request began."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=_UNSENT_BYTES_MAX)
        self._begin_exchange()
        others = cast("set[_Connection]", self.connections)
        if len(others) > self._limits.http_connections_max:
            oldest = min(others, key=lambda other: other.began_at)
            others.discard(oldest)
            oldest.transport.abort()
            self._on_evicted()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._ending is not None:
            self._ending.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """A request that began has as long again."""
        self._guarded(super().handle_events)
        if self.cycle is not self._cycle_seen:
            self._cycle_seen = self.cycle
            self._begin_exchange()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that asks nothing more, whatever state garbage has left it in."""
        self._guarded(super().timeout_keep_alive_handler)

    def shutdown(self) -> None:
        """Close the connection in order, whatever state garbage has left it in."""
        self._guarded(super().shutdown)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not a request, also in the middle of an answer: its request's body may turn out to be malformed."""
        self._on_refused(msg)
        self._drop_answer()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run a step of uvicorn's. The client decides in which state it finds the connection, so a step that does not fit ends
        the connection and is not a defect to be logged with its traceback.
        """
        try:
            action()
        except h11.ProtocolError as error:
            self._on_refused(str(error))
            self._drop_answer()
            self.transport.close()

    def _drop_answer(self) -> None:
        """Drop what the application still says: sending it would raise, and be logged."""
        # none before the first request, whatever uvicorn declares
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _begin_exchange(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self.began_at = self.loop.time()
        # abort, not close: a close would wait for ever for a client that does not read
        self._ending = self.loop.call_later(self._limits.http_exchange_seconds, self.transport.abort)


class HttpServer:
    """One node's HTTP port."""

    def __init__(self, host: MetricsHost) -> None:
        self._host = host
        self.evicted_total = 0
        """Connections closed because there were too many, since the start."""
        self._refused_throttle = LogThrottle()
        self._refused_unsaid = 0
        self._metrics = BrokerMetrics(host, self)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._scrape: asyncio.Task[bytes] | None = None

    @property
    def connections(self) -> int:
        """Connections open now."""
        return len(self._server.server_state.connections) if self._server is not None else 0

    def _count_evicted(self) -> None:
        self.evicted_total += 1

    def _say_refused(self, reason: str) -> None:
        """Log one of the requests that were no requests, now and then: their senders choose how many there are."""
        if self._refused_throttle.is_due():
            log.warning("http_request_refused", reason=reason, others=self._refused_unsaid)
            self._refused_unsaid = 0
        else:
            self._refused_unsaid += 1

    async def start(self, host: str, port: int) -> int:
        """Listen and serve; returns the bound port. Raises OSError when the address cannot be bound."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except OSError:
            listener.close()
            raise
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        server = _Server(
            uvicorn.Config(
                self.application(),
                log_config=None,
                log_level="error",  # it warns of every malformed request: whoever sends them would choose how much we log
                access_log=False,
                backlog=_BACKLOG,
                lifespan="off",
                # a class as far as uvicorn is concerned: it only calls it
                http=cast(
                    "type[asyncio.Protocol]",
                    functools.partial(_Connection, self._host.engine.limits, self._count_evicted, self._say_refused),
                ),
                h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
                ws="none",
                server_header=False,
                timeout_keep_alive=_KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=1,
            )
        )
        self._server = server
        self._task = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
        listening = asyncio.get_running_loop().create_task(server.is_listening.wait())
        await asyncio.wait((self._task, listening), return_when=asyncio.FIRST_COMPLETED)
        listening.cancel()
        if self._task.done():
            self._task.result()
        self._task.add_done_callback(self._on_ended)
        return int(listener.getsockname()[1])

    def _on_ended(self, task: asyncio.Task[None]) -> None:
        """It ends when it is told to; else nobody could ask any more, and somebody must hear of it."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._host.supervisor.record_failure(Work.HTTP, error)

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task

    def application(self) -> Starlette:
        """The routes, for a server or a test."""
        return Starlette(
            routes=[
                Route("/metrics", self._serve_metrics),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
            ]
        )

    async def _serve_metrics(self, request: Request) -> Response:
        # Scrapes at the same time share one rendering and its bytes: hundreds of them must not take the threads and the memory.
        if self._scrape is None or self._scrape.done():
            self._scrape = asyncio.get_running_loop().create_task(self._metrics.render())
        return Response(await asyncio.shield(self._scrape), media_type=CONTENT_TYPE_LATEST)

    async def _healthz(self, request: Request) -> Response:
        watchdog = self._host.watchdog
        body = {
            "status": "ok",
            "broker_id": self._host.view.node_id,
            "version": self._host.version,
            "loop_lag_seconds": round(watchdog.lag_seconds, 6),
            "loop_lag_max_seconds": round(watchdog.lag_seconds_max(), 6),
        }
        return JSONResponse(body)

    async def _readyz(self, request: Request) -> Response:
        """JSON, or text for a person: `?format=text`, or `Accept: text/plain`."""
        reasons = self._host.standing.not_ready_reasons()
        warnings = self._host.standing.warnings()
        status_code = 503 if reasons else 200
        wanted = request.query_params.get("format") or request.headers.get("accept", "")
        if wanted.startswith("text"):
            lines = ["not ready" if reasons else "ready", *(f"{one.reason}: {one.message}" for one in reasons)]
            lines += [f"warning: {warning}" for warning in warnings]
            return PlainTextResponse("\n".join(lines) + "\n", status_code=status_code)
        body = {
            "status": "not ready" if reasons else "ready",
            "broker_id": self._host.view.node_id,
            "cluster_id": self._host.view.cluster_id,
            "reasons": [{"code": one.reason.value, "message": one.message} for one in reasons],
            "warnings": warnings,
        }
        return JSONResponse(body, status_code=status_code)
