"""Watch the connections to the client port. gRPC's core accepts them, refuses those beyond a limit, and reports nothing.

They are found among the process's file descriptors. When nearly all slots are in use, connections without a call are evicted, the
longest silent first, so that clients that only connect cannot block clients that work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import structlog
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.supervisor import Work, background_step
from raftmq.broker.grpc_port.slow_readers import peer_address

log = structlog.get_logger(__name__)

CROWDED_FRACTION: Final = 0.75
"""Fraction of the slots above which silent connections are evicted."""
SILENT_SECONDS_MIN: Final = 1.0
"""A connection that was silent for less may be new and about to make a call."""
_LOOK_SECONDS: Final = 0.5
_DESCRIPTORS: Final = Path("/dev/fd")
_TCP_INFO: Final[int | None] = getattr(socket, "TCP_INFO", None)
_LAST_DATA_RECEIVED: Final = struct.Struct("=I")
_LAST_DATA_RECEIVED_AT: Final = 52
"""Place of `tcpi_last_data_recv`, in milliseconds, in Linux's `struct tcp_info`."""
_PACE: Final = LogThrottle(10.0)
"""Limits the log, because clients determine how often this happens."""

Address = tuple[str, int]


class Connection(NamedTuple):
    """A connection to a local port."""

    number: int
    """Its file descriptor when it was found."""
    peer: Address
    silent_seconds: float
    """Time since anything was received on it."""


class ClientConnections:
    """Counts the connections to one port, and evicts silent ones before its slots are exhausted."""

    def __init__(
        self, places: int, callers: Callable[[], set[str]], record_failure: Callable[[Work, BaseException], None]
    ) -> None:
        """Take `callers`, which returns the peers of all calls in gRPC's notation."""
        self._places = places
        self._callers = callers
        self._record_failure = record_failure
        self._port = 0
        self.evicted_total = 0
        """Connections closed since the start because there were too many."""

    def count(self) -> int:
        """Return how many connections are open. This takes about 10 us for each open file, so do not call it on the event loop."""
        try:
            return sum(1 for _ in connections_to_port(self._port)) if self._port else 0
        except OSError:  # the directory of descriptors is temporarily unreadable
            return 0

    async def run(self, port: int) -> None:
        """Keep slots free until cancelled."""
        self._port = port
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            # OSError: the directory of descriptors is temporarily unreadable
            with background_step(Work.CONNECTIONS, self._record_failure), contextlib.suppress(OSError):
                if (
                    open_files() > self._places * CROWDED_FRACTION
                ):  # cheap, and never less than the number of connections
                    await self.make_room()

    async def make_room(self) -> None:
        """Close silent connections while too many slots are in use."""
        found = await asyncio.to_thread(lambda: list(connections_to_port(self._port)))
        excess = len(found) - int(self._places * CROWDED_FRACTION)
        if excess <= 0:
            return
        busy = {peer_address(peer) for peer in self._callers()}
        silent = [one for one in found if one.silent_seconds >= SILENT_SECONDS_MIN and one.peer not in busy]
        silent.sort(key=lambda one: -one.silent_seconds)
        evicted = sum(_close(one) for one in silent[:excess])
        self.evicted_total += evicted
        if evicted and _PACE.is_due():
            log.warning("client_connections_evicted", count=evicted, limit=self._places)


def open_files() -> int:
    """Return how many files this process has open. Linux 6.2 and later count them, and elsewhere their directory is read."""
    counted = _DESCRIPTORS.stat().st_size if sys.platform == "linux" else 0
    return counted or len(os.listdir(_DESCRIPTORS))  # noqa: PTH208 -- names alone are ten times as fast


def connections_to_port(port: int) -> Iterator[Connection]:
    """Find this process's TCP connections to a local port."""
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208
        with _borrowed(int(name)) as sock, contextlib.suppress(OSError):
            if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6) and sock.getsockname()[1] == port:
                yield Connection(int(name), _peer(sock), _silent_seconds(sock))


def _close(connection: Connection) -> bool:
    """Shut a connection down, unless its descriptor now belongs to another one."""
    with _borrowed(connection.number) as sock, contextlib.suppress(OSError):
        if sock is not None and sock.family != socket.AF_UNIX and _peer(sock) == connection.peer:
            sock.shutdown(socket.SHUT_RDWR)
            return True
    return False


@contextlib.contextmanager
def _borrowed(number: int) -> Iterator[socket.socket | None]:
    """Yield a descriptor as a socket, if it is one. The descriptor stays open."""
    try:
        sock = socket.socket(fileno=number)
    except OSError:
        yield None  # not a socket, or closed since the directory was read
        return
    try:
        yield sock
    finally:
        sock.detach()


def _peer(sock: socket.socket) -> Address:
    """Return the other end. A listener for both families has IPv4 clients under their IPv6 names. Raises OSError for a listener."""
    name = sock.getpeername()
    return str(name[0]).removeprefix("::ffff:"), int(name[1])


def _silent_seconds(sock: socket.socket) -> float:
    if _TCP_INFO is None:  # this system has no such option, so nothing counts as silent
        return 0.0
    info = sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 64)
    return float(_LAST_DATA_RECEIVED.unpack_from(info, _LAST_DATA_RECEIVED_AT)[0]) / 1000
