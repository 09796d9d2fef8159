"""Open a connection to another node: try its addresses, send HELLO, and process the answers.

Only a connection for requests is read after WELCOME: their responses come back on it. This module must not know why a connection is opened.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Final, Protocol

import msgspec
import structlog
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.peers.codec import FrameError, FrameType, Parts, frame
from raftmq.broker.peers.protocol import (
    NO_COMMON_VERSION,
    OTHER_CLUSTER,
    STALE_DIRECTORY,
    Channel,
    ForeignProtocolError,
    FrameProtocol,
    Hello,
    OtherClusterError,
    StaleDirectoryError,
    WireVersionError,
    common_wire_version,
    decode_hello,
)
from raftmq.broker.peers.requests import OutstandingRequests, response_frame_bytes_max
from raftmq.sockets import tune

log = structlog.get_logger(__name__)

_WRITE_BUFFER_BYTES = 2 * 1024 * 1024
"""Unsent bytes of a connection above which `drained` waits."""
_READ_BUFFER_BYTES = 64 * 1024
"""The size of the read buffer for small responses."""
_NO_WAY: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH}
"""Failures because this machine does not support the address's family. They say nothing about the peer."""


class OutboundOwner(Protocol):
    """The transport as its outbound connections see it."""

    loop: asyncio.AbstractEventLoop
    limits: Limits
    timing: Timing
    sent_bytes: dict[Channel, int]
    received_bytes: dict[Channel, int]

    def reserve(self, size: int) -> bool:
        """Return whether the read buffers of all connections together may grow by this size."""
        ...

    def release(self, size: int) -> None:
        """Give back the read buffer of a connection that has ended."""
        ...


