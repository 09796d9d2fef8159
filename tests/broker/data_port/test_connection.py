"""The data port over real sockets: greeting, calls, order, cancellation, bounds, shutdown."""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import weakref

import pytest
from google.protobuf.message import Message
from raftmq.broker.base.limits import Limits
from raftmq.broker.data_port import connection as connection_module
from raftmq.broker.data_port import port as port_module
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.services.call import Call, Principal, Right
from raftmq.frames import BUFFER_BYTES, DATA_VERSION, FrameType, frame_header
from raftmq.methods import APPEND, INIT_PRODUCER, POLL
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.data_client import serving
from tests.support.broker.harness import append_request, batch, poll_request
from tests.support.broker.waiting import until


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


async def test_producers_are_registered():
    async with serving() as broker:
        client = await broker.client()
        for epoch, stamp in ((7, b"a"), (7, b"b"), (6, b"c")):
            client.call(INIT_PRODUCER, pb.InitProducerRequest(name="task", epoch=epoch, stamp=stamp))
        answers = [await client.frame() for _ in range(3)]
        assert [answer.correlation_id for answer in answers] == [1, 2, 3]
        first, again = (pb.InitProducerResponse.FromString(answer.body) for answer in answers[:2])
        assert (first.epoch, first.stamp) == (again.epoch, again.stamp) == (7, b"a")
        assert first.producer_id == again.producer_id
        assert answers[2].error.code == pb.PRODUCER_FENCED
        assert broker.grpc.metrics.requests["InitProducer", "OK"] == 2
        assert broker.grpc.metrics.requests["InitProducer", "PRODUCER_FENCED"] == 1


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


async def test_memory_of_a_large_request_stays_counted_while_it_does_not_arrive(monkeypatch):
    """Otherwise its next byte would enlarge the buffer, which nobody would count any more."""
    monkeypatch.setattr("raftmq.broker.data_port.connection.LARGE_BUFFER_SECONDS", 0.0)
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        request = append_request(topic, batch(1, body=bytes(3 * BUFFER_BYTES))).SerializeToString()
        client.writer.write(frame_header(FrameType.CALL, len(request), 1))
        async with asyncio.timeout(10):
            while not broker.port.receiving.size:
                await asyncio.sleep(0)
        broker.port._shrink_idle()
        assert broker.port.receiving.size > len(request)
        client.writer.write(request)
        assert (await client.frame()).type is FrameType.ANSWER
        broker.port._shrink_idle()
        assert broker.port.receiving.size == 0


async def test_a_connection_whose_large_request_does_not_arrive_ends_when_its_memory_is_needed(monkeypatch):
    monkeypatch.setattr("raftmq.broker.base.budget.STANDSTILL_SECONDS", 0.0)
    limits = dataclasses.replace(Limits(), receiving_bytes_max=5 * BUFFER_BYTES)
    async with serving(limits) as broker:
        silent, other = await broker.client(), await broker.client()
        for client in (silent, other):
            client.writer.write(frame_header(FrameType.CALL, 3 * BUFFER_BYTES, 1))
            async with asyncio.timeout(10):
                while not broker.port.receiving.size:
                    await asyncio.sleep(0)
        assert await silent.ended()
        assert broker.port.receiving.evictions == 1


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
        client.call(INIT_PRODUCER, pb.InitProducerRequest())
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
        while not broker.grpc.log.parked_polls:
            await asyncio.sleep(0.001)
        client.send(FrameType.CANCEL, correlation_id=poll)
        while broker.grpc.log.parked_polls:
            await asyncio.sleep(0.001)
        appended = client.call(APPEND, append_request(topic, batch(1)))
        assert (await client.frame()).correlation_id == appended
        assert broker.grpc.metrics.requests["Poll", "CANCELLED"] == 1


