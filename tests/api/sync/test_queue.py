"""The synchronous `Queue`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice

import pytest
import raftmq
from raftmq import errors, sync
from raftmq.client.base.loop_thread import LoopThread

from tests.support.client.fake_broker import FakeCluster


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
