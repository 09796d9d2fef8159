"""Passes a call on to the metadata leader, or to the leader of partitions: one hop, over that node's client port.

What is known about a failed hop decides the answer: a call that never left was not applied; one that broke on the way has
an unknown outcome, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from google.rpc import status_pb2
from raftmq.broker.request_error import RequestError
from raftmq.call_metadata import CLUSTER_KEY, FORWARDED_KEY, STATUS_DETAILS_KEY
from raftmq.proto import queue_pb2 as pb

_CHANNELS_MAX = 16
"""Connections kept: leaders change seldom, and there are at most as many as nodes."""
_NOT_SENT = "failed to connect"

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)


class Forwarder(Protocol):
    """How a service reaches the same service of another node."""

    async def forward(
        self, address: str, path: str, request: Message, response_type: type[ResponseT], timeout_seconds: float
    ) -> ResponseT:
        """Call `path` (such as ``/raftmq.v1.Admin/CreateTopic``) there. Raises the RequestError the other node raised."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class GrpcForwarder:
    """Over gRPC, with one channel per address."""

    def __init__(self, cluster_id: Callable[[], str]) -> None:
        """`cluster_id` says which cluster this node belongs to; a broker of another one, at an old address of a member, is none of it."""
        self._cluster_id = cluster_id
        self._channels: dict[str, grpc.aio.Channel] = {}

    async def forward(
        self, address: str, path: str, request: Message, response_type: type[ResponseT], timeout_seconds: float
    ) -> ResponseT:
        """See `Forwarder`."""
        call = self._channel(address).unary_unary(
            path, request_serializer=type(request).SerializeToString, response_deserializer=response_type.FromString
        )
        metadata = ((FORWARDED_KEY, "1"), (CLUSTER_KEY, self._cluster_id()))
        try:
            return await call(request, timeout=timeout_seconds, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise _request_error(error, address) from error

    async def close(self) -> None:
        """See `Forwarder`."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            if len(self._channels) >= _CHANNELS_MAX:
                self._channels.pop(next(iter(self._channels)))
            channel = self._channels[address] = grpc.aio.insecure_channel(
                address,
                options=[
                    ("grpc.enable_retries", 0),
                    ("grpc.max_reconnect_backoff_ms", 1000),
                    ("grpc.min_reconnect_backoff_ms", 500),
                    ("grpc.max_receive_message_length", -1),
                ],
            )
        return channel


def _request_error(error: grpc.aio.AioRpcError, address: str) -> RequestError:
    detail = detail_of(error)
    if detail is not None and detail.code == pb.WRONG_CLUSTER:
        return RequestError(pb.NO_LEADER, f"{address} belongs to another cluster now", retry_after_ms=200)
    if detail is not None:
        found = RequestError(detail.code, detail.message)
        found.detail.CopyFrom(detail)
        return found
    reason = error.details() or error.code().name
    if error.code() is grpc.StatusCode.UNAVAILABLE and _NOT_SENT in reason.lower():
        return RequestError(pb.NO_LEADER, f"the node at {address} cannot be reached: {reason}", retry_after_ms=200)
    return RequestError(pb.REQUEST_TIMED_OUT, f"no answer from the node at {address}: {reason}")


def detail_of(error: grpc.aio.AioRpcError) -> pb.ErrorDetail | None:
    """The ErrorDetail that a broker put into a failed call's trailing metadata, if it did."""
    for key, value in error.trailing_metadata() or ():
        if key == STATUS_DETAILS_KEY and isinstance(value, bytes):
            try:
                for packed in status_pb2.Status.FromString(value).details:
                    detail = pb.ErrorDetail()
                    if packed.Unpack(detail):
                        return detail
            except DecodeError:
                return None
    return None
