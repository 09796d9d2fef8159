"""Polls and streams of appends over a data connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from raftmq import errors
from raftmq.client.base import settings
from raftmq.client.connection.append_stream import SerializedAppend
from raftmq.client.connection.data_calls import APPEND_NUMBER, POLL_NUMBER
from raftmq.client.connection.transport import GrpcConnection
from raftmq.frames import FrameType
from raftmq.methods import POLL
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeCluster, detail
from tests.support.client.fake_data_port import FakeDataConnection, FakeDataPort


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


class Stream:
    """An open stream, its answers and its end."""

    def __init__(self, connection: GrpcConnection) -> None:
        self.answers: list[pb.AppendResponse] = []
        self.ends: list[errors.RaftMQError] = []
        self.writable = 0
        self._changed = asyncio.Event()
        self.stream = connection.append_stream(self._on_response, self._on_end, self._on_writable)

    def write(self, *requests: SerializedAppend) -> list[bool]:
        return [self.stream.write(request) for request in requests]

    async def wait(self, *, answers: int = 0, ends: int = 0, writable: int = 0) -> None:
        async with asyncio.timeout(10):
            while len(self.answers) < answers or len(self.ends) < ends or self.writable < writable:
                self._changed.clear()
                await self._changed.wait()

    @property
    def answered(self) -> list[int]:
        return [answer.correlation_id for answer in self.answers]

    def _on_response(self, response: pb.AppendResponse) -> None:
        self.answers.append(response)
        self._changed.set()

    def _on_end(self, error: errors.RaftMQError) -> None:
        self.ends.append(error)
        self._changed.set()

    def _on_writable(self) -> None:
        self.writable += 1
        self._changed.set()


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


# --------------------------------------------------------------------------------------------------------------------- polls


def poll(max_wait_ms: int = 0) -> pb.PollRequest:
    return pb.PollRequest(max_wait_ms=max_wait_ms)


async def test_polls_and_appends_have_connections_of_their_own(
    cluster: FakeCluster, connection: GrpcConnection, port: FakeDataPort
) -> None:
    await asyncio.gather(*(connection.call(POLL, poll(), 5) for _ in range(5)))
    (polls,) = port.connections
    assert [method for method, _, _ in polls.calls] == [POLL_NUMBER] * 5
    assert all(4000 < timeout_ms <= 5000 for timeout_ms in polls.timeouts_ms)
    await opened(connection, port)
    assert len(port.connections) == 2
    assert "Poll" not in cluster.clusters_called


async def test_a_poll_without_an_answer_times_out_and_is_cancelled(
    connection: GrpcConnection, port: FakeDataPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "DATA_TIMEOUT_GRACE_SECONDS", 0.01)
    await connection.call(POLL, poll(), 5)
    (broker,) = port.connections
    broker.is_mute = True
    with pytest.raises(errors.RequestTimedOutError, match=r"no answer within 0\.0"):
        await connection.call(POLL, poll(), 0.05)
    await port.wait(lambda: broker.cancelled == [2])


async def test_a_cancelled_poll_is_cancelled_at_the_broker(connection: GrpcConnection, port: FakeDataPort) -> None:
    await connection.call(POLL, poll(), 5)
    (broker,) = port.connections
    polling = asyncio.create_task(connection.call(POLL, poll(60_000), 60))
    await port.wait(lambda: len(broker.calls) == 2)
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling
    await port.wait(lambda: broker.cancelled == [2])


async def test_a_refused_poll_raises_the_brokers_error(connection: GrpcConnection, port: FakeDataPort) -> None:
    await connection.call(POLL, poll(), 5)
    (broker,) = port.connections
    broker.error_of = lambda _: detail(pb.NOT_READY)
    with pytest.raises(errors.NotReadyError) as raised:
        await connection.call(POLL, poll(), 5)
    assert raised.value.address == port.broker.address
    broker.error_of = lambda _: detail(pb.WRONG_CLUSTER)
    with pytest.raises(errors.UnreachableError):
        await connection.call(POLL, poll(), 5)


async def test_polls_end_with_their_connection_and_with_their_client(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    staying = GrpcConnection(port.broker.address)
    await staying.call(POLL, poll(), 5)
    (broker,) = port.connections
    polls = [asyncio.create_task(each.call(POLL, poll(60_000), 60)) for each in (connection, staying)]
    await port.wait(lambda: len(broker.calls) == 3)
    await connection.close()
    with pytest.raises(errors.BrokenConnectionError, match="the connection is closed"):
        await polls[0]
    assert not polls[1].done()
    broker.abort()
    with pytest.raises(errors.BrokenConnectionError, match="the data connection"):
        await polls[1]
    await staying.close()


async def open_for_polls(connection: GrpcConnection, port: FakeDataPort) -> FakeDataConnection:
    """The broker's end of an open connection, which answers nothing from now on."""
    await connection.call(POLL, poll(), 5)
    (broker,) = port.connections
    broker.is_mute = True
    return broker


