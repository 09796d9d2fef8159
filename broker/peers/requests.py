"""Ask other nodes, and answer their requests: correlation, deadlines, bounds, and the end of a connection.

A connection carries the requests of the node that opened it, and the responses to them. This module must not know the meaning of a request.

Invariants: every request gets one response, or its connection ends. A request whose deadline has passed is never begun. When a connection
ends, the requests that it carried are cancelled where they are answered, and have an unknown outcome where they were asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog
from google.protobuf.message import DecodeError
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError, expired
from raftmq.broker.base.supervisor import Work
from raftmq.broker.peers.codec import FrameError, FrameType, Parts
from raftmq.broker.peers.request_frames import (
    RESPONSE_HEAD,
    RequestFrame,
    ResponseStatus,
    decode_cancel,
    decode_request,
    decode_response,
    encode_cancel,
    encode_request,
    encode_response,
)
from raftmq.proto import queue_pb2 as pb
from raftmq.types import NodeId

log = structlog.get_logger(__name__)

THROTTLED_RETRY_MS = 100


class UnknownMethodError(Exception):
    """Raised when this version does not know a request's method."""


class Answerer(Protocol):
    """Knows the methods that other nodes may ask for."""

    async def answer(self, asker: NodeId, request: RequestFrame, deadline: float) -> bytes:
        """Return the response message.

        Args:
            asker: The node that asks, as its handshake showed. `NO_NODE` for a visitor, which belongs to no cluster yet or does not
                know which node it asks.
            request: The request.
            deadline: Loop time at which the answer is cancelled.

        Raises:
            RequestError: The request is refused or failed.
            UnknownMethodError: This version has no such method.
        """
        ...


def unreachable(peer: str) -> RequestError:
    """Return the error of a request that was not sent, because there is no connection to the node."""
    return RequestError(pb.NO_LEADER, f"{peer} cannot be reached; nothing was done", retry_after_ms=200)


# ---------------------------------------------------------------------------------------------------------- asking


class OutstandingRequests:
    """The requests that this node has sent on one connection, and that are not answered."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, limits: Limits, peer: str, send: Callable[[FrameType, Parts], bool]
    ) -> None:
        """Take the name of the `peer` for messages, and `send`, which sends a frame now. It returns False if the frame was dropped."""
        self._loop = loop
        self._limits = limits
        self._peer = peer
        self._send = send
        self._last_id = 0
        self._waiting: dict[int, asyncio.Future[bytes]] = {}
        self._bytes = 0
        self._is_ended = False

    def __len__(self) -> int:
        return len(self._waiting)

    async def ask(self, method: str, principal: str, body: bytes, deadline: float) -> bytes:
        """Send a request and return the response message. If the caller is cancelled, the other node is told.

        Raises:
            RequestError: The other node's error. THROTTLED if too many requests wait. INVALID_ARGUMENT if no frame holds this one.
                UNSUPPORTED_VERSION if the other node does not know the method. REQUEST_TIMED_OUT if there was no answer before the
                deadline or the end of the connection: its outcome is unknown.
        """
        remaining_ms = int((deadline - self._loop.time()) * 1000)
        if remaining_ms <= 0:
            raise expired()
        limits = self._limits
        if len(body) > limits.peer_request_bytes_max:
            raise RequestError(
                pb.INVALID_ARGUMENT,
                f"a request between brokers may have {limits.peer_request_bytes_max} bytes, not {len(body)}",
            )
        if len(self._waiting) >= limits.peer_requests_max or self._bytes + len(body) > limits.peer_requests_bytes_max:
            raise self._throttled()
        self._last_id += 1
        correlation_id = self._last_id
        if self._is_ended:
            raise unreachable(self._peer)
        if not self._send(FrameType.REQUEST, encode_request(correlation_id, remaining_ms, method, principal, body)):
            raise self._throttled()
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[correlation_id] = answer
        self._bytes += len(body)
        try:
            async with asyncio.timeout_at(deadline):
                return await answer
        except TimeoutError:
            raise RequestError(pb.REQUEST_TIMED_OUT, f"no answer from {self._peer} in time") from None
        except UnknownMethodError:
            raise RequestError(
                pb.UNSUPPORTED_VERSION, f"{self._peer} runs another version, which has no request {method}: upgrade it"
            ) from None
        finally:
            self._bytes -= len(body)
            if self._waiting.pop(correlation_id, None) is not None:
                self._send(FrameType.CANCEL, encode_cancel(correlation_id))

    def on_frame(self, frame_type: FrameType, body: memoryview) -> None:
        """Process a frame of the other node. Raises FrameError to end the connection."""
        if frame_type is not FrameType.RESPONSE:
            raise FrameError(f"a {frame_type.name} frame on a connection for responses")
        correlation_id, status, message = decode_response(body)
        waiting = self._waiting.pop(correlation_id, None)
        if waiting is None or waiting.done():
            return  # the caller has given up in the meantime
        if status is ResponseStatus.OK:
            waiting.set_result(message)
        elif status is ResponseStatus.UNIMPLEMENTED:
            waiting.set_exception(UnknownMethodError())
        else:
            waiting.set_exception(_decode_error(message))

    def end(self) -> None:
        """Fail every request, because the connection has ended."""
        self._is_ended = True
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if not one.done():
                one.set_exception(self._lost())

    def _throttled(self) -> RequestError:
        return RequestError(
            pb.THROTTLED,
            f"too many requests to {self._peer} wait for answers; nothing was done",
            retry_after_ms=THROTTLED_RETRY_MS,
        )

    def _lost(self) -> RequestError:
        return RequestError(pb.REQUEST_TIMED_OUT, f"the connection to {self._peer} ended before it answered")


def _decode_error(data: bytes) -> RequestError:
    detail = pb.ErrorDetail()
    try:
        detail.ParseFromString(data)
    except DecodeError as error:
        raise FrameError(f"malformed error: {error}") from None
    found = RequestError(detail.code, detail.message)
    found.detail.CopyFrom(detail)
    return found


# ---------------------------------------------------------------------------------------------------------- answering


class InboundConnection(Protocol):
    """The connection on which requests arrive."""

    def write_response(self, body: Parts) -> None:
        """Send a RESPONSE frame. A connection that does not read its responses is closed."""
        ...


class RequestServer:
    """Answers the requests of all other nodes, within bounds for each of them and for all together."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        record_failure: Callable[[Work, BaseException], None],
    ) -> None:
        self.loop = loop
        self.limits = limits
        self.record_failure = record_failure
        self.answerer: Answerer | None = None
        """Set once, before the port is opened."""
        self.is_closing = False
        """Whether further requests are refused with SHUTTING_DOWN."""
        self.bytes = 0
        """Size of the requests that are being answered, of all nodes."""
        self.running: set[asyncio.Task[None]] = set()
        """The answers under way, of all nodes."""
        self.refused_total = 0
        """Requests refused since the start because there were too many."""

    async def finish(self, grace_seconds: float) -> None:
        """Refuse further requests, and wait for the answers under way, at most for the grace period."""
        self.is_closing = True
        if self.running:
            await asyncio.wait(set(self.running), timeout=grace_seconds)


