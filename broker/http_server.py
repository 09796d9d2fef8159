"""The HTTP port: metrics for Prometheus, liveness and readiness for whoever runs the broker.

Runs on the broker's loop, so that an answer of /healthz is the proof that the loop turns. It must not take the process's
signals, nor log per request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Protocol

import uvicorn
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from raftmq.broker.grpc_server import GrpcServer
from raftmq.broker.metrics import BrokerMetrics, MetricsHost
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

_CONCURRENCY_MAX = 64
_KEEP_ALIVE_SECONDS = 5
_BACKLOG = 128


class HttpHost(MetricsHost, Protocol):
    """The node as its HTTP port sees it."""

    grpc: GrpcServer


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


class HttpServer:
    """One node's HTTP port."""

    def __init__(self, host: HttpHost) -> None:
        self._host = host
        self._metrics = BrokerMetrics(host, host.grpc.metrics)
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

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
                access_log=False,
                lifespan="off",
                http="h11",
                ws="none",
                server_header=False,
                limit_concurrency=_CONCURRENCY_MAX,
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
        return int(listener.getsockname()[1])

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
        return Response(await self._metrics.render(), media_type=CONTENT_TYPE_LATEST)

    async def _healthz(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "loop_lag_seconds": round(self._host.watchdog.lag_seconds, 6)})

    async def _readyz(self, request: Request) -> Response:
        reasons = self._host.not_ready_reasons()
        body = {"status": "not ready" if reasons else "ready", "node_id": self._host.node_id, "reasons": reasons}
        return JSONResponse(body, status_code=503 if reasons else 200)
