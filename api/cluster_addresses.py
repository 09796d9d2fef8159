"""Where the brokers of a `LocalCluster` listen: chosen ports, and those of its last run, remembered in its directory.

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
"""Distance of the ports of neighbours, of which the first three are used: 9400, 9410, 9420."""
ANY = "127.0.0.1:0"
DEFAULT_BOOTSTRAP = "127.0.0.1:9400"
"""The client address of a broker, or of the first of several on one machine, unless another one is chosen."""


class Addresses(NamedTuple):
    """``host:port`` of one broker's clients, peers and HTTP; empty for any free port."""

    client: str = ""
    peer: str = ""
    http: str = ""


def load_addresses(directory: Path) -> dict[int, Addresses]:
    """Broker id → the addresses of its last run; empty where no cluster ran."""
    file = directory / FILE_NAME
    if not file.exists():
        return {}
    return {int(broker_id): Addresses(*addresses) for broker_id, addresses in json.loads(file.read_text()).items()}


def save_addresses(directory: Path, addresses: Mapping[int, Addresses]) -> None:
    """Remember the addresses; whole or not at all."""
    temporary = directory / f"{FILE_NAME}.new"
    temporary.write_text(json.dumps(addresses, indent=1) + "\n")
    temporary.replace(directory / FILE_NAME)


def numbered(broker_id: int, first_port: int) -> Addresses:
    """The ports of a broker when broker 1's clients have `first_port` (0: any)."""
    if not first_port:
        return Addresses()
    port = first_port + (broker_id - 1) * PORTS_PER_BROKER
    return Addresses(*(f"127.0.0.1:{number}" for number in range(port, port + 3)))


class HeldPorts:
    """Ports of loopback that are a broker's, whether it runs or not: the kernel gives them to nobody who asks for any free one.

    To each a socket is bound that does not listen. Linux lets a broker that asks by number listen there all the same, since both
    sides allow reuse. Other systems do not: there the ports are found, and free again at once.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []

    def hold(self, addresses: Addresses) -> Addresses:
        """The same, with any free port in the place of one that is missing, or that somebody else has."""
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
        """Anybody may have them. Safe to call again."""
        while self._sockets:
            self._sockets.pop().close()