async def test_the_outcome_of_a_poll_is_passed_on_where_it_arrives(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    broker = await open_for_polls(connection, port)
    outcomes: asyncio.Queue[pb.PollResponse | BaseException] = asyncio.Queue()
    tasks = asyncio.all_tasks()
    connection.poll(poll(60_000), 60, outcomes.put_nowait)
    assert asyncio.all_tasks() == tasks
    await port.wait(lambda: len(broker.calls) == 2)
    response = pb.PollResponse(partitions=[pb.PartitionPollResult(topic_id=7)])
    broker.say(FrameType.ANSWER, 2, response.SerializeToString())
    assert await outcomes.get() == response


async def test_a_poll_that_is_cancelled_has_no_outcome(connection: GrpcConnection, port: FakeDataPort) -> None:
    broker = await open_for_polls(connection, port)
    outcomes: list[pb.PollResponse | BaseException] = []
    pending = connection.poll(poll(60_000), 60, outcomes.append)
    await port.wait(lambda: len(broker.calls) == 2)
    pending.cancel()
    await port.wait(lambda: broker.cancelled == [2])
    await connection.close()
    pending.cancel()
    assert outcomes == []


async def test_late_polls_end_in_the_order_of_their_timeouts(
    connection: GrpcConnection, port: FakeDataPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One timer serves all of them, and a poll with a shorter timeout than those before it comes first."""
    monkeypatch.setattr(settings, "DATA_TIMEOUT_GRACE_SECONDS", 0.0)
    broker = await open_for_polls(connection, port)
    ended: asyncio.Queue[tuple[str, pb.PollResponse | BaseException]] = asyncio.Queue()

    def begin(name: str, timeout_seconds: float) -> None:
        connection.poll(poll(60_000), timeout_seconds, lambda outcome: ended.put_nowait((name, outcome)))

    begin("second", 0.02)
    begin("first", 0.01)
    begin("third", 0.03)
    order = [await ended.get() for _ in range(3)]
    assert [name for name, _ in order] == ["first", "second", "third"]
    assert {type(outcome) for _, outcome in order} == {errors.RequestTimedOutError}
    await port.wait(lambda: sorted(broker.cancelled) == [2, 3, 4])


async def test_a_poll_begins_before_its_connection_is_open(connection: GrpcConnection, port: FakeDataPort) -> None:
    outcomes: asyncio.Queue[pb.PollResponse | BaseException] = asyncio.Queue()
    connection.poll(poll(), 5, outcomes.put_nowait)
    assert isinstance(await outcomes.get(), pb.PollResponse)
    (broker,) = port.connections
    assert [method for method, _, _ in broker.calls] == [POLL_NUMBER]


async def test_a_poll_whose_connection_is_not_open_yet_ends_with_its_client(connection: GrpcConnection) -> None:
    outcomes: list[pb.PollResponse | BaseException] = []
    cancelled = connection.poll(poll(), 5, outcomes.append)
    connection.poll(poll(), 5, outcomes.append)
    cancelled.cancel()
    await asyncio.sleep(0)  # the tasks have begun to wait for the connection
    await connection.close()
    assert [type(outcome) for outcome in outcomes] == [errors.BrokenConnectionError]
    with pytest.raises(errors.BrokenConnectionError):
        connection.poll(poll(), 5, outcomes.append)


async def test_frames_of_one_turn_are_gathered_only_while_many_calls_are_unanswered(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    broker = await open_for_polls(connection, port)
    requests = [poll(1000 + number) for number in range(20)]
    for request in requests:
        connection.poll(request, 60, lambda _: None)
    await port.wait(lambda: len(broker.calls) == 21)
    assert [body for _, _, body in broker.calls[1:]] == [request.SerializeToString() for request in requests]
