"""The stream to one broker: credit and settlements out, messages and results in. It reopens when it breaks.

Must not decide how much credit a broker gets, or which settlement is sent when. Invariant: every shipment is answered, or reported as lost,
exactly once. It has no task: everything runs in callbacks of the event loop and of the stream, and each of them reports its own defects.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff
from raftmq.client.base.error_details import error_from_detail, name_of
from raftmq.client.base.logs import log
from raftmq.client.base.tracing import active_tracing
from raftmq.client.connection.queue_stream import QueueStream
from raftmq.client.connection.resolver import Resolver
from raftmq.errors import BrokenConnectionError, Outcome, ProtocolError, RaftMQError
from raftmq.proto import queue_pb2 as pb
from raftmq.trace_context import join_contexts


class Shipment(Protocol):
    """Settlements of one partition, sent together."""

    @property
    def ack(self) -> pb.PartitionAck:
        """Return the request."""
        ...

    @property
    def trace_contexts(self) -> list[bytes]:
        """Return the contexts of the spans that settle."""
        ...

    def on_result(self, result: pb.PartitionAckResult) -> None:
        """Handle the broker's answer."""
        ...

    def on_lost(self, error: RaftMQError) -> None:
        """Handle the end of the stream before an answer: the settlements may have been applied."""
        ...


class Recipient(Protocol):
    """The owner of a link."""

    def on_messages(self, link: BrokerLink, partitions: Sequence[pb.LeasedMessages]) -> None:
        """Handle messages that the broker leased within the link's credit."""

    def on_link_changed(self, link: BrokerLink) -> None:
        """Handle another number of ready messages, or a stream that must be opened again."""

    def on_refused(self, error: RaftMQError) -> None:
        """Handle a refusal that no repetition can cure."""


class _Sent(NamedTuple):
    shipments: list[Shipment]
    sent_at: float


