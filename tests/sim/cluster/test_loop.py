"""The virtual loop: time jumps, and hosts have clocks of their own, freeze and die."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from sim.cluster.world.host import Host
from sim.cluster.world.loop import SpinningError, VirtualLoop


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    made = VirtualLoop(lambda: 0.001)  # type: ignore[abstract]  # the rest of a loop is not used
    yield made
    made.close()


def test_time_jumps_to_the_next_timer_and_each_host_has_its_own_clock(loop: VirtualLoop) -> None:
    fast = Host("fast", 1, 2.0, 100.0)
    seen: list[float] = []

    async def sleep() -> None:
        seen.append(asyncio.get_running_loop().time())
        await asyncio.sleep(10)
        seen.append(asyncio.get_running_loop().time())

    task = loop.spawn(fast, sleep())

    assert loop.run_until(task.done, 60)
    assert loop.now == pytest.approx(5.0)
    assert seen == [pytest.approx(100.0), pytest.approx(110.0)]


def test_a_failure_of_a_task_that_nobody_looks_at_is_found(loop: VirtualLoop) -> None:
    """Without a collection of cycles asyncio never reports it."""
    dead = Host("dead", 1, 1.0, 0.0)

    async def fail(name: str) -> None:
        raise KeyError(name)

    tasks = [
        loop.spawn(host, fail(name)) for host, name in ((None, "seen"), (dead, "of a dead host"), (None, "unseen"))
    ]
    assert loop.run_until(lambda: all(task.done() for task in tasks), 60)
    assert isinstance(tasks[0].exception(), KeyError)
    loop.kill(dead)

    assert repr(loop.unseen_failure()) == "KeyError('unseen')"
    assert loop.unseen_failure() is None


def test_a_timer_is_never_early_on_its_host(loop: VirtualLoop) -> None:
    host = Host("odd", 1, 1.1234567, 98765.4321)
    late: list[float] = []

    async def many() -> None:
        running = asyncio.get_running_loop()
        for number in range(500):
            due = running.time() + 0.0137 * (number + 1)
            waiter = running.create_future()
            running.call_at(due, waiter.set_result, None)
            await waiter
            late.append(running.time() - due)

    task = loop.spawn(host, many())

    assert loop.run_until(task.done, 1e9)
    assert min(late) >= 0.0


def test_a_frozen_host_runs_later_and_a_dead_one_never(loop: VirtualLoop) -> None:
    frozen, dead = Host("frozen", 1, 1.0, 0.0), Host("dead", 1, 1.0, 0.0)
    ran: list[str] = []

    async def note(name: str) -> None:
        try:
            await asyncio.sleep(1)
            ran.append(name)
        finally:
            ran.append(f"{name} ends")

    loop.spawn(frozen, note("frozen"))
    loop.spawn(dead, note("dead"))
    loop.run_until(lambda: False, 0.5)
    frozen.is_frozen = True
    loop.kill(dead)
    loop.run_until(lambda: False, 5.0)

    assert ran == []
    loop.thaw(frozen)
    loop.run_until(lambda: False, 6.0)
    assert ran == ["frozen", "frozen ends"]


def test_the_clock_of_a_suspended_host_pauses(loop: VirtualLoop) -> None:
    host = Host("suspended", 1, 2.0, 100.0)
    ran: list[tuple[str, float, float]] = []

    async def note(name: str, delay: float) -> None:
        await asyncio.sleep(delay)
        ran.append((name, loop.now, asyncio.get_running_loop().time()))

    loop.spawn(host, note("due during the suspension", 2.0))
    loop.spawn(host, note("due after it", 20.0))
    loop.run_until(lambda: False, 0.5)
    loop.at(3.0, host, lambda: ran.append(("a packet", loop.now, asyncio.get_running_loop().time())))
    host.is_frozen, host.suspended_at = True, loop.now
    loop.run_until(lambda: False, 5.5)

    assert ran == []
    loop.thaw(host)
    loop.run_until(lambda: False, 20.0)
    assert ran == [("a packet", 5.5, 101.0), ("due during the suspension", 6.0, 102.0), ("due after it", 15.0, 120.0)]


def test_a_spinning_loop_is_detected(loop: VirtualLoop) -> None:
    def again() -> None:
        loop.call_soon(again)

    loop.call_soon(again)
    with pytest.raises(SpinningError):
        loop.run_until(lambda: False, 1.0)


def test_work_for_threads_runs_on_the_loop_after_a_delay(loop: VirtualLoop) -> None:
    task = loop.spawn(None, _in_thread())

    assert loop.run_until(task.done, 1.0)
    assert task.result() == 42
    assert loop.now == pytest.approx(0.001)


async def _in_thread() -> int:
    return await asyncio.get_running_loop().run_in_executor(None, lambda: 42)
