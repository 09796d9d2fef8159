"""What both ends of a peer connection share: its channels, its first frame, and how a byte stream is cut into frames.

Must not know who connects to whom, nor act on a frame. Invariant: a frame is handed on only whole and with the right checksum.
"""

from __future__ import annotations

import asyncio
import socket
from enum import IntEnum
from typing import Final, Protocol, cast

import msgspec
from crc32c import crc32c
from raftmq.broker.base.limits import Timing
from raftmq.broker.base.supervisor import Work
from raftmq.broker.peers.codec import FRAME_HEADER, FRAME_TYPES, FrameError, FrameType, Parts
from raftmq.fsm.node_lineage import Lineage
from raftmq.types import NodeId

_HELLO_BYTES_MAX = 4096
_HANDSHAKE_BUFFER_BYTES = FRAME_HEADER.size + _HELLO_BYTES_MAX


class Channel(IntEnum):
    """A class of traffic with a connection of its own, so that it never queues behind another. Values are on the wire."""

    CONTROL = 0
    APPEND = 1
    SNAPSHOT = 2


class Hello(msgspec.Struct, frozen=True):
    """First frame of a connection, and (as WELCOME) its answer."""

    wire_version: int
    cluster_id: str
    node_id: int
    uuid: str
    target_node_id: int
    channel: int
    boot: int = 0
    address: str = ""
    """Where the sender takes connections of peers (``host:port``); empty: it does not say."""
    marks: bytes = b""
    """Of the latest boots of the sender's data directory, `boot`'s last (`fsm/node_lineage.py`)."""

    @property
    def lineage(self) -> Lineage:
        """The lineage of the sender's data directory, as the sender claims."""
        return Lineage(self.boot, self.marks)


STALE_DIRECTORY: Final = "stale data directory"
"""How a refusal begins that is for good: the sender's directory is an older copy, or one that runs twice."""


OTHER_CLUSTER: Final = "this broker belongs to cluster"
"""How a refusal begins that a node of another cluster gives."""


class OtherClusterError(FrameError):
    """A node of another cluster is at the peer's address."""


class StaleDirectoryError(FrameError):
    """A peer knows a later boot of this node's directory, or another process of it."""


class PeerHandler(Protocol):
    """Who gets the frames. Called on the loop; must not raise but `FrameError`."""

    def hello(self, target: NodeId, channel: Channel) -> Hello:
        """What this node says of itself."""
        ...

    def refusal(self, hello: Hello) -> str | None:
        """Why an inbound connection is not accepted; None to accept it."""
        ...

    def contradiction(self, hello: Hello) -> str | None:
        """Why the sender's data directory is not the one that is known of it; None when it may be."""
        ...

    def remember(self, hello: Hello) -> asyncio.Future[object] | None:
        """Remember the sender's boot before anything else is exchanged. None when it is durable, else when it will be."""
        ...

    def on_other_cluster(self, address: str, said: str) -> None:
        """A node of another cluster answers at a peer's address."""
        ...

    def on_stale(self, node_id: NodeId, reason: str) -> None:
        """A peer refuses this node's data directory for good."""
        ...

    def on_frame(self, node_id: NodeId, frame_type: FrameType, body: memoryview) -> None:
        """A checked frame; `body` is valid during the call only."""
        ...

    def on_peer_up(self, node_id: NodeId) -> None:
        """The control channel to the peer is open."""
        ...

    def on_peer_down(self, node_id: NodeId) -> None:
        """The control channel to the peer was lost."""
        ...

    def on_peer_refused(self, node_id: NodeId) -> None:
        """The peer's host answers and nobody listens: its process is gone."""
        ...

    def record_failure(self, work: Work, error: BaseException) -> None:
        """A connection failed by a defect; it is opened again."""
        ...

    def on_snapshots_lost(self, node_id: NodeId) -> None:
        """The connection that a node's snapshots came on has ended, or is replaced: what is unfinished stays so."""
        ...


