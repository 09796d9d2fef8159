"""Open a queue topic for one command, name one of its messages, count them."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

import typer
from raftmq.cli.admin_calls import as_question

if TYPE_CHECKING:
    from raftmq.client.queue.change_arguments import MessageReference
    from raftmq.client.queue.queue import Queue
    from raftmq.client.queue.views import QueueStats

Answer = TypeVar("Answer")
STATES: Final = ("ready", "delayed", "leased", "dead", "blocked")
"""The states of a message, as `browse` and `stats` name them."""


def run_queue(
    topic: str, bootstrap_servers: str, timeout: float, action: Callable[[Queue[bytes]], Awaitable[Answer]]
) -> Answer:
    """Run one action on an open queue topic. `timeout` is in seconds."""
    import asyncio

    from raftmq.client.base.settings import DELIVERY_TIMEOUT_MS_MAX
    from raftmq.client.queue.queue import Queue

    async def run() -> Answer:
        queue: Queue[bytes] = Queue(
            topic,
            bootstrap_servers=bootstrap_servers,
            max_block_ms=timeout * 1000,
            request_timeout_ms=timeout * 1000,
            delivery_timeout_ms=min(timeout * 1000, DELIVERY_TIMEOUT_MS_MAX),
        )
        async with queue:
            return await action(queue)

    return asyncio.run(run())


def reference_of(topic: str, name: str | None, sequence: int | None, partition: int) -> MessageReference:
    """Return the message that the options name. Raises `typer.BadParameter` unless there is exactly one."""
    from raftmq.client.queue.put_batch import PutResult

    if (name is None) == (sequence is None):
        raise typer.BadParameter("give an ID or --sequence N")
    if name is not None:
        if partition:
            raise typer.BadParameter("use it only with --sequence", param_hint="--partition")
        return name
    assert sequence is not None
    return PutResult(topic, partition, sequence)


def show_counts(
    topic: str,
    bootstrap_servers: str,
    timeout: float,
    states: Sequence[str] = STATES,
    *,
    is_filtered: bool = False,
) -> None:
    """Print on standard error how many messages are in the states. Raises the errors of the cluster."""

    async def ask(queue: Queue[bytes]) -> QueueStats:
        return await queue.stats(tenants_max=0)

    with as_question():
        stats = run_queue(topic, bootstrap_servers, timeout, ask)
    counts = ", ".join(f"{getattr(stats, state)} {state}" for state in states)
    print(f"messages of {topic}{' before the filters' if is_filtered else ''}: {counts}", file=sys.stderr)


def described(name: str | None, sequence: int | None, partition: int) -> str:
    """Return a name of the message for people."""
    return f"message {name}" if name is not None else f"message {sequence} of partition {partition}"
