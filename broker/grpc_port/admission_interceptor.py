"""Bounds what calls hold outside our code: requests on their way in, answers on their way out, and places for both.

gRPC reads a whole message before a handler sees it and keeps an answer until its reader takes it, so thousands of clients
that send half a message, or read nothing, would take gigabytes. Here each call asks for room at every step. Where there is
none, the one that has stood still for longest makes room, so that those who are quick are not refused for those who are
slow; only when nobody stands still is the newcomer told to come again.

Must know nothing of what a call means. Invariant: what was taken is given back however the call ends.

Source: RFC 9113 section 10.5 (denial of service).
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.grpc_port.admission import Context, Hold, Room
from raftmq.proto import queue_pb2 as pb

OTHER_STREAMS_MAX: Final = 64
"""Of each streaming method that clients of ours do not need (health, reflection)."""
WATCHES_MAX: Final = 1024
UNARY_CALLS_MAX: Final = 1024
"""Other calls than polls: they end in milliseconds."""
_UNSENT_BYTES_MIN: Final = 32 * 1024
"""What an answer counts at least: one of no size still holds a call until it is taken."""
_REFUSALS_WAITING_MAX: Final = 512
"""Refusals that wait to be sent; a call beyond them ends without a word."""
STREAM_REQUESTS_UNANSWERED_MAX: Final = 512
"""Of one stream: a client that does not read its answers is not read any more. Above what the service itself takes on."""
_COPIES: Final = 2
"""Of an answer while it is sent: ours, and gRPC's."""

POLL: Final = "/raftmq.v1.Queue/Poll"
APPEND_STREAM: Final = "/raftmq.v1.Queue/AppendStream"
WATCH: Final = "/raftmq.v1.Topology/Watch"

RequestT = TypeVar("RequestT")
ResponseT = TypeVar("ResponseT")
if TYPE_CHECKING:
    Handler = grpc.RpcMethodHandler[Any, Any]  # generic for the type checker only
    Serve = Callable[[str, Handler, Context, Room, Hold], Awaitable[bytes | None]]
Behaviour = Callable[..., Any]
"""A servicer's method, whatever shape it has; the stubs know those of synchronous servers only."""
Abort = Callable[[Context, RequestError], Awaitable[None]]
"""Ends a call with an error's status; raises."""


