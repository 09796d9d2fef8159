"""Send records from synchronous code: `Producer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Generic, Self

from raftmq.client.base import settings
from raftmq.client.base.metrics import ProducerMetrics
from raftmq.client.connection.transport import Transport
from raftmq.client.producer.partitioner import Partitioner, PartitionerName
from raftmq.client.producer.producer import CompressionType
from raftmq.client.producer.producer import Producer as AsyncProducer
from raftmq.client.producer.record_checks import BulkRecord
from raftmq.sync.client import SyncClient
from raftmq.sync.delivery import BulkDelivery, Delivery
from raftmq.sync.waiting import within
from raftmq.types import KeyT_contra, RecordMetadata, ValueT_contra


class Producer(SyncClient, Generic[KeyT_contra, ValueT_contra]):
    """`raftmq.Producer` for synchronous code. Any number of threads may share one.

    It has the same arguments, and connects when it is created. A producer that a program forgets to close is closed when the program ends,
    which then waits up to 10 s for unacknowledged records.
    """

    _name = "producer"

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
        super().__init__()
        self._client = self._make(
            lambda: AsyncProducer(
                bootstrap_servers=bootstrap_servers,
                cluster_id=cluster_id,
                client_id=client_id,
                linger_ms=linger_ms,
                max_batch_size=max_batch_size,
                compression_type=compression_type,
                enable_idempotence=enable_idempotence,
                producer_name=producer_name,
                buffer_memory=buffer_memory,
                max_block_ms=max_block_ms,
                delivery_timeout_ms=delivery_timeout_ms,
                request_timeout_ms=request_timeout_ms,
                partitioner=partitioner,
                key_serializer=key_serializer,
                value_serializer=value_serializer,
                transport=transport,
            )
        )
        self._run(self._client.start)
        self._record_open(self._client.close)

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._record_closed()
        self._run(lambda: self._client.__aexit__(kind, error, traceback))

    def send(
        self,
        topic: str,
        value: ValueT_contra | None = None,
        key: KeyT_contra | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> Delivery:
        """Accept one record. It blocks only for buffer space. See `raftmq.Producer.send`."""
        delivery = self._run(lambda: self._client.send(topic, value, key, partition, timestamp_ms, headers))
        return Delivery(delivery, self._loop)

    def send_and_wait(
        self,
        topic: str,
        value: ValueT_contra | None = None,
        key: KeyT_contra | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes]] = (),
    ) -> RecordMetadata:
        """Send a record and wait for its acknowledgement. See `raftmq.Producer.send_and_wait`."""
        return self._run(lambda: self._client.send_and_wait(topic, value, key, partition, timestamp_ms, headers))

    def send_many(
        self,
        topic: str,
        records: Iterable[BulkRecord[KeyT_contra, ValueT_contra]],
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        into: BulkDelivery | None = None,
    ) -> BulkDelivery:
        """Accept many records, as (key, value) pairs. This is the fast way. See `raftmq.Producer.send_many`.

        The iterable is read on the background thread, where a slow generator delays the other clients of the process. Pass records that exist
        already.
        """
        delivery = BulkDelivery() if into is None else into
        self._run(
            lambda: self._client.send_many(
                topic, records, partition=partition, timestamp_ms=timestamp_ms, into=delivery._delivery
            )
        )
        return delivery

    def flush(self, timeout_seconds: float | None = None) -> None:
        """Wait for everything accepted so far, as `raftmq.Producer.flush` does.

        Raises `TimeoutError` when the time is over. The producer continues to write the records.
        """
        self._run(lambda: within(timeout_seconds, self._client.flush))

    def metrics(self) -> ProducerMetrics:
        """Return counters and the current state, as `raftmq.Producer.metrics` does."""
        return self._call(self._client.metrics)

    def close(self, timeout_seconds: float | None = None) -> None:
        """Flush, then close, as `raftmq.Producer.close` does.

        When the time is over, the producer closes immediately, as the asynchronous one does when cancelled, and `TimeoutError` is raised.
        """
        self._record_closed()
        self._run(lambda: within(timeout_seconds, self._client.close))
