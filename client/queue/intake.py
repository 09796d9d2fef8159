"""Receives messages for the waiting consumers of one client: asks leaders for as many as are wanted, and hands them out in order.

All consumers with the same lease time and tenants share an intake, and it has one stream to each leader. Must not settle anything but
messages that nobody takes. Invariant: every received message is handed out, given back uncounted, or rejected as damaged.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import msgspec
from raftmq.batch_header import BatchFormatError
from raftmq.client.base import settings
from raftmq.client.base.error_details import error_from_detail, fresh_copy, name_of
from raftmq.client.base.logs import log
from raftmq.client.codec.queue_batch import DamagedMessage, ReceivedMessage, decode_message
from raftmq.client.connection.resolver import Resolver, TopicInfo
from raftmq.client.queue.broker_link import BrokerLink
from raftmq.client.queue.credit import split_credit
from raftmq.client.queue.lease import Lease, LeaseOffice, cut_error
from raftmq.client.queue.settlement_runs import Settlement, build_ack
from raftmq.client.queue.topic import QueuePartition
from raftmq.errors import ClosedClientError, NotLeaderError, ProtocolError, RaftMQError
from raftmq.message_block import MessageBlock, unpack_block
from raftmq.proto import queue_pb2 as pb

BUFFERED_UNTIL = 1 / 3
"""The part of its lease for which a message may wait in the client before it is given back, so that other consumers can take it."""


class LeaseOptions(NamedTuple):
    """The conditions under which messages are leased. Each combination has its own streams."""

    lease_ms: int = 0
    """0: the topic's."""
    tenants: tuple[str, ...] = ()
    """Subtrees. Empty: all."""


class LeasedMessage(msgspec.Struct, frozen=True):
    """A message with the right to settle it."""

    received: ReceivedMessage
    lease: Lease


class MessageOffice(LeaseOffice, Protocol):
    """Settles leases, and prepares for it."""

    def arrived_at(self) -> float:
        """Return the time of the event loop at which a message that is read now may have arrived: it waits while the loop is blocked."""
        ...

    def prepare(self, partition: QueuePartition) -> None:
        """Prepare for settlements of a partition, because messages of it have arrived."""
        ...


class _Parcel(msgspec.Struct, frozen=True):
    """A received message that is not decoded yet."""

    block: MessageBlock
    at: int
    lease: Lease
    received_at: float

    def is_stale(self, now: float) -> bool:
        """Return whether so much of the lease has passed that the message is given back. A blocked loop may have left nothing of it."""
        return now - self.received_at >= self.lease.lease_seconds * BUFFERED_UNTIL


class _Declined:
    """Settlements whose outcome nobody waits for: the leases end by themselves."""

    def __init__(self, ack: pb.PartitionAck) -> None:
        self.ack = ack
        self.trace_contexts: list[bytes] = []

    def on_result(self, result: pb.PartitionAckResult) -> None:
        """See `Shipment`."""
        if result.HasField("error"):
            error = error_from_detail(result.error)
            log.debug("messages_not_given_back partition=%d error_code=%s", result.partition, name_of(error))

    def on_lost(self, error: RaftMQError) -> None:
        """See `Shipment`."""
        log.debug("messages_not_given_back partition=%d error_code=%s", self.ack.partition, name_of(error))


class _Waiter:
    __slots__ = ("count", "future", "messages")

    def __init__(self, count: int, future: asyncio.Future[None]) -> None:
        self.count = count
        self.future = future
        self.messages: list[LeasedMessage] = []


