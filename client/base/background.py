"""Background tasks that live as long as a client, the backoff of retries, and deadlines."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Final

from raftmq.client.base import settings
from raftmq.client.base.tracing import context_without_span

CANCEL_AGAIN_SECONDS: Final = 1.0
"""The time after which a cancelled task that has not ended is cancelled again."""


def spawn(
    coroutine: Coroutine[object, object, None],
    name: str,
    on_crash: Callable[[BaseException], None],
    *,
    keeps_span: bool = False,
) -> asyncio.Task[None]:
    """Run a client's background task. An exception that ends it is a defect and is passed to `on_crash`, so that nobody waits indefinitely.

    A `CancelledError` that nobody requested, which a library may raise, is a defect, too. `keeps_span`: the task belongs to the active span.
    Other tasks do not, as they serve later callers, too.
    """
    context = None if keeps_span else context_without_span()
    task = asyncio.get_running_loop().create_task(coroutine, name=name, context=context)

    def on_done(done: asyncio.Task[None]) -> None:
        if done.cancelled():
            if not done.cancelling():
                on_crash(RuntimeError(f"the task {name} ended with a cancellation that nobody requested"))
        elif (error := done.exception()) is not None:
            on_crash(error)

    task.add_done_callback(on_done)
    return task


async def cancel_and_wait(*tasks: asyncio.Task[object] | None) -> None:
    """Cancel background tasks and wait until they have ended, with any result (their crashes were reported already).

    A library may swallow a cancellation at an inconvenient moment. Therefore it is repeated until the task has ended.
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
    """Run a coroutine until it is done or `event` is set. Return whether it is done.

    Raises its exception. Cancelling this call cancels the coroutine.
    """
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
    """The time limit of an operation with several steps. Created in the event loop."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._at = self._loop.time() + seconds

    def remaining(self) -> float:
        """Return the seconds for the next step: the remaining time, or `LAST_TRY_SECONDS` if the earlier steps used all of it."""
        return max(self._at - self._loop.time(), settings.LAST_TRY_SECONDS)


class Backoff:
    """Exponential backoff with jitter: each wait is between half and all of a bound that doubles up to a maximum."""

    def __init__(self, min_seconds: float, max_seconds: float, rng: random.Random) -> None:
        self._min_seconds = min_seconds
        self._max_seconds = max_seconds
        self._rng = rng
        self.failures = 0
        """Failures since the last success."""

    def next_seconds(self) -> float:
        """Count a failure, and return the wait before the next attempt."""
        bound = min(self._max_seconds, self._min_seconds * float(1 << min(self.failures, 16)))
        self.failures += 1
        return bound * self._rng.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Reset the failures after a success."""
        self.failures = 0
