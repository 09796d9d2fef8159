"""`Producer`: accepts records, gathers them into batches and passes those to the dispatcher, which delivers them.

Must not know gRPC (the transport does), leaders (the resolver does) or retries (the dispatcher does). Invariant: buffered bytes never
exceed `buffer_memory`.

Source: KIP-98 (idempotent producer), KIP-480 and KIP-794 (sticky partitions).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Final, Generic, Literal, Self

from raftmq.client.base import settings
from raftmq.client.base.affinity import ClientAffinity
from raftmq.client.base.arguments import check_at_least, check_not_negative, check_positive, check_range
from raftmq.client.base.background import cancel_and_wait
from raftmq.client.base.error_details import fresh_copy
from raftmq.client.base.logs import log
from raftmq.client.base.loop_budget import LoopBudget
from raftmq.client.base.metrics import ProducerMetrics
from raftmq.client.base.settings import LOOP_LOOK_CALLS
from raftmq.client.base.texts import check_text
from raftmq.client.base.tracing import active_tracing
from raftmq.client.codec.cells import check_headers, headers_bytes, to_bytes
from raftmq.client.codec.codecs import CODECS
from raftmq.client.connection.resolver import Resolver
from raftmq.client.connection.transport import GrpcTransport, Transport
from raftmq.client.producer.accumulator import Accumulator, TopicState
from raftmq.client.producer.batch import BulkDelivery, Delivery
from raftmq.client.producer.byte_budget import ByteBudget
from raftmq.client.producer.dispatcher import Dispatcher
from raftmq.client.producer.identity import ProducerName, check_name
from raftmq.client.producer.partitioner import PARTITIONERS, Partitioner, PartitionerName, checked
from raftmq.client.producer.record_checks import (
    BulkRecord,
    Columns,
    check_records,
    check_timestamp,
    columns_with_trace,
    too_large,
    with_trace,
)
from raftmq.errors import (
    BufferFullError,
    ClosedClientError,
    InvalidArgumentError,
    ProducerFencedError,
    RaftMQError,
    UnsupportedCompressionError,
)
from raftmq.types import KeyT_contra, RecordMetadata, ValueT_contra

if TYPE_CHECKING:
    from raftmq.client.base.spans import SendSpan, Tracing

CompressionType = Literal["lz4", "zstd", "snappy", "gzip"]
State = Literal["new", "starting", "open", "closing", "closed"]
CLOSED: Final = "the producer is closed: create a new one"
NOT_STARTED: Final = "the producer is not started: use async with, or await start()"


class Producer(Generic[KeyT_contra, ValueT_contra]):
    """Writes records to topics, from one event loop.

    ::

        async with Producer(bootstrap_servers="localhost:9400") as producer:
            delivery = await producer.send("flights", value=b"...", key=b"N14228")
            metadata = await delivery                     # on disk on a majority of the replicas
            await producer.send_many("flights", pairs)    # the fast way: (key, value) pairs

    Type checkers infer the types of keys and values from the serializers: with ``value_serializer=Json(Order).serialize`` it is a
    ``Producer[BytesLike, Order]`` and accepts an ``Order``. A lambda has no type, so state it: ``Producer[str, dict[str, int]](…)``.

    Order: records of one partition are written in the order in which they were sent (without idempotence, only while nothing is
    retried). Each record is written once, across retries, reconnects and leader changes, while `enable_idempotence` is on.

    When a batch is given up (delivery timeout), brokers would refuse all later records of its partition because of the gap in the
    sequence. The producer then continues under its next epoch, which also fences copies of the old batch that are still on their way. So a
    `DeliveryTimeoutError` concerns only its own records, which may be written, once. Later records are not affected.

    Under a `producer_name` there is one producer at a time: a new one fences its predecessor. When the new one has started, records that
    the old one sends are no longer written, in any partition. The old one stops permanently with the first refusal, or within ten
    minutes if none comes: its unacknowledged records, and every later call, raise `ProducerFencedError`.

    Args:
        bootstrap_servers: ``"host:port[,host:port...]"`` or a sequence; any of the cluster's brokers.
        cluster_id: the only cluster to use, as `raftmq cluster status` shows it. By default it is the cluster of the first broker that
            answers, even if that cluster was formed by mistake.
        client_id: a name for logs.
        linger_ms: time for which an unfilled batch waits for more records. The default, 0, suits almost every program: records of one
            pass of the event loop are sent together, and while a request is unanswered the next records gather. So batches grow when
            there is much to send, and no record waits when there is little.
        max_batch_size: bytes of records in a batch, before compression. The default, 512 KiB, is 5,000 records of 100 bytes: the
            cost of a batch (request, log entry, fsync) is then below 100 ns per record, and five of them fill a request.
        compression_type: None, ``"lz4"``, ``"zstd"``, ``"snappy"`` or ``"gzip"``. gzip takes twice as long as zstd.
        enable_idempotence: write each record once.
        producer_name: a name that at most one producer uses: its previous producer is fenced. Needs `enable_idempotence`. The cluster
            forgets a name 14 days after its last producer was closed.
        buffer_memory: maximum bytes of records that are accepted and not yet acknowledged. When it is exhausted, `send` waits.
        max_block_ms: time limit of `start`, of each wait of `send` for buffer space, and of its wait for an unknown topic.
        delivery_timeout_ms: time from accepting a record until it is given up; at most an hour.
        request_timeout_ms: time limit of one request to a broker, after which it is repeated.
        partitioner: ``"crc32"`` (librdkafka's ``consistent_random``: C speed, the default), ``"murmur2"`` (the Java client's) or a
            function of (key, number of partitions), see `Partitioner`. It is not used for records without a key (or, with crc32, with
            an empty one): they stay on one partition for 64 KiB or 250 ms, then move to the next one that has a leader.
        key_serializer: function that converts a key to bytes, such as those in `raftmq.serializers`. Without it, keys must be bytes. It
            is not called for None.
        value_serializer: function that converts a value to bytes. Without it, values must be bytes. It is not called for None.
        transport: replaces gRPC, for simulations.
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9400",
        cluster_id: str = "",
        client_id: str = "raftmq",
        linger_ms: float = 0,
        max_batch_size: int = 512 * settings.KIB,
        compression_type: CompressionType | None = None,
        enable_idempotence: bool = True,
        producer_name: str | None = None,
        buffer_memory: int = 64 * settings.MIB,
        max_block_ms: float = 60_000,
        delivery_timeout_ms: float = 120_000,
        request_timeout_ms: float = 10_000,
        partitioner: PartitionerName | Partitioner = "crc32",
        key_serializer: Callable[[KeyT_contra], bytes | None] | None = None,
        value_serializer: Callable[[ValueT_contra], bytes | None] | None = None,
        transport: Transport | None = None,
    ) -> None:
        check_text(client_id, "client_id")
        if compression_type not in CODECS:
            raise UnsupportedCompressionError(f"unknown compression_type {compression_type!r}")
        check_range("max_batch_size", max_batch_size, settings.BATCH_BYTES_MIN, settings.BATCH_BYTES_MAX)
        check_at_least("buffer_memory", buffer_memory, settings.BULK_CHUNK_BYTES)
        check_not_negative(linger_ms=linger_ms, max_block_ms=max_block_ms)
        check_positive(delivery_timeout_ms=delivery_timeout_ms, request_timeout_ms=request_timeout_ms)
        if delivery_timeout_ms > settings.DELIVERY_TIMEOUT_MS_MAX:
            raise InvalidArgumentError(
                f"delivery_timeout_ms must be at most {settings.DELIVERY_TIMEOUT_MS_MAX} (an hour), not {delivery_timeout_ms!r}: "
                "brokers would not recognize records that are repeated later. Send records again when their delivery has failed"
            )
        if isinstance(partitioner, str) and partitioner not in PARTITIONERS:
            raise InvalidArgumentError(f"partitioner {partitioner!r}: use crc32, murmur2 or a function")
        if producer_name is not None:
            check_name(producer_name)
            if not enable_idempotence:
                raise InvalidArgumentError("a producer_name needs enable_idempotence: epochs are sent with sequences")
        self.client_id = client_id
        self._is_idempotent = enable_idempotence
        self._max_block_seconds = max_block_ms / 1000
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._resolver = Resolver(bootstrap_servers, transport or GrpcTransport(), cluster_id=cluster_id)
        self._name = ProducerName(self._resolver, producer_name, request_timeout_ms / 1000)
        self._name_keeper: asyncio.Task[None] | None = None
        self._budget = ByteBudget(buffer_memory)
        rng = random.Random()
        self._dispatcher = Dispatcher(
            self._resolver,
            self._budget,
            codec=CODECS[compression_type],
            request_timeout_seconds=request_timeout_ms / 1000,
            delivery_timeout_seconds=delivery_timeout_ms / 1000,
            rng=rng,
            has_name=producer_name is not None,
        )
        self._accumulator = Accumulator(
            batch_bytes_max=max_batch_size,
            codec=CODECS[compression_type],
            linger_seconds=linger_ms / 1000,
            delivery_timeout_seconds=delivery_timeout_ms / 1000,
            partitioner=PARTITIONERS[partitioner] if isinstance(partitioner, str) else checked(partitioner),
            rng=rng,
            has_leader=lambda group_id: self._resolver.leader(group_id) is not None,
            on_active=self._dispatcher.on_active,
            on_ready=self._dispatcher.reschedule,
        )
        self._affinity = ClientAffinity("producer")
        self._tracing: Tracing | None = None
        self._loop_budget = LoopBudget()
        self._sends = 0
        self._close_lock = asyncio.Lock()
        self._state: State = "new"

    # -------------------------------------------------------------------------------------------------------- lifecycle

    async def start(self) -> None:
        """Connect: wait for the topology and, with idempotence, for a producer id. ``async with`` calls it.

        It waits up to `max_block_ms`. If it fails or is cancelled, the producer is closed. A named producer fences its predecessors here and
        informs every broker. For a broker that does not answer it waits four seconds, after which that broker knows, or writes nothing.

        Raises:
            BootstrapError: no bootstrap address answered in time.
            ProducerFencedError: another producer started under the same name in the meantime.
            RaftMQError: no producer id was assigned. No record was written in any case, but a name's predecessor may be fenced.
        """
        self._affinity.check()
        if self._state != "new":
            raise ClosedClientError("a producer is started only once: create a new one")
        self._affinity.bind()
        self._state = "starting"
        self._tracing = active_tracing()
        deadline = asyncio.get_running_loop().time() + self._max_block_seconds
        try:
            await self._resolver.start(self._max_block_seconds)
            if self._is_idempotent:
                remaining = max(deadline - asyncio.get_running_loop().time(), settings.LAST_TRY_SECONDS)
                identity = await self._name.register(remaining)
                self._accumulator.producer_id = identity.producer_id
                self._accumulator.producer_epoch = identity.epoch
            self._resolver.check()  # it may have been closed in the meantime
        except BaseException:
            self._state = "closed"
            self._affinity.release()
            await self._resolver.close()
            raise
        self._dispatcher.start()
        self._name_keeper = self._name.keep(self._dispatcher.on_fenced, self._dispatcher.on_crash)
        self._state = "open"
        log.info("producer_started client_id=%s producer_id=%d", self.client_id, self._accumulator.producer_id)

    async def close(self) -> None:
        """Flush, then close. A repeated call does nothing, and a concurrent call waits for the first.

        It waits until everything sent has an outcome, at most `delivery_timeout_ms`, and callbacks have run then. The producer accepts no
        records from the beginning of this call on. If it is cancelled, it closes immediately (use ``asyncio.timeout`` for a time limit): sent
        records fail with `ClosedInFlightError` (outcome unknown), the rest with `ClosedClientError` (not applied).

        Raises:
            RaftMQError: as for `flush`. The producer is closed nevertheless.
        """
        self._affinity.check()
        async with self._close_lock:
            if self._state == "closed":
                return
            was_open, self._state = self._state == "open", "closing"
            try:
                if was_open and self._dispatcher.failure is None:
                    await self._dispatcher.drain()
            finally:
                try:
                    await self._close_parts()
                finally:
                    self._state = "closed"
                    self._affinity.release()
                    log.info("producer_closed client_id=%s", self.client_id)
            if was_open:
                self._dispatcher.raise_unobserved()  # if the producer had stopped, or stopped while it drained

    async def _close_parts(self) -> None:
        try:
            await cancel_and_wait(self._name_keeper)
        finally:
            try:
                await self._dispatcher.close()
            finally:
                await self._resolver.close()

    def __del__(self) -> None:
        if getattr(self, "_state", "new") in ("open", "closing"):
            self._affinity.warn_unclosed(self, "records that it accepted may not be written")

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
        value: ValueT_contra | None = None,
        key: KeyT_contra | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> Delivery:
        """Accept one record. It waits only for buffer space (and for the topic, if it is unknown).

        A task that sends in a loop lets the event loop run its other tasks every 10 ms.

        Args:
            topic: the topic to write to.
            value: bytes (or a value for `value_serializer`). None is a tombstone.
            key: bytes (or a key for `key_serializer`). None: no key.
            partition: overrides the partitioner.
            timestamp_ms: milliseconds since the epoch; default: now.
            headers: pairs of name and bytes; a name may occur more than once.

        Returns:
            A `Delivery`. Awaiting it returns the `RecordMetadata` when the record is on disk on a majority. At most `delivery_timeout_ms`
            after the record was accepted it raises `DeliveryTimeoutError` or `ClosedInFlightError` (may be written),
            `DeliveryExpiredError`, `RecordTooLargeError` or another `RaftMQError` (see its `outcome`). A program that does not await it
            learns of a failure from `flush` or `close`, or from a callback (`Delivery.add_done_callback`).

        Raises (the record was not accepted):
            UnknownTopicError, UnknownPartitionError: the topic or the partition does not exist.
            InvalidTopicNameError: no topic can have this name.
            RecordTooLargeError: above 1,048,560 bytes, or above the limit of the topic's ``max.batch.bytes`` if that is higher.
            BufferFullError: no buffer space within `max_block_ms`.
            ClosedClientError, ForkedClientError: the producer cannot be used.
            WrongEventLoopError: the producer was started on another event loop. Every method raises it.
            ProducerFencedError: another producer has taken over its name.
            TypeError: key, value, headers or timestamp have wrong types.

        An exception of a serializer or a partitioner is raised, too. If it is cancelled while waiting, the record was not accepted.
        """
        span = None if self._tracing is None else self._tracing.begin_send(topic, self.client_id)
        try:  # not a method of its own: awaiting it would take 0.14 us of some 2.6
            self._sends += 1
            if not self._sends % LOOP_LOOK_CALLS and self._loop_budget.is_spent(self._affinity.loop):
                await self._loop_budget.turn()
            self._check_usable()
            value_bytes = to_bytes(value, self._value_serializer, "value")
            key_bytes = to_bytes(key, self._key_serializer, "key")
            header_pairs, header_bytes = check_headers(headers) if headers else ((), 0)
            if span is not None and header_pairs:
                header_pairs = span.own(header_pairs)
                header_bytes = headers_bytes(header_pairs)
            size = (
                (len(value_bytes) if value_bytes is not None else 0)
                + (len(key_bytes) if key_bytes is not None else 0)
                + header_bytes
                + settings.RECORD_OVERHEAD_BYTES
            )
            if timestamp_ms is not None:
                timestamp_ms = check_timestamp(timestamp_ms)
            state = await self._topic(topic, partition)
            if size > settings.RECORD_BYTES_MAX and size > state.info.record_bytes_max:
                raise too_large(size, state.info.record_bytes_max)  # noqa: TRY301 - the span notes it like any other error
            if span is not None:
                header_pairs, size = with_trace(header_pairs, size, span, state.info.record_bytes_max)
            if not self._budget.try_acquire(size):
                await self._acquire(size)
            try:
                if state.info is not self._resolver.topics.get(topic):  # it changed during the wait
                    state = await self._topic(topic, partition)
                delivery = self._accumulator.add(
                    state, value_bytes, key_bytes, partition, timestamp_ms, header_pairs, size
                )
            except BaseException:
                self._budget.release(size)
                raise
        except BaseException as error:
            if span is not None:
                span.refuse(error)
            raise
        if span is not None:
            delivery.add_span(span)
            span.accept()
        return delivery

    async def send_and_wait(
        self,
        topic: str,
        value: ValueT_contra | None = None,
        key: KeyT_contra | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> RecordMetadata:
        """Send a record, and wait for its acknowledgement, at most `delivery_timeout_ms`.

        Raises the errors of `send` and of the delivery. If it is cancelled while waiting, the record may be written.
        """
        return await (await self.send(topic, value, key, partition, timestamp_ms, headers))

    async def send_many(
        self,
        topic: str,
        records: Iterable[BulkRecord[KeyT_contra, ValueT_contra]],
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        into: BulkDelivery | None = None,
    ) -> BulkDelivery:
        """Accept many records, without an object per record. This is the fast way.

        It waits for buffer space as needed, at most `max_block_ms` each time, so the iterable may be endless. It is read in pieces of about
        128 KiB.

        Args:
            topic: the topic to write to.
            records: (key, value) pairs. (key, value, headers) and (key, value, headers, timestamp_ms) take more time per record.
            partition: overrides the partitioner for all records.
            timestamp_ms: the timestamp of records without one of their own. By default it is the time at which their batch was begun.
            into: a delivery to add the records to, instead of a new one. Then the caller has it, with the number of accepted records
                (`BulkDelivery.count`), even if the call raises or is cancelled.

        Returns:
            A `BulkDelivery`, when all records are accepted. Awaiting it returns the `AppendedSpan`s (partition, base offset, number of
            records) or raises the first failure, as `Delivery` does. `BulkDelivery.failures` returns the failed records.

        Raises:
            RaftMQError: an error of `send`. Records that were accepted before remain accepted and will be written, also after a cancellation
                and after an exception of the iterable. When a record cannot be accepted (its type, its size, its serializer), exactly the
                records before it are accepted, and a note of the error gives its position, which is ``into.count``.
        """
        delivery = BulkDelivery() if into is None else into
        span = None if self._tracing is None else self._tracing.begin_send(topic, self.client_id, is_bulk=True)
        with nullcontext() if span is None else span.accepting():
            return await self._send_many(topic, records, partition, timestamp_ms, delivery, span)

    async def _send_many(
        self,
        topic: str,
        records: Iterable[BulkRecord[KeyT_contra, ValueT_contra]],
        partition: int | None,
        timestamp_ms: int | None,
        delivery: BulkDelivery,
        span: SendSpan | None,
    ) -> BulkDelivery:
        self._check_usable()
        if timestamp_ms is not None:
            timestamp_ms = check_timestamp(timestamp_ms)
        bytes_max = (await self._topic(topic, partition)).info.record_bytes_max
        iterator = iter(records)
        piece_records = 64
        while piece := list(islice(iterator, piece_records)):
            columns = check_records(piece, self._key_serializer, self._value_serializer, bytes_max)
            if span is not None:
                columns = columns_with_trace(columns, span, bytes_max)
            has_filled = False
            if columns.values:
                has_filled = await self._take_piece(topic, columns, partition, timestamp_ms, delivery)
                if span is not None:
                    delivery.add_span(span)
            if columns.refusal is not None:
                columns.refusal.add_note(
                    f"raised by record {delivery.count} of send_many; the records before it are accepted"
                )
                raise columns.refusal
            average = max(1, columns.size // len(columns.values))
            piece_records = max(1, min(settings.BULK_CHUNK_RECORDS_MAX, settings.BULK_CHUNK_BYTES // average))
            if has_filled or self._loop_budget.is_spent(self._affinity.loop):
                await self._loop_budget.turn()  # lets the senders send while the next piece is prepared
        return delivery

    async def _take_piece(
        self, topic: str, columns: Columns, partition: int | None, timestamp_ms: int | None, delivery: BulkDelivery
    ) -> bool:
        """Accept all of these records, or none if it raises or is cancelled. Return whether a batch was filled."""
        if not self._budget.try_acquire(columns.size):
            await self._acquire(columns.size)
        try:
            self._check_usable()
            state = await self._topic(topic, partition)
            return self._accumulator.add_many(state, columns, partition, timestamp_ms, delivery)
        except BaseException:
            self._budget.release(columns.size)
            raise

    async def flush(self) -> None:
        """Send everything accepted so far without lingering, and wait for every outcome, at most `delivery_timeout_ms`.

        It returns when everything accepted before the call is written, and its callbacks have run. It does not wait for records that are
        accepted during the call. Any number of tasks may flush simultaneously.

        Raises:
            RaftMQError: some records were not written. It is the first failure of a batch that nobody awaited, raised once; see its
                `outcome`. A note gives the number of other failures. Nothing is sent again automatically, and the producer remains
                usable: a later flush concerns later records.
            ProducerFencedError, ClosedClientError: the producer has stopped or is closed.

        Cancelling it only stops the wait. Use ``async with asyncio.timeout(…)`` for a shorter time limit.
        """
        self._check_usable()
        await self._dispatcher.drain()

    def metrics(self) -> ProducerMetrics:
        """Return counters since the start, and the current state. Cheap, without waiting, and usable after `close`."""
        dispatcher = self._dispatcher
        counters, requests = dispatcher.counters, dispatcher.counters.requests
        return ProducerMetrics(
            records_total=counters.records_total,
            batches_total=counters.batches_total,
            bytes_total=counters.bytes_total,
            failed_records_total=counters.failed_records_total,
            failed_batches_total=counters.failed_batches_total,
            retries_total=counters.retries_total,
            requests_total=requests.requests_total,
            request_seconds_sum=requests.seconds_sum,
            request_seconds_max=requests.seconds_max,
            errors_total=dict(requests.errors),
            requests_in_flight=sum(sender.requests_in_flight for sender in dispatcher.senders.values()),
            bytes_in_flight=sum(sender.bytes_in_flight for sender in dispatcher.senders.values()),
            batches_waiting=sum(len(queue.batches()) for queue in dispatcher.active),
            buffer_bytes=self._budget.used_bytes,
            buffer_bytes_max=self._budget.bytes_max,
        )

    # ------------------------------------------------------------------------------------------------- taking records in

    def _check_usable(self) -> None:
        self._affinity.check()
        if self._state != "open":
            raise ClosedClientError(NOT_STARTED if self._state in ("new", "starting") else CLOSED)
        self._resolver.check()
        failure = self._dispatcher.failure
        if failure is not None:
            if isinstance(failure, ProducerFencedError):
                raise fresh_copy(failure)
            raise ClosedClientError("the producer stopped after an internal error") from failure

    async def _topic(self, name: str, partition: int | None) -> TopicState:
        """Return the topic's queues. It waits only for a topic, or a requested partition, that is not in the topology yet."""
        info = self._resolver.topics.get(name)
        if info is None or (partition is not None and partition >= info.partition_count):
            info = await self._resolver.topic(name, self._max_block_seconds, partition=partition)
            self._check_usable()
        return self._accumulator.topic(info)

    async def _acquire(self, size: int) -> None:
        try:
            async with asyncio.timeout(self._max_block_seconds):
                await self._budget.acquire(size)
        except TimeoutError:
            raise BufferFullError(
                f"no space for {size} bytes in the buffer of {self._budget.bytes_max} bytes within {self._max_block_seconds:g} s"
            ) from None
        try:
            self._check_usable()
        except RaftMQError:
            self._budget.release(size)
            raise
