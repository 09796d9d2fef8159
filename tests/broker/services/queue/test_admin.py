"""Changes, waiting, jobs, pauses and the clock, over real files."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue import finishes, upkeep
from raftmq.fsm.queue import tenants
from raftmq.fsm.queue.commands import JobKind, Operation, StartJob
from raftmq.fsm.queue.limits import JOBS_MAX
from raftmq.fsm.queue.results import JobStarted
from raftmq.proto import queue_pb2 as pb
from raftmq.queue_batch import MessageColumns
from raftmq.types import NodeId

from tests.support.broker.queue_node import Queue, queue_node
from tests.support.fsm.queue.host import COLD

DISK_FULL = RequestError(pb.DISK_FULL, "the disk is full")


@pytest.fixture(params=[None, COLD], ids=["in memory", "windows of one"])
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Queue]:
    async with queue_node(tmp_path, request.param) as node:
        yield await node.queue()


@pytest.fixture
async def warm(tmp_path: Path) -> AsyncIterator[Queue]:
    async with queue_node(tmp_path) as node:
        yield await node.queue()


async def change(queue: Queue, *changes: pb.MessageChange) -> list[tuple[int, int]]:
    request = pb.ChangeRequest(topic_id=queue.topic.topic_id, changes=changes)
    answer = await queue.node.queue_admin.change(request, queue.node.call())
    return [(result.code, result.version) for result in answer.results]


async def start_job(queue: Queue, kind: pb.JobKind, **fields: object) -> pb.StartJobResponse:
    request = pb.StartJobRequest(topic_id=queue.topic.topic_id, kind=kind, **fields)
    return await queue.node.queue_admin.start_job(request, queue.node.call())


async def list_jobs(queue: Queue, *partitions: int) -> list[tuple[int, int, int]]:
    request = pb.ListJobsRequest(topic_id=queue.topic.topic_id, partitions=partitions)
    answer = await queue.node.queue_admin.list_jobs(request, queue.node.call())
    return [(job.job, job.kind, job.done_count) for job in answer.jobs if not job.is_finished]


async def job_ends(queue: Queue) -> None:
    await queue.progress_until(lambda: not queue.machine.jobs.by_key)


async def pause(queue: Queue, tenant: str, pause_ms: int) -> None:
    request = pb.PauseRequest(topic_id=queue.topic.topic_id, tenant=tenant, pause_ms=pause_ms)
    await queue.node.queue_admin.pause(request, queue.node.call())


async def wait_finished(queue: Queue, name: str, max_wait_ms: int = 20_000) -> pb.WaitFinishedResponse:
    request = pb.WaitFinishedRequest(topic_id=queue.topic.topic_id, id=name, max_wait_ms=max_wait_ms)
    return await queue.node.queue_admin.wait_finished(request, queue.node.call(30))


async def is_woken(waiting: asyncio.Future[pb.WaitFinishedResponse]) -> bool:
    """Return whether a call that waits for 20 s answers long before that: a look at the end of the time would find the message finished."""
    async with asyncio.timeout(10):
        return (await waiting).is_finished


async def bury(queue: Queue, count: int) -> None:
    """Make ready messages dead."""
    tokens = await queue.lease(count)
    assert len(tokens) == count
    assert await queue.settle(Operation.REJECT, *tokens, error="broken") == (0,)


def counts(queue: Queue) -> tuple[int, ...]:
    """Return the ready, delayed, leased, dead and blocked messages."""
    return tuple(queue.partition.statistics.counts())


# ---------------------------------------------------------------------------------------------------------------- changes


async def test_waiting_messages_are_moved_and_canceled(queue: Queue) -> None:
    await queue.put(2, id=["a", "b"])
    await queue.restart()
    assert await change(
        queue,
        pb.MessageChange(operation=pb.MOVE, id="a", delay_ms=60_000),
        pb.MessageChange(operation=pb.CANCEL, sequence=1),
    ) == [(pb.OK, 1), (pb.OK, 0)]
    assert await queue.lease(9) == []
    assert counts(queue) == (0, 1, 0, 0, 0)
    at_ms = queue.now_ms - 5
    assert await change(queue, pb.MessageChange(operation=pb.MOVE, id="a", not_before_ms=at_ms)) == [(pb.OK, 2)]
    assert await queue.lease(9) == [(0, 1)]


async def test_a_dead_message_is_redriven_and_keeps_its_lease_number(queue: Queue) -> None:
    await queue.put(1)
    await bury(queue, 1)
    assert await change(queue, pb.MessageChange(operation=pb.REDRIVE, sequence=0)) == [(pb.OK, 3)]
    assert await queue.lease(1) == [(0, 2)]


async def test_a_dead_message_is_canceled(queue: Queue) -> None:
    await queue.put(1, id="a")
    await bury(queue, 1)
    await queue.write_back()
    assert await change(queue, pb.MessageChange(operation=pb.CANCEL, id="a")) == [(pb.OK, 0)]
    assert counts(queue) == (0, 0, 0, 0, 0)


async def test_each_change_has_its_own_result(queue: Queue) -> None:
    await queue.put(3, priority=[0, 1, 2])
    await queue.lease(1)
    await queue.write_back()
    assert await change(
        queue,
        pb.MessageChange(operation=pb.CANCEL, sequence=0),
        pb.MessageChange(operation=pb.CANCEL, sequence=7),
        pb.MessageChange(operation=pb.CANCEL, id="nobody"),
        pb.MessageChange(operation=pb.MOVE, sequence=1, priority=-1, version=3),
        pb.MessageChange(operation=pb.REDRIVE, sequence=1),
        pb.MessageChange(operation=pb.MOVE, sequence=2, priority=-1, version=0),
    ) == [
        (pb.MESSAGE_LEASED, 1),
        (pb.NO_SUCH_MESSAGE, 0),
        (pb.NO_SUCH_MESSAGE, 0),
        (pb.VERSION_CONFLICT, 0),
        (pb.WRONG_MESSAGE_STATE, 0),
        (pb.OK, 1),
    ]
    assert await queue.lease(2) == [(2, 1), (1, 1)]


@pytest.mark.parametrize(
    "wrong",
    [
        pb.MessageChange(sequence=1),
        pb.MessageChange(operation=9, sequence=1),
        pb.MessageChange(operation=pb.MOVE, sequence=1),
        pb.MessageChange(operation=pb.CANCEL, sequence=1, priority=1),
        pb.MessageChange(operation=pb.REDRIVE, sequence=1, delay_ms=1),
        pb.MessageChange(operation=pb.MOVE, sequence=1, delay_ms=1, not_before_ms=1),
        pb.MessageChange(operation=pb.MOVE, sequence=1, delay_ms=1 << 60),
        pb.MessageChange(operation=pb.MOVE, sequence=1, not_before_ms=-1),
        pb.MessageChange(operation=pb.CANCEL, id="i" * 250),
        pb.MessageChange(operation=pb.CANCEL, sequence=(1 << 64) - 1),
    ],
    ids=repr,
)
async def test_a_request_with_a_wrong_change_changes_nothing(warm: Queue, wrong: pb.MessageChange) -> None:
    await warm.put(2)
    with pytest.raises(RequestError) as refused:
        await change(warm, pb.MessageChange(operation=pb.CANCEL, sequence=0), wrong)
    assert refused.value.code == pb.INVALID_ARGUMENT
    assert counts(warm) == (2, 0, 0, 0, 0)


async def test_a_request_has_a_bounded_number_of_changes(warm: Queue) -> None:
    for number in (0, 501):
        with pytest.raises(RequestError, match="1 to 500 changes"):
            await change(warm, *[pb.MessageChange(operation=pb.CANCEL, sequence=1)] * number)
    assert len(await change(warm, *[pb.MessageChange(operation=pb.CANCEL, sequence=1)] * 500)) == 500


async def test_while_appends_are_refused_messages_are_canceled_and_not_moved(warm: Queue) -> None:
    await warm.put(2)
    warm.node.refusal = DISK_FULL
    assert await change(warm, pb.MessageChange(operation=pb.CANCEL, sequence=0)) == [(pb.OK, 0)]
    with pytest.raises(RequestError, match="only cancel") as refused:
        await change(warm, pb.MessageChange(operation=pb.MOVE, sequence=1, priority=1))
    assert refused.value.code == pb.DISK_FULL


async def test_a_topic_of_another_kind_is_refused(warm: Queue) -> None:
    log = await warm.node.topic("a-log")
    with pytest.raises(RequestError) as refused:
        await change(Queue(warm.node, log), pb.MessageChange(operation=pb.CANCEL, sequence=0))
    assert refused.value.code == pb.TOPIC_KIND_MISMATCH


async def test_a_broker_that_does_not_lead_refuses_with_the_leader(warm: Queue) -> None:
    warm.node.lose_leadership(warm.partition.replica.group_id, to=NodeId(2))
    with pytest.raises(RequestError) as refused:
        await change(warm, pb.MessageChange(operation=pb.CANCEL, sequence=0))
    assert refused.value.code == pb.NOT_LEADER
    assert refused.value.detail.leader.broker_id == 2
    with pytest.raises(RequestError) as refused:
        await list_jobs(warm, 0)
    assert refused.value.code == pb.NOT_LEADER
    assert await list_jobs(warm) == [], "without numbers only partitions that it leads are meant"


# ---------------------------------------------------------------------------------------------------------------- waiting


async def test_waiting_ends_when_the_message_is_accepted(queue: Queue) -> None:
    await queue.put(2, id=["a", "b"])
    await queue.restart()
    waiting = asyncio.ensure_future(wait_finished(queue, "a"))
    tokens = await queue.lease(2)
    assert not waiting.done()
    await queue.settle(Operation.ACCEPT, tokens[1])
    await queue.write_back()
    assert not waiting.done()
    await queue.settle(Operation.ACCEPT, tokens[0])
    assert await is_woken(waiting)


async def test_waiting_ends_for_a_message_that_never_had_a_row(queue: Queue) -> None:
    await queue.put(1, id="a")
    waiting = asyncio.ensure_future(wait_finished(queue, "a"))
    while not queue.partition.finishes._watches:
        await asyncio.sleep(0)
    await queue.settle(Operation.ACCEPT, *await queue.lease(1))
    assert await is_woken(waiting)


async def test_waiting_ends_for_a_message_that_was_on_disk_alone(queue: Queue) -> None:
    await queue.put(1, id="a", delay=60_000)
    await queue.restart()
    waiting = asyncio.ensure_future(wait_finished(queue, "a"))
    while not queue.partition.finishes._watches:
        await asyncio.sleep(0)
    await asyncio.sleep(0.05)  # its last look at the message is over
    await change(queue, pb.MessageChange(operation=pb.CANCEL, sequence=0))
    assert await is_woken(waiting)


async def test_waiting_goes_on_after_a_release_and_a_redrive(queue: Queue) -> None:
    await queue.put(1, id="a")
    waiting = asyncio.ensure_future(wait_finished(queue, "a"))
    for operation in (Operation.RELEASE, Operation.REJECT):
        await queue.settle(operation, *await queue.lease(1))
        await queue.write_back()
    await change(queue, pb.MessageChange(operation=pb.REDRIVE, id="a"))
    assert not waiting.done()
    await change(queue, pb.MessageChange(operation=pb.CANCEL, id="a"))
    assert await is_woken(waiting)


async def test_without_a_message_nothing_is_waited_for(queue: Queue) -> None:
    assert (await wait_finished(queue, "nobody")).is_finished
    await queue.put(1, id="a")
    await start_job(queue, pb.PURGE_JOB)
    assert (await wait_finished(queue, "a")).is_finished


async def test_waiting_ends_in_time_with_the_state(queue: Queue) -> None:
    await queue.put(1, id="a", delay=60_000)
    await queue.restart()
    answer = await wait_finished(queue, "a", max_wait_ms=20)
    assert (answer.is_finished, answer.state) == (False, pb.DELAYED)
    assert not queue.partition.finishes._watches


async def test_waiting_ends_with_the_leadership(warm: Queue) -> None:
    await warm.put(1, id="a")
    waiting = asyncio.ensure_future(wait_finished(warm, "a"))
    while not warm.partition.finishes._watches:
        await asyncio.sleep(0)
    warm.node.lose_leadership(warm.partition.replica.group_id, to=NodeId(2))
    with pytest.raises(RequestError) as refused:
        await waiting
    assert refused.value.code == pb.NOT_LEADER


async def test_the_number_of_waiting_calls_is_bounded(warm: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finishes, "WATCHES_MAX", 0)
    await warm.put(1, id="a")
    with pytest.raises(RequestError) as refused:
        await wait_finished(warm, "a")
    assert refused.value.code == pb.THROTTLED


# ------------------------------------------------------------------------------------------------------------------- jobs


async def test_a_purge_of_everything_is_done_when_it_is_answered(queue: Queue) -> None:
    await queue.put(3, id=["a", "b", "c"])
    await queue.lease(1)
    await queue.write_back()
    answer = await start_job(queue, pb.PURGE_JOB)
    assert (answer.job, answer.done_count) == (0, 3)
    assert counts(queue) == (0, 0, 0, 0, 0)
    await queue.put(1, id="a")
    assert counts(queue) == (1, 0, 0, 0, 0), "the ids are purged, too"


async def test_a_purge_of_many_tenants_goes_on_by_itself_and_with_the_next_leader(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tenants, "TENANTS_RESET_MAX", 3)
    await queue.put(40, tenant=[f"t{number}" for number in range(40)])
    queue.node.hold_commits = True
    starting = asyncio.ensure_future(start_job(queue, pb.PURGE_JOB))
    await asyncio.sleep(0.01)
    queue.node.release_commits()
    assert (await starting).done_count == 40
    assert counts(queue) == (0, 0, 0, 0, 0)
    await queue.put(2, tenant=["t39", "new"])
    await queue.restart()
    assert counts(queue) == (2, 0, 0, 0, 0)
    await queue.progress_until(lambda: not queue.machine.state.is_purging)
    assert sorted(await queue.lease(9)) == [(40, 1), (41, 1)]


async def test_a_purge_by_state_and_tenant_is_a_job_that_the_leader_ends(queue: Queue) -> None:
    await queue.put(4, tenant=["a", "a.x", "ab", "b"])
    await queue.put(2, tenant="a", delay=60_000)
    await queue.write_back()
    answer = await start_job(queue, pb.PURGE_JOB, states=[pb.READY], tenants=["a"])
    assert answer.job == 1
    await job_ends(queue)
    assert counts(queue) == (2, 2, 0, 0, 0)
    assert await list_jobs(queue, 0) == []
    assert [job.done_count for job in queue.partition.jobs.finished.values()] == [2]


async def test_a_job_of_many_slices_goes_on_with_the_next_leader(queue: Queue) -> None:
    await queue.put(900)
    before_ms = queue.now_ms + 60_000
    queue.node.hold_commits = True
    starting = asyncio.ensure_future(start_job(queue, pb.PURGE_JOB, before_ms=before_ms))
    await asyncio.sleep(0.01)
    queue.node.release_commits()
    await starting
    await queue.progress_until(lambda: counts(queue)[0] < 900)
    await queue.restart()
    await job_ends(queue)
    assert counts(queue) == (0, 0, 0, 0, 0)


async def test_dead_messages_are_redriven_in_the_order_of_their_deaths(queue: Queue) -> None:
    await queue.put(3, priority=[2, 1, 0])
    for _ in range(3):
        await bury(queue, 1)
    await queue.write_back()
    await start_job(queue, pb.REDRIVE_JOB)
    await job_ends(queue)
    assert counts(queue) == (3, 0, 0, 0, 0)


async def test_a_job_with_a_rate_takes_its_time_and_can_be_canceled(warm: Queue) -> None:
    await warm.put(100)
    began_at = warm.node.loop.time()
    job = (await start_job(warm, pb.PURGE_JOB, states=[pb.READY], messages_per_second=20)).job
    await warm.progress_until(lambda: counts(warm)[0] <= 96)
    await asyncio.sleep(0.05)
    ((number, kind, done_count),) = await list_jobs(warm)
    assert (number, kind, done_count) == (job, pb.PURGE_JOB, 100 - counts(warm)[0])
    assert done_count <= 2 + 20 * (warm.node.loop.time() - began_at), "a tenth of a second is worth two messages"
    request = pb.CancelJobRequest(topic_id=warm.topic.topic_id, job=job)
    assert (await warm.node.queue_admin.cancel_job(request, warm.node.call())).done_count < 100
    assert await list_jobs(warm) == []
    with pytest.raises(RequestError) as refused:
        await warm.node.queue_admin.cancel_job(request, warm.node.call())
    assert refused.value.code == pb.UNKNOWN_JOB


async def test_a_job_whose_leader_was_doubted_goes_on(warm: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    await warm.put(5)
    await start_job(warm, pb.PURGE_JOB, states=[pb.READY], messages_per_second=20)
    with monkeypatch.context() as patch:
        patch.setattr(type(warm.partition.replica.core), "is_confirmed_leader", property(lambda _: False))
        await asyncio.sleep(0.25)
    assert warm.machine.jobs.by_key
    await warm.partition.maintain()
    await job_ends(warm)
    assert counts(warm)[0] == 0


async def test_a_slow_job_does_not_hold_up_another_one(warm: Queue) -> None:
    await warm.put(600, tenant=["slow"] * 100 + ["fast"] * 500)
    slow = (await start_job(warm, pb.PURGE_JOB, tenants=["slow"], messages_per_second=1)).job
    await start_job(warm, pb.PURGE_JOB, tenants=["fast"])
    await warm.progress_until(lambda: len(warm.machine.jobs.by_key) == 1)
    assert [job for job, *_ in await list_jobs(warm)] == [slow]


async def test_a_redrive_waits_while_appends_are_refused_and_a_purge_does_not(warm: Queue) -> None:
    await warm.put(3)
    await bury(warm, 3)
    warm.node.refusal = DISK_FULL
    with pytest.raises(RequestError) as refused:
        await start_job(warm, pb.REDRIVE_JOB)
    assert refused.value.code == pb.DISK_FULL
    await warm.partition.commands.execute(StartJob(JobKind.REDRIVE), JobStarted, warm.node.loop.time() + 5)
    await start_job(warm, pb.PURGE_JOB, states=[pb.READY])
    await warm.progress_until(lambda: len(warm.machine.jobs.by_key) == 1)
    assert counts(warm) == (0, 0, 0, 3, 0)
    warm.node.refusal = None
    await job_ends(warm)
    assert counts(warm) == (3, 0, 0, 0, 0)


async def test_the_number_of_jobs_is_bounded(warm: Queue) -> None:
    await warm.put(1_000)
    for _ in range(JOBS_MAX):
        await start_job(warm, pb.PURGE_JOB, states=[pb.READY], messages_per_second=1)
    with pytest.raises(RequestError) as refused:
        await start_job(warm, pb.PURGE_JOB, states=[pb.READY], messages_per_second=1)
    assert refused.value.code == pb.TOO_MANY_JOBS
    await start_job(warm, pb.PURGE_JOB)
    assert await list_jobs(warm) == []


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": pb.NO_JOB},
        {"kind": pb.REDRIVE_JOB, "states": [pb.READY]},
        {"kind": pb.PURGE_JOB, "states": [9]},
        {"kind": pb.PURGE_JOB, "before_ms": -1},
        {"kind": pb.PURGE_JOB, "messages_per_second": 5},
        {"kind": pb.PURGE_JOB, "tenants": ["a..b"]},
        {"kind": pb.PURGE_JOB, "tenants": ["a"] * 17},
        {"kind": pb.PURGE_JOB, "tenants": ["a"], "messages_per_second": 1 << 31},
    ],
    ids=repr,
)
async def test_a_wrong_job_is_refused(warm: Queue, fields: dict[str, object]) -> None:
    await warm.put(1)
    with pytest.raises(RequestError) as refused:
        await start_job(warm, **fields)
    assert refused.value.code == pb.INVALID_ARGUMENT
    assert counts(warm) == (1, 0, 0, 0, 0)


async def test_dead_messages_beyond_the_number_to_keep_are_removed(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        queue = await node.queue(partition_dead_max_messages="2")
        await queue.put(5)
        await bury(queue, 5)
        await queue.partition.maintain()
        assert await list_jobs(queue) == [], "jobs of the broker are not shown"
        await job_ends(queue)
        assert counts(queue) == (0, 0, 0, 2, 0)
        await queue.partition.maintain()
        assert not queue.machine.jobs.by_key


async def test_dead_messages_beyond_the_bytes_to_keep_are_removed(tmp_path: Path) -> None:
    """Their number and their age were bounded alone: 100,000 messages of 1 MiB are 100 GiB."""
    async with queue_node(tmp_path) as node:
        queue = await node.queue(partition_dead_max_bytes="25")
        await queue.put_columns(MessageColumns([b"x" * 10] * 5))
        await bury(queue, 5)
        assert queue.machine.state.scalars.dead_bytes == 50
        await queue.partition.maintain()
        await job_ends(queue)
        assert counts(queue) == (0, 0, 0, 2, 0)
        assert queue.machine.state.scalars.dead_bytes == 20
        await queue.restart()
        await queue.partition.maintain()
        assert not queue.machine.jobs.by_key


async def test_the_rows_of_a_large_purge_do_not_keep_the_others_from_their_upkeep(
    warm: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention and maps of all partitions of a broker waited until the last row of a purge was deleted, 256 to a sync."""
    slices = 0

    def delete_purged(*_: object) -> bool:
        nonlocal slices
        slices += 1
        return slices < 1_000_000

    monkeypatch.setattr(upkeep, "delete_purged", delete_purged)
    monkeypatch.setattr(warm.node, "timing", dataclasses.replace(warm.node.timing, retention_check_seconds=0.05))
    async with asyncio.timeout(20):
        await warm.partition.maintain()
    assert 0 < slices < 1_000_000