async def test_a_defect_of_a_poll_is_its_answer_and_the_connection_goes_on(monkeypatch):
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        with monkeypatch.context() as planted:
            planted.setattr(PartitionLog, "is_readable", lambda *_: 1 / 0)
            poll = client.call(POLL, poll_request(topic, 0, max_wait_ms=60_000))
            answer = await client.frame()
        assert (answer.type, answer.correlation_id) == (FrameType.ERROR, poll)
        assert pb.ErrorDetail.FromString(answer.body).code == pb.INTERNAL
        assert broker.grpc.metrics.requests["Poll", "INTERNAL"] == 1
        again = client.call(POLL, poll_request(topic, 0))
        answer = await client.frame()
        assert (answer.type, answer.correlation_id) == (FrameType.ANSWER, again)
        assert broker.grpc.metrics.requests["Poll", "OK"] == 1


async def test_a_connection_that_ends_ends_its_polls_and_gives_everything_back():
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        client.call(POLL, poll_request(topic, 0, max_wait_ms=60_000))
        broker.node.hold_commits = True
        client.call(APPEND, append_request(topic, batch(1)))
        while not broker.grpc.log.parked_polls:
            await asyncio.sleep(0.001)
        client.writer.transport.abort()
        while broker.grpc.log.parked_polls or broker.port.connections.size:
            await asyncio.sleep(0.001)
        broker.node.hold_commits = False


async def test_more_calls_than_may_be_unanswered_are_not_read(monkeypatch):
    monkeypatch.setattr(connection_module, "CALLS_MAX", 4)
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        for _ in range(10):
            client.call(POLL, poll_request(topic, 0, max_wait_ms=200))
        await until(lambda: broker.grpc.log.parked_polls == 4)
        await asyncio.sleep(0.05)
        assert broker.grpc.log.parked_polls <= 4
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
        client.say_hello(await broker.token())
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


async def test_a_call_that_is_cancelled_in_the_same_piece_is_forgotten(monkeypatch):
    """Its task ends before it begins. It stayed counted, until the connection was not read any more."""
    monkeypatch.setattr(connection_module, "CALLS_MAX", 4)
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        for _ in range(20):
            poll = client.call(POLL, poll_request(topic, 0, max_wait_ms=60_000))
            client.send(FrameType.CANCEL, correlation_id=poll)
        appended = client.call(APPEND, append_request(topic, batch(1)))
        assert (await client.frame()).correlation_id == appended
        stopping = asyncio.create_task(broker.port.stop(30))
        assert (await client.frame()).type is FrameType.GOODBYE
        assert await client.ended()
        await asyncio.wait_for(stopping, 5)


async def test_answers_after_the_end_of_a_connection_are_dropped():
    """They were written after its end was, and each wrote a traceback into the log instead."""
    failures: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        broker.node.hold_commits = True
        for number in range(3):
            client.call(APPEND, append_request(topic, batch(1, sequence=number)))
        client.call(POLL, poll_request(topic, 0, max_wait_ms=100))
        client.send(FrameType.WELCOME)
        assert (await client.frame()).error.code == pb.INVALID_ARGUMENT
        broker.node.release_commits()
        while broker.node.partition(topic).high_watermark < 3:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.15)
        assert await client.ended()
    gc.collect()
    await asyncio.sleep(0)
    assert failures == []


async def test_stop_is_not_held_up_by_a_connection_that_has_ended_already():
    async with serving() as broker:
        topic = await broker.node.topic()
        broken, client = await broker.client(), await broker.client()
        broker.node.hold_commits = True
        for each in (broken, client):
            each.call(APPEND, append_request(topic, batch(1)))
        broken.send(FrameType.WELCOME)
        assert (await broken.frame()).error.code == pb.INVALID_ARGUMENT
        stopping = asyncio.create_task(broker.port.stop(5))
        assert (await client.frame()).type is FrameType.GOODBYE
        broker.node.release_commits()
        assert (await client.frame()).type is FrameType.ANSWER
        assert await client.ended()
        assert await broken.ended()
        await asyncio.wait_for(stopping, 3)


