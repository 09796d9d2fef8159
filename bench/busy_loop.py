"""Keep an event loop busy with an echo over sockets, as a broker's loop is under load, and measure how long its turns are delayed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import cast

CONNECTIONS = 20


class _Echo(asyncio.Protocol):
    """Send received data back, after some work."""

    def __init__(self, busy: BusyLoop) -> None:
        self._busy = busy

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transport has the methods but not the class

    def data_received(self, data: bytes) -> None:
        self._busy.on_turn()
        sum(range(200))
        if not self._busy.is_over:
            self._transport.write(data)


class BusyLoop:
    """The echo of one loop."""

    def __init__(self) -> None:
        self.is_over = False
        self.turns = 0
        self._last = time.perf_counter()
        self._stall = 0.0

    def on_turn(self) -> None:
        """Measure the time since the last message."""
        now = time.perf_counter()
        self._stall = max(self._stall, now - self._last)
        self._last = now
        self.turns += 1

    def take_stall_seconds(self) -> float:
        """Return the longest time between two messages since the last call."""
        stall, self._stall = self._stall, 0.0
        self._last = time.perf_counter()
        return stall


@asynccontextmanager
async def busy_loop() -> AsyncIterator[BusyLoop]:
    """Keep the running loop busy during the block."""
    loop = asyncio.get_running_loop()
    busy = BusyLoop()
    server = await loop.create_server(lambda: _Echo(busy), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    transports = [(await loop.create_connection(lambda: _Echo(busy), "127.0.0.1", port))[0] for _ in range(CONNECTIONS)]
    for transport in transports:
        transport.write(b"x" * 100)
    try:
        yield busy
    finally:
        busy.is_over = True
        for transport in transports:
            transport.close()
        server.close()