class Intake:
    """The messages of one topic for one combination of options. One event loop."""

    def __init__(
        self,
        topic: Callable[[], TopicInfo | None],
        resolver: Resolver,
        office: MessageOffice,
        options: LeaseOptions,
        on_crash: Callable[[Intake, BaseException], None],
    ) -> None:
        self._topic = topic
        self._resolver = resolver
        self._office = office
        self._options = options
        self._on_crash = partial(on_crash, self)
        self._loop = asyncio.get_running_loop()
        self._links: dict[str, BrokerLink] = {}
        self._buffer: deque[_Parcel] = deque()
        self._waiters: deque[_Waiter] = deque()
        self._ahead = 0
        """Messages to hold ready beside those that somebody waits for."""
        self._update_handle: asyncio.Handle | None = None
        self._sweep_handle: asyncio.TimerHandle | None = None
        self._failure: BaseException | None = None
        self._is_closed = False

    @property
    def is_idle(self) -> bool:
        """Return whether nobody waits for messages, and none is buffered or being settled."""
        return not (self._waiters or self._ahead or self._buffer) and all(link.is_idle for link in self._links.values())

    # ------------------------------------------------------------------------------------------------------------ taking

    async def take(self, count: int, wait_seconds: float | None) -> list[LeasedMessage]:
        """Return up to `count` messages, as soon as there is one. Empty: there was none in time.

        If it is cancelled, messages that arrived for it go to the next consumer.
        """
        self._check()
        found = self._open(count) if not self._waiters else []
        if found:
            self._update_soon()
            return found
        waiter = _Waiter(min(count, settings.QUEUE_CREDIT_MAX), self._loop.create_future())
        self._waiters.append(waiter)
        self._update_soon()
        timer = None if wait_seconds is None else self._loop.call_later(wait_seconds, _end_wait, waiter.future)
        try:
            await waiter.future
        except BaseException:
            self._put_back(waiter)
            raise
        finally:
            if timer is not None:
                timer.cancel()
            if not waiter.messages:
                with contextlib.suppress(ValueError):  # `_hand_out` may have skipped it
                    self._waiters.remove(waiter)
                self._update_soon()
        if not waiter.messages:
            self._check()
        return waiter.messages

    def hold_ahead(self, change: int) -> None:
        """Change the number of messages to hold ready beside those that somebody waits for."""
        self._ahead += change
        self._update_soon()

    def fail(self, error: BaseException) -> None:
        """Wake everybody who waits, because nothing will arrive any more."""
        self._failure = self._failure or error
        self.end_waits()

    def end_waits(self) -> None:
        """Let everybody who waits look again, because the topic may not exist any more."""
        for waiter in self._waiters:
            _end_wait(waiter.future)

    def abandon(self, error: BaseException) -> None:
        """End after a defect: give back messages that nobody took, and wake everybody who waits."""
        self._cancel_timers()
        self.close()
        self._give_back_all()
        self.fail(error)

    def _check(self) -> None:
        self._resolver.check()
        if self._failure is not None:
            raise ClosedClientError(
                f"receiving stopped after an internal error ({type(self._failure).__name__}): try again, and report it"
            ) from self._failure
        if self._is_closed:
            raise ClosedClientError("the queue is closed: create a new one")

    def _put_back(self, waiter: _Waiter) -> None:
        """Give back messages whose taker was cancelled in the turn in which they arrived."""
        for message in waiter.messages:
            message.lease.give_back()

    # --------------------------------------------------------------------------------------------------------- receiving

    def on_messages(self, link: BrokerLink, partitions: Sequence[pb.LeasedMessages]) -> None:
        """Buffer messages, and hand them to those who wait."""
        for leased in partitions:
            if leased.HasField("error"):
                self._on_partition_error(leased)
            else:
                self._buffer_block(link, leased)
        if self._is_closed:
            self._give_back_all()
        self._hand_out()
        self._update_soon()

    def _on_partition_error(self, leased: pb.LeasedMessages) -> None:
        error = error_from_detail(leased.error)
        partition = self._partition(leased)
        if partition is not None and isinstance(error, NotLeaderError):
            self._resolver.on_not_leader(partition.group_id, error)
        log.debug("lease_refused partition=%d error_code=%s", leased.partition, name_of(error))

    def _buffer_block(self, link: BrokerLink, leased: pb.LeasedMessages) -> None:
        partition = self._partition(leased)
        try:
            block = unpack_block(leased.block)
        except BatchFormatError as error:  # damaged on the way: the messages come again after their leases
            log.error("message_block_damaged address=%s partition=%d reason=%s", link.address, leased.partition, error)
            link.break_off(ProtocolError(f"{link.address}: a block of messages is damaged: {error}"))
            return
        link.on_received(len(block.sequences), len(leased.block))
        if partition is None:
            self._decline(link, leased, block)
            return
        self._office.prepare(partition)
        now = self._office.arrived_at()
        remaining = block.lease_remaining_ms
        for at, (sequence, lease_number) in enumerate(zip(block.sequences, block.lease_numbers, strict=True)):
            seconds = remaining[at] / 1000 if remaining is not None else settings.LEASE_ASSUMED_SECONDS
            lease = Lease(self._office, partition, sequence, lease_number, seconds, self._options.lease_ms)
            self._buffer.append(_Parcel(block, at, lease, now))

    def _decline(self, link: BrokerLink, leased: pb.LeasedMessages, block: MessageBlock) -> None:
        """Give back messages of a partition that was added a moment ago, and that the topology does not show yet."""
        info = self._topic()
        if info is None or info.topic_id != leased.topic_id:
            return  # the topic was deleted
        partition = QueuePartition(leased.topic_id, leased.partition, 0)
        detail = pb.AckDetail(is_uncounted=True)
        settlements = [
            Settlement(Lease(self._office, partition, sequence, number, 0.0, 0), pb.RELEASE, detail)
            for sequence, number in zip(block.sequences, block.lease_numbers, strict=True)
        ]
        link.ship(_Declined(build_ack(partition, settlements)))

    def _partition(self, leased: pb.LeasedMessages) -> QueuePartition | None:
        info = self._topic()
        if info is None or info.topic_id != leased.topic_id or leased.partition >= info.partition_count:
            return None
        return QueuePartition(info.topic_id, leased.partition, info.group_ids[leased.partition])

    def _hand_out(self) -> None:
        while self._waiters and self._buffer:
            waiter = self._waiters[0]
            if not waiter.future.done():
                waiter.messages = self._open(waiter.count)
                if not waiter.messages:
                    break  # all were damaged or stale
                waiter.future.set_result(None)
            self._waiters.popleft()
        if self._buffer and self._sweep_handle is None:
            self._sweep_handle = self._loop.call_later(settings.QUEUE_SURPLUS_SECONDS, self._sweep)

    def _open(self, count: int) -> list[LeasedMessage]:
        """Decode and hand out up to `count` buffered messages. Damaged ones are rejected, and stale ones given back."""
        opened: list[LeasedMessage] = []
        now = self._loop.time()
        while self._buffer and len(opened) < count:
            parcel = self._buffer.popleft()
            if parcel.is_stale(now):
                parcel.lease.give_back()
                continue
            found, lease = decode_message(parcel.block, parcel.at), parcel.lease
            if isinstance(found, DamagedMessage):
                log.error("message_damaged partition=%d sequence=%d", lease.partition.partition, lease.sequence)
                self._office.settle((lease,), pb.REJECT, pb.AckDetail(error=cut_error(found.reason)))
                continue
            opened.append(LeasedMessage(found, lease))
        self._office.hold([leased.lease for leased in opened])
        return opened

    # ----------------------------------------------------------------------------------------------------------- surplus

    def _sweep(self) -> None:
        """Give back messages that nobody has asked for, and those that have waited here for too long."""
        self._sweep_handle = None
        now = self._loop.time()
        kept: deque[_Parcel] = deque()
        for parcel in self._buffer:
            is_surplus = len(kept) >= self._ahead and now - parcel.received_at >= settings.QUEUE_SURPLUS_SECONDS
            if is_surplus or parcel.is_stale(now):
                parcel.lease.give_back()
            else:
                kept.append(parcel)
        self._buffer = kept
        self._update_soon()
        if kept:
            self._sweep_handle = self._loop.call_later(settings.QUEUE_SURPLUS_SECONDS, self._sweep)

    def _give_back_all(self) -> None:
        buffer, self._buffer = self._buffer, deque()
        for parcel in buffer:
            parcel.lease.give_back()

    # ------------------------------------------------------------------------------------------------------------ credit

    def update(self) -> None:
        """Follow a change of the topology."""
        self._update_soon()

    def on_link_changed(self, link: BrokerLink) -> None:
        """Divide the credit again."""
        self._update_soon()

    def on_refused(self, error: RaftMQError) -> None:
        """Raise a broker's refusal where somebody waits."""
        for waiter in self._waiters:
            if not waiter.future.done():
                waiter.future.set_exception(fresh_copy(error))

    def link(self, address: str) -> BrokerLink | None:
        """Return the stream to a broker, or None if there is none."""
        return self._links.get(address)

    def link_anyway(self, address: str) -> BrokerLink:
        """Return the stream to a broker, which is created if there is none."""
        found = self._links.get(address)
        if found is None:
            found = self._links[address] = BrokerLink(address, self._resolver, self._make_open, self, self._on_crash)
        return found

    def links(self) -> list[BrokerLink]:
        """Return all streams."""
        return list(self._links.values())

    def _update_soon(self) -> None:
        """Divide the credit in the next turn of the event loop, when this one's other tasks have asked."""
        if self._update_handle is None and not self._is_closed:
            self._update_handle = self._loop.call_soon(self._update)

    def _update(self) -> None:
        self._update_handle = None
        wanted = sum(waiter.count for waiter in self._waiters) + self._ahead - len(self._buffer)
        wanted = min(wanted, settings.QUEUE_CREDIT_MAX)
        addresses = self._leader_addresses() if wanted > 0 or self._links else []
        if wanted > 0:
            for address in addresses:
                self.link_anyway(address)
        for address, link in list(self._links.items()):
            if address not in addresses:
                link.set_credit(0)
                if link.is_idle:
                    self._links.pop(address).close()
        leaders = [link for address, link in self._links.items() if address in addresses]
        for link, share in zip(leaders, split_credit(wanted, [link.ready for link in leaders]), strict=True):
            link.set_credit(share)

    def _leader_addresses(self) -> list[str]:
        info = self._topic()
        leaders = [] if info is None else map(self._resolver.leader, info.group_ids)
        return list(dict.fromkeys(self._resolver.address(leader) for leader in leaders if leader is not None))

    def _make_open(self) -> pb.QueueStreamOpen:
        info = self._topic()
        return pb.QueueStreamOpen(
            metadata_revision=self._resolver.metadata_revision,
            topic_id=info.topic_id if info is not None else 0,
            lease_ms=self._options.lease_ms,
            tenants=self._options.tenants,
        )

    # --------------------------------------------------------------------------------------------------------------- end

    async def leave(self, timeout_seconds: float) -> None:
        """Take no more messages, give back those that nobody took, and say goodbye to the leaders."""
        self._is_closed = True
        self._cancel_timers()
        self._give_back_all()
        for waiter in self._waiters:
            _end_wait(waiter.future)
        await asyncio.gather(*(link.leave(timeout_seconds) for link in self._links.values()))

    def _cancel_timers(self) -> None:
        for handle in (self._update_handle, self._sweep_handle):
            if handle is not None:
                handle.cancel()

    def close(self) -> None:
        """End the streams immediately."""
        self._is_closed = True
        for link in self._links.values():
            link.close()


def _end_wait(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
