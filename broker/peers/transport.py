"""Connect nodes: four TCP channels to each peer (control, append, snapshot, requests), with frames.

This is a length-prefixed protocol over asyncio instead of gRPC (ADR 0004). The kernel's "connection refused" reaches the node, which
distinguishes a dead process from a slow one, and a frame costs a tenth. Sending never waits: a frame that does not fit into the outbox
is dropped, and the caller is told. A node trusts no frame before both sides have shown cluster id and identity.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog
from raftmq.broker.base.addresses import split_address
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.listening import listen
from raftmq.broker.base.supervisor import Work
from raftmq.broker.peers.codec import FrameError, FrameType, Parts, frame
from raftmq.broker.peers.link import Link
from raftmq.broker.peers.protocol import (
    STALE_DIRECTORY,
    Channel,
    FrameProtocol,
    Hello,
    PeerHandler,
    WireVersionError,
    common_wire_version,
    decode_hello,
)
from raftmq.broker.peers.requests import InboundRequests, RequestServer, unreachable
from raftmq.broker.peers.visits import Visit
from raftmq.sockets import tune
from raftmq.types import NO_NODE, NodeId

log = structlog.get_logger(__name__)

_REASON_CHARACTERS_MAX = 500
"""The longest refusal: it may quote the other side's description of itself, and must fit into its frame."""
_READ_BUFFER_BYTES = 256 * 1024
"""A read buffer doubles when a read filled it: up to this size for many small frames, and beyond it only as a large frame arrives, so
that a claimed length costs nothing. It keeps its size, because allocating and zeroing it again costs more than copying out of it."""
_BACKLOG = 1024
"""Connections that the kernel has accepted and the process has not. With too few, peers would have to repeat their requests in a flood."""
_SAID_AGAIN_SECONDS = 1.0
"""The least interval between two logs of refused frames, because their senders determine their number."""
_ACCEPT_TURNS = 4
"""Turns of asyncio's event loop between accepting a socket and its connection being made, refused and closed."""


