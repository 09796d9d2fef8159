"""Admission control evicts the longest-idle call when a budget is exhausted, and closes exactly its connection."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from types import SimpleNamespace

import grpc
import grpc.aio
import lmdb
import pytest
from raftmq.broker.base.budget import Budget
from raftmq.broker.base.limits import MIB, Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.grpc_port import admission
from raftmq.broker.grpc_port.admission import GrpcCall
from raftmq.broker.grpc_port.admission_interceptor import AdmissionInterceptor
from raftmq.broker.grpc_port.hardening import quiet_grpc
from raftmq.broker.grpc_port.security import abort
from raftmq.broker.grpc_port.slow_readers import close_connections_to, peer_address
from raftmq.client.connection.transport import error_from_rpc
from raftmq.errors import Outcome, ThrottledError
from raftmq.methods import POLL
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc

from tests.support.hostile import http2


class Clock:
    """The parts of an event loop that a budget needs, with a time of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.delays: list[float] = []
        """Loop time of all timers."""
        self._loop = asyncio.get_running_loop()

    def time(self) -> float:
        return self.now

    def call_at(self, when, callback, *arguments):
        self.delays.append(when - self.now)
        return self._loop.call_later(3600, callback, *arguments)  # here time passes only when the test advances it

    def __getattr__(self, name):
        return getattr(self._loop, name)


class Context:
    """A call's context. Its connection can be closed."""

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"


def call() -> GrpcCall:
    """The call of the current task."""
    task = asyncio.current_task()
    assert task is not None
    return GrpcCall(asyncio.get_running_loop(), Context(), task)


@pytest.fixture
async def clock():
    return Clock()


async def _holding(budget, held, size=1):
    """Start a call that acquires budget and keeps it until it is cancelled."""
    reservation = budget.acquire(call(), size)
    held.append(reservation)
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        budget.release(reservation)


async def _started(budget, count):
    held: list[object] = []
    tasks = [asyncio.create_task(_holding(budget, held)) for _ in range(count)]
    while len(held) < count:
        await asyncio.sleep(0)
    return held, tasks


async def _end(tasks):
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_without_an_idle_call_the_newcomer_is_refused_as_retriable(clock):
    budget = Budget(clock, 3, "things")
    _, tasks = await _started(budget, 3)
    with pytest.raises(RequestError) as raised:
        budget.acquire(call())
    assert raised.value.code == pb.THROTTLED
    assert raised.value.detail.retriable
    assert raised.value.detail.retry_after_ms > 0
    await _end(tasks)
    assert budget.size == 0


async def test_the_longest_idle_call_is_evicted(clock):
    budget = Budget(clock, 3, "things")
    held, tasks = await _started(budget, 3)
    clock.now += 2
    budget.keepalive(held[0])

    reservation = budget.acquire(call())

    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    assert [task.cancelled() for task in tasks] == [False, True, False]
    assert held[1].is_evicted
    budget.release(reservation)
    await _end(tasks)
    assert (budget.size, budget.evictions) == (0, 1)


async def test_an_unread_answer_counts_until_its_connection_is_closed(clock, monkeypatch):
    """gRPC keeps the bytes of a call whose handler was cancelled, so their budget must not be given away yet."""
    cut = []
    monkeypatch.setattr(admission, "cut_off", lambda loop, peer: cut.append(peer))
    budget = Budget(clock, 2, "answers")
    held, tasks = await _started(budget, 2)
    held[0].is_sending = True
    clock.now += 2
    budget.keepalive(held[1])

    for _ in range(3):
        with pytest.raises(RequestError):
            budget.acquire(call())
    assert cut == ["ipv4:127.0.0.1:1"], "once"
    assert not tasks[0].done()

    await _end(tasks[:1])  # the connection's end ends the call
    budget.release(budget.acquire(call()))
    await _end(tasks[1:])
    assert budget.size == 0


async def test_as_many_idle_connections_are_evicted_as_a_newcomer_needs(clock):
    """A data connection frees an unread answer at once. It was counted as leaving, too, so that half of the evictions were left out."""
    closed = SimpleNamespace(peer=lambda: "ipv4:127.0.0.1:1", evict=lambda reservation: True)
    budget = Budget(clock, 10, "answers")
    for _ in range(5):
        budget.acquire(closed, 2).is_sending = True
    clock.now += 2
    reservation = budget.acquire(closed, 4)
    assert (budget.size, budget.evictions) == (10, 2)
    budget.release(reservation)


