"""The security seam of the client port: names a call's principal and checks its right, before anything else is looked at.

Must not look at a request. There are no credentials yet: everybody is the one principal `ANYONE`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.statuses import status_details, status_message, status_of
from raftmq.broker.services.call import ANYONE, Principal, Right
from raftmq.call_metadata import STATUS_DETAILS_KEY
from raftmq.proto import queue_pb2 as pb

AnyRequest = TypeVar("AnyRequest")
AnyResponse = TypeVar("AnyResponse")
Context = grpc.aio.ServicerContext[Message, Message]

RIGHTS: Mapping[str, Right] = {
    "/raftmq.v1.Log/InitProducer": Right.PRODUCE,
    "/raftmq.v1.Log/FenceProducer": Right.PRODUCE,
    "/raftmq.v1.Log/Append": Right.PRODUCE,
    "/raftmq.v1.Log/AppendStream": Right.PRODUCE,
    "/raftmq.v1.Log/Poll": Right.CONSUME,
    "/raftmq.v1.Log/ListOffsets": Right.CONSUME,
    "/raftmq.v1.Log/DeleteRecords": Right.ADMIN,
    "/raftmq.v1.Log/OpenPartitions": Right.CONSUME,
    "/raftmq.v1.Log/CommitOffsets": Right.CONSUME,
    "/raftmq.v1.Log/FetchOffsets": Right.CONSUME,
    "/raftmq.v1.Log/WriteOffsets": Right.ADMIN,
    "/raftmq.v1.Groups/Heartbeat": Right.CONSUME,
    "/raftmq.v1.Groups/Leave": Right.CONSUME,
    "/raftmq.v1.Groups/List": Right.DESCRIBE,
    "/raftmq.v1.Groups/Describe": Right.DESCRIBE,
    "/raftmq.v1.Groups/ResetOffsets": Right.ADMIN,
    "/raftmq.v1.Groups/Delete": Right.ADMIN,
    "/raftmq.v1.Topology/Watch": Right.DESCRIBE,
    "/raftmq.v1.Admin/CreateTopic": Right.ADMIN,
    "/raftmq.v1.Admin/DeleteTopic": Right.ADMIN,
    "/raftmq.v1.Admin/ListTopics": Right.DESCRIBE,
    "/raftmq.v1.Admin/DescribeTopic": Right.DESCRIBE,
    "/raftmq.v1.Admin/AlterTopic": Right.ADMIN,
    "/raftmq.v1.Admin/AddPartitions": Right.ADMIN,
    "/raftmq.v1.Admin/DescribeCluster": Right.DESCRIBE,
    "/raftmq.v1.Admin/RemoveNode": Right.ADMIN,
    "/raftmq.v1.Admin/RegisterNode": Right.ADMIN,
    "/raftmq.v1.Admin/ReportDamage": Right.ADMIN,
    "/raftmq.v1.Admin/ReportReplicas": Right.ADMIN,
    "/raftmq.v1.Admin/DescribePartitions": Right.DESCRIBE,
    "/raftmq.v1.Admin/DescribeNode": Right.DESCRIBE,
}
"""What each method needs. Methods that are not here (reflection, health) need nothing."""

current_principal: ContextVar[Principal] = ContextVar("principal", default=ANYONE)
"""Whose call the current task serves."""

Authenticate = Callable[[Mapping[str, str | bytes]], Principal]
"""From a call's metadata to its principal. Raises RequestError PERMISSION_DENIED for one it does not know."""


def anyone(metadata: Mapping[str, str | bytes]) -> Principal:
    """The one principal there is without credentials."""
    return ANYONE


class SecurityInterceptor(grpc.aio.ServerInterceptor):
    """The security seam: names the principal and checks its right, before anything of the request is looked at."""

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[AnyRequest, AnyResponse] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[AnyRequest, AnyResponse] | None:
        """See `grpc.aio.ServerInterceptor`."""
        handler = await continuation(handler_call_details)
        right = RIGHTS.get(handler_call_details.method)
        if right is None or handler is None:
            return handler
        try:
            principal = self._authenticate(dict(handler_call_details.invocation_metadata))
        except RequestError as error:
            return _refusing(handler, error)
        if right not in principal.rights:
            return _refusing(
                handler, RequestError(pb.PERMISSION_DENIED, f"{principal.name} has no right to {right.value}")
            )
        current_principal.set(principal)
        return handler


def _refusing(
    handler: grpc.RpcMethodHandler[AnyRequest, AnyResponse], error: RequestError
) -> grpc.RpcMethodHandler[AnyRequest, AnyResponse]:
    """A handler of the same shape that only refuses."""

    async def refuse(request: object, context: Context) -> None:
        await abort(context, error)

    async def refuse_stream(request: object, context: Context) -> AsyncIterator[None]:
        await abort(context, error)
        yield None  # never reached: it makes this a generator

    makers = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    make = cast(
        "Callable[..., grpc.RpcMethodHandler[AnyRequest, AnyResponse]]",
        makers[handler.request_streaming, handler.response_streaming],
    )
    behaviour = refuse_stream if handler.response_streaming else refuse
    return make(behaviour, handler.request_deserializer, handler.response_serializer)


async def abort(context: Context, error: RequestError) -> None:
    """End the call with the error's status; does not return."""
    await context.abort(status_of(error.code), status_message(error), ((STATUS_DETAILS_KEY, status_details(error)),))
