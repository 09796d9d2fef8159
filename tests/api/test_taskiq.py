"""`RaftMQBroker` under taskiq's own receiver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import cast
from weakref import ref

import pytest
from raftmq import errors
from raftmq.taskiq import RaftMQBroker
from taskiq import BrokerMessage, SimpleRetryMiddleware
from taskiq.receiver import Receiver

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.fake_queue import FakeQueue


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        yield cluster


@pytest.fixture
def fake(cluster: FakeCluster) -> FakeQueue:
    (fake,) = cluster.create_queue("tasks")
    return fake


@asynccontextmanager
async def worker(broker: RaftMQBroker) -> AsyncIterator[None]:
    """Run taskiq's receiver, as the command ``taskiq worker`` does."""
    finish = asyncio.Event()
    broker.is_worker_process = True
    receiving = asyncio.ensure_future(Receiver(broker, run_startup=True, max_async_tasks=5).listen(finish))
    try:
        yield
    finally:
        finish.set()
        await receiving


async def test_taskiq_executes_and_acknowledges_a_task(cluster: FakeCluster, fake: FakeQueue) -> None:
    done: list[int] = []
    broker = RaftMQBroker("tasks", bootstrap_servers=cluster.bootstrap_servers)

    @broker.task(task_name="double")
    async def double(number: int) -> None:
        done.append(number * 2)

    async with worker(broker):
        await cluster.wait_queue(lambda: bool(cluster.queue_streams))
        for number in range(5):
            await double.kiq(number)
        await cluster.wait_queue(lambda: fake.accepted_total == 5)
    await broker.shutdown()
    assert sorted(done) == [0, 2, 4, 6, 8]


async def test_labels_become_the_fields_of_the_message(cluster: FakeCluster, fake: FakeQueue) -> None:
    broker = RaftMQBroker("tasks", bootstrap_servers=cluster.bootstrap_servers)
    await broker.startup()
    labels = {"tenant": "acme", "priority": "-3", "delay": "60", "id": "one", "key": 7}
    message = BrokerMessage(task_id="t", task_name="n", message=b"task", labels=labels)
    await broker.kick(message)
    await broker.kick(message)  # deduplicated by its label
    await broker.shutdown()
    (found,) = fake.messages.values()
    assert (found.body, found.tenant, found.priority, found.id, found.key) == (b"task", b"acme", -3, b"one", b"7")
    assert found.due_ms - found.enqueued_ms == 60_000


async def test_a_retry_is_no_repetition_of_the_task_whose_id_it_has(cluster: FakeCluster, fake: FakeQueue) -> None:
    """taskiq sends it before the failed attempt is acknowledged. It was deduplicated, so that the task was lost."""
    attempts: list[int] = []
    broker = RaftMQBroker("tasks", bootstrap_servers=cluster.bootstrap_servers).with_middlewares(
        SimpleRetryMiddleware()
    )

    @broker.task(task_name="fail", retry_on_error=True)
    async def fail() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError

    async with worker(broker):
        await cluster.wait_queue(lambda: bool(cluster.queue_streams))
        await fail.kicker().with_labels(id="one").kiq()
        await cluster.wait_queue(lambda: fake.accepted_total > 0 and not fake.messages)
    await broker.shutdown()
    assert len(attempts) == 2


async def test_a_broker_must_be_started(cluster: FakeCluster) -> None:
    broker = RaftMQBroker("tasks", bootstrap_servers=cluster.bootstrap_servers)
    with pytest.raises(RuntimeError, match="not started"):
        await broker.kick(BrokerMessage(task_id="t", task_name="n", message=b"", labels={}))
    with pytest.raises(errors.UnknownTopicError):
        await broker.startup()


async def test_a_task_that_taskiq_dropped_is_not_held(cluster: FakeCluster, fake: FakeQueue) -> None:
    """Its lease was renewed for as long as the worker had nothing else to do."""
    broker = RaftMQBroker("tasks", bootstrap_servers=cluster.bootstrap_servers)
    await broker.startup()
    await broker.kick(BrokerMessage(task_id="t", task_name="n", message=b"task", labels={}))
    tasks = broker.listen()
    dropped = ref(cast("partial[None]", (await anext(tasks)).ack).args[0])
    assert dropped() is None
    await tasks.aclose()
    await broker.shutdown()
