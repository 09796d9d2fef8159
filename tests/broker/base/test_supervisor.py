"""Background work that fails is restarted after growing pauses, counted and logged. Only fatal failures end the process."""

import asyncio

import pytest
from raftmq.broker.base import supervisor as module
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Supervisor, Work, pause_after
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.errors import CommitFailedError, RegistryError

FATAL = [CommitFailedError((1, 1), "fsync"), RegistryError("no room")]


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr(module, "PAUSE_SECONDS_MIN", 0.001)


def made():
    ended = []
    return Supervisor(asyncio.get_running_loop(), ended.append), ended


async def test_failed_work_is_restarted_and_counted():
    supervisor, ended = made()
    done = asyncio.Event()
    failures = [KeyError("a planner's"), OSError("a directory in the trash")]

    async def run():
        if failures:
            raise failures.pop()
        done.set()
        await asyncio.Event().wait()

    supervisor.spawn(Work.RECONCILER, run)
    async with asyncio.timeout(10):
        await done.wait()
    assert supervisor.failures[Work.RECONCILER] == 2
    assert supervisor.failing() == {Work.RECONCILER: 'KeyError: "a planner\'s" (2 times)'}
    assert not ended
    supervisor.cancel()


async def test_work_is_restarted_when_an_awaited_future_was_cancelled():
    supervisor, _ = made()
    done = asyncio.Event()
    shared = [asyncio.get_running_loop().create_future()]
    shared[0].cancel()

    async def run():
        if shared:
            await shared.pop()
        done.set()
        await asyncio.Event().wait()

    supervisor.spawn(Work.RECONCILER, run)
    async with asyncio.timeout(10):
        await done.wait()
    assert supervisor.failures[Work.RECONCILER] == 1
    supervisor.cancel()
    await asyncio.sleep(0.02)
    assert supervisor.failures[Work.RECONCILER] == 1, "the second end was a cancellation"


async def test_work_that_returns_is_not_restarted():
    supervisor, _ = made()
    runs = []

    async def run():
        runs.append(1)

    supervisor.spawn(Work.ANNOUNCEMENT, run)
    await asyncio.sleep(0.02)
    assert runs == [1]


@pytest.mark.parametrize("error", FATAL)
async def test_a_commit_or_a_registry_that_failed_ends_the_process(error):
    supervisor, ended = made()
    runs = []

    async def run():
        runs.append(1)
        raise error

    supervisor.spawn(Work.HOUSEKEEPING, run)
    async with asyncio.timeout(10):
        while not ended:
            await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    assert ended == [error]
    assert runs == [1], "nothing after it can be trusted"


async def test_a_failed_step_does_not_prevent_the_steps_after_it():
    supervisor, ended = made()
    done = []
    for step in (KeyError("x"), RequestError(pb.NO_LEADER, "later"), None):
        with supervisor.step(Work.HOUSEKEEPING):
            if step is not None:
                raise step
            done.append(step)
    assert done == [None]
    assert supervisor.failures[Work.HOUSEKEEPING] == 1, "a refusal is no failure"
    assert not ended


async def test_a_fatal_step_is_raised_too():
    supervisor, ended = made()
    with pytest.raises(RegistryError), supervisor.step(Work.REPLICAS):
        raise FATAL[1]
    assert ended == [FATAL[1]]


async def test_work_without_a_failure_for_a_while_has_recovered(monkeypatch):
    supervisor, _ = made()
    supervisor.record_failure(Work.DISK_WATCH, OSError("x"))
    assert Work.DISK_WATCH in supervisor.failing()
    monkeypatch.setattr(module, "STEADY_SECONDS", -1.0)
    assert not supervisor.failing()
    supervisor.record_failure(Work.DISK_WATCH, OSError("x"))
    monkeypatch.setattr(module, "STEADY_SECONDS", 60.0)
    assert supervisor.failing()[Work.DISK_WATCH].endswith("(1 times)")
    assert supervisor.failures[Work.DISK_WATCH] == 2


async def test_uncaught_errors_of_callbacks_and_tasks_are_counted():
    supervisor, ended = made()
    loop = asyncio.get_running_loop()
    before = loop.get_exception_handler()
    loop.set_exception_handler(supervisor.on_loop_error)
    try:
        loop.call_soon(lambda: {}["nobody caught this"])
        await asyncio.sleep(0.01)
    finally:
        loop.set_exception_handler(before)
    assert supervisor.failures[Work.CALLBACK] == 1
    assert not ended


def test_pauses_grow_up_to_a_bound():
    assert [pause_after(count, 0.5, 30.0) for count in (1, 2, 3, 7, 5000)] == [0.5, 1.0, 2.0, 30.0, 30.0]