async def test_dead_messages_are_removed_after_their_time(tmp_path: Path) -> None:
    async with queue_node(tmp_path, COLD) as node:
        queue = await node.queue(dead_retention_ms="60000")
        await queue.put(2)
        await bury(queue, 1)
        await queue.write_back()
        node.pass_time(59_000)
        await bury(queue, 1)
        await queue.partition.maintain()
        assert not queue.machine.jobs.by_key
        node.pass_time(2_000)
        await queue.put(1)
        await queue.partition.maintain()
        await job_ends(queue)
        assert counts(queue) == (1, 0, 0, 1, 0)
        assert dict(queue.partition.samples())["raftmq_queue_removed_dead_total"] == 1
        await start_job(queue, pb.PURGE_JOB, states=[pb.DEAD])
        await job_ends(queue)
        assert counts(queue) == (1, 0, 0, 0, 0)
        assert dict(queue.partition.samples())["raftmq_queue_removed_dead_total"] == 1, "a user removed the other one"


# --------------------------------------------------------------------------------------------------------- pauses, clock


async def test_a_tenant_and_those_below_it_are_paused_and_resumed(queue: Queue) -> None:
    await queue.put(3, tenant=["a", "a.x", "b"])
    await pause(queue, "a", -1)
    await queue.restart()
    assert await queue.lease(9) == [(2, 1)]
    await pause(queue, "a", 0)
    assert sorted(await queue.lease(9)) == [(0, 1), (1, 1)]


