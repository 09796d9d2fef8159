"""The SDK for synchronous code: the same classes and arguments, thread-safe and blocking.

One background thread with one event loop serves all clients of a process, because several gRPC event loops in one process are fragile.
Must not do work of its own: every method runs the asynchronous client's method of the same name there, and raises the same errors.

::

    with raftmq.sync.Producer(bootstrap_servers="localhost:9400") as producer:
        metadata = producer.send("flights", value=b"...").result()

Methods that wait can be interrupted (Ctrl-C). The background call is then cancelled, with the outcome that its asynchronous method documents
for cancellation.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import itertools
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Self, TypeVar

from raftmq.client.admin.admin import Admin as _AsyncAdmin
from raftmq.client.admin.descriptions import BrokerRemoval, ClusterDescription, NewTopic, TopicDescription
from raftmq.client.admin.group_admin import GroupDescription, GroupListing, OffsetChange
from raftmq.client.base import settings
from raftmq.client.base.fork_guard import check_not_forked, current_generation
from raftmq.client.base.loop_thread import LoopThread as _Loop
from raftmq.client.base.metrics import ConsumerMetrics, ProducerMetrics
from raftmq.client.connection.leader_calls import OffsetAndTimestamp
from raftmq.client.connection.transport import Transport
from raftmq.client.consumer.consumer import Consumer as _AsyncConsumer
from raftmq.client.consumer.consumer_settings import OffsetReset
from raftmq.client.consumer.rebalance_listener import RebalanceListener as _AsyncRebalanceListener
from raftmq.client.producer.batch import AppendedSpan, FailedRecords
from raftmq.client.producer.batch import BulkDelivery as _AsyncBulkDelivery
from raftmq.client.producer.batch import Delivery as _AsyncDelivery
from raftmq.client.producer.partitioner import Partitioner, PartitionerName
from raftmq.client.producer.producer import CompressionType
from raftmq.client.producer.producer import Producer as _AsyncProducer
from raftmq.client.producer.record_checks import BulkRecord
from raftmq.errors import ClosedClientError
from raftmq.types import KeyT_co, KeyT_contra, Record, RecordMetadata, TopicPartition, ValueT_co, ValueT_contra

if TYPE_CHECKING:
    from typing import ParamSpec

    P = ParamSpec("P")

T = TypeVar("T")
ITERATION_RECORDS_MAX = 500
"""Maximum number of records fetched together by an iteration. An event-loop round trip for each would cost more than the record."""
ITERATION_WAIT_MS = 1000
"""Time for which an iterating thread waits in the loop before it checks again whether the consumer was closed."""


class _Client:
    """The common part of the three clients: the loop, the process they belong to, opening and closing."""

    _name = "client"

    def __init__(self) -> None:
        self._generation = current_generation()
        self._loop = _Loop.get()

    def _record_open(self, close: Callable[[], Coroutine[object, object, None]]) -> None:
        """Register `close` for the case that the program drops the client, or ends, without closing it."""
        self._key = next(_keys)
        _unclosed[self._key] = _Unclosed(self._loop, self._name.capitalize(), close)
        weakref.finalize(self, _close_forgotten, self._key).atexit = False  # `_close_at_exit` handles the exit

    def _record_closed(self) -> None:
        _unclosed.pop(self._key, None)

    def _check(self) -> None:
        check_not_forked(self._generation, self._name)

    def _make(self, make: Callable[[], T]) -> T:
        """Create the asynchronous client on its loop. It checks the caller's arguments."""
        return _on_loop(self._loop, make)

    def _run(self, coroutine_of: Callable[[], Coroutine[object, object, T]]) -> T:
        """Run the coroutine of `coroutine_of`. It is created here, after the check, so that none is left unawaited."""
        self._check()
        return self._loop.run(coroutine_of())

    def _call(self, function: Callable[[], T]) -> T:
        """Run a plain method on the loop's thread, which owns all of a client's state."""
        self._check()
        return _on_loop(self._loop, function)


def _on_loop(loop: _Loop, function: Callable[[], T]) -> T:
    async def call() -> T:
        return function()

    return loop.run(call())


