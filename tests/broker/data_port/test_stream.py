"""Streams of messages over real sockets of the data port: their frames, their bounds and their ends."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.data_port import connection as connection_module
from raftmq.frames import DATA_VERSION_MIN, FrameType
from raftmq.methods import POLL_STREAM
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.data_client import DataClient, Frame, Serving, serving
from tests.support.broker.queues import ack_of, poll, put, queue_of, queue_topic, received


def first_request(topic: pb.Topic, messages: int, **fields: Any) -> pb.QueueStreamRequest:
    opening = pb.QueueStreamOpen(topic_id=topic.topic_id)
    return pb.QueueStreamRequest(open=opening, messages_limit=messages, bytes_limit=1 << 30, **fields)


def later_request(messages: int, **fields: Any) -> bytes:
    return pb.QueueStreamRequest(messages_limit=messages, bytes_limit=1 << 30, **fields).SerializeToString()


async def response(client: DataClient, stream: int) -> pb.QueueStreamResponse:
    frame = await client.frame()
    assert (frame.type, frame.correlation_id) == (FrameType.RESPONSE, stream), frame
    return pb.QueueStreamResponse.FromString(frame.body)


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.001)


def gives_everything_back(broker: Serving, topic: pb.Topic) -> bool:
    leases = queue_of(broker.node, topic).leases
    return not (leases.consumers or broker.port.requests.size or broker.port.unsent.size)


async def test_a_message_is_received_and_settled_and_the_stream_ends_after_a_goodbye():
    async with serving() as broker:
        topic = await queue_topic(broker.node)
        await put(broker.node, topic, b"0", b"1")
        client = await broker.client()
        stream = client.call(POLL_STREAM, first_request(topic, 1))
        first = await response(client, stream)
        (message,) = received(first.messages)
        assert (message.value, first.ready) == (b"0", 1)
        assert broker.port.metrics.streams[POLL_STREAM.name] == 1
        acks = [ack_of(topic, message)]
        client.send(FrameType.REQUEST, later_request(1, acks=acks, correlation_id=7, goodbye=True), stream)
        answer = await response(client, stream)
        assert (answer.correlation_id, list(answer.results[0].codes)) == (7, [pb.OK])
        assert await client.frame() == Frame(FrameType.ANSWER, stream, b"")
        assert gives_everything_back(broker, topic)
        assert broker.port.metrics.streams[POLL_STREAM.name] == 0
        client.send(FrameType.REQUEST, later_request(5), stream)  # it may have been on its way
        again = client.call(POLL_STREAM, first_request(topic, 1))
        assert received((await response(client, again)).messages)[0].value == b"1"


async def test_requests_that_come_before_the_topic_is_found_wait_for_it():
    async with serving() as broker:
        topic = await queue_topic(broker.node)
        await put(broker.node, topic, b"0", b"1")
        messages = await poll(broker.node, topic, 1)
        client = await broker.client()
        stream = client.call(POLL_STREAM, first_request(topic, 0))
        client.send(FrameType.REQUEST, later_request(0, acks=[ack_of(topic, messages[0])], correlation_id=1), stream)
        client.send(FrameType.REQUEST, later_request(1), stream)
        found = [await response(client, stream)]
        while not found[-1].messages:
            found.append(await response(client, stream))
        assert [one.correlation_id for one in found if one.correlation_id] == [1]


async def test_a_cancelled_stream_gives_everything_back_and_is_not_answered():
    async with serving() as broker:
        topic = await queue_topic(broker.node)
        client = await broker.client()
        stream = client.call(POLL_STREAM, first_request(topic, 5))
        await until(lambda: queue_of(broker.node, topic).leases.consumers == 1)
        client.send(FrameType.CANCEL, correlation_id=stream)
        await until(lambda: gives_everything_back(broker, topic))
        await put(broker.node, topic, b"x")
        other = client.call(POLL_STREAM, first_request(topic, 1))
        assert len((await response(client, other)).messages) == 1


async def test_a_connection_that_breaks_ends_its_streams():
    async with serving() as broker:
        topic = await queue_topic(broker.node)
        await put(broker.node, topic, *[b"x"] * 3)
        messages = await poll(broker.node, topic, 3)
        client = await broker.client()
        stream = client.call(POLL_STREAM, first_request(topic, 5))
        await until(lambda: queue_of(broker.node, topic).leases.consumers == 1)
        broker.node.hold_commits = True
        large = ack_of(topic, messages[0], error="x" * 900)
        large.details.extend([pb.AckDetail(error="x" * 900)] * 10)
        client.send(FrameType.REQUEST, later_request(5, acks=[large], correlation_id=1), stream)
        await until(lambda: broker.port.requests.size > 0)
        client.writer.transport.abort()
        await until(lambda: gives_everything_back(broker, topic))
        assert broker.port.metrics.streams[POLL_STREAM.name] == 0
        broker.node.release_commits()


@pytest.mark.parametrize("body", [b"\xff\xff\xff", pb.QueueStreamRequest(messages_limit=1).SerializeToString()])
async def test_a_wrong_first_request_ends_its_stream_alone(body: bytes):
    async with serving() as broker:
        topic = await queue_topic(broker.node)
        await put(broker.node, topic, b"x")
        client = await broker.client()
        client.send(FrameType.CALL, body, 1, 2, 1000)
        wrong = await client.frame()
        assert (wrong.correlation_id, wrong.error.code) == (1, pb.INVALID_ARGUMENT)
        client.last_correlation_id = 1
        stream = client.call(POLL_STREAM, first_request(topic, 1))
        assert len((await response(client, stream)).messages) == 1
        client.send(FrameType.REQUEST, b"\xff\xff\xff", stream)
        wrong = await client.frame()
        assert (wrong.correlation_id, wrong.error.code) == (stream, pb.INVALID_ARGUMENT)
        assert gives_everything_back(broker, topic)


async def test_a_request_of_a_stream_that_was_not_called_ends_the_connection():
    async with serving() as broker:
        client = await broker.client()
        client.send(FrameType.REQUEST, b"", 1)
        assert (await client.frame()).error.code == pb.INVALID_ARGUMENT
        assert await client.ended()


async def test_a_client_of_the_first_version_is_welcome():
    async with serving() as broker:
        client = await broker.connect()
        client.say_hello(await broker.token(), version=DATA_VERSION_MIN)
        assert (await client.frame()).type is FrameType.WELCOME


async def test_one_stream_more_than_there_may_be_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "STREAMS_MAX", 2)
    async with serving() as broker:
        topic = await queue_topic(broker.node)
        client = await broker.client()
        streams = [client.call(POLL_STREAM, first_request(topic, 1)) for _ in range(3)]
        refused = await client.frame()
        assert (refused.correlation_id, refused.error.code) == (streams[2], pb.THROTTLED)
        client.send(FrameType.CANCEL, correlation_id=streams[0])
        await put(broker.node, topic, b"0", b"1")
        await response(client, streams[1])
        last = client.call(POLL_STREAM, first_request(topic, 1))
        await response(client, last)


async def test_requests_of_streams_without_an_answer_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(connection_module, "CALLS_MAX", 2)
    async with serving() as broker:
        topic = await queue_topic(broker.node)
        await put(broker.node, topic, *[b"x"] * 6)
        messages = await poll(broker.node, topic, 6)
        client = await broker.client()
        stream = client.call(POLL_STREAM, first_request(topic, 0))
        await until(lambda: queue_of(broker.node, topic).leases.consumers == 1)
        broker.node.hold_commits = True
        for number, message in enumerate(messages, 1):
            client.send(
                FrameType.REQUEST, later_request(0, acks=[ack_of(topic, message)], correlation_id=number), stream
            )
        (served,) = broker.port._open
        await until(lambda: served._stream_requests == 2)
        await asyncio.sleep(0.05)
        assert (served._stream_requests, served._is_reading) == (2, False)
        broker.node.release_commits()
        assert [(await response(client, stream)).correlation_id for _ in messages] == [1, 2, 3, 4, 5, 6]


async def test_a_client_that_does_not_read_is_leased_a_bounded_number_of_messages():
    async with serving() as broker:
        topic = await queue_topic(broker.node)
        client = await broker.client()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        stream = client.call(POLL_STREAM, first_request(topic, 1000))
        machine = queue_of(broker.node, topic).replica.state_machine
        for _ in range(40):
            await put(broker.node, topic, bytes(900_000))
        await until(lambda: machine.leased_count > 0)
        await asyncio.sleep(0.1)
        assert machine.leased_count < 20
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        found = 0
        while found < 40:
            found += len(received((await response(client, stream)).messages))
        assert broker.port.unsent.size == 0


async def test_messages_for_which_there_is_no_memory_are_given_back():
    async with serving(dataclasses.replace(Limits(), unsent_bytes_max=100_000)) as broker:
        topic = await queue_topic(broker.node)
        client, other = await broker.client(), await broker.client()
        blocker = broker.port.unsent.acquire(next(iter(broker.port._open)), 99_999)
        stream = client.call(POLL_STREAM, first_request(topic, 1))
        await put(broker.node, topic, bytes(90_000))
        refused = await client.frame()
        assert (refused.correlation_id, refused.error.code) == (stream, pb.THROTTLED)
        broker.port.unsent.release(blocker)
        again = other.call(POLL_STREAM, first_request(topic, 1))
        (message,) = received((await response(other, again)).messages)
        assert (message.attempts, message.lease_number) == (1, 2), "uncounted"


async def with_a_held_settlement(broker, topic):
    """Return a client, its stream, a message whose settlement under correlation id 1 waits for a commit, and the broker's connection."""
    client = await broker.client()
    stream = client.call(POLL_STREAM, first_request(topic, 1))
    (message,) = received((await response(client, stream)).messages)
    broker.node.hold_commits = True
    client.send(FrameType.REQUEST, later_request(1, acks=[ack_of(topic, message)], correlation_id=1), stream)
    (served,) = broker.port._open
    await until(lambda: served._stream_requests == 1)
    return client, stream, message, served


