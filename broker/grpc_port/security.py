"""Name a call's principal and check its right, before anything else of the call is processed.

A method that is in no row and no exception is refused. This module must not look at a request. There are no credentials yet, so every
caller is the one principal `ANYONE`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextvars import ContextVar
from typing import Final, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.statuses import status_details, status_message, status_of
from raftmq.broker.grpc_port.methods import ROWS
from raftmq.broker.services.call import ANYONE, Principal, Right
from raftmq.call_metadata import STATUS_DETAILS_KEY
from raftmq.proto import queue_pb2 as pb

AnyRequest = TypeVar("AnyRequest")
AnyResponse = TypeVar("AnyResponse")
Context = grpc.aio.ServicerContext[Message, Message]

RIGHTS: Final[Mapping[str, Right]] = {row.method.path: row.right for row in ROWS}
"""The right that each method of the protocol needs, by the method's path."""
FREE: Final = frozenset(
    f"/{service.full_name}/{method.name}"
    for file in (health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)
    for service in file.services_by_name.values()
    for method in service.methods
)
"""Methods that need no right: gRPC's health checks and reflection. A method that is neither here nor in `RIGHTS` is refused."""

current_principal: ContextVar[Principal] = ContextVar("principal", default=ANYONE)
"""The principal whose call the current task serves."""

Authenticate = Callable[[Mapping[str, str | bytes]], Principal]
"""Returns the principal for a call's metadata. Raises RequestError PERMISSION_DENIED for an unknown one."""


def anyone(metadata: Mapping[str, str | bytes]) -> Principal:
    """Return the only principal that exists without credentials."""
    return ANYONE


def refusal_of(principal: Principal, right: Right) -> RequestError | None:
    """Return the refusal of a caller without the right, or None."""
    if right in principal.rights:
        return None
    return RequestError(pb.PERMISSION_DENIED, f"{principal.name} has no right to {right.value}")


class SecurityInterceptor(grpc.aio.ServerInterceptor):
    """Names the principal and checks its right, before anything of the request is processed."""

    def __init__(self, authenticate: Authenticate) -> None:
        self._authenticate = authenticate

    async def intercept_service(
        self,
        continuation: Callable[
            [grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[AnyRequest, AnyResponse] | None]
        ],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[AnyRequest, AnyResponse] | None:
        """Return the call's handler, or one that refuses the call, or None for an unknown method."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None  # gRPC answers UNIMPLEMENTED, which tells a newer client that this broker is older
        method = handler_call_details.method
        right = RIGHTS.get(method)
        if right is None:
            if method in FREE:
                return handler
            return _refusing(
                handler,
                RequestError(pb.PERMISSION_DENIED, f"{method} may not be called, because no right is defined for it"),
            )
        try:
            principal = self._authenticate(dict(handler_call_details.invocation_metadata))
        except RequestError as error:
            return _refusing(handler, error)
        refusal = refusal_of(principal, right)
        if refusal is not None:
            return _refusing(handler, refusal)
        current_principal.set(principal)
        return handler


def _refusing(
    handler: grpc.RpcMethodHandler[AnyRequest, AnyResponse], error: RequestError
) -> grpc.RpcMethodHandler[AnyRequest, AnyResponse]:
    """Return a handler of the same shape that only refuses."""

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
    """End the call with the error's status. It does not return."""
    await context.abort(status_of(error.code), status_message(error), ((STATUS_DETAILS_KEY, status_details(error)),))
