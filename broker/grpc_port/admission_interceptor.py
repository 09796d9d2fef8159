"""Bound the resources that calls hold outside the broker's own code: incoming requests, outgoing answers, and slots for both.

gRPC reads a whole message before a handler sees it, and keeps an answer until the client reads it. Thousands of clients that send half
a message, or read nothing, would occupy gigabytes. So each call acquires budget at every step. When a budget is exhausted, the
longest-idle call is evicted, so that fast clients are not refused because of slow ones. Only if no call is idle, the newcomer is
told to retry.

This module must not know the meaning of a call. Invariant: every reservation is released, however the call ends.

Source: RFC 9113 section 10.5 (denial of service).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import Message
from raftmq.broker.base.budget import Budget, Reservation
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError, parsed
from raftmq.broker.grpc_port.admission import CallBounds, Context, GrpcCall, Slots
from raftmq.proto import queue_pb2 as pb

OTHER_STREAMS_MAX: Final = 64
"""Slots of each streaming method that the SDK does not need (health, reflection)."""
WATCHES_MAX: Final = 1024
UNARY_CALLS_MAX: Final = 1024
"""Slots of calls other than polls. They end in milliseconds."""
_UNSENT_BYTES_MIN: Final = 32 * 1024
"""The least size that an answer counts, because even an empty answer holds its call until it is read."""
_REFUSALS_WAITING_MAX: Final = 512
"""Refusals that may wait to be sent. A call beyond them ends without an answer."""
STREAM_REQUESTS_UNANSWERED_MAX: Final = 512
"""Unanswered requests of a stream that answers each. A client that does not read its answers is not read any further. The service's own
limit is lower."""
_COPIES: Final = 2
"""Copies of an answer while it is sent: the broker's, and gRPC's."""

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]  # generic for the type checker only
    Serve = Callable[[str, Handler, GrpcCall, Budget, Reservation], Awaitable[bytes | None]]
Behaviour = Callable[..., Any]
"""A servicer's method of any shape. The stubs know only those of synchronous servers."""
Abort = Callable[[Context, RequestError], Awaitable[None]]
"""Ends a call with an error's status, and raises."""


