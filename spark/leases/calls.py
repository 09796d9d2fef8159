"""Lease, read and settle the messages of queue topics for Spark, by unary calls to the leaders. The coroutines run on the process's loop.

A settlement names its messages by the tokens of their leases, so it can be repeated, and any process can make it. A message whose lease has
ended, or which somebody settled before, is left as it is.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeVar

from raftmq.batch_header import BatchFormatError
from raftmq.client.base import settings
from raftmq.client.base.background import Backoff
from raftmq.client.base.error_details import error_from_detail
from raftmq.client.connection.resolver import Resolver, TopicInfo
from raftmq.client.queue.leader_call import call_leader, whole_ms
from raftmq.client.queue.queue_calls import QueueCalls
from raftmq.client.queue.topic import QueueTopic
from raftmq.errors import (
    NoLeaderError,
    NotLeaderError,
    ProtocolError,
    RaftMQError,
    TopicKindMismatchError,
    UnknownTopicError,
)
from raftmq.message_block import MessageBlock, unpack_block
from raftmq.methods import ACK, BROWSE, QUEUE_POLL
from raftmq.proto import queue_pb2 as pb
from raftmq.spark.browse.pages import Browsed, locate
from raftmq.spark.leases.offsets import LeaseRun, PartitionName, portions

T = TypeVar("T")

NO_GROUPS: Final[Mapping[PartitionName, int]] = MappingProxyType({})
READS_MAX: Final = 32
"""Messages of a batch that is run again that one task reads at the same time."""


class LeasedBlock(NamedTuple):
    """Messages of one partition that were leased together, as the broker sent them."""

    name: PartitionName
    tokens: tuple[tuple[int, int], ...]
    """The sequence and the lease number of each."""
    data: bytes
    group_id: int = 0
    """The Raft group that led the partition before. 0: not known."""
    lease_ms: int = 0
    """The shortest of the leases, which is at most the topic's ``lease.max.ms``. 0: not known."""


class _Leader(NamedTuple):
    """A broker, and the partitions of a topic that it leads."""

    topic: str
    address: str
    partitions: list[int]


class Wanted(NamedTuple):
    """The conditions of leases."""

    messages_max: int
    bytes_max: int
    lease_ms: int
    tenants: tuple[str, ...]


async def find_topics(resolver: Resolver, names: Sequence[str], timeout_seconds: float) -> dict[str, TopicInfo]:
    """Return the topics, with the partitions that they have now.

    Raises:
        UnknownTopicError: a topic does not exist.
        TopicKindMismatchError: a topic is a log.
    """
    found: dict[str, TopicInfo] = {}
    for name in names:
        info = await resolver.topic(name, timeout_seconds)
        if info.kind != settings.QUEUE_KIND:
            raise TopicKindMismatchError(
                f"{name!r} is a topic of kind {info.kind!r}, and kind=queue is for queue topics alone: read log topics with a query"
                " of their own, without this option"
            )
        found[name] = info
    return found


# ------------------------------------------------------------------------------------------------------------- leasing


