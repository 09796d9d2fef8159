"""Serve the HTTP port: metrics for Prometheus, liveness and readiness for operators and orchestrators.

It runs on the broker's event loop, so an answer of /healthz proves that the loop runs, and /healthz never reports a failure. The
server must not take over the process's signals, nor log each request. /healthz must answer whatever else connects: connections that
send nothing, send a header byte by byte or do not read their answer are closed in time, and above the limit the oldest is closed.
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
"""Size of a request line with its headers."""
_UNSENT_BYTES_MAX: Final = 64 * 1024
"""Unread answers on a connection above which its further pipelined requests wait."""
_BACKLOG = 1024


class _Server(uvicorn.Server):
    """Uvicorn's server without signal handlers, and with an event that tells when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the broker."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, then set `is_listening`."""
        await super().startup(sockets)
        self.is_listening.set()


class _Connection(H11Protocol):
    """Uvicorn's connection with a time limit: it may neither wait for a request nor hold an answer for longer.

    Uvicorn's own limits are not enough: its concurrency limit counts idle connections and then refuses every client, and its
    timeout covers only the time after an answer.
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
        """Process received data. A new request restarts the connection's time limit."""
        self._guarded(super().handle_events)
        if self.cycle is not self._cycle_seen:
            self._cycle_seen = self.cycle
            self._begin_exchange()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection without a further request, in whatever state malformed input has left it."""
        self._guarded(super().timeout_keep_alive_handler)

    def shutdown(self) -> None:
        """Close the connection cleanly, in whatever state malformed input has left it."""
        self._guarded(super().shutdown)

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed input, also during an answer, because a request's body may turn out to be malformed."""
        self._on_refused(msg)
        self._drop_answer()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def _guarded(self, action: Callable[[], None]) -> None:
        """Run a step of uvicorn's. If the connection is in a state that does not allow the step, close the connection.

        The client determines that state, so this is no defect to log with a traceback.
        """
        try:
            action()
        except h11.ProtocolError as error:
            self._on_refused(str(error))
            self._drop_answer()
            self.transport.close()

    def _drop_answer(self) -> None:
        """Drop the rest of the application's answer: sending it would raise and be logged."""
        # there is no cycle before the first request, although uvicorn declares one
        cycle = cast("RequestResponseCycle | None", self.cycle)
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()

    def _begin_exchange(self) -> None:
        if self._ending is not None:
            self._ending.cancel()
        self.began_at = self.loop.time()
        # abort instead of close: close would wait without end for a client that does not read
        self._ending = self.loop.call_later(self._limits.http_exchange_seconds, self.transport.abort)


class HttpServer:
    """Serves one node's HTTP port."""

    def __init__(self, host: MetricsHost) -> None:
        self._host = host
        self.evicted_total = 0
        """Connections closed since the start because there were too many."""
        self._refused_throttle = LogThrottle()
        self._refused_unsaid = 0
        self._metrics = BrokerMetrics(host, self)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._scrape: asyncio.Task[bytes] | None = None

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        return len(self._server.server_state.connections) if self._server is not None else 0

    def _count_evicted(self) -> None:
        self.evicted_total += 1

    def _say_refused(self, reason: str) -> None:
        """Log malformed requests at most once a minute, because their senders choose how many there are."""
        if self._refused_throttle.is_due():
            log.warning("http_request_refused", reason=reason, others=self._refused_unsaid)
            self._refused_unsaid = 0
        else:
            self._refused_unsaid += 1

    async def start(self, host: str, port: int) -> int:
        """Listen and serve. Return the bound port. Raises OSError if the address cannot be bound."""
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
                log_level="error",  # it warns of every malformed request, so their senders would choose how much is logged
                access_log=False,
                backlog=_BACKLOG,
                lifespan="off",
                # uvicorn expects a class, but it only calls it
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
        """Record a failure of the server's task, which ends normally only after `stop`."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._host.supervisor.record_failure(Work.HTTP, error)

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task

    def application(self) -> Starlette:
        """Return the application with its routes, for a server or a test."""
        return Starlette(
            routes=[
                Route("/metrics", self._serve_metrics),
                Route("/healthz", self._healthz),
                Route("/readyz", self._readyz),
            ]
        )

    async def _serve_metrics(self, request: Request) -> Response:
        # Simultaneous scrapes share one rendering and its bytes, so that hundreds of them do not use up threads and memory.
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
        """Answer in JSON, or in plain text after `?format=text` or `Accept: text/plain`."""
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
