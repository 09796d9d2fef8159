"""Bind the four ports of a node, report their addresses, and close them in order."""

from __future__ import annotations

import asyncio
from typing import Final

from raftmq.broker.base.addresses import split_address
from raftmq.broker.base.config import BrokerConfig
from raftmq.broker.cluster.peer_directory import NodeAddresses
from raftmq.broker.data_port.port import DataPort
from raftmq.broker.grpc_port.server import GrpcServer
from raftmq.broker.http_port.server import HttpServer
from raftmq.broker.peers.transport import PeerTransport
from raftmq.broker.shutdown import Shutdown

_GRPC_GRACE_SECONDS: Final = 2.0
_SECONDS_MAX: Final = 5.0
"""The time limit of closing a port. Most of it is for writes under way. Beyond it something hangs."""


class NodePorts:
    """Manages the ports for peers, for clients (gRPC and data connections), and for health and metrics."""

    def __init__(
        self,
        config: BrokerConfig,
        addresses: NodeAddresses,
        transport: PeerTransport,
        grpc: GrpcServer,
        data_port: DataPort,
        http: HttpServer,
    ) -> None:
        """Take `addresses`, which receives the address of each port when it is bound."""
        self._config = config
        self._addresses = addresses
        self._transport = transport
        self._grpc = grpc
        self._data_port = data_port
        self._http = http
        self._silencing: asyncio.Task[None] | None = None
        self._is_closing = False

    async def bind(self) -> None:
        """Bind every port. Raises OSError, or RequestError as `GrpcServer.start` does."""
        config, addresses = self._config, self._addresses
        host, port = split_address(config.peer_listen)
        addresses.peer = _joined(
            config.peer_advertise or config.advertise or host, await self._transport.listen(host, port)
        )
        host, _ = split_address(config.listen)
        addresses.client = _joined(config.advertise or host, await self._grpc.start(config.listen))
        host, port = split_address(config.data_listen or f"{config.listen.rpartition(':')[0]}:0")
        addresses.data = _joined(config.advertise or host, await self._data_port.start(host, port))
        host, port = split_address(config.http_listen)
        addresses.http = _joined(config.advertise or host, await self._http.start(host, port))

    def silence(self) -> None:
        """Close the ports for peers and clients in the background. Not one frame is sent after the return.

        The HTTP port stays, so that `/readyz` can give the reason.
        """
        self._transport.shut()
        if self._is_closing:
            return  # the other ports are being closed already
        self._silencing = asyncio.get_running_loop().create_task(self._close_silenced())

    async def _close_silenced(self) -> None:
        await self._transport.close()
        await self._stop_client_ports(0.0)

    async def _stop_client_ports(self, grace_seconds: float) -> None:
        requests = self._transport.requests
        await asyncio.gather(
            self._data_port.stop(grace_seconds), self._grpc.stop(grace_seconds), requests.finish(grace_seconds)
        )

    async def close(self, end: Shutdown) -> None:
        """Answer the calls under way, and close every port."""
        self._is_closing = True
        seconds_max = min(_SECONDS_MAX, end.seconds_left / 4)
        if self._silencing is not None:
            await end.phase("ports", self._silencing, seconds_max)
        else:
            grace_seconds = min(_GRPC_GRACE_SECONDS, seconds_max / 2)
            await end.phase("grpc", self._stop_client_ports(grace_seconds), seconds_max)
            await end.phase("peers", self._transport.close(), seconds_max)
        await end.phase("http", self._http.stop(), seconds_max)


def _joined(name: str, port: int) -> str:
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
