"""Asks the leaders of a topic for messages one after the other, with unary calls.

It serves the calls for which a stream is not exact: those that must not wait, and those at most once, where a message that arrives after its
consumer has given up would be lost. So do those for the next message of one key, which a stream cannot name.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final
from zlib import crc32

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff
from raftmq.client.connection.resolver import Resolver, TopicInfo
from raftmq.client.queue.intake import LeaseOptions
from raftmq.errors import NoLeaderError, RaftMQError, RequestTimedOutError
from raftmq.methods import QUEUE_POLL
from raftmq.proto import queue_pb2 as pb

LOOK_SECONDS: Final = 0.5
"""Interval at which a leader whose answer is late is looked up: it may lead no more."""


async def poll_leaders(
    resolver: Resolver,
    topic: TopicInfo,
    options: LeaseOptions,
    count: int,
    wait_seconds: float,
    timeout_seconds: float,
    *,
    auto_accept: bool = False,
    key: bytes = b"",
) -> Sequence[pb.LeasedMessages]:
    """Return the messages of the first leader that has any, empty if there were none in time. With a `key`, only its leader is asked.

    The leaders are asked at random, first without waiting. Then each waits in turn. If it is cancelled, leased messages come again after
    their leases, except that those of `auto_accept` are done.

    Raises:
        NoLeaderError: no partition has a leader.
        RaftMQError: every leader failed or refused. It is the last failure.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + wait_seconds
    backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, resolver.rng)
    slice_ms = 0
    partitions = [crc32(key) % topic.partition_count] if key else ()
    while True:
        error: RaftMQError | None = NoLeaderError(f"{topic.name} has no leader")
        addresses = _shuffled_leaders(resolver, topic, partitions)
        for address in addresses:
            remaining_ms = max(0.0, (deadline - loop.time()) * 1000)
            request = pb.QueuePollRequest(
                metadata_revision=resolver.metadata_revision,
                topic_id=topic.topic_id,
                partitions=partitions,
                key=key,
                max_messages=count,
                max_bytes=settings.QUEUE_CREDIT_BYTES,
                lease_ms=options.lease_ms,
                max_wait_ms=int(min(slice_ms, remaining_ms)),
                tenants=options.tenants,
                auto_accept=auto_accept,
            )
            try:
                answer = await _ask(resolver, topic, address, request, timeout_seconds)
            except RaftMQError as failure:
                error = failure
                continue
            error = None
            if any(leased.block for leased in answer.partitions):
                return answer.partitions
        if loop.time() >= deadline:
            if error is not None and not error.retriable:
                raise error
            return ()
        if error is not None:
            await resolver.wait_change(min(backoff.next_seconds(), max(0.0, deadline - loop.time())))
        slice_ms = settings.QUEUE_POLL_SLICE_MS if len(addresses) > 1 else settings.QUEUE_POLL_WAIT_MS


async def _ask(
    resolver: Resolver, topic: TopicInfo, address: str, request: pb.QueuePollRequest, timeout_seconds: float
) -> pb.QueuePollResponse:
    """Poll a leader. One that is late and leads nothing any more is not waited for: it is frozen, say, and leases nothing."""
    wait_seconds = request.max_wait_ms / 1000
    call = asyncio.ensure_future(resolver.connection(address).call(QUEUE_POLL, request, wait_seconds + timeout_seconds))
    try:
        await asyncio.wait((call,), timeout=wait_seconds + settings.LATE_ANSWER_SECONDS)
        while not call.done():
            resolver.mark_suspect(address)
            if address not in _leaders(resolver, topic, request.partitions):
                raise RequestTimedOutError(f"{address}: no answer, and others lead now")
            await asyncio.wait((call,), timeout=LOOK_SECONDS)
        return call.result()
    finally:
        call.cancel()


def _leaders(resolver: Resolver, topic: TopicInfo, partitions: Sequence[int]) -> list[str]:
    group_ids = [topic.group_ids[partition] for partition in partitions] if partitions else topic.group_ids
    leaders = (resolver.leader(group_id) for group_id in group_ids)
    return list(dict.fromkeys(resolver.address(leader) for leader in leaders if leader is not None))


def _shuffled_leaders(resolver: Resolver, topic: TopicInfo, partitions: Sequence[int]) -> list[str]:
    addresses = _leaders(resolver, topic, partitions)
    resolver.rng.shuffle(addresses)
    return addresses
