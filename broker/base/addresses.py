"""Parse addresses."""

from __future__ import annotations

import ipaddress
from typing import Final

EVERY_ADDRESS: Final = frozenset({"0.0.0.0", "::", ""})
"""Hosts that mean all addresses of this machine, of both families."""


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port`` into host and port. Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{address!r} is not HOST:PORT")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if (":" in host) != is_bracketed:
        raise ValueError(f"{address!r} is not HOST:PORT (put an IPv6 address in brackets)")
    return host.strip("[]"), int(port)


def is_loopback(host: str) -> bool:
    """Return whether the address is reachable only from this machine."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