async def lease_ready(
    resolver: Resolver, topics: Mapping[str, TopicInfo], wanted: Wanted, wait_ms: int, timeout_seconds: float
) -> list[LeasedBlock]:
    """Lease messages that are ready, up to the limits, from all leaders. If there are none, wait for the first ones.

    An empty answer means that every partition was asked. So a partition without a leader is asked again until the time is over, unless others
    have messages.

    Raises:
        RaftMQError: a leader refused, or did not answer in time, and no other had messages.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_seconds
    backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, resolver.rng)
    while True:
        found, failures = await _ask_leaders(resolver, topics, wanted, wait_ms, timeout_seconds)
        if found or not failures:
            return found
        pause = backoff.next_seconds()
        refusal = next((failure for failure in failures if not failure.retriable), None)
        if refusal is not None or loop.time() + pause >= deadline:
            raise refusal or failures[0]
        await resolver.wait_change(pause)


async def _ask_leaders(
    resolver: Resolver, topics: Mapping[str, TopicInfo], wanted: Wanted, wait_ms: int, timeout_seconds: float
) -> tuple[list[LeasedBlock], list[RaftMQError]]:
    """Return the messages of all leaders, and the failures of those that have none."""
    found: list[LeasedBlock] = []
    failures: list[RaftMQError] = []
    loop = asyncio.get_running_loop()
    began_at = loop.time()
    for first_wait_ms in (0, wait_ms) if wait_ms else (0,):
        leaders, failures = _leaders_of(resolver, topics)
        asked_wait_ms = first_wait_ms
        # nothing renews the first leases before the last ones are here, and an ended one would come twice
        while (
            leaders
            and not _is_full(found, wanted)
            and (loop.time() - began_at) * 1000 < _shortest_ms(found, wanted) / 3
        ):
            left = wanted.messages_max - _count(found)
            asked = leaders[:left]
            share = wanted._replace(
                messages_max=left // len(asked), bytes_max=min(settings.QUEUE_CREDIT_BYTES, wanted.bytes_max)
            )
            answers = await asyncio.gather(
                *(_poll(resolver, topics[one.topic], one, share, asked_wait_ms, timeout_seconds) for one in asked)
            )
            failures += [error for _, errors in answers for error in errors]
            found += [block for blocks, _ in answers for block in blocks]
            leaders = [leader for leader, (blocks, _) in zip(asked, answers, strict=True) if blocks] + leaders[left:]
            asked_wait_ms = 0  # only an empty queue is waited for
        if found:
            break
    return found, failures


def _is_full(found: Sequence[LeasedBlock], wanted: Wanted) -> bool:
    return _count(found) >= wanted.messages_max or sum(len(block.data) for block in found) >= wanted.bytes_max


def _shortest_ms(found: Sequence[LeasedBlock], wanted: Wanted) -> float:
    """Return the length of the shortest lease, or infinity if there is none."""
    return min((block.lease_ms or wanted.lease_ms for block in found), default=math.inf)


def _count(found: Sequence[LeasedBlock]) -> int:
    return sum(len(block.tokens) for block in found)


def _leaders_of(resolver: Resolver, topics: Mapping[str, TopicInfo]) -> tuple[list[_Leader], list[RaftMQError]]:
    """Return the brokers that lead partitions of the topics, in random order, and an error for each partition without a leader."""
    found: dict[tuple[str, str], list[int]] = {}
    missing: list[RaftMQError] = []
    for name, info in topics.items():
        for partition, group_id in enumerate(info.group_ids):
            leader = resolver.leader(group_id)
            if leader is None:
                missing.append(NoLeaderError(f"{name}/{partition} has no leader"))
            else:
                found.setdefault((name, resolver.address(leader)), []).append(partition)
    leaders = [_Leader(*place, partitions) for place, partitions in found.items()]
    resolver.rng.shuffle(leaders)
    return leaders, missing


async def _poll(
    resolver: Resolver, topic: TopicInfo, leader: _Leader, wanted: Wanted, wait_ms: int, timeout_seconds: float
) -> tuple[list[LeasedBlock], list[RaftMQError]]:
    """Return the messages of a leader, and the refusals of the partitions that it does not lead any more, or its failure."""
    request = pb.QueuePollRequest(
        metadata_revision=resolver.metadata_revision,
        topic_id=topic.topic_id,
        partitions=leader.partitions,
        max_messages=min(wanted.messages_max, settings.QUEUE_CREDIT_MAX),
        max_bytes=wanted.bytes_max,
        lease_ms=wanted.lease_ms,
        max_wait_ms=wait_ms,
        tenants=wanted.tenants,
    )
    try:
        answer = await resolver.connection(leader.address).call(QUEUE_POLL, request, wait_ms / 1000 + timeout_seconds)
    except RaftMQError as error:
        return [], [error]
    refusals: list[RaftMQError] = []
    for refused in (one for one in answer.partitions if one.HasField("error")):
        refusal = error_from_detail(refused.error, f"partition {refused.partition}")
        refusals.append(refusal)
        if isinstance(refusal, NotLeaderError) and refused.partition < topic.partition_count:
            resolver.on_not_leader(topic.group_ids[refused.partition], refusal)
    return [_leased(topic, leased) for leased in answer.partitions if leased.block], refusals


def _leased(topic: TopicInfo, leased: pb.LeasedMessages) -> LeasedBlock:
    name = PartitionName(topic.name, topic.topic_id, leased.partition)
    block = _unpacked(leased.block, name)
    # a recovery since then gives the partition another group, in which the tokens may be those of other messages
    group_id = topic.group_ids[leased.partition] if leased.partition < topic.partition_count else 0
    tokens = tuple(zip(block.sequences, block.lease_numbers, strict=True))
    return LeasedBlock(name, tokens, leased.block, group_id, min(block.lease_remaining_ms or (0,)))


# ------------------------------------------------------------------------------------------------------------ settling


async def settle(
    resolver: Resolver,
    leases: Mapping[PartitionName, Iterable[LeaseRun]],
    operation: pb.AckOperation,
    detail: pb.AckDetail | None,
    timeout_seconds: float,
    groups: Mapping[PartitionName, int] = NO_GROUPS,
) -> int:
    """Settle or renew messages. Those of a topic that was deleted are gone.

    `groups` are the Raft groups that leased them, as far as they are known. Messages that a recovery has lost since then are left alone.

    Return the milliseconds that are left of the shortest lease that was renewed, or 0 if none was.

    Raises:
        RaftMQError: a leader refused, or did not answer in time. Some messages may be settled. Repeating it is harmless.
    """
    granted = await asyncio.gather(
        *(
            _settle_in(resolver, name, groups.get(name, 0), runs, operation, detail, timeout_seconds)
            for name, runs in leases.items()
        )
    )
    return min(filter(None, granted), default=0)


async def _settle_in(
    resolver: Resolver,
    name: PartitionName,
    group_id: int,
    runs: Iterable[LeaseRun],
    operation: pb.AckOperation,
    detail: pb.AckDetail | None,
    timeout_seconds: float,
) -> int:
    try:
        partition = await locate(resolver, Browsed(*name), timeout_seconds)
    except UnknownTopicError:
        return 0
    granted: list[int] = []
    for portion in portions(runs, settings.ACK_MESSAGES_MAX):
        ack = pb.PartitionAck(
            topic_id=name.topic_id,
            partition=name.partition,
            group_id=group_id,
            operations=[operation] * len(portion),
            first_sequences=[run.first_sequence for run in portion],
            counts=[run.message_count for run in portion],
            lease_numbers=[run.lease_number for run in portion],
        )
        if detail is not None:
            ack.details.append(detail)
            ack.detail_numbers.extend([1] * len(portion))
        request = pb.AckRequest(
            metadata_revision=resolver.metadata_revision, timeout_ms=whole_ms(timeout_seconds), partitions=[ack]
        )
        # A message that a lost request settled has no such lease any more, so a repetition leaves it alone.
        granted += await call_leader(resolver, partition, ACK, request, _granted_by, timeout_seconds, is_read=True)
    return min(filter(None, granted), default=0)


def _granted_by(answer: pb.AckResponse) -> Sequence[int]:
    """Return the milliseconds that are left of the leases of each run, or 0 for a run of which none was renewed."""
    if len(answer.partitions) != 1:
        raise ProtocolError(f"the broker answered for {len(answer.partitions)} partitions instead of 1")
    (result,) = answer.partitions
    if result.HasField("error"):
        raise error_from_detail(result.error, f"partition {result.partition}")
    return result.granted_ms


# ------------------------------------------------------------------------------------------------------------- looking


async def read_leased(
    resolver: Resolver, name: PartitionName, tokens: Sequence[tuple[int, int]], timeout_seconds: float
) -> list[MessageBlock]:
    """Return those of a few messages that are still leased under their tokens, each as a block.

    Raises:
        UnknownTopicError: this incarnation of the topic was deleted.
        RaftMQError: as for `call_leader`.
    """
    partition = await locate(resolver, Browsed(*name), timeout_seconds)

    async def read(sequence: int, lease_number: int) -> MessageBlock | None:
        request = pb.BrowseRequest(
            metadata_revision=resolver.metadata_revision,
            topic_id=name.topic_id,
            partition=name.partition,
            state=pb.LEASED,
            sequence=sequence,
            is_single=True,
            with_bodies=True,
        )
        answer = await call_leader(resolver, partition, BROWSE, request, _unchanged, timeout_seconds, is_read=True)
        block = _unpacked(answer.block, name) if answer.block else None
        return None if block is None or list(block.lease_numbers) != [lease_number] else block

    found = await asyncio.gather(*(read(*token) for token in tokens))
    return [block for block in found if block is not None]


async def count_states(resolver: Resolver, names: Sequence[str], timeout_seconds: float) -> dict[str, pb.StateCounts]:
    """Return the number of messages in each state, by topic. Raises as `QueueCalls.stats`."""
    calls = [QueueCalls(resolver, QueueTopic(resolver, name, timeout_seconds), timeout_seconds) for name in names]
    found = await asyncio.gather(*(one.stats(0) for one in calls))
    return {
        name: pb.StateCounts(
            ready=stats.ready, delayed=stats.delayed, leased=stats.leased, dead=stats.dead, blocked=stats.blocked
        )
        for name, stats in zip(names, found, strict=True)
    }


def _unchanged(answer: T) -> T:
    return answer


def _unpacked(data: bytes, name: PartitionName) -> MessageBlock:
    try:
        return unpack_block(data)
    except BatchFormatError as error:
        raise ProtocolError(f"{name.topic}/{name.partition}: damaged messages: {error.reason}") from error
