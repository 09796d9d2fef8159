"""Work with queue topics on the one-node harness, through the services, as a client would."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from raftmq.broker.base.budget import Reservation
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.data_port.stream import DataStream
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.services.call import ANYONE
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
    """The client's side of one `PollStream` over gRPC."""

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

    def send_raw(self, request: pb.QueueStreamRequest) -> None:
        """Send a first request as it is."""
        self.requests.put_nowait(request)

    async def next(self, seconds: float = 5.0) -> pb.QueueStreamResponse:
        try:
            return await asyncio.wait_for(anext(self.responses), seconds)
        except StopAsyncIteration:
            raise StreamEndedError from None

    async def messages(self) -> list[ReceivedMessage]:
        return received((await self.next()).messages)

    async def close(self) -> None:
        await self.responses.aclose()


class DataStreamClient:
    """The client's side of one stream over a data connection, without its frames. It takes a response only while a test waits for one."""

    def __init__(self, node: Harness, topic: pb.Topic, **options: Any) -> None:
        self._node = node
        self._open: pb.QueueStreamOpen | None = pb.QueueStreamOpen(topic_id=topic.topic_id, **options)
        self._wanted: asyncio.Future[pb.QueueStreamResponse] | None = None
        self._failure: BaseException | None = None
        self.is_ended = False
        self.unanswered = 0
        """Requests without an answer, as the connection counts them."""
        self.stream = DataStream(self, node.queues.consumer_stream, ANYONE, 1)

    def credit(self, messages: int, size: int = 1 << 20, **fields: Any) -> None:
        self.send(pb.QueueStreamRequest(messages_limit=messages, bytes_limit=size, **fields))

    def send(self, request: pb.QueueStreamRequest) -> None:
        self.unanswered += 1
        if self._open is None:
            self.stream.request(request, None)
            return
        request.open.CopyFrom(self._open)
        self._begin(request)

    def send_raw(self, request: pb.QueueStreamRequest) -> None:
        """Send a first request as it is."""
        self.unanswered += 1
        self._begin(request)

    def _begin(self, request: pb.QueueStreamRequest) -> None:
        self._open = None
        self.stream.open(self._node.loop, request, None, self._node.loop.time() + 10)

    async def next(self, seconds: float = 5.0) -> pb.QueueStreamResponse:
        if self._wanted is None or self._wanted.done():
            self._wanted = self._node.loop.create_future()
            if not self.is_ended:
                self.on_stream_changed(self.stream)
        if self.is_ended and not self._wanted.done():
            self._end()
        return await asyncio.wait_for(self._wanted, seconds)

    async def messages(self) -> list[ReceivedMessage]:
        return received((await self.next()).messages)

    async def close(self) -> None:
        if not self.is_ended:
            self.is_ended = True
            self.stream.close()

    def _end(self) -> None:
        failure, self._failure = self._failure, None
        assert self._wanted is not None
        if isinstance(failure, RequestError):
            self._wanted.set_result(pb.QueueStreamResponse(error=failure.detail))
        else:
            assert failure is None
            self._wanted.set_exception(StreamEndedError)

    # as the broker's stream sees its connection

    @property
    def is_writable(self) -> bool:
        return self._wanted is not None and not self._wanted.done()

    def on_stream_changed(self, stream: DataStream) -> None:
        self._node.loop.call_soon(self._pump)

    def _pump(self) -> None:
        if not self.is_ended:
            self.stream.pump()

    def on_request_answered(self, reservation: Reservation | None) -> None:
        self.unanswered -= 1

    def send_response(self, stream: DataStream, response: pb.QueueStreamResponse) -> None:
        assert self._wanted is not None
        self._wanted.set_result(response)

    def end_stream(self, stream: DataStream, failure: BaseException | None) -> None:
        self._failure = failure
        self.is_ended = True
        self.stream.close()
        if self.is_writable:
            self._end()


class StreamEndedError(Exception):
    """The broker has ended a stream."""
