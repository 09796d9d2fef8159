"""Listen where gRPC would for the same address, so that a client that reaches the client port reaches the other ports too.

An event loop alone does otherwise: a wildcard is one family's only, and each address of a name gets a free port of its own.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

from raftmq.broker.base.addresses import EVERY_ADDRESS


async def listen(
    loop: asyncio.AbstractEventLoop,
    factory: Callable[[], asyncio.BaseProtocol],
    host: str,
    port: int,
    backlog: int,
) -> tuple[asyncio.Server, int]:
    """Listen at every address of a host, on one port (0: any free one). Return the server and the port.

    Raises:
        OSError: An address cannot be bound.
    """
    if host in EVERY_ADDRESS and socket.has_dualstack_ipv6():
        everywhere = socket.create_server(("::", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
        server = await loop.create_server(factory, sock=everywhere, backlog=backlog)
    else:
        server = await loop.create_server(factory, host, port or await _shared_port(loop, host), backlog=backlog)
    return server, int(server.sockets[0].getsockname()[1])


async def _shared_port(loop: asyncio.AbstractEventLoop, host: str) -> int:
    """Return a free port of the first address of a host, or 0 if the host has no other."""
    found = await loop.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    family, kind, protocol, _, first = found[0]
    if all(address == first for *_, address in found):
        return 0
    with socket.socket(family, kind, protocol) as probe:
        probe.bind(first)
        return int(probe.getsockname()[1])
