"""Run one administrative call: open an `Admin`, call it, close it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from raftmq.client.admin.admin import Admin

Answer = TypeVar("Answer")


def run_admin(bootstrap_servers: str, timeout: float, question: Callable[[Admin], Awaitable[Answer]]) -> Answer:
    """Run one call with an open Admin. `timeout` is in seconds."""
    import asyncio

    from raftmq.client.admin.admin import Admin

    async def run() -> Answer:
        async with Admin(bootstrap_servers=bootstrap_servers, request_timeout_ms=timeout * 1000) as admin:
            return await question(admin)

    return asyncio.run(run())