class CallGuard(grpc.aio.ServerInterceptor):
    """Serves every method over raw bytes, so that receiving and sending are steps of our own. The innermost interceptor."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        limits: Limits,
        abort: Abort,
        answer_bytes_max: Mapping[str, Callable[[Any], int]],
        observe_refused: Callable[[str, RequestError], None] = lambda method, error: None,
    ) -> None:
        """`answer_bytes_max` tells of a request how large its answer may be, for methods whose answers may be large:
        work for an answer that there is no room for is not begun. `observe_refused` is told of every call that ends with
        an error.
        """
        self._answer_bytes_max = answer_bytes_max
        self._abort = abort
        self._message_bytes_max = limits.grpc_message_bytes_max
        self.received_bytes = 0
        """Of requests, ever."""
        self.sent_bytes = 0
        """Of answers, ever."""
        self.observe_refused = observe_refused
        self.receiving = Room(loop, limits.receiving_bytes_max, "requests on their way in")
        self.unsent = Room(loop, limits.unsent_bytes_max, "answers that are not read")
        self.unary_calls = Room(loop, UNARY_CALLS_MAX, "calls")
        self._places: dict[str, Room] = {
            POLL: Room(loop, min(limits.parked_polls_max, limits.concurrent_rpcs_max // 2), "polls"),
            APPEND_STREAM: Room(loop, limits.append_streams_max, "append streams"),
            WATCH: Room(loop, WATCHES_MAX, "watches"),
        }
        self._loop = loop
        self._handlers: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[RequestT, ResponseT] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[RequestT, ResponseT] | None:
        """See `grpc.aio.ServerInterceptor`."""
        method = handler_call_details.method
        guarded = self._handlers.get(method)
        if guarded is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            guarded = self._handlers[method] = self._guarded(method, handler)  # as many as there are methods
        return guarded

    def places(self, method: str, *, is_stream: bool) -> Room:
        """The room of places that a call of the method takes one of."""
        room = self._places.get(method)
        if room is None:
            room = Room(self._loop, OTHER_STREAMS_MAX, "streams") if is_stream else self.unary_calls
            self._places[method] = room
        return room

    def rooms(self) -> dict[str, Room]:
        """Every room that calls share, by the name it has in the metrics."""
        return {
            "receiving": self.receiving,
            "unsent": self.unsent,
            "unary_calls": self.unary_calls,
            "polls": self._places[POLL],
            "append_streams": self._places[APPEND_STREAM],
            "watches": self._places[WATCH],
        }

    def callers(self) -> set[str]:
        """The peers of all calls, as gRPC names them."""
        rooms = {id(room): room for room in self._places.values()}
        return {context.peer() for room in rooms.values() for context in room.contexts()}

    def _guarded(self, method: str, handler: Handler) -> Handler:
        room = self.places(method, is_stream=handler.request_streaming or handler.response_streaming)
        if not handler.request_streaming and not handler.response_streaming:

            async def guarded_call(_: object, context: Context) -> bytes | None:
                outcome = await self._run(self._call, method, handler, context, room)
                if isinstance(outcome, RequestError):
                    self.observe_refused(method, outcome)
                    await self._refuse(context, outcome)
                    return None
                return outcome

            # The answer is gRPC's to send, in one step with the status: a step of its own took a tenth of a call's time.
            return grpc.stream_unary_rpc_method_handler(cast("Callable[..., Any]", guarded_call))

        serve = self._stream if handler.request_streaming else self._answer_in_many

        async def guarded(_: object, context: Context) -> None:
            outcome = await self._run(serve, method, handler, context, room)
            if isinstance(outcome, RequestError):
                self.observe_refused(method, outcome)
                await self._refuse(context, outcome)

        # to gRPC all these methods look alike: bytes in, bytes out, when we say so
        return grpc.stream_stream_rpc_method_handler(cast("Callable[..., Any]", guarded))

    async def _run(
        self, serve: Serve, method: str, handler: Handler, context: Context, room: Room
    ) -> RequestError | bytes | None:
        """Serve a call; the answer that is still to be sent, or the error to refuse it with.

        The error is returned without its traceback, whose frames hold request and answer: a client that reads nothing does not take
        the refusal either.
        """
        place: Hold | None = None
        try:
            place = room.take(context)
            return await serve(method, handler, context, room, place)
        except RequestError as error:
            return error.with_traceback(None)
        except grpc.aio.InternalError:
            raise asyncio.CancelledError from None  # the client is gone: nothing to answer, nothing to log
        except asyncio.CancelledError:
            if place is None or not place.is_evicted or place.is_sending:
                raise
            place.task.uncancel()
            refusal = room.refusal()
            refusal.detail.outcome = pb.UNKNOWN_OUTCOME  # nobody knows how far it came
            return refusal
        finally:
            if place is not None:
                room.give_back(place)

    async def _refuse(self, context: Context, error: RequestError) -> None:
        """End a call with an error; one whose client does not even take that ends without, when others need the room."""
        if self.unsent.waiting >= _REFUSALS_WAITING_MAX:
            raise asyncio.CancelledError
        hold = await self.unsent.wait(context, _UNSENT_BYTES_MIN)
        try:
            hold.is_sending = True
            await self._abort(context, error)
        finally:
            self.unsent.give_back(hold)

    # ------------------------------------------------------------------------------------------------ one request

    async def _call(self, method: str, handler: Handler, context: Context, room: Room, place: Hold) -> bytes:
        request = await self._request(handler, context, room, place)
        answer_bytes_max = self._answer_bytes_max.get(method)
        size = answer_bytes_max(request) if answer_bytes_max is not None else 0
        await self.unsent.wait_possible(max(_COPIES * size, _UNSENT_BYTES_MIN))
        response = await cast("Behaviour", handler.unary_unary)(request, context)
        hold = await self._room_for(context, response)
        # from here on it counts as an answer not taken, until gRPC has sent it and the call's task ends
        hold.is_sending = place.is_sending = True
        hold.task.add_done_callback(lambda _: self.unsent.give_back(hold))
        data = _bytes(handler, response)
        self.sent_bytes += len(data)
        return data

    async def _answer_in_many(self, method: str, handler: Handler, context: Context, room: Room, place: Hold) -> None:
        request = await self._request(handler, context, room, place)
        sender = _Sender(self, handler, context, room, place)
        answers = cast("Behaviour", handler.unary_stream)(request, sender)
        if inspect.isawaitable(answers):  # it writes what it has to say itself
            await answers
            return
        await self._send_all(cast("AsyncIterator[Any]", answers), sender)

    async def _request(self, handler: Handler, context: Context, room: Room, place: Hold) -> Any:  # noqa: ANN401 -- any message
        raw = await self._receive(context)
        if raw is None:
            raise RequestError(pb.INVALID_ARGUMENT, "the call has no request")
        request = _parsed(handler, raw)
        room.touch(place)
        return request

    async def _receive(self, context: Context) -> bytes | None:
        """The request's bytes; None when the client ended its side without one."""
        hold = await self.receiving.wait(context, self._message_bytes_max)
        try:
            raw = await context.read()
        except asyncio.CancelledError:
            if not hold.is_evicted:
                raise
            hold.task.uncancel()
            raise self.receiving.refusal() from None
        finally:
            self.receiving.give_back(hold)
        if raw is grpc.aio.EOF:
            return None
        self.received_bytes += len(cast("bytes", raw))
        return cast("bytes", raw)

    async def _room_for(self, context: Context, answer: Message) -> Hold:
        """A small answer waits for room; a large one is refused, for it would wait in memory."""
        size = _COPIES * answer.ByteSize()
        if size <= _UNSENT_BYTES_MIN:
            return await self.unsent.wait(context, _UNSENT_BYTES_MIN)
        return self.unsent.take(context, size)

    async def _send(self, context: Context, data: bytes, hold: Hold, place: Hold) -> None:
        """Hand an answer to gRPC; returns when the client has room for it.

        A client that has none for long loses its connection when others need the memory.
        """
        hold.is_sending = place.is_sending = True
        self.sent_bytes += len(data)
        try:
            await context.write(data)
        finally:
            self.unsent.give_back(hold)
        place.is_sending = False

    async def send(self, handler: Handler, context: Context, answer: Message, place: Hold) -> None:
        """Send a message of a stream."""
        hold = await self._room_for(context, answer)
        await self._send(context, _bytes(handler, answer), hold, place)

    # ------------------------------------------------------------------------------------------------ streams

    async def _stream(self, method: str, handler: Handler, context: Context, room: Room, place: Hold) -> None:
        sender = _Sender(self, handler, context, room, place)
        answers = cast("Behaviour", handler.stream_stream)(sender.requests(), sender)
        await self._send_all(cast("AsyncIterator[Any]", answers), sender)

    async def _send_all(self, answers: AsyncIterator[Any], sender: _Sender) -> None:
        try:
            async for answer in answers:
                await sender.write(answer)
        finally:
            await cast("Any", answers).aclose()  # generators all of them


