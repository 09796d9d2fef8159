"""Schedules: put, list, change and delete them, and their firings by the leader, over real files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from zlib import crc32

import pytest
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue import cron
from raftmq.broker.partitions.queue import schedules as schedules_module
from raftmq.client.codec.queue_batch import encode_messages
from raftmq.fsm.queue.commands import ANY_VERSION, PutSchedule
from raftmq.fsm.queue.results import ScheduleChanged
from raftmq.fsm.queue.schedules import ScheduleRow
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import EntryKind
from raftmq.types import NodeId

from tests.support.broker.queue_node import Queue, QueueNode, queue_node
from tests.support.fsm.queue.host import COLD

DAY = 24 * 3_600_000
DISK_FULL = RequestError(pb.DISK_FULL, "the disk is full")


@pytest.fixture(params=[None, COLD], ids=["in memory", "windows of one"])
async def queue(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Queue]:
    async with queue_node(tmp_path, request.param) as node:
        yield await node.queue()


@pytest.fixture
async def warm(tmp_path: Path) -> AsyncIterator[Queue]:
    async with queue_node(tmp_path) as node:
        yield await node.queue()


async def put(queue: Queue, name: str = "nightly", value: bytes = b"value", **fields: object) -> pb.PutScheduleResponse:
    rule = fields.pop("rule", pb.ScheduleRule(every_ms=DAY))
    fields.setdefault("message", encode_messages([value]).seal())
    request = pb.PutScheduleRequest(topic_id=queue.topic.topic_id, name=name, rule=rule, **fields)
    return await queue.node.queue_schedules.put_schedule(request, queue.node.call())


async def change(queue: Queue, name: str = "nightly", **fields: object) -> pb.ChangeScheduleResponse:
    request = pb.ChangeScheduleRequest(topic_id=queue.topic.topic_id, name=name, **fields)
    return await queue.node.queue_schedules.change_schedule(request, queue.node.call())


async def delete(queue: Queue, name: str = "nightly", **fields: object) -> None:
    request = pb.DeleteScheduleRequest(topic_id=queue.topic.topic_id, name=name, **fields)
    await queue.node.queue_schedules.delete_schedule(request, queue.node.call())


async def listed(queue: Queue, **fields: object) -> list[pb.Schedule]:
    request = pb.ListSchedulesRequest(topic_id=queue.topic.topic_id, **fields)
    return list((await queue.node.queue_schedules.list_schedules(request, queue.node.call())).schedules)


async def fired(queue: Queue, count: int) -> None:
    """Wait until so many messages are ready."""
    await queue.progress_until(lambda: queue.partition.statistics.counts().ready >= count)


def schedule_of(queue: Queue, name: str = "nightly") -> ScheduleRow:
    row = queue.machine.schedule(name)
    assert row is not None
    return row


def code(refused: pytest.ExceptionInfo[RequestError]) -> int:
    return refused.value.code


async def test_a_schedule_fires_when_it_is_due_and_again_after_a_restart(queue: Queue) -> None:
    answer = await put(queue, value=b"nightly work")
    assert answer.version == 1
    assert DAY - 10_000 < answer.next_due_ms - queue.now_ms <= DAY
    queue.node.pass_time(DAY)
    await fired(queue, 1)
    await queue.restart()
    (found,) = await listed(queue)
    assert (found.last_fired_ms, found.next_due_ms) == (answer.next_due_ms, answer.next_due_ms + DAY)
    assert (found.version, found.skipped, found.is_paused, found.rule) == (1, 0, False, pb.ScheduleRule(every_ms=DAY))
    queue.node.pass_time(DAY)
    await fired(queue, 2)
    (body, _) = await queue.partition.read_bodies([0, 1])
    assert body is not None
    assert bytes(body.body) == b"nightly work"


async def test_the_timer_of_a_schedule_runs_by_itself(warm: Queue) -> None:
    await put(warm, rule=pb.ScheduleRule(at_ms=warm.now_ms + 50))
    await fired(warm, 1)
    assert (await listed(warm))[0].next_due_ms == -1
    await warm.lease(1)
    entries = warm.partition.replica.core.last_index
    await asyncio.sleep(0.05)
    assert warm.partition.replica.core.last_index == entries, "nothing is proposed for a schedule that is over"


async def test_a_due_schedule_whose_firing_is_refused_proposes_nothing_over_and_over(warm: Queue) -> None:
    """A `Tick` would not serve it, and the next one would follow immediately."""
    await put(warm, rule=pb.ScheduleRule(at_ms=warm.now_ms + 20))
    warm.node.refusal = DISK_FULL
    entries = warm.partition.replica.core.last_index
    await asyncio.sleep(0.1)
    assert warm.partition.replica.core.last_index == entries
    warm.node.refusal = None
    await fired(warm, 1)


async def test_a_firing_waits_while_the_partition_is_full(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        queue = await node.queue(partition_max_messages="1")
        await queue.put(1)
        await put(queue, rule=pb.ScheduleRule(every_ms=DAY))
        node.pass_time(DAY)
        await asyncio.sleep(0.02)
        assert queue.partition.statistics.counts().ready == 1
        await queue.settle(1, *await queue.lease(1))
        await fired(queue, 1)


async def test_many_schedules_that_are_due_together_fire_once_each(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules_module, "FIRINGS_MAX", 7)
    due_ms = queue.now_ms + 60_000
    for number in range(30):
        await put(queue, f"s{number}", rule=pb.ScheduleRule(at_ms=due_ms))
    queue.node.pass_time(60_000)
    await fired(queue, 30)
    assert all(schedule.last_fired_ms == due_ms for schedule in await listed(queue))
    assert queue.partition.statistics.totals.enqueued == 30


@pytest.mark.parametrize(
    ("catch_up", "ready", "skipped"), [(pb.SKIP_MISSED, 0, 3), (pb.FIRE_ONCE, 1, 2), (pb.FIRE_ALL, 3, 0)]
)
async def test_missed_firings_are_made_up_for_as_the_rule_says(
    warm: Queue, catch_up: pb.CatchUp, ready: int, skipped: int
) -> None:
    await put(warm, rule=pb.ScheduleRule(every_ms=DAY, catch_up=catch_up))
    warm.node.pass_time(3 * DAY + 3_600_000)
    await warm.progress_until(lambda: schedule_of(warm).next_due > warm.now_ms)
    assert warm.partition.statistics.counts().ready == ready
    assert (await listed(warm))[0].skipped == skipped
    assert dict(warm.partition.samples())["raftmq_queue_skipped_firings_total"] == skipped


async def test_a_schedule_that_is_put_again_keeps_its_times(queue: Queue) -> None:
    first = await put(queue)
    queue.node.pass_time(DAY // 2)
    again = await put(queue, value=b"another value")
    assert (again.version, again.next_due_ms) == (2, first.next_due_ms)
    other = await put(queue, rule=pb.ScheduleRule(every_ms=2 * DAY))
    assert other.next_due_ms > first.next_due_ms + DAY
    queue.node.pass_time(2 * DAY)
    await fired(queue, 1)
    assert (await listed(queue))[0].next_due_ms == other.next_due_ms + 2 * DAY


async def test_versions_guard_against_concurrent_changes(queue: Queue) -> None:
    assert (await put(queue, version=0)).version == 1
    for version in (0, 7):
        with pytest.raises(RequestError) as refused:
            await put(queue, version=version)
        assert code(refused) == pb.VERSION_CONFLICT
        with pytest.raises(RequestError) as refused:
            await change(queue, pause=True, version=version)
        assert code(refused) == pb.VERSION_CONFLICT
        with pytest.raises(RequestError) as refused:
            await change(queue, run_now=True, version=version)
        assert code(refused) == pb.VERSION_CONFLICT
        with pytest.raises(RequestError) as refused:
            await delete(queue, version=version)
        assert code(refused) == pb.VERSION_CONFLICT
    changed = await change(queue, pause=True, version=1)
    assert changed.version > 1
    await delete(queue, version=changed.version)
    assert await listed(queue) == []


async def test_an_unknown_schedule_is_refused(warm: Queue) -> None:
    for call in (change(warm, pause=True), change(warm, run_now=True), delete(warm)):
        with pytest.raises(RequestError, match=r"there is no schedule '\w+'$") as refused:
            await call
        assert code(refused) == pb.UNKNOWN_SCHEDULE


async def test_a_paused_schedule_goes_on_with_the_next_due_time(queue: Queue) -> None:
    first = await put(queue)
    await change(queue, pause=True)
    queue.node.pass_time(DAY + 3_600_000)
    await queue.put(1, delay=DAY)
    assert queue.partition.statistics.counts().ready == 0
    answer = await change(queue, resume=True)
    assert answer.next_due_ms == first.next_due_ms + DAY
    assert (await change(queue, resume=True)).next_due_ms == answer.next_due_ms
    assert (await listed(queue))[0].skipped == 0
    with pytest.raises(RequestError, match="not both"):
        await change(queue, pause=True, resume=True)


async def test_a_schedule_that_is_put_again_stays_paused(queue: Queue) -> None:
    """A deploy puts all its schedules. It once resumed those that an operator had paused, and fired a thousand times."""
    catching_up = pb.ScheduleRule(every_ms=DAY, catch_up=pb.FIRE_ALL)
    first = await put(queue, rule=catching_up)
    assert not first.is_paused
    await change(queue, pause=True)
    queue.node.pass_time(3 * DAY + 3_600_000)
    for rule in (catching_up, pb.ScheduleRule(every_ms=DAY // 2, catch_up=pb.FIRE_ALL), catching_up):
        assert (await put(queue, rule=rule)).is_paused
        assert (await listed(queue))[0].is_paused
    await queue.put(1, delay=DAY)
    assert queue.partition.statistics.counts().ready == 0


async def test_a_schedule_that_is_put_and_resumed_goes_on_with_the_next_due_time(queue: Queue) -> None:
    catching_up = pb.ScheduleRule(every_ms=DAY, catch_up=pb.FIRE_ALL)
    first = await put(queue, rule=catching_up, is_paused=True)
    assert first.is_paused
    queue.node.pass_time(3 * DAY + 3_600_000)
    answer = await put(queue, rule=catching_up, is_paused=False)
    assert (answer.is_paused, answer.next_due_ms) == (False, first.next_due_ms + 3 * DAY)
    await queue.put(1, delay=DAY)
    assert (queue.partition.statistics.counts().ready, schedule_of(queue).fired_count) == (0, 0)
    assert (await put(queue, rule=catching_up)).next_due_ms == answer.next_due_ms


async def test_a_schedule_runs_additionally_also_while_it_is_paused(queue: Queue) -> None:
    first = await put(queue, is_paused=True)
    answer = await change(queue, run_now=True)
    assert (answer.version, answer.next_due_ms) == (first.version, first.next_due_ms)
    assert queue.partition.statistics.counts().ready == 1
    await change(queue, resume=True, run_now=True)
    assert queue.partition.statistics.counts().ready == 2
    queue.node.refusal = DISK_FULL
    with pytest.raises(RequestError) as refused:
        await change(queue, run_now=True)
    assert code(refused) == pb.DISK_FULL
    queue.node.refusal = None
    await queue.put(1)
    assert queue.partition.statistics.counts().ready == 3


async def test_a_run_is_refused_like_a_put_when_the_partition_is_full(tmp_path: Path) -> None:
    async with queue_node(tmp_path) as node:
        queue = await node.queue(partition_max_messages="1")
        await put(queue)
        await change(queue, run_now=True)
        with pytest.raises(RequestError) as refused:
            await change(queue, run_now=True)
        assert code(refused) == pb.QUEUE_FULL


async def test_what_makes_messages_is_refused_like_an_append_and_a_deletion_is_not(warm: Queue) -> None:
    await put(warm, is_paused=True)
    warm.node.refusal = DISK_FULL
    for call in (put(warm, "other"), change(warm, resume=True)):
        with pytest.raises(RequestError) as refused:
            await call
        assert code(refused) == pb.DISK_FULL
    await change(warm, pause=True)
    await delete(warm)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": ""}, pb.INVALID_ARGUMENT),
        ({"name": "n" * 250}, pb.INVALID_ARGUMENT),
        ({"rule": pb.ScheduleRule()}, pb.INVALID_ARGUMENT),
        ({"rule": pb.ScheduleRule(at_ms=1)}, pb.INVALID_ARGUMENT),
        ({"message": b"no batch"}, pb.CORRUPT_BATCH),
        ({"message": encode_messages([b"a", b"b"]).seal()}, pb.INVALID_ARGUMENT),
        ({"message": encode_messages([b"a"]).seal(producer_id=7)}, pb.INVALID_ARGUMENT),
        ({"value": bytes(range(256)) * 300}, pb.RECORD_TOO_LARGE),
    ],
    ids=repr,
)
async def test_a_wrong_schedule_is_refused(warm: Queue, fields: dict[str, object], expected: pb.ErrorCode) -> None:
    with pytest.raises(RequestError) as refused:
        await put(warm, **fields)
    assert code(refused) == expected
    assert await listed(warm) == []


async def test_the_number_of_schedules_is_bounded(warm: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftmq.fsm.queue.schedules.SCHEDULES_MAX", 2)
    for name in "ab":
        await put(warm, name)
    with pytest.raises(RequestError) as refused:
        await put(warm, "c")
    assert code(refused) == pb.TOO_MANY_SCHEDULES
    await put(warm, "b")


async def test_schedules_are_listed_by_name_in_pages(queue: Queue) -> None:
    for name in ("c", "a", "d", "b"):
        await put(queue, name)
    await queue.restart()
    assert [one.name for one in await listed(queue, limit=3)] == ["a", "b", "c"]
    assert [one.name for one in await listed(queue, limit=3, after_name="c")] == ["d"]
    assert [one.name for one in await listed(queue, name="b")] == ["b"]
    assert await listed(queue, name="nobody") == []
    with pytest.raises(RequestError, match="at most 1000"):
        await listed(queue, limit=1_001)


async def test_a_list_is_refused_only_if_every_partition_refuses(warm: Queue) -> None:
    await put(warm)
    assert [(one.name, one.error.code) for one in await listed(warm, partitions=[0, 7])] == [
        ("nightly", pb.OK),
        ("", pb.UNKNOWN_PARTITION),
    ]
    with pytest.raises(RequestError) as refused:
        await listed(warm, partitions=[7])
    assert code(refused) == pb.UNKNOWN_PARTITION


async def test_a_schedule_that_this_broker_cannot_compute_waits_and_holds_up_no_other(
    warm: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules_module, "FIRINGS_MAX", 1)
    due_ms = warm.now_ms + 60_000
    unreadable = PutSchedule("a newer one", b"\xc1", due_ms - 1, version=ANY_VERSION)
    await warm.partition.commands.execute(unreadable, ScheduleChanged, warm.node.loop.time() + 5)
    await put(warm, rule=pb.ScheduleRule(at_ms=due_ms))
    monkeypatch.setattr(schedules_module, "RETRY_SECONDS", 0.01)
    warm.node.pass_time(60_000)
    await fired(warm, 1)
    assert schedule_of(warm, "a newer one").next_due == due_ms - 1
    assert [one.rule for one in await listed(warm, name="a newer one")] == [pb.ScheduleRule()]


async def test_only_the_leader_fires(warm: Queue) -> None:
    await put(warm)
    warm.node.lose_leadership(warm.partition.replica.group_id, to=NodeId(2))
    warm.node.pass_time(DAY)
    await asyncio.sleep(0.02)
    assert warm.machine.state.tallies.enqueued == 0
    warm.node.campaign(warm.partition.replica.group_id)
    await fired(warm, 1)


async def test_a_firing_in_flight_loses_against_a_deletion(warm: Queue) -> None:
    """Its entry takes a sequence and makes no message."""
    await put(warm)
    warm.node.hold_commits = True
    deleting = asyncio.ensure_future(delete(warm))
    await asyncio.sleep(0.01)
    warm.node.pass_time(DAY)
    await asyncio.sleep(0.01)
    log = warm.partition.replica.log
    kinds = [
        log.header(index).kind for index in range(log.recent.first_index, warm.partition.replica.core.last_index + 1)
    ]
    assert kinds[-1] is EntryKind.DATA
    warm.node.release_commits()
    await deleting
    await warm.put(1)
    assert await warm.lease(9) == [(1, 1)]


@pytest.mark.parametrize("is_put", [True, False])
async def test_a_change_after_a_firing_in_flight_does_not_repeat_it(warm: Queue, *, is_put: bool) -> None:
    await put(warm)
    warm.node.hold_commits = True
    warm.node.pass_time(DAY)
    while not warm.partition.replica.core.last_index > warm.machine.applied_index:
        await asyncio.sleep(0.001)
    changing = asyncio.ensure_future(put(warm) if is_put else change(warm, resume=True))
    await asyncio.sleep(0.01)
    assert not changing.done()
    warm.node.release_commits()
    await changing
    row = schedule_of(warm)
    assert row.fired_count == 1
    assert row.next_due == row.last_due + DAY
    warm.node.pass_time(1000)
    await warm.put(1)
    assert schedule_of(warm).fired_count == 1


async def test_a_put_that_races_with_another_one_begins_again(warm: Queue) -> None:
    await put(warm)
    warm.node.hold_commits = True
    putting = [
        asyncio.ensure_future(put(warm, rule=pb.ScheduleRule(every_ms=interval_ms))) for interval_ms in (DAY // 2, DAY)
    ]
    await asyncio.sleep(0.01)
    warm.node.release_commits()
    await asyncio.gather(*putting)
    row = schedule_of(warm)
    assert (await listed(warm))[0].rule.every_ms == DAY
    assert row.next_due > warm.now_ms + DAY - 60_000, "the due time is that of the rule"


async def test_a_schedule_that_this_broker_cannot_compute_is_not_resumed(
    warm: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told that there is no next due time, and never fired again."""
    await put(warm, rule=pb.ScheduleRule(cron="0 3 * * *", timezone="Europe/Berlin"), is_paused=True)
    warm.node.pass_time(2 * DAY)
    with monkeypatch.context() as patch:
        patch.setattr(cron, "_zone", lambda _name: None)
        with pytest.raises(RequestError, match="Europe/Berlin"):
            await change(warm, resume=True)
    assert (await change(warm, resume=True)).next_due_ms > warm.now_ms


