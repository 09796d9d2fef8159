"""Answer unary polls: lease the messages that are there, else wait for the first messages."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.queue.leases import Filter
from raftmq.broker.partitions.queue.partition import PartitionQueue
from raftmq.broker.services.call import Call
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import Locator
from raftmq.broker.services.queue.consumer import QueueConsumer
from raftmq.broker.services.queue.credit import Credit
from raftmq.broker.services.queue.deliveries import Deliveries, Delivery
from raftmq.broker.services.queue.topics import QueueTopics
from raftmq.fsm.queue.commands import Lease, validate_lease
from raftmq.fsm.queue.limits import LEASE_MS_MIN
from raftmq.fsm.queue.topic_config import ORDERED_BY_KEY
from raftmq.proto import queue_pb2 as pb

POLL_MESSAGES_MAX: Final = 1000
"""Messages in one answer."""
_MAX_WAIT_SECONDS: Final = 60.0
_ANSWER_MARGIN_SECONDS: Final = 0.05
"""A poll ends this long before its call's deadline, so that an empty answer arrives instead of an error."""
_NO_WAIT_SECONDS: Final = 1.0
"""How long a poll that must not wait does so while messages may be there that must be read from the disk, or leased by a commit."""
STRAGGLER_SECONDS: Final = 1.0
"""How long the messages of one partition wait for leases of others that are under way. Without a majority those never end."""


def wanted_messages(tenants: tuple[str, ...], key: bytes = b"") -> Filter:
    """Return the filter of a request. Raises RequestError INVALID_ARGUMENT."""
    reason = validate_lease(Lease(0, 0, 1, LEASE_MS_MIN, tenants, key))
    if reason is not None:
        raise RequestError(pb.INVALID_ARGUMENT, reason)
    return Filter(tenants, key)


def requested_lease_ms(lease_ms: int) -> int:
    """Return the length of the leases that a request names. 0: the topic's. Raises RequestError INVALID_ARGUMENT if it is too short."""
    if 0 < lease_ms < LEASE_MS_MIN:
        raise RequestError(
            pb.INVALID_ARGUMENT,
            f"a lease of {lease_ms} ms is too short: name at least {LEASE_MS_MIN} ms, or 0 for the topic's lease.ms",
        )
    return lease_ms


class _Answer:
    """The messages of one poll so far."""

    def __init__(self, credit: Credit, may_lease: Callable[[], bool]) -> None:
        """Take `may_lease`, which returns whether to go on after a lease that found nothing."""
        self.deliveries: list[Delivery] = []
        loop = asyncio.get_running_loop()
        self.has_messages: asyncio.Future[None] = loop.create_future()
        self.is_full: asyncio.Future[None] = loop.create_future()
        self._credit = credit
        self._may_lease = may_lease
        self.consumer: QueueConsumer | None = None

    def on_delivery(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        assert self.consumer is not None
        self.consumer.is_paused = True  # a lease that is under way still belongs to the answer
        if not self.has_messages.done():
            self.has_messages.set_result(None)

    def on_free(self) -> None:
        if self._credit.is_reserved or self.is_full.done():
            return
        assert self.consumer is not None
        if self.deliveries or self.consumer.is_paused or not self._may_lease():
            self.is_full.set_result(None)


class QueuePolls:
    """The unary polls of one broker."""

    def __init__(
        self, host: ServiceHost, topics: QueueTopics, deliveries: Deliveries, locator: Locator[PartitionQueue]
    ) -> None:
        self._host = host
        self._topics = topics
        self._locator = locator
        self._deliveries = deliveries

    async def poll(self, request: pb.QueuePollRequest, call: Call) -> pb.QueuePollResponse:
        """Lease messages. An empty answer is no error."""
        loop = self._host.loop
        wanted, lease_ms = wanted_messages(tuple(request.tenants), request.key), requested_lease_ms(request.lease_ms)
        topic = await self._topics.topic(request.topic_id, request.metadata_revision, call.deadline)
        if wanted.key and not ORDERED_BY_KEY.value_in(topic.config):
            raise RequestError(
                pb.INVALID_ARGUMENT,
                f"topic {topic.name} is not ordered by key ({ORDERED_BY_KEY.name}): poll without a key",
            )
        served = self._topics.served(topic, request.partitions)
        self._topics.require_led(topic, served)

        def may_lease() -> bool:
            return any(one.queue.leases.may_lease(wanted) for one in served)

        if not request.max_wait_ms and not may_lease():
            return pb.QueuePollResponse(partitions=self._refusals(request))
        bytes_max = self._host.limits.poll_bytes_max // 2  # the columns of a block come on top
        credit = Credit(
            min(request.max_messages or 1, POLL_MESSAGES_MAX), min(request.max_bytes or bytes_max, bytes_max)
        )
        # whether the head of a key is ready is known only after a lease
        answer = _Answer(credit, lambda: bool(request.max_wait_ms) or (not wanted.key and may_lease()))
        consumer = QueueConsumer(
            self._deliveries, wanted, lease_ms, credit, answer.on_delivery, answer.on_free,
            auto_accept=request.auto_accept,
        )  # fmt: skip
        answer.consumer = consumer
        wait_seconds = min(request.max_wait_ms / 1000, _MAX_WAIT_SECONDS) or _NO_WAIT_SECONDS
        last = call.deadline - _ANSWER_MARGIN_SECONDS
        is_answered = False
        try:
            self._topics.follow(consumer, topic, request.partitions)
            decided = (answer.has_messages, answer.is_full)
            seconds = max(0.0, min(wait_seconds, last - loop.time()))
            await asyncio.wait(decided, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            consumer.is_paused = True
            if credit.is_reserved:
                seconds = max(0.0, last - loop.time())
                await asyncio.wait(decided, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
                seconds = max(0.0, min(STRAGGLER_SECONDS, last - loop.time()))
                await asyncio.wait((answer.is_full,), timeout=seconds)
            is_answered = True
        finally:
            self._topics.forget(consumer)
            if not is_answered:
                for delivery in answer.deliveries:
                    delivery.give_back()
        found = [block_message(delivery) for delivery in answer.deliveries]
        return pb.QueuePollResponse(partitions=found + self._refusals(request))

    def _refusals(self, request: pb.QueuePollRequest) -> list[pb.LeasedMessages]:
        """Return the errors of the named partitions that this broker does not lead: without them an answer would mean that they have nothing."""
        refusals: list[pb.LeasedMessages] = []
        for number in request.partitions:
            try:
                self._locator.locate(request.topic_id, number).replica.require_leader()
            except RequestError as error:
                refusals.append(pb.LeasedMessages(topic_id=request.topic_id, partition=number, error=error.detail))
        return refusals


def block_message(delivery: Delivery) -> pb.LeasedMessages:
    """Return the message of a delivery."""
    partition = delivery.partition
    return pb.LeasedMessages(topic_id=partition.topic_id, partition=partition.number, block=delivery.block)
