"""Forward a call to the metadata leader, or to the leader of partitions, by one hop over that node's client port.

The answer after a failed hop depends on how far the call got: a call that was never sent was not applied, and one that broke on the way
has an unknown outcome.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

import grpc
import grpc.aio
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.statuses import detail_of
from raftmq.call_metadata import CLUSTER_KEY, FORWARDED_KEY
from raftmq.methods import RequestT, ResponseT, UnaryMethod
from raftmq.proto import queue_pb2 as pb

_NOT_SENT = "failed to connect"


class Forwarder(Protocol):
    """Calls the same service of another node."""

    async def forward(
        self, address: str, method: UnaryMethod[RequestT, ResponseT], request: RequestT, timeout_seconds: float
    ) -> ResponseT:
        """Call `path` (such as ``/raftmq.v1.Admin/CreateTopic``) there. Raises the other node's RequestError."""
        ...

    async def close(self) -> None:
        """Close every connection."""
        ...


class _SharedChannel:
    """A channel to one address, and the number of calls that use it."""

    __slots__ = ("calls", "channel")

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.calls = 0


class GrpcForwarder:
    """Calls over gRPC, with one channel per address. Beyond the limit the channel that was idle longest is closed.

    Invariant: no channel is closed while a call uses it.
    """

    def __init__(self, cluster_id: Callable[[], str], channels_max: int) -> None:
        """Take the node's cluster and the limit of channels.

        Args:
            cluster_id: Returns the cluster of this node. A broker of another cluster may be at an old address of a member.
            channels_max: Channels kept: as many as there may be peers, so that a large cluster does not connect for each call.
        """
        self._cluster_id = cluster_id
        self._channels_max = channels_max
        self._channels: OrderedDict[str, _SharedChannel] = OrderedDict()
        """Channels by address. The one that was used last is at the end."""
        self._closing: set[asyncio.Task[None]] = set()

    async def forward(
        self, address: str, method: UnaryMethod[RequestT, ResponseT], request: RequestT, timeout_seconds: float
    ) -> ResponseT:
        """Call `path` there. Raises the other node's RequestError, or one for a failed hop."""
        shared = self._shared(address)
        shared.calls += 1
        try:
            call = shared.channel.unary_unary(
                method.path,
                request_serializer=method.request_type.SerializeToString,
                response_deserializer=method.response_type.FromString,
            )
            metadata = ((FORWARDED_KEY, "1"), (CLUSTER_KEY, self._cluster_id()))
            return await call(request, timeout=timeout_seconds, metadata=metadata)
        except grpc.aio.AioRpcError as error:
            raise _request_error(error, address) from error
        finally:
            shared.calls -= 1
            self._trim()

    async def close(self) -> None:
        """Close every connection."""
        channels, self._channels = self._channels, OrderedDict()
        for shared in channels.values():
            await shared.channel.close()
        await asyncio.gather(*self._closing)

    @property
    def channels(self) -> int:
        """Return the number of open channels."""
        return len(self._channels)

    def _shared(self, address: str) -> _SharedChannel:
        shared = self._channels.get(address)
        if shared is None:
            shared = self._channels[address] = _SharedChannel(self._open(address))
        self._channels.move_to_end(address)
        return shared

    def _trim(self) -> None:
        """Close the channels beyond the limit that no call uses. More are kept only while all of them are in use."""
        excess = len(self._channels) - self._channels_max
        unused = [address for address, shared in self._channels.items() if not shared.calls] if excess > 0 else []
        for address in unused[: max(0, excess)]:
            task = asyncio.get_running_loop().create_task(self._channels.pop(address).channel.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    def _open(self, address: str) -> grpc.aio.Channel:
        """Create a channel. The simulator replaces this."""
        return grpc.aio.insecure_channel(
            address,
            options=[
                ("grpc.enable_retries", 0),
                ("grpc.max_reconnect_backoff_ms", 1000),
                ("grpc.min_reconnect_backoff_ms", 500),
                ("grpc.max_receive_message_length", -1),
            ],
        )


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
        return RequestError(pb.NO_LEADER, f"the broker at {address} cannot be reached: {reason}", retry_after_ms=200)
    return RequestError(pb.REQUEST_TIMED_OUT, f"no answer from the broker at {address}: {reason}")