class Delivery:
    """The acknowledgement of one record, like `raftmq.Delivery`, with `result` instead of ``await``."""

    __slots__ = ("_delivery", "_loop")

    def __init__(self, delivery: _AsyncDelivery, loop: _Loop) -> None:
        self._delivery = delivery
        self._loop = loop

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self._delivery.done()

    def result(self, timeout_seconds: float | None = None) -> RecordMetadata:
        """Wait for the acknowledgement. Raises the errors of `raftmq.Delivery`, and `TimeoutError` (the outcome is not known yet)."""
        if self._delivery.done():
            return self._delivery.result()

        async def wait() -> RecordMetadata:
            return await self._delivery

        return self._loop.run(wait(), timeout_seconds)

    def add_done_callback(self, callback: Callable[[Delivery], object]) -> None:
        """Call `callback` with this delivery when the outcome is known, as `raftmq.Delivery.add_done_callback` does.

        The callback blocks the SDK's background thread, so it must return quickly and must not call the SDK.
        """
        _on_loop(self._loop, lambda: self._delivery.add_done_callback(lambda _: callback(self)))


class BulkDelivery:
    """The acknowledgement of one `Producer.send_many`, like `raftmq.BulkDelivery`, with `result` instead of ``await``."""

    __slots__ = ("_delivery", "_loop")

    def __init__(self) -> None:
        self._delivery = _AsyncBulkDelivery()
        self._loop = _Loop.get()

    @property
    def count(self) -> int:
        """Return the number of records added."""
        return self._delivery.count

    def done(self) -> bool:
        """Return whether every outcome is known."""
        return self._delivery.done()

    def failures(self) -> list[FailedRecords]:
        """Return the records that have failed so far, as `raftmq.BulkDelivery.failures` does."""
        return _on_loop(self._loop, self._delivery.failures)

    def add_done_callback(self, callback: Callable[[BulkDelivery], object]) -> None:
        """Call `callback` with this delivery when every outcome is known, as `Delivery.add_done_callback` does."""
        _on_loop(self._loop, lambda: self._delivery.add_done_callback(lambda _: callback(self)))

    def result(self, timeout_seconds: float | None = None) -> list[AppendedSpan]:
        """Wait for every outcome. Raises the errors of `raftmq.BulkDelivery`, and `TimeoutError` (some outcomes are not known yet)."""

        async def wait() -> list[AppendedSpan]:
            return await self._delivery

        return self._loop.run(wait(), timeout_seconds)


