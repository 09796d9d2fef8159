"""Puts messages into one topic: chooses partitions, fills batches, and waits for their outcomes. The producer's dispatcher delivers them.

Must not know leaders or retries. Invariant: a batch has at most `MESSAGE_COUNT_MAX` messages, and at most `batch_bytes_max` bytes unless
it holds a single one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from raftmq.client.base import settings
from raftmq.client.base.error_details import fresh_copy, with_doubt
from raftmq.client.base.loop_budget import LoopBudget
from raftmq.client.base.tracing import active_tracing
from raftmq.client.codec.cells import Serializer
from raftmq.client.connection.resolver import Resolver, TopicInfo
from raftmq.client.producer.byte_budget import ByteBudget
from raftmq.client.producer.dispatcher import Dispatcher
from raftmq.client.producer.identity import ProducerName
from raftmq.client.producer.partition_queue import PartitionQueue, ProducerIdentity
from raftmq.client.queue.new_message import (
    CheckedMessage,
    NewMessage,
    batch_room,
    check_message,
    home_partition,
    with_trace,
)
from raftmq.client.queue.put_batch import MessageBatch, PutResult
from raftmq.client.queue.topic import QueueTopic
from raftmq.errors import BufferFullError, ClosedClientError
from raftmq.message_checks import MESSAGE_COUNT_MAX

if TYPE_CHECKING:
    from raftmq.client.base.spans import SendSpan

PUT_LOOK_MESSAGES: Final = 64
"""Messages of a `put_many` between two looks at the clock. Checking one takes some 3 us."""

MessageQueue = PartitionQueue[MessageBatch]


@dataclass(frozen=True, slots=True)
class PutSettings:
    """The arguments of a `Queue` that concern its puts."""

    codec: int
    linger_seconds: float
    batch_bytes_max: int
    buffer_bytes_max: int
    max_block_seconds: float
    delivery_timeout_seconds: float
    request_timeout_seconds: float


class Putter:
    """The puts of one `Queue`. It gets a producer id with its first put."""

    def __init__(
        self,
        resolver: Resolver,
        topic: QueueTopic,
        client_id: str,
        options: PutSettings,
        serializer: Serializer | None,
    ) -> None:
        self._resolver = resolver
        self._topic = topic
        self._client_id = client_id
        self._tracing = active_tracing()
        self._options = options
        self._serializer = serializer
        self._budget = ByteBudget(options.buffer_bytes_max)
        self._dispatcher = Dispatcher(
            resolver,
            self._budget,
            codec=options.codec,
            request_timeout_seconds=options.request_timeout_seconds,
            delivery_timeout_seconds=options.delivery_timeout_seconds,
            rng=resolver.rng,
        )
        self._producer_id = 0
        self._starting = asyncio.Lock()
        self._is_closed = False
        """No message is accepted any more."""
        self._loop_budget = LoopBudget()
        self._info: TopicInfo | None = None
        self._queues: list[MessageQueue] = []
        self._sticky = 0
        """The current partition of messages that any partition may take."""
        self._sticky_bytes = 0
        self._sticky_until = 0.0

    async def put(self, message: NewMessage[Any]) -> PutResult:  # Any: the serializer knows the type
        """Enqueue a message, and wait until it is on disk on a majority."""
        span = self._begin_span(is_bulk=False)
        with nullcontext() if span is None else span.accepting():
            info = await self._ready()
            checked = check_message(message, self._serializer, info.message_bytes_max)
            if span is not None:
                checked = with_trace(checked, span, info.message_bytes_max)
            batch, position = await self._accept(checked)
            if span is not None:
                span.watch(batch, position)
        batch.is_observed = True
        await batch.wait_done()
        return batch.result(position)

    def _begin_span(self, *, is_bulk: bool) -> SendSpan | None:
        if self._tracing is None:
            return None
        return self._tracing.begin_send(self._topic.name, self._client_id, is_bulk=is_bulk)

    async def put_many(self, messages: Iterable[NewMessage[Any]]) -> list[PutResult]:  # Any: as in `put`
        """Enqueue messages, and wait for every outcome. Raises the first failure, with a note about the others."""
        span = self._begin_span(is_bulk=True)
        if span is None:
            return await self._put_many(messages)
        with span.accepting():
            return await self._put_many(messages, span)

    async def _put_many(
        self, messages: Iterable[NewMessage[Any]], span: SendSpan | None = None
    ) -> list[PutResult]:  # Any: as in `put`
        info = await self._ready()
        self._check_alive()  # and again after each wait: nothing changes in between
        places: list[tuple[MessageBatch, int]] = []
        refusal: Exception | None = None
        try:
            for number, message in enumerate(messages):
                checked = check_message(message, self._serializer, info.message_bytes_max)
                if span is not None:
                    span.record_count += 1
                    checked = with_trace(checked, span, info.message_bytes_max)
                if self._budget.try_acquire(checked.size):
                    place = self._add_acquired(info, checked)
                else:
                    place = await self._accept(checked)
                    info = await self._topic.info()
                place[0].is_observed = True
                places.append(place)
                if span is not None:
                    span.watch(place[0])
                if not number % PUT_LOOK_MESSAGES and self._loop_budget.is_spent(asyncio.get_running_loop()):
                    await self._loop_budget.turn()  # lets the senders send while the next messages are prepared
                    info = await self._topic.info()
                    self._check_alive()
        except Exception as error:  # noqa: BLE001 - raised below, when the outcomes of the messages before it are known
            error.add_note(f"raised by message {len(places)} of put_many; the messages before it are enqueued")
            refusal = error
        for batch in dict.fromkeys(batch for batch, _ in places):
            await batch.wait_done()
        results = _results(places)
        if refusal is not None:
            raise refusal
        return results

    async def close(self) -> None:
        """Accept no more messages, wait for the outcomes of accepted ones, and stop. If it is cancelled, it stops immediately."""
        self._is_closed = True  # a put that goes on after a wait would add a message that nobody delivers
        try:
            if self._producer_id and self._dispatcher.failure is None:
                await self._dispatcher.drain()
        finally:
            await self._dispatcher.close()

    # --------------------------------------------------------------------------------------------------------- accepting

    async def _ready(self) -> TopicInfo:
        """Return the topic, after the first put has got a producer id."""
        if not self._producer_id:
            async with self._starting:
                if not self._producer_id:
                    name = ProducerName(self._resolver, None, self._options.request_timeout_seconds)
                    identity = await name.register(self._options.max_block_seconds)
                    self._check_alive()
                    self._dispatcher.start()
                    self._producer_id = identity.producer_id
        return await self._topic.info()

    async def _accept(self, message: CheckedMessage) -> tuple[MessageBatch, int]:
        """Add a message to a batch. If it is cancelled or fails, the message was not accepted."""
        if not self._budget.try_acquire(message.size):
            await self._acquire(message.size)
        try:
            info = await self._topic.info()
            self._check_alive()
        except BaseException:
            self._budget.release(message.size)
            raise
        return self._add_acquired(info, message)

    def _add_acquired(self, info: TopicInfo, message: CheckedMessage) -> tuple[MessageBatch, int]:
        """Add a message, for which bytes of the buffer were acquired, to a batch. If it fails, they are free again."""
        try:
            return self._add(info, message)
        except BaseException:
            self._budget.release(message.size)
            raise

    def _check_alive(self) -> None:
        """Raise the reason why no message can be accepted. Call it after each wait."""
        self._resolver.check()
        if self._is_closed:
            raise ClosedClientError("the queue is closed: create a new one")
        if self._dispatcher.failure is not None:
            raise ClosedClientError("the queue stopped after an internal error") from self._dispatcher.failure

    async def _acquire(self, size: int) -> None:
        try:
            async with asyncio.timeout(self._options.max_block_seconds):
                await self._budget.acquire(size)
        except TimeoutError:
            raise BufferFullError(
                f"no space for {size} bytes in the buffer of {self._budget.bytes_max} bytes within {self._options.max_block_seconds:g} s"
            ) from None

    def _add(self, info: TopicInfo, message: CheckedMessage) -> tuple[MessageBatch, int]:
        queue = self._queue_of(info, message)
        batch = self._open_batch(queue, message.size)
        position = batch.append(message)
        if not queue.is_scheduled:
            self._dispatcher.reschedule(queue)
        return batch, position

    def _queue_of(self, info: TopicInfo, message: CheckedMessage) -> MessageQueue:
        if info is not self._info:
            self._learn(info)
        home = home_partition(info, message)
        return self._sticky_queue(message.size) if home is None else self._queues[home]

    def _learn(self, info: TopicInfo) -> None:
        """Take over a changed topology. A topic that was created again gets new queues."""
        if self._info is None or self._info.topic_id != info.topic_id:
            self._queues = []
            self._sticky = self._resolver.rng.randrange(info.partition_count)
        self._info = info
        for number in range(len(self._queues), info.partition_count):
            identity = ProducerIdentity(self._producer_id, 0)
            queue: MessageQueue = PartitionQueue(info.name, info.topic_id, number, info.group_ids[number], identity)
            self._queues.append(queue)
        for queue in self._queues:
            queue.batch_bytes_max = batch_room(info, self._options.batch_bytes_max)

    def _sticky_queue(self, size: int) -> MessageQueue:
        now = asyncio.get_running_loop().time()
        is_stale = self._queues[self._sticky].open is None and now >= self._sticky_until
        if is_stale or self._sticky_bytes >= settings.STICKY_BYTES:
            count = len(self._queues)
            following = [(self._sticky + step) % count for step in range(1, count + 1)]
            led = (number for number in following if self._resolver.leader(self._queues[number].group_id) is not None)
            self._sticky = next(led, following[0])
            self._sticky_bytes, self._sticky_until = 0, now + settings.STICKY_SECONDS
        self._sticky_bytes += size
        return self._queues[self._sticky]

    def _open_batch(self, queue: MessageQueue, size: int) -> MessageBatch:
        """Return the open batch for one more message. A batch without room is closed first."""
        batch = queue.open
        if batch is not None and (
            batch.count >= MESSAGE_COUNT_MAX or batch.reserved_bytes + size > queue.batch_bytes_max
        ):
            queue.close_open(self._options.codec)
            self._dispatcher.reschedule(queue)
            batch = None
        if batch is None:
            now = asyncio.get_running_loop().time()
            batch = MessageBatch(
                queue.topic,
                queue.partition,
                now + self._options.linger_seconds,
                now + self._options.delivery_timeout_seconds,
            )
            queue.open = batch
            self._dispatcher.on_active(queue)
        return batch


def _results(places: list[tuple[MessageBatch, int]]) -> list[PutResult]:
    errors = [batch.error for batch, _ in places if batch.error is not None]
    if not errors:
        return [batch.result(position) for batch, position in places]
    error = (fresh_copy if len(errors) == len(places) else with_doubt)(errors[0])
    error.add_note(f"{len(errors)} of {len(places)} messages failed; the others are enqueued")
    raise error from errors[0].__cause__
