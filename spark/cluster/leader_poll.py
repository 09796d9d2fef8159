"""Poll one partition at its leader, following changes of the leader and hints until there are records or a final error.

Must not plan, decode or know of ranges.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff
from raftmq.client.base.error_details import error_from_detail
from raftmq.client.connection.resolver import Resolver
from raftmq.errors import NotLeaderError, NotReadyError, Outcome, RaftMQError, RequestTimedOutError, UnknownTopicError
from raftmq.methods import POLL
from raftmq.proto import queue_pb2 as pb

POLL_WAIT_MS: Final = 500
"""How long a broker holds a poll without news. The records that a task wants exist, so only a leader that lags has none."""


@dataclass(frozen=True, slots=True)
class Polled:
    """Hold the batches of one partition in one answer."""

    base_offsets: tuple[int, ...]
    batches: tuple[bytes, ...]
    append_times_ms: tuple[int, ...]
    group_id: int = 0
    """The Raft group that served them."""


async def poll_leader(
    resolver: Resolver,
    topic: str,
    topic_id: int,
    partition: int,
    offset: int,
    timeout_seconds: float,
    read_group_id: int = 0,
) -> Polled:
    """Return the next batches of a partition from `offset` on. The first batch may begin before it.

    Raises:
        UnknownTopicError: this incarnation of the topic was deleted.
        OffsetOutOfRangeError: the offset was trimmed, or a recovery since the Raft group `read_group_id` has lost records before it.
        RequestTimedOutError: no record came in time. Its cause is the last error.
        RaftMQError: another refusal that waiting does not heal.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, resolver.rng)
    cause: RaftMQError | None = None
    is_behind = False
    while (remaining := deadline - loop.time()) > 0:
        try:
            info = await resolver.topic(topic, remaining, partition=partition, is_fresh=is_behind)
        except RequestTimedOutError as error:
            cause = cause or error  # an earlier error says more than the timeout
            break
        if info.topic_id > topic_id:
            raise UnknownTopicError(f"{topic} was deleted and created again")
        # Planning saw this partition. Ids ascend and partitions are only added, so a broker that does not know it lags.
        is_behind = info.topic_id < topic_id or partition >= info.partition_count
        if is_behind:
            cause = NotReadyError(f"the brokers that were asked do not know {topic}/{partition} yet")
        elif (leader := resolver.leader(group_id := info.group_ids[partition])) is not None:
            address = resolver.address(leader)
            try:
                found = await _poll(resolver, address, topic_id, partition, offset, read_group_id)
            except RaftMQError as error:
                if not error.retriable:
                    raise
                if isinstance(error, NotLeaderError) and resolver.on_not_leader(group_id, error):
                    continue
                if error.outcome is Outcome.UNKNOWN:
                    resolver.mark_suspect(address)  # it did not answer
                cause = error
            else:
                if found is not None:
                    return found
                continue  # without a pause, because the broker has waited
        pause = max(backoff.next_seconds(), cause.retry_after_ms / 1000 if cause else 0.0)
        await resolver.wait_change(min(pause, max(deadline - loop.time(), 0.0)))
    raise RequestTimedOutError(
        f"{topic}/{partition}: no record from offset {offset} in {timeout_seconds:g} s"
    ) from cause


async def _poll(
    resolver: Resolver, address: str, topic_id: int, partition: int, offset: int, read_group_id: int
) -> Polled | None:
    bytes_max = settings.FETCH_MESSAGE_BYTES_MAX
    wanted = pb.PartitionPoll(
        topic_id=topic_id, partition=partition, offset=offset, max_bytes=bytes_max, group_id=read_group_id
    )
    request = pb.PollRequest(
        metadata_revision=resolver.metadata_revision,
        max_wait_ms=POLL_WAIT_MS,
        min_bytes=1,
        max_bytes=bytes_max,
        partitions=[wanted],
    )
    patience = POLL_WAIT_MS / 1000 + settings.LATE_POLL_SECONDS
    response = await resolver.connection(address).call(POLL, request, patience)
    for result in response.partitions:
        if (result.topic_id, result.partition) == (topic_id, partition):
            if result.HasField("error"):
                raise error_from_detail(result.error)
            if not result.batches:
                return None
            return Polled(
                tuple(result.base_offsets), tuple(result.batches), tuple(result.append_times_ms), result.group_id
            )
    return None
