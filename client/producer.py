"""`Producer`: takes records, gathers them into batches, and sees each batch through to its outcome.

Must not know gRPC (that is the transport's part) or who leads what (the resolver's). Invariants: a batch's outcome is reported
once; a batch whose outcome is unknown is only ever repeated under the same sequence; buffered bytes never exceed `buffer_memory`.

Source: KIP-98 (idempotent producer), KIP-360 (epoch bump by the client), KIP-480 and KIP-794 (sticky partitions).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Literal, Self

from raftmq.client import settings
from raftmq.client.accumulator import Accumulator, TopicState
from raftmq.client.background import Backoff, cancel_and_wait, spawn
from raftmq.client.batch_codec import CODECS
from raftmq.client.byte_budget import ByteBudget
from raftmq.client.error_details import error_from_detail
from raftmq.client.fork_guard import check_not_forked, current_generation
from raftmq.client.node_sender import NodeSender, SentPartition
from raftmq.client.partition_queue import Attempt, PartitionQueue
from raftmq.client.partitioner import PARTITIONERS, Partitioner, PartitionerName
from raftmq.client.producer_batch import BulkDelivery, Delivery, ProducerBatch
from raftmq.client.record_checks import Serializer, check_headers, check_pairs, to_bytes
from raftmq.client.resolver import Resolver
from raftmq.client.transport import INIT_PRODUCER, GrpcTransport, Transport
from raftmq.errors import (
    BufferFullError,
    ClosedClientError,
    ClosedInFlightError,
    DeliveryExpiredError,
    DeliveryTimeoutError,
    InvalidArgumentError,
    NotLeaderError,
    Outcome,
    OutOfOrderSequenceError,
    ProtocolError,
    RaftMQError,
    RecordTooLargeError,
    UnknownPartitionError,
    UnknownProducerError,
    UnknownTopicError,
    UnsupportedCompressionError,
)
from raftmq.proto import queue_pb2 as pb
from raftmq.types import RecordMetadata

CompressionType = Literal["lz4", "zstd", "snappy"]


class Producer:
    """Writes records to topics, from one event loop.

    ::

        async with Producer(bootstrap_servers="localhost:9400") as producer:
            delivery = await producer.send("flights", value=b"...", key=b"N14228")
            metadata = await delivery                     # on disk on a majority of the replicas
            await producer.send_many("flights", pairs)    # the fast way: (key, value) pairs

    Order: records of one partition are written in the order in which they were sent (without idempotence, only while nothing is
    retried). Each record is written once, across retries, reconnects and leader changes, while `enable_idempotence` is on.

    When a batch is given up (delivery timeout), the partition's sequence of records has a hole that the brokers would refuse to
    continue after; the producer then goes on under its next epoch, which also fences copies of the old batch still travelling.
    So a `DeliveryTimeoutError` means just its own records: they may be written, once, and later records are not affected.

    Args:
        bootstrap_servers: ``"host:port[,host:port...]"`` or a sequence; any of the cluster's brokers.
        client_id: a name for logs.
        linger_ms: how long an unfilled batch waits for more records. 0, the default, is right for almost everyone: records of
            one pass of the event loop travel together, and while a request is under way the next records gather, so batches
            grow by themselves when there is much to send and nothing waits when there is little.
        max_batch_size: bytes of records in a batch, before compression. The default, 512 KiB, is 5,000 records of 100 bytes: the
            cost of a batch (request, log entry, fsync) is then below 100 ns a record, and five of them fill a request.
        compression_type: None, ``"lz4"``, ``"zstd"`` or ``"snappy"``.
        enable_idempotence: write each record once.
        buffer_memory: bytes of records that are taken and not yet acknowledged; `send` waits when it is used up.
        max_block_ms: how long `send` waits for buffer space, or for the topic to be found.
        delivery_timeout_ms: from taking a record to giving up on it.
        request_timeout_ms: how long a broker may take for one request before it is repeated.
        partitioner: ``"crc32"`` (librdkafka's ``consistent_random``: C speed, the default), ``"murmur2"`` (the Java client's)
            or a function of (key, number of partitions). Records without a key stay on one partition for 64 KiB or 250 ms, then move on.
        key_serializer: turns a key into bytes; keys must be bytes without one.
        value_serializer: the same for values.
        transport: replaces gRPC, for simulations.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9400",
        client_id: str = "raftmq",
        linger_ms: float = 0,
        max_batch_size: int = 512 * settings.KIB,
        compression_type: CompressionType | None = None,
        enable_idempotence: bool = True,
        buffer_memory: int = 64 * settings.MIB,
        max_block_ms: float = 60_000,
        delivery_timeout_ms: float = 120_000,
        request_timeout_ms: float = 10_000,
        partitioner: PartitionerName | Partitioner = "crc32",
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        transport: Transport | None = None,
    ) -> None:
        if compression_type not in CODECS:
            raise UnsupportedCompressionError(f"compression_type {compression_type!r}: use lz4, zstd, snappy or None")
        if not 1024 <= max_batch_size <= settings.REQUEST_BYTES_MAX - settings.MIB:
            raise InvalidArgumentError(f"max_batch_size must be 1 KiB to 2.5 MiB, not {max_batch_size}")
        if buffer_memory < settings.BULK_CHUNK_BYTES:
            raise InvalidArgumentError(f"buffer_memory must be at least {settings.BULK_CHUNK_BYTES} bytes")
        if linger_ms < 0 or max_block_ms < 0 or delivery_timeout_ms <= 0 or request_timeout_ms <= 0:
            raise InvalidArgumentError("times must not be negative, timeouts not zero")
        if isinstance(partitioner, str) and partitioner not in PARTITIONERS:
            raise InvalidArgumentError(f"partitioner {partitioner!r}: use crc32, murmur2 or a function")
        self.client_id = client_id
        self._codec = CODECS[compression_type]
        self._is_idempotent = enable_idempotence
        self._max_block_seconds = max_block_ms / 1000
        self._delivery_timeout_seconds = delivery_timeout_ms / 1000
        self._request_timeout_seconds = request_timeout_ms / 1000
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._resolver = Resolver(bootstrap_servers, transport or GrpcTransport())
        self._budget = ByteBudget(buffer_memory)
        self._source = random.Random()
        self._accumulator = Accumulator(
            batch_bytes_max=max_batch_size,
            codec=self._codec,
            linger_seconds=linger_ms / 1000,
            delivery_timeout_seconds=self._delivery_timeout_seconds,
            partitioner=PARTITIONERS[partitioner] if isinstance(partitioner, str) else partitioner,
            source=self._source,
            has_leader=lambda group_id: self._resolver.leader(group_id) is not None,
            on_active=self._on_active,
            on_ready=self.reschedule,
        )
        self._generation = current_generation()
        self._active: dict[PartitionQueue, None] = {}  # those with anything outstanding
        self._senders: dict[str, NodeSender] = {}
        self._leaderless: set[PartitionQueue] = set()
        self._unobserved_error: ProducerBatch | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._tick_needed = asyncio.Event()
        self._close_lock = asyncio.Lock()
        self._is_open = False
        self._is_closed = False
        self._failure: BaseException | None = None

    # -------------------------------------------------------------------------------------------------------- lifecycle

    async def start(self) -> None:
        """Connect: wait for the topology and, with idempotence, a producer id. ``async with`` calls it.

        Waits up to `max_block_ms`. Cancelled or failed, the producer is closed.

        Raises:
            BootstrapError: no bootstrap address answered in time.
            RaftMQError: no producer id could be had. Nothing was written in any case.
        """
        check_not_forked(self._generation, "producer")
        if self._is_closed or self._is_open:
            raise ClosedClientError("a producer is started once; make a new one")
        try:
            await self._resolver.start(self._max_block_seconds)
            if self._is_idempotent:
                request = pb.InitProducerRequest(metadata_revision=self._resolver.metadata_revision)
                # Asking twice only wastes an id, so an unknown outcome is no reason to give up.
                answer = await self._resolver.call_any(INIT_PRODUCER, request, self._max_block_seconds, is_read=True)
                self._accumulator.producer_id = answer.producer_id
                self._accumulator.producer_epoch = answer.epoch
        except BaseException:
            self._is_closed = True
            await self._resolver.close()
            raise
        self._resolver.subscribe(self._on_topology)
        self._ticker = spawn(self._tick_forever(), "raftmq-producer-clock", self._on_crash)
        self._is_open = True

    async def close(self) -> None:
        """Flush, then close. Calling it again does nothing.

        Waits until everything sent has an outcome, at most `delivery_timeout_ms`. If cancelled it closes at once: what was under
        way fails with `ClosedInFlightError` (outcome unknown), the rest with `ClosedClientError` (not applied).

        Raises:
            RaftMQError: as `flush`; the producer is closed all the same.
        """
        check_not_forked(self._generation, "producer")
        async with self._close_lock:
            if self._is_closed:
                return
            was_open, self._is_open = self._is_open, False
            try:
                if was_open and self._failure is None:
                    await self._flush()
            finally:
                self._is_closed = True
                await self._tear_down()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
            return
        try:
            await self.close()
        except RaftMQError as close_error:
            error.add_note(f"and closing the producer failed: {close_error!r}")

    # ----------------------------------------------------------------------------------------------------------- sending

    async def send(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> Delivery:
        """Take one record, and wait for buffer space only.

        Args:
            topic: where to.
            value: bytes (or what `value_serializer` takes); None is a tombstone.
            key: the same for keys; None: no key.
            partition: overrides the partitioner.
            timestamp_ms: milliseconds since the epoch; default now.
            headers: pairs of name and bytes.

        Returns:
            A `Delivery`. Awaiting it gives the `RecordMetadata` once the record is on disk on a majority, or raises:
            `DeliveryTimeoutError` or `ClosedInFlightError` (may be written), `DeliveryExpiredError`, `RecordTooLargeError` or
            another `RaftMQError` (see its `outcome`). Whoever does not await it learns of a failure from `flush` or `close`.

        Raises (the record was not taken):
            UnknownTopicError, UnknownPartitionError: there is none.
            RecordTooLargeError: above 1 MiB.
            BufferFullError: no space within `max_block_ms`.
            ClosedClientError, ForkedClientError: the producer cannot be used.
            TypeError: key, value or headers are of wrong types.

        Cancelling while it waits takes nothing.
        """
        self._check_usable()
        value_bytes = to_bytes(value, self._value_serializer, "value")
        key_bytes = to_bytes(key, self._key_serializer, "key")
        header_pairs, header_bytes = check_headers(headers) if headers else ((), 0)
        size = (
            (len(value_bytes) if value_bytes is not None else 0)
            + (len(key_bytes) if key_bytes is not None else 0)
            + header_bytes
            + settings.RECORD_OVERHEAD_BYTES
        )
        if size > settings.RECORD_BYTES_MAX:
            raise RecordTooLargeError(f"a record of {size} bytes; at most {settings.RECORD_BYTES_MAX} are allowed")
        state = await self._topic(topic)
        if not self._budget.try_acquire(size):
            await self._acquire(size)
        try:
            if state.info is not self._resolver.topics.get(topic):  # it changed while we waited
                state = await self._topic(topic)
            return self._accumulator.add(state, value_bytes, key_bytes, partition, timestamp_ms, header_pairs, size)
        except BaseException:
            self._budget.release(size)
            raise

    async def send_and_wait(
        self,
        topic: str,
        value: object = None,
        key: object = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> RecordMetadata:
        """`send`, then wait for the acknowledgement. Raises what both raise; cancelled while waiting, the record may be written."""
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def send_many(
        self,
        topic: str,
        records: Iterable[tuple[object, object]],
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> BulkDelivery:
        """Take many records as (key, value) pairs: the fast way, without an object per record.

        Waits for buffer space as it goes, so the iterable may be endless in size; it is read in pieces of about 128 KiB.
        Records get the time of being taken, to within the life of their batch.

        Returns:
            When all are taken: a `BulkDelivery`. Awaiting it gives the `AppendedSpan`s (partition, base offset, number of records)
            or raises the first failure, as `Delivery` does.

        Raises:
            What `send` raises. Records of pieces taken before stay taken and will be written; the same holds when cancelled or
            when the iterable raises.
        """
        self._check_usable()
        await self._topic(topic)
        delivery = BulkDelivery()
        source: Iterator[tuple[object, object]] = iter(records)
        piece_records = 64
        while pairs := list(islice(source, piece_records)):
            keys, values, size = check_pairs(pairs, self._key_serializer, self._value_serializer)
            piece_bytes = size + settings.RECORD_OVERHEAD_BYTES * len(pairs)
            if not self._budget.try_acquire(piece_bytes):
                await self._acquire(piece_bytes)
            try:
                self._check_usable()
                state = await self._topic(topic)
                has_filled = self._accumulator.add_many(
                    state, keys, values, piece_bytes, partition, timestamp_ms, delivery
                )
            except BaseException:
                self._budget.release(piece_bytes)
                raise
            average = max(1, piece_bytes // len(pairs))
            piece_records = max(1, min(settings.BULK_CHUNK_RECORDS_MAX, settings.BULK_CHUNK_BYTES // average))
            if has_filled:
                await asyncio.sleep(0)  # let the senders have it while we prepare the next
        return delivery

    async def flush(self) -> None:
        """Send everything taken so far without lingering, and wait for every outcome, at most `delivery_timeout_ms`.

        Raises:
            RaftMQError: the first failure of a batch that nobody awaited, once; see its `outcome`.

        Cancelling stops the waiting only.
        """
        self._check_usable()
        await self._flush()

    # ------------------------------------------------------------------------------------------------- taking records in

    def _check_usable(self) -> None:
        check_not_forked(self._generation, "producer")
        if not self._is_open:
            raise ClosedClientError("the producer is closed" if self._is_closed else "the producer is not started")
        if self._failure is not None:
            raise ClosedClientError("the producer stopped after an internal error") from self._failure

    async def _topic(self, name: str) -> TopicState:
        """The topic's queues; waits only for one that is not in the topology yet."""
        info = self._resolver.topics.get(name)
        if info is None:
            info = await self._resolver.topic(name, self._max_block_seconds)
            self._check_usable()
        return self._accumulator.topic(info)

    async def _acquire(self, size: int) -> None:
        try:
            async with asyncio.timeout(self._max_block_seconds):
                await self._budget.acquire(size)
        except TimeoutError:
            raise BufferFullError(
                f"no {size} bytes free in the buffer of {self._budget.bytes_max} within {self._max_block_seconds:g} s"
            ) from None
        if not self._is_open:
            self._budget.release(size)
            self._check_usable()

    # -------------------------------------------------------------------------------------------------------- scheduling

    def _on_active(self, queue: PartitionQueue) -> None:
        self._active[queue] = None
        self._tick_needed.set()

    def reschedule(self, queue: PartitionQueue) -> None:
        """Put the queue on the list of whoever leads its partition now."""
        leader = self._resolver.leader(queue.group_id)
        if leader is None or self._is_closed:
            self._leaderless.add(queue)
            queue.is_scheduled = True  # the next change of the topology brings it back
            return
        address = self._resolver.node_connection(leader.node_id).address
        sender = self._senders.get(address)
        if sender is None:
            sender = self._senders[address] = NodeSender(
                address,
                self._resolver,
                self,
                codec=self._codec,
                request_timeout_seconds=self._request_timeout_seconds,
                on_crash=self._on_crash,
            )
        sender.schedule(queue)

    def _on_topology(self) -> None:
        if self._is_closed:
            return
        leaderless, self._leaderless = self._leaderless, set()
        for queue in leaderless:
            queue.is_scheduled = False
            self.reschedule(queue)
        for queue in list(self._active):
            leader = self._resolver.leader(queue.group_id)
            if leader is not None and queue.sent_to is not None and leader.leader_epoch > queue.sent_to.leader_epoch:
                # A frozen leader answers nothing: its successor gets the batches at once, under the same sequences.
                queue.abandon_sent()
                queue.not_before = 0.0
                self.reschedule(queue)

    # ----------------------------------------------------------------------------------------------------------- answers

    def on_answer(self, sent: list[SentPartition], response: pb.AppendResponse) -> None:
        """A request was answered: judge each partition. Called by the senders."""
        whole = error_from_detail(response.error) if response.HasField("error") else None
        if whole is None and len(response.partitions) != len(sent):
            whole = ProtocolError(f"{len(response.partitions)} partitions answered, {len(sent)} were asked")
        for number, (queue, attempts) in enumerate(sent):
            acknowledged: Sequence[int] = ()
            error = whole
            if whole is None:
                result = response.partitions[number]
                acknowledged = result.base_offsets
                if result.HasField("error"):
                    error = error_from_detail(result.error, f"{queue.topic}/{queue.partition}")
            for attempt, base_offset in zip(attempts, acknowledged, strict=False):
                self._finish(queue, attempt.batch, base_offset, None)
            rest = attempts[len(acknowledged) :]
            if acknowledged:
                queue.failures = 0
            if rest:
                self._on_refused(queue, rest, error or ProtocolError("the broker left a batch without an answer"))
            self._resume(queue)

    def on_lost(self, sent: list[SentPartition], error: RaftMQError) -> None:
        """A request will not be answered: repeat it under the same sequences. Called by the senders."""
        for queue, attempts in sent:
            queue.retry(attempts, is_outcome_unknown=error.outcome is Outcome.UNKNOWN)
            self._pause(queue, 0.0)
            self._resume(queue)

    def _on_refused(self, queue: PartitionQueue, attempts: list[Attempt], error: RaftMQError) -> None:
        """The first of these attempts met `error`, the rest were not tried after it."""
        batch, number = attempts[0]
        if batch.is_done or batch.attempt != number or not batch.is_sent:
            queue.retry(attempts, is_outcome_unknown=error.outcome is Outcome.UNKNOWN)
            return
        if isinstance(error, UnknownTopicError | UnknownPartitionError):
            for waiting in queue.batches():
                self._finish(queue, waiting, -1, error)
            return
        queue.retry(attempts, is_outcome_unknown=error.outcome is Outcome.UNKNOWN)
        if isinstance(error, OutOfOrderSequenceError | UnknownProducerError):
            # Definite for all copies of the batch that this leader could still accept; older ones the next epoch fences.
            batch.may_be_applied = False
            if queue.is_head(batch):
                queue.is_broken = True  # nothing before it is under way: what it follows was given up, or has expired
            self._pause(queue, 0.0)
        elif isinstance(error, NotLeaderError):
            has_better = self._resolver.note_not_leader(queue.group_id, error)
            self._pause(queue, error.retry_after_ms / 1000, is_first_free=has_better)
        elif error.retriable:
            self._pause(queue, error.retry_after_ms / 1000)
        else:
            self._give_up(queue, batch, error)

    def _pause(self, queue: PartitionQueue, at_least_seconds: float, *, is_first_free: bool = False) -> None:
        """No retry before a while that grows with the failures in a row; the first after a better hint need not wait."""
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self._source)
        backoff.failures = queue.failures
        pause = backoff.next_seconds()
        if is_first_free and queue.failures == 0:
            pause = 0.0
        queue.failures += 1
        queue.not_before = asyncio.get_running_loop().time() + max(pause, at_least_seconds)

    def _resume(self, queue: PartitionQueue) -> None:
        if queue.is_idle:
            queue.is_flushing = False
            self._active.pop(queue, None)
        elif not queue.is_scheduled:
            self.reschedule(queue)

    def _give_up(self, queue: PartitionQueue, batch: ProducerBatch, error: RaftMQError) -> None:
        """End a batch without success; if it had a sequence, those after it cannot follow it."""
        if batch.attempt > 0:
            queue.is_broken = True
        self._finish(queue, batch, -1, error)

    def _finish(self, queue: PartitionQueue, batch: ProducerBatch, base_offset: int, error: RaftMQError | None) -> None:
        if batch.is_done:
            return
        queue.finish(batch)
        batch.finish(base_offset, error)
        self._budget.release(batch.reserved_bytes)
        if error is not None and self._unobserved_error is None and not batch.is_observed:
            self._unobserved_error = batch

    # ------------------------------------------------------------------------------------------------------------- time

    async def _tick_forever(self) -> None:
        """Give up what is overdue; sleeps without waking while nothing is outstanding."""
        while True:
            await self._tick_needed.wait()
            self._tick_needed.clear()
            while self._active:
                await asyncio.sleep(settings.TICK_SECONDS)
                self._expire(asyncio.get_running_loop().time())

    def _expire(self, now: float) -> None:
        for sender in self._senders.values():
            sender.check_late(now)
        for queue in list(self._active):
            for batch in queue.expired(now):
                self._give_up(queue, batch, self._expiry_error(batch))
            self._resume(queue)

    def _expiry_error(self, batch: ProducerBatch) -> RaftMQError:
        where = f"{batch.topic}/{batch.partition}: {batch.count} records"
        seconds = self._delivery_timeout_seconds
        if batch.is_sent or batch.may_be_applied:
            return DeliveryTimeoutError(f"{where} were not acknowledged within {seconds:g} s; they may be written")
        return DeliveryExpiredError(f"{where} could not be written within {seconds:g} s")

    # ----------------------------------------------------------------------------------------------------------- closing

    async def _flush(self) -> None:
        outstanding = []
        for queue in list(self._active):
            queue.is_flushing = True
            outstanding += queue.batches()
            self.reschedule(queue)
        for batch in outstanding:
            await batch.wait_done()
        failed, self._unobserved_error = self._unobserved_error, None
        if failed is not None and not failed.is_observed:
            failed.raise_error()

    async def _tear_down(self) -> None:
        senders, self._senders = list(self._senders.values()), {}
        error: RaftMQError = ClosedClientError("the producer was closed")
        try:
            await cancel_and_wait(self._ticker)
            for sender in senders:
                await sender.close()
        finally:
            for queue in list(self._active):
                for batch in queue.batches():
                    is_open = batch.is_sent or batch.may_be_applied
                    outcome = (
                        ClosedInFlightError("the producer was closed; the batch may be written") if is_open else error
                    )
                    self._finish(queue, batch, -1, outcome)
            self._active.clear()
            self._budget.fail_waiters(error)
            await self._resolver.close()

    def _on_crash(self, error: BaseException) -> None:
        """A background task ended by a defect: nobody must wait forever for what it would have done."""
        self._failure = self._failure or error
        failed = ClosedInFlightError("the producer stopped after an internal error; the batch may be written")
        failed.__cause__ = error
        for queue in list(self._active):
            for batch in queue.batches():
                self._finish(queue, batch, -1, failed)
        self._active.clear()
        self._budget.fail_waiters(failed)
