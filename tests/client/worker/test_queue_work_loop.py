"""A `Worker` on a queue topic, against fake brokers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from raftmq import Attempt, HandlerFailure, Reject, Retry, Worker, errors
from raftmq.client.base import settings
from raftmq.client.queue.new_message import NewMessage
from raftmq.client.queue.queue import Queue
from raftmq.client.worker.loop_thread_executor import LoopThreadExecutor
from raftmq.proto import queue_pb2 as pb
from raftmq.types import QueueRecord, Record

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.fake_queue import FakeQueue


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def fake(cluster: FakeCluster) -> FakeQueue:
    (fake,) = cluster.create_queue("jobs")
    return fake


@asynccontextmanager
async def running(cluster: FakeCluster, handler, **options) -> AsyncIterator[Worker]:
    worker = Worker("jobs", handler=handler, bootstrap_servers=cluster.bootstrap_servers, **options)
    serving = asyncio.ensure_future(worker.serve())
    try:
        yield worker
    finally:
        worker.stop()
        await serving


async def put(cluster: FakeCluster, *messages: bytes | NewMessage[bytes]) -> None:
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        await queue.put_many(messages)


async def test_a_handler_gets_each_message_once_with_all_its_fields(cluster: FakeCluster, fake: FakeQueue) -> None:
    found: list[tuple[QueueRecord, Attempt]] = []

    async def handle(record: Record, attempt: Attempt) -> None:
        assert isinstance(record, QueueRecord)
        found.append((record, attempt))

    await put(cluster, NewMessage(b"v", key="k", tenant="acme", id="one", priority=-2, headers=[("h", b"1")]))
    async with running(cluster, handle) as worker:
        await cluster.wait_queue(lambda: not fake.messages)
        metrics = worker.metrics()
    ((record, attempt),) = found
    assert (record.topic, record.partition, record.offset, record.value, record.key) == ("jobs", 0, 0, b"v", b"k")
    assert (record.tenant, record.id, record.priority, record.headers) == ("acme", "one", -2, (("h", b"1"),))
    assert attempt.number == 1
    assert metrics is not None
    assert metrics.records_in_work_max == 10


async def test_plain_functions_run_in_threads_and_many_messages_are_done(cluster: FakeCluster, fake: FakeQueue) -> None:
    found: set[bytes] = set()
    threads: set[str] = set()

    def handle(record: Record) -> None:
        found.add(record.value or b"")
        threads.add(threading.current_thread().name)

    await put(cluster, *(b"%d" % n for n in range(300)))
    async with running(cluster, handle, concurrency=8):
        await cluster.wait_queue(lambda: not fake.messages)
    assert found == {b"%d" % n for n in range(300)}
    assert threading.current_thread().name not in threads


async def test_retry_reject_and_failures_settle_the_message(cluster: FakeCluster, fake: FakeQueue) -> None:
    failures: list[HandlerFailure] = []

    async def handle(record: Record, attempt: Attempt) -> None:
        if record.value == b"retry" and attempt.number == 1:
            raise Retry("busy", after=0)
        if record.value == b"reject":
            raise Reject("no such customer")
        if record.value == b"fail":
            raise ValueError("broken")
        if record.value == b"never":
            raise KeyError("a mistake")

    await put(cluster, b"retry", b"reject", b"fail", b"never")
    async with running(cluster, handle, on_failure=failures.append, give_up_on=KeyError):
        await cluster.wait_queue(lambda: [m.dead_reason for m in fake.messages.values() if m.dead_reason] != [])
        await cluster.wait_queue(lambda: all(m.dead_reason for m in fake.messages.values()))
    dead = {bytes(message.body): (message.dead_reason, message.attempts) for message in fake.messages.values()}
    assert dead == {b"reject": ("rejected", 1), b"fail": ("exhausted", 3), b"never": ("rejected", 1)}
    errors_kept = {bytes(message.body): message.error for message in fake.messages.values()}
    assert errors_kept[b"fail"] == "ValueError: broken"
    assert "no such customer" in errors_kept[b"reject"]
    given_up = [failure.record.value for failure in failures if failure.retry_after_seconds is None]
    assert sorted(given_up, key=str) == [b"fail", b"never", b"reject"]
    delays = [detail.HasField("delay_ms") for detail in fake.releases]
    assert delays.count(True) == 1  # Retry; failures leave the delay to the topic


async def test_a_worker_leases_no_more_than_its_free_handlers_and_the_prefetch(
    cluster: FakeCluster, fake: FakeQueue
) -> None:
    begun, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def handle(_record: Record) -> None:
        begun.release()
        await may_end.wait()

    await put(cluster, *(b"" for _ in range(20)))
    async with running(cluster, handle, concurrency=3, prefetch=1):
        for _ in range(3):
            await begun.acquire()
        # A message that was under way when the credit changed is given back.
        await cluster.wait_queue(lambda: len([m for m in fake.messages.values() if m.lease_until_ms]) <= 4)
        may_end.set()
        await cluster.wait_queue(lambda: not fake.messages)


async def test_a_lost_lease_cancels_its_handler_and_the_worker_goes_on(cluster: FakeCluster, fake: FakeQueue) -> None:
    cancelled = asyncio.Event()

    async def handle(record: Record, attempt: Attempt) -> None:
        if record.value == b"long" and attempt.number == 1:
            fake.offset_ms += 60_000  # the lease ends, and no renewal was in time
            fake.expire(fake.now_ms())
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

    await put(cluster, b"long", b"next")
    async with running(cluster, handle, lease_ms=1500, concurrency=1, prefetch=0) as worker:
        await cluster.wait_queue(lambda: not fake.messages)
        metrics = worker.metrics()
    assert cancelled.is_set()
    assert metrics is not None
    assert (metrics.dropped_total, metrics.failures_total) == (1, 0)


async def test_a_stopping_worker_lets_handlers_end_and_gives_the_rest_back(
    cluster: FakeCluster, fake: FakeQueue
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_record: Record) -> None:
        begun.set()
        await may_end.wait()

    await put(cluster, b"first", b"second", b"third")
    async with running(cluster, handle, concurrency=1, prefetch=1) as worker:
        await begun.wait()
        worker.stop()
        may_end.set()
    left = {bytes(m.body): (m.state(fake.now_ms()), m.attempts) for m in fake.messages.values()}
    assert left == {b"second": (pb.READY, 0), b"third": (pb.READY, 0)}


async def test_a_handler_that_does_not_end_in_time_is_cancelled_and_its_message_released(
    cluster: FakeCluster, fake: FakeQueue
) -> None:
    begun = asyncio.Event()

    async def handle(_record: Record) -> None:
        begun.set()
        await asyncio.Event().wait()

    await put(cluster, b"stuck")
    with pytest.raises(errors.DrainTimeoutError):
        async with running(cluster, handle, drain_timeout_ms=1):
            await begun.wait()
    (message,) = fake.messages.values()
    assert (message.state(fake.now_ms()), message.attempts) == (pb.READY, 1)


async def test_a_worker_on_a_log_topic_needs_a_group(cluster: FakeCluster) -> None:
    cluster.create_topic("log")
    worker = Worker("log", handler=print, bootstrap_servers=cluster.bootstrap_servers)
    with pytest.raises(errors.TopicKindMismatchError):
        await worker.serve()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"topic": ["a", "b"]}, "one queue topic"),
        ({"dead_letter_topic": "dead"}, "keeps its dead messages itself"),
        ({"group_instance_id": "i"}, "needs a group_id"),
        ({"ordering": "none"}, "ordered.by.key"),
        ({"retries": 3}, "attempts.max"),
        ({"retries": None}, "attempts.max"),
        ({"retry_backoff_ms": 5}, "backoff.base.ms"),
        ({"retry_backoff_max_ms": 5000}, "backoff.max.ms"),
        ({"max_records": 50_000}, "concurrency and prefetch"),
        ({"max_partition_records": 5}, "concurrency and prefetch"),
        ({"auto_offset_reset": "latest"}, "no offsets"),
        ({"commit_interval_ms": 5}, "settled on its own"),
        ({"revocation_timeout_ms": 5}, "drain_timeout_ms"),
        ({"session_timeout_ms": 10_000}, "lease_ms"),
        ({"max_poll_interval_ms": 400_000}, "handler_timeout_ms"),
        ({"assignor": "range"}, "any partition"),
        ({"rack": "a"}, "any partition"),
        ({"group_id": "g", "lease_ms": 5000}, "session_timeout_ms"),
        ({"group_id": "g", "prefetch": 0}, "max_records"),
        ({"handler": None}, "must be a function"),
        ({"prefetch": -1}, "prefetch"),
        ({"lease_ms": 999}, "lease_ms"),
        ({"lease_ms": 50_000_000}, "lease_ms"),
    ],
)
def test_arguments_that_a_queue_worker_cannot_have_are_refused(arguments, text: str) -> None:
    with pytest.raises(errors.InvalidArgumentError, match=text):
        Worker(**({"topic": "jobs", "handler": print} | arguments))


async def test_a_worker_that_drains_takes_no_more_messages(cluster: FakeCluster, fake: FakeQueue) -> None:
    """It kept the message that it had fetched ahead, and another one after it, as long as a handler ran."""
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def handle(_record: Record) -> None:
        begun.set()
        await may_end.wait()

    await put(cluster, b"0", b"1")
    worker = Worker("jobs", handler=handle, bootstrap_servers=cluster.bootstrap_servers, concurrency=1)
    serving = asyncio.ensure_future(worker.serve())
    await begun.wait()
    await cluster.wait_queue(lambda: all(message.lease_until_ms for message in fake.messages.values()))
    worker.stop()
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        message = await queue.get(wait_ms=5_000)
        assert message is not None
        assert (message.value, message.attempt) == (b"1", 1)
        await message.ack()
    may_end.set()
    await serving
    assert not fake.messages


async def test_a_handler_that_the_program_cancels_has_failed_even_if_it_has_ended(
    cluster: FakeCluster, fake: FakeQueue
) -> None:
    """The cancelled slot was gone, so that a worker with few handlers neither worked nor ended."""
    failures: list[str] = []
    tasks: list[asyncio.Task[None]] = []

    async def handle(record: Record, attempt: Attempt) -> None:
        task = asyncio.current_task()
        assert task is not None
        if record.value == b"cancelled" and attempt.number == 1:
            task.cancel()
            await asyncio.sleep(0)
        tasks.append(task)

    await put(cluster, b"cancelled")
    options = {"concurrency": 1, "prefetch": 0, "on_failure": lambda failure: failures.append(repr(failure.error))}
    async with running(cluster, handle, **options):
        await cluster.wait_queue(lambda: not fake.messages)
        tasks.pop().cancel()
        await put(cluster, b"next")
        await cluster.wait_queue(lambda: not fake.messages)
    assert failures == ["CancelledError()"]


async def test_the_end_of_a_program_which_cancels_all_tasks_fails_no_message(
    cluster: FakeCluster, fake: FakeQueue
) -> None:
    """As ``asyncio.run`` does: a cancelled handler may see it before the worker."""
    begun, failures = asyncio.Event(), list[HandlerFailure]()

    async def handle(_record: Record) -> None:
        begun.set()
        await asyncio.Event().wait()

    await put(cluster, b"1")
    worker = Worker(
        "jobs", handler=handle, bootstrap_servers=cluster.bootstrap_servers, on_failure=failures.append, lease_ms=60_000
    )
    serving = asyncio.ensure_future(worker.serve())
    await begun.wait()
    for task in (*(task for task in asyncio.all_tasks() if task.get_name() == "raftmq-worker-slot"), serving):
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await serving
    (message,) = fake.messages.values()
    assert (message.state(fake.now_ms()), message.attempts) == (pb.READY, 1)
    assert not failures


def forgetful(record: Record) -> object:
    """Wrap a function as a decorator does that does not support async functions."""

    async def handle(_record: Record) -> None: ...

    return handle(record)


async def test_a_message_whose_handler_cannot_run_is_given_back_uncounted(
    cluster: FakeCluster, fake: FakeQueue
) -> None:
    """It stayed leased, for up to the 12 hours that a lease may have."""
    await put(cluster, b"1")
    worker = Worker("jobs", handler=forgetful, bootstrap_servers=cluster.bootstrap_servers, lease_ms=60_000)
    with pytest.raises(errors.InvalidArgumentError, match="whose code does not run by itself"):
        await worker.serve()
    (message,) = fake.messages.values()
    assert (message.state(fake.now_ms()), message.attempts) == (pb.READY, 0)


async def test_a_failure_is_reported_even_if_the_lease_was_lost_in_the_meantime(
    cluster: FakeCluster, fake: FakeQueue
) -> None:
    """Nobody saw the exception, of which the lost lease may be the cause."""
    failures: list[HandlerFailure] = []

    def handle(_record: Record, attempt: Attempt) -> None:
        if attempt.number == 1:
            fake.offset_ms += 60_000
            fake.expire(fake.now_ms())
            raise ValueError("mine")

    await put(cluster, b"1")
    async with running(cluster, handle, concurrency=1, prefetch=0, on_failure=failures.append):
        await cluster.wait_queue(lambda: not fake.messages)
    assert [(str(failure.error), failure.retry_after_seconds) for failure in failures] == [("mine", 0.0)]


async def test_the_message_of_a_handler_that_blocks_its_loop_is_given_back_at_the_end(
    cluster: FakeCluster, fake: FakeQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stayed leased, for up to 12 hours."""
    monkeypatch.setattr(settings, "WORKER_HANDLER_END_SECONDS", 0.1)
    begun, may_end = threading.Event(), threading.Event()

    async def handle(_record: Record) -> None:
        begun.set()
        may_end.wait(30)

    await put(cluster, b"1")
    worker = Worker(
        "jobs", handler=handle, bootstrap_servers=cluster.bootstrap_servers, lease_ms=60_000, drain_timeout_ms=1
    )
    worker._executor = LoopThreadExecutor(worker._handlers, None)  # as `run`
    serving = asyncio.ensure_future(worker.serve())
    await asyncio.to_thread(begun.wait)
    worker.stop()
    with pytest.raises(errors.DrainTimeoutError):
        await serving
    (message,) = fake.messages.values()
    assert (message.state(fake.now_ms()), message.attempts) == (pb.READY, 1)
    may_end.set()
