"""Names of topics, groups and schedules that the shell offers after Tab.

Completion must never print, fail or take long, because a person is typing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import typer
from raftmq.cluster_addresses import DEFAULT_BOOTSTRAP

if TYPE_CHECKING:
    from raftmq.client.admin.admin import Admin

PATIENCE_MS = 1_000
"""A person who pressed Tab waits about this long. Later, no answer is better than a late one."""


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin with the typed text, or none when the cluster does not answer in time."""

    async def names(admin: Admin) -> list[str]:
        return [topic.name for topic in await admin.list_topics()]

    return _complete(context, incomplete, names)


def complete_group(context: typer.Context, incomplete: str) -> list[str]:
    """Return the consumer groups that begin with the typed text, or none when the cluster does not answer in time."""

    async def names(admin: Admin) -> list[str]:
        return [group.group for group in await admin.list_groups()]

    return _complete(context, incomplete, names)


def complete_schedule(context: typer.Context, incomplete: str) -> list[str]:
    """Return the schedules of the typed topic that begin with the typed text, or none as above."""
    topic = context.params.get("topic")

    async def names(admin: Admin) -> list[str]:
        return [schedule.name for schedule in await admin.list_schedules(topic)] if topic else []

    return _complete(context, incomplete, names)


def _complete(context: typer.Context, incomplete: str, ask: Callable[[Admin], Awaitable[list[str]]]) -> list[str]:
    import asyncio

    from raftmq.client.admin.admin import Admin
    from raftmq.errors import RaftMQError

    servers = context.params.get("bootstrap_servers")

    async def names() -> list[str]:
        async with Admin(bootstrap_servers=servers or DEFAULT_BOOTSTRAP, request_timeout_ms=PATIENCE_MS) as admin:
            return [name for name in await ask(admin) if name.startswith(incomplete)]

    try:
        return asyncio.run(names())
    except RaftMQError:
        return []
