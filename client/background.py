"""Tasks that live as long as a client, and the pace of their retries."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine


def spawn(
    coroutine: Coroutine[object, object, None], name: str, on_crash: Callable[[BaseException], None]
) -> asyncio.Task[None]:
    """Run a client's background task. An exception that ends it is a defect: `on_crash` gets it, so that nobody waits forever."""
    task = asyncio.get_running_loop().create_task(coroutine, name=name)

    def on_done(done: asyncio.Task[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            on_crash(error)

    task.add_done_callback(on_done)
    return task


async def cancel_and_wait(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel background tasks and wait for their end, whatever it is (their crash was reported already)."""
    running = [task for task in tasks if task is not None and not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running)


class Backoff:
    """Exponential waiting with jitter: each wait is between half and all of a bound that doubles up to a maximum."""

    def __init__(self, min_seconds: float, max_seconds: float, source: random.Random) -> None:
        self._min_seconds = min_seconds
        self._max_seconds = max_seconds
        self._source = source
        self.failures = 0
        """Failures since the last success."""

    def next_seconds(self) -> float:
        """Count a failure and return how long to wait."""
        bound = min(self._max_seconds, self._min_seconds * float(1 << min(self.failures, 16)))
        self.failures += 1
        return bound * self._source.uniform(0.5, 1.0)

    def reset(self) -> None:
        """Something succeeded."""
        self.failures = 0
