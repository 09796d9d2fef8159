"""Define what both ends of a peer connection share: the channels, the first frame, and the division of the byte stream into frames.

This module must neither know which node connects to which, nor act on a frame. Invariant: a frame is passed on only if it is complete
and has the right checksum.
"""

from __future__ import annotations

import asyncio
from enum import IntEnum
from typing import Final, Protocol, cast

import msgspec
from crc32c import crc32c
from raftmq.broker.base.supervisor import Work
from raftmq.broker.peers.codec import (
    FRAME_HEADER,
    FRAME_TYPES,
    LATER_FRAMES,
    WIRE_VERSION_MIN,
    FrameError,
    FrameType,
    Parts,
)
from raftmq.fsm.node_lineage import Lineage
from raftmq.types import NodeId

_HELLO_BYTES_MAX = 4096
_HEADER_BYTES = FRAME_HEADER.size
_HANDSHAKE_BUFFER_BYTES = _HEADER_BYTES + _HELLO_BYTES_MAX


class Channel(IntEnum):
    """A class of traffic with a connection of its own, so that it never queues behind another. Values are on the wire.

    Frames travel from the node that opened the connection. Only on `REQUESTS` do others come back: the responses.
    """

    CONTROL = 0
    APPEND = 1
    SNAPSHOT = 2
    REQUESTS = 3


class Hello(msgspec.Struct, frozen=True):
    """The first frame of a connection, and (as WELCOME) the answer to it."""

    wire_version: int
    """The oldest wire version that the sender speaks. Programs without ranges speak only this one, and refuse any other number."""
    cluster_id: str
    node_id: int
    uuid: str
    target_node_id: int
    """The node that the sender wants to reach. 0: any node at the address, for a visit (`visits.py`)."""
    channel: int
    boot: int = 0
    address: str = ""
    """The address where the sender accepts connections of peers (``host:port``), or empty if it does not state one."""
    marks: bytes = b""
    """Marks of the latest boots of the sender's data directory, that of `boot` last (`fsm/node_lineage.py`)."""
    wire_version_max: int = 0
    """The newest wire version that the sender speaks. 0: only `wire_version`."""
    process_mark: bytes = b""
    """The mark of the boot in which the sender's process started. Empty: the last one of `marks`."""

    @property
    def lineage(self) -> Lineage:
        """Return the lineage of the sender's data directory, as the sender claims it."""
        return Lineage(self.boot, self.marks)

    @property
    def process(self) -> bytes:
        """Return the mark that distinguishes the sender's process from others on its directory or a copy. It outlives renewed marks."""
        return self.process_mark or self.lineage.current.mark

    @property
    def wire_versions(self) -> tuple[int, int]:
        """Return the oldest and the newest wire version that the sender speaks."""
        return self.wire_version, max(self.wire_version, self.wire_version_max)


STALE_DIRECTORY: Final = "stale data directory"
"""The beginning of a permanent refusal: the sender's directory is an older copy, or is used twice."""


NO_COMMON_VERSION: Final = "no common wire version"
"""The beginning of a refusal because no wire version is spoken by both sides."""


OTHER_CLUSTER: Final = "this broker belongs to cluster"
"""The beginning of a refusal by a node of another cluster."""


class OtherClusterError(FrameError):
    """Raised when a node of another cluster is at the peer's address."""


class ForeignProtocolError(FrameError):
    """Raised when the other side of a new connection does not speak this protocol, such as the port for clients."""


class WireVersionError(FrameError):
    """Raised when no wire version is spoken by both sides."""


class StaleDirectoryError(FrameError):
    """Raised when a peer knows a later boot of this node's directory, or another process that uses it."""