async def test_a_pause_ends_by_itself(warm: Queue) -> None:
    await warm.put(1)
    await pause(warm, "", 60_000)
    assert await warm.lease(1) == []
    warm.node.pass_time(60_001)
    assert await warm.lease(1) == [(0, 1)]


async def test_the_resumption_of_an_unknown_tenant_does_not_create_it(warm: Queue) -> None:
    await pause(warm, "nobody", 0)
    assert warm.machine.tenant("nobody") is None
    for tenant, pause_ms in (("a..b", 5), ("a", -2), ("a", 1 << 60)):
        with pytest.raises(RequestError) as refused:
            await pause(warm, tenant, pause_ms)
        assert refused.value.code == pb.INVALID_ARGUMENT


async def test_a_pause_passes_while_appends_are_refused(warm: Queue) -> None:
    await warm.put(1)
    warm.node.refusal = DISK_FULL
    await pause(warm, "", -1)
    assert await warm.lease(1) == []


async def test_the_clock_is_stepped_to_the_median_and_the_log_carries_it(warm: Queue) -> None:
    await warm.put(1, delay=3_600_000)
    warm.node.median_offset_ms = 7_200_000
    request = pb.StepClockRequest(topic_id=warm.topic.topic_id)
    answer = await warm.node.queue_admin.step_clock(request, warm.node.call())
    (clock,) = answer.partitions
    assert not clock.HasField("error")
    assert 7_100_000 < clock.stepped_ms < 7_300_000
    assert await warm.lease(1) == [(0, 1)]
    answer = await warm.node.queue_admin.step_clock(request, warm.node.call())
    assert answer.partitions[0].stepped_ms < 1_000
