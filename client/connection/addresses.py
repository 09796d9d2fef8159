"""Parse the addresses of brokers. Must stay light: Spark reads its options in a new process for every batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from raftmq.errors import InvalidArgumentError


def parse_addresses(bootstrap_servers: str | Sequence[str]) -> tuple[str, ...]:
    """Parse ``"a:1,b:2"`` or a sequence of ``host:port`` into addresses. Raises `InvalidArgumentError`."""
    parts = bootstrap_servers.split(",") if isinstance(bootstrap_servers, str) else list(bootstrap_servers)
    for part in parts:
        if not isinstance(part, str):
            raise InvalidArgumentError(f"bootstrap_servers: {part!r} is not 'host:port'")
    addresses = tuple(part.strip() for part in parts if part.strip())
    if not addresses:
        raise InvalidArgumentError("bootstrap_servers is empty: use host:port[,host:port...]")
    for address in addresses:
        if not _ADDRESS.fullmatch(address) or not 0 < int(address.rpartition(":")[2]) < 65536:
            raise InvalidArgumentError(f"bootstrap_servers: {address!r} is not host:port (an IPv6 host in brackets)")
    return addresses


_ADDRESS: Final = re.compile(r"(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):\d{1,5}")
"""A name, an IPv4 address or an IPv6 address in brackets, with a port. No ``http://`` and no second port."""
