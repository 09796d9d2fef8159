"""The data port over real sockets: greeting, calls, order, cancellation, bounds, shutdown."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.data_port import connection as connection_module
from raftmq.broker.services.call import Call, Principal, Right
from raftmq.frames import BUFFER_BYTES, DATA_VERSION, FrameType, frame_header
from raftmq.methods import APPEND, POLL
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.data_client import serving
from tests.support.broker.harness import append_request, batch, poll_request


async def test_records_are_appended_and_polled():
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        appended = client.call(APPEND, append_request(topic, batch(3), correlation_id=7))
        answer = await client.frame()
        assert (answer.type, answer.correlation_id) == (FrameType.ANSWER, appended)
        response = pb.AppendResponse.FromString(answer.body)
        assert response.correlation_id == 7
        assert list(response.partitions[0].base_offsets) == [0]

        polled = client.call(POLL, poll_request(topic, 0))
        answer = await client.frame()
        assert (answer.type, answer.correlation_id) == (FrameType.ANSWER, polled)
        assert len(pb.PollResponse.FromString(answer.body).partitions[0].batches) == 1
        assert broker.grpc.metrics.requests["Append", "OK"] == 1
        assert broker.grpc.metrics.requests["Poll", "OK"] == 1


async def test_frames_are_understood_wherever_the_bytes_are_cut():
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.connect()
        hello = pb.DataHello(version=DATA_VERSION, token=await broker.token()).SerializeToString()
        sent = frame_header(FrameType.HELLO, len(hello)) + hello
        for number in (1, 2):
            request = append_request(topic, batch(1, sequence=number - 1), correlation_id=number).SerializeToString()
            sent += frame_header(FrameType.CALL, len(request), number) + request
        for byte in sent:
            client.writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await client.frame()).type is FrameType.WELCOME
        answers = [pb.AppendResponse.FromString((await client.frame()).body) for _ in range(2)]
        assert sorted(answer.correlation_id for answer in answers) == [1, 2]


async def test_appends_of_a_connection_take_effect_in_the_order_of_their_frames():
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        for number in range(50):
            client.call(APPEND, append_request(topic, batch(1, producer=9, sequence=number), correlation_id=number))
        offsets = {}
        for _ in range(50):
            response = pb.AppendResponse.FromString((await client.frame()).body)
            assert not response.partitions[0].HasField("error"), response
            offsets[response.correlation_id] = response.partitions[0].base_offsets[0]
        assert offsets == {number: number for number in range(50)}


async def test_a_request_larger_than_the_read_buffer_is_taken_and_its_memory_given_back(monkeypatch):
    monkeypatch.setattr("raftmq.broker.data_port.connection.LARGE_BUFFER_SECONDS", 0.0)
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        for number in range(3):
            value = bytes(3 * BUFFER_BYTES)
            client.call(APPEND, append_request(topic, batch(1, sequence=number, body=value), correlation_id=number))
            response = pb.AppendResponse.FromString((await client.frame()).body)
            assert not response.partitions[0].HasField("error"), response
        broker.port._shrink_idle()
        assert broker.port.receiving.size == 0


async def test_nothing_is_served_before_a_hello():
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.connect()
        client.call(APPEND, append_request(topic, batch(1)))
        answer = await client.frame()
        assert (answer.correlation_id, answer.error.code) == (0, pb.INVALID_ARGUMENT)
        assert "HELLO" in answer.error.message
        assert await client.ended()
        assert broker.node.partition(topic).high_watermark == 0


async def test_a_token_is_for_one_connection():
    async with serving() as broker:
        token = await broker.token()
        first, second = await broker.connect(), await broker.connect()
        first.say_hello(token)
        assert (await first.frame()).type is FrameType.WELCOME
        second.say_hello(token)
        assert (await second.frame()).error.code == pb.PERMISSION_DENIED
        assert await second.ended()


async def test_a_token_is_void_after_its_time(monkeypatch):
    monkeypatch.setattr("raftmq.broker.services.data_tokens.TOKEN_SECONDS", 0.0)
    async with serving() as broker:
        client = await broker.connect()
        client.say_hello(await broker.token())
        assert (await client.frame()).error.code == pb.PERMISSION_DENIED


async def test_another_version_of_the_frames_is_refused():
    async with serving() as broker:
        client = await broker.connect()
        client.say_hello(await broker.token(), version=99)
        assert (await client.frame()).error.code == pb.UNSUPPORTED_VERSION
        assert await client.ended()


async def test_a_connection_has_the_rights_of_its_token():
    async with serving() as broker:
        topic = await broker.node.topic()
        reader = Principal("reader", frozenset({Right.CONSUME}))
        answer = await broker.grpc.data_tokens.open_data_connection(
            pb.OpenDataConnectionRequest(), Call(0.0, principal=reader)
        )
        client = await broker.connect()
        client.say_hello(answer.token)
        assert (await client.frame()).type is FrameType.WELCOME
        client.call(APPEND, append_request(topic, batch(1)))
        assert (await client.frame()).error.code == pb.PERMISSION_DENIED
        client.call(POLL, poll_request(topic, 0))
        assert (await client.frame()).type is FrameType.ANSWER


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ((FrameType.WELCOME, b"", 1), pb.INVALID_ARGUMENT),
        ((FrameType.CALL, b"\xff\xff\xff", 1), pb.INVALID_ARGUMENT),
        ((FrameType.CALL, b"", 1, 77), pb.UNSUPPORTED_VERSION),
    ],
)
async def test_a_wrong_frame_is_answered_in_words(sent, code):
    async with serving() as broker:
        client = await broker.client()
        client.send(*sent)
        assert (await client.frame()).error.code == code


async def test_bytes_that_are_no_frame_end_the_connection():
    async with serving() as broker:
        for garbage in (b"\xff" * 64, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\x00\x00\x00\x63" + bytes(15)):
            client = await broker.client()
            client.writer.write(garbage)
            assert (await client.frame()).error.code == pb.INVALID_ARGUMENT
            assert await client.ended()
        while broker.port.connections.size:
            await asyncio.sleep(0.001)


async def test_correlation_ids_ascend():
    async with serving() as broker:
        client = await broker.client()
        for _ in range(2):
            client.send(FrameType.CALL, b"", 5)
        answers = [await client.frame(), await client.frame()]
        assert [answer.correlation_id for answer in answers] == [5, 0]
        assert await client.ended()


async def test_a_cancelled_poll_is_not_answered():
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        poll = client.call(POLL, poll_request(topic, 0, max_wait_ms=60_000))
        while not broker.grpc.queue.parked_polls:
            await asyncio.sleep(0.001)
        client.send(FrameType.CANCEL, correlation_id=poll)
        while broker.grpc.queue.parked_polls:
            await asyncio.sleep(0.001)
        appended = client.call(APPEND, append_request(topic, batch(1)))
        assert (await client.frame()).correlation_id == appended
        assert broker.grpc.metrics.requests["Poll", "CANCELLED"] == 1


async def test_a_connection_that_ends_ends_its_polls_and_gives_everything_back():
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        client.call(POLL, poll_request(topic, 0, max_wait_ms=60_000))
        broker.node.hold_commits = True
        client.call(APPEND, append_request(topic, batch(1)))
        while not broker.grpc.queue.parked_polls:
            await asyncio.sleep(0.001)
        client.writer.transport.abort()
        while broker.grpc.queue.parked_polls or broker.port.connections.size:
            await asyncio.sleep(0.001)
        broker.node.hold_commits = False


async def test_more_calls_than_may_be_unanswered_are_not_read(monkeypatch):
    monkeypatch.setattr(connection_module, "CALLS_MAX", 4)
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        for _ in range(10):
            client.call(POLL, poll_request(topic, 0, max_wait_ms=200))
        await asyncio.sleep(0.05)
        assert broker.grpc.queue.parked_polls == 4
        for _ in range(10):
            assert (await client.frame()).type is FrameType.ANSWER


async def test_one_connection_more_than_there_are_slots_ends_the_one_silent_longest(monkeypatch):
    monkeypatch.setattr("raftmq.broker.base.budget.STANDSTILL_SECONDS", 0.0)
    async with serving(dataclasses.replace(Limits(), data_connections_max=2)) as broker:
        first, second = await broker.client(), await broker.client()
        third = await broker.client()
        assert await first.ended()
        for client in (second, third):
            client.send(FrameType.CALL, b"", 1, 77)
            assert (await client.frame()).error.code == pb.UNSUPPORTED_VERSION
        assert broker.port.connections.evictions == 1


async def test_while_every_connection_is_busy_a_new_one_is_refused():
    async with serving(dataclasses.replace(Limits(), data_connections_max=1)) as broker:
        await broker.client()
        client = await broker.connect()
        assert (await client.frame()).error.code == pb.THROTTLED
        assert await client.ended()


async def test_a_connection_without_a_hello_is_closed():
    async with serving(dataclasses.replace(Limits(), client_handshake_seconds=0.05)) as broker:
        client = await broker.connect()
        assert await client.ended()
        assert broker.port.connections.size == 0


async def test_a_client_that_reads_nothing_is_not_read_either():
    """Its answers would fill the broker's memory."""
    async with serving() as broker:
        topic = await broker.node.topic()
        writer = await broker.client()
        writer.call(APPEND, append_request(topic, batch(1, body=bytes(1_000_000))))
        await writer.frame()
        client = await broker.client()
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(60):
            client.call(POLL, poll_request(topic, 0))
        await asyncio.sleep(0.3)
        polled = broker.grpc.metrics.requests["Poll", "OK"]
        assert polled < 60
        client.reader._transport.resume_reading()  # type: ignore[attr-defined]
        for _ in range(60):
            assert (await client.frame()).type is FrameType.ANSWER
        assert broker.port.unsent.size == 0


async def test_stop_says_goodbye_answers_what_was_accepted_and_closes():
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        broker.node.hold_commits = True
        accepted = client.call(APPEND, append_request(topic, batch(1)))
        while (
            broker.node.partition(topic).replica.core.last_index
            == broker.node.partition(topic).replica.core.commit_index
        ):
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(broker.port.stop(30))
        goodbye = await client.frame()
        assert (goodbye.type, goodbye.correlation_id) == (FrameType.GOODBYE, accepted)
        client.call(APPEND, append_request(topic, batch(1, sequence=1)))
        broker.node.release_commits()
        answer = await client.frame()
        assert (answer.type, answer.correlation_id) == (FrameType.ANSWER, accepted)
        assert await client.ended()
        await asyncio.wait_for(stopping, 5)
        assert broker.node.partition(topic).high_watermark == 1


async def test_stop_does_not_wait_for_those_that_do_not_leave():
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        broker.node.hold_commits = True
        client.call(APPEND, append_request(topic, batch(1)))
        await asyncio.sleep(0.05)
        await asyncio.wait_for(broker.port.stop(0.05), 5)
        assert broker.port.connections.size == 0
        broker.node.hold_commits = False