async def test_a_resumption_that_races_with_a_put_follows_the_new_rule(queue: Queue) -> None:
    """It set the next due time of the rule that was just replaced."""
    await put(queue, rule=pb.ScheduleRule(every_ms=DAY), is_paused=True)
    queue.node.pass_time(2 * DAY)
    await asyncio.gather(put(queue, rule=pb.ScheduleRule(every_ms=3_600_000)), change(queue, resume=True))
    row = schedule_of(queue)
    assert (row.is_paused, row.next_due - queue.partition.clock.read_ms() <= 3_600_000) == (False, True)


async def test_a_full_tenant_holds_up_no_schedule_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All schedules of the partition once waited for the first one that was refused."""
    monkeypatch.setattr(schedules_module, "FIRINGS_MAX", 2)
    async with queue_node(tmp_path) as node:
        queue = await node.queue(partition_tenant_max_messages="1")
        await queue.put(1, tenant="full")
        due_ms = queue.now_ms + 60_000
        for number in range(5):
            message = encode_messages([b"v"], tenants=["full"]).seal()
            await put(queue, f"full{number}", message=message, rule=pb.ScheduleRule(at_ms=due_ms))
        message = encode_messages([b"v"], tenants=["other"]).seal()
        await put(queue, "other", message=message, rule=pb.ScheduleRule(at_ms=due_ms + 1))
        node.pass_time(60_001)
        await fired(queue, 2)
        assert schedule_of(queue, "other").fired_count == 1
        assert schedule_of(queue, "full0").next_due == due_ms
        monkeypatch.setattr(schedules_module, "TENANT_REFUSED_SECONDS", 0.01)
        queue.partition.schedules._resting.clear()  # their rest has passed
        await queue.settle(1, *await queue.lease(1, 60_000, "full"))
        queue.partition.schedules.wake()
        await queue.progress_until(lambda: sum(schedule_of(queue, f"full{n}").fired_count for n in range(5)) == 1)


async def test_a_firing_is_on_time_after_the_queue_clock_jumped(warm: Queue) -> None:
    """While a machine is suspended the queue clock goes on, and the timers of the loop stand still."""
    await put(warm)
    warm.node.offset_ms += DAY
    await asyncio.sleep(0.02)
    assert warm.machine.state.tallies.enqueued == 0, "no timer of the loop knows"
    await warm.partition.maintain()
    await fired(warm, 1)


async def test_a_firing_whose_leader_was_doubted_is_made_up_for(warm: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    await put(warm, rule=pb.ScheduleRule(at_ms=warm.now_ms + 20))
    with monkeypatch.context() as patch:
        patch.setattr(type(warm.partition.replica.core), "is_confirmed_leader", property(lambda _: False))
        await asyncio.sleep(0.1)
    await warm.partition.maintain()
    await fired(warm, 1)


KEY_OF_0, KEY_OF_1 = (next(b"%d" % n for n in range(99) if crc32(b"%d" % n) % 2 == number) for number in (0, 1))
"""Keys of the first and of the second of two partitions."""


@pytest.mark.parametrize(
    ("config", "partitions", "key", "is_refused"),
    [
        ({"ordered_by_key": "true"}, 2, KEY_OF_1, True),
        ({"ordered_by_key": "true"}, 2, KEY_OF_0, False),
        ({"ordered_by_key": "true"}, 2, None, False),
        ({"ordered_by_key": "true"}, 1, KEY_OF_1, False),
        ({}, 2, KEY_OF_1, False),
    ],
)
async def test_a_key_is_refused_where_it_would_not_be_in_its_partition(
    tmp_path: Path, config: dict[str, str], partitions: int, key: bytes | None, *, is_refused: bool
) -> None:
    """A put and a firing of the same key would be in two partitions, and leased together."""
    async with queue_node(tmp_path) as node:
        queue = await node.queue(partitions=partitions, **config)
        putting = put(queue, message=encode_messages([b"v"], keys=[key]).seal())
        if is_refused:
            with pytest.raises(RequestError, match="leave out its key") as refused:
                await putting
            assert code(refused) == pb.INVALID_ARGUMENT
        else:
            await putting
        assert len(await listed(queue)) == (not is_refused)


async def test_a_schedule_does_not_fire_where_its_key_no_longer_belongs(tmp_path: Path) -> None:
    """Its messages and those that producers put with the key would be leased together."""
    async with queue_node(tmp_path) as node:
        queue = await node.queue(ordered_by_key="true")
        for name, key in (("stays", KEY_OF_0), ("moves", KEY_OF_1)):
            await put(queue, name, message=encode_messages([name.encode()], keys=[key]).seal())
        await node.admin.add_partitions(pb.AddPartitionsRequest(name="jobs", total=2, rehash=True), node.call())
        node.pass_time(DAY)
        await fired(queue, 1)
        await asyncio.sleep(0.1)
        assert schedule_of(queue, "moves").fired_count == 0
        assert schedule_of(queue, "stays").fired_count == 1
        assert queue.partition.statistics.counts().ready == 1
        with pytest.raises(RequestError, match="belongs to partition 1") as refused:
            await change(queue, "moves", run_now=True)
        assert code(refused) == pb.INVALID_ARGUMENT
        await put(queue, "moves", message=encode_messages([b"v"], keys=[KEY_OF_0]).seal())
        node.pass_time(DAY)
        await queue.progress_until(lambda: schedule_of(queue, "moves").fired_count == 1)


async def test_a_schedule_with_a_key_is_late_at_most_while_the_metadata_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of the partition was asked from the metadata. The refusal stopped the replica."""
    async with queue_node(tmp_path) as node:
        queue = await node.queue()
        await put(queue, message=encode_messages([b"v"], keys=[b"k"]).seal())
        replica = queue.partition.replica

        def missing(self: QueueNode) -> None:
            raise RequestError(pb.NOT_READY, "this broker has not received the cluster's metadata yet")

        with monkeypatch.context() as patch:
            patch.setattr(QueueNode, "metadata", property(missing))
            node.offset_ms += 24 * 3_600_000
            for listener in replica.progress_listeners:  # as the engine does, which stops the replica after any error
                listener()
