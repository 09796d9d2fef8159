"""Fail futures whose waiters may be gone, without a warning about an exception that nobody retrieved."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def fail(future: asyncio.Future[T], error: BaseException) -> None:
    """Set the error as the future's outcome, unless it has one."""
    if not future.done():
        future.set_exception(error)
        future.add_done_callback(consume_exception)


def consume_exception(future: asyncio.Future[T]) -> None:
    """Mark the future's error as seen: its waiter may be gone, because its request was cancelled."""
    if not future.cancelled():
        future.exception()
