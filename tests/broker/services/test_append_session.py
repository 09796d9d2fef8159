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
        self.order: list[int] = []
        """Correlation ids of the requests that have begun."""

    def check(self, request: pb.AppendRequest, deadline: float) -> None: ...

    def begin_now(self, request: pb.AppendRequest, deadline: float) -> Begun | None:
        return None if request.metadata_revision else self._begun(request)

    async def begin(self, request: pb.AppendRequest, deadline: float) -> Begun:
        if request.metadata_revision:
            await self.metadata.wait()
        return self._begun(request)

    def response(self, correlation_id: int, begun: Begun) -> pb.AppendResponse:
        return pb.AppendResponse(correlation_id=correlation_id)

    def _begun(self, request: pb.AppendRequest) -> Begun:
        self.order.append(request.correlation_id)
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
            message.partitions.add(topic_id=1)
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


def named(number: int, *partitions: int, metadata_revision: int = 0) -> pb.AppendRequest:
    parts = [pb.PartitionAppend(topic_id=7, partition=partition) for partition in partitions]
    return pb.AppendRequest(correlation_id=number, metadata_revision=metadata_revision, partitions=parts)


async def test_a_request_that_waits_for_metadata_holds_up_only_its_partitions():
    """All producers of an event loop share a session. One that wrote to a new topic held up all others of that broker."""
    loop = asyncio.get_running_loop()
    service = Proposals(loop)
    session = AppendSession(loop, cast("AppendService", service), RequestMetrics(), "Append")
    answered: asyncio.Queue[int] = asyncio.Queue()
    for message in (named(1, 0, 1, metadata_revision=9), named(2, 2), named(3, 1, 3), named(4, 3), named(5, 4)):
        session.submit(message, lambda answer: answered.put_nowait(answer.correlation_id))
    assert service.order == [2, 5]
    service.applied.set_result([])
    async with asyncio.timeout(5):
        assert {await answered.get(), await answered.get()} == {2, 5}
        service.metadata.set()
        assert [await answered.get() for _ in range(3)] == [1, 3, 4]
    assert service.order == [2, 5, 1, 3, 4]
    session.submit(named(6, 0), lambda answer: answered.put_nowait(answer.correlation_id))
    assert answered.get_nowait() == 6


async def test_when_too_many_partitions_wait_every_request_does(monkeypatch):
    monkeypatch.setattr("raftmq.broker.services.append_session._HELD_PARTITIONS_MAX", 2)
    loop = asyncio.get_running_loop()
    service = Proposals(loop)
    session = AppendSession(loop, cast("AppendService", service), RequestMetrics(), "Append")
    session.submit(named(1, 0, 1, 2, metadata_revision=9), lambda _: None)
    session.submit(named(2, 3), lambda _: None)
    assert service.order == []
    assert len(session._held) == 2
    service.metadata.set()
    assert session._beginning is not None
    await session._beginning
    assert service.order == [1, 2]


async def test_partitions_that_are_named_again_take_no_place_of_others(monkeypatch):
    """The third request overtook the second, because a partition that was held already counted twice."""
    monkeypatch.setattr("raftmq.broker.services.append_session._HELD_PARTITIONS_MAX", 3)
    service = Proposals(asyncio.get_running_loop())
    session = AppendSession(asyncio.get_running_loop(), cast("AppendService", service), RequestMetrics(), "Append")
    session.submit(named(1, 0, 1, metadata_revision=9), lambda _: None)
    session.submit(named(2, 0, 2), lambda _: None)
    session.submit(named(3, 2), lambda _: None)
    service.metadata.set()
    assert session._beginning is not None
    await session._beginning
    assert service.order == [1, 2, 3]


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
    held_by_nobody = pb.AppendRequest()
    assert sys.getrefcount(message) == sys.getrefcount(held_by_nobody)


async def test_a_stream_ends_after_a_last_request_that_needed_a_decision():
    async with running() as node:
        topic = await node.topic()

        async def requests():
            yield append_request(topic, batch(1, sequence=100), correlation_id=1)

        async with asyncio.timeout(5):
            answers = [answer async for answer in node.log.append_stream(requests(), node.call())]
        assert [answer.partitions[0].error.code for answer in answers] == [pb.OUT_OF_ORDER_SEQUENCE]
