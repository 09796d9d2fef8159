"""An append session answers every request once, on the event loop of production, too."""

from __future__ import annotations

import asyncio
import sys
import weakref
from typing import Any, cast

import pytest
import uvloop
from raftmq.broker.services.append import AppendService, Begun, PartitionAppend
from raftmq.broker.services.append_session import AppendSession
from raftmq.broker.services.request_metrics import RequestMetrics
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import append_request, batch, running


class Pending:
    """A partition's part of a request that waits for a proposal."""

    is_undecided = False

    def __init__(self, applied: asyncio.Future[list[object]]) -> None:
        self._applied = applied

    def pending(self) -> list[asyncio.Future[list[object]]]:
        return [] if self._applied.done() else [self._applied]


class Proposals:
    """An `AppendService` whose proposals are applied by hand. A request with a revision begins only after `metadata` is set."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.applied: asyncio.Future[list[object]] = loop.create_future()
        self.metadata = asyncio.Event()

    def check(self, request: pb.AppendRequest, deadline: float) -> None: ...

    def begin_now(self, request: pb.AppendRequest, deadline: float) -> Begun | None:
        return None if request.metadata_revision else self._begun()

    async def begin(self, request: pb.AppendRequest, deadline: float) -> Begun:
        if request.metadata_revision:
            await self.metadata.wait()
        return self._begun()

    def response(self, correlation_id: int, begun: Begun) -> pb.AppendResponse:
        return pb.AppendResponse(correlation_id=correlation_id)

    def _begun(self) -> Begun:
        return [PartitionAppend(None, cast("Any", Pending(self.applied)), None)]


def test_a_deadline_that_passed_while_a_request_waited_holds_up_no_later_request():
    async def run() -> None:
        loop = asyncio.get_running_loop()
        service = Proposals(loop)
        answered: asyncio.Queue[int] = asyncio.Queue()
        session = AppendSession(loop, cast("AppendService", service), RequestMetrics(), "Append")

        def submit(number: int, timeout_ms: int = 0, metadata_revision: int = 0) -> None:
            message = pb.AppendRequest(
                correlation_id=number, timeout_ms=timeout_ms, metadata_revision=metadata_revision
            )
            session.submit(message, lambda answer: answered.put_nowait(answer.correlation_id))

        submit(1, timeout_ms=1, metadata_revision=9)
        submit(2)
        passed = loop.create_future()
        loop.call_later(0.002, passed.set_result, None)
        await passed
        service.metadata.set()  # so the first request begins after its deadline
        async with asyncio.timeout(5):
            assert await answered.get() == 1
            submit(3)
            service.applied.set_result([])
            assert [await answered.get(), await answered.get()] == [2, 3]
            await session.below(1)

    # uvloop's `call_at` returns a handle without `when()` for a time that has come
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("is_closed", [False, True])
async def test_a_request_that_is_over_holds_no_memory_while_its_proposal_goes_on(is_closed: bool):
    """The budget of a request ends with its answer. Without a quorum a client could send its batches again and again."""
    loop = asyncio.get_running_loop()
    service = Proposals(loop)
    session = AppendSession(loop, cast("AppendService", service), RequestMetrics(), "Append")
    message, answered = pb.AppendRequest(timeout_ms=1), asyncio.Event()
    session.submit(message, lambda _: answered.set())
    (request,) = session._pending
    batches = weakref.ref(request.begun[0].pending)
    del request
    if is_closed:
        session.close()
    else:
        await asyncio.wait_for(answered.wait(), 5)
    assert not service.applied.done()
    assert batches() is None
    assert sys.getrefcount(message) == 2


async def test_a_stream_ends_after_a_last_request_that_needed_a_decision():
    async with running() as node:
        topic = await node.topic()

        async def requests():
            yield append_request(topic, batch(1, sequence=100), correlation_id=1)

        async with asyncio.timeout(5):
            answers = [answer async for answer in node.log.append_stream(requests(), node.call())]
        assert [answer.partitions[0].error.code for answer in answers] == [pb.OUT_OF_ORDER_SEQUENCE]
