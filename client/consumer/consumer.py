"""`Consumer`: reads records of partitions, in offset order per partition and ahead of the reader, alone or as a member of a group.

Must not know gRPC or the topology (the fetcher and the resolver do) or how a group shares partitions (`group_session.py` does).
Invariants: records of a partition are returned in offset order without gaps, except after a reset or a seek. No record is returned twice
without a seek or another owner in between.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Generic, Self

from raftmq.client.base import settings
from raftmq.client.base.affinity import ClientAffinity
from raftmq.client.base.arguments import LONG_MAX, check_positive, check_whole
from raftmq.client.base.background import Deadline
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.client.base.loop_budget import LoopBudget
from raftmq.client.base.metrics import ConsumerMetrics
from raftmq.client.base.settings import LOOP_LOOK_CALLS
from raftmq.client.base.texts import check_text
from raftmq.client.base.tracing import active_tracing
from raftmq.client.connection.leader_calls import EARLIEST_TIME, LATEST_TIME, list_offsets
from raftmq.client.connection.resolver import Resolver
from raftmq.client.connection.time_search import OffsetAndTimestamp
from raftmq.client.connection.topic_kinds import require_readable_log
from raftmq.client.connection.transport import GrpcTransport, Transport
from raftmq.client.consumer.assignment import Assignment
from raftmq.client.consumer.consumer_settings import (
    OffsetReset,
    checked_offsets,
    checked_partitions,
    fetch_limits,
    group_settings,
    reset_time_of,
    subscription_of,
)
from raftmq.client.consumer.fetcher import Fetcher
from raftmq.client.consumer.partition_fetch import PartitionFetch
from raftmq.client.consumer.processed import handed_out_offsets
from raftmq.client.consumer.rebalance_listener import RebalanceListener
from raftmq.client.consumer.record_buffer import RecordBuffer
from raftmq.client.membership.group_calls import fetch_offsets
from raftmq.errors import ClosedClientError, InvalidArgumentError, NoPositionError, RequestTimedOutError
from raftmq.types import KeyT_co, Record, TopicPartition, ValueT_co

if TYPE_CHECKING:
    from raftmq.client.base.spans import Tracing

NOTHING: Final[Mapping[TopicPartition, int]] = {}


class Consumer(Generic[KeyT_co, ValueT_co]):
    """Reads records, from one event loop.

    ::

        async with Consumer("flights", bootstrap_servers="localhost:9400", group_id="radar") as consumer:
            async for record in consumer:
                print(record.partition, record.offset, record.value)

    With a group, its members share the partitions of the topics, and offsets are committed. Without one, all partitions are assigned,
    including partitions that are added later (from their first record on). Without topics, use `subscribe` or `assign`. Only committed
    records are read. The position of a partition is the offset of the record that is returned next.

    A topic that is deleted raises `UnknownTopicError`. If it is created again under its name, the consumer continues in the new topic, at its
    first record or at the group's committed offset there. With ``auto_offset_reset="none"`` and no committed offset, it raises
    `NoPositionError` until a `seek`.

    Type checkers infer the types of keys and values from the deserializers: with ``value_deserializer=Json(Order).deserialize`` it is a
    ``Consumer[bytes, Order]`` and returns ``Record[bytes, Order]``, whose value is an ``Order``, or None in a tombstone.

    One task reads at a time. By asking for the next record, or for the next `getmany`, the program declares that it has processed the
    previous records. Automatic commits contain the processed records, and a partition moves to another member only when its records are processed.

    Args:
        topics: the topics to read. Without any, call `subscribe` or `assign`.
        bootstrap_servers: ``"host:port[,host:port...]"`` or a sequence; any of the cluster's brokers.
        cluster_id: the only cluster to use, as `raftmq cluster status` shows it. By default it is the cluster of the first broker that
            answers, even if that cluster was formed by mistake.
        group_id: the consumer group. None: no group, and no commits.
        group_instance_id: a name of this member that survives restarts of the process. A member that restarts within its session gets the
            same partitions.
        client_id: a name for logs and for the list of members.
        enable_auto_commit: commit processed records every `auto_commit_interval_ms`, before partitions are released, and at a clean end.
        auto_commit_interval_ms: time between automatic commits.
        auto_offset_reset: ``"latest"``, ``"earliest"`` or ``"none"`` (raise an error): the position of a partition that has none, or whose
            records at the position were deleted.
        session_timeout_ms: time without a heartbeat after which the group removes the member. Heartbeats do not depend on the event loop.
        heartbeat_interval_ms: maximum time between two heartbeats. The coordinator may ask for more frequent ones.
        max_poll_interval_ms: time without a request for records after which the member leaves the group, until the program asks again.
        assignor: the strategy that assigns partitions: sticky, range, round_robin, or one that is installed on the brokers.
        rack: location of this member, for assignors that use it.
        listener: callbacks for partitions that are assigned and revoked.
        max_poll_records: maximum number of records of one `getmany`. Decoding the default, 10,000, takes a few milliseconds, and nothing
            should block the event loop for longer.
        fetch_max_bytes: maximum bytes of one answer (one batch always fits).
        max_partition_fetch_bytes: maximum bytes of one partition in an answer. A partition is fetched ahead while its buffer holds less.
        fetch_max_wait_ms: time for which a broker holds a poll until it has `fetch_min_bytes` to return.
        fetch_min_bytes: bytes for which a broker waits before it answers a poll.
        request_timeout_ms: time limit of `start`, and of each lookup of topics and offsets.
        key_deserializer: function that converts the bytes of a key. It is not called for None.
        value_deserializer: function that converts the bytes of a value. It is not called for None.
        transport: replaces gRPC, for simulations.
    """

    _has_receive_spans: ClassVar[bool] = True
    """Whether the reads of a program that traces have spans. (Not those of workers.)"""

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
        listener: RebalanceListener | None = None,
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
        check_text(client_id, "client_id")
        self.client_id = client_id
        self._reset_time = reset_time_of(auto_offset_reset)
        check_positive(max_poll_records=max_poll_records)
        check_whole(LONG_MAX, max_poll_records=max_poll_records)
        limits = fetch_limits(
            fetch_max_bytes, fetch_min_bytes, fetch_max_wait_ms, max_partition_fetch_bytes, request_timeout_ms
        )
        group = group_settings(
            group_id=group_id,
            group_instance_id=group_instance_id,
            client_id=client_id,
            enable_auto_commit=enable_auto_commit,
            auto_commit_interval_ms=auto_commit_interval_ms,
            session_timeout_ms=session_timeout_ms,
            heartbeat_interval_ms=heartbeat_interval_ms,
            max_poll_interval_ms=max_poll_interval_ms,
            assignor=assignor,
            rack=rack,
            reset_time=self._reset_time,
            request_timeout_ms=request_timeout_ms,
        )
        self._assignor = assignor
        self._records_max = max_poll_records
        self._timeout_seconds = limits.request_timeout_seconds
        transport = transport or GrpcTransport()
        self._resolver = Resolver(bootstrap_servers, transport, cluster_id=cluster_id)
        self._data = asyncio.Event()
        self._defect = _Defect(self._data.set)
        self._fetcher = Fetcher(self._resolver, limits, self._data.set, self._defect.record, group_id or "")
        self._hand_out = RecordBuffer(key_deserializer, value_deserializer)
        self._assignment = Assignment(
            group,
            subscription_of(topics, None, assignor, has_group=group is not None),
            listener or RebalanceListener(),
            self._resolver,
            transport,
            self._fetcher,
            self._hand_out,
            self._reset_time,
            self._timeout_seconds,
            self._data.set,
            self._defect.record,
        )
        self._unawaited: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[object] | None = None
        """The task that got the last records."""
        self._affinity = ClientAffinity("consumer")
        self._loop_budget = LoopBudget()
        self._steps = 0
        self._tracing: Tracing | None = None
        self._is_open = False
        self._is_closed = False
        self._has_closed = asyncio.Event()

    # -------------------------------------------------------------------------------------------------------- lifecycle

    async def start(self) -> None:
        """Connect and find the topics. With a group, join it. Without one, find all positions. ``async with`` calls it.

        With ``auto_offset_reset="latest"`` and no group, every record written after it returns is read. A group's partitions are assigned
        shortly afterwards (`RebalanceListener`). It waits up to `request_timeout_ms`. If it fails or is cancelled, the consumer is closed.

        Raises:
            BootstrapError: no bootstrap address answered in time.
            UnknownTopicError, InvalidTopicNameError: a topic does not exist, or cannot exist.
            TopicKindMismatchError: a topic is a queue.
            NoLeaderError: a partition has no leader, so its end is unknown.
            FencedError, TooManyMembersError, InvalidArgumentError: the group refuses this member.
            RaftMQError: positions could not be looked up in time, or no coordinator answered.
        """
        self._affinity.check()
        if self._is_closed or self._is_open:
            raise ClosedClientError("a consumer is started only once: create a new one")
        self._affinity.bind()
        deadline = Deadline(self._timeout_seconds)
        try:
            await self._resolver.start(self._timeout_seconds)
            chosen = self._assignment
            for topic in chosen.subscription.topics:
                info = await self._resolver.topic(topic, deadline.remaining())
                require_readable_log(info)
                if chosen.group is None:
                    chosen.add(TopicPartition(topic, number) for number in range(info.partition_count))
            if chosen.subscription and chosen.group is not None:
                await chosen.join().wait_joined(deadline.remaining())
            elif self._reset_time is not None:
                unplaced = [state for state in self._hand_out.order if state.position is None]
                await self._fetcher.prepare(unplaced, deadline.remaining())
            for state in self._hand_out.order:
                state.raise_error()
            self._check_not_closed()  # it may have been closed in the meantime
            self._resolver.check()
        except BaseException:
            await self._close_now(is_clean=False)
            raise
        self._is_open = True
        self._tracing = active_tracing() if self._has_receive_spans else None
        self._assignment.begin()
        self._fetcher.start()
        log.info("consumer_started client_id=%s partitions=%d", self.client_id, len(self._hand_out.order))

    async def close(self) -> None:
        """Release all partitions, leave the group immediately (a static member keeps its place), and close the connections.

        With automatic commit, it commits the processed records, for a few seconds at most. These include the last records returned if the
        task that read them calls it outside of an exception handler. A repeated call does nothing. Iteration ends.
        """
        self._affinity.check()
        await self._close_now(is_clean=sys.exception() is None)

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self._affinity.warn_unclosed(self, "its connections stay open, and its group waits until its session ends")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._affinity.check()
        await self._close_now(is_clean=kind is None)

    def metrics(self) -> ConsumerMetrics:
        """Return counters since the start, and the current state. Cheap, without waiting, and usable after `close`."""
        states, session = self._hand_out.order, self._assignment.session
        return ConsumerMetrics.of(
            self._fetcher.counters,
            requests_in_flight=self._fetcher.polls_in_flight,
            buffer_bytes=sum(state.buffered_bytes for state in states),
            partitions=len(states),
            partitions_paused=sum(state.is_paused for state in states),
            heartbeats_total=session.membership.heartbeats_total if session is not None else 0,
        )

    async def _finish(self, *, is_clean: bool, left: Mapping[TopicPartition, int] | None) -> None:
        """Close on behalf of `raftmq.sync`, which knows the reader.

        Args:
            is_clean: Whether to commit the processed records.
            left: The first unprocessed offset of each of these partitions. All other returned records are processed.
        """
        self._affinity.check()
        if left is not None and not self._is_closed:
            self._hand_out.record_poll()
            self._assignment.give_back(left)
        await self._close_now(is_clean=is_clean)

    async def _close_now(self, *, is_clean: bool) -> None:
        if self._is_closed:
            await self._has_closed.wait()
            return
        self._is_closed = True
        self._data.set()
        try:
            if is_clean and self._reader is not None and self._reader is asyncio.current_task():
                self._hand_out.record_poll()  # the reader itself closes, so it has processed its last record
            await self._assignment.close(is_clean=is_clean)
        finally:
            self._is_open = False
            try:
                await self._fetcher.close()
            finally:
                try:
                    await self._resolver.close()
                finally:
                    self._affinity.release()
                    self._has_closed.set()

    # ------------------------------------------------------------------------------------------------------- assignment

    def subscribe(
        self, topics: Iterable[str] = (), *, pattern: str | None = None, listener: RebalanceListener | None = None
    ) -> None:
        """Read these topics from now on, and no others. Returns immediately. Partitions that move because of it are released in order.

        Args:
            topics: names. With a group, topics may be created later.
            pattern: a regular expression that the whole name of a topic must match, also of topics created later. It needs a group.
            listener: replaces the previous listener.
        """
        self._affinity.check()
        has_group = self._assignment.group is not None
        self._assignment.subscribe(subscription_of(topics, pattern, self._assignor, has_group=has_group), listener)

    def unsubscribe(self) -> None:
        """Stop reading: release all partitions in order, and leave the group. Returns immediately."""
        self._affinity.check()
        self._assignment.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """Return the topics that are subscribed by name."""
        self._affinity.check()
        return frozenset(self._assignment.subscription.topics)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions from now on. Partitions that are assigned already keep their positions. Returns immediately.

        With a group, partitions begin at the group's committed offsets, and the consumer can commit. The partitions are not shared with
        other consumers, and it works only while no member subscribes in that group. Raises `InvalidArgumentError` for a consumer with topics.
        """
        self._affinity.check()
        self._assignment.assign(checked_partitions(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions. In a group, these are the partitions that this member reads now."""
        self._affinity.check()
        return frozenset(self._fetcher.partitions)

    def pause(self, *partitions: TopicPartition) -> None:
        """Return no records of these partitions until `resume`. Fetched records are kept. Returns immediately."""
        self._affinity.check()
        for state in self._assignment.states(partitions):
            state.is_paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`. Returns immediately."""
        self._affinity.check()
        for state in self._assignment.states(partitions):
            state.is_paused = False
        self._data.set()
        self._fetcher.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the paused partitions."""
        self._affinity.check()
        return frozenset(tp for tp, state in self._fetcher.partitions.items() if state.is_paused)

    # ---------------------------------------------------------------------------------------------------------- offsets

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit offsets, and wait for the result at most `request_timeout_ms`.

        Args:
            offsets: the next offset to read of each partition. None: commit all returned records, which the caller declares processed.

        Raises:
            FencedError: another member owns, or owned, a partition. Its offset is not committed. The others are.
            OffsetOutOfRangeError: an offset is above the end of its partition.
            RaftMQError: the offsets may or may not have been committed, as after a cancellation. Repeating the commit is harmless.
        """
        await asyncio.shield(self._commit(offsets))

    def commit_nowait(self, offsets: Mapping[TopicPartition, int] | None = None) -> asyncio.Task[None]:
        """Commit offsets as `commit` does, without waiting. The task has the outcome. Commits of a partition keep their order."""
        task = asyncio.create_task(_outcome(self._commit(offsets)), name="raftmq-commit-nowait")
        self._unawaited.add(task)
        task.add_done_callback(self._on_unawaited)
        return task

    def _on_unawaited(self, task: asyncio.Task[None]) -> None:
        self._unawaited.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.warning("commit_failed client_id=%s error_code=%s", self.client_id, name_of(error))

    def _commit(
        self, offsets: Mapping[TopicPartition, int] | None, left: Mapping[TopicPartition, int] = NOTHING
    ) -> asyncio.Future[None]:
        """Commit on behalf of `commit` and of `raftmq.sync`.

        Args:
            offsets: The offsets to commit, or None for all returned records.
            left: The first record of each partition that `raftmq.sync` took and did not return to the program.
        """
        self._check_alive()
        commits = self._assignment.commits()
        if offsets is not None:
            return commits.submit_offsets(checked_offsets(offsets))
        if not left:
            self._assignment.record_poll()
        commits.touch_unowned()
        moved = handed_out_offsets(self._fetcher.partitions.values())
        return commits.submit_offsets(moved | {tp: offset for tp, offset in left.items() if tp in moved})

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Return the group's committed offset of each partition (default: all assigned), or None if there is none. Raises `RaftMQError`."""
        self._check_alive()
        group = self._assignment.group_name
        wanted = partitions or tuple(self._fetcher.partitions)
        return await self._committed_in(group, wanted, {})

    async def _committed_in(
        self, group: str, partitions: Iterable[TopicPartition], read_groups: dict[TopicPartition, int]
    ) -> dict[TopicPartition, int | None]:
        found = await fetch_offsets(self._resolver, group, partitions, self._timeout_seconds, read_groups)
        return {partition: at.offset if at.offset >= 0 else None for partition, at in found.items()}

    async def position(self, partition: TopicPartition) -> int:
        """Return the offset of the record that is returned next. Waits until it is looked up, at most `request_timeout_ms`.

        Raises:
            RequestTimedOutError: the lookup did not succeed in time.
            InvalidArgumentError: the partition is not assigned, or was released in the meantime.
            RaftMQError: the error that stopped the partition.
        """
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds
        while True:
            self._check_alive()
            (state,) = self._assignment.states([partition])
            if state.position is not None:
                return state.position
            state.raise_error()
            if not await self._wait_data(deadline):
                raise self._no_position(state)

    def _no_position(self, state: PartitionFetch) -> RequestTimedOutError:
        """Return the error for a position that could not be looked up in time. It names the broker that was asked."""
        topic, number = state.topic_partition
        leader = self._resolver.leader(state.group_id)
        asked = (
            f"its leader at {self._resolver.address(leader)} did not return one" if leader else "it has no known leader"
        )
        return RequestTimedOutError(f"{topic}/{number} has no position after {self._timeout_seconds:g} s: {asked}")

    def highwater(self, partition: TopicPartition) -> int | None:
        """Return one past the last committed offset of an assigned partition, as of its leader's last answer, or None before the first one.

        Returns immediately. It does not include records appended since that answer. `end_offsets` asks the leader.
        """
        self._affinity.check()
        (state,) = self._assignment.states([partition])
        return state.high_watermark if state.high_watermark >= 0 else None

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """Return the number of records after the position of each partition (default: all assigned). Raises `RaftMQError`."""
        names = [state.topic_partition for state in self._assignment.states(partitions)]
        ends = await self._offsets_at(names, LATEST_TIME)
        return {name: max(0, end - await self.position(name)) for name, end in ends.items()}

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at `offset`. If that record does not exist, the next read resets the position as `auto_offset_reset` says."""
        self._check_alive()
        check_whole(LONG_MAX, offset=offset)
        if offset < 0:
            raise InvalidArgumentError(f"offset must be 0 or more, not {offset}: use seek_to_beginning or seek_to_end")
        self._assignment.seek({partition: offset})

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Go back to the group's committed offsets, in these partitions or in all assigned ones.

        Returns:
            The committed offsets. A partition without one (None) begins at the position that `auto_offset_reset` specifies.

        Raises:
            NoPositionError: a partition has no committed offset, and `auto_offset_reset` is ``"none"``. No position has changed.
            InvalidArgumentError: there is no group, or as for `seek_to_beginning`.
            RaftMQError: as for `seek_to_beginning`.
        """
        self._check_alive()
        wanted = self._assigned(partitions)
        groups: dict[TopicPartition, int] = {}
        found = await self._committed_in(self._assignment.group_name, wanted, groups) if wanted else {}
        missing = [partition for partition, offset in found.items() if offset is None]
        begin: dict[TopicPartition, int] = {}
        if missing and self._reset_time is None:
            names = ", ".join(f"{topic}/{number}" for topic, number in missing)
            raise NoPositionError(f"the group has no committed offset for {names}: seek, or set auto_offset_reset")
        if missing and self._reset_time is not None:
            begin = await self._offsets_at(missing, self._reset_time, groups)
        self._seek(partitions, begin | {at: offset for at, offset in found.items() if offset is not None}, groups)
        return found

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go to the first existing record, in these partitions or in all assigned ones.

        Waits for the brokers, at most `request_timeout_ms`. If it fails or is cancelled, positions are unchanged. Raises `RaftMQError`.

        In a group, a partition may move in the meantime. If it was released, it is left out, or `InvalidArgumentError` is raised if the
        call names it. If it was assigned again, it continues at the first record all the same.
        """
        await self._seek_to(EARLIEST_TIME, partitions)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go to the end, after the last committed record, in these partitions or in all assigned ones, as `seek_to_beginning` does."""
        await self._seek_to(LATEST_TIME, partitions)

    async def _seek_to(self, time: int, partitions: Sequence[TopicPartition]) -> None:
        groups: dict[TopicPartition, int] = {}
        offsets = await self._offsets_at(self._assigned(partitions), time, groups)
        self._seek(partitions, offsets, groups)

    def _assigned(self, named: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions that a call names, which must be assigned, or all assigned ones."""
        return [state.topic_partition for state in self._assignment.states(named)]

    def _seek(
        self,
        named: Sequence[TopicPartition],
        offsets: Mapping[TopicPartition, int],
        groups: Mapping[TopicPartition, int],
    ) -> None:
        """Continue at offsets that were looked up, in the partitions that a call names or in all. The assignment may have changed since."""
        assigned = self._fetcher.partitions
        self._assignment.seek(offsets if named else {at: offsets[at] for at in offsets if at in assigned}, groups)

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the first readable offset of any partitions. Waits at most `request_timeout_ms`. Raises `RaftMQError`."""
        return await self._offsets_at(partitions, EARLIEST_TIME)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """Return one past the last committed offset of any partitions. Waits at most `request_timeout_ms`. Raises `RaftMQError`."""
        return await self._offsets_at(partitions, LATEST_TIME)

    async def partition_count(self, topic: str) -> int:
        """Return the number of partitions of a topic. They are numbered from 0. Raises `UnknownTopicError`."""
        self._check_alive()
        return (await self._resolver.topic(topic, self._timeout_seconds)).partition_count

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], *, by_append_time: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each partition whose timestamp is at or after a time, or None if there is none.

        Later records may have earlier timestamps, since producers set them. Reads one batch of each partition. Waits at most
        `request_timeout_ms`. Raises `RaftMQError`.

        Args:
            times_ms: a time for each partition, in milliseconds since the epoch.
            by_append_time: compare the times at which the leaders appended the records, and return these as the timestamps. Append
                times never decrease, so every later record was appended at or after the time, too.
        """
        self._check_alive()
        for partition, time_ms in times_ms.items():
            check_whole(LONG_MAX, times_ms=time_ms)
            if time_ms < 0:
                name = f"{partition.topic}/{partition.partition}"
                raise InvalidArgumentError(f"times_ms must be 0 or more, not {time_ms} for {name}")
        found = await list_offsets(self._resolver, dict(times_ms), self._timeout_seconds, by_append_time=by_append_time)
        return {partition: None if at.offset < 0 else at for partition, at in found.items()}

    async def _offsets_at(
        self, partitions: Iterable[TopicPartition], time: int, read_groups: dict[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, int]:
        self._check_alive()
        times = dict.fromkeys(partitions, time)
        found = await list_offsets(self._resolver, times, self._timeout_seconds, read_groups=read_groups)
        return {partition: at.offset for partition, at in found.items()}

    # ----------------------------------------------------------------------------------------------------------- reading

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record[KeyT_co, ValueT_co]]]:
        """Return the next records, by partition. If there are none in time, return an empty dictionary and raise no exception.

        The call declares that the records of the previous call are processed.

        Args:
            partitions: the partitions to read; default: all assigned ones.
            timeout_ms: time to wait for a first record. 0 returns buffered records only.
            max_records: maximum number of records in total; default: `max_poll_records`.

        Raises:
            CorruptBatchError: the next batch of a partition cannot be decoded. Seek to its `next_offset` to skip it, or call again to
                fetch it again.
            OffsetOutOfRangeError: the records at the position were deleted, and ``auto_offset_reset`` is ``"none"``.
            NoPositionError, UnknownTopicError, UnknownPartitionError: a partition cannot be read.
            FencedError: another process joined the group with the same `group_instance_id`.
            TooManyMembersError, InvalidArgumentError: the group refuses this member.
            ClosedClientError, ForkedClientError: the consumer cannot be used.
            WrongEventLoopError: the consumer was started on another event loop. Every method raises it.

        An exception of a deserializer is raised, too, with a note that names the record. That record remains the next one of its partition:
        `seek` past it to continue. An exception of the rebalance listener is raised once.

        Records before an error are returned before it is raised. Cancelling it while it waits loses nothing.
        """
        self._check_usable()
        if max_records is not None:
            check_positive(max_records=max_records)
            check_whole(LONG_MAX, max_records=max_records)
        count_max = self._records_max if max_records is None else max_records
        if not timeout_ms >= 0:  # also false for NaN
            raise InvalidArgumentError(
                f"timeout_ms must be 0 or more, not {timeout_ms!r}: 0 returns buffered records only"
            )
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
        began_ns = 0 if self._tracing is None else time.time_ns()
        chosen = set(map(TopicPartition._make, partitions))
        if chosen:
            self._assignment.states(chosen)
        self._assignment.record_poll()
        if self._loop_budget.is_spent(self._affinity.loop):
            await self._loop_budget.turn()
            self._check_usable()
        while True:
            self._data.clear()
            found = self._hand_out.collect(chosen, count_max) if self._assignment.may_hand_out else {}
            if found:
                self._fetcher.on_room()
                self._reader = asyncio.current_task()
                if self._tracing is not None:
                    for topic, records in _by_topic(found).items():
                        self._tracing.received(topic, records, began_ns)
                return found
            self._fetcher.look()
            if not await self._wait_data(deadline):
                self._reader = asyncio.current_task()
                return found
            self._check_usable()

    def __aiter__(self) -> Self:
        self._check_usable()
        return self

    async def __anext__(self) -> Record[KeyT_co, ValueT_co]:
        """Return the next record of any partition. Waits for it without limit. Iteration ends when the consumer is closed.

        A loop over records lets the event loop run its other tasks every 10 ms, even while there is always another record.

        The call declares that the previous record is processed. Raises as `getmany` does. If there is nothing to read (no topics, no
        assigned partitions), it raises `InvalidArgumentError` instead of waiting indefinitely.
        """
        self._affinity.check()
        may_hand_out = self._assignment.record_poll()
        self._steps += 1
        if not self._steps % LOOP_LOOK_CALLS and self._loop_budget.is_spent(self._affinity.loop):
            await self._loop_budget.turn()
            may_hand_out = self._assignment.may_hand_out
        while True:
            record, has_room = self._hand_out.next_of_current() if may_hand_out else (None, False)
            if record is not None:
                if has_room:
                    self._fetcher.on_room()  # a batch was opened, so there is space to fetch the next
                self._reader = asyncio.current_task(self._affinity.loop)
                if self._tracing is not None and record.headers:
                    self._tracing.received_one(record.topic, record)
                return record
            if self._is_closed:
                raise StopAsyncIteration
            self._check_usable()
            self._data.clear()
            if not (may_hand_out and self._hand_out.choose_current()):
                self._fetcher.look()
                if not self._fetcher.partitions and not self._assignment.subscription:
                    raise InvalidArgumentError("nothing is assigned: name topics, or call assign() before reading")
                await self._wait_data(None)
                may_hand_out = self._assignment.may_hand_out

    # ---------------------------------------------------------------------------------------------------------- internal

    async def _wait_data(self, deadline: float | None) -> bool:
        """Wait until something arrives. Return False on a timeout. `_data` must be cleared before the caller looks for records."""
        self._assignment.begin_waiting()
        try:
            if deadline is None:
                await self._data.wait()
            elif deadline <= asyncio.get_running_loop().time():
                await asyncio.sleep(0)  # a caller that polls without waiting must let answers arrive
                return False
            else:
                async with asyncio.timeout_at(deadline):
                    await self._data.wait()
        except TimeoutError:
            return False
        finally:
            self._assignment.end_waiting()
        self._data.clear()
        return True

    def _check_not_closed(self) -> None:
        if self._is_closed:
            raise ClosedClientError("the consumer is closed: create a new one")

    def _check_usable(self) -> None:
        self._check_alive()
        self._check_not_closed()
        self._assignment.check()

    def _check_alive(self) -> None:
        """Check as `_check_usable` does, but allow use by the listener while the consumer closes."""
        self._affinity.check()
        if not self._is_open:
            self._check_not_closed()
            raise ClosedClientError("the consumer is not started: use async with, or await start()")
        self._resolver.check()
        if self._defect.error is not None:
            raise ClosedClientError("the consumer stopped after an internal error") from self._defect.error


class _Defect:
    """The error that ended a task of a consumer.

    Tasks refer to this object and not to the consumer. So a consumer that a program forgot to close is collected, and warns, while its tasks
    still run.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        """The first error, or None."""
        self._wake = wake

    def record(self, error: BaseException) -> None:
        """Store the first error, and wake the reader."""
        self.error = self.error or error
        self._wake()


def _by_topic(
    found: Mapping[TopicPartition, Sequence[Record[KeyT_co, ValueT_co]]],
) -> dict[str, list[Record[KeyT_co, ValueT_co]]]:
    by_topic: dict[str, list[Record[KeyT_co, ValueT_co]]] = {}
    for partition, records in found.items():
        by_topic.setdefault(partition.topic, []).extend(records)
    return by_topic


async def _outcome(future: asyncio.Future[None]) -> None:
    await asyncio.shield(future)
