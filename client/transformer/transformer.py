"""`Transformer`: the public class. It checks its arguments, builds the parts and runs them.

Must not transform (the partitions do). A transformer runs once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic

from raftmq.client.base import settings
from raftmq.client.base.arguments import LONG_MAX, check_positive, check_whole
from raftmq.client.base.fork_guard import check_not_forked, current_generation
from raftmq.client.base.stop_requests import StopRequests, signals_taken
from raftmq.client.codec.codecs import CODECS
from raftmq.client.connection.transport import Transport
from raftmq.client.consumer.consumer_settings import OffsetReset
from raftmq.client.consumer.group_arguments import GroupArguments, check_group_arguments
from raftmq.client.consumer.rebalance_listener import RebalanceListener
from raftmq.client.producer.partitioner import PARTITIONERS, Partitioner, PartitionerName, checked
from raftmq.client.producer.producer import CompressionType
from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.client.transformer.handler_calls import HandlerCalls, Serializer
from raftmq.client.transformer.output import Output
from raftmq.client.transformer.partition_transform import TransformParts
from raftmq.client.transformer.transform_consumer import TransformConsumer
from raftmq.client.transformer.transform_loop import TransformLoop
from raftmq.client.worker.handlers import Handlers
from raftmq.errors import ClosedClientError, InvalidArgumentError, UnsupportedCompressionError
from raftmq.types import KeyT_co, Record, ValueT_co

Outputs = Output | Iterable[Output] | None
"""The return value of a handler: one output, several, or none."""
TransformHandler = (
    Callable[[Record[KeyT_co, ValueT_co]], Awaitable[Outputs]] | Callable[[Record[KeyT_co, ValueT_co]], Outputs]
)


class Transformer(Generic[KeyT_co, ValueT_co]):
    """Transforms the records of a topic into output records. Each record's outputs are written exactly once.

    ::

        def to_invoice(record):
            return Output("invoices", value=invoice_for(record.value), key=record.key)

        Transformer("orders", "billing", to_invoice).run()

    That holds through crashes of transformers and brokers, and when transformers of a group take over from each other. Readers of the outputs
    need no setting and wait for nothing: an output can be read as soon as it is written.

    After a crash the handler may run again for a record. It must then return as many outputs as before, in the same order, to the same topics
    and with the same keys (or partitions). Values and headers may differ: the first version that was written is kept. Outputs keep the order
    of the records of their input partition. A handler that raises stops the transformer, so return an `Output` for a dead-letter topic
    instead.

    Args:
        topic: The input topic or topics.
        group_id: The consumer group that shares the work. No other program may commit offsets in it, because its commits contain the
            transformer's state.
        handler: A function of a `Record` that returns an `Output`, an iterable of them, or None. A plain function runs in a thread, an async
            one on the event loop of `run` or `serve`.
        concurrency: Maximum number of handlers that run concurrently: threads, each with its own partition, or async handlers.
        key_deserializer: Converts the bytes of a key for the handler. A key of None stays None.
        value_deserializer: Converts the bytes of a value for the handler. A value of None stays None.
        key_serializer: Converts the keys of outputs to bytes. Without it, keys must be bytes. It is not called for None.
        value_serializer: Converts the values of outputs to bytes. Without it, values must be bytes. It is not called for None.
        partitioner: Chooses the partition of a key, as for `Producer`. Outputs without a key go to the partition with the number of the
            input partition, modulo the number of partitions.
        compression_type: Compression of the outputs, as for `Producer`.
        auto_offset_reset: The position at which the group begins in a partition without a committed offset.
        bootstrap_servers: As for `Consumer`.
        client_id: As for `Consumer`.
        group_instance_id: As for `Consumer`.
        session_timeout_ms: As for `Consumer`.
        max_poll_interval_ms: As for `Consumer`.
        assignor: As for `Consumer`.
        rack: As for `Consumer`.
        request_timeout_ms: As for `Consumer`.
        transport: As for `Consumer`.
    """

    def __init__(
        self,
        topic: str | Sequence[str],
        group_id: str,
        handler: TransformHandler[KeyT_co, ValueT_co],
        *,
        concurrency: int = 10,
        key_deserializer: Callable[[bytes], KeyT_co] | None = None,
        value_deserializer: Callable[[bytes], ValueT_co] | None = None,
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        partitioner: PartitionerName | Partitioner = "crc32",
        compression_type: CompressionType | None = None,
        auto_offset_reset: OffsetReset = "earliest",
        bootstrap_servers: str | Sequence[str] = "localhost:9400",
        client_id: str = "raftmq-transformer",
        group_instance_id: str | None = None,
        session_timeout_ms: int = 45_000,
        max_poll_interval_ms: int = 300_000,
        assignor: str = "sticky",
        rack: str = "",
        request_timeout_ms: float = 30_000,
        transport: Transport | None = None,
    ) -> None:
        self._arguments = GroupArguments(
            topics=(topic,) if isinstance(topic, str) else tuple(topic),
            group_id=group_id,
            bootstrap_servers=bootstrap_servers,
            client_id=client_id,
            group_instance_id=group_instance_id,
            auto_offset_reset=auto_offset_reset,
            session_timeout_ms=session_timeout_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            assignor=assignor,
            rack=rack,
            request_timeout_ms=request_timeout_ms,
            transport=transport,
        )
        check_group_arguments("transformer", topic, self._arguments)
        check_positive(concurrency=concurrency)
        check_whole(LONG_MAX, concurrency=concurrency)
        if compression_type not in CODECS:
            raise UnsupportedCompressionError(f"unknown compression_type {compression_type!r}")
        if isinstance(partitioner, str) and partitioner not in PARTITIONERS:
            raise InvalidArgumentError(f"partitioner {partitioner!r}: use crc32, murmur2 or a function")
        for name, serializer in (("key_serializer", key_serializer), ("value_serializer", value_serializer)):
            if serializer is not None and not callable(serializer):
                raise InvalidArgumentError(f"{name} must be a function, not {serializer!r}")
        self.topics = self._arguments.topics
        self.group_id = group_id
        self.client_id = client_id
        handlers = Handlers(handler, key_deserializer, value_deserializer)
        self._calls = HandlerCalls(handlers, key_serializer, value_serializer, concurrency, frozenset(self.topics))
        self._partitioner = PARTITIONERS[partitioner] if isinstance(partitioner, str) else checked(partitioner)
        self._codec = CODECS[compression_type]
        self._generation = current_generation()
        self._was_started = False
        self._stops = StopRequests(self._pass_on_stop)
        self._loop: TransformLoop | None = None

    def run(self) -> None:
        """Transform until `stop`, SIGTERM or Ctrl-C, then finish the current chunks. It blocks. A second signal cuts them short.

        Signals are handled only in the main thread, and the previous handlers are restored at the end. Raises as `serve` does.
        """
        asyncio.run(self._serve_until_signal())

    async def _serve_until_signal(self) -> None:
        with signals_taken(self.stop):
            await self.serve()

    async def serve(self) -> None:
        """Transform until `stop`. Use it instead of `run` in programs that have an event loop and handle signals themselves.

        If it is cancelled, it ends immediately. However it ends, the next transformer of the group continues at the committed position.

        Raises:
            PoisonRecordError: The handler raised, or returned an output that cannot be written (too large, no such partition, not an `Output`).
                The cause gives the reason. The progress of the group stays before the record.
            UnknownTopicError: The input topic, or the topic of an output, does not exist.
            TransformStateError: Outputs can no longer be written exactly once. The message gives the reason and the remedy.
            BootstrapError: No bootstrap address answered in time.
            FencedError: Another process uses the same `group_instance_id`.
            RaftMQError: Another error that ends the consumer, or that retries cannot cure.
            ClosedClientError: The transformer has run before.
        """
        check_not_forked(self._generation, "transformer")
        if self._was_started:
            raise ClosedClientError("a transformer runs only once: create a new one")
        self._was_started = True
        with self._stops.bound():
            loop = self._loop = TransformLoop(self._make_consumer, self._make_parts)
            for number in range(self._stops.count):
                loop.stop(at_once=number > 0)
            await loop.run()

    def stop(self) -> None:
        """Ask the transformer to end. Returns immediately and may be called from any thread. A second call cuts the current chunks short."""
        self._stops.add()

    def _pass_on_stop(self, at_once: bool) -> None:
        if self._loop is not None:
            self._loop.stop(at_once=at_once)

    def _make_consumer(self, listener: RebalanceListener) -> TransformConsumer:
        return self._arguments.make_consumer(TransformConsumer, listener, settings.TRANSFORM_BUFFER_RECORDS)

    def _make_parts(self, consumer: TransformConsumer) -> TransformParts:
        return TransformParts(
            group_id=self.group_id,
            consumer=consumer,
            appender=SequencedAppender(consumer.resolver),
            calls=self._calls,
            partitioner=self._partitioner,
            codec=self._codec,
            timeout_seconds=self._arguments.request_timeout_ms / 1000,
        )
