"""The outcome of each call of a data connection, wherever the bytes are cut and however the connection ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from raftmq import errors
from raftmq.client.base import settings
from raftmq.client.connection.data_connection import DataConnection, open_data_connection
from raftmq.frames import BUFFER_BYTES, HEADER_BYTES, FrameType, frame_header
from raftmq.proto import queue_pb2 as pb

from tests.support.client.fake_broker import FakeCluster, detail
from tests.support.client.fake_data_port import FakeDataConnection, FakeDataPort

REQUEST = pb.AppendRequest(correlation_id=1).SerializeToString()


class Calls:
    """A handler of calls and user of a connection that notes everything it is told."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, bytes]] = []
        self.responses: list[tuple[int, bytes]] = []
        self.refusals: list[tuple[int, str]] = []
        self.lost: list[tuple[int, errors.RaftMQError]] = []
        self.closings: list[errors.RaftMQError] = []
        self.writable = 0
        self.changed = asyncio.Event()

    def on_answer(self, correlation_id: int, body: memoryview) -> None:
        self.answers.append((correlation_id, bytes(body)))
        self.changed.set()

    def on_response(self, correlation_id: int, body: memoryview) -> None:
        self.responses.append((correlation_id, bytes(body)))

    def on_refused(self, correlation_id: int, detail: pb.ErrorDetail) -> None:
        self.refusals.append((correlation_id, detail.message))
        self.changed.set()

    def on_lost(self, correlation_id: int, error: errors.RaftMQError) -> None:
        self.lost.append((correlation_id, error))
        self.changed.set()

    def on_closing(self, error: errors.RaftMQError) -> None:
        self.closings.append(error)
        self.changed.set()

    def on_writable(self) -> None:
        self.writable += 1
        self.changed.set()

    async def next(self) -> None:
        async with asyncio.timeout(10):
            await self.changed.wait()
        self.changed.clear()


class Wire:
    """A stand-in for a socket's transport that keeps the written bytes."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.is_closed = True

    abort = close

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> None: ...


def made() -> tuple[DataConnection, Wire, Calls]:
    connection, wire = DataConnection("one:9400"), Wire()
    connection.connection_made(wire)
    return connection, wire, Calls()


def feed(connection: DataConnection, data: bytes) -> None:
    while data:
        buffer = connection.get_buffer(-1)
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


def is_large(connection: DataConnection) -> bool:
    return connection._reader.is_large


def frame(frame_type: FrameType, correlation_id: int = 0, body: bytes = b"") -> bytes:
    return frame_header(frame_type, len(body), correlation_id) + body


@pytest.fixture
async def port() -> AsyncIterator[FakeDataPort]:
    async with FakeCluster(brokers=1, has_data_ports=True) as cluster:
        yield cluster.brokers[1].data_port


async def opened(port: FakeDataPort) -> tuple[DataConnection, FakeDataConnection]:
    connection = await open_data_connection(port.broker.address, port.port, port.token())
    return connection, port.connections[-1]


async def test_frames_cut_at_any_byte_are_the_same_frames() -> None:
    stream = (
        frame(FrameType.WELCOME)
        + frame(FrameType.ANSWER, 2, b"two")
        + frame(FrameType.ERROR, 1, detail(pb.THROTTLED).SerializeToString())
        + frame(FrameType.ANSWER, 3)
    )
    for cut in range(1, len(stream)):
        connection, _, calls = made()
        assert [connection.call(0, REQUEST, 1000, calls) for _ in range(3)] == [1, 2, 3]
        feed(connection, stream[:cut])
        feed(connection, stream[cut:])
        assert (calls.answers, calls.refusals) == ([(2, b"two"), (3, b"")], [(1, "THROTTLED")])
    connection, _, calls = made()
    for _ in range(3):
        connection.call(0, REQUEST, 1000, calls)
    for at in range(len(stream)):
        feed(connection, stream[at : at + 1])
    assert (calls.answers, calls.refusals) == ([(2, b"two"), (3, b"")], [(1, "THROTTLED")])


async def test_a_call_is_a_frame_with_its_method_timeout_and_body() -> None:
    connection, wire, calls = made()
    connection.call(1, b"small", 250, calls)
    large = bytes(settings.DATA_JOIN_BYTES_MAX + 1)
    connection.call(0, large, 0, calls)
    assert bytes(wire.written) == (
        frame_header(FrameType.CALL, 5, 1, 1, 250)
        + b"small"
        + frame_header(FrameType.CALL, len(large), 2, 0, 1)
        + large
    )


async def test_the_buffer_of_a_large_answer_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with many brokers kept 4 MiB for each connection after one large poll."""
    monkeypatch.setattr(settings, "DATA_LARGE_BUFFER_SECONDS", 0.0)
    connection, _, calls = made()
    answer = frame(FrameType.ANSWER, 1, bytes(3 * BUFFER_BYTES))
    connection.call(1, REQUEST, 1000, calls)
    feed(connection, answer[: 2 * BUFFER_BYTES])
    for _ in range(10):
        await asyncio.sleep(0)
    assert is_large(connection), "the answer is still arriving"
    feed(connection, answer[2 * BUFFER_BYTES :])
    assert calls.answers == [(1, bytes(3 * BUFFER_BYTES))]
    async with asyncio.timeout(5):
        while is_large(connection):
            await asyncio.sleep(0)
    assert connection._shrinking is None