async def test_connections_that_were_refused_and_stay_are_bounded():
    """A client that ignores a refusal takes a file descriptor of the broker until the handshake's time is over."""
    async with serving(dataclasses.replace(Limits(), data_connections_max=1, data_handshakes_max=4)) as broker:
        await broker.client()
        for _ in range(20):
            client = await broker.connect()
            client.say_hello(await broker.token())
            assert (await client.frame()).error.code == pb.THROTTLED
            assert len(broker.port._open) <= 1 + 4 + 1, "one that was evicted ends in the next turn"
        assert broker.port.handshakes == 4
        assert broker.port.evicted_total == 16


async def test_connections_without_a_hello_evict_no_client(monkeypatch):
    """They took the slots of clients: a client that only connected ended the connections of clients that were idle."""
    monkeypatch.setattr("raftmq.broker.base.budget.STANDSTILL_SECONDS", 0.0)
    async with serving(dataclasses.replace(Limits(), data_connections_max=2, data_handshakes_max=2)) as broker:
        idle = await broker.client()
        strangers = [await broker.connect() for _ in range(5)]
        while broker.port.evicted_total < 3:
            await asyncio.sleep(0.001)
        for stranger in strangers[:3]:
            assert await stranger.ended()
        newcomer = await broker.client()
        for client in (idle, newcomer):
            client.send(FrameType.CALL, b"", 1, 77)
            assert (await client.frame()).error.code == pb.UNSUPPORTED_VERSION
        assert broker.port.connections.evictions == 0
        assert broker.port.handshakes == 1


async def test_nothing_is_kept_of_a_connection_that_has_ended():
    """A timer kept its read buffer for seconds: connections that said garbage took memory as fast as they came."""
    async with serving() as broker:
        client = await broker.connect()
        while not broker.port._open:
            await asyncio.sleep(0)
        connection = weakref.ref(next(iter(broker.port._open)))
        client.writer.write(b"\xff" * 64)
        assert (await client.frame()).error.code == pb.INVALID_ARGUMENT
        assert await client.ended()
        while broker.port._open:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.01)
        gc.collect()
        assert connection() is None


def _unknown_field(size: int) -> bytes:
    """The part of a newer client's message that protobuf keeps."""
    return pb.DataHello(token=bytes(size)).SerializeToString().replace(b"\x12", b"\xfa\x7f", 1)


@pytest.mark.parametrize("method", [APPEND, POLL])
async def test_requests_without_an_answer_are_bounded_in_bytes(method):
    """A revision that does not exist makes a request wait: a thousand of 4 MiB were held for one connection."""
    limits = dataclasses.replace(Limits(), receiving_bytes_max=4 << 20)
    async with serving(limits) as broker:
        topic = await broker.node.topic()
        client, other = await broker.client(), await broker.client()
        held: Message = append_request(topic, batch(1, body=bytes(1_000_000)))
        if method is POLL:
            held = poll_request(topic, 0, max_wait_ms=60_000)
            held.MergeFromString(_unknown_field(1_000_000))
        held.MergeFrom(type(held)(metadata_revision=2**40))
        for _ in range(10):
            client.call(method, held)
        for _ in range(6):
            answer = await client.frame()
            assert answer.error.code == pb.THROTTLED
            assert answer.error.outcome == pb.NOT_APPLIED
        assert broker.port.requests.size <= limits.receiving_bytes_max
        appended = other.call(APPEND, append_request(topic, batch(1)))
        assert (await other.frame()).correlation_id == appended, "small ones need no budget"
        client.writer.transport.abort()
        while broker.port.requests.size:
            await asyncio.sleep(0.001)


