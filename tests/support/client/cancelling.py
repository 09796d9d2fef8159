"""Cancels a task at exactly one of its await points, so that a test can go through all of them.

An await point is a place where the task really waits. Two moments matter at each: while it waits, and as what it waits for is
there already and the task has not run yet; at the latter a result can get lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from enum import Enum
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Moment(Enum):
    """When a task is cancelled at its await point."""

    WAITING = "while it waits"
    ANSWERED = "as what it waits for is there"


class CancelledAt(Generic[T]):
    """``await`` it in place of the coroutine; `was_reached` says whether there was such a point."""

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
            except BaseException as thrown:  # noqa: BLE001 - handed on to the coroutine
                error = thrown

    def _cancel(self, waited: asyncio.Future[object] | None) -> None:
        self.was_reached = True
        task = asyncio.current_task()
        assert task is not None
        if waited is None or self._moment is Moment.WAITING:
            task.cancel()
        else:
            waited.add_done_callback(lambda _: task.cancel())  # before the task's own, which wakes it: so it meets both


async def cancelled_at(coroutine: Coroutine[Any, Any, object], point: int, moment: Moment) -> bool:
    """Run it as a task of its own, and cancel it at that point; False when it has fewer. What else it raises is raised."""
    attempt = CancelledAt(coroutine, point, moment)

    async def run() -> object:
        return await attempt

    task = asyncio.create_task(run())
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    return attempt.was_reached


async def passes(count: int) -> None:
    """Let everything that is ready run, `count` times."""
    for _ in range(count):
        await asyncio.sleep(0)