async def test_a_large_buffer_is_kept_while_large_answers_come() -> None:
    connection, _, calls = made()
    for number in (1, 2):
        connection.call(1, REQUEST, 1000, calls)
        feed(connection, frame(FrameType.ANSWER, number, bytes(3 * BUFFER_BYTES)))
        connection._shrink()
        assert is_large(connection)
    connection.connection_lost(None)
    assert connection._shrinking is not None
    assert connection._shrinking.cancelled()


@pytest.mark.parametrize(
    "garbage",
    [
        frame_header(FrameType.ANSWER, settings.MESSAGE_BYTES_MAX + 1, 1),
        bytes([0] * 4 + [99] + [0] * (HEADER_BYTES - 5)),
        frame(FrameType.CALL, 1),
        frame(FrameType.ERROR, 1, b"\xff"),
    ],
)
async def test_what_is_no_frame_ends_the_connection(garbage: bytes) -> None:
    connection, wire, calls = made()
    connection.add_user(calls)
    connection.call(0, REQUEST, 1000, calls)
    feed(connection, garbage)
    assert wire.is_closed
    assert not connection.is_open
    ((_, error),) = calls.lost
    assert isinstance(error, errors.BrokenConnectionError)
    assert error.outcome is errors.Outcome.UNKNOWN
    assert calls.closings == [error]
    feed(connection, frame(FrameType.ANSWER, 1))
    assert calls.answers == []


async def test_a_cancelled_call_hears_nothing() -> None:
    connection, wire, calls = made()
    correlation_id = connection.call(0, REQUEST, 1000, calls)
    wire.written.clear()
    connection.cancel(correlation_id)
    connection.cancel(correlation_id)
    await asyncio.sleep(0)
    assert bytes(wire.written) == frame(FrameType.CANCEL, correlation_id)
    feed(connection, frame(FrameType.ANSWER, correlation_id, b"late"))
    feed(connection, frame(FrameType.ERROR, correlation_id, detail(pb.THROTTLED).SerializeToString()))
    connection.close()
    assert (calls.answers, calls.refusals, calls.lost) == ([], [], [])


async def test_a_broker_that_leaves_answers_what_it_looked_at() -> None:
    connection, wire, calls = made()
    connection.add_user(calls)
    for _ in range(4):
        connection.call(0, REQUEST, 1000, calls)
    feed(connection, frame(FrameType.GOODBYE, 2))
    assert [correlation_id for correlation_id, _ in calls.lost] == [3, 4]
    assert {type(error) for _, error in calls.lost} == {errors.UnreachableError}
    assert {error.outcome for _, error in calls.lost} == {errors.Outcome.NOT_APPLIED}
    assert len(calls.closings) == 1
    with pytest.raises(errors.UnreachableError):
        connection.call(0, REQUEST, 1000, calls)
    feed(connection, frame(FrameType.ANSWER, 2, b"two"))
    was_closed = wire.is_closed
    feed(connection, frame(FrameType.ANSWER, 1, b"one"))
    assert (was_closed, wire.is_closed) == (False, True)
    assert calls.answers == [(2, b"two"), (1, b"one")]
    assert len(calls.lost) == 2


