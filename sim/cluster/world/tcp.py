"""Asyncio transports over simulated connections. The product's peer transport runs on them unmodified."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from sim.cluster.world.host import HOST
from sim.cluster.world.loop import VirtualLoop
from sim.cluster.world.network import Listener, Network, Pipe

_WRITE_LIMIT_BYTES = 64 * 1024


class TcpTransport(asyncio.Transport):
    """One end of a connection, for a `BufferedProtocol`."""

    def __init__(self, network: Network, pipe: Pipe, side: int, protocol: Any) -> None:  # noqa: ANN401 -- any protocol
        super().__init__()
        self._network = network
        self._pipe = pipe
        self._side = side
        self._protocol = protocol
        self._is_closing = False
        self._is_lost = False
        self._high = _WRITE_LIMIT_BYTES
        self._is_paused = False
        self._unread: list[bytes] | None = None
        """Data that arrived while reading was paused. None while it is not paused."""
        self.peer: TcpTransport | None = None
        pipe.ends[side].on_lost = self._on_lost

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401 -- asyncio's
        """Return the default, since there is no extra information."""
        return default

    def is_closing(self) -> bool:
        """Return whether the transport is closed or closing."""
        return self._is_closing

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send bytes."""
        self.writelines([data])

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        """Send bytes."""
        if self._is_closing:
            return
        data = b"".join(list_of_data)
        end = self._pipe.ends[self._side]
        self._pipe.send(self._side, data, self._arrived, data)
        if end.bytes_under_way > self._high and not self._is_paused:
            self._is_paused = True
            self._protocol.pause_writing()

    def _arrived(self, data: bytes) -> None:
        """Deliver data. This runs in the other end's host."""
        peer = self.peer
        if peer is not None:
            peer.receive(data)
        if self._is_paused:
            self._network.loop.soon(self._pipe.ends[self._side].host, self._drained)

    def _drained(self) -> None:
        if self._is_paused and self._pipe.ends[self._side].bytes_under_way <= self._high // 4:
            self._is_paused = False
            self._protocol.resume_writing()

    def receive(self, data: bytes) -> None:
        """Pass arriving data to the protocol."""
        if self._is_closing:
            return
        if self._unread is not None:
            self._unread.append(data)
            return
        protocol, at, size = self._protocol, 0, len(data)
        while at < size and not self._is_closing:
            buffer = protocol.get_buffer(-1)
            count = min(len(buffer), size - at)
            buffer[:count] = data[at : at + count]
            protocol.buffer_updated(count)
            at += count

    def pause_reading(self) -> None:
        """Keep arriving data."""
        if self._unread is None:
            self._unread = []

    def resume_reading(self) -> None:
        """Deliver the kept data, and all later data immediately."""
        unread, self._unread = self._unread or (), None
        for data in unread:
            self.receive(data)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that have not arrived."""
        return self._pipe.ends[self._side].bytes_under_way

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the number of bytes under way at which the protocol must pause."""
        self._high = high or _WRITE_LIMIT_BYTES

    def close(self) -> None:
        """Close the connection after the data sent."""
        if not self._is_closing:
            self._is_closing = True
            self._pipe.close(self._side)
            self._network.loop.call_soon(self._say_lost)

    def abort(self) -> None:
        """Close the connection."""
        self.close()

    def _on_lost(self) -> None:
        self._is_closing = True
        self._say_lost()

    def _say_lost(self) -> None:
        if not self._is_lost:
            self._is_lost = True
            self._pipe.ends[self._side].on_lost = None
            self._protocol.connection_lost(None)


class TcpServer:
    """The server that `create_server` returns."""

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self.sockets = [self]

    def getsockname(self) -> tuple[str, int]:
        """Return host and port."""
        host, _, port = self._address.rpartition(":")
        return host, int(port)

    def close(self) -> None:
        """Accept no more connections."""
        self._network.listeners.pop(self._address, None)


class TcpConnector:
    """Creates and accepts connections for the loop."""

    def __init__(self, loop: VirtualLoop, network: Network) -> None:
        self._loop = loop
        self._network = network
        self._opened: dict[Pipe, TcpTransport] = {}
        """The first end of each connection whose other end is not connected yet."""

    async def connect(self, factory: Callable[[], Any], address: str) -> tuple[Any, Any]:
        """See `Connector`. Waits without limit if there is no reply, since the caller has a timeout."""
        host = HOST.get()
        assert host is not None
        opened: asyncio.Future[Pipe] = self._loop.create_future()

        def on_open(pipe: Pipe) -> None:
            if opened.done():
                pipe.close(0)
            else:
                opened.set_result(pipe)

        def on_refused() -> None:
            if not opened.done():
                opened.set_exception(ConnectionRefusedError(f"{address} refused the connection"))

        self._network.connect(host, address, on_open, on_refused)
        pipe = await opened
        protocol = factory()
        transport = TcpTransport(self._network, pipe, 0, protocol)
        other = self._opened.pop(pipe, None)
        if other is not None:
            transport.peer, other.peer = other, transport
        else:
            self._opened[pipe] = transport
        protocol.connection_made(transport)
        return transport, protocol

    def listen(self, factory: Callable[[], Any], address: str) -> TcpServer:
        """See `Connector`."""
        host = HOST.get()
        assert host is not None

        def accept(pipe: Pipe) -> None:
            protocol = factory()
            transport = TcpTransport(self._network, pipe, 1, protocol)
            other = self._opened.pop(pipe, None)
            if other is not None:
                transport.peer, other.peer = other, transport
            else:
                self._opened[pipe] = transport
            protocol.connection_made(transport)

        self._network.listeners[address] = Listener(host, accept)
        return TcpServer(self._network, address)
