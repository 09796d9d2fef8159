"""Polls and single appends over a data connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from raftmq import errors
from raftmq.client.base import settings
from raftmq.client.connection.append_stream import SerializedAppend
from raftmq.client.connection.data_calls import APPEND_NUMBER, INIT_PRODUCER_NUMBER, POLL_NUMBER
from raftmq.client.connection.transport import GrpcConnection
from raftmq.frames import METHOD_VERSIONS, FrameType
from raftmq.methods import INIT_PRODUCER, POLL
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


def poll(max_wait_ms: int = 0) -> pb.PollRequest:
    return pb.PollRequest(max_wait_ms=max_wait_ms)


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


async def test_an_append_goes_over_a_data_connection(
    connection: GrpcConnection, cluster: FakeCluster, port: FakeDataPort
) -> None:
    topic = cluster.topics["t"]
    request = pb.AppendRequest(timeout_ms=5000, partitions=[pb.PartitionAppend(topic_id=topic.topic_id, partition=0)])
    response = await connection.append(SerializedAppend(0, 5000, request.SerializeToString()), 5)
    assert len(response.partitions) == 1
    (broker,) = port.connections
    assert [(method, body) for method, _, body in broker.calls] == [(APPEND_NUMBER, request.SerializeToString())]


async def open_for_appends(connection: GrpcConnection) -> None:
    await connection.append(SerializedAppend(0, 5000, pb.AppendRequest(timeout_ms=5000).SerializeToString()), 5)


async def test_an_append_that_was_never_sent_is_definitely_not_applied(
    connection: GrpcConnection, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frozen broker does not say where its data port is. Exactly-once writers must not take the batch for one that may be written."""

    async def frozen(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(connection._data_port(), "_ask", frozen)
    with pytest.raises(errors.UnreachableError, match="no data connection") as caught:
        await connection.append(SerializedAppend(0, 50, b""), 0.05)
    assert caught.value.outcome is errors.Outcome.NOT_APPLIED


async def test_a_producer_is_registered_over_the_connection_for_appends_if_there_is_one(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    claim = pb.InitProducerRequest(name="task", epoch=3, stamp=b"rows")
    before = await connection.call(INIT_PRODUCER, claim, 5)
    assert not port.connections, "a client that only registers opens no data connection"
    await connection.call(POLL, poll(), 5)
    assert await connection.call(INIT_PRODUCER, claim, 5) == before
    await open_for_appends(connection)
    assert await connection.call(INIT_PRODUCER, claim, 5) == before
    polls, appends = port.connections
    assert [method for method, _, _ in polls.calls] == [POLL_NUMBER]
    assert [method for method, _, _ in appends.calls] == [APPEND_NUMBER, INIT_PRODUCER_NUMBER]
    assert appends.calls[-1][2] == claim.SerializeToString()
    appends.error_of = lambda _: detail(pb.PRODUCER_FENCED)
    with pytest.raises(errors.ProducerFencedError) as raised:
        await connection.call(INIT_PRODUCER, claim, 5)
    assert raised.value.address == port.broker.address
    appends.say(FrameType.GOODBYE, 3)
    await port.wait(lambda: not appends.is_open)
    assert await connection.call(INIT_PRODUCER, claim, 5) == before
    assert len(port.connections) == 2


async def test_an_older_broker_is_asked_over_grpc_to_register_a_producer(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    port.version = METHOD_VERSIONS[INIT_PRODUCER_NUMBER] - 1
    await open_for_appends(connection)
    assert (await connection.call(INIT_PRODUCER, pb.InitProducerRequest(name="task", epoch=3), 5)).epoch == 3
    (appends,) = port.connections
    assert [method for method, _, _ in appends.calls] == [APPEND_NUMBER]


async def test_a_registration_whose_connection_breaks_may_have_arrived(
    connection: GrpcConnection, port: FakeDataPort
) -> None:
    await open_for_appends(connection)
    (appends,) = port.connections
    appends.is_mute = True
    registering = asyncio.create_task(connection.call(INIT_PRODUCER, pb.InitProducerRequest(name="task", epoch=3), 5))
    await port.wait(lambda: len(appends.calls) == 2)
    appends.abort()
    with pytest.raises(errors.BrokenConnectionError) as raised:
        await registering
    assert raised.value.outcome is errors.Outcome.UNKNOWN


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