class _Inbound(FrameProtocol):
    def __init__(self, server: PeerTransport) -> None:
        super().__init__()
        self._server = server
        self._node_id: NodeId | None = None
        self._timeout: asyncio.TimerHandle | None = None
        self._channel: Channel | None = None
        self._is_greeted = False
        """Whether HELLO has arrived. Answering it may take a write to disk."""
        self.hello: Hello | None = None
        """The node's description of itself. None before it arrived."""
        self.requests: InboundRequests | None = None
        """The requests of the other node. None on other channels."""
        self._reserved = 0
        self.heard_at = 0.0
        """Loop time of the last received bytes."""

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
        if self.requests is not None:
            self.requests.on_frame(frame_type, body)
            return
        if self._node_id is not None:
            self._server.handler.on_frame(self._node_id, frame_type, body)
            return
        if frame_type is not FrameType.HELLO:
            raise FrameError("the first frame must be HELLO")
        if self._is_greeted:
            raise FrameError("a peer must wait for WELCOME before it sends anything else")
        self._is_greeted = True
        hello = decode_hello(body)
        try:
            self.wire_version = self._server.wire_version_with(hello)
        except WireVersionError as error:
            self._refuse(str(error))
            return
        if hello.target_node_id == NO_NODE and hello.channel == Channel.REQUESTS:
            self._accept_visit(hello)
            return
        reason = self._refusal(hello)
        if reason is not None:
            self._refuse(reason)
            return
        remembered = self._server.handler.remember(hello)
        if remembered is None:
            self._accept(hello)
        else:
            remembered.add_done_callback(lambda done: self._on_remembered(hello, done))

    def _on_remembered(self, hello: Hello, done: asyncio.Future[object]) -> None:
        if done.cancelled() or done.exception() is not None or self._is_closed:
            return
        reason = self._refusal(hello)  # another connection may have been accepted in the meantime
        if reason is not None:
            self._refuse(reason)
        elif self._node_id is None:
            self._accept(hello)

    def process_of(self, uuid: str) -> bytes:
        """Return the mark that distinguishes the process of the node with this identity. Empty for another identity and before HELLO."""
        return self.hello.process if self.hello is not None and self.hello.uuid == uuid else b""

    def _refuse(self, reason: str) -> None:
        assert self.transport is not None
        self.transport.writelines(frame(FrameType.REFUSED, [reason[:_REASON_CHARACTERS_MAX].encode()]))
        self.close()

    def _accept(self, hello: Hello) -> None:
        assert self.transport is not None
        if self._timeout is not None:
            self._timeout.cancel()
        self._node_id = NodeId(hello.node_id)
        self._frame_bytes_max = self._server.limits.frame_bytes_max
        self._buffer_bytes_wanted = _READ_BUFFER_BYTES
        channel = self._channel = Channel(hello.channel)
        self.hello = hello
        if channel is Channel.REQUESTS:
            self.requests = InboundRequests(self._server.requests, self._node_id, self)
        self._server.promote(self, self._node_id, channel)
        self.transport.writelines(frame(FrameType.WELCOME, [self._server.own_hello(hello)]))

    def _accept_visit(self, hello: Hello) -> None:
        """Accept the connection of a node that does not know this one, and may belong to no cluster. It may ask for little.

        It still counts as unidentified, so it can be closed in favour of a newer one.
        """
        assert self.transport is not None
        if self._timeout is not None:
            self._timeout.cancel()
        self._timeout = self._server.loop.call_later(self._server.timing.visit_seconds, self.close)
        self._frame_bytes_max = self._server.limits.peer_visit_bytes_max
        self._channel = Channel.REQUESTS
        self.requests = InboundRequests(self._server.requests, NO_NODE, self)
        self.transport.writelines(frame(FrameType.WELCOME, [self._server.own_hello(hello)]))

    def write_response(self, body: Parts) -> None:
        """Send a RESPONSE frame. A connection that does not read its responses is closed."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size() > self._server.limits.peer_outbox_bytes_max:
            log.warning("peer_responses_unread", peer_id=self._node_id or NO_NODE)
            self.close()
            return
        parts = frame(FrameType.RESPONSE, body)
        self._server.sent_bytes[Channel.REQUESTS] += sum(map(len, parts))
        transport.writelines(parts)

    def _refusal(self, hello: Hello) -> str | None:
        if hello.channel not in tuple(Channel):
            return f"there is no channel {hello.channel}"
        if hello.address:
            try:
                split_address(hello.address)
            except ValueError as error:
                return f"your peer address {error}"
        refusal = self._server.handler.refusal(hello)
        return refusal or self._server.rivalry(NodeId(hello.node_id), hello.uuid, hello.process)

    def on_frame_error(self, error: FrameError) -> None:
        self._server.say_refused(error)

    def reserve(self, size: int) -> bool:
        if not self._server.reserve(size):
            return False
        self._reserved += size
        return True

    def shrink(self) -> int:
        spare = super().shrink()
        self._reserved -= spare
        return spare

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closed = True
        if self._timeout is not None:
            self._timeout.cancel()
        if self.requests is not None:
            self.requests.close()
        self._server.release(self._reserved)
        self._reserved = 0
        self._server.dismiss(self)


class PeerTransport:
    """All peer connections of a node."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        timing: Timing,
        uniform: Callable[[], float],
    ) -> None:
        """Take `uniform`, which returns a random number in [0, 1) that jitters reconnections."""
        self.loop = loop
        self.handler: PeerHandler
        self.limits = limits
        self.timing = timing
        self.uniform = uniform
        self.links_to_flush: list[Link] = []
        self._addresses: dict[NodeId, str] = {}
        """Addresses of peers according to `set_peers`."""
        self._links: dict[tuple[NodeId, Channel], Link] = {}
        self._handshakes: dict[_Inbound, None] = {}
        """Inbound connections that have not identified themselves, oldest first."""
        self._inbound: dict[tuple[NodeId, Channel], _Inbound] = {}
        """Identified inbound connections: the newest for each channel of a node."""
        self._read_buffer_bytes = 0
        self.sent_bytes = dict.fromkeys(Channel, 0)
        """Bytes passed to the connections since the start."""
        self.received_bytes = dict.fromkeys(Channel, 0)
        """Bytes received from identified peers since the start."""
        self.requests = RequestServer(loop, limits, self._record_failure)
        """Answers the requests of other nodes. Its `answerer` is set before `listen`."""
        self.evicted_total = 0
        """Inbound connections closed since the start because there were too many."""
        self._refused_frames_unsaid = 0
        self._refused_frame_said_at = -_SAID_AGAIN_SECONDS
        self._server: asyncio.Server | None = None
        self._rivals: dict[str, tuple[bytes, float]] = {}
        """By uuid: a later process that appeared while an earlier one is connected, and the time of its first appearance."""
        self._is_closed = False

    def attach(self, handler: PeerHandler) -> None:
        """Give everything that peers send to this handler. Call it once, before `listen` and `set_peers`."""
        self.handler = handler

    def _record_failure(self, work: Work, error: BaseException) -> None:
        self.handler.record_failure(work, error)

    def own_hello(self, hello: Hello) -> bytes:
        """Return the body of the WELCOME to another node's HELLO."""
        return msgspec.msgpack.encode(self.handler.hello(NodeId(hello.node_id), Channel(hello.channel)))

    def wire_version_with(self, hello: Hello) -> int:
        """Return the wire version of a connection with the sender of a HELLO. Raises `WireVersionError` if there is none."""
        return common_wire_version(self.handler.hello(NO_NODE, Channel.CONTROL), hello)

    async def listen(self, host: str, port: int) -> int:
        """Accept peers. Return the bound port."""
        self._server, port = await listen(self.loop, lambda: _Inbound(self), host, port, _BACKLOG)
        return port

    async def close(self) -> None:
        """Close every connection, even one that was accepted but is not made yet."""
        self.shut()
        for _ in range(_ACCEPT_TURNS):
            await asyncio.sleep(0)

    def shut(self) -> None:
        """Stop sending to and receiving from peers. After the return not one frame is sent."""
        self._is_closed = True
        self.set_peers({})
        if self._server is not None:
            self._server.close()
        for inbound in (*self._handshakes, *self._inbound.values()):
            inbound.close()

    @property
    def inbound_connections(self) -> int:
        """Return the number of connections that peers opened, identified or not."""
        return len(self._handshakes) + len(self._inbound)

    @property
    def handshakes(self) -> int:
        """Return the number of inbound connections that have not identified themselves."""
        return len(self._handshakes)

    @property
    def read_buffer_bytes(self) -> int:
        """Return the size of the read buffers of all inbound connections together."""
        return self._read_buffer_bytes

    def connections(self) -> dict[NodeId, bool]:
        """Return every peer to which this node keeps connections, and whether its control channel is up."""
        return {
            node_id: link.open_transport is not None
            for (node_id, channel), link in self._links.items()
            if channel is Channel.CONTROL
        }

    def refused_versions(self) -> dict[NodeId, str]:
        """Return the peers that speak no wire version of this node, with words about it."""
        return {
            node_id: str(link.refused)
            for (node_id, channel), link in self._links.items()
            if channel is Channel.CONTROL and isinstance(link.refused, WireVersionError)
        }

    def unsent_bytes_max(self) -> int:
        """Return the unsent bytes of the peer channel with the most."""
        return max((link.unsent_bytes for link in self._links.values()), default=0)

    def admit(self, inbound: _Inbound) -> None:
        """Count a new inbound connection. When there are too many, the oldest unidentified one is closed.

        A peer identifies itself within a round trip, so an old unidentified connection is none of a peer.
        """
        if self._is_closed:
            inbound.close()
            return
        if len(self._handshakes) >= self.limits.peer_handshakes_max:
            self._drop(next(iter(self._handshakes)))
        self._handshakes[inbound] = None
        assert inbound.transport is not None
        tune(inbound.transport.get_extra_info("socket"), self.timing.unacked_data_timeout_seconds)

    def rivalry(self, node_id: NodeId, uuid: str, process: bytes) -> str | None:
        """Return why a process of a node is refused while another one of the node is connected, or None if none is.

        A process that ended has lost its connections, at the latest when its host stops acknowledging. So either that has not
        been noticed yet, or both processes live. In that case the later one runs on a copy, and lacks the entries that the
        original continues to acknowledge.
        """
        others = [
            inbound
            for channel in Channel
            if (inbound := self._inbound.get((node_id, channel))) is not None
            and inbound.process_of(uuid) not in (b"", process)
        ]
        now = self.loop.time()
        rival, since = self._rivals.get(uuid, (b"", now))
        if not others:
            if rival == process:
                self._rivals.pop(uuid, None)
            return None
        if rival != process:
            self._rivals[uuid] = (process, now)
            since = now
        heard_at = max(inbound.heard_at for inbound in others)
        greeting = others[0].hello
        number = greeting.boot if greeting is not None else 0
        if heard_at - since > self.timing.rival_heard_seconds:
            return (
                f"{STALE_DIRECTORY}: broker {node_id} still runs as boot {number}, so this is a copy of its directory"
            )
        if now - max(since, heard_at) > self.timing.rival_silent_seconds:
            return None
        return f"broker {node_id} is still connected as boot {number}: this is its restart, or a copy of its directory"

    def promote(self, inbound: _Inbound, node_id: NodeId, channel: Channel) -> None:
        """Record that the connection is a peer's. It replaces an earlier one, because a node that reconnects has lost that one."""
        self._handshakes.pop(inbound, None)
        before = self._inbound.pop((node_id, channel), None)
        if before is not None:
            before.close()
            self._on_ended(node_id, channel)
        elif len(self._inbound) >= self.limits.peer_connections_max:
            self._drop(min(self._inbound.values(), key=lambda other: other.heard_at))
        self._inbound[node_id, channel] = inbound
        self._drop_other_processes(node_id, inbound)
        self._keep_links()

    def _drop_other_processes(self, node_id: NodeId, inbound: _Inbound) -> None:
        """Close the other channels of an earlier process of the node, whose messages no longer count."""
        assert inbound.hello is not None
        for channel in Channel:
            other = self._inbound.get((node_id, channel))
            if other is not None and other.process_of(inbound.hello.uuid) != inbound.hello.process:
                self._drop(other)

    def dismiss(self, inbound: _Inbound) -> None:
        """Forget an inbound connection that has ended."""
        self._handshakes.pop(inbound, None)
        for key in [key for key, other in self._inbound.items() if other is inbound]:
            del self._inbound[key]
            self._on_ended(*key)
            self._keep_links()
            if inbound.hello is not None and not any((key[0], channel) in self._inbound for channel in Channel):
                self._rivals.pop(inbound.hello.uuid, None)

    def _on_ended(self, node_id: NodeId, channel: Channel) -> None:
        if channel is Channel.SNAPSHOT:
            self.handler.on_snapshots_lost(node_id)

    def _drop(self, inbound: _Inbound) -> None:
        self.evicted_total += 1
        inbound.close()
        self.dismiss(inbound)

    def reserve(self, size: int) -> bool:
        """Return whether the read buffers of all connections together may grow by this size.

        If there is no room, those that are large and empty are made small: each peer that ever sent a large frame has one.
        """
        bytes_max = self.limits.peer_read_buffer_bytes_max
        if self._read_buffer_bytes + size > bytes_max:
            outbound = (link.protocol for link in self._links.values() if link.protocol is not None)
            self._read_buffer_bytes -= sum(one.shrink() for one in (*self._inbound.values(), *outbound))
        if self._read_buffer_bytes + size > bytes_max:
            return False
        self._read_buffer_bytes += size
        return True

    def release(self, size: int) -> None:
        """Release the size of freed read buffers."""
        self._read_buffer_bytes -= size

    def say_refused(self, error: FrameError) -> None:
        """Log that a peer sent something that is no frame, at most once a second."""
        now = self.loop.time()
        if now - self._refused_frame_said_at < _SAID_AGAIN_SECONDS:
            self._refused_frames_unsaid += 1
            return
        log.warning("peer_frame_refused", error_code="FRAME", reason=str(error), others=self._refused_frames_unsaid)
        self._refused_frame_said_at = now
        self._refused_frames_unsaid = 0

    def set_peers(self, addresses: dict[NodeId, str]) -> None:
        """Keep connections to these peers, and to connected peers at the addresses that they state. See `Transport`."""
        self._addresses = dict(addresses)
        self._keep_links()

    def _keep_links(self) -> None:
        addresses = {} if self._is_closed else self._addresses | self.stated_addresses()
        for (node_id, channel), link in list(self._links.items()):
            if addresses.get(node_id) != link.address:
                link.close()
                del self._links[node_id, channel]
                if link.is_told_up and not self._is_closed:
                    self.handler.on_peer_down(node_id)
        for node_id, address in addresses.items():
            for channel in Channel:
                if (node_id, channel) not in self._links:
                    self._links[node_id, channel] = Link(self, node_id, channel, address)

    def stated_addresses(self) -> dict[NodeId, str]:
        """Return the addresses that connected peers state."""
        said = {
            node_id: inbound.hello.address
            for (node_id, channel), inbound in self._inbound.items()
            if channel is Channel.CONTROL and inbound.hello is not None and inbound.hello.address
            and self.handler.is_current(inbound.hello)
        }  # fmt: skip
        for stranger in [node_id for node_id in said if node_id not in self._addresses][
            self.limits.peer_strangers_max :
        ]:
            del said[stranger]
        return said

    def send(self, node_id: NodeId, channel: Channel, frame_type: FrameType, body: Parts) -> bool:
        """Queue a frame. Return False if it was dropped. See `Transport.send`."""
        link = self._links.get((node_id, channel))
        return link is not None and link.carries(frame_type) and link.send(frame(frame_type, body))

    def flush(self) -> None:
        """Write the frames that were queued since the last call."""
        links, self.links_to_flush = self.links_to_flush, []
        for link in links:
            try:
                link.flush()
            except Exception as error:  # noqa: BLE001 -- a failure of one link must not block the others
                self.handler.record_failure(Work.PEERS, error)

    def is_connected(self, node_id: NodeId) -> bool:
        """Return whether the control channel to the peer is up."""
        link = self._links.get((node_id, Channel.CONTROL))
        return link is not None and link.open_transport is not None

    def process_of(self, node_id: NodeId) -> bytes | None:
        """Return `Hello.process` of the peer to which the control channel is up, or None while it is down."""
        link = self._links.get((node_id, Channel.CONTROL))
        return link.peer.process if link is not None and link.peer is not None and link.open_transport else None

    async def ask(self, node_id: NodeId, method: str, principal: str, body: bytes, deadline: float) -> bytes:
        """Send a request to a peer and return the response message. See `Transport.ask`."""
        link = self._links.get((node_id, Channel.REQUESTS))
        if link is None:
            raise unreachable(f"broker {node_id}")
        return await link.ask(method, principal, body, deadline)

    def visit(self, address: str, deadline: float) -> Visit:
        """Return a visit to the node at an address, which need not be a peer. Loop time `deadline` ends it."""
        return Visit(self, address, self.handler.hello(NO_NODE, Channel.REQUESTS), deadline)

    def hold_snapshots(self, node_id: NodeId, is_held: bool) -> None:
        """Pause or resume reading the snapshots that the peer sends. A new connection of the peer is read."""
        inbound = self._inbound.get((node_id, Channel.SNAPSHOT))
        if inbound is None or inbound.transport is None or inbound.transport.is_closing():
            return
        if is_held:
            inbound.transport.pause_reading()
        else:
            inbound.transport.resume_reading()

    async def drained(self, node_id: NodeId, channel: Channel) -> bool:
        """Wait until the channel can accept more. Return False if it is down."""
        link = self._links.get((node_id, channel))
        if link is None or link.protocol is None:
            return False
        self.flush()
        protocol = link.protocol
        await protocol.writable.wait()
        return link.protocol is protocol
