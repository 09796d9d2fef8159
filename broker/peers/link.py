"""Keep one outbound channel to one peer open: connect, introduce this node, and reconnect when the connection ended.

Sending never waits: a frame that does not fit into the outbox is dropped, and the caller is told. This module must not know the
meaning of frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog
from raftmq.broker.base.supervisor import Work
from raftmq.broker.peers.codec import LATER_FRAMES, FrameError, FrameType, Parts
from raftmq.broker.peers.outbound import Outbound, OutboundOwner, connect
from raftmq.broker.peers.protocol import (
    STALE_DIRECTORY,
    Channel,
    Hello,
    OtherClusterError,
    PeerHandler,
    StaleDirectoryError,
)
from raftmq.broker.peers.requests import unreachable
from raftmq.types import NodeId

log = structlog.get_logger(__name__)

NOT_FORMED_REASON: Final = "this broker belongs to no cluster yet"
"""A refusal that is no fault: the peer still waits for the answer that makes it a member."""


class LinkOwner(OutboundOwner, Protocol):
    """The transport as its links see it."""

    handler: PeerHandler
    links_to_flush: list[Link]

    def uniform(self) -> float:
        """Return a random number in [0, 1)."""
        ...


class Link:
    """One outbound channel to one peer, kept open by a task."""

    def __init__(self, owner: LinkOwner, node_id: NodeId, channel: Channel, address: str) -> None:
        self._owner = owner
        self.loop = owner.loop
        self.node_id = node_id
        self.channel = channel
        self.address = address
        self.protocol: Outbound | None = None
        self.peer: Hello | None = None
        """The description that the peer gave of itself when it was last connected."""
        self.refused: FrameError | None = None
        """Why the last attempt to connect was refused by either side. None if it was not."""
        self.is_told_up = False
        """Whether the handler was told that the control channel is open, and not yet that it was lost."""
        self.pending: Parts = []
        self.pending_bytes = 0
        self._tried = asyncio.Event()
        """Whether the latest attempt to connect has ended. Not set while the first attempt after the start or after a loss is under way."""
        self._task = owner.loop.create_task(self._run())

    def close(self) -> None:
        """Close the connection and stop connecting."""
        self._task.cancel()
        self._tried.set()
        if self.protocol is not None:
            self.protocol.close()
            self.protocol = None

    @property
    def open_transport(self) -> asyncio.Transport | None:
        """Return the connection, unless it is down or closing."""
        return self.protocol.open_transport if self.protocol is not None else None

    async def ask(self, method: str, principal: str, body: bytes, deadline: float) -> bytes:
        """Send a request on this channel and return the response. See `Transport.ask`.

        While the first attempt to connect is under way, the request waits for its result. Afterwards a node that cannot be reached is
        reported immediately.
        """
        try:
            async with asyncio.timeout_at(deadline):
                await self._tried.wait()
        except TimeoutError:
            raise unreachable(f"broker {self.node_id}") from None
        protocol = self.protocol
        if protocol is None or protocol.requests is None:
            raise unreachable(f"broker {self.node_id}")
        return await protocol.requests.ask(method, principal, body, deadline)

    def carries(self, frame_type: FrameType) -> bool:
        """Return whether the connection is open and its wire version has this type of frame."""
        return self.protocol is not None and (not LATER_FRAMES or self.protocol.carries(frame_type))

    def send(self, parts: Parts) -> bool:
        """Queue a frame. Return False if it was dropped."""
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
        """Write the frames that were queued since the last call."""
        parts, size = self.pending, self.pending_bytes
        self.pending, self.pending_bytes = [], 0
        transport = self.open_transport
        if transport is not None:
            self._owner.sent_bytes[self.channel] += size
            transport.writelines(parts)

    @property
    def unsent_bytes(self) -> int:
        """Return the bytes that wait here and in the connection."""
        transport = self.open_transport
        return self.pending_bytes + (transport.get_write_buffer_size() if transport is not None else 0)

    async def _run(self) -> None:
        delay = self._owner.timing.reconnect_min_seconds
        refusal = ""
        while True:
            refused = None
            try:
                # not `wait_for`: in Python 3.11 it swallows a cancellation that comes with the answer, so a closed link continued
                async with asyncio.timeout(self._owner.timing.connect_timeout_seconds):
                    protocol = await self._connect()
            except ConnectionRefusedError:
                if self.channel is Channel.CONTROL:
                    self._tell(self._owner.handler.on_peer_refused)
            except FrameError as error:
                refused = error
                # it repeats until an operator acts, on all four channels for the same reason, so it is logged once
                if str(error) != refusal and self.channel is Channel.CONTROL:
                    refusal = str(error)
                    self._say_refused(refusal)
                if isinstance(error, StaleDirectoryError):
                    self._owner.handler.on_stale(self.node_id, str(error))
                if isinstance(error, OtherClusterError):
                    self._owner.handler.on_other_cluster(self.address, str(error))
            except (OSError, ValueError) as error:  # ValueError: a malformed address, or a name that DNS cannot have
                log.debug("peer_connect_failed", peer_id=self.node_id, channel=self.channel.name, reason=str(error))
            except Exception as error:  # noqa: BLE001 -- the task's root: if it ended, the peer would be given up
                self._owner.handler.record_failure(Work.PEERS, error)
            else:
                opened_at = self.loop.time()
                refusal, self.refused = "", None
                await self._hold(protocol)
                if self.loop.time() - opened_at > self._owner.timing.reconnect_max_seconds:
                    delay = self._owner.timing.reconnect_min_seconds
                    continue  # immediately: a refusal now is the evidence that the process is dead
            self.refused = refused
            self._tried.set()
            await asyncio.sleep(delay * (0.75 + 0.5 * self._owner.uniform()))
            delay = min(2 * delay, self._owner.timing.reconnect_max_seconds)

    async def _hold(self, protocol: Outbound) -> None:
        """Use the connection until it is lost."""
        self.protocol = protocol
        self._tried.set()
        if self.channel is Channel.CONTROL:
            self.is_told_up = True
            self._tell(self._owner.handler.on_peer_up)
        await protocol.closed
        self.protocol = None
        self._tried.clear()
        self.pending, self.pending_bytes = [], 0
        if self.channel is Channel.CONTROL:
            self.is_told_up = False
            self._tell(self._owner.handler.on_peer_down)

    def _tell(self, event: Callable[[NodeId], None]) -> None:
        """Report a peer's connection or disconnection. An error of the handler must not end the link."""
        try:
            event(self.node_id)
        except Exception as error:  # noqa: BLE001 -- see above
            self._owner.handler.record_failure(Work.PEERS, error)

    def _say_refused(self, reason: str) -> None:
        if reason.endswith(NOT_FORMED_REASON):  # while a cluster forms its members learn of it one after another
            log.info("peer_not_in_a_cluster", peer_id=self.node_id, address=self.address, reason=reason)
        else:
            log.warning("peer_refused_connection", peer_id=self.node_id, address=self.address, reason=reason)

    async def _connect(self) -> Outbound:
        hello = self._owner.handler.hello(self.node_id, self.channel)
        try:
            protocol, welcome = await connect(self._owner, self.address, f"broker {self.node_id}", hello)
        except StaleDirectoryError as error:
            # The peer may have learned of a mark that was renewed after this greeting was sent. Only the present mark can be stale.
            if self._owner.handler.hello(self.node_id, self.channel).lineage == hello.lineage:
                raise
            raise ConnectionResetError("the mark of this directory was renewed in the meantime") from error
        try:
            self._check(welcome, hello)
            remembered = self._owner.handler.remember(welcome)
            if remembered is not None:
                await remembered
        except BaseException:
            protocol.close()
            raise
        self.peer = welcome
        return protocol

    def _check(self, welcome: Hello, hello: Hello) -> None:
        if welcome.cluster_id != hello.cluster_id:
            raise OtherClusterError(f"{self.address} is broker {welcome.node_id} of cluster {welcome.cluster_id}")
        if welcome.node_id != self.node_id:
            raise FrameError(f"{self.address} is broker {welcome.node_id} of cluster {welcome.cluster_id}")
        stale = self._owner.handler.contradiction(welcome)
        if stale is not None:
            raise FrameError(f"{self.address} runs on a {STALE_DIRECTORY} of broker {welcome.node_id}: {stale}")