async def test_whoever_holds_memory_longest_makes_room(monkeypatch):
    monkeypatch.setattr("raftmq.broker.base.budget.STANDSTILL_SECONDS", 0.0)
    async with serving(dataclasses.replace(Limits(), receiving_bytes_max=2 << 20)) as broker:
        topic = await broker.node.topic()
        client, other = await broker.client(), await broker.client()
        held = append_request(topic, batch(1, body=bytes(1_000_000)))
        held.metadata_revision = 2**40
        client.call(APPEND, held)
        client.call(APPEND, held)
        while broker.port.requests.size < 2_000_000:
            await asyncio.sleep(0.001)
        appended = other.call(APPEND, append_request(topic, batch(1, body=bytes(1_000_000))))
        answer = await other.frame()
        assert (answer.type, answer.correlation_id) == (FrameType.ANSWER, appended)
        assert await client.ended()
        assert broker.port.requests.size == 0


async def test_a_request_with_too_many_partitions_does_not_wait_behind_others():
    """Parsed it takes many times its size."""
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        stuck = append_request(topic, batch(1))
        stuck.metadata_revision = 2**40
        client.call(APPEND, stuck)
        many = client.call(APPEND, pb.AppendRequest(partitions=[pb.PartitionAppend()] * 2001))
        answer = await client.frame()
        assert (answer.type, answer.correlation_id) == (FrameType.ANSWER, many)
        assert pb.AppendResponse.FromString(answer.body).error.code == pb.INVALID_ARGUMENT


async def test_an_append_is_answered_within_the_timeout_of_its_frame():
    """The request's own can be 49 days."""
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        stuck = append_request(topic, batch(1))
        stuck.metadata_revision, stuck.timeout_ms = 2**40, 2**32 - 1
        client.call(APPEND, stuck, ms=50)
        response = pb.AppendResponse.FromString((await client.frame()).body)
        assert response.error.code == pb.NOT_READY


async def test_connections_take_turns_when_a_turn_of_the_loop_is_used_up(monkeypatch):
    """One frame a turn: nothing is lost or changes places, whatever the size of the frames."""
    monkeypatch.setattr(port_module, "TURN_SECONDS", 1e-9)
    async with serving() as broker:
        topic = await broker.node.topic()
        clients = [await broker.client() for _ in range(3)]
        for number in range(40):
            for producer, client in enumerate(clients, 1):
                body = bytes(2 * BUFFER_BYTES if number % 10 == producer else 10)
                one = batch(1, producer=producer, sequence=number, body=body)
                client.call(APPEND, append_request(topic, one, correlation_id=number))
        for client in clients:
            for _ in range(40):
                response = pb.AppendResponse.FromString((await client.frame()).body)
                assert not response.partitions[0].HasField("error"), response


async def test_one_connection_does_not_use_up_the_turns_of_the_loop():
    """Two MiB of requests, each of which is refused in 2,000 words, came with one read and took the loop for seconds."""
    async with serving() as broker:
        topic = await broker.node.topic()
        client = await broker.client()
        part = pb.PartitionAppend(topic_id=topic.topic_id, batches=[b""])
        for _ in range(100):
            client.call(APPEND, pb.AppendRequest(partitions=[part] * 500))
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        counting = asyncio.create_task(count_turns())
        await client.frame()
        before = turns
        for _ in range(99):
            await client.frame()
        counting.cancel()
        assert turns - before > 20


async def test_a_deadline_that_is_due_already_ends_nothing():
    """uvloop makes a plain handle of a timer that is less than half a millisecond away, and it has no time to compare with."""
    async with serving() as broker:
        topic = await broker.node.topic()
        session = broker.port.append_session()
        broker.node.hold_commits = True
        answers: list[pb.AppendResponse] = []
        for number, seconds in enumerate((0.0003, 10.0, 0.0003, 0.001, 0.0003)):
            session.submit(append_request(topic, batch(1, producer=7 + number)), answers.append, seconds)
        while len(answers) < 4:
            await asyncio.sleep(0.001)
        # a request whose time is over before it begins fails as a whole
        errors = [answer.error if answer.HasField("error") else answer.partitions[0].error for answer in answers]
        assert {error.code for error in errors} == {pb.REQUEST_TIMED_OUT}
        broker.node.release_commits()
        while len(answers) < 5:
            await asyncio.sleep(0.001)
