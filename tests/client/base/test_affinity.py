"""A client on a foreign event loop: each call is refused immediately with an explanation, and the client remains usable."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import pytest
from raftmq.client.admin.admin import Admin
from raftmq.client.consumer.consumer import Consumer
from raftmq.client.producer.producer import Producer
from raftmq.client.queue.queue import Queue
from raftmq.client.transformer.transformer import Transformer
from raftmq.client.worker.worker import Worker
from raftmq.errors import ClosedClientError, WrongEventLoopError
from raftmq.types import TopicPartition

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.memory_transport import MemoryTransport

T0 = TopicPartition("t", 0)
PATIENCE_SECONDS = 20.0
"""Time after which a call that hangs fails its test."""

Call = Callable[[Any], object]

PRODUCER_CALLS: dict[str, Call] = {
    "close": lambda producer: producer.close(),
    "flush": lambda producer: producer.flush(),
    "send": lambda producer: producer.send("t", b"x"),
    "send_and_wait": lambda producer: producer.send_and_wait("t", b"x"),
    "send_many": lambda producer: producer.send_many("t", [(None, b"x")]),
    "start": lambda producer: producer.start(),
}
CONSUMER_CALLS: dict[str, Call] = {
    "assign": lambda consumer: consumer.assign([T0]),
    "assignment": lambda consumer: consumer.assignment(),
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([T0]),
    "close": lambda consumer: consumer.close(),
    "commit": lambda consumer: consumer.commit({T0: 1}),
    "commit_nowait": lambda consumer: consumer.commit_nowait({T0: 1}),
    "committed": lambda consumer: consumer.committed(T0),
    "end_offsets": lambda consumer: consumer.end_offsets([T0]),
    "getmany": lambda consumer: consumer.getmany(timeout_ms=60_000),
    "highwater": lambda consumer: consumer.highwater(T0),
    "lag": lambda consumer: consumer.lag(T0),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({T0: 0}),
    "partition_count": lambda consumer: consumer.partition_count("t"),
    "pause": lambda consumer: consumer.pause(T0),
    "paused": lambda consumer: consumer.paused(),
    "position": lambda consumer: consumer.position(T0),
    "resume": lambda consumer: consumer.resume(T0),
    "seek": lambda consumer: consumer.seek(T0, 0),
    "seek_to_beginning": lambda consumer: consumer.seek_to_beginning(T0),
    "seek_to_committed": lambda consumer: consumer.seek_to_committed(T0),
    "seek_to_end": lambda consumer: consumer.seek_to_end(T0),
    "start": lambda consumer: consumer.start(),
    "subscribe": lambda consumer: consumer.subscribe(["t"]),
    "subscription": lambda consumer: consumer.subscription(),
    "unsubscribe": lambda consumer: consumer.unsubscribe(),
    "aiter": aiter,
    "anext": anext,
}
ADMIN_CALLS: dict[str, Call] = {
    "add_partitions": lambda admin: admin.add_partitions("t", 9),
    "alter_topic_config": lambda admin: admin.alter_topic_config("t", {"retention.ms": 1}),
    "close": lambda admin: admin.close(),
    "create_topic": lambda admin: admin.create_topic("u"),
    "create_topics": lambda admin: admin.create_topics(["u"]),
    "delete_group": lambda admin: admin.delete_group("g"),
    "delete_records": lambda admin: admin.delete_records({T0: 1}),
    "delete_topic": lambda admin: admin.delete_topic("t"),
    "delete_schedule": lambda admin: admin.delete_schedule("t", "s"),
    "list_schedules": lambda admin: admin.list_schedules("t"),
    "pause_schedule": lambda admin: admin.pause_schedule("t", "s"),
    "put_schedule": lambda admin: admin.put_schedule("t", "s", b"", cron="* * * * *"),
    "resume_schedule": lambda admin: admin.resume_schedule("t", "s"),
    "run_schedule": lambda admin: admin.run_schedule("t", "s"),
    "describe_cluster": lambda admin: admin.describe_cluster(),
    "forget_producer_names": lambda admin: admin.forget_producer_names(unused_seconds=1),
    "describe_moves": lambda admin: admin.describe_moves(),
    "drain_broker": lambda admin: admin.drain_broker(7),
    "unpin_partition": lambda admin: admin.unpin_partition("t", 0),
    "move_partition": lambda admin: admin.move_partition("t", 0, [1]),
    "rebalance": lambda admin: admin.rebalance(),
    "alter_config": lambda admin: admin.alter_config({"log_level": "debug"}),
    "list_config": lambda admin: admin.list_config(),
    "describe_config": lambda admin: admin.describe_config(1),
    "set_balancing": lambda admin: admin.set_balancing(False),
    "set_replication_factor": lambda admin: admin.set_replication_factor("t", 1),
    "transfer_leader": lambda admin: admin.transfer_leader("t", 0),
    "list_lost_partitions": lambda admin: admin.list_lost_partitions(),
    "recover_partition": lambda admin: admin.recover_partition("t", 0, 1, unsafe=True),
    "undrain_broker": lambda admin: admin.undrain_broker(7),
    "describe_group": lambda admin: admin.describe_group("g"),
    "describe_topic": lambda admin: admin.describe_topic("t"),
    "list_groups": lambda admin: admin.list_groups(),
    "list_topics": lambda admin: admin.list_topics(),
    "raise_feature_level": lambda admin: admin.raise_feature_level(),
    "remove_broker": lambda admin: admin.remove_broker(7),
    "remove_group_member": lambda admin: admin.remove_group_member("g", member_id="m"),
    "reset_group_offsets": lambda admin: admin.reset_group_offsets("g", to="earliest"),
    "start": lambda admin: admin.start(),
}
QUEUE_CALLS: dict[str, Call] = {
    "ack_many": lambda queue: queue.ack_many([]),
    "browse": lambda queue: first_of(queue.browse()),
    "cancel": lambda queue: queue.cancel("id"),
    "cancel_job": lambda queue: queue.cancel_job("0-1"),
    "clocks": lambda queue: queue.clocks(),
    "close": lambda queue: queue.close(),
    "get": lambda queue: queue.get(wait_ms=0),
    "get_many": lambda queue: queue.get_many(wait_ms=0),
    "jobs": lambda queue: queue.jobs(),
    "messages": lambda queue: first_of(queue.messages()),
    "move": lambda queue: queue.move("id", delay_ms=0),
    "pause": lambda queue: queue.pause(),
    "purge": lambda queue: queue.purge(),
    "put": lambda queue: queue.put(b"x"),
    "put_many": lambda queue: queue.put_many([b"x"]),
    "redrive": lambda queue: queue.redrive("id"),
    "resume": lambda queue: queue.resume(),
    "settle": lambda queue: queue.settle("12-0-341-1"),
    "start": lambda queue: queue.start(),
    "stats": lambda queue: queue.stats(),
    "step_clocks": lambda queue: queue.step_clocks(),
    "wait": lambda queue: queue.wait("id", 0),
    "aiter": lambda queue: first_of(aiter(queue)),
}
CALLS = {Producer: PRODUCER_CALLS, Consumer: CONSUMER_CALLS, Admin: ADMIN_CALLS, Queue: QUEUE_CALLS}
CASES = [
    pytest.param(kind, call, id=f"{kind.__name__}.{name}")
    for kind, calls in CALLS.items()
    for name, call in calls.items()
]
HARMLESS = {"metrics", "client_id"}
"""Names that read counters and need no loop."""


async def first_of(items: AsyncIterator[object]) -> object:
    return await anext(items)


def run_on(loop: asyncio.AbstractEventLoop, work: Callable[[], object]) -> object:
    """Run `work` on the loop, and await its result if it is a coroutine."""

    async def body() -> object:
        found = work()
        async with asyncio.timeout(PATIENCE_SECONDS):
            return await found if asyncio.iscoroutine(found) else found

    return loop.run_until_complete(body())


class OpenClients:
    """One client of each kind, started on `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.cluster = FakeCluster()
        self.cluster.create_topic("t")
        self.cluster.create_queue("q")
        self.clients: dict[type, Any] = {}

    async def start(self) -> None:
        transport = MemoryTransport(self.cluster)
        settings: dict[str, Any] = {"bootstrap_servers": transport.addresses, "transport": transport}
        self.clients = {
            Producer: Producer(**settings),
            Consumer: Consumer("t", **settings),
            Admin: Admin(**settings),
            Queue: Queue("q", **settings),
        }
        for client in self.clients.values():
            await client.start()

    async def close(self) -> None:
        for client in self.clients.values():
            await client.close()


@pytest.fixture
def opened() -> Iterator[OpenClients]:
    loop = asyncio.new_event_loop()
    found = OpenClients(loop)
    loop.run_until_complete(found.start())
    yield found
    if not loop.is_closed():
        loop.run_until_complete(found.close())
        loop.close()


@pytest.fixture
def other_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize(("kind", "call"), CASES)
def test_every_method_refuses_another_event_loop(
    kind: type, call: Call, opened: OpenClients, other_loop: asyncio.AbstractEventLoop
) -> None:
    client = opened.clients[kind]
    with pytest.raises(WrongEventLoopError, match=f"this {kind.__name__.lower()} was started on an event loop that"):
        run_on(other_loop, lambda: call(client))
    if kind is Producer:  # and it works on its own loop as before
        assert run_on(opened.loop, lambda: client.send_and_wait("t", b"x")).offset == 0  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", CALLS)
def test_no_public_method_is_left_out(kind: type) -> None:
    public = {name for name in vars(kind) if not name.startswith("_")}
    assert public - HARMLESS == CALLS[kind].keys() - {"aiter", "anext"}


def test_fetched_records_are_not_returned_on_another_loop(
    opened: OpenClients, other_loop: asyncio.AbstractEventLoop
) -> None:
    producer, consumer = opened.clients[Producer], opened.clients[Consumer]
    run_on(opened.loop, lambda: consumer.position(T0))
    for value in (b"0", b"1", b"2"):
        run_on(opened.loop, partial(producer.send_and_wait, "t", value, partition=0))
    assert run_on(opened.loop, lambda: anext(consumer)).value == b"0"  # type: ignore[attr-defined]
    with pytest.raises(WrongEventLoopError):
        run_on(other_loop, lambda: anext(consumer))
    assert run_on(opened.loop, lambda: anext(consumer)).value == b"1"  # type: ignore[attr-defined]


def test_a_delivery_can_only_be_awaited_on_the_loop_of_its_producer(
    opened: OpenClients, other_loop: asyncio.AbstractEventLoop
) -> None:
    producer = opened.clients[Producer]

    async def wait(delivery: Any) -> object:
        return await delivery

    delivery: Any = run_on(opened.loop, lambda: producer.send("t", b"x"))
    with pytest.raises(WrongEventLoopError):
        run_on(other_loop, lambda: wait(delivery))
    assert run_on(opened.loop, lambda: wait(delivery)).offset == 0  # type: ignore[attr-defined]
    assert run_on(other_loop, lambda: wait(delivery)).offset == 0  # type: ignore[attr-defined]  # known: nothing to wait for


def test_the_error_describes_the_state_of_the_clients_loop(
    opened: OpenClients, other_loop: asyncio.AbstractEventLoop
) -> None:
    admin, consumer = opened.clients[Admin], opened.clients[Consumer]
    with pytest.raises(
        WrongEventLoopError, match="that is not running now, and this call comes from another event loop"
    ):
        run_on(other_loop, admin.list_topics)
    with pytest.raises(
        WrongEventLoopError, match="that is not running now, and no event loop is running in this thread"
    ):
        consumer.pause(T0)
    thread = threading.Thread(target=opened.loop.run_forever)
    thread.start()
    try:
        with pytest.raises(
            WrongEventLoopError, match="that is running in another thread, and this call comes from another"
        ):
            run_on(other_loop, admin.list_topics)
    finally:
        opened.loop.call_soon_threadsafe(opened.loop.stop)
        thread.join()
    run_on(opened.loop, opened.close)
    opened.loop.close()


def test_a_loop_that_is_closed_is_named(other_loop: asyncio.AbstractEventLoop) -> None:
    loop = asyncio.new_event_loop()
    opened = OpenClients(loop)
    loop.run_until_complete(opened.start())
    consumer = opened.clients[Consumer]
    for client in (opened.clients[Producer], opened.clients[Admin], opened.clients[Queue]):
        run_on(loop, client.close)
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0.01))
    loop.close()
    with pytest.raises(WrongEventLoopError, match=r"closed now.*raftmq\.sync"):
        run_on(other_loop, consumer.close)
    consumer._is_open = False  # nobody can close it any more, and the warning about that is tested elsewhere


def test_a_closed_client_reports_that_it_is_closed_on_every_loop(
    opened: OpenClients, other_loop: asyncio.AbstractEventLoop
) -> None:
    run_on(opened.loop, opened.close)
    for client in opened.clients.values():
        run_on(other_loop, client.close)  # does nothing
    with pytest.raises(ClosedClientError):
        run_on(other_loop, lambda: opened.clients[Producer].send("t", b"x"))


def test_a_loop_may_move_to_another_thread(opened: OpenClients) -> None:
    found: list[object] = []
    producer = opened.clients[Producer]
    for _ in range(2):
        thread = threading.Thread(
            target=lambda: found.append(run_on(opened.loop, lambda: producer.send_and_wait("t", b"x")))
        )
        thread.start()
        thread.join(PATIENCE_SECONDS)
    assert len(found) == 2


@pytest.mark.parametrize("kind", [Worker, Transformer])
def test_a_worker_that_has_run_is_refused_on_another_loop(
    other_loop: asyncio.AbstractEventLoop, kind: type[Worker | Transformer]
) -> None:
    loop = asyncio.new_event_loop()
    cluster = FakeCluster()
    cluster.create_topic("t")
    transport = MemoryTransport(cluster)
    worker = kind("t", "g", print, bootstrap_servers=transport.addresses, transport=transport)

    async def start_and_cancel() -> None:
        serving = asyncio.ensure_future(worker.serve())
        await asyncio.sleep(0)
        serving.cancel()
        await asyncio.wait([serving])

    loop.run_until_complete(start_and_cancel())
    loop.close()
    with pytest.raises(ClosedClientError, match="runs only once"):
        run_on(other_loop, worker.serve)
