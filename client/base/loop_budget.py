"""`LoopBudget`: tells a call that has nothing to wait for when to let the event loop run its other tasks.

`await producer.send(...)` and `async for record in consumer` return without suspending while there is room or a record. A program
that loops over them would keep the event loop until the buffer is full or empty, and its other tasks would stand still. So every
`LOOP_LOOK_CALLS`th call looks at the clock, and after `LOOP_HOLD_SECONDS` it suspends once.
"""

from __future__ import annotations

import asyncio
from time import monotonic
from weakref import ReferenceType, ref

from raftmq.client.base import settings


class LoopBudget:
    """The time that calls of one client may keep the event loop without a break."""

    __slots__ = ("_since", "_task")

    def __init__(self) -> None:
        self._since = 0.0
        self._task: ReferenceType[asyncio.Task[object]] | None = None
        """Who made the call that looked at the clock last."""

    def is_spent(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Return whether the running task called before, and the loop, which runs it, is due to turn. Then `await turn()`.

        Calls of many tasks that each call once keep their order: none of them suspends. They cannot keep the loop by themselves.
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
