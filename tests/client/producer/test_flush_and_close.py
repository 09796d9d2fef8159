"""`flush` and `close`: the records that they wait for, the errors that they raise, and the state afterwards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from raftmq import errors
from raftmq.client.base import settings as limits
from raftmq.client.producer.producer import Producer
from raftmq.proto import queue_pb2 as pb

from tests.support.client.cancelling import passes
from tests.support.client.fake_broker import FakeCluster, detail, records_in
from tests.support.client.memory_transport import MemoryTransport


@pytest.fixture
def cluster() -> FakeCluster:
    cluster = FakeCluster(brokers=1)
    cluster.create_topic("t")
    return cluster


def producer_of(cluster: FakeCluster, **settings: Any) -> Producer:
    transport = MemoryTransport(cluster)
    return Producer(bootstrap_servers=transport.addresses, transport=transport, **settings)


def values(cluster: FakeCluster) -> list[bytes | None]:
    return [value for _, value in records_in(cluster.topics["t"].partitions[0])]


async def test_flush_waits_only_for_records_accepted_before_it(cluster: FakeCluster):
    cluster.append_gate.clear()
    async with producer_of(cluster, linger_ms=60_000) as producer:
        before = await producer.send("t", b"before")
        flushing = asyncio.create_task(producer.flush())
        await passes(20)
        assert not flushing.done()
        verdicts = iter([None])
        cluster.append_hook = lambda *_: next(verdicts, "swallow")
        after = await producer.send("t", b"after")
        cluster.append_gate.set()
        await flushing
        assert before.done()
        assert not after.done()
        cluster.append_hook = None
        cluster.move_leader("t", 0, broker=1)
    assert values(cluster) == [b"before", b"after"]


async def test_many_tasks_may_flush_simultaneously(cluster: FakeCluster):
    async with producer_of(cluster, linger_ms=60_000) as producer:
        await producer.send("t", b"x")
        await asyncio.gather(*[producer.flush() for _ in range(5)])
        assert values(cluster) == [b"x"]
        await producer.flush()


async def test_a_failure_is_reported_although_an_earlier_one_was_awaited(cluster: FakeCluster):
    """The first failure was stored for flush and then awaited. The second must still be reported."""
    cluster.append_hook = lambda *_: detail(pb.RECORD_TOO_LARGE)
    async with producer_of(cluster) as producer:
        first = await producer.send("t", b"awaited")
        await first._batch.wait_done()
        second = await producer.send("t", b"forgotten")
        await second._batch.wait_done()
        with pytest.raises(errors.RecordTooLargeError):
            await first
        with pytest.raises(errors.RecordTooLargeError):
            await producer.flush()
        await producer.flush()


async def test_flush_counts_the_failures_it_does_not_raise(cluster: FakeCluster):
    cluster.append_hook = lambda *_: detail(pb.RECORD_TOO_LARGE)
    async with producer_of(cluster) as producer:
        for _ in range(3):
            delivery = await producer.send("t", b"x")
            await delivery._batch.wait_done()
        with pytest.raises(errors.RecordTooLargeError) as raised:
            await producer.flush()
        assert raised.value.__notes__ == ["other records failed, too: at least 3 records in 3 batches"]
        assert producer.metrics().failed_records_total == 3


async def test_the_number_of_remembered_failures_is_bounded(cluster: FakeCluster):
    async with producer_of(cluster) as producer:
        cluster.append_hook = lambda *_: detail(pb.RECORD_TOO_LARGE)
        awaited = []
        for _ in range(3 * limits.UNOBSERVED_FAILURES_MAX):
            delivery = await producer.send("t", b"x")
            await delivery._batch.wait_done()
            awaited.append(delivery)
        assert len(producer._dispatcher._unobserved) == limits.UNOBSERVED_FAILURES_MAX
        for delivery in awaited[:-1]:
            with pytest.raises(errors.RecordTooLargeError):
                await delivery
        with pytest.raises(errors.RecordTooLargeError):
            await producer.flush()


async def test_a_refusal_after_an_unanswered_attempt_has_an_unknown_outcome(cluster: FakeCluster):
    """The first attempt was written and its answer lost. The second is refused permanently, but "not applied" would be wrong."""
    answers: list[pb.ErrorDetail | str] = ["drop", detail(pb.RECORD_TOO_LARGE)]
    verdicts = iter(answers)
    cluster.append_hook = lambda *_: next(verdicts, None)
    async with producer_of(cluster, request_timeout_ms=50) as producer:
        with pytest.raises(errors.RecordTooLargeError) as raised:
            await producer.send_and_wait("t", b"x")
    assert raised.value.outcome is errors.Outcome.UNKNOWN
    assert values(cluster) == [b"x"]


async def test_flush_after_a_failure_concerns_only_later_records(cluster: FakeCluster):
    verdicts = iter([detail(pb.RECORD_TOO_LARGE)])
    cluster.append_hook = lambda *_: next(verdicts, None)
    async with producer_of(cluster) as producer:
        await producer.send("t", b"refused")
        with pytest.raises(errors.RecordTooLargeError):
            await producer.flush()
        await producer.send("t", b"later")
        await producer.flush()
    assert values(cluster) == [b"later"]


async def test_a_flush_that_times_out_does_not_cancel_the_records(cluster: FakeCluster):
    cluster.append_gate.clear()
    async with producer_of(cluster) as producer:
        delivery = await producer.send("t", b"x")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await producer.flush()
        assert not delivery.done()
        cluster.append_gate.set()
        assert (await delivery).offset == 0


async def test_a_close_that_times_out_closes_immediately(cluster: FakeCluster):
    cluster.append_hook = lambda *_: "swallow"
    producer = producer_of(cluster)
    await producer.start()
    sent = await producer.send("t", b"sent")
    await passes(20)
    waiting = await producer.send("t", b"waiting")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await producer.close()
    with pytest.raises(errors.ClosedInFlightError):
        await sent
    with pytest.raises(errors.ClosedClientError):
        await waiting
    await producer.close()


async def test_concurrent_calls_of_close_wait_for_the_end(cluster: FakeCluster):
    cluster.append_gate.clear()
    producer = producer_of(cluster)
    await producer.start()
    delivery = await producer.send("t", b"x")
    closing = [asyncio.create_task(producer.close()) for _ in range(3)]
    await passes(20)
    assert not any(task.done() for task in closing)
    cluster.append_gate.set()
    await asyncio.gather(*closing)
    assert (await delivery).offset == 0


async def test_only_one_of_several_calls_of_close_raises_a_failure(cluster: FakeCluster):
    cluster.append_hook = lambda *_: detail(pb.RECORD_TOO_LARGE)
    producer = producer_of(cluster)
    await producer.start()
    await producer.send("t", b"x")
    ends = await asyncio.gather(producer.close(), producer.close(), return_exceptions=True)
    assert sorted(type(end).__name__ for end in ends) == ["NoneType", "RecordTooLargeError"]


async def test_no_record_is_accepted_after_the_beginning_of_close(cluster: FakeCluster):
    cluster.append_gate.clear()
    producer = producer_of(cluster, buffer_memory=128 * 1024)
    await producer.start()
    await producer.send("t", bytes(100_000))
    sending = asyncio.create_task(producer.send("t", bytes(60_000)))
    await passes(5)
    closing = asyncio.create_task(producer.close())
    await passes(5)
    for call in (producer.send("t", b"late"), producer.flush()):
        with pytest.raises(errors.ClosedClientError, match="is closed"):
            await call
    cluster.append_gate.set()
    await closing
    with pytest.raises(errors.ClosedClientError):
        await sending
    assert values(cluster) == [bytes(100_000)]
    assert producer.metrics().buffer_bytes == 0


async def test_a_producer_is_started_once(cluster: FakeCluster):
    producer = producer_of(cluster)
    ends = await asyncio.gather(producer.start(), producer.start(), return_exceptions=True)
    assert [type(end).__name__ for end in ends] == ["NoneType", "ClosedClientError"]
    assert (await producer.send_and_wait("t", b"x")).offset == 0
    with pytest.raises(errors.ClosedClientError, match="once"):
        await producer.start()
    await producer.close()


async def test_errors_distinguish_a_producer_not_started_from_a_closed_one(cluster: FakeCluster):
    producer = producer_of(cluster)
    with pytest.raises(errors.ClosedClientError, match="not started"):
        await producer.send("t", b"x")
    await producer.close()
    with pytest.raises(errors.ClosedClientError, match="is closed"):
        await producer.flush()
    with pytest.raises(errors.ClosedClientError, match="once"):
        await producer.start()


async def test_an_error_in_the_block_is_not_hidden_by_one_of_close(cluster: FakeCluster):
    cluster.append_hook = lambda *_: detail(pb.RECORD_TOO_LARGE)

    async def work() -> None:
        async with producer_of(cluster) as producer:
            await producer.send("t", b"x")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as raised:
        await work()
    assert "closing the producer failed" in raised.value.__notes__[0]
