"""The addresses of the brokers of a `LocalCluster`: chosen ports, and those of its last run, remembered in its directory.

Imports nothing of RaftMQ.
"""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FILE_NAME = "cluster.json"
PORTS_PER_BROKER = 10
"""Distance between the first ports of two brokers (9400, 9410, 9420). The first three ports of each range are used."""
ANY = "127.0.0.1:0"
DEFAULT_BOOTSTRAP = "127.0.0.1:9400"
"""The default client address of a broker, or of the first of several on one machine."""


class Addresses(NamedTuple):
    """``host:port`` of one broker's clients, peers and HTTP. Empty: any free port."""

    client: str = ""
    peer: str = ""
    http: str = ""


def load_addresses(directory: Path) -> dict[int, Addresses]:
    """Return the addresses of the last run by broker id, empty if no cluster ran there."""
    file = directory / FILE_NAME
    if not file.exists():
        return {}
    return {int(broker_id): Addresses(*addresses) for broker_id, addresses in json.loads(file.read_text()).items()}


def save_addresses(directory: Path, addresses: Mapping[int, Addresses]) -> None:
    """Store the addresses atomically."""
    temporary = directory / f"{FILE_NAME}.new"
    temporary.write_text(json.dumps(addresses, indent=1) + "\n")
    temporary.replace(directory / FILE_NAME)


def numbered(broker_id: int, first_port: int) -> Addresses:
    """Return the ports of a broker when broker 1's clients have `first_port` (0: any ports)."""
    if not first_port:
        return Addresses()
    port = first_port + (broker_id - 1) * PORTS_PER_BROKER
    return Addresses(*(f"127.0.0.1:{number}" for number in range(port, port + 3)))


class HeldPorts:
    """Ports of loopback that belong to a broker, whether it runs or not: the kernel does not assign them to programs that ask for a free port.

    A socket is bound to each port without listening. Linux still lets a broker listen on such a port by number, because both sides allow
    reuse. Other systems do not: there the ports are chosen and released immediately.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def hold(self, addresses: Addresses) -> Addresses:
        """Hold the addresses. Return them with a free port in place of each missing one or one in use."""
        return Addresses(*map(self._hold, addresses))

    def _hold(self, address: str) -> str:
        host, _, port = (address or ANY).rpartition(":")
        held = socket.socket()
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            held.bind((host, int(port)))
        except (OSError, OverflowError):
            held.close()
            if not address:
                raise
            return self._hold("")
        address = f"{host}:{held.getsockname()[1]}"
        if sys.platform == "linux":
            self._sockets.append(held)
        else:
            held.close()
        return address

    def close(self) -> None:
        """Release the ports. Safe to call again."""
        while self._sockets:
            self._sockets.pop().close()
