"""Take the append requests of one caller in their order, and answer each when its batches are decided.

A request costs no task: it is begun when it arrives, and answered by the callbacks of the proposals it waits for. Only requests that
must wait before they can begin, for metadata or for a quorum, have one, together. Later requests queue behind them if they name one of
their partitions. All producers of an event loop share a session, and those of other topics do not wait.

Invariants: requests of one partition are begun in the order of `submit`, and each request is answered exactly once, unless the session is
closed before.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.pending_append import Applied
from raftmq.broker.services.append import AppendService, Begun, needs_decision, outcome_of, proposals, undecided
from raftmq.broker.services.call import CALL_SECONDS_MAX, DEFAULT_CALL_SECONDS
from raftmq.broker.services.request_metrics import CANCELLED, OK, RequestMetrics
from raftmq.proto import queue_pb2 as pb

if TYPE_CHECKING:
    from opentelemetry.trace import Span

log = structlog.get_logger(__name__)

_HELD_PARTITIONS_MAX: Final = 1024
"""Partitions of waiting requests that are remembered. Beyond it every later request queues: a client could name millions."""
_NO_MESSAGE = pb.AppendRequest()
Answer = Callable[[pb.AppendResponse], None]
"""Takes the answer to a request. Must not raise."""


class _Request:
    """A request that is not answered yet."""

    __slots__ = ("answer", "begun", "deadline", "message", "span", "started_at", "waiting")

    def __init__(self, message: pb.AppendRequest, answer: Answer, deadline: float, span: Span | None) -> None:
        self.message = message
        self.answer = answer
        self.deadline = deadline
        self.started_at = time.perf_counter()
        """For its time alone: a loop's clock may stand still within one turn."""
        self.span = span
        self.begun: Begun = ()
        self.waiting: set[Applied] = set()
        """Proposals that are not applied yet."""

    def forget_batches(self) -> None:
        """Free the memory of a request that is over: proposals that go on without it still refer to it."""
        self.message = _NO_MESSAGE
        self.begun = ()


def _partitions(message: pb.AppendRequest) -> Iterator[tuple[int, int]]:
    return ((part.topic_id, part.partition) for part in message.partitions)


