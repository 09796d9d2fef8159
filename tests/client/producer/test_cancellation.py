"""A producer's calls, cancelled at each of their await points: nothing leaks or hangs, and no record is lost or written twice.

The caller always knows the accepted records (`into`), so the log must contain exactly those.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from raftmq import errors
from raftmq.client.producer.batch import BulkDelivery, Delivery
from raftmq.client.producer.producer import Producer
from raftmq.proto import queue_pb2 as pb

from tests.support.client.cancelling import Moment, cancelled_at, passes
from tests.support.client.fake_broker import FakeCluster, detail, records_in
from tests.support.client.memory_transport import MemoryTransport

POINTS_MAX = 60
BUFFER = 128 * 1024
LARGE = 30_000
moments = pytest.mark.parametrize("moment", Moment, ids=[moment.name for moment in Moment])


class Scene:
    def __init__(self) -> None:
        self.cluster = FakeCluster(brokers=2)
        self.cluster.create_topic("t")
        self.transport = MemoryTransport(self.cluster)
        self.producer = Producer(
            bootstrap_servers=self.transport.addresses,
            transport=self.transport,
            buffer_memory=BUFFER,
            max_batch_size=32 * 1024,
            request_timeout_ms=50,
        )

    @property
    def written(self) -> list[bytes | None]:
        return [value for _, value in records_in(self.cluster.topics["t"].partitions[0])]

    async def fill(self) -> list[bytes | None]:
        """Fill the buffer while the brokers do not answer. They answer some time after the caller began to wait."""
        self.cluster.append_gate.clear()
        filling: list[bytes | None] = [b"fill%d" % n + bytes(LARGE) for n in range(4)]
        for value in filling:
            await self.producer.send("t", value)
        asyncio.get_running_loop().create_task(self._open_later(), name="opener")
        return filling

    async def _open_later(self) -> None:
        await passes(30)
        self.cluster.append_gate.set()

    async def check_whole(self, expected: list[bytes | None]) -> None:
        """Check that the expected records are in the log, once, in order, and that the producer still works."""
        await self.producer.flush()
        assert self.written == expected
        assert self.producer._budget.used_bytes == 0
        assert not self.producer._budget._waiters
        assert not self.producer._dispatcher.active
        assert (await self.producer.send_and_wait("t", b"after")).offset == len(expected)


@asynccontextmanager
async def in_time() -> AsyncIterator[None]:
    """Check that nothing hangs or remains, and that nothing reaches the loop's exception handler."""
    loop = asyncio.get_running_loop()
    heard: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: heard.append(context))
    async with asyncio.timeout(20):
        yield
    assert heard == []
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("raftmq")] == []


async def every_point(attempt: Callable[[int], Awaitable[bool]], *, at_least: int) -> None:
    """Try each point until there is none. `attempt` returns whether there was one."""
    for point in count():
        assert point < POINTS_MAX, "the call never ends"
        async with in_time():
            if not await attempt(point):
                assert point >= at_least, "the call did not wait where the test wants it to"
                return


@moments
async def test_a_cancelled_send_accepts_nothing(moment: Moment):
    async def attempt(point: int) -> bool:
        scene = Scene()
        async with scene.producer:
            expected = await scene.fill()
            sent: list[Delivery] = []

            async def send() -> None:
                sent.append(await scene.producer.send("t", b"one" + bytes(LARGE)))

            was_reached = await cancelled_at(send(), point, moment)
            assert len(sent) == (not was_reached)
            await scene.check_whole(expected + [b"one" + bytes(LARGE)] * len(sent))
        return was_reached

    await every_point(attempt, at_least=1)


@moments
async def test_a_cancelled_send_to_an_unknown_topic_accepts_nothing(moment: Moment):
    async def attempt(point: int) -> bool:
        scene = Scene()
        async with scene.producer:
            scene.cluster.create_topic("new")
            was_reached = await cancelled_at(scene.producer.send("new", b"one"), point, moment)
            await scene.producer.flush()
            assert scene.cluster.topics["new"].partitions[0].end == (not was_reached)
            await scene.check_whole([])
        return was_reached

    await every_point(attempt, at_least=1)


