"""A stream sends messages within its credit, answers settlements, and loses no message when it ends: over gRPC and a data connection."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from raftmq.broker.services.queue import consumer as consumer_module
from raftmq.broker.services.queue import stream as stream_module
from raftmq.client.codec.queue_batch import ReceivedMessage
from raftmq.fsm.queue.commands import Lease, decode_commands
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import Entry, EntryKind

from tests.support.broker.harness import Harness, running
from tests.support.broker.queues import (
    DataStreamClient,
    Stream,
    StreamEndedError,
    ack_of,
    poll,
    put,
    queue_of,
    queue_topic,
    received,
    settle,
)

OpenStream = type[Stream] | type[DataStreamClient]


@pytest.fixture(params=[Stream, DataStreamClient], ids=["grpc", "data"])
def open_stream(request: pytest.FixtureRequest) -> OpenStream:
    return cast("OpenStream", request.param)


async def turns() -> None:
    for _ in range(30):
        await asyncio.sleep(0)


async def test_a_stream_sends_messages_within_its_credit(open_stream: OpenStream):
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, b"0", b"1", b"2", b"3")
        stream = open_stream(node, topic, lease_ms=5000)
        stream.credit(3)
        first = await stream.next()
        assert first.ready == 1
        values = [value async for value in _values(stream, first, 3)]
        assert values == [b"0", b"1", b"2"]
        waiting = asyncio.ensure_future(stream.next())
        await turns()
        assert not waiting.done(), "the credit is used up"
        stream.credit(4)
        assert len((await waiting).messages) == 1
        await stream.close()


async def _values(stream: Stream | DataStreamClient, first: pb.QueueStreamResponse, count: int):
    messages = received(first.messages)
    while len(messages) < count:
        messages += received((await stream.next()).messages)
    for message in messages:
        yield message.value


async def drained(stream: Stream | DataStreamClient, count: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    while len(found) < count:
        found += await stream.messages()
    return found


async def test_a_stream_holds_a_bounded_number_of_unsettled_messages_whatever_its_credit(
    open_stream: OpenStream, monkeypatch: pytest.MonkeyPatch
):
    """Leased messages stay in the memory of every replica, and a client may name any credit."""
    monkeypatch.setattr(consumer_module, "UNSETTLED_MAX", 3)
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, *[b"x"] * 9)
        machine = queue_of(node, topic).replica.state_machine
        stream = open_stream(node, topic)
        stream.credit(1_000_000_000)
        first = await drained(stream, 3)
        await turns()
        assert machine.leased_count == 3
        stream.credit(1_000_000_000, acks=[ack_of(topic, first[0], pb.RENEW)], correlation_id=1)
        assert (await stream.next()).correlation_id == 1
        await turns()
        assert machine.leased_count == 3, "a renewed message is not settled"
        stream.credit(1_000_000_000, acks=[ack_of(topic, first[0])], correlation_id=2)
        answer = await stream.next()
        assert answer.correlation_id == 2
        (fourth,) = received(answer.messages) or await drained(stream, 1)  # it may come with the answer
        assert machine.leased_count == 3
        assert await settle(node, ack_of(topic, first[1])) == [pb.OK], "not on the stream"
        assert await settle(node, ack_of(topic, fourth)) == [pb.OK]
        await drained(stream, 2)
        assert machine.leased_count == 3
        await stream.close()


async def test_messages_that_are_accepted_automatically_are_never_unsettled(
    open_stream: OpenStream, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(consumer_module, "UNSETTLED_MAX", 3)
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, *[b"x"] * 9)
        stream = open_stream(node, topic, auto_accept=True)
        stream.credit(100)
        assert len(await drained(stream, 9)) == 9
        await stream.close()


async def test_repeating_a_limit_grants_nothing_twice(open_stream: OpenStream):
    async with running() as node:
        topic = await queue_topic(node)
        stream = open_stream(node, topic)
        for _ in range(3):
            stream.credit(2)
        await put(node, topic, *[b"x"] * 10)
        waiting = asyncio.ensure_future(stream.next())
        await turns()
        found = len((await waiting).messages)
        await turns()
        counts = queue_of(node, topic).replica.state_machine
        assert counts.ready_count == 8, found
        await stream.close()


async def test_a_lower_limit_withdraws_credit(open_stream: OpenStream):
    async with running() as node:
        topic = await queue_topic(node)
        stream = open_stream(node, topic)
        stream.credit(5)
        pending = asyncio.ensure_future(stream.next())
        await turns()
        stream.credit(0, 0)
        await turns()
        await put(node, topic, b"x")
        await turns()
        assert not pending.done()
        assert [one.value for one in await poll(node, topic)] == [b"x"]
        pending.cancel()


async def test_settlements_are_answered_by_their_correlation_id(open_stream: OpenStream):
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, b"0", b"1")
        stream = open_stream(node, topic)
        stream.credit(2)
        messages = await stream.messages()
        while len(messages) < 2:
            messages += await stream.messages()
        stream.credit(2, acks=[ack_of(topic, messages[0])], correlation_id=7)
        answer = await stream.next()
        assert (answer.correlation_id, list(answer.results[0].codes)) == (7, [pb.OK])
        stream.credit(2, acks=[ack_of(topic, messages[1]), pb.PartitionAck(topic_id=99)], correlation_id=8)
        answer = await stream.next()
        assert [result.error.code for result in answer.results] == [pb.OK, pb.UNKNOWN_TOPIC]
        await stream.close()


async def test_goodbye_ends_the_stream_when_its_settlements_are_answered(open_stream: OpenStream):
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, b"0", b"1")
        stream = open_stream(node, topic)
        stream.credit(1)
        (message,) = await stream.messages()
        node.hold_commits = True
        stream.credit(1, acks=[ack_of(topic, message)], correlation_id=1, goodbye=True)
        ending = asyncio.ensure_future(stream.next())
        await turns()
        assert not ending.done()
        node.release_commits()
        assert (await ending).correlation_id == 1
        with pytest.raises(StreamEndedError):
            await stream.next()
        assert queue_of(node, topic).leases.consumers == 0


async def test_messages_that_were_not_written_are_given_back_when_the_client_is_gone(open_stream: OpenStream):
    async with running() as node:
        topic = await queue_topic(node)
        stream = open_stream(node, topic)
        stream.credit(10)
        pending = asyncio.ensure_future(stream.next())
        await turns()
        await put(node, topic, b"0")
        assert len((await pending).messages) == 1, "written"
        await put(node, topic, b"1", b"2")  # nobody reads the next response
        await turns()
        await stream.close()
        await turns()
        again = await poll(node, topic, 10)
        assert [(one.value, one.attempts, one.lease_number) for one in again] == [(b"1", 1, 2), (b"2", 1, 2)]


async def test_a_client_that_does_not_read_is_not_sent_more(open_stream: OpenStream, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream_module, "UNSENT_BYTES_MAX", 3000)
    async with running() as node:
        topic = await queue_topic(node)
        stream = open_stream(node, topic)
        stream.credit(1000, 1 << 30)
        pending = asyncio.ensure_future(stream.next())
        await turns()
        for _ in range(10):
            await put(node, topic, b"x" * 1000)
            await turns()
        machine = queue_of(node, topic).replica.state_machine
        assert machine.ready_count >= 5
        found = len((await pending).messages)
        while found < 10:
            found += len(await stream.messages())
        assert machine.ready_count == 0
        await stream.close()


async def test_a_wrong_beginning_ends_the_stream_with_an_error(open_stream: OpenStream):
    async with running() as node:
        topic = await queue_topic(node)
        log = await node.topic("flights")
        for target, options, code in (
            (log, {}, pb.TOPIC_KIND_MISMATCH),
            (topic, {"tenants": ["a..b"]}, pb.INVALID_ARGUMENT),
            (pb.Topic(topic_id=77), {}, pb.UNKNOWN_TOPIC),
        ):
            stream = open_stream(node, target, **options)
            stream.credit(1)
            assert (await stream.next()).error.code == code
            with pytest.raises(StreamEndedError):
                await stream.next()
        stream = open_stream(node, topic)
        stream.send_raw(pb.QueueStreamRequest(messages_limit=1))
        assert (await stream.next()).error.code == pb.INVALID_ARGUMENT


async def test_a_stream_ends_with_its_topic(open_stream: OpenStream):
    async with running() as node:
        topic = await queue_topic(node)
        stream = open_stream(node, topic)
        stream.credit(1)
        pending = asyncio.ensure_future(stream.next())
        await turns()
        await node.admin.delete_topic(pb.DeleteTopicRequest(name="jobs"), node.call())
        assert (await asyncio.wait_for(pending, 5)).error.code == pb.UNKNOWN_TOPIC


async def test_a_stream_takes_from_a_partition_that_was_added_later(open_stream: OpenStream):
    async with running() as node:
        topic = await queue_topic(node)
        stream = open_stream(node, topic)
        stream.credit(5)
        pending = asyncio.ensure_future(stream.next())
        await turns()
        added = await node.admin.add_partitions(pb.AddPartitionsRequest(name="jobs", total=2, rehash=True), node.call())
        await put(node, added.topic, b"x", partition=1)
        answer = await asyncio.wait_for(pending, 5)
        assert answer.messages[0].partition == 1
        await stream.close()


async def test_streams_take_turns(open_stream: OpenStream):
    async with running() as node:
        topic = await queue_topic(node)
        streams = [open_stream(node, topic) for _ in range(2)]
        pending = []
        for stream in streams:
            stream.credit(1)
            pending.append(asyncio.ensure_future(stream.next()))
            await turns()
        await put(node, topic, b"0")
        await put(node, topic, b"1")
        answers = await asyncio.gather(*pending)
        assert [len(answer.messages) for answer in answers] == [1, 1]
        for stream in streams:
            await stream.close()


async def test_a_new_message_wakes_one_of_those_who_wait(open_stream: OpenStream):
    async with running() as node:
        topic = await queue_topic(node)
        streams = [open_stream(node, topic) for _ in range(8)]
        pending = []
        for stream in streams:
            stream.credit(1)
            pending.append(asyncio.ensure_future(stream.next()))
            await turns()
        leases = counted_leases(node, topic)
        for number in range(1, 4):
            await put(node, topic, b"x")
            await turns()
            assert len(leases) == number
            assert sum(one.done() for one in pending) == number
        for one in pending:
            one.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for stream in streams:
            await stream.close()


def counted_leases(node: Harness, topic: pb.Topic) -> list[Lease]:
    """Return a list that grows with each lease in an entry."""
    leases: list[Lease] = []

    def on_applied(entry: Entry, _result: object) -> None:
        commands = decode_commands(entry.payload) if entry.kind is EntryKind.COMMAND else None
        leases.extend(item for item in (commands.items if commands else ()) if isinstance(item, Lease))

    queue_of(node, topic).replica.applier.listeners.append(on_applied)
    return leases


async def test_settlements_of_a_stream_that_a_client_sends_without_reading_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(stream_module, "ACKS_IN_FLIGHT_MAX", 2)
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, *[b"x"] * 5)
        messages = await poll(node, topic, 5)
        stream = Stream(node, topic)
        stream.credit(0)
        node.hold_commits = True
        answers: list[int] = []

        async def read() -> None:
            async for response in stream.responses:
                answers.append(response.correlation_id)  # noqa: PERF401 -- each is wanted as it arrives

        reading = asyncio.ensure_future(read())
        for number, message in enumerate(messages, 1):
            stream.credit(0, acks=[ack_of(topic, message)], correlation_id=number)
        await turns()
        assert stream.requests.qsize() == 3
        node.release_commits()
        async with asyncio.timeout(5):
            while len(answers) < 5:
                await asyncio.sleep(0.01)
        reading.cancel()
        assert sorted(answers) == [1, 2, 3, 4, 5]


async def test_answers_that_a_client_does_not_read_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stream_module, "ACKS_IN_FLIGHT_MAX", 2)
    async with running() as node:
        topic = await queue_topic(node)
        await put(node, topic, *[b"x"] * 5)
        messages = await poll(node, topic, 5)
        stream = Stream(node, topic)
        for number, message in enumerate(messages, 1):
            stream.credit(0, acks=[ack_of(topic, message)], correlation_id=number)
        assert (await stream.next()).correlation_id == 1
        while queue_of(node, topic).replica.state_machine.message_count > 3:
            await asyncio.sleep(0)
        await turns()
        assert stream.requests.qsize() == 3, "only two are read until their answers are"
        assert [(await stream.next()).correlation_id for _ in range(4)] == [2, 3, 4, 5]
        await stream.close()
