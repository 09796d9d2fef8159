"""The timer fires for the earliest deadline, and moving a deadline later costs nothing."""

import asyncio
from collections.abc import Callable

import pytest
from raftmq.broker.replica.deadline_timer import DeadlineTimer


class ManualLoop:
    """Records the timers of a loop, and fires them on demand."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, Callable[[], object]]] = []
        self.cancelled = 0

    def call_at(self, at: float, function: Callable[[], object]) -> object:
        loop, call = self, (at, function)

        class Handle:
            def cancel(self) -> None:
                loop.calls.remove(call)
                loop.cancelled += 1

        self.calls.append(call)
        return Handle()

    def fire(self) -> float:
        call = min(self.calls, key=lambda call: call[0])
        self.calls.remove(call)
        call[1]()
        return call[0]


@pytest.fixture
def loop() -> ManualLoop:
    return ManualLoop()


def test_the_earliest_deadline_fires_first_and_a_later_one_keeps_the_timer(loop: ManualLoop) -> None:
    fired: list[str] = []
    timer = DeadlineTimer(loop, lambda: fired.append("due"))
    timer.set(5.0)
    timer.set(9.0)
    assert [at for at, _ in loop.calls] == [5.0]
    timer.set(2.0)
    assert [at for at, _ in loop.calls] == [2.0]
    assert loop.cancelled == 1
    assert loop.fire() == 2.0
    assert fired == ["due"]
    assert not loop.calls


def test_the_function_may_set_the_timer_again(loop: ManualLoop) -> None:
    deadlines = [1.0, 4.0]
    timer = DeadlineTimer(loop, lambda: deadlines and timer.set(deadlines.pop(0)))
    timer.set(0.5)
    assert [loop.fire(), loop.fire(), loop.fire()] == [0.5, 1.0, 4.0]
    assert not loop.calls


def test_a_cancelled_timer_can_be_set_and_a_closed_one_cannot(loop: ManualLoop) -> None:
    timer = DeadlineTimer(loop, lambda: None)
    timer.set(1.0)
    timer.cancel()
    assert not loop.calls
    timer.set(3.0)
    assert [at for at, _ in loop.calls] == [3.0]
    timer.close()
    timer.set(4.0)
    assert not loop.calls


async def test_it_fires_on_a_real_loop() -> None:
    loop, fired = asyncio.get_running_loop(), asyncio.Event()
    DeadlineTimer(loop, fired.set).set(loop.time() + 0.001)
    await fired.wait()
