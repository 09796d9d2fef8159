"""Set the options of TCP connections, for clients and brokers alike."""

from __future__ import annotations

import socket


def tune(sock: socket.socket | None, unacked_seconds: float) -> None:
    """Send small frames immediately, and give up a connection whose other end acknowledges nothing for this long."""
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(unacked_seconds * 1000))
    if hasattr(socket, "TCP_KEEPIDLE"):  # a side that only listens sends nothing that could stay unacknowledged
        seconds = max(1, round(unacked_seconds))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
