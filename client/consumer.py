"""`Consumer`: reads records of assigned partitions, ahead of the reader, in offset order per partition.

Must not know gRPC or topology (the fetcher's and the resolver's part). Invariants: records of a partition come in offset order
without gaps, but for a reset or a seek; nothing is handed out twice without a seek.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import Literal, Self

import msgspec
from raftmq.client import settings
from raftmq.client.fetcher import Fetcher, FetchLimits
from raftmq.client.fork_guard import check_not_forked, current_generation
from raftmq.client.leader_calls import EARLIEST_TIME, LATEST_TIME, OffsetAndTimestamp, list_offsets
from raftmq.client.logs import log
from raftmq.client.metrics import ConsumerMetrics
from raftmq.client.partition_fetch import PartitionFetch
from raftmq.client.resolver import Resolver
from raftmq.client.transport import GrpcTransport, Transport
from raftmq.errors import (
    ClosedClientError,
    GroupsNotSupportedError,
    InvalidArgumentError,
    RaftMQError,
    RequestTimedOutError,
)
from raftmq.types import Record, TopicPartition

OffsetReset = Literal["latest", "earliest", "none"]
_RESET_TIMES: dict[str, int | None] = {"latest": LATEST_TIME, "earliest": EARLIEST_TIME, "none": None}


class Consumer:
    """Reads records, from one event loop.

    ::

        async with Consumer("flights", bootstrap_servers="localhost:9400", auto_offset_reset="earliest") as consumer:
            async for record in consumer:
                print(record.partition, record.offset, record.value)

    With topics, all their partitions are assigned, also those added later (from their first record on). Without, use `assign`.
    Only committed records are read. The position of a partition is the offset of the record that is handed out next.

    Args:
        topics: what to read; nothing: call `assign`.
        bootstrap_servers: ``"host:port[,host:port...]"`` or a sequence; any of the cluster's brokers.
        group_id: must be None: consumer groups are not part of this release.
        client_id: a name for logs.
        auto_offset_reset: where to begin without a position, and after the records at the position were deleted.
        max_poll_records: most records of one `getmany`. The default, 10,000, is decoded in a few milliseconds, which is as long
            as anything should keep the event loop.
        fetch_max_bytes: most bytes of one answer (one batch always fits).
        max_partition_fetch_bytes: most bytes of one partition in an answer, and the mark below which it is fetched ahead.
        fetch_max_wait_ms: how long a broker holds a poll that has nothing to return.
        fetch_min_bytes: how much it waits for.
        request_timeout_ms: how long `start`, and each lookup of topics and offsets, may take.
        key_deserializer: applied to keys that are not None.
        value_deserializer: the same for values.
        transport: replaces gRPC, for simulations.
    """

    def __init__(
        self,
        *topics: str,
        bootstrap_servers: str | Sequence[str] = "localhost:9400",
        group_id: str | None = None,
        client_id: str = "raftmq",
        auto_offset_reset: OffsetReset = "latest",
        max_poll_records: int = 10_000,
        fetch_max_bytes: int = settings.FETCH_MESSAGE_BYTES_MAX,
        max_partition_fetch_bytes: int = settings.MIB,
        fetch_max_wait_ms: int = 500,
        fetch_min_bytes: int = 1,
        request_timeout_ms: float = 30_000,
        key_deserializer: Callable[[bytes], object] | None = None,
        value_deserializer: Callable[[bytes], object] | None = None,
        transport: Transport | None = None,
    ) -> None:
        if group_id is not None:
            raise GroupsNotSupportedError("group_id: consumer groups are not part of this release; leave it out")
        if auto_offset_reset not in _RESET_TIMES:
            raise InvalidArgumentError(f"auto_offset_reset {auto_offset_reset!r}: use latest, earliest or none")
        if max_poll_records < 1 or fetch_max_bytes < 1 or max_partition_fetch_bytes < 1 or request_timeout_ms <= 0:
            raise InvalidArgumentError("limits must be positive")
        if fetch_max_wait_ms < 0 or fetch_min_bytes < 0:
            raise InvalidArgumentError("fetch_max_wait_ms and fetch_min_bytes must not be negative")
        self.client_id = client_id
        if not all(isinstance(topic, str) for topic in topics):
            raise TypeError(f"topics are names, one argument each: Consumer('a', 'b'), not {topics!r}")
        self._topics = tuple(dict.fromkeys(topics))
        self._reset_time = _RESET_TIMES[auto_offset_reset]
        self._records_max = max_poll_records
        self._key_deserializer = key_deserializer
        self._value_deserializer = value_deserializer
        self._timeout_seconds = request_timeout_ms / 1000
        self._resolver = Resolver(bootstrap_servers, transport or GrpcTransport())
        limits = FetchLimits(
            fetch_max_bytes=min(fetch_max_bytes, settings.FETCH_MESSAGE_BYTES_MAX),
            fetch_min_bytes=fetch_min_bytes,
            fetch_max_wait_ms=fetch_max_wait_ms,
            partition_fetch_max_bytes=min(max_partition_fetch_bytes, settings.FETCH_MESSAGE_BYTES_MAX),
            request_timeout_seconds=self._timeout_seconds,
        )
        self._data = asyncio.Event()
        self._fetcher = Fetcher(self._resolver, limits, self._data.set, self._on_crash)
        self._order: list[PartitionFetch] = []  # the partition read last is at the end
        self._current: PartitionFetch | None = None
        self._generation = current_generation()
        self._is_open = False
        self._is_closed = False
        self._failure: BaseException | None = None

    # -------------------------------------------------------------------------------------------------------- lifecycle

    async def start(self) -> None:
        """Connect, and find the topics and the positions of everything assigned. ``async with`` calls it.

        With ``auto_offset_reset="latest"`` every record written after it returns is read. Waits up to `request_timeout_ms`.
        Cancelled or failed, the consumer is closed.

        Raises:
            BootstrapError: no bootstrap address answered in time.
            UnknownTopicError: there is no such topic.
            NoLeaderError: nobody leads one of its partitions, so where it ends is not known.
            RaftMQError: positions could not be looked up in time.
        """
        check_not_forked(self._generation, "consumer")
        if self._is_closed or self._is_open:
            raise ClosedClientError("a consumer is started once; make a new one")
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_seconds
        try:
            await self._resolver.start(self._timeout_seconds)
            for topic in self._topics:
                remaining = max(deadline - loop.time(), settings.LAST_TRY_SECONDS)
                info = await self._resolver.topic(topic, remaining)
                self._add(TopicPartition(topic, number) for number in range(info.partition_count))
            if self._reset_time is not None:
                remaining = max(deadline - loop.time(), settings.LAST_TRY_SECONDS)
                await self._fetcher.prepare([p for p in self._order if p.position is None], remaining)
            self._raise_first_error()
            self._resolver.check()  # closed meanwhile
        except BaseException:
            await self._close_now()
            raise
        self._is_open = True
        self._resolver.subscribe(self._on_topology)
        self._fetcher.start()
        log.info("consumer_started client_id=%s partitions=%d", self.client_id, len(self._order))

    async def close(self) -> None:
        """Stop fetching and close the connections, at once. Calling it again does nothing; iteration ends."""
        check_not_forked(self._generation, "consumer")
        await self._close_now()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def metrics(self) -> ConsumerMetrics:
        """What the consumer has counted since its start, and what it holds now. Cheap; does not wait; also after `close`."""
        counters, requests = self._fetcher.counters, self._fetcher.counters.requests
        return ConsumerMetrics(
            records_total=counters.records_total,
            batches_total=counters.batches_total,
            bytes_total=counters.bytes_total,
            requests_total=requests.requests_total,
            request_seconds_sum=requests.seconds_sum,
            request_seconds_max=requests.seconds_max,
            errors_total=dict(requests.errors),
            requests_in_flight=self._fetcher.polls_in_flight,
            buffer_bytes=sum(state.buffered_bytes for state in self._order),
            partitions=len(self._order),
            partitions_paused=sum(state.is_paused for state in self._order),
        )

    async def _close_now(self) -> None:
        self._is_open, self._is_closed = False, True
        self._data.set()
        try:
            await self._fetcher.close()
        finally:
            await self._resolver.close()

    # ------------------------------------------------------------------------------------------------------- assignment

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions from now on; those assigned before keep their positions. Does not wait.

        Raises `InvalidArgumentError` for a consumer that was made with topics.
        """
        check_not_forked(self._generation, "consumer")
        if self._topics:
            raise InvalidArgumentError("the consumer reads whole topics; make one without topics to assign partitions")
        wanted = list(partitions)
        for partition in wanted:
            if not isinstance(partition, TopicPartition):
                raise TypeError(
                    f"assign takes TopicPartitions in a list, such as [TopicPartition('t', 0)], not {partition!r}"
                )
        kept = set(wanted)
        for dropped in [known for known in self._fetcher.partitions if known not in kept]:
            self._order.remove(self._fetcher.partitions.pop(dropped))
        self._current = None
        self._add(wanted)

    def assignment(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        check_not_forked(self._generation, "consumer")
        return frozenset(self._fetcher.partitions)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing from these partitions until `resume`; what is fetched is kept. Does not wait."""
        check_not_forked(self._generation, "consumer")
        for state in self._states(partitions):
            state.is_paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`. Does not wait."""
        check_not_forked(self._generation, "consumer")
        for state in self._states(partitions):
            state.is_paused = False
        self._data.set()
        self._fetcher.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        check_not_forked(self._generation, "consumer")
        return frozenset(tp for tp, state in self._fetcher.partitions.items() if state.is_paused)

    # -------------------------------------------------------------------------------------------------------- positions

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the record handed out next; waits until it is looked up, at most `request_timeout_ms`.

        Raises:
            RequestTimedOutError: it is not known in time.
            RaftMQError: the error that stopped the partition.
        """
        self._check_usable()
        (state,) = self._states([partition])
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds
        while state.position is None:
            state.raise_error()
            if not await self._wait_data(deadline):
                raise RequestTimedOutError(f"{partition.topic}/{partition.partition}: no position in time")
            self._check_usable()
        return state.position

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Hand out the record at `offset` next. What it means that there is none shows when reading (`auto_offset_reset`)."""
        self._check_usable()
        if offset < 0:
            raise InvalidArgumentError(f"an offset is not negative: {offset}; see seek_to_beginning and seek_to_end")
        self._seek(self._states([partition]), {partition: offset})

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go to the first record there is; without arguments, in every assigned partition.

        Waits for the brokers, at most `request_timeout_ms`; cancelled or failed, positions are as before. Raises `RaftMQError`.
        """
        states = self._states(partitions)
        self._seek(states, await self.beginning_offsets([state.topic_partition for state in states]))

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go behind the last committed record; without arguments, in every assigned partition. As `seek_to_beginning`."""
        states = self._states(partitions)
        self._seek(states, await self.end_offsets([state.topic_partition for state in states]))

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that can be read, of any partitions. Waits at most `request_timeout_ms`; raises `RaftMQError`."""
        return await self._offsets_at(partitions, EARLIEST_TIME)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last committed offset, of any partitions. Waits at most `request_timeout_ms`; raises `RaftMQError`."""
        return await self._offsets_at(partitions, LATEST_TIME)

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record appended at or after a time (milliseconds since the epoch), per partition; None when there is none.

        It is the time at which the leader appended the record that counts, not the producer's timestamp: that never decreases,
        so the answer is exact. Waits at most `request_timeout_ms`; raises `RaftMQError`.
        """
        self._check_usable()
        if any(time_ms < 0 for time_ms in times_ms.values()):
            raise InvalidArgumentError("times are not negative")
        found = await list_offsets(self._resolver, dict(times_ms), self._timeout_seconds)
        return {partition: None if at.offset < 0 else at for partition, at in found.items()}

    async def _offsets_at(self, partitions: Iterable[TopicPartition], time: int) -> dict[TopicPartition, int]:
        self._check_usable()
        found = await list_offsets(self._resolver, dict.fromkeys(partitions, time), self._timeout_seconds)
        return {partition: at.offset for partition, at in found.items()}

    # ----------------------------------------------------------------------------------------------------------- reading

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record]]:
        """The next records, by partition; an empty dictionary, never an exception, when there are none in time.

        Args:
            partitions: only these; default: all assigned.
            timeout_ms: how long to wait for a first record. 0 returns what is there.
            max_records: most records in all; default `max_poll_records`.

        Raises:
            CorruptBatchError: the next batch of a partition cannot be decoded. Seek to its `next_offset` to go on, or call again
                to fetch it again.
            OffsetOutOfRangeError: the records at the position are gone and ``auto_offset_reset`` is ``"none"``.
            NoPositionError, UnknownTopicError, UnknownPartitionError: a partition cannot be read.
            ClosedClientError, ForkedClientError: the consumer cannot be used.

        Whatever a deserializer raises is raised too, with a note that says which record it was. That record stays the next one
        of its partition: `seek` behind it to go on.

        An error is raised only when it is first in line; records before it are returned first. Cancelling while it waits loses
        nothing.
        """
        self._check_usable()
        count_max = self._records_max if max_records is None else max_records
        if count_max < 1:
            raise InvalidArgumentError("max_records must be positive")
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        chosen = set(map(TopicPartition._make, partitions))
        if chosen:
            self._states(chosen)
        while True:
            found = self._collect(chosen, count_max)
            if found or not await self._wait_data(deadline):
                return found
            self._check_usable()

    def __aiter__(self) -> Self:
        self._check_usable()
        return self

    async def __anext__(self) -> Record:
        """The next record of any partition; waits for it without limit. Ends when the consumer is closed. Raises as `getmany`.

        With nothing to read from (no topics, nothing assigned) it raises `InvalidArgumentError` rather than wait for ever.
        """
        while True:
            current = self._current
            if current is not None and not current.is_paused:
                buffered_bytes = current.buffered_bytes
                record = current.take_one()
                if record is not None:
                    if current.buffered_bytes != buffered_bytes:
                        self._fetcher.wake()  # a batch was opened: there is room to fetch the next
                    try:
                        return self._deserialized(record)
                    except BaseException:
                        current.give_back((record,))
                        raise
            if self._is_closed:
                raise StopAsyncIteration
            self._check_usable()
            self._data.clear()
            self._current = self._next_with_records(())
            self._fetcher.wake()
            if self._current is None:
                if not self._fetcher.partitions and not self._topics:
                    raise InvalidArgumentError("nothing is assigned: name topics, or call assign() before reading")
                await self._data.wait()

    def _collect(self, chosen: set[TopicPartition], count_max: int) -> dict[TopicPartition, list[Record]]:
        """What is there, of as many partitions and batches as fit, beginning with the partition that waited longest."""
        self._data.clear()
        found: dict[TopicPartition, list[Sequence[Record]]] = {}
        room = count_max
        while room > 0 and (state := self._next_with_records(chosen)) is not None:
            try:
                records = state.take(room)
            except RaftMQError:
                if found:
                    break  # first what precedes it
                raise
            if self._key_deserializer is not None or self._value_deserializer is not None:
                whole = len(records)
                records = self._deserialized_part(state, records, must_succeed=bool(found))
                if len(records) < whole:
                    room = 0  # first what precedes the record that failed
            if records:
                found.setdefault(state.topic_partition, []).append(records)
                room -= len(records)
        self._fetcher.wake()
        return {partition: _joined(parts) for partition, parts in found.items()}

    def _deserialized_part(
        self, state: PartitionFetch, records: Sequence[Record], *, must_succeed: bool
    ) -> Sequence[Record]:
        """The records as the program wants them, up to the first that a deserializer fails on; the rest is given back.

        Raises what the deserializer raised when that is the first of them, unless `must_succeed`.
        """
        made: list[Record] = []
        try:
            for record in records:
                made.append(self._deserialized(record))  # noqa: PERF401 -- what was made before a failure is kept
        except BaseException as error:
            state.give_back(records[len(made) :])
            if (not made and not must_succeed) or not isinstance(error, Exception):
                raise
        return made

    def _next_with_records(self, chosen: Iterable[TopicPartition]) -> PartitionFetch | None:
        for at, state in enumerate(self._order):
            if state.has_records and (not chosen or state.topic_partition in chosen):
                self._order.append(self._order.pop(at))
                return state
        return None

    def _deserialized(self, record: Record) -> Record:
        keys, values = self._key_deserializer, self._value_deserializer
        try:
            if keys is not None and record.key is not None:
                record = msgspec.structs.replace(record, key=keys(record.key))  # the user's own type
            if values is not None and record.value is not None:
                record = msgspec.structs.replace(record, value=values(record.value))
        except Exception as error:
            error.add_note(f"raised by a deserializer of {record.topic}/{record.partition} at offset {record.offset}")
            raise
        return record

    # ---------------------------------------------------------------------------------------------------------- internal

    async def _wait_data(self, deadline: float) -> bool:
        """Wait until something arrived; False when the time is over. `_data` must have been cleared before looking."""
        remaining = deadline - asyncio.get_running_loop().time()
        if remaining <= 0:
            await asyncio.sleep(0)  # a caller that polls without waiting must still let the fetcher run
            return False
        try:
            async with asyncio.timeout(remaining):
                await self._data.wait()
        except TimeoutError:
            return False
        self._data.clear()
        return True

    def _add(self, partitions: Iterable[TopicPartition], *, is_late: bool = False) -> None:
        for partition in partitions:
            if partition not in self._fetcher.partitions:
                # A partition that is added while we read is read from its start: "latest" would skip what came before we knew.
                reset_time = EARLIEST_TIME if is_late else self._reset_time
                state = PartitionFetch(partition, reset_time, self._fetcher.counters)
                self._fetcher.partitions[partition] = state
                self._order.append(state)
        self._fetcher.wake()

    def _on_topology(self) -> None:
        for topic in self._topics:
            info = self._resolver.topics.get(topic)
            if info is not None:
                self._add((TopicPartition(topic, number) for number in range(info.partition_count)), is_late=True)
        self._data.set()

    def _seek(self, states: Sequence[PartitionFetch], offsets: Mapping[TopicPartition, int]) -> None:
        for state in states:
            state.seek(offsets[state.topic_partition], self._reset_time)
        self._current = None
        self._fetcher.wake()

    def _states(self, partitions: Iterable[TopicPartition]) -> list[PartitionFetch]:
        """The assigned partitions named, or all."""
        names = list(partitions) or list(self._fetcher.partitions)
        try:
            return [self._fetcher.partitions[name] for name in names]
        except KeyError as error:
            raise InvalidArgumentError(f"{error.args[0]} is not assigned") from None

    def _raise_first_error(self) -> None:
        for state in self._order:
            state.raise_error()

    def _check_usable(self) -> None:
        check_not_forked(self._generation, "consumer")
        if not self._is_open:
            raise ClosedClientError(
                "the consumer is closed; make a new one"
                if self._is_closed
                else "the consumer is not started: use async with, or await start()"
            )
        self._resolver.check()
        if self._failure is not None:
            raise ClosedClientError("the consumer stopped after an internal error") from self._failure

    def _on_crash(self, error: BaseException) -> None:
        self._failure = self._failure or error
        self._data.set()


def _joined(parts: list[Sequence[Record]]) -> list[Record]:
    return list(parts[0]) if len(parts) == 1 else list(chain.from_iterable(parts))