class AdmissionInterceptor(grpc.aio.ServerInterceptor):
    """Serves every method over raw bytes, so that receiving and sending are separate steps. It is the innermost interceptor."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        abort: Abort,
        bounds: Mapping[str, CallBounds],
        observe_refused: Callable[[str, RequestError], None] = lambda method, error: None,
    ) -> None:
        """Create the budgets.

        Args:
            loop: The event loop that serves the calls.
            limits: The broker's bounds.
            abort: Ends a call.
            bounds: The resources that a call may use, by the method's path. Work is not started for an answer that may exceed its
                budget. A method that is missing here has small answers.
            observe_refused: Called with method and error for every call that ends with an error.
        """
        self._bounds = bounds
        self._limits = limits
        self._abort = abort
        self._message_bytes_max = limits.grpc_message_bytes_max
        self.received_bytes = 0
        """Bytes of requests since the start."""
        self.sent_bytes = 0
        """Bytes of answers since the start."""
        self.observe_refused = observe_refused
        self.receiving = Budget(loop, limits.receiving_bytes_max, "bytes of incoming requests")
        self.unsent = Budget(loop, limits.unsent_bytes_max, "bytes of unread answers")
        self.unary_calls = Budget(loop, UNARY_CALLS_MAX, "calls")
        self._slots = {
            Slots.UNARY_CALLS: self.unary_calls,
            Slots.POLLS: Budget(loop, min(limits.parked_polls_max, limits.concurrent_rpcs_max // 2), "polls"),
            Slots.APPEND_STREAMS: Budget(loop, limits.append_streams_max, "append streams"),
            Slots.QUEUE_STREAMS: Budget(loop, limits.queue_streams_max, "queue streams"),
            Slots.WATCHES: Budget(loop, WATCHES_MAX, "watches"),
        }
        self._other_streams: dict[str, Budget] = {}
        """Slots by method."""
        self._loop = loop
        self._handlers: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[RequestT, ResponseT] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[RequestT, ResponseT] | None:
        """Return a handler that serves the call with admission control, or None for an unknown method."""
        method = handler_call_details.method
        guarded = self._handlers.get(method)
        if guarded is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            guarded = self._handlers[method] = self._guarded(method, handler)  # as many as there are methods
        return guarded

    def slots(self, method: str, *, is_stream: bool) -> Budget:
        """Return the slots of which a call of the method takes one."""
        bounds = self._bounds.get(method)
        if bounds is not None:
            return self._slots[bounds.slots]
        if not is_stream:
            return self.unary_calls
        if method not in self._other_streams:
            self._other_streams[method] = Budget(self._loop, OTHER_STREAMS_MAX, "streams")
        return self._other_streams[method]

    def budgets(self) -> dict[str, Budget]:
        """Return every budget that calls share, by its name in the metrics."""
        by_name = {slots.value: budget for slots, budget in self._slots.items()}
        return {"receiving": self.receiving, "unsent": self.unsent, **by_name}

    def callers(self) -> set[str]:
        """Return the peers of all calls, in gRPC's notation."""
        budgets = (*self._slots.values(), *self._other_streams.values())
        return {holder.peer() for budget in budgets for holder in budget.holders()}

    def _guarded(self, method: str, handler: Handler) -> Handler:
        budget = self.slots(method, is_stream=handler.request_streaming or handler.response_streaming)
        if not handler.request_streaming and not handler.response_streaming:

            async def guarded_call(_: object, context: Context) -> bytes | None:
                outcome = await self._run(self._call, method, handler, context, budget)
                if isinstance(outcome, RequestError):
                    self.observe_refused(method, outcome)
                    await self._refuse(context, outcome)
                    return None
                return outcome

            # gRPC sends the answer together with the status. A separate step took a tenth of a call's time.
            return grpc.stream_unary_rpc_method_handler(cast("Callable[..., Any]", guarded_call))

        serve = self._stream if handler.request_streaming else self._answer_in_many

        async def guarded(_: object, context: Context) -> None:
            outcome = await self._run(serve, method, handler, context, budget)
            if isinstance(outcome, RequestError):
                self.observe_refused(method, outcome)
                await self._refuse(context, outcome)

        # to gRPC all these methods look alike: they read and write bytes whenever this code decides
        return grpc.stream_stream_rpc_method_handler(cast("Callable[..., Any]", guarded))

    async def _run(
        self, serve: Serve, method: str, handler: Handler, context: Context, budget: Budget
    ) -> RequestError | bytes | None:
        """Serve a call. Return the answer that is still to be sent, or the error to refuse the call with.

        The error is returned without its traceback, whose frames hold request and answer: a client that reads nothing does not
        read the refusal either.
        """
        slot: Reservation | None = None
        call = self._call_of(context)
        try:
            slot = budget.acquire(call)
            return await serve(method, handler, call, budget, slot)
        except RequestError as error:
            return error.with_traceback(None)
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None  # the client has disconnected: there is nothing to answer or log
        except asyncio.CancelledError:
            if slot is None or not slot.is_evicted or slot.is_sending:
                raise
            call.task.uncancel()
            refusal = budget.refusal()
            refusal.detail.outcome = pb.UNKNOWN_OUTCOME  # it is not known how far the call got
            return refusal
        finally:
            if slot is not None:
                budget.release(slot)

    def _call_of(self, context: Context) -> GrpcCall:
        """Return the call that the current task serves."""
        task = asyncio.current_task()
        assert task is not None
        return GrpcCall(self._loop, context, task)

    async def _refuse(self, context: Context, error: RequestError) -> None:
        """End a call with an error. If the client does not read even that, the call ends without it when others need the budget."""
        if self.unsent.waiting >= _REFUSALS_WAITING_MAX:
            raise asyncio.CancelledError
        reservation = await self.unsent.wait(self._call_of(context), _UNSENT_BYTES_MIN)
        try:
            reservation.is_sending = True
            await self._abort(context, error)
        finally:
            self.unsent.release(reservation)

    # ------------------------------------------------------------------------------------------------ one request

    async def _call(self, method: str, handler: Handler, call: GrpcCall, budget: Budget, slot: Reservation) -> bytes:
        request = await self._request(handler, call, budget, slot)
        bounds = self._bounds.get(method)
        answer_bytes_max = bounds.answer_bytes_max if bounds is not None else None
        size = answer_bytes_max(request, self._limits) if answer_bytes_max is not None else 0
        await self.unsent.wait_possible(max(_COPIES * size, _UNSENT_BYTES_MIN))
        response = await cast("Behaviour", handler.unary_unary)(request, call.context)
        reservation = await self._reserve_unsent(call, response)
        # from here on it counts as an unread answer, until gRPC has sent it and the call's task ends
        reservation.is_sending = slot.is_sending = True
        call.task.add_done_callback(lambda _: self.unsent.release(reservation))
        data = _bytes(handler, response)
        self.sent_bytes += len(data)
        return data

    async def _answer_in_many(
        self, method: str, handler: Handler, call: GrpcCall, budget: Budget, slot: Reservation
    ) -> None:
        request = await self._request(handler, call, budget, slot)
        sender = _Sender(self, handler, call, budget, slot, is_each_request_answered=False)
        answers = cast("Behaviour", handler.unary_stream)(request, sender)
        if inspect.isawaitable(answers):  # the method writes its answers itself
            await answers
            return
        await self._send_all(cast("AsyncIterator[Any]", answers), sender)

    async def _request(self, handler: Handler, call: GrpcCall, budget: Budget, slot: Reservation) -> Any:  # noqa: ANN401 -- any message
        raw = await self._receive(call)
        if raw is None:
            raise RequestError(pb.INVALID_ARGUMENT, "the call has no request")
        request = parsed(_deserializer(handler), raw)
        budget.keepalive(slot)
        return request

    async def _receive(self, call: GrpcCall) -> bytes | None:
        """Return the request's bytes, or None if the client ended its side without a request."""
        reservation = await self.receiving.wait(call, self._message_bytes_max)
        try:
            raw = await call.context.read()
        except asyncio.CancelledError:
            if not reservation.is_evicted:
                raise
            call.task.uncancel()
            raise self.receiving.refusal() from None
        finally:
            self.receiving.release(reservation)
        if raw is grpc.aio.EOF:
            return None
        self.received_bytes += len(cast("bytes", raw))
        return cast("bytes", raw)

    async def _reserve_unsent(self, call: GrpcCall, answer: Message) -> Reservation:
        """Reserve budget for an answer. A small answer waits for it. A large one is refused, because it would wait in memory."""
        size = _COPIES * answer.ByteSize()
        if size <= _UNSENT_BYTES_MIN:
            return await self.unsent.wait(call, _UNSENT_BYTES_MIN)
        try:
            return self.unsent.acquire(call, size)
        except RequestError as error:
            error.detail.outcome = (
                pb.UNKNOWN_OUTCOME
            )  # the request was processed, and perhaps earlier ones of its stream
            raise

    async def _send(self, call: GrpcCall, data: bytes, reservation: Reservation, slot: Reservation) -> None:
        """Pass an answer to gRPC. Return when the client can accept more.

        If a client accepts nothing for long, its connection is closed when others need the memory.
        """
        reservation.is_sending = slot.is_sending = True
        self.sent_bytes += len(data)
        try:
            await call.context.write(data)
        finally:
            self.unsent.release(reservation)
        slot.is_sending = False

    async def send(self, handler: Handler, call: GrpcCall, answer: Message, slot: Reservation) -> None:
        """Send a message of a stream."""
        reservation = await self._reserve_unsent(call, answer)
        await self._send(call, _bytes(handler, answer), reservation, slot)

    # ------------------------------------------------------------------------------------------------ streams

    async def _stream(self, method: str, handler: Handler, call: GrpcCall, budget: Budget, slot: Reservation) -> None:
        bounds = self._bounds.get(method)
        is_each_answered = bounds is None or bounds.is_each_request_answered
        sender = _Sender(self, handler, call, budget, slot, is_each_request_answered=is_each_answered)
        answers = cast("Behaviour", handler.stream_stream)(sender.requests(), sender)
        await self._send_all(cast("AsyncIterator[Any]", answers), sender)

    async def _send_all(self, answers: AsyncIterator[Any], sender: _Sender) -> None:
        try:
            async for answer in answers:
                await sender.write(answer)
        finally:
            await cast("Any", answers).aclose()  # all of them are generators


