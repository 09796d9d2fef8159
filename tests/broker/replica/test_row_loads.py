"""Reads of rows reach their machine once, and a write-back is not reported before the reads that began earlier have arrived."""

import asyncio
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from raftmq.broker.replica import row_loads
from raftmq.broker.replica.row_loads import RowLoads
from raftmq.fsm.row_reads import RowRange, RowsNeeded
from raftmq.storage.errors import DamagedReplicaError, ReplicaClosedError, StorageUnavailableError
from raftmq.storage.log_store import ReplicaKey
from raftmq.types import GroupId, ReplicaId

KEY = ReplicaKey(GroupId(1), ReplicaId(1))
NEEDED = RowsNeeded((RowRange(b"a", b"b", 1),))


class Threads:
    """An executor whose work ends on demand."""

    def __init__(self):
        self.work = []

    def submit(self, function, *arguments):
        future = Future()
        future.set_running_or_notify_cancel()
        self.work.append((future, function, arguments))
        return future

    def end(self, error=None, position=0):
        future, function, arguments = self.work.pop(position)
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(function(*arguments))


class Host:
    def __init__(self):
        self.broken, self.dirty = [], 0

    def guarded(self, replica, action, *arguments):
        if not replica.is_closed:
            action(*arguments)

    def mark_dirty(self, replica):
        self.dirty += 1

    def break_replica(self, replica, error):
        self.broken.append(error)


class WatchedLoads(RowLoads):
    """Reads with the host and the threads of a test."""

    def __init__(self, loop, host, threads):
        super().__init__(loop, host, threads, lambda key, ranges: [("rows of", key, ranges)])
        self.host, self.threads = host, threads


@pytest.fixture
def replica():
    return SimpleNamespace(key=KEY, group_id=KEY.group_id, is_closed=False)


@pytest.fixture
async def loads():
    return WatchedLoads(asyncio.get_running_loop(), Host(), Threads())


async def turns():
    for _ in range(4):
        await asyncio.sleep(0)


async def test_the_rows_reach_the_function_and_the_group_is_stepped(loads, replica):
    found = []
    loads.start(replica, NEEDED, found.append)
    loads.threads.end()
    await turns()
    assert found == [[("rows of", KEY, NEEDED.ranges)]]
    assert loads.host.dirty == 1


async def test_a_closed_replica_gets_nothing(loads, replica):
    found = []
    loads.start(replica, NEEDED, found.append)
    replica.is_closed = True
    loads.threads.end()
    await turns()
    loads.start(replica, NEEDED, found.append)
    loads.threads.end(ReplicaClosedError(KEY, "closed"))
    await turns()
    assert found == []
    assert loads.host.broken == []


async def test_a_damaged_row_breaks_the_replica(loads, replica):
    loads.start(replica, NEEDED, pytest.fail)
    error = DamagedReplicaError(KEY, "a flipped byte")
    loads.threads.end(error)
    await turns()
    assert loads.host.broken == [error]


async def test_a_file_that_cannot_be_read_now_is_read_again(loads, replica, monkeypatch):
    monkeypatch.setattr(row_loads, "RETRY_SECONDS", 0.0)
    found = []
    loads.start(replica, NEEDED, found.append)
    loads.threads.end(StorageUnavailableError(KEY, "no descriptors"))
    async with asyncio.timeout(10):
        while not loads.threads.work:
            await asyncio.sleep(0)
    assert found == []
    loads.threads.end()
    await turns()
    assert len(found) == 1


async def test_an_action_waits_for_the_reads_that_began_before_it_and_for_no_others(loads, replica):
    order = []
    loads.after_current(KEY, lambda: order.append("nothing to wait for"))
    loads.start(replica, NEEDED, lambda _: order.append("first read"))
    loads.start(replica, NEEDED, lambda _: order.append("second read"))
    loads.after_current(KEY, lambda: order.append("action"))
    loads.start(replica, NEEDED, lambda _: order.append("later read"))
    loads.threads.end(position=1)
    await turns()
    assert order == ["nothing to wait for", "second read"]
    loads.threads.end()
    await turns()
    assert order == ["nothing to wait for", "second read", "first read", "action"]
    loads.threads.end()
    await turns()
    assert order[-1] == "later read"
    loads.after_current(KEY, lambda: order.append("idle"))
    assert order[-1] == "idle"


async def test_a_read_that_failed_delays_no_action(loads, replica):
    order = []
    loads.start(replica, NEEDED, pytest.fail)
    loads.after_current(KEY, lambda: order.append("action"))
    loads.threads.end(ReplicaClosedError(KEY, "closed"))
    await turns()
    assert order == ["action"]