class PeerHandler(Protocol):
    """Receives the frames. It is called on the event loop, and may raise only `FrameError`."""

    def hello(self, target: NodeId, channel: Channel) -> Hello:
        """Return this node's description of itself."""
        ...

    def refusal(self, hello: Hello) -> str | None:
        """Return why an inbound connection is refused, or None to accept it."""
        ...

    def is_current(self, hello: Hello) -> bool:
        """Return whether the greeting of a connected node still counts: the node would not be refused now, unless it renewed its mark since."""
        ...

    def contradiction(self, hello: Hello) -> str | None:
        """Return why the sender's data directory contradicts its known lineage, or None if it does not."""
        ...

    def remember(self, hello: Hello) -> asyncio.Future[object] | None:
        """Store the sender's boot before anything else is exchanged. Return None if it is durable, else a future that tells when."""
        ...

    def on_other_cluster(self, address: str, said: str) -> None:
        """Handle that a node of another cluster answers at a peer's address."""
        ...

    def on_stale(self, node_id: NodeId, reason: str) -> None:
        """Handle that a peer permanently refuses this node's data directory."""
        ...

    def on_frame(self, node_id: NodeId, frame_type: FrameType, body: memoryview) -> None:
        """Process a checked frame. `body` is valid only during the call."""
        ...

    def on_peer_up(self, node_id: NodeId) -> None:
        """Handle that the control channel to the peer is open."""
        ...

    def on_peer_down(self, node_id: NodeId) -> None:
        """Handle that the control channel to the peer was lost."""
        ...

    def on_peer_refused(self, node_id: NodeId) -> None:
        """Handle that the peer's host answers but no process listens: its process is dead."""
        ...

    def record_failure(self, work: Work, error: BaseException) -> None:
        """Record that a connection failed because of a defect. It is opened again."""
        ...

    def on_snapshots_lost(self, node_id: NodeId) -> None:
        """Handle that the connection with a node's snapshots has ended or was replaced: unfinished snapshots stay incomplete."""
        ...


class Transport(Protocol):
    """The connections to peers as the engine needs them. The simulator has its own."""

    def set_peers(self, addresses: dict[NodeId, str]) -> None:
        """Keep connections to these peers at these addresses, and to connected peers at the addresses that they state.

        A node's own statement takes precedence unless its greeting is outdated. This node's metadata may be too old to
        contain it or its move, and every node that could send newer metadata may be waiting for answers.
        """
        ...

    def send(self, node_id: NodeId, channel: Channel, frame_type: FrameType, body: Parts) -> bool:
        """Queue a frame. Return False if it was dropped (no connection, outbox full, or a frame that the connection's wire version has not)."""
        ...

    def flush(self) -> None:
        """Write the frames that were queued since the last call."""
        ...

    def is_connected(self, node_id: NodeId) -> bool:
        """Return whether the control channel to the peer is up."""
        ...

    async def drained(self, node_id: NodeId, channel: Channel) -> bool:
        """Wait until the channel can accept more. Return False if it is down."""
        ...

    async def ask(self, node_id: NodeId, method: str, principal: str, body: bytes, deadline: float) -> bytes:
        """Send a request to a peer and return the response message. Cancelling the call cancels the request.

        Args:
            node_id: The peer.
            method: Name of the method.
            principal: Name of the client for which this node asks. Empty: for itself, or for a client without a name.
            body: The request message.
            deadline: Loop time. The peer gets the remaining time.

        Raises:
            RequestError: The peer's error. NO_LEADER if it cannot be reached (nothing was done). THROTTLED if too many requests wait
                for it (nothing was done). UNSUPPORTED_VERSION if it does not know the method. REQUEST_TIMED_OUT if there was no answer
                before the deadline or the end of the connection.
        """
        ...

    def hold_snapshots(self, node_id: NodeId, is_held: bool) -> None:
        """Pause or resume reading the snapshots that the peer sends. A new connection of the peer is read."""
        ...


