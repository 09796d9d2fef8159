"""Wait for conditions that nothing signals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

_SECONDS_MAX = 30.0


async def until(condition: Callable[[], object]) -> None:
    """Check repeatedly until the condition holds."""
    async with asyncio.timeout(_SECONDS_MAX):
        while not condition():
            await asyncio.sleep(0.005)


async def turn_until(condition: Callable[[], object]) -> None:
    """Turn the loop until the condition holds, so that no pass is missed."""
    async with asyncio.timeout(_SECONDS_MAX):
        while not condition():
            await asyncio.sleep(0)
