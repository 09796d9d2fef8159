"""With `single.active.consumer` one consumer at a time has leases of a partition."""

from __future__ import annotations

import asyncio

from raftmq.client.codec.queue_batch import ReceivedMessage
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import Harness, running
from tests.support.broker.queues import Stream, ack_of, poll, put, queue_of, queue_topic, settle


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


class StandingBy(Stream):
    """A stream with credit whose next response is awaited."""

    def __init__(self, node: Harness, topic: pb.Topic, messages: int = 9) -> None:
        super().__init__(node, topic)
        self.credit(messages)
        self.waiting = asyncio.ensure_future(self.messages())

    async def received(self) -> list[ReceivedMessage]:
        found = await asyncio.wait_for(self.waiting, 5)
        self.waiting = asyncio.ensure_future(self.messages())
        return found

    async def end(self) -> None:
        self.waiting.cancel()
        await asyncio.gather(self.waiting, return_exceptions=True)
        await self.close()


async def single(node: Harness) -> pb.Topic:
    return await queue_topic(node, single_active_consumer="true")


async def two(node: Harness, topic: pb.Topic) -> tuple[StandingBy, StandingBy]:
    first = StandingBy(node, topic)
    await turns()
    second = StandingBy(node, topic)
    await turns()
    return first, second


async def test_the_first_consumer_gets_every_message_until_it_ends():
    async with running() as node:
        topic = await single(node)
        first, second = await two(node, topic)
        for number in range(4):
            await put(node, topic, b"%d" % number)
            (message,) = await first.received()
            assert message.value == b"%d" % number
            assert await settle(node, ack_of(topic, message)) == [pb.OK]
        assert not second.waiting.done()
        await first.end()
        await put(node, topic, b"4")
        assert [one.value for one in await second.received()] == [b"4"]
        await second.end()


async def test_without_the_setting_consumers_take_turns():
    async with running() as node:
        topic = await queue_topic(node)
        first, second = await two(node, topic)
        await put(node, topic, b"0")
        await first.received()
        await put(node, topic, b"1")
        await second.received()
        await first.end()
        await second.end()


async def test_the_next_consumer_waits_for_the_leases_of_the_one_that_ended():
    async with running() as node:
        topic = await single(node)
        first, second = await two(node, topic)
        await put(node, topic, b"held", b"held, too")
        held = await first.received()
        await first.end()
        await put(node, topic, b"next")
        assert await settle(node, ack_of(topic, held[0])) == [pb.OK]
        await turns()
        assert not second.waiting.done(), "one lease is left"
        assert await settle(node, ack_of(topic, held[1], pb.RELEASE, delay_ms=0, is_uncounted=True)) == [pb.OK]
        found = await second.received()
        assert sorted(one.value for one in found) == [b"held, too", b"next"]
        await second.end()


async def test_the_next_consumer_gets_the_messages_whose_leases_expire():
    async with running() as node:
        topic = await queue_topic(node, single_active_consumer="true", backoff_base_ms="0", lease_ms="1000")
        first, second = await two(node, topic)
        await put(node, topic, b"held")
        await first.received()
        await first.end()
        node.clock_ms += 1000
        queue_of(node, topic).upkeep.tick()
        (again,) = await second.received()
        assert (again.value, again.attempts) == (b"held", 2)
        await second.end()


async def test_a_consumer_without_credit_is_not_chosen_and_the_chosen_one_stays_without_credit():
    async with running() as node:
        topic = await single(node)
        idle = StandingBy(node, topic, messages=0)
        await turns()
        first, second = await two(node, topic)
        await put(node, topic, b"0")
        (message,) = await first.received()
        first.credit(1)
        await turns()
        await put(node, topic, b"1")
        assert await settle(node, ack_of(topic, message)) == [pb.OK]
        await turns()
        assert not second.waiting.done()
        first.credit(2)
        assert [one.value for one in await first.received()] == [b"1"]
        for stream in (idle, first, second):
            await stream.end()


async def test_a_new_leadership_begins_when_the_leases_that_it_finds_have_ended():
    async with running() as node:
        topic = await single(node)
        first, second = await two(node, topic)
        await put(node, topic, b"held")
        (held,) = await first.received()
        group_id = queue_of(node, topic).replica.group_id
        node.lose_leadership(group_id)
        node.campaign(group_id)
        while not queue_of(node, topic).replica.is_leader:
            await asyncio.shield(queue_of(node, topic).replica.wait_progress())
        await put(node, topic, b"next")
        await turns()
        assert not first.waiting.done(), "the new leader does not know whose the lease is"
        assert not second.waiting.done()
        assert await settle(node, ack_of(topic, held)) == [pb.OK]
        done, _ = await asyncio.wait((first.waiting, second.waiting), timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        await first.end()
        await second.end()


async def test_a_poll_that_must_not_wait_finds_nothing_while_another_consumer_is_active():
    async with running() as node:
        topic = await single(node)
        first, second = await two(node, topic)
        await put(node, topic, b"0")
        (message,) = await first.received()
        await first.end()
        await second.end()
        await put(node, topic, b"1")
        assert await poll(node, topic) == []
        assert await settle(node, ack_of(topic, message)) == [pb.OK]
        assert [one.value for one in await poll(node, topic)] == [b"1"]


async def test_the_setting_takes_effect_when_the_leases_of_all_consumers_have_ended():
    async with running() as node:
        topic = await queue_topic(node)
        first, second = await two(node, topic)
        await put(node, topic, b"0")
        await put(node, topic, b"1")
        held = [*await first.received(), *await second.received()]
        await node.admin.alter_topic(
            pb.AlterTopicRequest(name="jobs", set={"single.active.consumer": "true"}), node.call()
        )
        await put(node, topic, b"2")
        assert await settle(node, ack_of(topic, held[0])) == [pb.OK]
        await turns()
        assert queue_of(node, topic).replica.state_machine.ready_count == 1
        assert await settle(node, ack_of(topic, held[1])) == [pb.OK]
        await asyncio.wait((first.waiting, second.waiting), timeout=5, return_when=asyncio.FIRST_COMPLETED)
        assert first.waiting.done() != second.waiting.done()
        await first.end()
        await second.end()