class _Sender:
    """A stream's context as its method sees it. It converts between messages and bytes, and counts unanswered requests."""

    def __init__(
        self,
        admission: AdmissionInterceptor,
        handler: Handler,
        call: GrpcCall,
        budget: Budget,
        slot: Reservation,
        *,
        is_each_request_answered: bool,
    ) -> None:
        self._admission = admission
        self._handler = handler
        self._call = call
        self._budget = budget
        self._slot = slot
        self._unanswered = asyncio.Semaphore(STREAM_REQUESTS_UNANSWERED_MAX) if is_each_request_answered else None

    async def requests(self) -> AsyncIterator[Any]:
        """Yield the client's messages."""
        while (raw := await self._call.context.read()) is not grpc.aio.EOF:
            self._budget.keepalive(self._slot)
            self._admission.received_bytes += len(cast("bytes", raw))
            yield parsed(_deserializer(self._handler), cast("bytes", raw))
            if self._unanswered is not None:
                await self._unanswered.acquire()

    async def write(self, answer: Message) -> None:
        """Send a message."""
        await self._admission.send(self._handler, self._call, answer, self._slot)
        self._budget.keepalive(self._slot)
        if self._unanswered is not None:
            self._unanswered.release()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever else a context has
        return getattr(self._call.context, name)


def _deserializer(handler: Handler) -> Callable[[bytes], Any]:
    return cast("Callable[[bytes], Any]", handler.request_deserializer)


def _bytes(handler: Handler, answer: Any) -> bytes:  # noqa: ANN401 -- any message
    serialize = cast("Callable[[Any], bytes]", handler.response_serializer)
    return serialize(answer)
