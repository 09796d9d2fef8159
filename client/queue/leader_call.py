"""A call that only the leader of one partition answers, repeated while a repetition may help."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from raftmq.client.base import settings
from raftmq.client.base.arguments import WHOLE_MAX
from raftmq.client.base.background import Backoff
from raftmq.client.connection.resolver import Resolver
from raftmq.client.queue.topic import QueuePartition
from raftmq.errors import (
    NoLeaderError,
    NotLeaderError,
    Outcome,
    RaftMQError,
    RequestTimedOutError,
    UnreachableError,
)
from raftmq.methods import RequestT, ResponseT, UnaryMethod

ResultT = TypeVar("ResultT")


def whole_ms(timeout_seconds: float) -> int:
    """Return the time limit of a request in its field, which has 32 bits."""
    return int(min(timeout_seconds * 1000, WHOLE_MAX))


async def call_leader(
    resolver: Resolver,
    partition: QueuePartition,
    method: UnaryMethod[RequestT, ResponseT],
    request: RequestT,
    read: Callable[[ResponseT], ResultT],
    timeout_seconds: float,
    *,
    is_read: bool = False,
) -> ResultT:
    """Make a call to the leader of a partition, and return the result that `read` takes from its answer. `read` may raise the answer's error.

    Definite failures that are retriable are retried until the time is over, those with an unknown outcome only if `is_read`. Only such a call
    abandons a leader that does not answer: it may be frozen, and have a successor by now.

    Raises:
        RaftMQError: the leader's refusal, or the last failure when the time is over.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, resolver.rng)
    patience = (
        2 * settings.LATE_ANSWER_SECONDS + getattr(request, "max_wait_ms", 0) / 1000 if is_read else timeout_seconds
    )
    while True:
        address = ""
        try:
            leader = resolver.leader(partition.group_id)
            if leader is None:
                raise NoLeaderError(f"partition {partition.partition} has no leader")
            remaining = max(deadline - loop.time(), settings.LAST_TRY_SECONDS)
            address = resolver.address(leader)
            return read(await resolver.connection(address).call(method, request, min(remaining, patience)))
        except RaftMQError as error:
            resolver.check()
            if isinstance(error, RequestTimedOutError | UnreachableError):
                resolver.mark_suspect(address)
            has_better = isinstance(error, NotLeaderError) and resolver.on_not_leader(partition.group_id, error)
            pause = max(0.0 if has_better else backoff.next_seconds(), error.retry_after_ms / 1000)
            may_repeat = error.retriable and (is_read or error.outcome is Outcome.NOT_APPLIED)
            if not may_repeat or loop.time() + pause >= deadline:
                raise
        await resolver.wait_change(pause)