async def test_a_stream_that_fails_leaves_the_outcome_of_its_settlements_unknown():
    """A refusal of one request ends the stream, and the client takes its outcome for that of all requests without an answer."""
    async with serving(dataclasses.replace(Limits(), receiving_bytes_max=100_000)) as broker:
        topic = await queue_topic(broker.node)
        await put(broker.node, topic, b"0")
        client, stream, message, served = await with_a_held_settlement(broker, topic)
        blocker = broker.port.requests.acquire(served, 99_999)
        client.send(FrameType.REQUEST, later_request(1, acks=[ack_of(topic, message, error="x" * 9000)]), stream)
        refused = await client.frame()
        assert (refused.correlation_id, refused.error.code) == (stream, pb.THROTTLED)
        assert refused.error.outcome == pb.UNKNOWN_OUTCOME
        broker.port.requests.release(blocker)
        broker.node.release_commits()


async def test_a_broker_that_stops_answers_the_settlements_and_ends_the_stream():
    async with serving() as broker:
        topic = await queue_topic(broker.node)
        await put(broker.node, topic, b"0", b"1")
        client, stream, _, _ = await with_a_held_settlement(broker, topic)
        stopping = asyncio.ensure_future(broker.port.stop(10))
        assert await client.frame() == Frame(FrameType.GOODBYE, stream, b"")
        client.send(FrameType.REQUEST, later_request(5), stream)
        broker.node.release_commits()
        assert (await response(client, stream)).correlation_id == 1
        assert await client.frame() == Frame(FrameType.ANSWER, stream, b"")
        assert await client.ended()
        await stopping


async def test_a_defect_ends_its_stream_alone(monkeypatch: pytest.MonkeyPatch):
    async with serving() as broker:
        topic = await queue_topic(broker.node)
        await put(broker.node, topic, b"x")
        client = await broker.client()

        def fail(_request: object, _on_answered: object) -> None:
            raise ZeroDivisionError

        stream_of = broker.port.consumer_stream

        def broken_stream(*arguments):
            made = stream_of(*arguments)
            monkeypatch.setattr(made, "on_request", fail)
            return made

        monkeypatch.setattr(broker.port, "consumer_stream", broken_stream)
        stream = client.call(POLL_STREAM, first_request(topic, 1))
        wrong = await client.frame()
        assert (wrong.correlation_id, wrong.error.code) == (stream, pb.INTERNAL)
        monkeypatch.undo()
        stream = client.call(POLL_STREAM, first_request(topic, 1))
        assert len((await response(client, stream)).messages) == 1