async def test_an_idle_connection_that_the_broker_leaves_is_closed() -> None:
    connection, wire, _ = made()
    feed(connection, frame(FrameType.GOODBYE))
    assert wire.is_closed


async def test_what_the_broker_says_of_the_whole_connection_ends_it_with_doubt() -> None:
    connection, wire, calls = made()
    feed(connection, frame(FrameType.WELCOME))
    connection.call(0, REQUEST, 1000, calls)
    feed(connection, frame(FrameType.ERROR, 0, detail(pb.THROTTLED).SerializeToString()))
    ((_, error),) = calls.lost
    assert wire.is_closed
    assert error.outcome is errors.Outcome.UNKNOWN
    assert isinstance(error.__cause__, errors.ThrottledError)


async def test_a_connection_that_breaks_loses_its_calls(port: FakeDataPort) -> None:
    connection, broker = await opened(port)
    broker.is_mute = True
    calls = Calls()
    connection.add_user(calls)
    connection.call(0, REQUEST, 1000, calls)
    await port.wait(lambda: len(broker.calls) == 1)
    broker.abort()
    await calls.next()
    ((_, error),) = calls.lost
    assert isinstance(error, errors.BrokenConnectionError)
    assert calls.closings == [error]
    await connection.wait_closed()
    assert connection.is_closed


async def test_answers_are_taken_in_any_order_over_a_socket(port: FakeDataPort) -> None:
    connection, broker = await opened(port)
    broker.is_mute = True
    calls = Calls()
    for _ in range(3):
        connection.call(0, REQUEST, 1000, calls)
    await port.wait(lambda: len(broker.calls) == 3)
    large = bytes(range(256)) * 8192
    for correlation_id in (3, 1, 2):
        broker.say(FrameType.ANSWER, correlation_id, large)
    while len(calls.answers) < 3:
        await calls.next()
    assert calls.answers == [(3, large), (1, large), (2, large)]
    connection.close()
    await connection.wait_closed()


async def test_users_wait_in_line_until_the_broker_reads_again(port: FakeDataPort) -> None:
    connection, broker = await opened(port)
    broker.is_mute = True
    broker.pause()
    calls, waiters = Calls(), [Calls(), Calls()]
    while connection.is_writable:
        connection.call(0, bytes(1 << 20), 1000, calls)
        await asyncio.sleep(0)
    for waiter in waiters:
        connection.add_user(waiter)
        connection.wait_writable(waiter)
    connection.remove_user(waiters[1])
    assert [waiter.writable for waiter in waiters] == [0, 0]
    broker.resume()
    await waiters[0].next()
    assert [waiter.writable for waiter in waiters] == [1, 0]
    connection.close()
    await connection.wait_closed()
    assert len(calls.lost) == connection._last_correlation_id


async def test_a_broker_that_does_not_read_does_not_hold_up_closing(port: FakeDataPort) -> None:
    connection, broker = await opened(port)
    broker.pause()
    while connection.is_writable:
        connection.call(0, bytes(1 << 20), 1000, Calls())
        await asyncio.sleep(0)
    connection.close()
    async with asyncio.timeout(5):
        await connection.wait_closed()
    broker.abort()


async def test_a_refusal_of_the_hello_is_raised(port: FakeDataPort) -> None:
    port.refusal = detail(pb.UNSUPPORTED_VERSION, "another version")
    with pytest.raises(errors.UnsupportedVersionError, match="another version"):
        await opened(port)
    await port.wait(lambda: not port.open_connections)


async def test_an_attempt_that_is_cancelled_leaves_nothing_open(port: FakeDataPort) -> None:
    port.is_silent = True
    attempt = asyncio.create_task(open_data_connection(port.broker.address, port.port, port.token()))
    await port.wait(lambda: len(port.open_connections) == 1)
    attempt.cancel()
    await asyncio.wait([attempt])
    await port.wait(lambda: not port.open_connections)
