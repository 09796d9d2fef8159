"""Connections between nodes: three one-way TCP channels to each peer (control, append, snapshot), framed.

A length-prefixed protocol of our own over asyncio rather than gRPC (ADR 0004): the kernel's «connection refused» reaches
us, and that is what tells a dead process from a slow one; and a frame costs a tenth. Sending never waits: what does not
fit the outbox is dropped and said so. Nothing is believed before both sides have shown cluster id and identity.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from enum import IntEnum
from typing import Final, Protocol, cast

import msgspec
import structlog
from crc32c import crc32c
from raftmq.broker.limits import Limits, Timing
from raftmq.broker.peer_codec import FRAME_HEADER, WIRE_VERSION, FrameError, FrameType, Parts, frame
from raftmq.types import NodeId

log = structlog.get_logger(__name__)

_HELLO_BYTES_MAX = 4096
_REASON_CHARACTERS_MAX = 500
"""Of a refusal: it may quote what the other side said of itself, and must fit into the frame that carries it."""
_HANDSHAKE_BUFFER_BYTES = FRAME_HEADER.size + _HELLO_BYTES_MAX
_READ_BUFFER_BYTES = 256 * 1024
"""A read buffer doubles when a read filled it: up to this for many small frames, and beyond it for a large one as that one
comes, so that a claim costs nothing. It stays as large as it became: allocating and zeroing it anew cost more than the copy
out of it."""
_BACKLOG = 1024
"""Connections that the kernel has taken and we have not: a peer must not wait for the kernel to ask it again in a flood."""
NOT_FORMED_REASON: Final = "this node belongs to no cluster yet"
"""A refusal that is no fault: the peer still waits for the answer that makes it a member."""
_NO_WAY: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH}
"""Failures of an address whose family this machine does not speak: they say nothing of the peer."""
_SAID_AGAIN_SECONDS = 1.0
"""Refused frames are logged so often: whoever sends garbage chooses how much of it, and must not fill our disk."""


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


class PeerHandler(Protocol):
    """Who gets the frames. Called on the loop; must not raise but `FrameError`."""

    def hello(self, target: NodeId, channel: Channel) -> Hello:
        """What this node says of itself."""
        ...

    def refusal(self, hello: Hello) -> str | None:
        """Why an inbound connection is not accepted; None to accept it."""
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

    def on_snapshots_lost(self, node_id: NodeId) -> None:
        """The connection that a node's snapshots came on has ended, or is replaced: what is unfinished stays so."""
        ...


class Transport(Protocol):
    """What the engine needs; the simulator has its own."""

    def set_peers(self, addresses: dict[NodeId, str]) -> None:
        """Keep connections to exactly these peers, at these addresses."""
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


class _FrameProtocol(asyncio.BufferedProtocol):
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
        self.transport = cast("asyncio.Transport", transport)  # uvloop's is one in all but the class

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
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
            try:
                frame_type = FrameType(type_number)
            except ValueError:
                raise FrameError(f"unknown frame type {type_number}") from None
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
        raise NotImplementedError

    def on_frame_error(self, error: FrameError) -> None:
        raise NotImplementedError

    def reserve(self, size: int) -> bool:
        """Whether the buffer may grow by so much."""
        raise NotImplementedError

    def close(self) -> None:
        self._is_closed = True
        if self.transport is not None:
            self.transport.close()