class BrokerLink:
    """The stream to the broker at `address`, for one combination of lease time and tenants."""

    def __init__(
        self,
        address: str,
        resolver: Resolver,
        make_open: Callable[[], pb.QueueStreamOpen],
        recipient: Recipient,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self.address = address
        self.ready = 0
        """Messages that wait at the broker beyond the credit, as it reported last."""
        self._resolver = resolver
        self._make_open = make_open
        self._recipient = recipient
        self._on_crash = on_crash
        self._is_traced = active_tracing() is not None
        self._loop = asyncio.get_running_loop()
        self._stream: QueueStream | None = None
        self._is_writable = True
        self._is_leaving = False
        self._is_closed = False
        self._ended = asyncio.Event()
        """Set when the stream ends after the goodbye."""
        self._wanted = 0
        """The credit that the broker is to have."""
        self._granted = 0
        """The part of the credit in the last request that was not used yet."""
        self._received = 0
        """Messages that arrived on this stream."""
        self._received_bytes = 0
        """Bytes of their blocks."""
        self._bytes_left = 0
        """The bytes of credit in the last request that were not used yet."""
        self._waiting: list[Shipment] = []
        self._sent: dict[int, _Sent] = {}
        self._last_correlation_id = 0
        self._flush_handle: asyncio.Handle | None = None
        self._backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, resolver.rng)
        self._reopen_at = 0.0

    # ------------------------------------------------------------------------------------------------------------ asking

    @property
    def is_idle(self) -> bool:
        """Return whether it has no credit and no unanswered settlement."""
        return not (self._wanted or self._waiting or self._sent)

    def set_credit(self, wanted: int) -> None:
        """Set the number of messages that the broker may send from now on."""
        self._wanted = wanted
        if self._is_credit_due:
            self._flush_soon()

    @property
    def _is_credit_due(self) -> bool:
        """Return whether the broker must hear of its credit: it has another one, or few bytes of it are left."""
        is_short = self._wanted > 0 and self._bytes_left < settings.QUEUE_CREDIT_BYTES // 2
        return is_short or self._wanted != self._granted

    def ship(self, shipment: Shipment) -> None:
        """Send settlements. They are answered or reported as lost later, never from here."""
        self._waiting.append(shipment)
        self._flush_soon()

    def check_late(self, now: float, patience_seconds: float) -> None:
        """Mark the broker as suspect when an answer is late, and give the stream up when others lead, or the caller's patience is over."""
        oldest = next(iter(self._sent.values()), None)
        if oldest is None:
            return
        waited = now - oldest.sent_at
        if waited > settings.LATE_ANSWER_SECONDS:
            self._resolver.mark_suspect(self.address)
        if waited > patience_seconds or (waited > settings.LATE_ANSWER_SECONDS and not self._leads(oldest.shipments)):
            self._on_end(BrokenConnectionError(f"{self.address}: no answer in {waited:.1f} s"))

    def _leads(self, shipments: Iterable[Shipment]) -> bool:
        """Return whether no other broker is known to lead these partitions. One that leads no more may be frozen, and never answer."""
        leaders = (self._resolver.leader(shipment.ack.group_id) for shipment in shipments if shipment.ack.group_id)
        return all(leader is None or self._resolver.address(leader) == self.address for leader in leaders)

    def break_off(self, error: RaftMQError) -> None:
        """Open the stream again, because both sides may count its messages differently from now on."""
        self._on_end(error)

    async def leave(self, timeout_seconds: float) -> None:
        """Say goodbye, and wait until the broker has ended the stream: it then sends no more messages."""
        self._wanted = 0
        self._is_leaving = True
        if self._stream is not None:
            self._granted = -1  # makes it write
            self._flush_soon()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_seconds):
                    await self._ended.wait()

    def close(self) -> None:
        """End the stream immediately. Unanswered settlements are reported as lost."""
        self._is_closed = True
        if self._flush_handle is not None:
            self._flush_handle.cancel()
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
        self._lose_all(BrokenConnectionError(f"{self.address}: the stream was closed"))

    # ----------------------------------------------------------------------------------------------------------- writing

    def _flush_soon(self) -> None:
        """Write in the next turn of the event loop, when this one's other callbacks and tasks have added theirs."""
        if self._flush_handle is None and self._is_writable and not self._is_closed:
            now = self._loop.time()
            if now < self._reopen_at:
                self._flush_handle = self._loop.call_at(self._reopen_at, self._flush)
            else:
                self._flush_handle = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_handle = None
        try:
            if self._waiting or self._is_credit_due:
                self._write()
            while self._waiting and self._is_writable and self._stream is not None:
                self._write()
        except Exception as error:  # noqa: BLE001 -- the root of a callback
            self._on_crash(error)

    def _write(self) -> None:
        shipments = self._next_shipments()
        bytes_left = settings.QUEUE_CREDIT_BYTES if self._wanted else 0
        request = pb.QueueStreamRequest(
            messages_limit=self._received + self._wanted,
            bytes_limit=self._received_bytes + bytes_left,
            goodbye=self._is_leaving and len(shipments) == len(self._waiting),
        )
        if self._stream is None:
            request.open.CopyFrom(self._make_open())
            try:
                connection = self._resolver.connection(self.address)
                self._stream = connection.queue_stream(self._on_response, self._on_end, self._on_writable)
            except RaftMQError as error:
                self._on_end(error)
                return
            log.debug("queue_stream_opened address=%s", self.address)
        if len(shipments) == len(self._waiting):
            self._waiting = []
        else:
            self._waiting = [shipment for shipment in self._waiting if shipment not in shipments]
        if shipments:
            self._last_correlation_id += 1
            request.correlation_id = self._last_correlation_id
            request.acks.extend(shipment.ack for shipment in shipments)
            if self._is_traced:
                request.trace_contexts = join_contexts(one for shipment in shipments for one in shipment.trace_contexts)
            self._sent[self._last_correlation_id] = _Sent(shipments, self._loop.time())
        self._granted, self._bytes_left = self._wanted, bytes_left
        self._is_writable = self._stream.write(request)

    def _next_shipments(self) -> list[Shipment]:
        """Return the shipments of the next request, at most one for each partition: the answer names partitions."""
        first: dict[tuple[int, int], Shipment] = {}
        for shipment in self._waiting:
            first.setdefault((shipment.ack.topic_id, shipment.ack.partition), shipment)
        return list(first.values())

    def _on_writable(self) -> None:
        self._is_writable = True
        if self._flush_handle is None:
            self._flush()

    # ----------------------------------------------------------------------------------------------------------- reading

    def _on_response(self, response: pb.QueueStreamResponse) -> None:
        try:
            if response.HasField("error"):
                self._on_end(error_from_detail(response.error))
                return
            self._backoff.reset()
            if response.correlation_id:
                self._on_results(response)
            if response.messages:
                self._recipient.on_messages(self, response.messages)
            if response.ready != self.ready:
                self.ready = response.ready
                self._recipient.on_link_changed(self)
        except Exception as error:  # noqa: BLE001 -- the root of a callback
            self._on_crash(error)

    def on_received(self, count: int, block_bytes: int) -> None:
        """Subtract received messages from the credit that the broker has left."""
        self._received += count
        self._received_bytes += block_bytes
        self._granted = max(0, self._granted - count)
        self._bytes_left -= block_bytes

    def _on_results(self, response: pb.QueueStreamResponse) -> None:
        sent = self._sent.pop(response.correlation_id, None)
        if sent is None:
            return
        results = {(result.topic_id, result.partition): result for result in response.results}
        for shipment in sent.shipments:
            result = results.get((shipment.ack.topic_id, shipment.ack.partition))
            if result is None:
                shipment.on_lost(ProtocolError(f"{self.address}: the broker did not answer for every partition"))
            else:
                shipment.on_result(result)

    def _on_end(self, error: RaftMQError) -> None:
        """Give the stream up, or the attempt to open one. It is opened again when it is needed."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
            log.debug("queue_stream_ended address=%s error_code=%s", self.address, name_of(error))
        if self._is_leaving:
            self._ended.set()
        self._is_writable = True
        self._granted = self._received = self._received_bytes = self.ready = 0
        self._reopen_at = self._loop.time() + max(self._backoff.next_seconds(), error.retry_after_ms / 1000)
        self._resolver.mark_suspect(self.address)
        try:
            self._lose_all(error)
            if not error.retriable and error.outcome is Outcome.NOT_APPLIED:
                self._recipient.on_refused(error)
            self._recipient.on_link_changed(self)
        except Exception as defect:  # noqa: BLE001 -- the root of a callback
            self._on_crash(defect)
        if self._wanted or self._waiting:
            self._flush_soon()

    def _lose_all(self, error: RaftMQError) -> None:
        lost = [shipment for sent in self._sent.values() for shipment in sent.shipments] + self._waiting
        self._sent, self._waiting = {}, []
        for shipment in lost:
            shipment.on_lost(error)
