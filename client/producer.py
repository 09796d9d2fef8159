"""`Producer`: takes records, gathers them into batches and hands those to the dispatcher, which sees each to its outcome.

Must not know gRPC (that is the transport's part), who leads what (the resolver's) or retries (the dispatcher's). Invariant:
buffered bytes never exceed `buffer_memory`.

Source: KIP-98 (idempotent producer), KIP-480 and KIP-794 (sticky partitions).
"""

from __future__ import annotations

import asyncio
import random
import warnings
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from types import TracebackType
from typing import Final, Literal, Self

from raftmq.client import settings
from raftmq.client.accumulator import Accumulator, TopicState
from raftmq.client.batch_codec import CODECS
from raftmq.client.byte_budget import ByteBudget
from raftmq.client.dispatcher import Dispatcher
from raftmq.client.fork_guard import check_not_forked, current_generation
from raftmq.client.logs import log
from raftmq.client.metrics import ProducerMetrics
from raftmq.client.partitioner import PARTITIONERS, Partitioner, PartitionerName
from raftmq.client.producer_batch import BulkDelivery, Delivery
from raftmq.client.record_checks import Serializer, check_headers, check_pairs, to_bytes
from raftmq.client.resolver import Resolver
from raftmq.client.transport import INIT_PRODUCER, GrpcTransport, Transport
from raftmq.errors import (
    BufferFullError,
    ClosedClientError,
    InvalidArgumentError,
    RaftMQError,
    RecordTooLargeError,
    UnsupportedCompressionError,
)
from raftmq.proto import queue_pb2 as pb
from raftmq.types import RecordMetadata

CompressionType = Literal["lz4", "zstd", "snappy"]
CLOSED: Final = "the producer is closed; make a new one"
NOT_STARTED: Final = "the producer is not started: use async with, or await start()"


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
        max_block_ms: how long `start` may take, and how long `send` waits for buffer space, or for the topic to be found (for each).
        delivery_timeout_ms: from taking a record to giving up on it.
        request_timeout_ms: how long a broker may take for one request before it is repeated.
        partitioner: ``"crc32"`` (librdkafka's ``consistent_random``: C speed, the default), ``"murmur2"`` (the Java client's)
            or a function of (key, number of partitions). Records without a key
                (or, with crc32, an empty one) stay on one partition for 64 KiB or 250 ms, then move on.
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
            raise UnsupportedCompressionError(f"compression_type {compression_type!r} is not known")
        if not 1024 <= max_batch_size <= settings.REQUEST_BYTES_MAX - settings.MIB:
            raise InvalidArgumentError(f"max_batch_size must be 1 KiB to 2.5 MiB, not {max_batch_size}")
        if buffer_memory < settings.BULK_CHUNK_BYTES:
            raise InvalidArgumentError(f"buffer_memory must be at least {settings.BULK_CHUNK_BYTES} bytes")
        if linger_ms < 0 or max_block_ms < 0 or delivery_timeout_ms <= 0 or request_timeout_ms <= 0:
            raise InvalidArgumentError("times must not be negative, timeouts not zero")
        if isinstance(partitioner, str) and partitioner not in PARTITIONERS:
            raise InvalidArgumentError(f"partitioner {partitioner!r}: use crc32, murmur2 or a function")
        self.client_id = client_id
        self._is_idempotent = enable_idempotence
        self._max_block_seconds = max_block_ms / 1000
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._resolver = Resolver(bootstrap_servers, transport or GrpcTransport())
        self._budget = ByteBudget(buffer_memory)
        source = random.Random()
        self._dispatcher = Dispatcher(
            self._resolver,
            self._budget,
            codec=CODECS[compression_type],
            request_timeout_seconds=request_timeout_ms / 1000,
            delivery_timeout_seconds=delivery_timeout_ms / 1000,
            source=source,
        )
        self._accumulator = Accumulator(
            batch_bytes_max=max_batch_size,
            codec=CODECS[compression_type],
            linger_seconds=linger_ms / 1000,
            delivery_timeout_seconds=delivery_timeout_ms / 1000,
            partitioner=PARTITIONERS[partitioner] if isinstance(partitioner, str) else partitioner,
            source=source,
            has_leader=lambda group_id: self._resolver.leader(group_id) is not None,
            on_active=self._dispatcher.on_active,
            on_ready=self._dispatcher.reschedule,
        )
        self._generation = current_generation()
        self._close_lock = asyncio.Lock()
        self._is_open = False
        self._is_closed = False

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
        deadline = asyncio.get_running_loop().time() + self._max_block_seconds
        try:
            await self._resolver.start(self._max_block_seconds)
            if self._is_idempotent:
                request = pb.InitProducerRequest(metadata_revision=self._resolver.metadata_revision)
                remaining = max(deadline - asyncio.get_running_loop().time(), settings.LAST_TRY_SECONDS)
                # Asking twice only wastes an id, so an unknown outcome is no reason to give up.
                answer = await self._resolver.call_any(INIT_PRODUCER, request, remaining, is_read=True)
                self._accumulator.producer_id = answer.producer_id
                self._accumulator.producer_epoch = answer.epoch
            self._resolver.check()  # closed meanwhile
        except BaseException:
            self._is_closed = True
            await self._resolver.close()
            raise
        self._dispatcher.start()
        self._is_open = True
        log.info("producer_started client_id=%s producer_id=%d", self.client_id, self._accumulator.producer_id)

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
                if was_open and self._dispatcher.failure is None:
                    await self._dispatcher.drain()
            finally:
                self._is_closed = True
                try:
                    await self._dispatcher.close()
                finally:
                    await self._resolver.close()
                    log.info("producer_closed client_id=%s", self.client_id)

    def __del__(self) -> None:
        if getattr(self, "_is_open", False) and not self._is_closed:
            warnings.warn(
                f"unclosed {self!r}: records it took may not be written; use async with, or close()",
                ResourceWarning,
                source=self,
                stacklevel=2,
            )

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
            A `Delivery`. Awaiting it gives the `RecordMetadata` once the record is on disk on a majority, or raises, at most
            `delivery_timeout_ms` after the record was taken: `DeliveryTimeoutError` or `ClosedInFlightError` (may be written),
            `DeliveryExpiredError`, `RecordTooLargeError` or another `RaftMQError` (see its `outcome`). Whoever does not await it
            learns of a failure from `flush` or `close`.

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
        """`send`, then wait for the acknowledgement, at most `delivery_timeout_ms`.

        Raises what both raise; cancelled while waiting, the record may be written.
        """
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

        Waits for buffer space as it goes, at most `max_block_ms` each time, so the iterable may be endless in size; it is read in
        pieces of about 128 KiB.
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
        await self._dispatcher.drain()

    def metrics(self) -> ProducerMetrics:
        """What the producer has counted since its start, and what is under way now. Cheap; does not wait; also after `close`."""
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
        check_not_forked(self._generation, "producer")
        if not self._is_open:
            raise ClosedClientError(CLOSED if self._is_closed else NOT_STARTED)
        self._resolver.check()
        if self._dispatcher.failure is not None:
            raise ClosedClientError("the producer stopped after an internal error") from self._dispatcher.failure

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
                f"no room for {size} bytes in the buffer of {self._budget.bytes_max} within {self._max_block_seconds:g} s"
            ) from None
        try:
            self._check_usable()
        except RaftMQError:
            self._budget.release(size)
            raise