@moments
async def test_send_and_wait_writes_a_record_once_or_not_at_all(moment: Moment):
    async def attempt(point: int) -> bool:
        scene = Scene()
        async with scene.producer:
            expected = await scene.fill()
            was_reached = await cancelled_at(scene.producer.send_and_wait("t", b"one" + bytes(LARGE)), point, moment)
            await scene.producer.flush()
            taken: list[bytes | None] = [b"one" + bytes(LARGE)] * (len(scene.written) - len(expected))
            assert len(taken) == 1 if not was_reached else len(taken) <= 1
            await scene.check_whole(expected + taken)
        return was_reached

    await every_point(attempt, at_least=2)


@moments
@pytest.mark.parametrize("is_slow", [False, True], ids=["room", "full"])
async def test_a_cancelled_send_many_writes_exactly_the_counted_records(moment: Moment, is_slow: bool):
    values = [b"%05d" % n + bytes(1000) for n in range(400)]

    async def attempt(point: int) -> bool:
        scene = Scene()
        async with scene.producer:
            expected = await scene.fill() if is_slow else []
            into = BulkDelivery()
            was_reached = await cancelled_at(
                scene.producer.send_many("t", [(None, value) for value in values], into=into), point, moment
            )
            assert into.count == 400 or was_reached
            await scene.check_whole([*expected, *values[: into.count]])
            assert sum(span.record_count for span in await into) == into.count
            assert into.failures() == []
        return was_reached

    await every_point(attempt, at_least=3)


@moments
async def test_a_cancelled_wait_for_a_delivery_changes_nothing(moment: Moment):
    async def attempt(point: int) -> bool:
        scene = Scene()
        async with scene.producer:
            one = await scene.producer.send("t", b"one")
            many = await scene.producer.send_many("t", [(None, b"two"), (None, b"three")])

            async def wait() -> None:
                await one
                await many

            was_reached = await cancelled_at(wait(), point, moment)
            await scene.check_whole([b"one", b"two", b"three"])
            assert (await one).offset == 0
        return was_reached

    await every_point(attempt, at_least=1)


@moments
async def test_cancelling_flush_only_stops_the_wait(moment: Moment):
    async def attempt(point: int) -> bool:
        scene = Scene()
        async with scene.producer:
            expected = await scene.fill()
            was_reached = await cancelled_at(scene.producer.flush(), point, moment)
            await scene.check_whole(expected)
        return was_reached

    await every_point(attempt, at_least=2)


@moments
async def test_a_cancelled_close_reports_the_records_that_may_be_written(moment: Moment):
    async def attempt(point: int) -> bool:
        scene = Scene()
        await scene.producer.start()
        expected = await scene.fill()
        deliveries = [await scene.producer.send("t", b"%d" % n) for n in range(3)]
        was_reached = await cancelled_at(scene.producer.close(), point, moment)
        assert scene.producer._budget.used_bytes == 0
        assert not scene.producer._dispatcher.active
        with pytest.raises(errors.ClosedClientError, match="closed"):
            await scene.producer.send("t", b"late")
        await scene.producer.close()
        written = scene.written
        assert written == [*expected, b"0", b"1", b"2"][: len(written)]
        for number, delivery in enumerate(deliveries):
            assert delivery.done()
            failure = delivery._batch.error
            assert failure is None or was_reached
            is_written = b"%d" % number in written
            assert is_written or failure is not None, "what was acknowledged is there"
            assert not is_written or failure is None or failure.outcome is errors.Outcome.UNKNOWN
        await passes(40)  # lets `_open_later` open the gate
        return was_reached

    await every_point(attempt, at_least=4)


@moments
@pytest.mark.parametrize("name", [None, "job"])
async def test_a_cancelled_start_closes_the_producer(moment: Moment, name: str | None):
    async def attempt(point: int) -> bool:
        scene = Scene()
        producer = Producer(
            bootstrap_servers=scene.transport.addresses,
            transport=scene.transport,
            producer_name=name,
            max_block_ms=5000,
        )
        was_reached = await cancelled_at(producer.start(), point, moment)
        if not was_reached:
            await producer.send_and_wait("t", b"one")
            await producer.close()
        with pytest.raises(errors.ClosedClientError):
            await producer.send("t", b"two")
        with pytest.raises(errors.ClosedClientError):
            await producer.start()
        await producer.close()
        return was_reached

    await every_point(attempt, at_least=2)


