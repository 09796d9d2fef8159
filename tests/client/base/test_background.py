from __future__ import annotations

import asyncio

from raftmq.client.base import background
from raftmq.client.base.background import cancel_and_wait, spawn


async def test_an_unexpected_end_of_a_task_is_reported():
    """An exception is a defect, and so is a cancellation by a library. A requested cancellation is not."""
    reported: list[str] = []

    async def fail() -> None:
        raise ValueError("a defect")

    async def cancelled_from_below() -> None:
        raise asyncio.CancelledError

    async def wait() -> None:
        await asyncio.Event().wait()

    tasks = [
        spawn(work(), work.__name__, lambda error: reported.append(type(error).__name__))
        for work in (fail, cancelled_from_below, wait)
    ]
    await asyncio.wait(tasks[:2])
    await cancel_and_wait(*tasks, None)
    await asyncio.sleep(0)
    assert reported == ["ValueError", "RuntimeError"]
    assert tasks[2].cancelled()


async def test_a_swallowed_cancellation_is_repeated(monkeypatch):
    monkeypatch.setattr(background, "CANCEL_AGAIN_SECONDS", 0.01)
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                swallowed += 1
                if swallowed == 3:
                    raise

    task = spawn(stubborn(), "stubborn", lambda _: None)
    await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await cancel_and_wait(task)
    assert swallowed == 3