class _Sender:
    """A stream's context, as its method sees it: messages are told apart from bytes here, and unanswered requests counted."""

    def __init__(
        self,
        guard: CallGuard,
        handler: Handler,
        context: Context,
        room: Room,
        place: Hold,
    ) -> None:
        self._guard = guard
        self._handler = handler
        self._context = context
        self._room = room
        self._place = place
        self._unanswered = asyncio.Semaphore(STREAM_REQUESTS_UNANSWERED_MAX)

    async def requests(self) -> AsyncIterator[Any]:
        """The client's messages."""
        while (raw := await self._context.read()) is not grpc.aio.EOF:
            self._room.touch(self._place)
            self._guard.received_bytes += len(cast("bytes", raw))
            yield _parsed(self._handler, cast("bytes", raw))
            await self._unanswered.acquire()

    async def write(self, answer: Message) -> None:
        """Send a message."""
        await self._guard.send(self._handler, self._context, answer, self._place)
        self._room.touch(self._place)
        self._unanswered.release()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 -- whatever else a context has
        return getattr(self._context, name)


def _parsed(handler: Handler, raw: bytes) -> Any:  # noqa: ANN401 -- any message
    parse = cast("Callable[[bytes], Any]", handler.request_deserializer)
    try:
        return parse(raw)
    except (DecodeError, RecursionError) as error:
        raise RequestError(pb.INVALID_ARGUMENT, f"the request is not a message of this method: {error}") from None


def _bytes(handler: Handler, answer: Any) -> bytes:  # noqa: ANN401 -- any message
    serialize = cast("Callable[[Any], bytes]", handler.response_serializer)
    return serialize(answer)