class Transport(Protocol):
    """What the engine needs; the simulator has its own."""

    def set_peers(self, addresses: dict[NodeId, str]) -> None:
        """Keep connections to these peers, at these addresses, and to whoever is connected to us, at the address it says.

        What a node says of itself counts more, unless it would be refused by now: our metadata may be too old to know of it,
        or of its move, and all that would bring us newer metadata may be waiting for our answers.
        """
        ...

    def send(self, node_id: NodeId, channel: Channel, frame_type: FrameType, body: Parts) -> bool:
        """Queue a frame; False when it was dropped (no connection, outbox full)."""
        ...

    def flush(self) -> None:
        """Write what was queued since the last call."""
        ...

    def is_connected(self, node_id: NodeId) -> bool:
        """Whether the control channel to the peer is up."""
        ...

    async def drained(self, node_id: NodeId, channel: Channel) -> bool:
        """Wait until the channel can take more; False when it is down."""
        ...

    def hold_snapshots(self, node_id: NodeId, is_held: bool) -> None:
        """Stop reading the snapshots that the peer sends, or go on. A new connection of the peer is read."""
        ...


class FrameProtocol(asyncio.BufferedProtocol):
    """Cuts a byte stream into checked frames. After `close` it looks at nothing any more, not even at what is here already."""

    def __init__(self) -> None:
        self._frame_bytes_max = _HELLO_BYTES_MAX
        self._buffer = bytearray(_HANDSHAKE_BUFFER_BYTES)
        self._buffer_bytes_wanted = _HANDSHAKE_BUFFER_BYTES
        """What the buffer may grow to without a frame that needs it."""
        self._filled = 0
        self._is_closed = False
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.BufferedProtocol`."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but the class

    def get_buffer(self, sizehint: int) -> memoryview:
        """See `asyncio.BufferedProtocol`."""
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        """See `asyncio.BufferedProtocol`."""
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
        while filled - at >= FRAME_HEADER.size and not self._is_closed:
            length, type_number, crc = FRAME_HEADER.unpack_from(view, at)
            if length > self._frame_bytes_max:
                raise FrameError(f"a frame of {length} bytes, at most {self._frame_bytes_max} are allowed")
            end = at + FRAME_HEADER.size + length
            if end > filled:
                needed = FRAME_HEADER.size + length
                break
            body = view[at + FRAME_HEADER.size : end]
            if crc32c(body) != crc:
                raise FrameError("frame checksum mismatch")
            frame_type = FRAME_TYPES.get(type_number)
            if frame_type is None:
                raise FrameError(f"unknown frame type {type_number}")
            self.on_frame(frame_type, body)
            at = end
        self._keep_rest(at, needed)

    def _keep_rest(self, at: int, needed: int) -> None:
        """Move what is not a whole frame yet to the front, into a larger buffer when the read filled this one."""
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

    def on_frame(self, frame_type: FrameType, body: memoryview) -> None:
        """A frame with the right checksum; `body` is valid during the call only. Raises FrameError to end the connection."""
        raise NotImplementedError

    def on_frame_error(self, error: FrameError) -> None:
        """What came was no frame, or was refused: the connection is closed after it."""
        raise NotImplementedError

    def reserve(self, size: int) -> bool:
        """Whether the buffer may grow by so much."""
        raise NotImplementedError

    def close(self) -> None:
        """End the connection; what it sent is not looked at any more."""
        self._is_closed = True
        if self.transport is not None:
            self.transport.close()


def decode_hello(body: memoryview) -> Hello:
    """A connection's first frame. Raises FrameError for anything else."""
    try:
        return msgspec.msgpack.decode(body, type=Hello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # it raises all of them for bad bytes
        raise FrameError(f"malformed HELLO: {error}") from None


def tune(sock: socket.socket | None, timing: Timing) -> None:
    """Send small frames at once, and give up a connection whose other end acknowledges nothing."""
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timing.unacked_data_timeout_seconds * 1000))
    if hasattr(socket, "TCP_KEEPIDLE"):  # whoever only listens sends nothing that could stay unacknowledged
        seconds = max(1, round(timing.unacked_data_timeout_seconds))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, seconds)
