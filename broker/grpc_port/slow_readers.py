"""Close the connection of a client that reads none of its answers, because gRPC cannot give up a call on the server.

The connection is found among the process's descriptors by the address of its other end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import stat
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import structlog
from raftmq.broker.base.log_throttle import LogThrottle

log = structlog.get_logger(__name__)

_PACE: Final = LogThrottle(10.0)
"""Limits the log, because clients determine how often this happens."""


def cut_off(loop: asyncio.AbstractEventLoop, peer: str) -> None:
    """Close a client's connection, given the other end in gRPC's notation. It does not wait."""
    address = peer_address(peer)
    if address is not None:
        if _PACE.is_due():
            log.warning("slow_reader_disconnected", peer=peer)
        loop.run_in_executor(None, close_connections_to, *address)


def peer_address(peer: str) -> tuple[str, int] | None:
    """Convert the other end of a connection from gRPC's notation (``ipv4:1.2.3.4:5``, ``ipv6:[::1]:5``) to a socket's."""
    family, _, rest = unquote(peer).partition(":")
    host, _, port = rest.rpartition(":")
    return (host.strip("[]"), int(port)) if family in ("ipv4", "ipv6") and port.isdigit() else None


def close_connections_to(host: str, port: int) -> int:
    """Shut down this process's TCP connections to an address. Return how many there were."""
    closed = 0
    for entry in Path("/dev/fd").iterdir():
        try:
            if not stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode):
                continue  # closing a duplicate of LMDB's lock file would end the process's locks on it
            number = os.dup(int(entry.name))  # a duplicate cannot become another file in the meantime
        except OSError:
            continue  # it was closed
        try:
            duplicate = socket.socket(fileno=number)
        except OSError:
            os.close(number)  # it is not a socket
            continue
        with duplicate, contextlib.suppress(OSError):
            name = duplicate.getpeername()
            # a listener for both families has IPv4 clients under their IPv6 names
            if len(name) >= 2 and (str(name[0]).removeprefix("::ffff:"), name[1]) == (host, port):
                duplicate.shutdown(socket.SHUT_RDWR)
                closed += 1
    return closed
