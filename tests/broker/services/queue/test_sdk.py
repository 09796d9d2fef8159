"""The SDK's calls about queues against the services, over gRPC."""

from __future__ import annotations

import asyncio
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
from raftmq.fsm.metadata_commands import RegisterNode
from raftmq.fsm.queue.commands import Operation

from tests.support.broker.queue_node import queue_node


async def test_the_sdk_and_the_services_mean_the_same(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        topic = await node.queue()
        server = GrpcServer(node)
        address = f"127.0.0.1:{await server.start('127.0.0.1:0')}"
        await node._metadata(
            RegisterNode("uuid-1", 1, address, "node-1:9401", "", "host-1", "", "1", feature_level_max=2)
        )
        try:
            await topic.put(4, id=["a", "b", "c", "d"], tenant="t", priority=[0, 1, 2, 3])
            async with raftmq.Queue("jobs", bootstrap_servers=address) as queue:
                await _use_queue(queue, topic)
            async with raftmq.Admin(bootstrap_servers=address) as admin:
                await _use_schedules(admin, topic)
        finally:
            await server.stop(0.1)


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