async def test_the_newest_waiter_goes_first_and_no_budget_is_lost(clock):
    budget = Budget(clock, 1, "requests")
    _, tasks = await _started(budget, 1)
    order = []

    async def wait(name):
        reservation = await budget.wait(call())
        order.append(name)
        budget.release(reservation)

    waiting = []
    for name in "abc":
        waiting.append(asyncio.create_task(wait(name)))
        while budget.waiting < len(waiting):
            await asyncio.sleep(0)
    waiting[1].cancel()
    await _end(tasks)
    await asyncio.gather(waiting[0], waiting[2])
    assert order == ["c", "a"]
    assert (budget.size, budget.waiting) == (0, 0)


async def test_a_waiter_pauses_before_the_next_eviction(clock, monkeypatch):
    """A call that was evicted while sending ends only a moment later, and all the others were idle too. The wait for the next of them
    was over before it began, and the event loop was busy with nothing else."""
    monkeypatch.setattr(admission, "cut_off", lambda loop, peer: None)
    budget = Budget(clock, 2, "answers")
    held, tasks = await _started(budget, 2)
    held[0].is_sending = True
    clock.now += 10

    waiting = asyncio.create_task(budget.wait(call()))
    while not budget.waiting:
        await asyncio.sleep(0)

    assert held[0].is_evicted
    assert not held[1].is_evicted
    assert clock.delays
    assert min(clock.delays) > 0
    await _end(tasks)
    budget.release(await waiting)
    assert budget.size == 0


async def _all_waiting(budget, count):
    while budget.waiting < count:
        await asyncio.sleep(0)


async def test_a_newcomer_does_not_queue_after_waiting_calls(clock):
    """When the calls inside became idle, all waiting ones were admitted together, so that a newcomer found no idle call to evict.
    It waited for the same time again, together with all the others."""
    budget = Budget(clock, 4, "requests")
    _, tasks = await _started(budget, 4)
    waiting = [asyncio.create_task(budget.wait(call())) for _ in range(20)]
    await _all_waiting(budget, 20)
    clock.now += 2
    budget._on_timer()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert sum(task.done() for task in waiting) == 1
    assert waiting[-1].done(), "the newest"
    newcomer = asyncio.create_task(budget.wait(call()))
    await asyncio.sleep(0)
    assert newcomer.done()
    assert budget.evictions == 2
    await _end(waiting)
    await _end(tasks)


async def test_free_budget_goes_to_a_waiter_that_fits(clock):
    """Only the newest call was woken, and its answer was larger than the free budget."""
    budget = Budget(clock, 10, "answers")
    _held, tasks = await _started(budget, 10)
    small = [asyncio.create_task(budget.wait(call(), 1)) for _ in range(3)]
    await _all_waiting(budget, 3)
    large = asyncio.create_task(budget.wait(call(), 9))
    await _all_waiting(budget, 4)

    await _end(tasks[:2])
    await asyncio.wait(small[1:])
    assert not small[0].done()
    assert not large.done()
    await _end(tasks[2:])
    await asyncio.wait([small[0]])
    assert not large.done()
    for task in small:
        budget.release(task.result())
    budget.release(await large)
    assert (budget.size, budget.waiting) == (0, 0)


def test_an_answer_larger_than_the_budget_is_sent_alone():
    async def acquire():
        budget = Budget(asyncio.get_running_loop(), 10, "answers")
        budget.release(budget.acquire(call(), 100))
        reservation = budget.acquire(call(), 100)
        with pytest.raises(RequestError):
            budget.acquire(call(), 1)
        budget.release(reservation)

    asyncio.run(acquire())


