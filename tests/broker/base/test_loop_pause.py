"""The event loop pauses while a writer's rows go into a transaction, and continues whatever the writer does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from raftmq.broker.base import loop_pause
from raftmq.broker.base.loop_pause import PAUSE_ROWS_MIN, LoopPause

WAIT_SECONDS = 10.0


class Ticks:
    """Counts the loop's turns."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.count = 0
        self._loop = loop
        self._is_over = False
        self._tick()

    def _tick(self) -> None:
        self.count += 1
        if not self._is_over:
            self._loop.call_soon(self._tick)

    def end(self) -> None:
        self._is_over = True


async def in_thread(function: Callable[[LoopPause, Ticks], None]) -> None:
    loop = asyncio.get_running_loop()
    ticks = Ticks(loop)
    try:
        await asyncio.wait_for(asyncio.to_thread(function, LoopPause(loop), ticks), WAIT_SECONDS)
    finally:
        ticks.end()


def wait_past(ticks: Ticks, count: int) -> None:
    """Return when the loop has had another turn. The test's own timeout is the bound."""
    while ticks.count <= count:
        threading.Event().wait(0.001)


async def test_the_loop_pauses_while_many_rows_are_written(monkeypatch) -> None:
    monkeypatch.setattr(loop_pause, "PAUSE_SECONDS_MAX", WAIT_SECONDS)
    monkeypatch.setattr(loop_pause, "START_SECONDS_MAX", WAIT_SECONDS)

    def write(pause: LoopPause, ticks: Ticks) -> None:
        with pause(PAUSE_ROWS_MIN):
            before = ticks.count
            threading.Event().wait(0.05)
            assert ticks.count == before
        wait_past(ticks, before)

    await in_thread(write)


async def test_few_rows_do_not_stop_the_loop() -> None:
    def write(pause: LoopPause, ticks: Ticks) -> None:
        with pause(PAUSE_ROWS_MIN - 1):
            wait_past(ticks, ticks.count + 10)

    await in_thread(write)


async def test_a_writer_that_takes_long_does_not_keep_the_loop() -> None:
    def write(pause: LoopPause, ticks: Ticks) -> None:
        with pause(PAUSE_ROWS_MIN):
            wait_past(ticks, ticks.count + 10)

    await in_thread(write)


async def test_a_write_that_fails_lets_the_loop_go_on(monkeypatch) -> None:
    monkeypatch.setattr(loop_pause, "PAUSE_SECONDS_MAX", WAIT_SECONDS)

    def write(pause: LoopPause, ticks: Ticks) -> None:
        before = ticks.count
        try:
            with pause(PAUSE_ROWS_MIN):
                before = ticks.count
                raise OSError
        except OSError:
            wait_past(ticks, before + 1)

    await in_thread(write)


async def test_a_busy_loop_is_neither_waited_for_nor_paused_later(monkeypatch) -> None:
    monkeypatch.setattr(loop_pause, "PAUSE_SECONDS_MAX", WAIT_SECONDS)
    pause = LoopPause(asyncio.get_running_loop())
    is_written = threading.Event()

    def write() -> None:
        with pause(PAUSE_ROWS_MIN):
            is_written.set()

    writing = asyncio.get_running_loop().run_in_executor(None, write)
    assert is_written.wait(WAIT_SECONDS), "the loop is busy here and cannot pause"
    await asyncio.wait_for(writing, WAIT_SECONDS / 2)


def test_rows_are_written_after_the_loop_is_closed() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    with LoopPause(loop)(PAUSE_ROWS_MIN):
        pass
