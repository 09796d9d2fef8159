"""Where the brokers of a `LocalCluster` listen: chosen ports, and those of its last run, remembered in its directory.

Imports nothing of RaftMQ.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

FILE_NAME = "cluster.json"
PORTS_PER_BROKER = 10
"""Distance of the ports of neighbours, of which the first three are used: 9400, 9410, 9420."""


class Addresses(NamedTuple):
    """``host:port`` of one broker's clients, peers and HTTP; empty for any free port."""

    client: str = ""
    peer: str = ""
    http: str = ""


def load_addresses(directory: Path) -> dict[int, Addresses]:
    """Node id → the addresses of its last run; empty where no cluster ran."""
    file = directory / FILE_NAME
    if not file.exists():
        return {}
    return {int(node_id): Addresses(*addresses) for node_id, addresses in json.loads(file.read_text()).items()}


def save_addresses(directory: Path, addresses: Mapping[int, Addresses]) -> None:
    """Remember the addresses; whole or not at all."""
    temporary = directory / f"{FILE_NAME}.new"
    temporary.write_text(json.dumps(addresses, indent=1) + "\n")
    temporary.replace(directory / FILE_NAME)


def numbered(node_id: int, first_port: int) -> Addresses:
    """The ports of a broker when broker 1's clients have `first_port` (0: any)."""
    if not first_port:
        return Addresses()
    port = first_port + (node_id - 1) * PORTS_PER_BROKER
    return Addresses(*(f"127.0.0.1:{number}" for number in range(port, port + 3)))


def without_taken(addresses: Addresses) -> Addresses:
    """The same, with any free port in the place of one that somebody else listens to."""
    return Addresses(*(address if address and is_free(address) else "" for address in addresses))


def is_free(address: str) -> bool:
    """Whether a broker could listen there now."""
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, int(port)))
        except (OSError, OverflowError):
            return False
    return True
