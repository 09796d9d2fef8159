"""Keep one outbound channel to one peer open: connect, introduce this node, and reconnect when the connection ended.

Sending never waits: a frame that does not fit into the outbox is dropped, and the caller is told. This module must not know the
meaning of frames.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
import structlog
from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.supervisor import Work
from raftmq.broker.peers.codec import FrameError, FrameType, Parts, frame
from raftmq.broker.peers.protocol import (
    OTHER_CLUSTER,
    STALE_DIRECTORY,
    Channel,
    FrameProtocol,
    Hello,
    OtherClusterError,
    PeerHandler,
    StaleDirectoryError,
    decode_hello,
)
from raftmq.sockets import tune
from raftmq.types import NodeId

log = structlog.get_logger(__name__)

_WRITE_BUFFER_BYTES = 2 * 1024 * 1024
"""Unsent bytes of a connection above which `drained` waits."""
NOT_FORMED_REASON: Final = "this broker belongs to no cluster yet"
"""A refusal that is no fault: the peer still waits for the answer that makes it a member."""
_NO_WAY: Final = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH}
"""Failures because this machine does not support the address's family. They say nothing about the peer."""


class LinkOwner(Protocol):
    """The transport as its links see it."""

    loop: asyncio.AbstractEventLoop
    handler: PeerHandler
    limits: Limits
    timing: Timing
    links_to_flush: list[Link]
    sent_bytes: dict[Channel, int]

    def uniform(self) -> float:
        """Return a random number in [0, 1)."""
        ...


class _Outbound(FrameProtocol):
    def __init__(self, link: Link) -> None:
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
            self.welcomed.set_result(decode_hello(body))
        else:
            reason = bytes(body).decode(errors="replace") if frame_type is FrameType.REFUSED else "no WELCOME"
            kind = FrameError
            if reason.startswith(STALE_DIRECTORY):
                kind = StaleDirectoryError
            elif reason.startswith(OTHER_CLUSTER):
                kind = OtherClusterError
            self.welcomed.set_exception(kind(f"the peer refused the connection: {reason}"))

    def on_frame_error(self, error: FrameError) -> None:
        log.warning("peer_frame_refused", peer_id=self._link.node_id, error_code="FRAME", reason=str(error))

    def reserve(self, size: int) -> bool:
        return False  # the answer to a HELLO always fits

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


class Link:
    """One outbound channel to one peer, kept open by a task."""

    def __init__(self, owner: LinkOwner, node_id: NodeId, channel: Channel, address: str) -> None:
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
        """Close the connection and stop connecting."""
        self._task.cancel()
        if self.protocol is not None:
            self.protocol.close()
            self.protocol = None

    @property
    def open_transport(self) -> asyncio.Transport | None:
        """Return the connection, unless it is down or closing: uvloop raises when a closing one is written to."""
        transport = self.protocol.transport if self.protocol is not None else None
        return None if transport is None or transport.is_closing() else transport

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
            try:
                # not `wait_for`: in Python 3.11 it swallows a cancellation that comes with the answer, so a closed link continued
                async with asyncio.timeout(self._owner.timing.connect_timeout_seconds):
                    protocol = await self._connect()
            except ConnectionRefusedError:
                if self.channel is Channel.CONTROL:
                    self._tell(self._owner.handler.on_peer_refused)
            except FrameError as error:
                # it repeats until an operator acts, on all three channels for the same reason, so it is logged once
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
                refusal = ""
                await self._hold(protocol)
                if self.loop.time() - opened_at > self._owner.timing.reconnect_max_seconds:
                    delay = self._owner.timing.reconnect_min_seconds
                    continue  # immediately: a refusal now is the evidence that the process is dead
            await asyncio.sleep(delay * (0.75 + 0.5 * self._owner.uniform()))
            delay = min(2 * delay, self._owner.timing.reconnect_max_seconds)

    async def _hold(self, protocol: _Outbound) -> None:
        """Use the connection until it is lost."""
        self.protocol = protocol
        if self.channel is Channel.CONTROL:
            self._tell(self._owner.handler.on_peer_up)
        await protocol.closed
        self.protocol = None
        self.pending, self.pending_bytes = [], 0
        if self.channel is Channel.CONTROL:
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

    async def _connect(self) -> _Outbound:
        host, _, port = self.address.rpartition(":")
        transport, protocol = await self._open(host.strip("[]"), int(port))
        try:
            tune(transport.get_extra_info("socket"), self._owner.timing.unacked_data_timeout_seconds)
            transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES)
            hello = self._owner.handler.hello(self.node_id, self.channel)
            transport.writelines(frame(FrameType.HELLO, [msgspec.msgpack.encode(hello)]))
            welcome = await protocol.welcomed
            self._check(welcome, hello)
            remembered = self._owner.handler.remember(welcome)
            if remembered is not None:
                await remembered
        except BaseException:
            transport.abort()
            raise
        return protocol

    async def _open(self, host: str, port: int) -> tuple[asyncio.Transport, _Outbound]:
        """Connect to the first of the host's addresses that answers.

        The addresses are tried here, because the event loop reports the failures of several addresses as one without a number.
        It would be lost that no process listens at any address of "localhost".
        """
        failures: list[OSError] = []
        for _, _, _, _, address in await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            try:
                return await self.loop.create_connection(lambda: _Outbound(self), str(address[0]), port)
            except OSError as error:
                failures.append(error)
        raise verdict(failures)

    def _check(self, welcome: Hello, hello: Hello) -> None:
        if welcome.cluster_id != hello.cluster_id:
            raise OtherClusterError(f"{self.address} is broker {welcome.node_id} of cluster {welcome.cluster_id}")
        if welcome.node_id != self.node_id:
            raise FrameError(f"{self.address} is broker {welcome.node_id} of cluster {welcome.cluster_id}")
        stale = self._owner.handler.contradiction(welcome)
        if stale is not None:
            raise FrameError(f"{self.address} runs on a {STALE_DIRECTORY} of broker {welcome.node_id}: {stale}")


def verdict(failures: list[OSError]) -> OSError:
    """Combine the failures at all addresses of a host: it is a refusal if every address that can be reached refused."""
    telling = [error for error in failures if error.errno not in _NO_WAY]
    others = [error for error in telling if not isinstance(error, ConnectionRefusedError)]
    return (others or telling or failures)[0]