@pytest.mark.parametrize(
    ("name", "address"),
    [
        ("ipv4:127.0.0.1:5", ("127.0.0.1", 5)),
        ("ipv6:[::1]:5", ("::1", 5)),
        ("ipv6:%5B::1%5D:5", ("::1", 5)),
        ("unix:/tmp/x", None),
        ("", None),
    ],
)
def test_a_connections_name_is_understood(name, address):
    assert peer_address(name) == address


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_one_connection_is_closed_and_no_other(family):
    """This also holds if the listener accepts both address families, as gRPC's does."""
    with socket.create_server(("", 0), family=family, dualstack_ipv6=family == socket.AF_INET6) as listener:
        address = ("127.0.0.1", listener.getsockname()[1])
        with socket.create_connection(address) as one, socket.create_connection(address) as other:
            accepted = [listener.accept()[0] for _ in range(2)]
            # both ends are in this process: the accepted one has the client's name as its peer
            assert close_connections_to(*one.getsockname()[:2]) == 1
            one.settimeout(5)
            assert one.recv(1) == b""
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.recv(1)
            for sock in accepted:
                sock.close()


_IS_LOCKED = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except BlockingIOError:
        sys.exit(1)
"""


def test_closing_a_connection_keeps_the_locks_of_open_files(tmp_path):
    """The first descriptor of a lock file that is closed ends all fcntl locks of the process on it, even if it is a duplicate."""
    with lmdb.open(str(tmp_path / "file.mdb"), subdir=False):
        close_connections_to("127.0.0.1", 1)
        done = subprocess.run([sys.executable, "-c", _IS_LOCKED, str(tmp_path / "file.mdb-lock")], check=False)
    assert done.returncode == 1, "another process could take the file for unused, and clear its table of readers"


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_large_answer_that_is_refused_leaves_the_outcome_unknown(is_stream):
    """The request was processed before its answer found no memory, so the caller must not take it for one that changed nothing."""
    admission = AdmissionInterceptor(asyncio.get_running_loop(), Limits(unsent_bytes_max=MIB), abort, {})
    answer = pb.AppendResponse(error=pb.ErrorDetail(message="x" * 100_000))

    class Log(pb_grpc.LogServicer):
        def _fill(self):
            admission.unsent.acquire(GrpcCall(asyncio.get_running_loop(), Context(), asyncio.current_task()), MIB - 1)

        async def Append(self, request, context):  # noqa: N802 -- the protocol's name
            self._fill()
            return answer

        async def AppendStream(self, requests, context):  # noqa: N802
            async for _ in requests:
                self._fill()
                yield answer

    server = grpc.aio.server(interceptors=(admission,))
    pb_grpc.add_LogServicer_to_server(Log(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = pb_grpc.LogStub(channel)
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                if is_stream:
                    await stub.AppendStream(iter([pb.AppendRequest()])).read()
                else:
                    await stub.Append(pb.AppendRequest())
    finally:
        await server.stop(0)
    error = error_from_rpc(raised.value, "")
    assert isinstance(error, ThrottledError)
    assert error.outcome is Outcome.UNKNOWN


async def test_an_answer_that_was_cut_off_releases_its_budget_and_is_not_logged(caplog):
    """gRPC sends a call's answer after the handler returned it, and logs a traceback if the client has disconnected."""
    loop = asyncio.get_running_loop()
    admission = AdmissionInterceptor(loop, Limits(), _abort, {})
    answered = asyncio.Event()

    class Queue(pb_grpc.LogServicer):
        async def Poll(self, request, context):  # noqa: N802 -- the protocol's name
            answered.set()
            return pb.PollResponse(partitions=[pb.PartitionPollResult(batches=[bytes(MIB)])])

    quiet_grpc()
    server = grpc.aio.server(interceptors=(admission,))
    pb_grpc.add_LogServicer_to_server(Queue(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        with socket.create_connection(("127.0.0.1", port)) as client:
            name = client.getsockname()
            client.sendall(http2.greeting(initial_window_size=0) + http2.unary(1, POLL.path, b""))
            async with asyncio.timeout(30):
                await answered.wait()
                while admission.unsent.size < 2 * MIB:
                    await asyncio.sleep(0)
                assert admission.unsent.size > 0, "the answer has not been read"
                assert await asyncio.to_thread(close_connections_to, *name) == 1
                while admission.unsent.size:
                    await asyncio.sleep(0.01)
    finally:
        await server.stop(0)
    assert [record.getMessage() for record in caplog.records if record.name.startswith("grpc")] == []


async def _abort(context, error):
    await context.abort(grpc.StatusCode.UNKNOWN, str(error))
