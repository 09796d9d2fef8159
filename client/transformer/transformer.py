"""`Transformer`: what a program uses: a handler that makes output records of input records, and a group. Builds the parts and runs them.

Must not transform (the partitions' part). A transformer runs once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Generic

from raftmq.client.base import settings
from raftmq.client.base.arguments import LONG_MAX, check_positive, check_whole
from raftmq.client.base.fork_guard import check_not_forked, current_generation
from raftmq.client.base.stop_requests import StopRequests, signals_taken
from raftmq.client.codec.batch import CODECS
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
"""What a handler returns: one output, several, or none."""
TransformHandler = (
    Callable[[Record[KeyT_co, ValueT_co]], Awaitable[Outputs]] | Callable[[Record[KeyT_co, ValueT_co]], Outputs]
)


class Transformer(Generic[KeyT_co, ValueT_co]):
    """Makes output records of the records of a topic: each record's outputs are written exactly once.

    ::

        def to_invoice(record):
            return Output("invoices", value=invoice_for(record.value), key=record.key)

        Transformer("orders", "billing", to_invoice).run()

    That holds whatever crashes when: transformers, brokers, several transformers of the group that take over from each other. Readers
    of the outputs need no setting and wait for nothing: an output can be read as soon as it is written.

    The handler may run again for a record, after a crash. It must then return as many outputs as before, in the same order, to the same
    topics and with the same keys (or partitions); what else is in them may differ, and what was written first stays. Outputs keep the
    order of the records of their input partition. A handler that raises stops the transformer, so return an `Output` for a dead-letter
    topic instead.

    Args:
        topic: What to read; one name or several.
        group_id: The group that shares the work. No other program may commit offsets in it: what is written is noted with them.
        handler: Takes a `Record` and returns an `Output`, an iterable of them, or None. A plain function runs in a thread; an async one on
            the event loop of `run` or `serve`.
        concurrency: Handlers at once: threads, each at a partition of its own, or async handlers.
        key_deserializer: Makes of a key's bytes what the handler gets; keys that are None stay None.
        value_deserializer: The same for values.
        key_serializer: Makes bytes of the keys of outputs, which must be bytes without one. Not asked about None.
        value_serializer: The same for values.
        partitioner: Which partition a key belongs to, as for `Producer`. Outputs without a key go to the partition with the number of the
            input partition, modulo the number of partitions.
        compression_type: Of the outputs, as for `Producer`.
        auto_offset_reset: Where the group begins in a partition without a committed offset.
        bootstrap_servers, client_id, group_instance_id, session_timeout_ms, max_poll_interval_ms, assignor, rack, request_timeout_ms,
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
            raise UnsupportedCompressionError(f"compression_type {compression_type!r} is not known")
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
        """Transform until `stop`, SIGTERM or Ctrl-C, then end the chunks at work; blocks. The second signal cuts them short.

        Signals are taken only when it is called in the main thread; they are given back at the end. Raises as `serve`.
        """
        asyncio.run(self._serve_until_signal())

    async def _serve_until_signal(self) -> None:
        with signals_taken(self.stop):
            await self.serve()

    async def serve(self) -> None:
        """Transform until `stop`: the form of `run` for programs with an event loop, which take signals themselves.

        Cancelled, it ends at once. However it ends, the next transformer of the group goes on where it was.

        Raises:
            PoisonRecordError: The handler raised, or returned what cannot be written (too large, no such partition, not an `Output`). The
                cause says which. The progress of the group stays before the record.
            UnknownTopicError: The input topic, or one of an output, does not exist.
            TransformStateError: Outputs can no longer be written exactly once. The message says why, and what to do.
            BootstrapError: No bootstrap address answered in time.
            FencedError: Another process works under the same `group_instance_id`.
            RaftMQError: Another error that ends the consumer, or that another try to write does not help.
            ClosedClientError: It has run before.
        """
        check_not_forked(self._generation, "transformer")
        if self._was_started:
            raise ClosedClientError("a transformer runs once; make a new one")
        self._was_started = True
        with self._stops.bound():
            loop = self._loop = TransformLoop(self._make_consumer, self._make_parts)
            for number in range(self._stops.count):
                loop.stop(at_once=number > 0)
            await loop.run()

    def stop(self) -> None:
        """Ask the transformer to end; does not wait, and may be called from any thread. A second call cuts short what is at work."""
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
