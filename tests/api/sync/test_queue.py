"""The synchronous `Queue`."""

from __future__ import annotations

import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count, islice
from typing import Generic, TypeVar
from weakref import ref

import pytest
import raftmq
from raftmq import errors, sync
from raftmq.client.base.loop_thread import LoopThread

from tests.support.client.fake_broker import FakeCluster

T = TypeVar("T")


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Run fake brokers on the background loop of `raftmq.sync`, so that the process has a single gRPC event loop."""
    loop = LoopThread.get()

    async def make() -> FakeCluster:
        return await FakeCluster(brokers=2).__aenter__()

    running = loop.run(make())
    loop.run(create(running))
    yield running
    loop.run(running.__aexit__(None, None, None))


async def create(cluster: FakeCluster) -> None:
    cluster.create_queue("jobs", 2)


def test_threads_share_the_messages_of_a_queue(cluster: FakeCluster) -> None:
    found: list[bytes] = []
    with sync.Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        queue.put_many(raftmq.NewMessage(b"%d" % n, id=str(n)) for n in range(40))

        def work() -> None:
            while (message := queue.get(wait_ms=0)) is not None:
                found.append(message.value)
                message.ack()

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert queue.stats().leased == 0
    assert sorted(found) == sorted(b"%d" % n for n in range(40))


def test_every_method_works_without_an_event_loop(cluster: FakeCluster) -> None:
    with sync.Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        result = queue.put(b"x", id="x", priority=3)
        message = queue.get()
        assert message is not None
        assert (message.value, message.id, message.sequence) == (b"x", "x", result.sequence)
        message.renew(progress="half")
        assert not message.is_lost
        assert message.release()
        (again,) = islice(queue, 1)
        again.reject("bad")
        assert [found.error for found in queue.browse("dead")] == ["bad"]
        assert queue.redrive("x") == 1
        queue.move("x", delay_ms=60_000)
        queue.pause(duration_ms=1000)
        queue.resume()
        assert not queue.wait("x", timeout_ms=1)
        queue.cancel("x")
        assert queue.purge() == 0
        assert queue.get_many(wait_ms=0) == []
        queue.put_many([b"a", b"b"])
        queue.ack_many(queue.get_many(max_messages=1) + queue.get_many(max_messages=1))
        assert queue.stats().leased == queue.stats().ready == 0
    with pytest.raises(errors.ClosedClientError):
        queue.put(b"late")


class _Interrupted(concurrent.futures.Future[T], Generic[T]):
    """The result of a call at which Ctrl-C arrives just when it is there."""

    def __init__(self, future: concurrent.futures.Future[T]) -> None:
        super().__init__()
        self._future = future

    def result(self, timeout: float | None = None) -> T:
        self._future.result(timeout)
        raise KeyboardInterrupt


@contextmanager
def ctrl_c_with_the_result(monkeypatch: pytest.MonkeyPatch, calls: int) -> Iterator[None]:
    """Let Ctrl-C arrive with the result of the last of so many calls."""
    start, numbers = LoopThread.start, count(1)

    def interrupted(loop: LoopThread, coroutine: Coroutine[object, object, T]) -> concurrent.futures.Future[T]:
        future = start(loop, coroutine)
        return _Interrupted(future) if next(numbers) == calls else future

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LoopThread, "start", interrupted)
        yield


@pytest.mark.parametrize(
    ("get", "calls"), [(sync.Queue.get, 1), (sync.Queue.get_many, 1), (lambda queue: next(queue.messages()), 2)]
)
def test_messages_that_arrive_with_ctrl_c_are_given_back(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, get: Callable[[sync.Queue[bytes]], object], calls: int
) -> None:
    """They stayed leased by a program that did not have them."""
    with sync.Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        queue.put(b"x")
        with ctrl_c_with_the_result(monkeypatch, calls):
            get(queue)
        again = queue.get(wait_ms=10_000)
        assert again is not None
        assert (again.value, again.attempt) == (b"x", 1)
        again.ack()


def test_an_iterator_holds_no_message_that_the_program_forgot(cluster: FakeCluster) -> None:
    with sync.Queue("jobs", bootstrap_servers=cluster.bootstrap_servers) as queue:
        queue.put(b"1")
        forgotten = ref(next(messages := queue.messages())._message)
        assert forgotten() is None
        del messages