class Producer(_Client, Generic[KeyT_contra, ValueT_contra]):
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
            lambda: _AsyncProducer(
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
        self._run(lambda: _within(timeout_seconds, self._client.flush))

    def metrics(self) -> ProducerMetrics:
        """Return counters and the current state, as `raftmq.Producer.metrics` does."""
        return self._call(self._client.metrics)

    def close(self, timeout_seconds: float | None = None) -> None:
        """Flush, then close, as `raftmq.Producer.close` does.

        When the time is over, the producer closes immediately, as the asynchronous one does when cancelled, and `TimeoutError` is raised.
        """
        self._record_closed()
        self._run(lambda: _within(timeout_seconds, self._client.close))


async def _within(timeout_seconds: float | None, work: Callable[[], Coroutine[object, object, T]]) -> T:
    async with asyncio.timeout(timeout_seconds):
        return await work()


EXIT_FLUSH_SECONDS = 10.0
"""Maximum time for which the end of a program waits for the records of all unclosed producers."""
EXIT_GRACE_SECONDS = 1.0
"""Additional time for connections to close, and for consumers to leave their groups."""


class _Unclosed(NamedTuple):
    """A client that the program opened and did not close, even if the program has dropped it."""

    loop: _Loop
    kind: str
    close: Callable[[], Coroutine[object, object, None]]

    @property
    def has_records(self) -> bool:
        """Return whether it may have accepted records that must still be written."""
        return self.kind == "Producer"


_unclosed: dict[int, _Unclosed] = {}
"""Unclosed clients by their number. The entries must not refer to the wrappers, which the program may drop."""
_keys = itertools.count()


def _close_forgotten(key: int) -> None:
    """Close a dropped client in the background. May be called from any thread, including the loop's own."""
    forgotten = _unclosed.get(key)
    if forgotten is None or forgotten.loop.generation != current_generation():
        return

    async def close() -> None:
        try:
            await forgotten.close()
        finally:
            _unclosed.pop(key, None)

    asyncio.run_coroutine_threadsafe(close(), forgotten.loop.loop)
    _warn_unclosed([forgotten])


def _close_at_exit() -> None:
    """Close all clients that the program forgot, so that it does not lose records silently. Raises the first failure for Python to show."""
    forgotten = [one for one in _unclosed.values() if one.loop.generation == current_generation()]
    _unclosed.clear()
    if not forgotten:
        return
    closing = {
        one.loop.start(_within(EXIT_FLUSH_SECONDS if one.has_records else EXIT_GRACE_SECONDS, one.close)): one
        for one in forgotten
    }
    seconds = EXIT_FLUSH_SECONDS if any(one.has_records for one in forgotten) else 0.0
    concurrent.futures.wait(closing, seconds + EXIT_GRACE_SECONDS)
    for future, one in closing.items():
        if one.has_records:
            future.result(0)
    _warn_unclosed(forgotten)


def _warn_unclosed(forgotten: Iterable[_Unclosed]) -> None:
    for kind in sorted({one.kind for one in forgotten}):
        text = f"a raftmq.sync.{kind} was not closed: use with, or close()"
        warnings.warn(text, ResourceWarning, stacklevel=2)


atexit.register(_close_at_exit)


class RebalanceListener:
    """`raftmq.RebalanceListener` for synchronous code. Its methods run one at a time in a separate thread.

    They may call the consumer (`commit`, `seek`, `position`). They must not read from it or close it.
    """

    def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle newly assigned partitions. See `raftmq.RebalanceListener.on_assigned`."""

    def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle partitions that are about to be released. See `raftmq.RebalanceListener.on_revoked`."""

    def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Handle lost partitions. See `raftmq.RebalanceListener.on_lost`."""


class _ListenerInThread(_AsyncRebalanceListener):
    """Calls a synchronous listener in a thread, where it may wait for the event loop."""

    def __init__(self, listener: RebalanceListener) -> None:
        self._listener = listener

    async def on_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        await asyncio.to_thread(self._listener.on_assigned, partitions)

    async def on_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        await asyncio.to_thread(self._listener.on_revoked, partitions)

    async def on_lost(self, partitions: frozenset[TopicPartition]) -> None:
        await asyncio.to_thread(self._listener.on_lost, partitions)


class Consumer(_Client, Generic[KeyT_co, ValueT_co]):
    """`raftmq.Consumer` for synchronous code. Threads may share one, but each record goes to one of them.

    It has the same arguments, and connects when it is created.
    """

    _name = "consumer"

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str] = "localhost:9400",
        cluster_id: str = "",
        group_id: str | None = None,
        group_instance_id: str | None = None,
        client_id: str = "raftmq",
        enable_auto_commit: bool = True,
        auto_commit_interval_ms: float = 5_000,
        auto_offset_reset: OffsetReset = "latest",
        session_timeout_ms: int = 45_000,
        heartbeat_interval_ms: float = 5_000,
        max_poll_interval_ms: int = 300_000,
        assignor: str = "sticky",
        rack: str = "",
        listener: RebalanceListener | _AsyncRebalanceListener | None = None,
        max_poll_records: int = 10_000,
        fetch_max_bytes: int = settings.FETCH_MESSAGE_BYTES_MAX,
        max_partition_fetch_bytes: int = settings.MIB,
        fetch_max_wait_ms: int = 500,
        fetch_min_bytes: int = 1,
        request_timeout_ms: float = 30_000,
        key_deserializer: Callable[[bytes], KeyT_co] | None = None,
        value_deserializer: Callable[[bytes], ValueT_co] | None = None,
        transport: Transport | None = None,
    ) -> None:
        super().__init__()
        hears = _ListenerInThread(listener) if isinstance(listener, RebalanceListener) else listener
        self._client = self._make(
            lambda: _AsyncConsumer(
                *topics,
                bootstrap_servers=bootstrap_servers,
                cluster_id=cluster_id,
                group_id=group_id,
                group_instance_id=group_instance_id,
                client_id=client_id,
                enable_auto_commit=enable_auto_commit,
                auto_commit_interval_ms=auto_commit_interval_ms,
                auto_offset_reset=auto_offset_reset,
                session_timeout_ms=session_timeout_ms,
                heartbeat_interval_ms=heartbeat_interval_ms,
                max_poll_interval_ms=max_poll_interval_ms,
                assignor=assignor,
                rack=rack,
                listener=hears,
                max_poll_records=max_poll_records,
                fetch_max_bytes=fetch_max_bytes,
                max_partition_fetch_bytes=max_partition_fetch_bytes,
                fetch_max_wait_ms=fetch_max_wait_ms,
                fetch_min_bytes=fetch_min_bytes,
                request_timeout_ms=request_timeout_ms,
                key_deserializer=key_deserializer,
                value_deserializer=value_deserializer,
                transport=transport,
            )
        )
        self._lock = threading.Lock()
        self._chunk: list[Record[KeyT_co, ValueT_co]] = []  # fetched by the iterator and not returned yet, last first
        self._is_closed = False
        self._reader: int | None = None
        """The thread that got the last records."""
        self._run(self._client.start)
        self._record_open(partial(self._client._finish, is_clean=False, left=None))

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close(is_clean=kind is None)

    def close(self) -> None:
        """Close the consumer, which ends iterations in all threads. See `raftmq.Consumer.close`."""
        self._close(is_clean=sys.exception() is None)

    def _close(self, *, is_clean: bool) -> None:
        """Close. The last records of the calling thread count as processed unless an exception brought it here."""
        self._is_closed = True
        self._record_closed()
        left: dict[TopicPartition, int] | None = None
        if is_clean and self._reader == threading.get_ident():
            with self._lock:
                left = self._left()
        self._run(lambda: self._client._finish(is_clean=is_clean, left=left))

    def metrics(self) -> ConsumerMetrics:
        """Return counters and the current state, as `raftmq.Consumer.metrics` does."""
        return self._call(self._client.metrics)

    # ----------------------------------------------------------------------------------------------------------- reading

    def __iter__(self) -> Iterator[Record[KeyT_co, ValueT_co]]:
        """Return an iterator over records until the consumer is closed. Raises as `raftmq.Consumer.getmany` does."""
        self._check()
        return self

    def __next__(self) -> Record[KeyT_co, ValueT_co]:
        while True:
            self._check()
            with self._lock:
                if self._is_closed:
                    raise StopIteration
                if self._chunk:
                    self._reader = threading.get_ident()
                    return self._chunk.pop()
                try:
                    found = self._take((), ITERATION_WAIT_MS, ITERATION_RECORDS_MAX)
                except ClosedClientError:
                    if self._is_closed:
                        raise StopIteration from None
                    raise
                self._chunk = [record for records in found.values() for record in records]
                self._chunk.reverse()

    def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record[KeyT_co, ValueT_co]]]:
        """Return the next records by partition, empty if there are none in time. See `raftmq.Consumer.getmany`."""
        self._give_back()
        self._reader = threading.get_ident()
        return self._take(partitions, timeout_ms, max_records)

    def _take(
        self, partitions: Sequence[TopicPartition], timeout_ms: float, max_records: int | None
    ) -> dict[TopicPartition, list[Record[KeyT_co, ValueT_co]]]:
        """Return records as `getmany` does. If Ctrl-C interrupts it while records arrive, they are put back, because no caller gets them."""
        self._check()
        found: dict[TopicPartition, list[Record[KeyT_co, ValueT_co]]] = {}
        interrupted = threading.Event()

        def give_back() -> None:
            self._client._assignment.give_back({partition: records[0].offset for partition, records in found.items()})

        async def take() -> None:
            found.update(await self._client.getmany(*partitions, timeout_ms=timeout_ms, max_records=max_records))
            if interrupted.is_set():
                give_back()

        try:
            self._run(take)
        except BaseException:
            interrupted.set()  # either `take` sees it, or its records are put back by the call below (doing both is harmless)
            self._loop.loop.call_soon_threadsafe(give_back)
            raise
        return found

    def _left(self) -> dict[TopicPartition, int]:
        """Return the first offset of each partition that the iterator took and did not return. The lock must be held."""
        first: dict[TopicPartition, int] = {}
        for record in reversed(self._chunk):
            first.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        return first

    def _give_back(self) -> None:
        """Put back the records that the iterator took and did not return, so that positions are exact."""
        with self._lock:
            first, self._chunk = self._left(), []
            if first:
                self._call(lambda: self._client._assignment.give_back(first))

    # -------------------------------------------------------------------------------------------- assignment, positions

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Assign partitions. See `raftmq.Consumer.assign`."""
        self._give_back()
        wanted = list(partitions)
        self._call(lambda: self._client.assign(wanted))

    def subscribe(
        self,
        topics: Iterable[str] = (),
        *,
        pattern: str | None = None,
        listener: RebalanceListener | _AsyncRebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics. See `raftmq.Consumer.subscribe`."""
        self._give_back()
        names = topics if isinstance(topics, str) else tuple(topics)
        hears = _ListenerInThread(listener) if isinstance(listener, RebalanceListener) else listener
        self._call(lambda: self._client.subscribe(names, pattern=pattern, listener=hears))

    def unsubscribe(self) -> None:
        """Stop reading and leave the group. See `raftmq.Consumer.unsubscribe`."""
        self._give_back()
        self._call(self._client.unsubscribe)

    def subscription(self) -> frozenset[str]:
        """Return the subscribed topics. See `raftmq.Consumer.subscription`."""
        return self._call(self._client.subscription)

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions. See `raftmq.Consumer.assignment`."""
        return self._call(self._client.assignment)

    def pause(self, *partitions: TopicPartition) -> None:
        """Pause partitions. See `raftmq.Consumer.pause`."""
        self._give_back()
        self._call(lambda: self._client.pause(*partitions))

    def resume(self, *partitions: TopicPartition) -> None:
        """Resume partitions. See `raftmq.Consumer.resume`."""
        self._call(lambda: self._client.resume(*partitions))

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions. See `raftmq.Consumer.paused`."""
        return self._call(self._client.paused)

    def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit offsets: those given, or those of all records that the program's threads got. See `raftmq.Consumer.commit`."""
        self.commit_nowait(offsets).result()

    def commit_nowait(self, offsets: Mapping[TopicPartition, int] | None = None) -> concurrent.futures.Future[None]:
        """Commit offsets as `commit` does, without waiting. The future has the outcome. Commits of a partition keep their order."""
        self._check()
        if offsets is not None:
            return self._loop.start(self._commit(offsets, {}))
        with self._lock:  # until the commit is started, or records that another thread takes would count as returned
            return self._loop.start(self._commit(None, self._left()))

    async def _commit(self, offsets: Mapping[TopicPartition, int] | None, left: Mapping[TopicPartition, int]) -> None:
        await self._client._commit(offsets, left)

    def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Return the group's committed offsets. See `raftmq.Consumer.committed`."""
        return self._run(lambda: self._client.committed(*partitions))

    def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the number of records after each position. See `raftmq.Consumer.lag`."""
        self._give_back()
        return self._run(lambda: self._client.lag(*partitions))

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return the last known end of a partition. See `raftmq.Consumer.highwater`."""
        return self._call(lambda: self._client.highwater(partition))

    def position(self, partition: TopicPartition) -> int:
        """Return the offset of the next record. See `raftmq.Consumer.position`."""
        self._give_back()
        return self._run(lambda: self._client.position(partition))

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at an offset. See `raftmq.Consumer.seek`."""
        self._give_back()
        self._run(lambda: self._client.seek(partition, offset))

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go to the first records. See `raftmq.Consumer.seek_to_beginning`."""
        self._give_back()
        self._run(lambda: self._client.seek_to_beginning(*partitions))

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go to the ends of partitions. See `raftmq.Consumer.seek_to_end`."""
        self._give_back()
        self._run(lambda: self._client.seek_to_end(*partitions))

    def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Go to the group's committed offsets. See `raftmq.Consumer.seek_to_committed`."""
        self._give_back()
        return self._run(lambda: self._client.seek_to_committed(*partitions))

    def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first readable offsets. See `raftmq.Consumer.beginning_offsets`."""
        wanted = list(partitions)
        return self._run(lambda: self._client.beginning_offsets(wanted))

    def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the ends of partitions. See `raftmq.Consumer.end_offsets`."""
        wanted = list(partitions)
        return self._run(lambda: self._client.end_offsets(wanted))

    def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic. See `raftmq.Consumer.partition_count`."""
        return self._run(lambda: self._client.partition_count(topic))

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first records at or after a time. See `raftmq.Consumer.offsets_for_times`."""
        return self._run(lambda: self._client.offsets_for_times(times_ms))


class Admin(_Client):
    """`raftmq.Admin` for synchronous code. Any number of threads may share one. It connects when it is created."""

    _name = "admin"

    def __init__(
        self,
        *,
        bootstrap_servers: str | Sequence[str] = "localhost:9400",
        cluster_id: str = "",
        client_id: str = "raftmq",
        request_timeout_ms: float = 30_000,
        transport: Transport | None = None,
    ) -> None:
        super().__init__()
        self._client = self._make(
            lambda: _AsyncAdmin(
                bootstrap_servers=bootstrap_servers,
                cluster_id=cluster_id,
                client_id=client_id,
                request_timeout_ms=request_timeout_ms,
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
        self.close()

    def close(self) -> None:
        """Close the connections. See `raftmq.Admin.close`."""
        self._record_closed()
        self._run(self._client.close)

    def create_topic(
        self,
        name: str,
        partitions: int | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str | int] | None = None,
        *,
        if_not_exists: bool = False,
    ) -> TopicDescription:
        """Create a topic. See `raftmq.Admin.create_topic`."""
        return self._run(
            lambda: self._client.create_topic(name, partitions, replication_factor, config, if_not_exists=if_not_exists)
        )

    def create_topics(self, topics: Iterable[NewTopic], *, if_not_exists: bool = False) -> dict[str, TopicDescription]:
        """Create several topics. See `raftmq.Admin.create_topics`."""
        wanted = list(topics)
        return self._run(lambda: self._client.create_topics(wanted, if_not_exists=if_not_exists))

    def delete_topic(self, name: str) -> None:
        """Delete a topic. See `raftmq.Admin.delete_topic`."""
        self._run(lambda: self._client.delete_topic(name))

    def list_topics(self) -> list[TopicDescription]:
        """Return all topics. See `raftmq.Admin.list_topics`."""
        return self._run(self._client.list_topics)

    def describe_topic(self, name: str, *, ask_leaders: bool = False) -> TopicDescription:
        """Describe a topic. See `raftmq.Admin.describe_topic`."""
        return self._run(lambda: self._client.describe_topic(name, ask_leaders=ask_leaders))

    def alter_topic_config(
        self,
        name: str,
        set: Mapping[str, str | int] | None = None,  # noqa: A002 - reads as what it does
        unset: Sequence[str] = (),
    ) -> None:
        """Change a topic's configuration. See `raftmq.Admin.alter_topic_config`."""
        self._run(lambda: self._client.alter_topic_config(name, set, unset))

    def add_partitions(self, name: str, total: int) -> TopicDescription:
        """Add partitions to a topic. See `raftmq.Admin.add_partitions`."""
        return self._run(lambda: self._client.add_partitions(name, total))

    def delete_records(self, before_offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete records below given offsets. See `raftmq.Admin.delete_records`."""
        return self._run(lambda: self._client.delete_records(before_offsets))

    def list_groups(self) -> list[GroupListing]:
        """Return all consumer groups. See `raftmq.Admin.list_groups`."""
        return self._run(self._client.list_groups)

    def describe_group(self, group: str) -> GroupDescription:
        """Describe a consumer group. See `raftmq.Admin.describe_group`."""
        return self._run(lambda: self._client.describe_group(group))

    def reset_group_offsets(
        self,
        group: str,
        *,
        to: Literal["earliest", "latest"] | None = None,
        time_ms: int | None = None,
        shift: int | None = None,
        offsets: Mapping[TopicPartition, int] | None = None,
        topics: Iterable[str] = (),
        partitions: Iterable[TopicPartition] = (),
        dry_run: bool = False,
        fence_members: bool = False,
    ) -> list[OffsetChange]:
        """Reset a group's offsets. See `raftmq.Admin.reset_group_offsets`."""
        return self._run(
            lambda: self._client.reset_group_offsets(
                group,
                to=to,
                time_ms=time_ms,
                shift=shift,
                offsets=offsets,
                topics=topics,
                partitions=partitions,
                dry_run=dry_run,
                fence_members=fence_members,
            )
        )

    def delete_group(self, group: str) -> int:
        """Delete a consumer group. See `raftmq.Admin.delete_group`."""
        return self._run(lambda: self._client.delete_group(group))

    def remove_group_member(self, group: str, *, member_id: str = "", instance_id: str = "") -> None:
        """Remove a member from its group. See `raftmq.Admin.remove_group_member`."""
        self._run(lambda: self._client.remove_group_member(group, member_id=member_id, instance_id=instance_id))

    def describe_cluster(self, *, ask_brokers: bool = False) -> ClusterDescription:
        """Describe the cluster. See `raftmq.Admin.describe_cluster`."""
        return self._run(lambda: self._client.describe_cluster(ask_brokers=ask_brokers))

    def remove_broker(self, broker_id: int, *, force: bool = False) -> BrokerRemoval:
        """Remove a broker from the cluster. See `raftmq.Admin.remove_broker`."""
        return self._run(lambda: self._client.remove_broker(broker_id, force=force))
