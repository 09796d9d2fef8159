"""Links without special permissions: a proxy in front of each broker, in a thread of the test, that knows the direction of every byte.

Brokers listen on 127.0.1.N and advertise 127.0.2.N, the address of the proxy. The proxy reads the HELLO of a peer's connection to learn the
sender. Name spaces are more realistic: here the kernel acknowledges bytes that the proxy holds back, so no connection times out, and the
port of a killed broker refuses nothing, so its followers start an election after their timeout instead of immediately.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections import defaultdict
from collections.abc import Callable

import msgspec
from raftmq.broker.peers.codec import FRAME_HEADER
from raftmq.broker.peers.protocol import Hello

from tests.chaos.links import CLIENTS, Place

CHUNK_BYTES = 16 * 1024
SLOW_BYTES_PER_SECOND = 50_000
"""Enough for heartbeats, not for the load of clients."""
PORTS_PER_BROKER = 4
"""Those of `LocalCluster` for clients, peers and HTTP, and one for data connections."""
DATA_PORT = 3
"""Its place among them."""
PORT_STEP = 10
"""The distance between the ports of two brokers of a `LocalCluster`."""
PORTS = range(20_000, 32_000)
"""Ports below the kernel's range for outgoing connections, so that they are still free when a broker restarts."""
FIRST_PORTS_TRIED = 100
START_SECONDS = 10.0


class Proxies:
    """`Links` between brokers behind proxies. Needs no special permissions."""

    def __init__(self, brokers: int) -> None:
        self._brokers = brokers
        self.first_port = _free_ports(brokers)
        self._gates: defaultdict[tuple[int, int], asyncio.Event] = defaultdict(_open_gate)
        self._slow: set[int] = set()
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-proxies", daemon=True)
        self._thread.start()
        try:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(START_SECONDS)
        except BaseException:
            self.close()
            raise

    async def _listen(self) -> None:
        for broker_id in range(1, self._brokers + 1):
            for which in range(PORTS_PER_BROKER):
                port = self.first_port + PORT_STEP * (broker_id - 1) + which
                self._servers.append(
                    await asyncio.start_server(
                        self._handler(broker_id, port, is_peers=which == 1), f"127.0.2.{broker_id}", port
                    )
                )

    def _handler(
        self, broker_id: int, port: int, *, is_peers: bool
    ) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._connections.add(task)
            try:
                await self._carry(broker_id, port, reader, writer, is_peers=is_peers)
            except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, msgspec.DecodeError):
                pass  # one end closed the connection: `abort` closes the other
            finally:
                self._connections.discard(task)
                writer.transport.abort()

        return serve

    async def _carry(
        self,
        broker_id: int,
        port: int,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        is_peers: bool,
    ) -> None:
        origin, first = CLIENTS, b""
        if is_peers:
            header = await reader.readexactly(FRAME_HEADER.size)
            hello = await reader.readexactly(FRAME_HEADER.unpack(header)[0])
            origin, first = msgspec.msgpack.decode(hello, type=Hello).node_id, header + hello
        await self._gates[origin, broker_id].wait()
        to_broker, broker_writer = await asyncio.open_connection(f"127.0.1.{broker_id}", port)
        broker_writer.write(first)
        pumps = (
            asyncio.ensure_future(self._pump(reader, broker_writer, origin, broker_id)),
            asyncio.ensure_future(self._pump(to_broker, writer, broker_id, origin)),
        )
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            broker_writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: int, target: int) -> None:
        gate = self._gates[source, target]
        while True:
            chunk = await reader.read(CHUNK_BYTES)
            if source in self._slow:
                await asyncio.sleep(len(chunk) / SLOW_BYTES_PER_SECOND)
            await gate.wait()  # also before a close is passed on: a cut link does not carry it
            if not chunk:
                return
            writer.write(chunk)
            await writer.drain()

    def place(self, broker_id: int) -> Place:
        bind_host, seen_host = f"127.0.1.{broker_id}", f"127.0.2.{broker_id}"
        data_port = self.first_port + PORT_STEP * (broker_id - 1) + DATA_PORT
        arguments = ("--advertise", seen_host, "--set", f"data_listen={bind_host}:{data_port}")
        return Place(bind_host=bind_host, seen_host=seen_host, arguments=arguments)

    def _do(self, action: Callable[[], object]) -> None:
        """Run an action in the proxies' thread and wait for its end."""

        async def act() -> None:
            action()

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(START_SECONDS)

    def cut(self, source: int, target: int) -> None:
        self._do(lambda: self._gates[source, target].clear())

    def restore(self, source: int, target: int) -> None:
        self._do(lambda: self._gates[source, target].set())

    def slow(self, broker_id: int) -> None:
        self._do(lambda: self._slow.add(broker_id))

    def hurry(self, broker_id: int) -> None:
        self._do(lambda: self._slow.discard(broker_id))

    def heal(self) -> None:

        def open_all() -> None:
            self._slow.clear()
            for gate in self._gates.values():
                gate.set()

        self._do(open_all)

    def close(self) -> None:
        if self._loop.is_closed():
            return
        with contextlib.suppress(TimeoutError):
            asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(START_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(START_SECONDS)
        self._loop.close()

    async def _end(self) -> None:
        for server in self._servers:
            server.close()
        tasks = tuple(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _open_gate() -> asyncio.Event:
    gate = asyncio.Event()
    gate.set()
    return gate


def _free_ports(brokers: int) -> int:
    """Return a first port such that every broker's ports are free, on the addresses of the brokers and of the proxies."""
    span = PORT_STEP * brokers
    for attempt in range(FIRST_PORTS_TRIED):
        first = PORTS.start + (os.getpid() * 100 + attempt * span) % (len(PORTS) - span)
        if all(
            _is_free(host, first + PORT_STEP * (broker_id - 1) + which)
            for broker_id in range(1, brokers + 1)
            for which in range(PORTS_PER_BROKER)
            for host in ("127.0.0.1", f"127.0.1.{broker_id}", f"127.0.2.{broker_id}")
        ):
            return first
    raise OSError("no free ports for the proxies")


def _is_free(host: str, port: int) -> bool:
    try:
        with socket.create_server((host, port)):
            return True
    except OSError:
        return False
