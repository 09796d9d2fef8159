"""Work with queue topics on the one-node harness, through the services, as a client would."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.client.codec.queue_batch import ReceivedMessage, decode_messages, encode_messages
from raftmq.message_block import unpack_block
from raftmq.proto import queue_pb2 as pb
from raftmq.types import GroupId

from tests.support.broker.harness import Harness, append_request


async def queue_topic(node: Harness, name: str = "jobs", partitions: int = 1, **config: str) -> pb.Topic:
    """Raise the cluster to the level of queues, and create a queue topic."""
    await node.register(1, "uuid-1", feature_level_max=2)
    await node.feature_levels.raise_feature_level(pb.RaiseFeatureLevelRequest(), node.call())
    return await node.topic(name, partitions, "queue", **config)


def queue_of(node: Harness, topic: pb.Topic, number: int = 0) -> PartitionQueue:
    found = node.partitions[GroupId(topic.partitions[number].group_id)]
    assert isinstance(found, PartitionQueue)
    return found


async def put(
    node: Harness, topic: pb.Topic, *values: bytes, partition: int = 0, **columns: Any
) -> pb.PartitionAppendResult:
    """Enqueue messages in one batch. `columns` are those of `encode_messages`."""
    batch = encode_messages(values, **columns).seal()
    request = append_request(topic, batch)
    request.partitions[0].partition = partition
    return (await node.log.append(request, node.call())).partitions[0]


def received(leased: Sequence[pb.LeasedMessages]) -> list[ReceivedMessage]:
    """Return the messages of an answer."""
    found: list[ReceivedMessage] = []
    for one in leased:
        assert not one.HasField("error"), one.error
        block = unpack_block(one.block)
        for message in decode_messages(block, range(len(block.sequences))):
            assert isinstance(message, ReceivedMessage)
            found.append(message)
    return found


async def poll(node: Harness, topic: pb.Topic, count: int = 1, **fields: Any) -> list[ReceivedMessage]:
    request = pb.QueuePollRequest(topic_id=topic.topic_id, max_messages=count, max_bytes=1 << 20, **fields)
    return received((await node.queues.poll(request, node.call())).partitions)


def ack_of(
    topic: pb.Topic,
    message: ReceivedMessage,
    operation: pb.AckOperation = pb.ACCEPT,
    *,
    session: int = 0,
    request: int = 0,
    **detail: Any,
) -> pb.PartitionAck:
    """Return the settlement of one message. `detail` are the fields of `AckDetail`."""
    return pb.PartitionAck(
        topic_id=topic.topic_id,
        session=session,
        request=request,
        operations=[operation],
        first_sequences=[message.sequence],
        counts=[1],
        lease_numbers=[message.lease_number],
        detail_numbers=[1] if detail else [],
        details=[pb.AckDetail(**detail)] if detail else [],
    )


async def settle(node: Harness, ack: pb.PartitionAck) -> list[int]:
    """Return the codes, or the code of the refusal of all."""
    (result,) = (await node.queues.ack(pb.AckRequest(partitions=[ack]), node.call())).partitions
    if result.HasField("error"):
        return [result.error.code]
    return [code for code, count in zip(result.codes, result.counts, strict=True) for _ in range(count)]


class Stream:
    """The client's side of one `PollStream`."""

    def __init__(self, node: Harness, topic: pb.Topic, **options: Any) -> None:
        self.requests: asyncio.Queue[pb.QueueStreamRequest | None] = asyncio.Queue()
        self._open: pb.QueueStreamOpen | None = pb.QueueStreamOpen(topic_id=topic.topic_id, **options)
        self.responses = node.queues.poll_stream(self._read(), node.call())

    async def _read(self):
        while (request := await self.requests.get()) is not None:
            yield request

    def credit(self, messages: int, size: int = 1 << 20, **fields: Any) -> None:
        self.send(pb.QueueStreamRequest(messages_limit=messages, bytes_limit=size, **fields))

    def send(self, request: pb.QueueStreamRequest) -> None:
        if self._open is not None:
            request.open.CopyFrom(self._open)
            self._open = None
        self.requests.put_nowait(request)

    async def next(self, seconds: float = 5.0) -> pb.QueueStreamResponse:
        return await asyncio.wait_for(anext(self.responses), seconds)

    async def messages(self) -> list[ReceivedMessage]:
        return received((await self.next()).messages)

    async def close(self) -> None:
        await self.responses.aclose()
