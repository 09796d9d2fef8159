"""The SDK's calls about queues against the services, over gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import raftmq
from raftmq.broker.grpc_port.server import GrpcServer
from raftmq.errors import (
    MessageLeasedError,
    NoSuchMessageError,
    UnknownJobError,
    UnknownScheduleError,
    VersionConflictError,
    WrongMessageStateError,
)
from raftmq.fsm.feature_levels import FEATURE_LEVEL
from raftmq.fsm.metadata_commands import RegisterNode
from raftmq.fsm.queue.commands import Operation

from tests.support.broker.queue_node import Queue, queue_node


@asynccontextmanager
async def served(directory: Path, **config: str) -> AsyncIterator[tuple[Queue, str]]:
    """Serve a queue topic, and yield it with the address."""
    async with queue_node(directory) as node:
        topic = await node.queue(**config)
        server = GrpcServer(node, node.forwarder)
        address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        await node._metadata(
            RegisterNode("uuid-1", 1, address, "node-1:9401", "", "host-1", "", "1", feature_level_max=FEATURE_LEVEL)
        )
        try:
            yield topic, address
        finally:
            await server.stop(0.1)


async def test_the_sdk_and_the_services_mean_the_same(tmp_path: Path) -> None:
    async with served(tmp_path) as (topic, address):
        await topic.put(4, id=["a", "b", "c", "d"], tenant="t", priority=[0, 1, 2, 3])
        async with raftmq.Queue("jobs", bootstrap_servers=address) as queue:
            await _use_queue(queue, topic)
        async with raftmq.Admin(bootstrap_servers=address) as admin:
            await _use_schedules(admin, topic)


async def test_the_active_program_gets_messages_also_without_waiting(tmp_path: Path) -> None:
    async with served(tmp_path, single_active_consumer="true") as (topic, address):
        await topic.put(3)
        async with (
            raftmq.Queue("jobs", bootstrap_servers=address) as active,
            raftmq.Queue("jobs", bootstrap_servers=address) as standby,
        ):
            first = await active.get(wait_ms=10_000)
            assert first is not None
            await first.ack()
            second = await active.get(wait_ms=0)
            assert second is not None
            await second.ack()
            assert await standby.get(wait_ms=0) is None
            third = await active.get(wait_ms=0)
            assert third is not None
            await third.ack()
            assert await active.get(wait_ms=0) is None


async def test_the_sdk_leases_the_next_message_of_a_key(tmp_path: Path) -> None:
    async with (
        served(tmp_path, ordered_by_key="true") as (_, address),
        raftmq.Queue("jobs", bootstrap_servers=address) as queue,
    ):
        await queue.put_many(raftmq.NewMessage(b"%d" % n, key="k", tenant="t") for n in range(2))
        await queue.put(b"root", key=b"\xff")
        first = await queue.get(wait_ms=0, key="k", tenants=["t"])
        assert first is not None
        assert first.value == b"0"
        assert await queue.get(wait_ms=0, key="k", tenants=["t"]) is None
        waiting = asyncio.ensure_future(queue.get(wait_ms=10_000, key="k", tenants=["t"]))
        await first.ack()
        second = await waiting
        assert second is not None
        assert second.value == b"1"
        root = await queue.get(wait_ms=0, key=b"\xff")
        assert root is not None
        assert root.value == b"root"
        await queue.ack_many([second, root])


async def test_a_dead_message_keeps_its_id_until_it_is_redriven_or_removed(tmp_path: Path) -> None:
    """The next put must not lose a dead message and its error."""
    async with (
        served(tmp_path) as (_, address),
        raftmq.Queue("jobs", bootstrap_servers=address) as queue,
    ):
        first = await queue.put(b"old", id="x")
        message = await queue.get(wait_ms=10_000)
        assert message is not None
        await message.reject("broken")
        for replace in (False, True):
            again = await queue.put(b"new", id="x", replace=replace)
            assert (again.is_deduplicated, again.sequence, again.replaced_sequence) == (True, first.sequence, None)
        await queue.redrive("x")
        replacing = await queue.put(b"new", id="x", replace=True)
        assert (replacing.is_deduplicated, replacing.replaced_sequence) == (False, first.sequence)
        message = await queue.get(wait_ms=10_000)
        assert message is not None
        assert message.value == b"new"
        await message.reject("broken again")
        await queue.cancel("x")
        assert not (await queue.put(b"newest", id="x")).is_deduplicated


async def _use_queue(queue: raftmq.Queue[bytes], topic: object) -> None:
    (token,) = await topic.lease(1)  # type: ignore[attr-defined]
    with pytest.raises(MessageLeasedError):
        await queue.cancel("a")
    shown = [message async for message in queue.browse("ready", with_values=True)]
    assert [(one.id, one.priority, one.value) for one in shown] == [
        ("b", 1, b"body"),
        ("c", 2, b"body"),
        ("d", 3, b"body"),
    ]
    moved = await queue.move("b", delay_ms=60_000, version=shown[0].version)
    with pytest.raises(VersionConflictError):
        await queue.move("b", delay_ms=0, version=moved - 1)
    with pytest.raises(WrongMessageStateError):
        await queue.redrive("b")
    await queue.cancel("c")
    with pytest.raises(NoSuchMessageError):
        await queue.cancel("c")
    waiting = asyncio.ensure_future(queue.wait("a", timeout_ms=10_000))
    await topic.settle(Operation.REJECT, token, error="broken")  # type: ignore[attr-defined]
    stats = await queue.stats()
    assert (stats.ready, stats.delayed, stats.dead, stats.tenants["t"].dead) == (1, 1, 1, 1)
    assert (stats.dwell.count, abs(stats.clock_difference_seconds) < 1) == (1, True)
    await queue.redrive()
    assert (await queue.stats()).dead == 0
    await queue.pause()
    assert (await queue.stats()).paused == {"": None}
    await queue.purge("ready")
    assert (await queue.stats()).ready == 0
    assert await waiting
    await queue.resume()
    await queue.put_many([b"slow"] * 50)
    purging = asyncio.ensure_future(queue.purge("ready", messages_per_second=1))
    while not (jobs := [job for job in await queue.jobs() if not job.is_finished]):
        await asyncio.sleep(0)
    assert (jobs[0].kind, jobs[0].partition) == ("purge", 0)
    left = 50 - await queue.cancel_job(jobs[0].id)
    await purging
    with pytest.raises(UnknownJobError):
        await queue.cancel_job(jobs[0])
    assert (await queue.stats()).ready == left > 0
    assert await queue.purge() == 1 + left
    assert [message async for message in queue.browse()] == []


async def _use_schedules(admin: raftmq.Admin, topic: object) -> None:
    made = await admin.put_schedule("jobs", "nightly", b"work", cron="0 3 * * *", timezone="Europe/Berlin")
    assert (await admin.list_schedules("jobs")) == [made]
    await admin.pause_schedule("jobs", "nightly")
    await admin.run_schedule("jobs", "nightly")
    await admin.resume_schedule("jobs", "nightly")
    assert not (await admin.list_schedules("jobs"))[0].is_paused
    assert len(await topic.lease(9)) == 1  # type: ignore[attr-defined]
    await admin.delete_schedule("jobs", "nightly")
    with pytest.raises(UnknownScheduleError):
        await admin.delete_schedule("jobs", "nightly")


async def test_consumers_that_wait_get_large_messages_although_none_is_settled(tmp_path: Path) -> None:
    """The credit in bytes was renewed with a settlement alone: of 100 long handlers, four got a message of 1 MiB each, and 96 waited for one."""
    async with (
        served(tmp_path) as (_, address),
        raftmq.Queue("jobs", bootstrap_servers=address) as queue,
    ):
        await queue.put_many([b"x" * 900_000] * 12)
        found = await asyncio.gather(*(queue.get(wait_ms=5_000) for _ in range(12)))
        assert [message is not None for message in found] == [True] * 12


@pytest.mark.parametrize("batch_bytes", ["1024", "20000"])
async def test_batches_are_as_small_as_the_topic_wants_them(tmp_path: Path, batch_bytes: str) -> None:
    """The client filled them up to its own limit alone, and all messages of a batch above the topic's were refused."""
    async with (
        served(tmp_path, max_batch_bytes=batch_bytes, max_message_bytes="200") as (_, address),
        raftmq.Queue("jobs", bootstrap_servers=address) as queue,
    ):
        messages = [raftmq.NewMessage(b"x" * 100, tenant=f"t{'e' * 90}{n}", id=f"i{'d' * 90}{n}") for n in range(300)]
        assert len(await queue.put_many(messages)) == 300
        first = await queue.get(wait_ms=5_000)
        assert first is not None
        await first.ack(put=[b"y" * 150] * 10)
        assert (await queue.stats()).ready == 309
