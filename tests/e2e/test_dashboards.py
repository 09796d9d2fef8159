"""Every panel shows something plausible: a real Prometheus evaluates its queries on real brokers that are at work."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from raftmq import Admin, Consumer, NewMessage, Producer, Queue, TopicPartition
from raftmq.errors import RaftMQError, TopicAlreadyExistsError
from raftmq.testing import LocalCluster

from scripts.dashboard_panels import DASHBOARDS, Panel
from scripts.dashboards import unit
from tests.support.e2e.prometheus import Prometheus, evaluated, problem, running

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(420)]

LOAD_SECONDS = 40.0
"""Time of the load before the panels are looked at: longer than the range of rates."""
PANELS = {f"{board.name}: {panel.title}": panel for board in DASHBOARDS for row in board.rows for panel in row.panels}
ALWAYS_ABOVE_ZERO = {
    "cluster: Brokers", "cluster: Appended bytes", "cluster: Polled bytes", "cluster: Requests", "cluster: Refused requests",
    "cluster: Time of appends", "cluster: CPU", "topics: Records", "topics: Bytes", "topics: Records kept", "topics: Leaders",
    "groups: Age of the oldest unread record", "groups: Unread records", "groups: Groups and members",
    "queues: Ready messages", "queues: Longest wait", "queues: Delayed messages", "queues: Enqueued", "queues: Leases", "queues: Accepted",
    "queues: Given back", "queues: Leased again", "queues: Dead messages", "queues: Deaths", "queues: Refused because the queue is full",
    "queues: Copies to the dead letter topic", "queues: Messages behind one of their key", "queues: Messages in work", "queues: Schedules",
    "queues: Time until a lease", "raft: Groups", "raft: Time on the disk", "raft: Entries of a write", "raft: Sent to brokers",
    "broker: Memory", "broker: Open files", "broker: Time of requests", "broker: Received from clients", "broker: Free space",
}  # fmt: skip
"""Panels with a line above zero under this load."""


async def produce(servers: str) -> None:
    async with Producer(bootstrap_servers=servers) as producer:
        while True:
            await asyncio.gather(*[producer.send("records", b"%d" % n * 20, key=b"%d" % n) for n in range(20)])
            await asyncio.sleep(0.02)


async def consume(servers: str) -> None:
    async with Consumer("records", bootstrap_servers=servers, group_id="readers") as consumer:
        async for _ in consumer:
            pass


async def fall_behind(servers: str) -> None:
    """Read a little, commit, and stop."""
    async with Consumer(bootstrap_servers=servers, group_id="idle", enable_auto_commit=False) as consumer:
        partition = TopicPartition("records", 0)
        consumer.assign([partition])
        await consumer.commit({partition: 0})
        await asyncio.Event().wait()


async def put(servers: str) -> None:
    async with Queue("jobs", bootstrap_servers=servers) as queue:
        await queue.put(b"later", delay_ms=3_600_000, key="late")
        while True:
            await queue.put_many(NewMessage(b"%d" % n, key=f"key {n % 4}") for n in range(10))
            await asyncio.sleep(0.1)


async def work(servers: str) -> None:
    """Accept most messages, give some back and reject some, slower than they arrive: at each moment some are in work, and others wait."""
    async with Queue("jobs", bootstrap_servers=servers) as queue:
        number = 0
        async for message in queue:
            number += 1
            await asyncio.sleep(0.05)
            if number % 10 == 3:
                await message.release()
            elif number % 10 == 6:
                await message.reject("no such thing")
            else:
                await message.ack()


async def overfill(servers: str) -> None:
    """Put messages into a topic that takes few."""
    async with Queue("small", bootstrap_servers=servers) as queue:
        while True:
            with contextlib.suppress(RaftMQError):
                await queue.put(b"too much")
            await asyncio.sleep(0.2)


async def wait_for_work(servers: str) -> None:
    """Wait for messages of a topic that has none."""
    async with Queue("quiet", bootstrap_servers=servers) as queue:
        while True:
            await queue.get(wait_ms=1000)


async def be_refused(servers: str) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        while True:
            with contextlib.suppress(TopicAlreadyExistsError):
                await admin.create_topic("records", partitions=1)
            await asyncio.sleep(0.5)


LOADS: tuple[Callable[[str], Awaitable[None]], ...] = (
    produce, consume, fall_behind, put, work, overfill, wait_for_work, be_refused,
)  # fmt: skip


async def create_topics(servers: str) -> None:
    async with Admin(bootstrap_servers=servers) as admin:
        await admin.create_topic("records", partitions=3, replication_factor=3)
        await admin.create_topic("dead", kind="queue", partitions=1)
        keyed = {"ordered.by.key": "true", "dead.letter.topic": "dead"}
        await admin.create_topic("jobs", kind="queue", partitions=2, config=keyed)
        await admin.create_topic("small", kind="queue", partitions=1, config={"partition.max.messages": "10"})
        await admin.create_topic("quiet", kind="queue", partitions=1)
        await admin.put_schedule("small", "hourly", b"tick", cron="0 * * * *")


@pytest.fixture
async def under_load(tmp_path: Path) -> AsyncIterator[Prometheus]:
    async with LocalCluster(brokers=3) as cluster:
        servers = cluster.bootstrap_servers
        await create_topics(servers)
        with running(tmp_path / "prometheus", [cluster.http_address(n) for n in cluster.broker_ids]) as prometheus:
            async with asyncio.TaskGroup() as tasks:
                loads = [tasks.create_task(load(servers)) for load in LOADS]
                await asyncio.sleep(LOAD_SECONDS)
                yield prometheus
                for load in loads:
                    load.cancel()


async def test_every_panel_shows_something_plausible_under_load_and_no_alert_fires(under_load: Prometheus) -> None:
    problems: dict[str, str] = {}
    for name, panel in PANELS.items():
        found = await asyncio.to_thread(wrong, under_load, name, panel)
        if found:
            problems[name] = found
    assert problems == {}
    # the load fills one topic and rejects messages on purpose
    wanted = {"RaftMQQueueFull", "RaftMQQueueDeadMessages"}
    assert set(await asyncio.to_thread(under_load.firing)) == wanted


def wrong(prometheus: Prometheus, name: str, panel: Panel) -> str:
    """Return the fault of the panel's present lines. Empty: there is none."""
    largest = 0.0
    for query in panel.queries:
        samples = prometheus.query(evaluated(query.expression))
        found = problem(samples, unit=unit(panel), may_be_negative=panel.may_be_negative)
        if found:
            return f"{query.expression}: {found}"
        largest = max(largest, *(sample.value for sample in samples if not math.isnan(sample.value)))
    return "nothing above 0" if name in ALWAYS_ABOVE_ZERO and not largest else ""
