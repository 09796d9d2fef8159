"""Schedules of queue topics against fake brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest
from raftmq import Admin, errors
from raftmq.client.base import settings
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import QueueBodies, validate_queue

from tests.support.client.fake_broker import FakeCluster
from tests.support.client.fake_queue import FakeQueue, FakeQueueService
from tests.support.client.memory_transport import MemoryTransport


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2) as cluster:
        yield cluster


@pytest.fixture
def queues(cluster: FakeCluster) -> list[FakeQueue]:
    return cluster.create_queue("jobs", 3)


@pytest.fixture
async def admin(cluster: FakeCluster, queues: list[FakeQueue]) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        yield admin


async def test_a_schedule_has_its_rule_and_its_message(admin: Admin, queues: list[FakeQueue]) -> None:
    made = await admin.put_schedule(
        "jobs",
        "report",
        b"weekly",
        cron="0 9 * * mon-fri",
        timezone="Europe/Berlin",
        catch_up="one",
        tenant="acme",
        priority=4,
    )
    assert (made.name, made.version, made.next_due_ms, made.catch_up) == ("report", 1, 5000, "one")
    queue = queues[made.partition]
    rule = queue.schedules["report"].rule
    assert (rule.cron, rule.timezone, rule.catch_up) == ("0 9 * * mon-fri", "Europe/Berlin", pb.FIRE_ONCE)
    batch = queue.scheduled["report"]
    _, fields = validate_queue(batch, 1 << 20)
    assert bytes(QueueBodies(batch).body(0)) == b"weekly"
    assert (fields.tenants.to_list(), list(fields.priorities or ())) == ([b"acme"], [4])


async def test_a_schedule_is_found_after_partitions_were_added(
    admin: Admin, cluster: FakeCluster, queues: list[FakeQueue]
) -> None:
    """Its place is that of the number of partitions at the topic's creation. Otherwise it would fire twice after its next put."""
    names = [f"s{number}" for number in range(8)]
    before = [await admin.put_schedule("jobs", name, b"", every=timedelta(minutes=5)) for name in names]
    cluster.add_partitions("jobs", 5)
    after = [await admin.put_schedule("jobs", name, b"", every=timedelta(minutes=5)) for name in names]
    assert [one.partition for one in after] == [one.partition for one in before]
    assert len(await admin.list_schedules("jobs")) == len(names)
    for name in names:
        await admin.delete_schedule("jobs", name)
    assert await admin.list_schedules("jobs") == []


async def test_a_schedule_is_replaced_by_name_and_version(admin: Admin) -> None:
    await admin.put_schedule("jobs", "s", b"", every=timedelta(minutes=5), version=0)
    with pytest.raises(errors.VersionConflictError):
        await admin.put_schedule("jobs", "s", b"", every=timedelta(minutes=5), version=0)
    again = await admin.put_schedule("jobs", "s", b"", at=datetime(2040, 1, 1, tzinfo=UTC), version=1)
    assert (again.version, again.every_ms, again.at_ms) == (2, 0, 2_208_988_800_000)


async def test_schedules_of_all_partitions_are_listed_by_name(admin: Admin) -> None:
    names = [f"s{number:02}" for number in range(20)]
    for name in reversed(names):
        await admin.put_schedule("jobs", name, b"", every=timedelta(hours=1))
    listed = await admin.list_schedules("jobs")
    assert [schedule.name for schedule in listed] == names
    assert {schedule.partition for schedule in listed} == {0, 1, 2}


async def test_a_schedule_is_paused_resumed_run_and_deleted(admin: Admin) -> None:
    await admin.put_schedule("jobs", "s", b"", every=timedelta(hours=1), paused=True)
    await admin.resume_schedule("jobs", "s")
    assert not (await admin.list_schedules("jobs"))[0].is_paused
    await admin.pause_schedule("jobs", "s")
    await admin.run_schedule("jobs", "s")
    (schedule,) = await admin.list_schedules("jobs")
    assert schedule.is_paused
    assert schedule.last_fired_ms is not None
    await admin.delete_schedule("jobs", "s")
    assert await admin.list_schedules("jobs") == []
    for call in (admin.delete_schedule, admin.pause_schedule, admin.run_schedule):
        with pytest.raises(errors.UnknownScheduleError):
            await call("jobs", "s")


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"cron": "* * * * *", "every": timedelta(hours=1)},
        {"cron": "* * * *"},
        {"every": timedelta(milliseconds=10)},
        {"at": datetime(2040, 1, 1)},  # noqa: DTZ001 - that is the mistake
        {"cron": "* * * * *", "catch_up": "some"},
        {"cron": "* * * * *", "tenant": "a..b"},
    ],
)
async def test_a_rule_that_no_broker_takes_is_refused(admin: Admin, arguments) -> None:
    with pytest.raises(errors.InvalidArgumentError):
        await admin.put_schedule("jobs", "s", b"", **arguments)


async def test_a_log_topic_has_no_schedules(admin: Admin, cluster: FakeCluster) -> None:
    cluster.create_topic("log")
    with pytest.raises(errors.TopicKindMismatchError):
        await admin.list_schedules("log")


async def test_a_frozen_leader_does_not_use_up_the_time_of_a_list(
    cluster: FakeCluster, queues: list[FakeQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor leads within seconds."""
    monkeypatch.setattr(settings, "LATE_ANSWER_SECONDS", 0.1)
    answer = FakeQueueService.ListSchedules
    frozen = cluster.topics["jobs"].partitions[0].leader
    transport = MemoryTransport(cluster)

    async def list_schedules(service: FakeQueueService, request: pb.ListSchedulesRequest, context: object) -> object:
        if service.broker.broker_id == frozen:
            for number in range(3):
                cluster.move_leader("jobs", number, broker=3 - frozen)
            await asyncio.Event().wait()
        return await answer(service, request, context)

    monkeypatch.setattr(FakeQueueService, "ListSchedules", list_schedules)
    async with Admin(bootstrap_servers=transport.addresses, transport=transport, request_timeout_ms=20_000) as admin:
        async with asyncio.timeout(5):
            assert await admin.list_schedules("jobs") == []