class InboundRequests:
    """The requests that one connection has brought, and that are not answered."""

    def __init__(self, server: RequestServer, asker: NodeId, connection: InboundConnection) -> None:
        self._server = server
        self._asker = asker
        self._connection = connection
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._tasks)

    def on_frame(self, frame_type: FrameType, body: memoryview) -> None:
        """Process a frame of the other node. Raises FrameError to end the connection."""
        if frame_type is FrameType.CANCEL:
            task = self._tasks.get(decode_cancel(body))
            if task is not None:
                task.cancel()
            return
        if frame_type is not FrameType.REQUEST:
            raise FrameError(f"a {frame_type.name} frame on a connection for requests")
        request = decode_request(body)
        if request.correlation_id in self._tasks:
            raise FrameError(f"the correlation id {request.correlation_id} is in use")
        refusal = self._refusal(request)
        if refusal is not None:
            self._respond(request, ResponseStatus.ERROR, refusal.detail.SerializeToString())
            return
        deadline = self._server.loop.time() + request.remaining_ms / 1000
        self._bytes += len(request.body)
        self._server.bytes += len(request.body)
        task = self._server.loop.create_task(self._serve(request, deadline))
        self._tasks[request.correlation_id] = task
        self._server.running.add(task)
        # not in the task itself: one that is cancelled before its first step never runs
        task.add_done_callback(lambda done: self._on_done(request, done))

    def close(self) -> None:
        """Cancel every answer, because the connection has ended: nobody waits for it."""
        for task in self._tasks.values():
            task.cancel()

    def _refusal(self, request: RequestFrame) -> RequestError | None:
        server, limits = self._server, self._server.limits
        if server.is_closing:
            return RequestError(pb.SHUTTING_DOWN, "this broker is shutting down; nothing was done")
        if not request.remaining_ms:
            return expired()
        size = len(request.body)
        if (
            len(self._tasks) >= limits.peer_requests_max
            or self._bytes + size > limits.peer_requests_bytes_max
            or server.bytes + size > limits.inbound_requests_bytes_max
        ):
            server.refused_total += 1
            return RequestError(
                pb.THROTTLED,
                "this broker answers too many requests of other brokers; nothing was done",
                retry_after_ms=THROTTLED_RETRY_MS,
            )
        return None

    async def _serve(self, request: RequestFrame, deadline: float) -> None:
        answerer = self._server.answerer
        assert answerer is not None
        try:
            if self._server.loop.time() >= deadline:
                raise expired()
            async with asyncio.timeout_at(deadline):
                message = await answerer.answer(self._asker, request, deadline)
            self._check_size(message)
        except RequestError as error:
            self._respond(request, ResponseStatus.ERROR, error.detail.SerializeToString())
        except UnknownMethodError:
            self._respond(request, ResponseStatus.UNIMPLEMENTED, b"")
        except TimeoutError:
            late = RequestError(pb.REQUEST_TIMED_OUT, "the request was not finished before its deadline")
            self._respond(request, ResponseStatus.ERROR, late.detail.SerializeToString())
        else:
            self._respond(request, ResponseStatus.OK, message)

    def _check_size(self, message: bytes) -> None:
        size_max = self._server.limits.peer_response_bytes_max
        if len(message) > size_max:
            error = RequestError(
                pb.INTERNAL, f"the response has {len(message)} bytes, and one between brokers may have {size_max}"
            )
            error.detail.outcome = pb.UNKNOWN_OUTCOME
            raise error

    def _respond(self, request: RequestFrame, status: ResponseStatus, message: bytes) -> None:
        self._connection.write_response(encode_response(request.correlation_id, status, message))

    def _on_done(self, request: RequestFrame, task: asyncio.Task[None]) -> None:
        del self._tasks[request.correlation_id]
        self._server.running.discard(task)
        self._bytes -= len(request.body)
        self._server.bytes -= len(request.body)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._server.record_failure(Work.PEERS, error)
            defect = RequestError(pb.INTERNAL, "a defect of the broker; its log has it")
            defect.detail.outcome = pb.UNKNOWN_OUTCOME
            self._respond(request, ResponseStatus.ERROR, defect.detail.SerializeToString())


def response_frame_bytes_max(limits: Limits) -> int:
    """Return the body length of the largest RESPONSE frame."""
    return limits.peer_response_bytes_max + RESPONSE_HEAD.size
