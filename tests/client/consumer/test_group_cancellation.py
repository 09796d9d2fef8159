"""A consumer of a group, cancelled at each of its await points: no record is lost, repeated or committed too early, and nothing remains."""

from __future__ import annotations

import asyncio

import pytest
from raftmq import errors
from raftmq.types import Record

from tests.client.consumer.test_group_session import TOPIC, Members, broker, members, part, read
from tests.support.broker.harness import Harness
from tests.support.client.broker_transport import produce
from tests.support.client.cancelling import Moment, cancelled_at

__all__ = ["broker", "members"]

MOMENTS = pytest.mark.parametrize("moment", Moment, ids=lambda moment: moment.name.lower())


def tasks_of_clients() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("raftmq")]


@MOMENTS
async def test_a_cancelled_read_loses_and_repeats_no_record(broker: Harness, members: Members, moment: Moment) -> None:
    topic = await broker.topic(TOPIC, partitions=2)
    consumer = await members.start(max_poll_records=3, auto_commit_interval_ms=1)
    found: list[Record] = []

    async def ask() -> None:
        for records in (await consumer.getmany(timeout_ms=20)).values():
            found.extend(records)

    point, is_reached = 0, True
    while is_reached or len(found) < 24:
        for number in range(2):
            if point % 4 == 0:
                await produce(broker, topic, number, 4, start=point)
        is_reached = await cancelled_at(ask(), point % 20, moment)
        for number in range(2):
            handed_out = sum(record.partition == number for record in found)
            assert await members.committed(number) <= handed_out, "nothing is committed that nobody was handed"
        point += 1
    end = (point + 3) // 4 * 4
    found += await read(consumer, 2 * end - len(found))
    for number in range(2):
        assert [record.offset for record in found if record.partition == number] == list(range(end))


@MOMENTS
async def test_a_cancelled_commit_happens_or_not_and_the_next_one_counts(
    broker: Harness, members: Members, moment: Moment
) -> None:
    topic = await broker.topic(TOPIC, partitions=1)
    await produce(broker, topic, 0, 100)
    consumer = await members.start(enable_auto_commit=False)
    await read(consumer, 100)
    point, is_reached = 0, True
    while is_reached:
        is_reached = await cancelled_at(consumer.commit({part(0): 2 * point + 1}), point, moment)
        assert await members.committed(0) in (2 * point + 1, max(2 * point, -1) if point else -1)
        await consumer.commit({part(0): 2 * point + 2})
        assert await members.committed(0) == 2 * point + 2, "what was cancelled does not come late"
        point += 1
    assert point > 1


@MOMENTS
async def test_cancelled_lookups_change_nothing(broker: Harness, members: Members, moment: Moment) -> None:
    topic = await broker.topic(TOPIC, partitions=1)
    await produce(broker, topic, 0, 10)
    consumer = await members.start(enable_auto_commit=False)
    await read(consumer, 10)
    await consumer.commit({part(0): 4})
    questions = {
        "position": (lambda: consumer.position(part(0)), 10),
        "lag": (lambda: consumer.lag(), {part(0): 0}),
        "committed": (lambda: consumer.committed(part(0)), {part(0): 4}),
        "end_offsets": (lambda: consumer.end_offsets([part(0)]), {part(0): 10}),
    }
    for ask, answer in questions.values():
        point = 0
        while await cancelled_at(ask(), point, moment):
            point += 1
        assert await ask() == answer


@MOMENTS
async def test_a_start_that_is_cancelled_leaves_no_member(broker: Harness, members: Members, moment: Moment) -> None:
    await broker.topic(TOPIC, partitions=1)
    point, is_reached = 0, True
    while is_reached:
        consumer = members.make(TOPIC)
        is_reached = await cancelled_at(consumer.start(), point, moment)
        if is_reached:
            with pytest.raises(errors.ClosedClientError):
                await consumer.getmany()
        await consumer.close()
        assert tasks_of_clients() == []
        point += 1
    group = broker.metadata.state_machine.consumer_group("g")
    assert group is None or not group.members, "each said that it left"


@MOMENTS
async def test_a_cancelled_close_still_closes(broker: Harness, members: Members, moment: Moment) -> None:
    topic = await broker.topic(TOPIC, partitions=1)
    await produce(broker, topic, 0, 10)
    point, is_reached = 0, True
    while is_reached:
        # It has its own group, because a consumer that is cancelled while it leaves may remain a member until its session ends.
        consumer = members.make(TOPIC, enable_auto_commit=False, group_id=f"g{point}")
        await consumer.start()
        await read(consumer, 10)
        is_reached = await cancelled_at(consumer.close(), point, moment)
        await consumer.close()
        with pytest.raises(errors.ClosedClientError):
            await consumer.getmany()
        assert tasks_of_clients() == [], "heartbeats that go on would hold the partitions forever"
        assert await members.committed(0, group=f"g{point}") == -1
        point += 1
    assert point > 3


async def test_close_fails_a_commit_that_was_not_sent_yet(broker: Harness, members: Members) -> None:
    topic = await broker.topic(TOPIC, partitions=1)
    await produce(broker, topic, 0, 10)
    consumer = members.make(enable_auto_commit=False)
    await consumer.start()
    consumer.assign([part(0)])
    await read(consumer, 10)
    waiting = consumer.commit_nowait()  # its call is a task that has not taken its first step when `close` is called
    try:
        raise KeyError("a handler's")
    except KeyError:
        await consumer.close()  # not a clean end, so it waits for no commit
    async with asyncio.timeout(5):
        with pytest.raises(errors.ClosedClientError):
            await waiting