class _Inbound(_FrameProtocol):
    def __init__(self, server: PeerTransport) -> None:
        super().__init__()
        self._server = server
        self._node_id: NodeId | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._channel: Channel | None = None
        self._reserved = 0
        self.heard_at = 0.0
        """Loop time of the last bytes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._server.admit(self)
        self._timeout = self._server.loop.call_later(self._server.timing.handshake_timeout_seconds, self.close)

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = self._server.loop.time()
        if self._channel is not None:
            self._server.received_bytes[self._channel] += nbytes
        super().buffer_updated(nbytes)

    def on_frame(self, frame_type: FrameType, body: memoryview) -> None:
        if self._node_id is not None:
            self._server.handler.on_frame(self._node_id, frame_type, body)
            return
        if frame_type is not FrameType.HELLO:
            raise FrameError("the first frame must be HELLO")
        hello = _decode_hello(body)
        assert self.transport is not None
        reason = self._refusal(hello)
        if reason is not None:
            refusal = reason[:_REASON_CHARACTERS_MAX].encode()
            self.transport.writelines(frame(FrameType.REFUSED, [refusal]))
            self.close()
            return
        if self._timeout is not None:
            self._timeout.cancel()
        self._node_id = NodeId(hello.node_id)
        self._frame_bytes_max = self._server.limits.frame_bytes_max
        self._buffer_bytes_wanted = _READ_BUFFER_BYTES
        channel = self._channel = Channel(hello.channel)
        self._server.promote(self, self._node_id, channel)
        answer = self._server.handler.hello(self._node_id, channel)
        self.transport.writelines(frame(FrameType.WELCOME, [msgspec.msgpack.encode(answer)]))

    def _refusal(self, hello: Hello) -> str | None:
        if hello.wire_version != WIRE_VERSION:
            return f"wire version {hello.wire_version} is not supported, only {WIRE_VERSION}"
        if hello.channel not in tuple(Channel):
            return f"there is no channel {hello.channel}"
        return self._server.handler.refusal(hello)

    def on_frame_error(self, error: FrameError) -> None:
        self._server.say_refused(error)

    def reserve(self, size: int) -> bool:
        if not self._server.reserve(size):
            return False
        self._reserved += size
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        if self._timeout is not None:
            self._timeout.cancel()
        self._server.release(self._reserved)
        self._reserved = 0
        self._server.dismiss(self)


class _Outbound(_FrameProtocol):
    def __init__(self, link: _Link) -> None:
        super().__init__()
        self._link = link
        self.welcomed: asyncio.Future[Hello] = link.loop.create_future()
        self.closed: asyncio.Future[None] = link.loop.create_future()
        self.writable = asyncio.Event()
        self.writable.set()

    def on_frame(self, frame_type: FrameType, body: memoryview) -> None:
        if self.welcomed.done():
            return
        if frame_type is FrameType.WELCOME:
            self.welcomed.set_result(_decode_hello(body))
        else:
            reason = bytes(body).decode(errors="replace") if frame_type is FrameType.REFUSED else "no WELCOME"
            self.welcomed.set_exception(FrameError(f"the peer refused the connection: {reason}"))

    def on_frame_error(self, error: FrameError) -> None:
        log.warning("peer_frame_refused", peer_id=self._link.node_id, error_code="FRAME", reason=str(error))

    def reserve(self, size: int) -> bool:
        return False  # an answer to a HELLO fits

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable.set()
        if not self.welcomed.done():
            self.welcomed.set_exception(ConnectionResetError("closed during the handshake"))
        if not self.closed.done():
            self.closed.set_result(None)


class _Link:
    """One outbound channel to one peer, kept open by a task."""

    def __init__(self, owner: PeerTransport, node_id: NodeId, channel: Channel, address: str) -> None:
        self._owner = owner
        self.loop = owner.loop
        self.node_id = node_id
        self.channel = channel
        self.address = address
        self.protocol: _Outbound | None = None
        self.pending: Parts = []
        self.pending_bytes = 0
        self._task = owner.loop.create_task(self._run())

    def close(self) -> None:
        self._task.cancel()
        if self.protocol is not None:
            self.protocol.close()
            self.protocol = None

    @property
    def open_transport(self) -> asyncio.Transport | None:
        """The connection, unless it is down or going down: uvloop raises when such a one is written to."""
        transport = self.protocol.transport if self.protocol is not None else None
        return None if transport is None or transport.is_closing() else transport

    def send(self, parts: Parts) -> bool:
        transport = self.open_transport
        if transport is None:
            return False
        size = sum(map(len, parts))
        unsent = transport.get_write_buffer_size() + self.pending_bytes
        if unsent + size > self._owner.limits.peer_outbox_bytes_max:
            return False
        if not self.pending:
            self._owner.links_to_flush.append(self)
        self.pending.extend(parts)
        self.pending_bytes += size
        return True

    def flush(self) -> None:
        parts, size = self.pending, self.pending_bytes
        self.pending, self.pending_bytes = [], 0
        transport = self.open_transport
        if transport is not None:
            self._owner.sent_bytes[self.channel] += size
            transport.writelines(parts)

    @property
    def unsent_bytes(self) -> int:
        """Waiting here and in the connection."""
        transport = self.open_transport
        return self.pending_bytes + (transport.get_write_buffer_size() if transport is not None else 0)

    async def _run(self) -> None:
        delay = self._owner.timing.reconnect_min_seconds
        refusal = ""
        while True:
            try:
                protocol = await asyncio.wait_for(self._connect(), self._owner.timing.connect_timeout_seconds)
            except ConnectionRefusedError:
                if self.channel is Channel.CONTROL:
                    self._owner.handler.on_peer_refused(self.node_id)
            except FrameError as error:
                # again and again until somebody acts, and on each channel: said once
                if str(error) != refusal and self.channel is Channel.CONTROL:
                    refusal = str(error)
                    self._say_refused(refusal)
            except (
                OSError,
                TimeoutError,
                ValueError,
            ) as error:  # ValueError: an address that is none, or not in DNS's letters
                log.debug("peer_connect_failed", peer_id=self.node_id, channel=self.channel.name, reason=str(error))
            else:
                opened_at = self.loop.time()
                refusal = ""
                self.protocol = protocol
                if self.channel is Channel.CONTROL:
                    self._owner.handler.on_peer_up(self.node_id)
                await protocol.closed
                self.protocol = None
                self.pending, self.pending_bytes = [], 0
                if self.channel is Channel.CONTROL:
                    self._owner.handler.on_peer_down(self.node_id)
                if self.loop.time() - opened_at > self._owner.timing.reconnect_max_seconds:
                    delay = self._owner.timing.reconnect_min_seconds
                    continue  # at once: a refusal now is the evidence that the process is gone
            await asyncio.sleep(delay * (0.75 + 0.5 * self._owner.uniform()))
            delay = min(2 * delay, self._owner.timing.reconnect_max_seconds)

    def _say_refused(self, reason: str) -> None:
        if self.channel is not Channel.CONTROL:
            return  # all three are refused for the same reason
        if reason.endswith(NOT_FORMED_REASON):  # while a cluster forms its members learn of it one after the other
            log.info("peer_not_in_a_cluster", peer_id=self.node_id, address=self.address, reason=reason)
        else:
            log.warning("peer_refused_connection", peer_id=self.node_id, address=self.address, reason=reason)

    async def _connect(self) -> _Outbound:
        host, _, port = self.address.rpartition(":")
        transport, protocol = await self._open(host.strip("[]"), int(port))
        try:
            _tune(transport.get_extra_info("socket"), self._owner.timing)
            transport.set_write_buffer_limits(high=2 * 1024 * 1024)
            hello = self._owner.handler.hello(self.node_id, self.channel)
            transport.writelines(frame(FrameType.HELLO, [msgspec.msgpack.encode(hello)]))
            welcome = await protocol.welcomed
            self._check(welcome, hello)
        except BaseException:
            transport.abort()
            raise
        return protocol

    async def _open(self, host: str, port: int) -> tuple[asyncio.Transport, _Outbound]:
        """Connect to the first of the host's addresses that answers.

        One after the other here and not in the loop, which tells the failures of several addresses as one without a number:
        that nobody listens at any address of «localhost» would be lost.
        """
        failures: list[OSError] = []
        for _, _, _, _, address in await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                return await self.loop.create_connection(lambda: _Outbound(self), str(address[0]), port)
            except OSError as error:
                failures.append(error)
        raise _verdict(failures)

    def _check(self, welcome: Hello, hello: Hello) -> None:
        if welcome.node_id != self.node_id or welcome.cluster_id != hello.cluster_id:
            raise FrameError(f"{self.address} is node {welcome.node_id} of cluster {welcome.cluster_id}")


class PeerTransport:
    """All peer connections of a node."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handler: PeerHandler,
        limits: Limits,
        timing: Timing,
        uniform: Callable[[], float],
    ) -> None:
        """`uniform` gives a number in [0, 1): reconnections are jittered."""
        self.loop = loop
        self.handler = handler
        self.limits = limits
        self.timing = timing
        self.uniform = uniform
        self.links_to_flush: list[_Link] = []
        self._links: dict[tuple[NodeId, Channel], _Link] = {}
        self._handshakes: dict[_Inbound, None] = {}
        """Inbound connections that have not said who they are, in the order they came."""
        self._inbound: dict[tuple[NodeId, Channel], _Inbound] = {}
        """Those that have: one for each channel of a node, the newest."""
        self._read_buffer_bytes = 0
        self.sent_bytes = dict.fromkeys(Channel, 0)
        """Handed to the connections, ever."""
        self.received_bytes = dict.fromkeys(Channel, 0)
        """Received from greeted peers, ever."""
        self._refused_frames_unsaid = 0
        self._refused_frame_said_at = -_SAID_AGAIN_SECONDS
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Accept peers; returns the bound port."""
        self._server = await self.loop.create_server(lambda: _Inbound(self), host, port, backlog=_BACKLOG)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Close every connection."""
        self.set_peers({})
        if self._server is not None:
            self._server.close()
        for inbound in (*self._handshakes, *self._inbound.values()):
            inbound.close()
        await asyncio.sleep(0)

    @property
    def inbound_connections(self) -> int:
        """Connections that others opened, greeted or not."""
        return len(self._handshakes) + len(self._inbound)

    @property
    def handshakes(self) -> int:
        """Inbound connections that have not said who they are."""
        return len(self._handshakes)

    @property
    def read_buffer_bytes(self) -> int:
        """Of all inbound connections together."""
        return self._read_buffer_bytes

    def connections(self) -> dict[NodeId, bool]:
        """Every peer this node keeps connections to, and whether the control channel is up."""
        return {
            node_id: link.open_transport is not None
            for (node_id, channel), link in self._links.items()
            if channel is Channel.CONTROL
        }

    def unsent_bytes_max(self) -> int:
        """What waits to be taken by the peer channel with the most."""
        return max((link.unsent_bytes for link in self._links.values()), default=0)

    def admit(self, inbound: _Inbound) -> None:
        """Count a new inbound connection. When there are too many, the one that has kept silent longest makes room:
        a peer says who it is within a round trip, whoever does not is none.
        """
        if len(self._handshakes) >= self.limits.peer_handshakes_max:
            self._drop(next(iter(self._handshakes)))
        self._handshakes[inbound] = None
        assert inbound.transport is not None
        _tune(inbound.transport.get_extra_info("socket"), self.timing)

    def promote(self, inbound: _Inbound, node_id: NodeId, channel: Channel) -> None:
        """The connection is a peer's. It takes the place of one before it: a node that comes again has lost that one."""
        self._handshakes.pop(inbound, None)
        before = self._inbound.pop((node_id, channel), None)
        if before is not None:
            before.close()
            self._on_ended(node_id, channel)
        elif len(self._inbound) >= self.limits.peer_connections_max:
            self._drop(min(self._inbound.values(), key=lambda other: other.heard_at))
        self._inbound[node_id, channel] = inbound

    def dismiss(self, inbound: _Inbound) -> None:
        """An inbound connection is gone."""
        self._handshakes.pop(inbound, None)
        for key in [key for key, other in self._inbound.items() if other is inbound]:
            del self._inbound[key]
            self._on_ended(*key)

    def _on_ended(self, node_id: NodeId, channel: Channel) -> None:
        if channel is Channel.SNAPSHOT:
            self.handler.on_snapshots_lost(node_id)

    def _drop(self, inbound: _Inbound) -> None:
        inbound.close()
        self.dismiss(inbound)

    def reserve(self, size: int) -> bool:
        """Whether read buffers may grow by so much, all connections together."""
        if self._read_buffer_bytes + size > self.limits.peer_read_buffer_bytes_max:
            return False
        self._read_buffer_bytes += size
        return True

    def release(self, size: int) -> None:
        """Read buffers are gone."""
        self._read_buffer_bytes -= size

    def say_refused(self, error: FrameError) -> None:
        """Log that a peer sent what is no frame, at most once a second."""
        now = self.loop.time()
        if now - self._refused_frame_said_at < _SAID_AGAIN_SECONDS:
            self._refused_frames_unsaid += 1
            return
        log.warning("peer_frame_refused", error_code="FRAME", reason=str(error), others=self._refused_frames_unsaid)
        self._refused_frame_said_at = now
        self._refused_frames_unsaid = 0

    def set_peers(self, addresses: dict[NodeId, str]) -> None:
        """See `Transport`."""
        for (node_id, channel), link in list(self._links.items()):
            if addresses.get(node_id) != link.address:
                link.close()
                del self._links[node_id, channel]
        for node_id, address in addresses.items():
            for channel in Channel:
                if (node_id, channel) not in self._links:
                    self._links[node_id, channel] = _Link(self, node_id, channel, address)

    def send(self, node_id: NodeId, channel: Channel, frame_type: FrameType, body: Parts) -> bool:
        """See `Transport`."""
        link = self._links.get((node_id, channel))
        return link is not None and link.send(frame(frame_type, body))

    def flush(self) -> None:
        """See `Transport`."""
        links, self.links_to_flush = self.links_to_flush, []
        for link in links:
            link.flush()

    def is_connected(self, node_id: NodeId) -> bool:
        """See `Transport`."""
        link = self._links.get((node_id, Channel.CONTROL))
        return link is not None and link.open_transport is not None

    async def drained(self, node_id: NodeId, channel: Channel) -> bool:
        """See `Transport`."""
        link = self._links.get((node_id, channel))
        if link is None or link.protocol is None:
            return False
        self.flush()
        protocol = link.protocol
        await protocol.writable.wait()
        return link.protocol is protocol


def _verdict(failures: list[OSError]) -> OSError:
    """What the failures at all addresses of a host mean: a refusal when it is one wherever there is a way at all."""
    telling = [error for error in failures if error.errno not in _NO_WAY]
    others = [error for error in telling if not isinstance(error, ConnectionRefusedError)]
    return (others or telling or failures)[0]


def _decode_hello(body: memoryview) -> Hello:
    try:
        return msgspec.msgpack.decode(body, type=Hello)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # it raises all of them for bad bytes
        raise FrameError(f"malformed HELLO: {error}") from None


def _tune(sock: socket.socket | None, timing: Timing) -> None:
    if sock is None:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timing.unacked_data_timeout_seconds * 1000))
