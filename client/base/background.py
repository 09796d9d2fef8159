"""Tasks that live as long as a client, the pace of their retries, and the time they may take."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Final

from raftmq.client.base import settings

CANCEL_AGAIN_SECONDS: Final = 1.0
"""A task that did not end this long after its cancellation is cancelled again."""


def spawn(
    coroutine: Coroutine[object, object, None], name: str, on_crash: Callable[[BaseException], None]
) -> asyncio.Task[None]:
    """Run a client's background task. An exception that ends it is a defect: `on_crash` gets it, so that nobody waits forever.

    So is a `CancelledError` that nobody asked for, which a library below may raise.
    """
    task = asyncio.get_running_loop().create_task(coroutine, name=name)

    def on_done(done: asyncio.Task[None]) -> None:
        if done.cancelled():
            if not done.cancelling():
                on_crash(RuntimeError(f"the task {name} ended by a cancellation that nobody asked for"))
        elif (error := done.exception()) is not None:
            on_crash(error)

    task.add_done_callback(on_done)
    return task


async def cancel_and_wait(*tasks: asyncio.Task[object] | None) -> None:
    """Cancel background tasks and wait for their end, whatever it is (their crash was reported already).

    A library below may swallow a cancellation that meets it at a bad moment; so it is repeated until the task has ended.
    """
    running = [task for task in tasks if task is not None and not task.done()]
    while running:
        for (
            task
        ) in running:  # in their order: that of a set depends on addresses, and a simulation could not be replayed
            task.cancel()
        await asyncio.wait(running, timeout=CANCEL_AGAIN_SECONDS)
        running = [task for task in running if not task.done()]


async def done_before(coroutine: Coroutine[object, object, None], event: asyncio.Event) -> bool:
    """Run something that `event` cuts short: False when it did. Raises what the coroutine raises; cancelling cancels it."""
    running = asyncio.ensure_future(coroutine)
    waiting = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        return running.done()
    finally:
        waiting.cancel()
        await cancel_and_wait(running)


class Deadline:
    """The time by which something made of several steps shall be done. Made in the event loop."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + seconds

    def remaining(self) -> float:
        """Seconds for the next step: what is left, or `LAST_TRY_SECONDS` when the steps before took it all."""
        return max(self._at - self._loop.time(), settings.LAST_TRY_SECONDS)


class Backoff:
    """Exponential waiting with jitter: each wait is between half and all of a bound that doubles up to a maximum."""

    def __init__(self, min_seconds: float, max_seconds: float, rng: random.Random) -> None:
        self._min_seconds = min_seconds
        self._max_seconds = max_seconds
        self._rng = rng
        self.failures = 0
        """Failures since the last success."""

    def next_seconds(self) -> float:
        """Count a failure and return how long to wait."""
        bound = min(self._max_seconds, self._min_seconds * float(1 << min(self.failures, 16)))
        self.failures += 1
        return bound * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Something succeeded."""
        self.failures = 0
