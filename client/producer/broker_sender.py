"""Sends the batches of all partitions that one broker leads over one append stream, and passes the answers on.

While a request is unanswered, small batches gather (`settings.SMALL_REQUESTS_IN_FLIGHT_MAX`), and full ones are sent immediately. Must not
interpret answers: the dispatcher does. Invariant: every request in `_pending` is answered, or reported as lost, exactly once.

It has no task: a record would cost a turn of the event loop for each task that has to wake up. Everything here runs in callbacks of
the event loop and of the stream, and each of them reports its own defects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.client.base.metrics import ProducerCounters
from raftmq.client.base.tracing import active_tracing
from raftmq.client.connection.append_stream import AppendStream, SerializedAppend
from raftmq.client.connection.resolver import Resolver
from raftmq.client.producer.append_request import PartitionBatches, serialize_append
from raftmq.client.producer.partition_queue import AnyPartitionQueue, Attempt
from raftmq.errors import BrokenConnectionError, RaftMQError, UnreachableError
from raftmq.proto import queue_pb2 as pb
from raftmq.trace_context import join_contexts

SentPartition = tuple[AnyPartitionQueue, list[Attempt]]


def _trace_contexts(sent: list[SentPartition]) -> bytes:
    """Return the contexts of the spans that sent records of these batches."""
    return join_contexts(
        span.trace_context for _, attempts in sent for attempt in attempts for span in attempt.batch.spans
    )


class AnswerHandler(Protocol):
    """The recipient of a sender's reports."""

    def on_answer(self, sent: list[SentPartition], response: pb.AppendResponse, address: str) -> None:
        """Handle the answer of the broker at `address` to a request."""

    def on_lost(self, sent: list[SentPartition], error: RaftMQError) -> None:
        """Handle a request that will not be answered."""

    def reschedule(self, queue: AnyPartitionQueue) -> None:
        """Handle a queue whose leader is no longer this broker."""


@dataclass(frozen=True, slots=True)
class _Request:
    sent: list[SentPartition]
    payload_bytes: int
    sent_at: float

    def is_expired(self, now: float) -> bool:
        """Return whether the delivery timeout of a batch has passed."""
        return any(attempt.batch.deadline <= now for _, attempts in self.sent for attempt in attempts)


