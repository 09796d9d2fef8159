"""Cancel a task at exactly one of its await points, so that a test can try all of them.

An await point is a place where the task really waits. Two moments matter at each: during the wait, and after the awaited result has arrived
but before the task runs again. At the second moment a result can get lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from enum import Enum
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Moment(Enum):
    """The moment of the cancellation at an await point."""

    WAITING = "while it waits"
    ANSWERED = "when the result has arrived"


class CancelledAt(Generic[T]):
    """An awaitable that runs the coroutine and cancels it at a point. `was_reached` tells whether the coroutine has that point."""

    def __init__(self, coroutine: Coroutine[Any, Any, T], point: int, moment: Moment) -> None:
        self._coroutine = coroutine
        self._point = point
        self._moment = moment
        self.was_reached = False

    def __await__(self) -> Generator[Any, Any, T]:
        error: BaseException | None = None
        number = 0
        while True:
            try:
                waited = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration as stop:
                result: T = stop.value
                return result
            if number == self._point:
                self._cancel(waited)
            number += 1
            error = None
            try:
                yield waited
            except BaseException as thrown:  # noqa: BLE001 - passed on to the coroutine
                error = thrown

    def _cancel(self, waited: asyncio.Future[object] | None) -> None:
        self.was_reached = True
        task = asyncio.current_task()
        assert task is not None
        if waited is None or self._moment is Moment.WAITING:
            task.cancel()
        else:
            waited.add_done_callback(
                lambda _: task.cancel()
            )  # runs before the task's own callback, so the task meets both


async def cancelled_at(coroutine: Coroutine[Any, Any, object], point: int, moment: Moment) -> bool:
    """Run a coroutine as a task and cancel it at that point. Return whether it has the point. Errors other than the cancellation are raised."""
    attempt = CancelledAt(coroutine, point, moment)

    async def run() -> object:
        return await attempt

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return attempt.was_reached


async def passes(count: int) -> None:
    """Let all ready callbacks run, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)