class AppendSession:
    """The append requests of one caller."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, service: AppendService, metrics: RequestMetrics, method: str
    ) -> None:
        """Begin without requests. They are counted under the name `method`."""
        self._loop = loop
        self._service = service
        self._metrics = metrics
        self._method = method
        self._backlog: deque[_Request] = deque()
        """Requests that have not begun: the first is being waited for by `_beginning`."""
        self._held: set[tuple[int, int]] = set()
        """Topic and partition of each append that has joined the backlog since it was empty."""
        self._beginning: asyncio.Task[None] | None = None
        self._deciding: dict[_Request, asyncio.Task[None]] = {}
        """Requests with a batch that must be validated again."""
        self._pending: dict[_Request, None] = {}
        """Requests that wait for proposals."""
        self._expiry: asyncio.TimerHandle | None = None
        """Runs until the earliest deadline of `_pending`, or before it."""
        self._expires_at = 0.0
        """Loop time at which `_expiry` ends. uvloop's handle does not know it when that time had come already."""
        self._changed: asyncio.Future[None] | None = None
        self._is_closed = False

    @property
    def unanswered(self) -> int:
        """Return the number of requests without an answer."""
        return len(self._backlog) + len(self._deciding) + len(self._pending)

    def submit(self, message: pb.AppendRequest, answer: Answer, seconds_max: float = CALL_SECONDS_MAX) -> None:
        """Begin a request, after every earlier one of its partitions. `answer` may be called before this returns.

        Args:
            message: The request. It is answered within its own timeout.
            answer: Called with the answer.
            seconds_max: The upper bound of that timeout.
        """
        seconds = min(message.timeout_ms / 1000 or DEFAULT_CALL_SECONDS, seconds_max)
        tracing = self._metrics.tracing
        # before the request's own time, so that the span is no shorter than its phases
        span = None if tracing is None else tracing.begin_linked(self._method, message.trace_contexts)
        request = _Request(message, answer, self._loop.time() + seconds, span)
        if not self._is_held(message):
            if self._begin_now(request):
                return
        elif self._is_refused(request):  # a request that cannot begin is not kept: parsed it takes many times its size
            return
        self._backlog.append(request)
        for partition in _partitions(message):
            if len(self._held) >= _HELD_PARTITIONS_MAX:
                break
            self._held.add(partition)
        if self._beginning is None:
            self._beginning = self._loop.create_task(self._begin_in_order())

    async def below(self, count: int) -> None:
        """Wait until fewer than `count` requests are unanswered, or the session is closed. One caller at a time."""
        while self.unanswered >= count and not self._is_closed:
            self._changed = self._loop.create_future()
            await self._changed

    def close(self) -> None:
        """Give no more answers. Proposals may still be applied. Requests without an answer are counted as cancelled."""
        self._is_closed = True
        for task in (self._beginning, *self._deciding.values()):
            if task is not None:
                task.cancel()
        if self._expiry is not None:
            self._expiry.cancel()
        for request in (*self._backlog, *self._deciding, *self._pending):
            self._observe(request, CANCELLED, CANCELLED)
        self._backlog.clear()
        self._deciding.clear()
        self._pending.clear()
        self._tell_changed()

    # ---------------------------------------------------------------------------------------------------- beginning

    def _is_held(self, message: pb.AppendRequest) -> bool:
        """Return whether a request must queue behind others."""
        if self._beginning is None:
            return False
        return len(self._held) >= _HELD_PARTITIONS_MAX or not self._held.isdisjoint(_partitions(message))

    def _begin_now(self, request: _Request) -> bool:
        """Begin a request unless that must wait."""
        try:
            begun = self._service.begin_now(request.message, request.deadline)
        except RequestError as error:
            self._refuse(request, error)
            return True
        except Exception as error:  # noqa: BLE001 -- the root of a request: a defect is its answer
            self._fail(request, error)
            return True
        if begun is None:
            return False
        request.begun = begun
        self._wait(request)
        return True

    def _is_refused(self, request: _Request) -> bool:
        try:
            self._service.check(request.message, request.deadline)
        except RequestError as error:
            self._refuse(request, error)
            return True
        return False

    async def _begin_in_order(self) -> None:
        while self._backlog:
            request = self._backlog[0]
            try:
                request.begun = await self._service.begin(request.message, request.deadline)
            except RequestError as error:
                self._backlog.popleft()
                self._refuse(request, error)
            except Exception as error:  # noqa: BLE001 -- as above
                self._backlog.popleft()
                self._fail(request, error)
            else:
                self._backlog.popleft()
                self._wait(request)
        self._held.clear()
        self._beginning = None

    # ---------------------------------------------------------------------------------------------------- waiting

    def _wait(self, request: _Request) -> None:
        """Answer a request that has begun, now or when it is decided."""
        if needs_decision(request.begun):
            self._deciding[request] = self._loop.create_task(self._decide(request))
            return
        request.waiting = undecided(request.begun)
        if not request.waiting:
            self._respond(request)
            return
        self._pending[request] = None
        for future in request.waiting:
            future.add_done_callback(partial(self._on_applied, request))
        if self._expiry is None or request.deadline < self._expires_at:
            self._arm(request.deadline)

    async def _decide(self, request: _Request) -> None:
        try:
            await self._service.wait(request.begun, request.deadline)
        except Exception as error:  # noqa: BLE001 -- as above
            del self._deciding[request]
            self._fail(request, error)
        else:
            del self._deciding[request]  # before the answer, because `below` must not count it
            self._respond(request)

    def _on_applied(self, request: _Request, future: Applied) -> None:
        request.waiting.discard(future)
        if not request.waiting and request in self._pending:
            del self._pending[request]
            self._respond(request)

    def _arm(self, deadline: float) -> None:
        if self._expiry is not None:
            self._expiry.cancel()
        self._expires_at = deadline
        self._expiry = self._loop.call_at(deadline, self._expire)

    def _expire(self) -> None:
        """Answer the requests whose deadline has passed. Their proposals may still be applied."""
        self._expiry = None
        now = self._loop.time()
        for request in [request for request in self._pending if request.deadline <= now]:
            del self._pending[request]
            self._respond(request)
        if self._pending:
            self._arm(min(request.deadline for request in self._pending))

    # ---------------------------------------------------------------------------------------------------- answering

    def _respond(self, request: _Request) -> None:
        try:
            response = self._service.response(request.message.correlation_id, request.begun)
        except Exception as error:  # noqa: BLE001 -- as above
            self._fail(request, error)
        else:
            self._finish(request, response, OK, outcome_of(response))

    def _refuse(self, request: _Request, error: RequestError) -> None:
        response = pb.AppendResponse(correlation_id=request.message.correlation_id, error=error.detail)
        code = pb.ErrorCode.Name(error.code)
        self._finish(request, response, code, code)

    def _fail(self, request: _Request, error: Exception) -> None:
        log.error("append_failed", exc_info=error)
        refusal = RequestError(pb.INTERNAL, "a defect of the broker, which its log describes")
        refusal.detail.outcome = pb.UNKNOWN_OUTCOME
        self._refuse(request, refusal)

    def _observe(self, request: _Request, code: str, outcome: str) -> None:
        """Count a request under its code. Log it with its outcome if it was slow."""
        seconds = time.perf_counter() - request.started_at
        if self._metrics.tracing is None or request.span is None:
            self._report_if_slow(request, outcome, seconds)
        else:
            with self._metrics.tracing.entered(request.span):
                self._report_if_slow(request, outcome, seconds)
            ended_at = request.started_at + seconds
            found = self._service.span_attributes(request.message, request.begun, request.started_at, ended_at)
            self._metrics.tracing.end(request.span, outcome, found)
        request.forget_batches()
        self._metrics.observe(self._method, code, seconds)

    def _report_if_slow(self, request: _Request, outcome: str, seconds: float) -> None:
        slow = self._metrics.slow
        if seconds >= slow.threshold_seconds:
            slow.report_append(self._method, outcome, request.started_at, seconds, proposals(request.begun))

    def _finish(self, request: _Request, response: pb.AppendResponse, code: str, outcome: str) -> None:
        self._observe(request, code, outcome)
        if not self._is_closed:
            request.answer(response)
        self._tell_changed()

    def _tell_changed(self) -> None:
        if self._changed is not None and not self._changed.done():
            self._changed.set_result(None)
