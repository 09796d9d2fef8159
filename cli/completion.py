"""What the shell offers after Tab where it is not an option: names of topics.

Must never print, fail or take long: somebody is typing.
"""

from __future__ import annotations

import typer

PATIENCE_MS = 1_000
"""A person who pressed Tab waits about this long; no answer is then better than a late one."""


def complete_topic(context: typer.Context, incomplete: str) -> list[str]:
    """The topics that begin with what was typed; none when the cluster does not answer at once."""
    import asyncio

    from raftmq.cli.options import DEFAULT_BOOTSTRAP
    from raftmq.client.admin import Admin
    from raftmq.errors import RaftMQError

    servers = context.params.get("bootstrap_servers")

    async def names() -> list[str]:
        async with Admin(bootstrap_servers=servers or DEFAULT_BOOTSTRAP, request_timeout_ms=PATIENCE_MS) as admin:
            return [topic.name for topic in await admin.list_topics() if topic.name.startswith(incomplete)]

    try:
        return asyncio.run(names())
    except RaftMQError:
        return []