class Outbound(FrameProtocol):
    """One connection that this node opened."""

    def __init__(self, owner: OutboundOwner, channel: Channel, peer: str) -> None:
        """Take the name of the `peer` for messages."""
        super().__init__()
        self._owner = owner
        self._channel = channel
        self._peer = peer
        self._reserved = 0
        self.welcomed: asyncio.Future[Hello] = owner.loop.create_future()
        self.closed: asyncio.Future[None] = owner.loop.create_future()
        self.writable = asyncio.Event()
        self.writable.set()
        self.requests: OutstandingRequests | None = None
        """The requests sent on the connection. None before WELCOME, and on other channels."""

    @property
    def open_transport(self) -> asyncio.Transport | None:
        """Return the connection, unless it is closing: uvloop raises when a closing one is written to."""
        return None if self.transport is None or self.transport.is_closing() else self.transport

    def buffer_updated(self, nbytes: int) -> None:
        """Count the received bytes and pass on complete frames."""
        if self.requests is not None:
            self._owner.received_bytes[self._channel] += nbytes
        super().buffer_updated(nbytes)

    def on_frame(self, frame_type: FrameType, body: memoryview) -> None:
        """Process the answer to HELLO, then responses."""
        if self.welcomed.done():
            if self.requests is not None:
                self.requests.on_frame(frame_type, body)
            return
        if frame_type is FrameType.WELCOME:
            hello = decode_hello(body)
            if self._channel is Channel.REQUESTS:
                self._frame_bytes_max = response_frame_bytes_max(self._owner.limits)
                self._buffer_bytes_wanted = _READ_BUFFER_BYTES
                self.requests = OutstandingRequests(self._owner.loop, self._owner.limits, self._peer, self.send_request)
            self.welcomed.set_result(hello)
        elif frame_type is FrameType.REFUSED:
            reason = bytes(body).decode(errors="replace")
            kind = FrameError
            if reason.startswith(STALE_DIRECTORY):
                kind = StaleDirectoryError
            elif reason.startswith(OTHER_CLUSTER):
                kind = OtherClusterError
            elif reason.startswith(NO_COMMON_VERSION):
                kind = WireVersionError
            self.welcomed.set_exception(kind(f"the peer refused the connection: {reason}"))
        else:
            self.welcomed.set_exception(FrameError("the peer refused the connection: no WELCOME"))

    def send_request(self, frame_type: FrameType, body: Parts) -> bool:
        """Send a frame immediately. Return False if it was dropped."""
        transport = self.open_transport
        parts = frame(frame_type, body)
        size = sum(map(len, parts))
        if transport is None:
            return False
        if transport.get_write_buffer_size() + size > self._owner.limits.peer_outbox_bytes_max:
            return False
        self._owner.sent_bytes[self._channel] += size
        transport.writelines(parts)
        return True

    def on_frame_error(self, error: FrameError) -> None:
        """Fail the handshake, or log the frame. The connection is closed afterwards."""
        if not self.welcomed.done():
            self.welcomed.set_exception(
                ForeignProtocolError(f"no peer port is there, but a port with another protocol ({error})")
            )
            return
        log.warning("peer_frame_refused", error_code="FRAME", reason=f"from {self._peer}: {error}")

    def reserve(self, size: int) -> bool:
        """Return whether the buffer may grow by this size, for a response."""
        if self.requests is None or not self._owner.reserve(size):
            return False  # the answer to a HELLO always fits
        self._reserved += size
        return True

    def shrink(self) -> int:
        """Give back the buffer of a large response. See `FrameProtocol`."""
        spare = (
            super().shrink() if self._reserved else 0
        )  # nothing is reserved any more after the end of the connection
        self._reserved -= spare
        return spare

    def pause_writing(self) -> None:
        """Let `drained` wait."""
        self.writable.clear()

    def resume_writing(self) -> None:
        """Let `drained` continue."""
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the handshake, or the requests that wait for answers."""
        self.writable.set()
        self._owner.release(self._reserved)
        self._reserved = 0
        if self.requests is not None:
            self.requests.end()
        if not self.welcomed.done():
            self.welcomed.set_exception(ConnectionResetError("closed during the handshake"))
        if not self.closed.done():
            self.closed.set_result(None)


async def connect(owner: OutboundOwner, address: str, peer: str, hello: Hello) -> tuple[Outbound, Hello]:
    """Open a connection, introduce this node, and return the connection with the other node's WELCOME.

    Raises:
        OSError: No connection, or it was closed during the handshake.
        ValueError: A malformed address.
        FrameError: The other node refuses the connection. `ForeignProtocolError` if it speaks another protocol, `WireVersionError` if it
            speaks none of this node's versions.
    """
    host, _, port = address.rpartition(":")
    channel = Channel(hello.channel)
    transport, protocol = await _open(owner, host.strip("[]"), int(port), channel, peer)
    try:
        tune(transport.get_extra_info("socket"), owner.timing.unacked_data_timeout_seconds)
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
        transport.writelines(frame(FrameType.HELLO, [msgspec.msgpack.encode(hello)]))
        welcome = await protocol.welcomed
        protocol.wire_version = common_wire_version(hello, welcome)
        return protocol, welcome
    except BaseException:
        transport.abort()
        raise


async def _open(
    owner: OutboundOwner, host: str, port: int, channel: Channel, peer: str
) -> tuple[asyncio.Transport, Outbound]:
    """Connect to the first of the host's addresses that answers.

    The addresses are tried here, because the event loop reports the failures of several addresses as one without a number.
    It would be lost that no process listens at any address of "localhost".
    """
    failures: list[OSError] = []
    for _, _, _, _, address in await owner.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        try:
            return await owner.loop.create_connection(lambda: Outbound(owner, channel, peer), str(address[0]), port)
        except OSError as error:
            failures.append(error)
    raise verdict(failures)


def verdict(failures: list[OSError]) -> OSError:
    """Combine the failures at all addresses of a host: it is a refusal if every address that can be reached refused."""
    telling = [error for error in failures if error.errno not in _NO_WAY]
    others = [error for error in telling if not isinstance(error, ConnectionRefusedError)]
    return (others or telling or failures)[0]
