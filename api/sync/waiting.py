"""Run work on the background loop, and bound the time that it may take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TypeVar

from raftmq.client.base.loop_thread import LoopThread

T = TypeVar("T")


def on_loop(loop: LoopThread, function: Callable[[], T]) -> T:
    """Run a plain function on the loop's thread, and return its result."""

    async def call() -> T:
        return function()

    return loop.run(call())


async def within(timeout_seconds: float | None, work: Callable[[], Coroutine[object, object, T]]) -> T:
    """Do work within a time limit (None: without one). Raises `TimeoutError`."""
    async with asyncio.timeout(timeout_seconds):
        return await work()