class FrameProtocol(asyncio.BufferedProtocol):
    """Divides a byte stream into checked frames. After `close` it processes nothing more, not even received bytes."""

    def __init__(self) -> None:
        self._frame_bytes_max = _HELLO_BYTES_MAX
        self._buffer = bytearray(_HANDSHAKE_BUFFER_BYTES)
        self._buffer_bytes_wanted = _HANDSHAKE_BUFFER_BYTES
        """The size to which the buffer may grow without a frame that needs it."""
        self._filled = 0
        self._is_closed = False
        self.wire_version = WIRE_VERSION_MIN
        """The version of the connection: the oldest one until both sides have stated theirs."""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's has the same methods, but another class

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the free part of the buffer."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """Pass on the complete frames in the buffer."""
        self._filled += nbytes
        try:
            self._cut()
        except FrameError as error:
            self.on_frame_error(error)
            self.close()

    def _cut(self) -> None:
        at = 0
        filled = self._filled
        view = memoryview(self._buffer)
        needed = 0
        while filled - at >= _HEADER_BYTES and not self._is_closed:
            length, type_number, crc = FRAME_HEADER.unpack_from(view, at)
            if length > self._frame_bytes_max:
                raise FrameError(
                    _other_protocol(view[at:filled])
                    or f"a frame of {length} bytes, at most {self._frame_bytes_max} are allowed"
                )
            end = at + _HEADER_BYTES + length
            if end > filled:
                needed = _HEADER_BYTES + length
                break
            body = view[at + _HEADER_BYTES : end]
            if crc32c(body) != crc:
                raise FrameError("frame checksum mismatch")
            frame_type = FRAME_TYPES.get(type_number)
            if frame_type is None:
                raise FrameError(f"unknown frame type {type_number}")
            if LATER_FRAMES and not self.carries(frame_type):
                raise FrameError(f"{frame_type.name} is no frame of wire version {self.wire_version}")
            self.on_frame(frame_type, body)
            at = end
        if at == filled < len(view):
            self._filled = 0
        else:
            self._keep_rest(at, needed)

    def carries(self, frame_type: FrameType) -> bool:
        """Return whether the connection's wire version has this type of frame."""
        return LATER_FRAMES.get(frame_type, WIRE_VERSION_MIN) <= self.wire_version

    def _keep_rest(self, at: int, needed: int) -> None:
        """Move the incomplete frame to the front, into a larger buffer if the read filled this one."""
        filled, size = self._filled, len(self._buffer)
        rest = filled - at
        size_max = max(self._buffer_bytes_wanted, needed)
        if filled == size < size_max:
            size = min(2 * size, size_max)
            if not self.reserve(size - len(self._buffer)):
                raise FrameError("the read buffers of all peers together are full")
            grown = bytearray(size)
            grown[:rest] = memoryview(self._buffer)[at:filled]
            self._buffer = grown
        elif at:
            self._buffer[:rest] = memoryview(self._buffer)[at:filled]
        self._filled = rest

    def shrink(self) -> int:
        """Give back what a large frame needed, if the buffer is empty. Return the bytes that were given back.

        Not during `buffer_updated` of this connection.
        """
        spare = len(self._buffer) - self._buffer_bytes_wanted
        if self._filled or spare <= 0:
            return 0
        self._buffer = bytearray(self._buffer_bytes_wanted)
        return spare

    def on_frame(self, frame_type: FrameType, body: memoryview) -> None:
        """Process a frame with the right checksum. `body` is valid only during the call. Raises FrameError to end the connection."""
        raise NotImplementedError

    def on_frame_error(self, error: FrameError) -> None:
        """Handle bytes that were no frame, or a frame that was refused. The connection is closed afterwards."""
        raise NotImplementedError

    def reserve(self, size: int) -> bool:
        """Return whether the buffer may grow by this size."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection. Data that it sent is no longer processed."""
        self._is_closed = True
        if self.transport is not None:
            self.transport.close()


def _other_protocol(data: memoryview) -> str:
    """Return a text that names another protocol by its first bytes, or an empty text."""
    if bytes(data[:5]) == b"PRI *":
        return "a call over gRPC: clients connect to the port of `listen`, 9400 by default"
    if bytes(data[:4]) in (b"GET ", b"POST", b"HTTP"):
        return "HTTP: metrics and health are at the port of `http_listen`, 9402 by default"
    return ""


def common_wire_version(mine: Hello, others: Hello) -> int:
    """Return the highest wire version that both sides speak.

    Raises:
        WireVersionError: There is none. The text names both ranges, and is sent to the other side.
    """
    version = min(mine.wire_versions[1], others.wire_versions[1])
    if version < max(mine.wire_versions[0], others.wire_versions[0]):
        raise WireVersionError(
            f"{NO_COMMON_VERSION}: {_speaker(mine)}, and {_speaker(others)}; upgrade the one with the lower numbers, "
            "through a version between the two if one step is not enough"
        )
    return version


def _speaker(hello: Hello) -> str:
    oldest, newest = hello.wire_versions
    who = f"broker {hello.node_id}" if hello.node_id else "a broker without an id"
    return f"{who} speaks {oldest}" if oldest == newest else f"{who} speaks {oldest} to {newest}"


def decode_hello(body: memoryview) -> Hello:
    """Decode a connection's first frame. Raises FrameError for anything else."""
    try:
        return msgspec.msgpack.decode(body, type=Hello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # malformed bytes may raise any of them
        raise FrameError(f"malformed HELLO: {error}") from None