class BrokerSender:
    """The append stream to one broker. It lives as long as the producer and reopens the stream when it breaks."""

    def __init__(
        self,
        address: str,
        resolver: Resolver,
        handler: AnswerHandler,
        *,
        codec: int,
        request_timeout_seconds: float,
        counters: ProducerCounters,
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self.address = address
        self._resolver = resolver
        self._handler = handler
        self._codec = codec
        self._request_timeout_seconds = request_timeout_seconds
        self._counters = counters
        self._on_crash = on_crash
        self._is_traced = active_tracing() is not None
        self._loop = asyncio.get_running_loop()
        self._queues: dict[AnyPartitionQueue, None] = {}
        self._pending: dict[int, _Request] = {}
        self.bytes_in_flight = 0
        """Bytes of unanswered requests (written here only)."""
        self._last_correlation_id = 0
        self._stream: AppendStream | None = None
        self._is_writable = True
        """The stream takes another request, or there is no stream and one may be opened. False for good after `drop`."""
        self._flush_handle: asyncio.Handle | None = None
        """The next look at the queues, or None while nothing is due."""
        self._backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, resolver.rng)
        self._not_before = 0.0
        self._gather_timer: asyncio.TimerHandle | None = None
        """Runs until a small batch may be sent, or None. Its time is not asked for: on uvloop not every handle knows it."""

    def schedule(self, queue: AnyPartitionQueue) -> None:
        """Look at the queue in the next pass of the loop."""
        queue.is_scheduled = True
        self._queues[queue] = None
        self._flush_soon()

    @property
    def requests_in_flight(self) -> int:
        """Return the number of unanswered requests."""
        return len(self._pending)

    def drop(self) -> None:
        """Abandon the stream permanently. Unanswered requests are reported as lost."""
        self._drop_stream(BrokenConnectionError(f"{self.address}: the producer was closed"))
        self._is_writable = False
        for handle in (self._gather_timer, self._flush_handle):
            if handle is not None:
                handle.cancel()

    def check_late(self, now: float) -> None:
        """Mark the broker as suspect when an answer is late. Abandon the stream when it is later than the request timeout.

        Abandon it, too, when a batch expires before a connection is open. So a batch that never left this process is known not to be written.
        """
        oldest = next(iter(self._pending.values()), None)
        if oldest is None:
            return
        waited = now - oldest.sent_at
        if waited > settings.LATE_ANSWER_SECONDS:
            self._resolver.mark_suspect(self.address)
        is_too_late = waited > self._request_timeout_seconds + settings.CLOSE_GRACE_SECONDS
        if self._stream is not None and self._stream.is_opening():
            if is_too_late or oldest.is_expired(now):
                self._drop_stream(UnreachableError(f"{self.address}: no connection in {waited:.1f} s"))
        elif is_too_late:
            self._drop_stream(BrokenConnectionError(f"{self.address}: no answer in {waited:.1f} s"))

    # ---------------------------------------------------------------------------------------------------------- writing

    def _flush_soon(self) -> None:
        """Write in the next turn of the event loop, when this one's other callbacks and tasks have added their records."""
        if self._flush_handle is None and self._is_writable:
            self._flush_handle = self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_handle = None
        try:
            self._write_requests()
        except Exception as error:  # noqa: BLE001 -- the root of a callback
            self._on_crash(error)

    def _write_requests(self) -> None:
        while self._is_writable and self._queues and self.bytes_in_flight < settings.BROKER_BYTES_IN_FLIGHT_MAX:
            now = self._loop.time()
            if now < self._not_before:
                if self._flush_handle is None:
                    self._flush_handle = self._loop.call_at(self._not_before, self._flush)
                return
            request = self._build_request(now)
            if request is None:
                return
            self._write(request)

    def _write(self, request: SerializedAppend) -> None:
        if self._stream is not None and len(self._pending) == 1 and self._stream.is_outdated():
            self._stream.cancel()  # nothing but this request is under way, so that the order cannot suffer
            self._stream = None
        if self._stream is None:
            try:
                connection = self._resolver.connection(self.address)
                self._stream = connection.append_stream(self._on_response, self._drop_stream, self._on_writable)
            except RaftMQError as error:
                self._drop_stream(error)
                return
            log.debug("append_stream_opened address=%s", self.address)
        self._is_writable = self._stream.write(request)

    def _on_writable(self) -> None:
        self._is_writable = True
        self._flush()

    def _build_request(self, now: float) -> SerializedAppend | None:
        may_send_small = self._may_send_small(now)
        room = settings.REQUEST_BYTES_MAX
        sent: list[SentPartition] = []
        for queue in list(self._queues):
            leader = self._resolver.leader(queue.group_id)
            if leader is None or self._resolver.address(leader) != self.address:
                self._remove(queue)
                self._handler.reschedule(queue)
                continue
            attempts = queue.take(now, room, self._codec, may_send_small=may_send_small, is_first=not sent)
            if attempts:
                sent.append((queue, attempts))
                queue.sent_to = leader
                room -= sum(attempt.batch.sealed_bytes for attempt in attempts)
            self._settle(queue, now)
            if room <= 0 or len(sent) == settings.REQUEST_PARTITIONS_MAX:
                break
        return self._frame(sent, settings.REQUEST_BYTES_MAX - room, now) if sent else None

    def _may_send_small(self, now: float) -> bool:
        """Return whether an unfilled batch may be sent now. If not, it gathers more records until an answer arrives."""
        # The comparison uses the same sum as the timer. Otherwise rounding would make a due request look fresh and set the timer again.
        fresh = [r.sent_at for r in self._pending.values() if now < r.sent_at + settings.GATHER_SECONDS_MAX]
        if len(fresh) < settings.SMALL_REQUESTS_IN_FLIGHT_MAX:
            return True
        if self._gather_timer is None:
            self._gather_timer = self._loop.call_at(fresh[0] + settings.GATHER_SECONDS_MAX, self._on_gathered)
        return False

    def _on_gathered(self) -> None:
        self._gather_timer = None  # a loop may call it a moment early, and then it is set again
        self._flush_soon()

    def _settle(self, queue: AnyPartitionQueue, now: float) -> None:
        """Keep the queue on the list, at its end, or remove it if an answer or a timer will schedule it again."""
        del self._queues[queue]
        if now < queue.not_before:
            self._come_back(queue, queue.not_before)
        elif queue.ready and len(queue.pipeline) < settings.BATCHES_IN_FLIGHT_MAX and not queue.is_broken:
            self._queues[queue] = None  # the request was full
        elif queue.pipeline and not queue.has_unanswered:
            self._queues[queue] = None  # the request had no room for a batch that is repeated
        elif queue.open is not None and not queue.is_flushing and now < queue.open.linger_until:
            self._come_back(queue, queue.open.linger_until)
        elif queue.open is not None and not queue.has_unanswered:
            self._queues[queue] = None  # an unfilled batch that must wait for this broker's answers
        else:
            queue.is_scheduled = False  # idle, or its own answers schedule it again

    def _come_back(self, queue: AnyPartitionQueue, when: float) -> None:
        queue.is_scheduled = True  # by the timer
        self._loop.call_at(when, self._on_timer, queue)

    def _on_timer(self, queue: AnyPartitionQueue) -> None:
        queue.is_scheduled = False
        self._handler.reschedule(queue)

    def _remove(self, queue: AnyPartitionQueue) -> None:
        del self._queues[queue]
        queue.is_scheduled = False

    def _frame(self, sent: list[SentPartition], payload_bytes: int, now: float) -> SerializedAppend:
        self._last_correlation_id += 1
        self._counters.retries_total += sum(attempt.number > 1 for _, attempts in sent for attempt in attempts)
        timeout_ms = max(1, int(self._request_timeout_seconds * 1000))
        body = serialize_append(
            self._last_correlation_id,
            self._resolver.metadata_revision,
            timeout_ms,
            [
                PartitionBatches(queue.topic_id, queue.partition, [attempt.batch.sealed for attempt in attempts])
                for queue, attempts in sent
            ],
            _trace_contexts(sent) if self._is_traced else b"",
        )
        self._pending[self._last_correlation_id] = _Request(sent, payload_bytes, now)
        self.bytes_in_flight += payload_bytes
        return SerializedAppend(self._last_correlation_id, timeout_ms, body)

    # ---------------------------------------------------------------------------------------------------------- reading

    def _on_response(self, response: pb.AppendResponse) -> None:
        request = self._pending.pop(response.correlation_id, None)
        if request is None:
            return
        self.bytes_in_flight -= request.payload_bytes
        self._backoff.reset()
        self._counters.requests.observe(self._loop.time() - request.sent_at)
        try:
            self._handler.on_answer(request.sent, response, self.address)
        except Exception as error:  # noqa: BLE001 -- the root of a callback
            self._on_crash(error)
        if self._queues:
            self._flush_soon()

    def _drop_stream(self, error: RaftMQError) -> None:
        """Abandon the stream, or the attempt to open one, and report its requests as lost."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.cancel()
            log.debug("append_stream_ended address=%s error_code=%s", self.address, name_of(error))
        self._is_writable = True
        lost, self._pending = list(self._pending.values()), {}
        self.bytes_in_flight = 0
        self._not_before = self._loop.time() + self._backoff.next_seconds()
        self._resolver.mark_suspect(self.address)
        try:
            for request in lost:
                self._handler.on_lost(request.sent, error)
        except Exception as defect:  # noqa: BLE001 -- the root of a callback
            self._on_crash(defect)
        if self._queues:
            self._flush_soon()
