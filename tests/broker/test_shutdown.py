"""An orderly end is bounded as a whole: a phase that hangs is logged and abandoned, and the exit then counts as abnormal."""

import asyncio
import threading
import time

import pytest
from raftmq.broker.shutdown import Shutdown
from raftmq.storage.registry import Registry

from tests.support.broker.whole_nodes import WAIT_SECONDS

SHUTDOWN_SECONDS = 2.0


async def forever():
    await asyncio.Event().wait()


async def fail():
    raise OSError("a phase's own")


async def test_each_phase_gets_the_remaining_time():
    end = Shutdown(asyncio.get_running_loop(), 2.0)
    began_at = time.monotonic()
    assert await end.phase("first", asyncio.sleep(0.01))
    assert not await end.phase("second", forever(), 0.05)
    assert 0.0 < end.seconds_left < 2.0
    assert not await end.phase("third", forever())
    assert end.seconds_left == 0.0
    assert not await end.phase("fourth", forever())
    assert end.overdue == ["second", "third", "fourth"]
    assert time.monotonic() - began_at < 5.0
    assert not end.is_clean


async def test_a_failed_phase_does_not_prevent_the_others():
    end = Shutdown(asyncio.get_running_loop(), 5.0)
    assert not await end.phase("first", fail())
    assert await end.phase("second", asyncio.sleep(0))
    assert isinstance(end.failure, OSError)
    assert not end.is_clean


async def serve(nodes, monkeypatch):
    node = await nodes.serve("one", bootstrap=True, shutdown_seconds=SHUTDOWN_SECONDS)
    ended = []
    monkeypatch.setattr(node._parts, "end_process", lambda: ended.append(1))
    return node, ended


async def stop(nodes, node):
    """Stop within the shutdown time, with a margin for a machine under load."""
    async with asyncio.timeout(WAIT_SECONDS):
        began_at = time.monotonic()
        await nodes.stop(node)
        assert time.monotonic() - began_at < SHUTDOWN_SECONDS + 5.0


@pytest.mark.parametrize("who", ["writer", "reader"])
async def test_a_hanging_thread_does_not_prevent_the_exit(nodes, monkeypatch, who):
    """A disk that hangs must not prevent the process from ending, nor its port from being freed."""
    node, ended = await serve(nodes, monkeypatch)
    may_go_on = threading.Event()
    if who == "writer":
        node._storage.writers.run(node.view.metadata.key, may_go_on.wait)
    else:
        node._storage.readers.upkeep.submit(may_go_on.wait)
    await stop(nodes, node)
    assert ended, "the process is ended, because the interpreter would wait for the thread"
    may_go_on.set()
    node.registry.close(is_clean=False)
    registry = Registry(node.config.data_dir / "node.mdb")
    assert registry.was_abnormal_exit, "the thread's remaining work must not count as an orderly end"
    registry.close(is_clean=True)


async def test_a_port_that_does_not_close_costs_its_share_only(nodes, monkeypatch):
    node, ended = await serve(nodes, monkeypatch)
    close = node.grpc.stop
    closed = []
    store_close = node.store.close
    monkeypatch.setattr(node.store, "close", lambda key: (closed.append(key), store_close(key)))

    async def hang(grace_seconds):
        await close(grace_seconds)
        await forever()

    monkeypatch.setattr(node.grpc, "stop", hang)
    await stop(nodes, node)
    assert ended
    assert closed, "the files are still closed in order"
    registry = Registry(node.config.data_dir / "node.mdb")
    assert registry.was_abnormal_exit
    registry.close(is_clean=True)


async def test_an_end_in_order_is_a_clean_one(nodes, monkeypatch):
    node, ended = await serve(nodes, monkeypatch)
    await stop(nodes, node)
    assert not ended
    registry = Registry(node.config.data_dir / "node.mdb")
    assert not registry.was_abnormal_exit
    registry.close(is_clean=True)
