"""Read records from synchronous code: `Consumer`."""

from __future__ import annotations

import concurrent.futures
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Generic, Self

from raftmq.client.base import settings
from raftmq.client.base.metrics import ConsumerMetrics
from raftmq.client.connection.time_search import OffsetAndTimestamp
from raftmq.client.connection.transport import Transport
from raftmq.client.consumer.consumer import Consumer as AsyncConsumer
from raftmq.client.consumer.consumer_settings import OffsetReset
from raftmq.client.consumer.rebalance_listener import RebalanceListener as AsyncRebalanceListener
from raftmq.errors import ClosedClientError
from raftmq.sync.client import SyncClient
from raftmq.sync.rebalance_listener import ListenerInThread, RebalanceListener
from raftmq.types import KeyT_co, Record, TopicPartition, ValueT_co

ITERATION_RECORDS_MAX = 500
"""Maximum number of records fetched together by an iteration. An event-loop round trip for each would cost more than the record."""
ITERATION_SECONDS_MAX = 1.0
"""Time after which an iteration gives back the fetched records that it has not returned. Only by fetching does the group learn that the program goes
on, and which records it has processed."""
ITERATION_WAIT_MS = 1000
"""Time for which an iterating thread waits in the loop before it checks again whether the consumer was closed."""


class Consumer(SyncClient, Generic[KeyT_co, ValueT_co]):
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
        listener: RebalanceListener | AsyncRebalanceListener | None = None,
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
        hears = ListenerInThread(listener) if isinstance(listener, RebalanceListener) else listener
        self._client = self._make(
            lambda: AsyncConsumer(
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
        self._turn = threading.Lock()
        """Held while waiting for the lock, so that a thread that iterates does not get the lock again before the others."""
        self._chunk: list[Record[KeyT_co, ValueT_co]] = []  # fetched by the iterator and not returned yet, last first
        self._chunk_max = ITERATION_RECORDS_MAX
        """Maximum number of records that the iterator fetches next: about as many as the program processed in the time, if it is slow."""
        self._chunk_size = 0
        """The number of records that it fetched last."""
        self._chunk_until = 0.0
        """The time (`time.monotonic`) at which the rest of the chunk is given back."""
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
            self._check()  # in a forked child, a thread that does not exist there may hold the lock
            with self._turn, self._lock:
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
            with self._turn:
                pass
            with self._lock:
                if self._is_closed:
                    raise StopIteration
                left_seconds = self._chunk_until - time.monotonic()
                if self._chunk and left_seconds > 0:
                    self._reader = threading.get_ident()
                    return self._chunk.pop()
                if self._chunk:
                    self._chunk_max = max(1, self._chunk_size - len(self._chunk))
                    self._put_back()
                elif left_seconds > ITERATION_SECONDS_MAX / 2:
                    self._chunk_max = min(2 * self._chunk_max, ITERATION_RECORDS_MAX)
                try:
                    found = self._take((), ITERATION_WAIT_MS, self._chunk_max)
                except ClosedClientError:
                    if self._is_closed:
                        raise StopIteration from None
                    raise
                self._chunk = [record for records in found.values() for record in records]
                self._chunk.reverse()
                self._chunk_size = len(self._chunk)
                self._chunk_until = time.monotonic() + ITERATION_SECONDS_MAX

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
        self._check()
        with self._turn, self._lock:
            self._put_back()

    def _put_back(self) -> None:
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
        listener: RebalanceListener | AsyncRebalanceListener | None = None,
    ) -> None:
        """Subscribe to topics. See `raftmq.Consumer.subscribe`."""
        self._give_back()
        names = topics if isinstance(topics, str) else tuple(topics)
        hears = ListenerInThread(listener) if isinstance(listener, RebalanceListener) else listener
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
        with (
            self._turn,
            self._lock,
        ):  # until the commit is started, or records that another thread takes would count as returned
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
        self, times_ms: Mapping[TopicPartition, int], *, by_append_time: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first records at or after a time. See `raftmq.Consumer.offsets_for_times`."""
        return self._run(lambda: self._client.offsets_for_times(times_ms, by_append_time=by_append_time))
