"""How the SDK talks to brokers: a small seam (`Transport`, `Connection`, `AppendStream`) and its gRPC implementation.

A simulator replaces `GrpcTransport` by an in-memory one. Every failure leaves here as a `RaftMQError`: the typed one the broker
sent, `UnreachableError` (nothing was sent), `BrokenConnectionError` or `RequestTimedOutError` (it may have arrived).
Must not retry or choose nodes: that is the resolver's and the callers' part.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar, cast

# gRPC's core writes a line to stderr whenever a broker goes away; read once, when it is first imported. The user's wish wins.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc
import grpc.aio
from google.protobuf.message import Message
from raftmq.client import settings
from raftmq.client.error_details import STATUS_DETAILS_KEY, detail_from_status, error_from_detail
from raftmq.errors import (
    BrokenConnectionError,
    InternalError,
    PermissionDeniedError,
    RaftMQError,
    RequestTimedOutError,
    UnreachableError,
    UnsupportedVersionError,
)
from raftmq.proto import queue_pb2 as pb

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


@dataclass(frozen=True, slots=True)
class UnaryMethod(Generic[RequestT, ResponseT]):
    """One unary RPC: its service, its name and the types of its two messages."""

    service: str
    name: str
    request_type: type[RequestT]
    response_type: type[ResponseT]

    @property
    def path(self) -> str:
        """GRPC's name of the method."""
        return f"/raftmq.v1.{self.service}/{self.name}"


INIT_PRODUCER = UnaryMethod("Queue", "InitProducer", pb.InitProducerRequest, pb.InitProducerResponse)
POLL = UnaryMethod("Queue", "Poll", pb.PollRequest, pb.PollResponse)
LIST_OFFSETS = UnaryMethod("Queue", "ListOffsets", pb.ListOffsetsRequest, pb.ListOffsetsResponse)
DELETE_RECORDS = UnaryMethod("Queue", "DeleteRecords", pb.DeleteRecordsRequest, pb.DeleteRecordsResponse)
CREATE_TOPIC = UnaryMethod("Admin", "CreateTopic", pb.CreateTopicRequest, pb.CreateTopicResponse)
DELETE_TOPIC = UnaryMethod("Admin", "DeleteTopic", pb.DeleteTopicRequest, pb.DeleteTopicResponse)
LIST_TOPICS = UnaryMethod("Admin", "ListTopics", pb.ListTopicsRequest, pb.ListTopicsResponse)
DESCRIBE_TOPIC = UnaryMethod("Admin", "DescribeTopic", pb.DescribeTopicRequest, pb.DescribeTopicResponse)
ALTER_TOPIC = UnaryMethod("Admin", "AlterTopic", pb.AlterTopicRequest, pb.AlterTopicResponse)
ADD_PARTITIONS = UnaryMethod("Admin", "AddPartitions", pb.AddPartitionsRequest, pb.AddPartitionsResponse)
DESCRIBE_CLUSTER = UnaryMethod("Admin", "DescribeCluster", pb.DescribeClusterRequest, pb.DescribeClusterResponse)

_APPEND_STREAM_PATH = "/raftmq.v1.Queue/AppendStream"
_WATCH_PATH = "/raftmq.v1.Topology/Watch"


class AppendStream(Protocol):
    """A bidirectional stream of appends to one node."""

    async def write(self, request: bytes) -> None:
        """Send one serialized `AppendRequest` (see `append_frame`); waits for flow control. Raises `BrokenConnectionError` when the stream is dead."""
        ...

    async def read(self) -> pb.AppendResponse:
        """Wait for the next answer. Raises a `RaftMQError` when the stream ends."""
        ...

    def cancel(self) -> None:
        """Give the stream up; unanswered requests have an unknown outcome."""
        ...


class Connection(Protocol):
    """A shared connection to one node."""

    @property
    def address(self) -> str:
        """Where it leads (``host:port``)."""
        ...

    async def call(
        self, method: UnaryMethod[RequestT, ResponseT], request: RequestT, timeout_seconds: float
    ) -> ResponseT:
        """One unary call. Raises a `RaftMQError`."""
        ...

    def watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.TopologyUpdate]:
        """The topology stream. Iterating raises a `RaftMQError`."""
        ...

    def append_stream(self) -> AppendStream:
        """Open a stream; does not wait."""
        ...

    async def close(self) -> None:
        """Close at once; running calls fail."""
        ...


class Transport(Protocol):
    """Makes connections."""

    def connect(self, address: str) -> Connection:
        """A connection to ``host:port``; made lazily, does not wait and does not fail."""
        ...


_CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", settings.MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", settings.MESSAGE_BYTES_MAX),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),  # gRPC's least time for one attempt to connect
    ("grpc.max_reconnect_backoff_ms", int(settings.CONNECT_BACKOFF_MAX_SECONDS * 1000)),
    ("grpc.enable_retries", 0),  # retries are ours: only we know which calls are idempotent
    ("grpc.use_local_subchannel_pool", 1),  # a client that is closed leaves no connection to another one
]


