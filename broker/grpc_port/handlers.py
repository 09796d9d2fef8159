"""Serve the rows of `methods` over gRPC: pass each call's deadline and principal to its service, count the call, and end it.

This module decides nothing about data. An error becomes a `RequestError`, and an unexpected exception INTERNAL with a log event.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar, cast
from zlib import crc32

import grpc
import grpc.aio
import structlog
from raftmq.broker.base.request_error import RequestError, check_cluster
from raftmq.broker.grpc_port.methods import ROWS, Row, Services
from raftmq.broker.grpc_port.security import Context, current_principal
from raftmq.broker.services.call import CALL_SECONDS_MAX, DEFAULT_CALL_SECONDS, Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.request_metrics import CANCELLED, OK, RequestMetrics
from raftmq.call_metadata import CLUSTER_KEY
from raftmq.methods import RequestT, ResponseStreamMethod, ResponseT, UnaryMethod
from raftmq.proto import queue_pb2 as pb

log = structlog.get_logger(__name__)

ArgumentT = TypeVar("ArgumentT")
"""A request, or the stream of requests."""


def internal_error(method: str, failure: BaseException) -> RequestError:
    """Return the error for a defect. Its log event and the caller's message share an id, which names the place of the defect."""
    places = [
        f"{Path(frame.f_code.co_filename).name}:{line}" for frame, line in traceback.walk_tb(failure.__traceback__)
    ]
    # not by chance: a simulation must have one trace
    error_id = f"{crc32(' '.join((method, type(failure).__name__, *places)).encode()):08x}"
    log.error("request_failed", method=method, error_id=error_id, exc_info=failure)
    error = RequestError(pb.INTERNAL, f"a defect of the broker; its log has it as error_id={error_id}")
    error.detail.outcome = pb.UNKNOWN_OUTCOME  # it is not known how far the call got
    return error


async def observed(metrics: RequestMetrics, method: str, answer: Callable[[], Awaitable[ResponseT]]) -> ResponseT:
    """Answer a call and count it. Raises RequestError, also for a defect."""
    started = time.perf_counter()  # a loop's clock may stand still within one turn
    try:
        response = await answer()
    except RequestError as error:
        failure = error
    except asyncio.CancelledError:
        _ended(metrics, method, CANCELLED, started)
        raise
    except Exception as error:  # noqa: BLE001 -- the root of a call: a defect must not reach the transport's own handling
        failure = internal_error(method, error)
    else:
        _ended(metrics, method, OK, started)
        return response
    _ended(metrics, method, pb.ErrorCode.Name(failure.code), started)
    failure.is_counted = True
    raise failure


def _ended(metrics: RequestMetrics, method: str, code: str, started: float) -> None:
    seconds = time.perf_counter() - started
    metrics.observe(method, code, seconds)
    if metrics.tracing is not None:
        metrics.tracing.record_outcome(code)
    if seconds >= metrics.slow.threshold_seconds:
        metrics.slow.report(method, code, seconds)


class _Adapter:
    """Wraps services' methods in handlers. Errors leave a handler as RequestError: admission control ends the call with them."""

    def __init__(self, host: ServiceHost, metrics: RequestMetrics) -> None:
        self._host = host
        self._metrics = metrics

    def handler(self, row: Row, services: Services) -> grpc.RpcMethodHandler[Any, Any]:
        """Return the handler of a row's method."""
        method, answer = row.method, row.service(services)
        messages = (method.request_type.FromString, method.response_type.SerializeToString)
        if isinstance(method, UnaryMethod):
            return grpc.unary_unary_rpc_method_handler(self._unary(method.name, answer), *messages)
        make = grpc.stream_stream_rpc_method_handler
        if isinstance(method, ResponseStreamMethod):
            make = grpc.unary_stream_rpc_method_handler
        return make(self._stream(method.name, answer), *messages)

    def _call(self, context: Context) -> Call:
        """Return the call's circumstances. Raises RequestError WRONG_CLUSTER if the caller means another cluster's broker."""
        remaining = cast(
            "float | None", context.time_remaining()
        )  # None without a deadline, although the stubs deny it
        seconds = DEFAULT_CALL_SECONDS if remaining is None else min(remaining, CALL_SECONDS_MAX)
        for key, value in _metadata(context):
            if key == CLUSTER_KEY:
                check_cluster(self._host.cluster_id, str(value))
        return Call(self._host.loop.time() + seconds, current_principal.get())

    def _unary(
        self, method: str, answer: Callable[[RequestT, Call], Awaitable[ResponseT]]
    ) -> Callable[[RequestT, Context], Awaitable[ResponseT]]:
        tracing = self._metrics.tracing

        async def handle(request: RequestT, context: Context) -> ResponseT:
            return await observed(self._metrics, method, lambda: answer(request, self._call(context)))

        async def handle_traced(request: RequestT, context: Context) -> ResponseT:
            assert tracing is not None
            with tracing.call(method, _metadata(context)):
                return await handle(request, context)

        return handle if tracing is None else handle_traced

    def _stream(
        self, method: str, answer: Callable[[ArgumentT, Call], AsyncGenerator[ResponseT, None]]
    ) -> Callable[[ArgumentT, Context], AsyncIterator[ResponseT]]:
        async def handle(argument: ArgumentT, context: Context) -> AsyncIterator[ResponseT]:
            answers = answer(argument, self._call(context))
            self._metrics.stream_started(method)
            try:
                async for one in answers:
                    yield one
            except (RequestError, asyncio.CancelledError, GeneratorExit, grpc.aio.InternalError):
                raise
            except Exception as error:  # noqa: BLE001 -- as in `_unary`
                raise internal_error(method, error) from None
            finally:
                self._metrics.stream_ended(method)
                await answers.aclose()

        return handle


def _metadata(context: Context) -> Iterable[tuple[str, str | bytes]]:
    # the stubs declare Metadata, but gRPC returns a tuple of pairs, or None
    return cast("Iterable[tuple[str, str | bytes]] | None", context.invocation_metadata()) or ()


def add_methods(server: grpc.aio.Server, services: Services, host: ServiceHost, metrics: RequestMetrics) -> None:
    """Have a server serve every method that has a row."""
    adapter = _Adapter(host, metrics)
    by_service: dict[str, dict[str, grpc.RpcMethodHandler[Any, Any]]] = {}
    for row in ROWS:
        by_service.setdefault(row.method.service, {})[row.method.name] = adapter.handler(row, services)
    for service, handlers in by_service.items():
        # by name as well, as generated code does: a method that is not registered by name counts as unknown (see `hardening`)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_registered_method_handlers(service, handlers)
