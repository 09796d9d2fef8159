"""Browse, change, jobs, pauses and statistics against fake brokers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from raftmq import errors
from raftmq.client.base import settings
from raftmq.client.queue.new_message import NewMessage
from raftmq.client.queue.queue import Queue

from tests.support.client.fake_broker import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=2) as cluster:
        cluster.create_queue("jobs", 3)
        yield cluster


@pytest.fixture
async def queue(cluster: FakeCluster) -> AsyncIterator[Queue]:
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        yield queue


async def test_browse_shows_states_without_leasing(queue: Queue) -> None:
    await queue.put(b"ready", id="r", tenant="acme", key="k", headers=[("h", b"1")])
    await queue.put(b"delayed", id="d", delay_ms=60_000)
    await queue.put(b"leased", id="l", priority=-1)
    leased = await queue.get(wait_ms=0)
    while leased is not None and leased.id != "l":
        await leased.release()
        leased = await queue.get(wait_ms=0)
    found = {message.id: message async for message in queue.browse(with_values=True)}
    assert {name: message.state for name, message in found.items()} == {"r": "ready", "d": "delayed", "l": "leased"}
    ready = found["r"]
    assert (ready.value, ready.tenant, ready.key, ready.headers) == (b"ready", "acme", b"k", (("h", b"1"),))
    assert found["d"].due_in_ms > 50_000
    assert [message.id async for message in queue.browse("delayed")] == ["d"]
    assert [message.id async for message in queue.browse(tenant="acme")] == ["r"]
    assert [message.value async for message in queue.browse(id="d")] == [None]


async def test_browse_reads_page_by_page_up_to_a_limit(queue: Queue) -> None:
    count = settings.BROWSE_PAGE_MESSAGES * 2 + 7
    await queue.put_many(NewMessage(b"", id=str(n)) for n in range(count))
    assert len([message async for message in queue.browse()]) == count
    assert len([message async for message in queue.browse(limit=5)]) == 5
    with pytest.raises(errors.InvalidArgumentError, match="ready, delayed"):
        await anext(queue.browse("done"))


async def test_a_message_is_moved_by_its_id_or_by_its_result(queue: Queue) -> None:
    result = await queue.put(b"x", id="x", delay_ms=60_000)
    version = await queue.move("x", delay_ms=0, priority=4)
    message = await queue.get()
    assert message is not None
    assert (message.value, message.priority) == (b"x", 4)
    with pytest.raises(errors.MessageLeasedError):
        await queue.move(result, priority=5)
    await message.release()
    with pytest.raises(errors.VersionConflictError):
        await queue.move(result, priority=5, version=version)
    assert await queue.move(result, not_before=datetime(2040, 1, 1, tzinfo=UTC)) > version
    assert [found.state async for found in queue.browse()] == ["delayed"]


@pytest.mark.parametrize(
    ("version", "error"),
    [(2**32, errors.InvalidArgumentError), (-1, errors.InvalidArgumentError), ("1", TypeError), (1.5, TypeError)],
)
async def test_a_version_that_no_message_has_is_refused(queue: Queue, version, error) -> None:
    await queue.put(b"x", id="x")
    for changing in (
        queue.move("x", delay_ms=0, version=version),
        queue.cancel("x", version=version),
        queue.redrive("x", version=version),
    ):
        with pytest.raises(error, match="version must be"):
            await changing
    with pytest.raises(errors.VersionConflictError):
        await queue.cancel("x", version=2**32 - 1)


@pytest.mark.parametrize("arguments", [{}, {"delay_ms": 1, "not_before": datetime(2040, 1, 1, tzinfo=UTC)}])
async def test_a_move_that_says_nothing_is_refused(queue: Queue, arguments) -> None:
    await queue.put(b"x", id="x")
    with pytest.raises(errors.InvalidArgumentError):
        await queue.move("x", **arguments)


async def test_a_cancelled_message_is_gone(queue: Queue) -> None:
    await queue.put(b"x", id="x")
    await queue.cancel("x")
    assert await queue.get(wait_ms=0) is None
    with pytest.raises(errors.NoSuchMessageError):
        await queue.cancel("x")


async def test_an_id_that_its_key_routed_is_found_in_any_partition(cluster: FakeCluster) -> None:
    cluster.create_queue("ordered", 5, ordered_by_key="1")
    async with Queue("ordered", bootstrap_servers=cluster.bootstrap_servers) as queue:
        for number in range(10):
            await queue.put(b"", key=str(number), id=f"id-{number}")
        for number in range(10):
            await queue.cancel(f"id-{number}")
        assert (await queue.stats()).ready == 0


async def test_dead_messages_are_redriven_one_or_all(queue: Queue) -> None:
    await queue.put_many([NewMessage(b"", id=str(n)) for n in range(5)])
    for _ in range(5):
        message = await queue.get()
        assert message is not None
        await message.reject("broken")
    assert (await queue.stats()).dead == 5
    one = await anext(queue.browse("dead"))
    assert (one.error, one.dead_reason) == ("broken", "rejected")
    assert await queue.redrive(one) == 1
    with pytest.raises(errors.WrongMessageStateError):
        await queue.redrive(one)
    assert (await queue.stats()).dead == 4
    await queue.redrive()
    assert (await queue.stats()).ready == 5


async def test_purge_deletes_by_state_or_everything(queue: Queue) -> None:
    await queue.put_many([NewMessage(b"", id=str(n), delay_ms=60_000 * (n % 2)) for n in range(10)])
    await queue.purge("delayed")
    stats = await queue.stats()
    assert (stats.ready, stats.delayed) == (5, 0)
    await queue.purge()
    assert (await queue.stats()).ready == 0


async def test_statistics_have_the_dwell_times_and_the_largest_clock_difference(
    queue: Queue, cluster: FakeCluster
) -> None:
    cluster.topics["jobs"].partitions[1].queue.clock_behind_ms = 5000
    stats = await queue.stats()
    assert stats.clock_difference_seconds == -5.0
    assert (stats.dwell.count, stats.dwell.total_seconds) == (9, 6.0)
    assert stats.dwell.quantile(1) == 1.0


async def test_a_purge_of_everything_has_no_rate(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put_many([b"a", b"b"])
    with pytest.raises(errors.InvalidArgumentError, match="one step"):
        await queue.purge(messages_per_second=1)
    assert cluster.job_requests == []
    await queue.purge("ready", messages_per_second=1)
    assert [request.messages_per_second for request in cluster.job_requests] == [1, 1, 1]


async def test_jobs_are_shown_and_stopped(queue: Queue, cluster: FakeCluster) -> None:
    cluster.is_job_endless = True
    purging = asyncio.ensure_future(queue.purge("dead"))
    await cluster.wait_queue(lambda: len(cluster.job_requests) == 3)
    jobs = await queue.jobs()
    assert [(job.id, job.kind, job.done_count, job.is_finished) for job in jobs] == [
        (f"{partition}-1", "purge", 3, False) for partition in range(3)
    ]
    assert await queue.cancel_job(jobs[2]) == 3
    await purging
    assert [(request.partition, request.job) for request in cluster.cancelled_jobs] == [(2, 1)]
    with pytest.raises(errors.UnknownJobError):
        await queue.cancel_job("2-1")
    with pytest.raises(errors.UnknownPartitionError):
        await queue.cancel_job("3-1")
    for wrong in ("", "1", "1-2-3", "1-99999999999999999999", "9999999999-1"):
        with pytest.raises(errors.InvalidArgumentError):
            await queue.cancel_job(wrong)
    with pytest.raises(TypeError):
        await queue.cancel_job(7)


async def test_wait_ends_when_the_message_is_finished(queue: Queue) -> None:
    await queue.put(b"x", id="x")
    assert not await queue.wait("x", timeout_ms=1)
    waiting = asyncio.ensure_future(queue.wait("x"))
    message = await queue.get()
    assert message is not None
    await message.ack()
    assert await waiting
    assert await queue.wait("never put")


async def test_a_paused_tenant_is_not_delivered(queue: Queue) -> None:
    await queue.put(b"1", tenant="acme.eu", id="a")
    await queue.put(b"2", tenant="other", id="b")
    await queue.pause("acme", duration_ms=60_000)
    assert [message.value for message in await queue.get_many(wait_ms=0)] == [b"2"]
    assert set((await queue.stats()).paused) == {"acme"}
    await queue.resume("acme")
    message = await queue.get()
    assert message is not None
    assert message.value == b"1"


async def test_calls_follow_a_new_leader(queue: Queue, cluster: FakeCluster) -> None:
    await queue.put_many([NewMessage(b"", id=str(n)) for n in range(20)])
    async with cluster.silence():
        for partition in range(3):
            cluster.move_leader("jobs", partition, 2 - partition % 2, is_announced=False)
        assert (await queue.stats()).ready == 20
        await queue.cancel("7")
    assert (await queue.stats()).ready == 19


async def test_the_clocks_of_all_partitions_are_shown_and_stepped(queue: Queue, cluster: FakeCluster) -> None:
    cluster.topics["jobs"].partitions[1].queue.clock_behind_ms = 7_200_000
    assert await queue.clocks() == {0: 0.0, 1: -7200.0, 2: 0.0}
    assert await queue.step_clocks() == {0: 0.0, 1: 7200.0, 2: 0.0}
    assert await queue.clocks() == {0: 0.0, 1: 0.0, 2: 0.0}


@pytest.fixture
async def hasty(cluster: FakeCluster) -> AsyncIterator[Queue]:
    """A queue that gives a leader up soon."""
    async with Queue("jobs", bootstrap_servers=cluster.bootstrap_servers, request_timeout_ms=300) as queue:
        yield queue


@pytest.mark.parametrize(
    ("leaderless", "outcome"), [((1,), errors.Outcome.UNKNOWN), ((0, 1, 2), errors.Outcome.NOT_APPLIED)]
)
async def test_a_purge_that_began_in_some_partitions_is_not_reported_as_not_applied(
    hasty: Queue, cluster: FakeCluster, leaderless: tuple[int, ...], outcome: errors.Outcome
) -> None:
    for partition in leaderless:
        cluster.move_leader("jobs", partition, 0)
    with pytest.raises(errors.NoLeaderError) as refused:
        await hasty.purge("dead")
    assert refused.value.outcome is outcome
    assert {request.partition for request in cluster.job_requests} == {0, 1, 2} - set(leaderless)


async def test_a_purge_whose_end_cannot_be_seen_is_not_reported_as_not_applied(
    hasty: Queue, cluster: FakeCluster
) -> None:
    cluster.is_job_endless = True
    purging = asyncio.ensure_future(hasty.purge("dead"))
    await cluster.wait_queue(lambda: len(cluster.job_requests) == 3)
    for partition in range(3):
        cluster.move_leader("jobs", partition, 0)
    with pytest.raises(errors.NoLeaderError) as refused:
        await purging
    assert refused.value.outcome is errors.Outcome.UNKNOWN


@pytest.mark.parametrize(("leaderless", "outcome"), [(0, errors.Outcome.NOT_APPLIED), (2, errors.Outcome.UNKNOWN)])
async def test_a_pause_of_some_partitions_is_not_reported_as_not_applied(
    hasty: Queue, cluster: FakeCluster, leaderless: int, outcome: errors.Outcome
) -> None:
    cluster.move_leader("jobs", leaderless, 0)
    with pytest.raises(errors.NoLeaderError) as refused:
        await hasty.pause()
    assert refused.value.outcome is outcome
    assert [bool(one.queue.paused) for one in cluster.topics["jobs"].partitions] == [leaderless > n for n in range(3)]