def open_channel(address: str) -> grpc.aio.Channel:
    """The one place where channels are made; without TLS and credentials so far."""
    return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)


def error_from_rpc(error: grpc.aio.AioRpcError, address: str) -> RaftMQError:
    """The typed error of a failed call; a status without our detail is judged by its code."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            detail = detail_from_status(value)
            if detail is not None:
                return error_from_detail(detail)
    status = error.code()
    message = f"{address}: {error.details() or status.name}"
    if status is grpc.StatusCode.UNAVAILABLE:
        # gRPC has no code of its own for a call that never left; its wording is stable and tested here.
        if "failed to connect" in (error.details() or "").lower():
            return UnreachableError(message)
        return BrokenConnectionError(message)
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return RequestTimedOutError(message)
    if status is grpc.StatusCode.UNIMPLEMENTED:
        return UnsupportedVersionError(f"{message}: the broker does not know this call")
    if status in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
        return PermissionDeniedError(message)
    if status in (grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED, grpc.StatusCode.RESOURCE_EXHAUSTED):
        return BrokenConnectionError(message)
    return InternalError(message)


class GrpcTransport:
    """Connections over gRPC."""

    def connect(self, address: str) -> Connection:
        """A connection to ``host:port``; made lazily."""
        return GrpcConnection(address)


class GrpcConnection:
    """One channel to one node, used by all calls to it."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = open_channel(address)
        self._calls: dict[str, object] = {}
        self._is_closed = False

    @property
    def address(self) -> str:
        """Where it leads."""
        return self._address

    async def call(
        self, method: UnaryMethod[RequestT, ResponseT], request: RequestT, timeout_seconds: float
    ) -> ResponseT:
        """One unary call; cancelling it cancels it at the broker."""
        self._check_open()
        callable_ = cast("grpc.aio.UnaryUnaryMultiCallable[RequestT, ResponseT] | None", self._calls.get(method.path))
        if callable_ is None:
            callable_ = self._channel.unary_unary(
                method.path,
                request_serializer=method.request_type.SerializeToString,
                response_deserializer=method.response_type.FromString,
            )
            self._calls[method.path] = callable_
        try:
            return await callable_(request, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, self._address) from error
        except asyncio.CancelledError as error:
            self._raise_if_closed_under_us(error)
            raise

    async def watch(self, request: pb.WatchRequest) -> AsyncIterator[pb.TopologyUpdate]:
        """The topology stream."""
        self._check_open()
        call = self._channel.unary_stream(
            _WATCH_PATH,
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.TopologyUpdate.FromString,
        )(request)
        try:
            async for update in call:
                yield update
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, self._address) from error
        except asyncio.CancelledError as error:
            self._raise_if_closed_under_us(error)
            raise
        finally:
            call.cancel()

    def append_stream(self) -> AppendStream:
        """Open a stream; does not wait."""
        self._check_open()
        open_call: grpc.aio.StreamStreamMultiCallable[bytes, pb.AppendResponse] = self._channel.stream_stream(
            _APPEND_STREAM_PATH,
            request_serializer=None,  # it is serialized already
            response_deserializer=pb.AppendResponse.FromString,
        )
        call = open_call()
        return _GrpcAppendStream(call, self._address)

    async def close(self) -> None:
        """Close at once; running calls fail."""
        if not self._is_closed:
            self._is_closed = True
            await self._channel.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise UnreachableError(f"{self._address}: the connection is closed")

    def _raise_if_closed_under_us(self, error: asyncio.CancelledError) -> None:
        """A closed channel cancels its calls with the same exception that a cancelled task gets."""
        task = asyncio.current_task()
        if self._is_closed and (task is None or not task.cancelling()):
            raise BrokenConnectionError(f"{self._address}: the connection was closed") from error


class _GrpcAppendStream:
    def __init__(self, call: grpc.aio.StreamStreamCall[bytes, pb.AppendResponse], address: str) -> None:
        self._call = call
        self._address = address

    async def write(self, request: bytes) -> None:
        try:
            await self._call.write(request)
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, self._address) from error
        except asyncio.InvalidStateError as error:  # the call ended before
            raise BrokenConnectionError(f"{self._address}: the append stream has ended") from error
        except asyncio.CancelledError as error:
            self._raise_if_cancelled_under_us(error)
            raise

    async def read(self) -> pb.AppendResponse:
        try:
            response = await self._call.read()
        except grpc.aio.AioRpcError as error:
            raise error_from_rpc(error, self._address) from error
        except asyncio.CancelledError as error:
            self._raise_if_cancelled_under_us(error)
            raise
        if not isinstance(response, pb.AppendResponse):  # grpc.aio.EOF
            raise BrokenConnectionError(f"{self._address}: the broker ended the append stream")
        return response

    def cancel(self) -> None:
        self._call.cancel()

    def _raise_if_cancelled_under_us(self, error: asyncio.CancelledError) -> None:
        task = asyncio.current_task()
        if self._call.cancelled() and (task is None or not task.cancelling()):
            raise BrokenConnectionError(f"{self._address}: the append stream was given up") from error
