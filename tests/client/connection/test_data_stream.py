"""Streams over a data connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

import pytest
from raftmq import errors
from raftmq.client.connection import data_stream as data_stream_module
from raftmq.client.connection import transport as transport_module
from raftmq.client.connection.append_stream import SerializedAppend
from raftmq.client.connection.data_calls import APPEND_NUMBER, POLL_NUMBER
from raftmq.client.connection.data_stream import POLL_STREAM_NUMBER
from raftmq.client.connection.transport import GrpcConnection
from raftmq.frames import FrameType
from raftmq.methods import POLL
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeCluster, detail
from tests.support.client.fake_data_port import FakeDataConnection, FakeDataPort

ResponseT = TypeVar("ResponseT", pb.AppendResponse, pb.QueueStreamResponse)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(brokers=1, has_data_ports=True) as running:
        running.create_topic("t")
        yield running


@pytest.fixture
def port(cluster: FakeCluster) -> FakeDataPort:
    return cluster.brokers[1].data_port


@pytest.fixture
async def connection(cluster: FakeCluster) -> AsyncIterator[GrpcConnection]:
    made = GrpcConnection(cluster.brokers[1].address)
    yield made
    await made.close()


def append(number: int, size: int = 0) -> SerializedAppend:
    request = pb.AppendRequest(correlation_id=number)
    if size:
        request.partitions.add(topic_id=99, batches=[bytes(size)])
    return SerializedAppend(number, 5000, request.SerializeToString())


class Recorder(Generic[ResponseT]):
    """The callbacks of a stream."""

    def __init__(self) -> None:
        self.answers: list[ResponseT] = []
        self.ends: list[errors.RaftMQError] = []
        self.writable = 0
        self._changed = asyncio.Event()

    async def wait(self, *, answers: int = 0, ends: int = 0, writable: int = 0) -> None:
        async with asyncio.timeout(10):
            while len(self.answers) < answers or len(self.ends) < ends or self.writable < writable:
                self._changed.clear()
                await self._changed.wait()

    @property
    def answered(self) -> list[int]:
        return [answer.correlation_id for answer in self.answers]

    def _on_response(self, response: ResponseT) -> None:
        self.answers.append(response)
        self._changed.set()

    def _on_end(self, error: errors.RaftMQError) -> None:
        self.ends.append(error)
        self._changed.set()

    def _on_writable(self) -> None:
        self.writable += 1
        self._changed.set()


class Stream(Recorder[pb.AppendResponse]):
    """An open stream of appends, its answers and its end."""

    def __init__(self, connection: GrpcConnection) -> None:
        super().__init__()
        self.stream = connection.append_stream(self._on_response, self._on_end, self._on_writable)

    def write(self, *requests: SerializedAppend) -> list[bool]:
        return [self.stream.write(request) for request in requests]


async def opened(connection: GrpcConnection, port: FakeDataPort) -> tuple[Stream, FakeDataConnection]:
    """A stream whose first request, 1, was answered, and its end at the broker."""
    stream = Stream(connection)
    assert stream.write(append(1)) == [False]  # the connection is being opened
    await stream.wait(answers=1, writable=1)
    return stream, port.connections[-1]


# ------------------------------------------------------------------------------------------------------------------- streams


async def test_a_stream_begins_before_its_connection_is_open(connection: GrpcConnection, port: FakeDataPort) -> None:
    stream, broker = await opened(connection, port)
    assert stream.write(append(2), append(3)) == [True, True]
    await stream.wait(answers=3)
    assert stream.answered == [1, 2, 3]
    assert [method for method, _, _ in broker.calls] == [APPEND_NUMBER] * 3
    assert set(broker.timeouts_ms) == {5000}
    assert port.broker.streams == 0  # of gRPC
    second = Stream(connection)
    assert second.write(append(1)) == [True]
    await second.wait(answers=1)
    assert len(port.connections) == 1


async def test_a_refused_request_is_answered_with_its_error_and_others_go_on(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    """The outcome of one request says nothing of those beside it."""
    stream, broker = await opened(connection, port)
    broker.error_of = lambda body: detail(pb.THROTTLED) if body == append(2).body else None
    stream.write(append(2), append(3))
    await stream.wait(answers=3)
    by_number = {answer.correlation_id: answer for answer in stream.answers}
    assert by_number[2].error.code == pb.THROTTLED
    assert not by_number[3].HasField("error")
    assert stream.ends == []


async def test_a_stream_ends_after_the_last_answer_of_a_broker_that_leaves(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    """So that its error is only about requests that the broker has not looked at."""
    stream, broker = await opened(connection, port)
    broker.is_mute = True
    stream.write(append(2), append(3), append(4))
    await port.wait(lambda: len(broker.calls) == 4)
    broker.say(FrameType.GOODBYE, 3)
    broker.say(FrameType.ANSWER, 3, pb.AppendResponse(correlation_id=3).SerializeToString())
    await stream.wait(answers=2)
    assert stream.ends == []
    assert stream.write(append(5)) == [False]
    broker.say(FrameType.ANSWER, 2, pb.AppendResponse(correlation_id=2).SerializeToString())
    await stream.wait(ends=1)
    assert stream.answered == [1, 3, 2]
    (end,) = stream.ends
    assert (type(end), end.outcome) == (errors.UnreachableError, errors.Outcome.NOT_APPLIED)
    assert len(broker.calls) == 4
    again = Stream(connection)
    again.write(append(1))
    await again.wait(answers=1)
    assert len(port.connections) == 2


async def test_a_broker_that_leaves_and_dies_leaves_doubt(connection: GrpcConnection, port: FakeDataPort) -> None:
    stream, broker = await opened(connection, port)
    broker.is_mute = True
    stream.write(append(2), append(3))
    await port.wait(lambda: len(broker.calls) == 3)
    broker.say(FrameType.GOODBYE, 2)
    broker.close()
    await stream.wait(ends=1)
    (end,) = stream.ends
    assert end.outcome is errors.Outcome.UNKNOWN


async def test_an_idle_stream_ends_with_its_connection(connection: GrpcConnection, port: FakeDataPort) -> None:
    stream, broker = await opened(connection, port)
    broker.abort()
    await stream.wait(ends=1)
    assert [type(end) for end in stream.ends] == [errors.BrokenConnectionError]
    assert stream.write(append(2)) == [False]


async def test_an_answer_that_cannot_be_read_leaves_doubt(connection: GrpcConnection, port: FakeDataPort) -> None:
    stream, broker = await opened(connection, port)
    broker.is_mute = True
    stream.write(append(2))
    await port.wait(lambda: len(broker.calls) == 2)
    broker.say(FrameType.ANSWER, 2, b"\xff\xff")
    await stream.wait(ends=1)
    (end,) = stream.ends
    assert (type(end), end.outcome) == (errors.BrokenConnectionError, errors.Outcome.UNKNOWN)


async def test_a_cancelled_stream_says_nothing_more(connection: GrpcConnection, port: FakeDataPort) -> None:
    stream, broker = await opened(connection, port)
    broker.is_mute = True
    stream.write(append(2))
    await port.wait(lambda: len(broker.calls) == 2)
    stream.stream.cancel()
    await port.wait(lambda: broker.cancelled == [2])
    other = Stream(connection)
    broker.abort()
    await other.wait(ends=1)
    unopened = Stream(connection)
    unopened.write(append(1))
    unopened.stream.cancel()
    third, _ = await opened(connection, port)
    assert third.answered == [1]
    assert (stream.answered, stream.ends) == ([1], [])
    assert (unopened.answers, unopened.ends) == ([], [])


async def test_streams_of_one_connection_wait_while_the_broker_does_not_read(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    stream, broker = await opened(connection, port)
    broker.pause()
    sent = 1
    while stream.write(append(sent + 1, 1 << 20)) == [True]:
        sent += 1
        await asyncio.sleep(0)
    second = Stream(connection)
    assert second.write(append(1)) == [False]
    broker.resume()
    await second.wait(answers=1)
    await stream.wait(answers=sent + 1)
    assert sorted(stream.answered) == list(range(1, sent + 2))


async def test_polls_and_appends_have_connections_of_their_own(
    cluster: FakeCluster, connection: GrpcConnection, port: FakeDataPort
) -> None:
    await asyncio.gather(*(connection.call(POLL, pb.PollRequest(), 5) for _ in range(5)))
    (polls,) = port.connections
    assert [method for method, _, _ in polls.calls] == [POLL_NUMBER] * 5
    assert all(4000 < timeout_ms <= 5000 for timeout_ms in polls.timeouts_ms)
    await opened(connection, port)
    assert len(port.connections) == 2
    assert "Poll" not in cluster.clusters_called


# -------------------------------------------------------------------------------------------------------- streams of messages


class MessageStream(Recorder[pb.QueueStreamResponse]):
    def __init__(self, connection: GrpcConnection) -> None:
        super().__init__()
        self.stream = connection.queue_stream(self._on_response, self._on_end, self._on_writable)

    def settle(self, *numbers: int) -> list[bool]:
        """Send requests with settlements of a topic that does not exist, which the broker answers."""
        acks = [pb.PartitionAck(topic_id=99, operations=[pb.ACCEPT])]
        return [self.stream.write(pb.QueueStreamRequest(acks=acks, correlation_id=number)) for number in numbers]


OPENING = pb.QueueStreamRequest(open=pb.QueueStreamOpen(topic_id=99), messages_limit=1, bytes_limit=1)


async def opened_messages(connection: GrpcConnection, port: FakeDataPort) -> tuple[MessageStream, FakeDataConnection]:
    """A stream of messages whose first settlement was answered, and its end at the broker."""
    stream = MessageStream(connection)
    assert stream.stream.write(OPENING) is False  # the connection is being opened
    await stream.wait(writable=1)
    assert stream.settle(1) == [True]
    await stream.wait(answers=1)
    return stream, port.connections[-1]


async def test_all_requests_of_a_stream_of_messages_belong_to_one_call(
    cluster: FakeCluster, connection: GrpcConnection, port: FakeDataPort
) -> None:
    stream, broker = await opened_messages(connection, port)
    stream.settle(2, 3)
    await stream.wait(answers=3)
    assert stream.answered == [1, 2, 3]
    assert [(number, correlation_id) for number, correlation_id, _ in broker.calls] == [(POLL_STREAM_NUMBER, 1)]
    assert "PollStream" not in cluster.clusters_called
    other = MessageStream(connection)
    assert other.stream.write(OPENING) is True
    assert other.settle(1) == [True]
    await other.wait(answers=1)
    assert [correlation_id for _, correlation_id, _ in broker.calls] == [1, 2]


async def test_a_stream_of_messages_ends_with_the_brokers_error(connection: GrpcConnection, port: FakeDataPort) -> None:
    stream, broker = await opened_messages(connection, port)
    broker.say(FrameType.ERROR, 1, detail(pb.UNKNOWN_TOPIC).SerializeToString())
    await stream.wait(ends=1)
    assert isinstance(stream.ends[0], errors.UnknownTopicError)
    assert broker.is_open
    assert not broker.cancelled


async def test_a_stream_of_messages_ends_when_the_broker_has_ended_it(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    stream, _ = await opened_messages(connection, port)
    stream.stream.write(pb.QueueStreamRequest(goodbye=True))
    await stream.wait(ends=1)
    assert isinstance(stream.ends[0], errors.BrokenConnectionError)


async def test_a_stream_of_messages_takes_the_last_answers_of_a_broker_that_leaves(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    stream, broker = await opened_messages(connection, port)
    broker.is_mute = True
    stream.settle(2, 3)
    broker.say(FrameType.GOODBYE, 1)
    broker.say(FrameType.RESPONSE, 1, pb.QueueStreamResponse(correlation_id=2).SerializeToString())
    await stream.wait(answers=2)
    assert stream.settle(4) == [False], "it was not sent"
    broker.say(FrameType.ANSWER, 1)
    await stream.wait(ends=1)
    assert stream.answered == [1, 2]
    assert stream.ends[0].outcome is errors.Outcome.NOT_APPLIED
    await port.wait(lambda: not broker.is_open)


async def test_a_stream_of_messages_that_the_broker_did_not_look_at_ends_with_its_goodbye(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    stream, broker = await opened_messages(connection, port)
    broker.is_mute = True
    other = MessageStream(connection)
    other.stream.write(OPENING)
    broker.say(FrameType.GOODBYE, 1)
    await other.wait(ends=1)
    assert isinstance(other.ends[0], errors.UnreachableError)
    assert not stream.ends


@pytest.mark.parametrize("is_garbage", [False, True], ids=["broken", "garbage"])
async def test_a_stream_of_messages_ends_in_doubt_with_its_connection(
    connection: GrpcConnection, port: FakeDataPort, is_garbage: bool
) -> None:
    stream, broker = await opened_messages(connection, port)
    if is_garbage:
        broker.say(FrameType.RESPONSE, 1, b"\xff\xff\xff")
    else:
        broker.abort()
    await stream.wait(ends=1)
    assert stream.ends[0].outcome is errors.Outcome.UNKNOWN


async def test_a_response_of_a_stream_to_another_call_ends_the_connection(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    stream, broker = await opened(connection, port)
    broker.is_mute = True
    stream.write(append(2))
    broker.say(FrameType.RESPONSE, 2, b"")
    await stream.wait(ends=1)
    assert isinstance(stream.ends[0], errors.BrokenConnectionError)


async def test_a_cancelled_stream_of_messages_says_nothing_more(connection: GrpcConnection, port: FakeDataPort) -> None:
    stream, broker = await opened_messages(connection, port)
    stream.stream.cancel()
    await port.wait(lambda: broker.cancelled == [1])
    broker.say(FrameType.RESPONSE, 1, pb.QueueStreamResponse().SerializeToString())
    other = MessageStream(connection)
    other.stream.write(OPENING)
    other.settle(1)
    await other.wait(answers=1)
    assert (stream.answered, stream.ends) == ([1], [])


async def test_a_stream_of_messages_waits_while_the_broker_does_not_read(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    stream, broker = await opened_messages(connection, port)
    broker.pause()
    acks = [pb.PartitionAck(topic_id=99, operations=[pb.ACCEPT], put=bytes(3 << 20))]
    sent = 1
    while stream.stream.write(pb.QueueStreamRequest(acks=acks, correlation_id=sent + 1)):
        sent += 1
        assert sent < 100
    writable = stream.writable
    broker.resume()
    await stream.wait(writable=writable + 1, answers=sent + 1)


async def test_a_broker_of_the_first_version_gets_streams_of_messages_over_grpc(
    cluster: FakeCluster, connection: GrpcConnection, port: FakeDataPort
) -> None:
    port.version = 1
    await connection.call(POLL, pb.PollRequest(), 5)
    stream = MessageStream(connection)
    stream.stream.write(OPENING)
    await stream.wait(writable=1)
    stream.settle(1)
    await stream.wait(answers=1)
    assert "PollStream" in cluster.clusters_called
    assert "Poll" not in cluster.clusters_called
    opens = cluster.brokers[1].data_opens
    other = MessageStream(connection)
    other.stream.write(OPENING)
    await other.wait(writable=1)
    assert cluster.brokers[1].data_opens == opens, "it is asked again after a while"
    for each in (stream, other):
        each.stream.cancel()


async def test_streams_beyond_those_of_a_data_connection_go_over_grpc(
    cluster: FakeCluster, connection: GrpcConnection, port: FakeDataPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (data_stream_module, transport_module):
        monkeypatch.setattr(module, "STREAMS_MAX", 2)
    streams = [MessageStream(connection) for _ in range(3)]  # before the connection is open
    for stream in streams:
        stream.stream.write(OPENING)
        await stream.wait(writable=1)
    streams.append(MessageStream(connection))
    streams[-1].stream.write(OPENING)
    await streams[-1].wait(writable=1)
    async with asyncio.timeout(10):
        while "PollStream" not in cluster.clusters_called:  # a stream is writable before its call has arrived
            await asyncio.sleep(0.01)
    assert len(port.connections[-1].calls) == 2
    for stream in streams:
        stream.stream.cancel()
