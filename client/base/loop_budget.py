"""`LoopBudget`: tells calls that need not wait when to let the event loop run its other tasks.

`await producer.send(...)` and `async for record in consumer` return without suspending while there is buffer space or a record. A program
that calls them in a loop would block its other tasks until the buffer is full or empty. So every `LOOP_LOOK_CALLS`th call looks at the
clock, and suspends once after `LOOP_HOLD_SECONDS`.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from weakref import ReferenceType, ref

from raftmq.client.base import settings


class LoopBudget:
    """The time for which calls of one client may occupy the event loop without a break."""

    __slots__ = ("_since", "_task")

    def __init__(self) -> None:
        self._since = 0.0
        self._task: ReferenceType[asyncio.Task[object]] | None = None
        """The task of the last call that looked at the clock."""

    def is_spent(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Return whether the running task has occupied the loop for too long. If so, `await turn()`.

        Calls of many tasks that each call once keep their order, because none of them suspends. They cannot occupy the loop on their own.
        """
        now, task = monotonic(), asyncio.current_task(loop)
        if task is None or self._task is None or self._task() is not task:
            self._task = ref(task) if task is not None else None
            self._since = now
            return False
        return now - self._since >= settings.LOOP_HOLD_SECONDS

    async def turn(self) -> None:
        """Let every other task that is ready run once."""
        await asyncio.sleep(0)
        self._since = monotonic()