@moments
async def test_a_cancelled_close_while_another_task_flushes_ends_both(moment: Moment):
    async def attempt(point: int) -> bool:
        scene = Scene()
        await scene.producer.start()
        await scene.fill()
        flushing = asyncio.create_task(scene.producer.flush())
        await passes(2)
        was_reached = await cancelled_at(scene.producer.close(), point, moment)
        await asyncio.wait([flushing])
        error = flushing.exception()
        assert error is None or (
            was_reached and isinstance(error, errors.ClosedClientError | errors.ClosedInFlightError)
        )
        await passes(40)
        return was_reached

    await every_point(attempt, at_least=4)


# -------------------------------------------------------------------------------------------------- many at once, at random

CALLS = st.sampled_from(["send", "send_and_wait", "send_many", "flush"])
STEPS = st.tuples(CALLS, st.integers(0, 4), st.sampled_from(list(Moment)), st.integers(1, 40_000))
TASKS = st.lists(st.lists(STEPS, min_size=1, max_size=6), min_size=1, max_size=3)
FAULTS = st.lists(st.sampled_from([None, None, None, "refuse", "drop", "swallow"]), max_size=12)


@settings(max_examples=10)
@given(TASKS, FAULTS)
def test_cancelled_calls_of_several_tasks_write_exactly_the_accepted_records(
    tasks: list[list[tuple[str, int, Moment, int]]], faults: list[str | None]
):
    """Requests are refused, answers are lost, and some requests are never answered."""

    async def scenario() -> None:
        scene = Scene()
        verdicts = iter(faults)

        def verdict(*_: object) -> pb.ErrorDetail | str | None:
            fault = next(verdicts, None)
            return detail(pb.THROTTLED) if fault == "refuse" else fault

        scene.cluster.append_hook = verdict
        certain: list[list[bytes]] = [[] for _ in tasks]  # certainly accepted, in order
        possible: list[set[bytes]] = [set() for _ in tasks]  # from a cancelled send_and_wait

        async def work(number: int) -> None:
            for step, (call, point, moment, size) in enumerate(tasks[number]):
                value = b"%d.%02d." % (number, step) + bytes(size)
                await one_call(number, call, point, moment, value)

        async def one_call(number: int, call: str, point: int, moment: Moment, value: bytes) -> None:
            producer = scene.producer
            if call == "flush":
                await cancelled_at(producer.flush(), point, moment)
            elif call == "send_many":
                into = BulkDelivery()
                values = [value + b"%02d" % n for n in range(5)]
                await cancelled_at(producer.send_many("t", [(None, v) for v in values], into=into), point, moment)
                certain[number] += values[: into.count]
            elif call == "send":
                is_taken = not await cancelled_at(producer.send("t", value), point, moment)
                certain[number] += [value] * is_taken
            elif await cancelled_at(producer.send_and_wait("t", value), point, moment):
                possible[number].add(value)
            else:
                certain[number].append(value)

        async with in_time():
            async with scene.producer:
                await asyncio.gather(*[work(number) for number in range(len(tasks))])
            assert scene.producer._budget.used_bytes == 0
        written = scene.written
        assert len(set(written)) == len(written), "nothing is there twice"
        for number in range(len(tasks)):
            mine = [v for v in written if v is not None and v.startswith(b"%d." % number)]
            assert [v for v in mine if v not in possible[number]] == certain[number]
            assert mine == sorted(mine, key=lambda v: v[:5]), "the order of sending, the uncertain ones included"

    asyncio.run(scenario())


async def test_the_helper_detects_a_lost_result():
    """A call that acquires something and forgets it when it is cancelled at the moment of the grant must be detected."""
    held = 0
    granted = asyncio.Event()

    async def leaky() -> None:
        nonlocal held
        waiter = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0, grant, waiter)
        await waiter
        held -= 1

    def grant(waiter: asyncio.Future[None]) -> None:
        nonlocal held
        if not waiter.cancelled():
            held += 1
            waiter.set_result(None)
        granted.set()

    async def leaked(coroutine: Coroutine[Any, Any, None], moment: Moment) -> int:
        nonlocal held
        held = 0
        granted.clear()
        with suppress(asyncio.CancelledError):
            await cancelled_at(coroutine, 0, moment)
        await granted.wait()
        return held

    assert await leaked(leaky(), Moment.WAITING) == 0
    assert await leaked(leaky(), Moment.ANSWERED) == 1
