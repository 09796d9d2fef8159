"""Fetch the messages of one partition of a queue topic page by page, on the executor, one page ahead of the reader.

Must not decode bodies. Each page shows the partition at one moment, and pages are of different moments. At most two pages are held.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from raftmq.batch_header import BatchFormatError
from raftmq.client.base import settings
from raftmq.client.connection.resolver import Resolver
from raftmq.client.queue.leader_call import call_leader
from raftmq.client.queue.topic import QueuePartition
from raftmq.client.queue.views import state_number
from raftmq.errors import NotReadyError, ProtocolError, TopicKindMismatchError, UnknownTopicError
from raftmq.message_block import MessageBlock, unpack_block
from raftmq.methods import BROWSE
from raftmq.proto import queue_pb2 as pb
from raftmq.spark.browse.options import BrowseOptions
from raftmq.spark.cluster.cluster import Cluster

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Browsed:
    """Name one partition of one incarnation of a queue topic."""

    topic: str
    topic_id: int
    partition: int


class Page(NamedTuple):
    """Hold messages of one moment. Their bodies are not checked yet."""

    block: MessageBlock
    statuses: Sequence[pb.MessageStatus]
    """The state of each message."""
    read_ms: int
    """The time of the answer by this machine's clock, in milliseconds since 1970."""


def browsed_partitions(cluster: Cluster, options: BrowseOptions) -> list[Browsed]:
    """Return all partitions of the topics. Runs on the driver.

    Raises:
        UnknownTopicError: a topic does not exist.
        TopicKindMismatchError: a topic is a log.
    """
    timeout_seconds = options.client.request_timeout_ms / 1000

    async def find() -> list[Browsed]:
        found = []
        for name in options.topics:
            info = await cluster.resolver.topic(name, timeout_seconds, is_fresh=True)
            if info.kind != settings.QUEUE_KIND:
                raise TopicKindMismatchError(
                    f"{name!r} is a topic of kind {info.kind!r}, and browse is for queue topics: read a log topic with the option"
                    " subscribe"
                )
            found += [Browsed(name, info.topic_id, number) for number in range(info.partition_count)]
        return found

    return cluster.run(find)


def fetch_pages(
    cluster: Cluster, browsed: Browsed, options: BrowseOptions, *, with_bodies: bool
) -> Generator[Page, None, None]:
    """Yield the pages of a partition that hold messages. Closing the generator early cancels its request.

    Raises:
        UnknownTopicError: this incarnation of the topic was deleted.
        ProtocolError: an answer is damaged, or does not continue.
        RaftMQError: the leader did not answer within ``request.timeout.ms``, or refused.
    """
    name = f"{browsed.topic}/{browsed.partition}"

    def ask(cursor: bytes) -> Future[pb.BrowseResponse]:
        return cluster.start(lambda: _fetch(cluster.resolver, browsed, options, cursor, with_bodies=with_bodies))

    cursor = b""
    pending: Future[pb.BrowseResponse] | None = ask(cursor)
    try:
        while pending is not None:
            answer = pending.result()
            read_ms = time.time_ns() // 1_000_000
            if answer.cursor and answer.cursor == cursor:
                raise ProtocolError(f"{name}: the broker's pages do not continue")
            cursor = answer.cursor
            pending = ask(cursor) if cursor else None
            if answer.block:
                yield Page(_unpacked(answer, name), answer.statuses, read_ms)
    finally:
        if pending is not None:
            pending.cancel()


async def _fetch(
    resolver: Resolver, browsed: Browsed, options: BrowseOptions, cursor: bytes, *, with_bodies: bool
) -> pb.BrowseResponse:
    timeout_seconds = options.client.request_timeout_ms / 1000
    partition = await locate(resolver, browsed, timeout_seconds)
    request = pb.BrowseRequest(
        metadata_revision=resolver.metadata_revision,
        topic_id=browsed.topic_id,
        partition=browsed.partition,
        state=state_number(options.state),
        tenant=options.tenant,
        cursor=cursor,
        limit=settings.BROWSE_PAGE_BODIES if with_bodies else settings.BROWSE_PAGE_MESSAGES,
        with_bodies=with_bodies,
    )
    return await call_leader(resolver, partition, BROWSE, request, _unchanged, timeout_seconds, is_read=True)


async def locate(resolver: Resolver, browsed: Browsed, timeout_seconds: float) -> QueuePartition:
    """Return the partition. Ask the cluster if this process knows another incarnation, which may be an earlier one.

    Raises:
        UnknownTopicError: this incarnation of the topic was deleted.
        NotReadyError: the broker that was asked does not know it yet. Ids ascend, so a lower one does not mean that it was deleted.
    """
    info = await resolver.topic(browsed.topic, timeout_seconds, partition=browsed.partition)
    if info.topic_id != browsed.topic_id:
        info = await resolver.topic(browsed.topic, timeout_seconds, is_fresh=True)
    if info.topic_id > browsed.topic_id:
        raise UnknownTopicError(f"{browsed.topic} was deleted and created again while it was browsed")
    if info.topic_id < browsed.topic_id or browsed.partition >= info.partition_count:
        raise NotReadyError(f"the broker that was asked knows an older state of {browsed.topic}")
    return QueuePartition(info.topic_id, browsed.partition, info.group_ids[browsed.partition])


def _unchanged(answer: T) -> T:
    return answer


def _unpacked(answer: pb.BrowseResponse, name: str) -> MessageBlock:
    try:
        block = unpack_block(answer.block)
    except BatchFormatError as error:
        raise ProtocolError(f"{name}: a damaged page: {error.reason}") from error
    if len(answer.statuses) != len(block.sequences):
        raise ProtocolError(f"{name}: {len(answer.statuses)} states for {len(block.sequences)} messages")
    return block
