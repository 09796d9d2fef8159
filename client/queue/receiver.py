"""Hands leased messages to the program: reads their values, and polls where a stream is not exact."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Generic, cast

from raftmq.client.base import settings
from raftmq.client.base.logs import log
from raftmq.client.codec.queue_batch import DamagedMessage, decode_messages
from raftmq.client.connection.resolver import Resolver
from raftmq.client.queue.chain import ChainChecks
from raftmq.client.queue.intake import LeasedMessage, LeaseOptions
from raftmq.client.queue.lease import Lease, cut_error
from raftmq.client.queue.lease_desk import LeaseDesk
from raftmq.client.queue.message import Message
from raftmq.client.queue.polls import poll_leaders
from raftmq.client.queue.topic import QueuePartition, QueueTopic
from raftmq.errors import InvalidArgumentError
from raftmq.message_block import unpack_block
from raftmq.proto import queue_pb2 as pb
from raftmq.types import QueueValueT


class Receiver(Generic[QueueValueT]):
    """The consuming side of one `Queue`. A message whose value cannot be read is rejected with the reason."""

    def __init__(
        self,
        resolver: Resolver,
        topic: QueueTopic,
        desk: LeaseDesk,
        chain_checks: ChainChecks,
        deserializer: Callable[[bytes], QueueValueT] | None,
        timeout_seconds: float,
    ) -> None:
        self._resolver = resolver
        self._topic = topic
        self._desk = desk
        self._chain_checks = chain_checks
        self._deserializer = deserializer
        self._timeout_seconds = timeout_seconds

    async def get_many(
        self, options: LeaseOptions, max_messages: int, seconds: float | None, *, auto_accept: bool, key: bytes = b""
    ) -> list[Message[QueueValueT]]:
        """Lease messages as soon as there is one, within `seconds`. None: without an end. With a `key`, only its next one."""
        if key:
            await self._check_order()
        if seconds == 0 and not (auto_accept or key) and (await self._topic.info()).is_single_active:
            # a poll is a consumer of its own, which stands by while this program's stream is active
            seconds = settings.SINGLE_ACTIVE_WAIT_SECONDS
        if auto_accept or seconds == 0 or key:
            return await self._poll(options, max_messages, seconds, auto_accept=auto_accept, key=key)
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            leased = await self.take(options, max_messages, deadline)
            found = self._messages_of(leased)
            if found or not leased:
                return found  # otherwise no value could be read, and all messages were rejected

    async def messages(self, options: LeaseOptions) -> AsyncGenerator[Message[QueueValueT], None]:
        """Iterate over messages without an end, one fetched ahead."""
        intake = self._desk.intake(options)
        intake.hold_ahead(1)
        try:
            while True:
                found = self._messages_of(await self.take(options, 1, None))
                if found:
                    yield found.pop()  # no reference stays here, which would hold the lease of a message that the program forgot
        finally:
            intake.hold_ahead(-1)

    async def take(self, options: LeaseOptions, count: int, deadline: float | None) -> list[LeasedMessage]:
        """Lease messages until a deadline. Waits in turns, because a topic that was deleted never wakes those who wait."""
        intake = self._desk.intake(options)
        loop = asyncio.get_running_loop()
        while True:
            await self._topic.info()
            turn = settings.QUEUE_POLL_WAIT_MS / 1000
            left = turn if deadline is None else max(0.0, deadline - loop.time())
            leased = await intake.take(count, min(turn, left))
            if leased or (deadline is not None and loop.time() >= deadline):
                return leased

    async def _check_order(self) -> None:
        """Raise `InvalidArgumentError` unless the topic is ordered by key."""
        if not (await self._topic.info()).is_ordered_by_key:
            raise InvalidArgumentError(
                f"{self._topic.name} is not ordered by key: get without a key, or create a topic with {settings.TOPIC_ORDERED_BY_KEY_KEY}"
            )

    async def _poll(
        self, options: LeaseOptions, count: int, seconds: float | None, *, auto_accept: bool, key: bytes
    ) -> list[Message[QueueValueT]]:
        info = await self._topic.info()
        while True:
            wait = settings.QUEUE_POLL_WAIT_MS / 1000 if seconds is None else seconds
            answers = await poll_leaders(
                self._resolver, info, options, count, wait, self._timeout_seconds, auto_accept=auto_accept, key=key
            )
            newest = max((leased.partition for leased in answers), default=-1)
            if newest >= info.partition_count:  # it was added a moment ago, and its messages are leased
                info = await self._resolver.topic(self._topic.name, self._timeout_seconds, partition=newest)
            found = [
                message for leased in answers if leased.block for message in self._polled(leased, options, auto_accept)
            ]
            if found or seconds is not None:
                return found

    def _polled(
        self, leased: pb.LeasedMessages, options: LeaseOptions, auto_accept: bool
    ) -> Iterable[Message[QueueValueT]]:
        block = unpack_block(leased.block)
        info = self._topic.known()
        if info is None or leased.partition >= info.partition_count:
            return
        partition = QueuePartition(leased.topic_id, leased.partition, info.group_ids[leased.partition])
        remaining = block.lease_remaining_ms
        for at, received in enumerate(decode_messages(block, range(len(block.sequences)))):
            seconds = remaining[at] / 1000 if remaining is not None else settings.LEASE_ASSUMED_SECONDS
            lease = Lease(self._desk, partition, received.sequence, received.lease_number, seconds, options.lease_ms)
            if isinstance(received, DamagedMessage):
                if not auto_accept:
                    self._reject(lease, received.reason)
                continue
            message = self._message_of(LeasedMessage(received, lease), is_accepted=auto_accept)
            if message is not None:
                if not auto_accept:
                    self._desk.prepare(partition)
                    self._desk.hold((lease,))
                yield message

    def _messages_of(self, leased: Iterable[LeasedMessage]) -> list[Message[QueueValueT]]:
        """Return the messages whose values can be read. The others are rejected."""
        return [message for one in leased if (message := self._message_of(one)) is not None]

    def _message_of(self, leased: LeasedMessage, *, is_accepted: bool = False) -> Message[QueueValueT] | None:
        """Return the message with its value, or None if that cannot be read: the message is then rejected."""
        received, lease = leased.received, leased.lease
        value: object = received.value
        if self._deserializer is not None:
            try:
                value = self._deserializer(received.value)
            except Exception as error:  # noqa: BLE001 - the program's own code
                self._reject(lease, f"the value_deserializer failed: {type(error).__name__}: {error}")
                return None
        return Message(
            self._topic.name,
            lease.partition.partition,
            cast("QueueValueT", value),
            received.key,
            received.tenant,
            received.priority,
            received.id,
            received.sequence,
            received.attempts,
            received.enqueued_ms,
            received.headers,
            None if is_accepted else lease,
            self._chain_checks,
        )

    def _reject(self, lease: Lease, reason: str) -> None:
        log.error("message_rejected topic=%s sequence=%d reason=%s", self._topic.name, lease.sequence, reason)
        self._desk.drop((lease,))
        self._desk.settle((lease,), pb.REJECT, pb.AckDetail(error=cut_error(reason)))
