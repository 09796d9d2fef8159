"""`Consumer`: reads records of partitions, ahead of the reader, in offset order per partition; alone or as member of a group.

Must not know gRPC or topology (the fetcher's and the resolver's part) or how a group shares partitions (`group_session.py`).
Invariants: records of a partition come in offset order without gaps, but for a reset or a seek; nothing is handed out twice without
a seek, or another owner in between.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Final, Generic, Self

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
from raftmq.client.connection.leader_calls import EARLIEST_TIME, LATEST_TIME, OffsetAndTimestamp, list_offsets
from raftmq.client.connection.resolver import Resolver
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

NOTHING: Final[Mapping[TopicPartition, int]] = {}


class Consumer(Generic[KeyT_co, ValueT_co]):
    """Reads records, from one event loop.

    ::

        async with Consumer("flights", bootstrap_servers="localhost:9400", group_id="radar") as consumer:
            async for record in consumer:
                print(record.partition, record.offset, record.value)

    With a group, its members share the partitions of the topics, and offsets are committed; without one, all partitions are
    assigned, also those added later (from their first record on). Without topics, use `subscribe` or `assign`. Only committed records
    are read. The position of a partition is the offset of the record that is handed out next.

    Type checkers take the types of keys and values from the deserializers: with ``value_deserializer=Json(Order).deserialize`` it is a
    ``Consumer[bytes, Order]`` and hands out ``Record[bytes, Order]``, whose value is an ``Order`` or, of a tombstone, None.

    One task reads at a time. What a record's handler has to do is done when the next record, or the next `getmany`, is asked for:
    that is what automatic commit commits, and what a partition that moves to another member waits for.

    Args:
        topics: what to read; nothing: call `subscribe` or `assign`.
        bootstrap_servers: ``"host:port[,host:port...]"`` or a sequence; any of the cluster's brokers.
        cluster_id: the only cluster to be used, as `raftmq cluster status` shows it. Without one it is the first that answers; then an
            address where a cluster was formed by mistake is used as well.
        group_id: the consumer group; None: no group, and nothing can be committed.
        group_instance_id: a name of this member that outlives the process: who restarts within its session gets the same partitions.
        client_id: a name for logs and for the list of members.
        enable_auto_commit: commit what is processed, every `auto_commit_interval_ms`, before partitions are released, and at a clean end.
        auto_commit_interval_ms: how often.
        auto_offset_reset: where to begin without a position, and after the records at the position were deleted.
        session_timeout_ms: a member that is not heard of for so long is out. Heartbeats do not depend on the event loop.
        heartbeat_interval_ms: the longest time between two heartbeats; the coordinator may ask for more.
        max_poll_interval_ms: a program that does not ask for records for so long leaves the group, until it asks again.
        assignor: who divides partitions: sticky, range, round_robin, or one that is installed on the brokers.
        rack: where this member is, for assignors that care.
        listener: hears of partitions that come and go.
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
        self._fetcher = Fetcher(self._resolver, limits, self._data.set, self._defect.note, group_id or "")
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
            self._defect.note,
        )
        self._unawaited: set[asyncio.Task[None]] = set()
        self._reader: asyncio.Task[object] | None = None
        """Who was handed the last records."""
        self._affinity = ClientAffinity("consumer")
        self._loop_budget = LoopBudget()
        self._steps = 0
        self._is_open = False
        self._is_closed = False
        self._has_closed = asyncio.Event()

    # -------------------------------------------------------------------------------------------------------- lifecycle

    async def start(self) -> None:
        """Connect, and find the topics; with a group, join it; else find the positions of everything. ``async with`` calls it.

        With ``auto_offset_reset="latest"`` and no group, every record written after it returns is read. A group's partitions come a
        moment later (`RebalanceListener`). Waits up to `request_timeout_ms`. Cancelled or failed, the consumer is closed.

        Raises:
            BootstrapError: no bootstrap address answered in time.
            UnknownTopicError, InvalidTopicNameError: there is no such topic, or there cannot be.
            NoLeaderError: nobody leads one of its partitions, so where it ends is not known.
            FencedError, TooManyMembersError, InvalidArgumentError: the group does not take this member.
            RaftMQError: positions could not be looked up in time, or no coordinator answered.
        """
        self._affinity.check()
        if self._is_closed or self._is_open:
            raise ClosedClientError("a consumer is started once; create a new one")
        self._affinity.bind()
        deadline = Deadline(self._timeout_seconds)
        try:
            await self._resolver.start(self._timeout_seconds)
            chosen = self._assignment
            for topic in chosen.subscription.topics:
                info = await self._resolver.topic(topic, deadline.remaining())
                if chosen.group is None:
                    chosen.add(TopicPartition(topic, number) for number in range(info.partition_count))
            if chosen.subscription and chosen.group is not None:
                await chosen.join().wait_joined(deadline.remaining())
            elif self._reset_time is not None:
                unplaced = [state for state in self._hand_out.order if state.position is None]
                await self._fetcher.prepare(unplaced, deadline.remaining())
            for state in self._hand_out.order:
                state.raise_error()
            self._check_not_closed()  # meanwhile
            self._resolver.check()
        except BaseException:
            await self._close_now(is_clean=False)
            raise
        self._is_open = True
        self._assignment.begin()
        self._fetcher.start()
        log.info("consumer_started client_id=%s partitions=%d", self.client_id, len(self._hand_out.order))

    async def close(self) -> None:
        """Give up everything, leave the group at once (a static member keeps its place), and close the connections.

        With automatic commit it commits what is processed, in at most a few seconds: also the last records handed out, if the task
        that read them calls it, and not because of an exception. Calling it again does nothing; iteration ends.
        """
        self._affinity.check()
        await self._close_now(is_clean=sys.exception() is None)

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self._affinity.warn_unclosed(self, "its connections stay open, and its group waits for its session to end")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._affinity.check()
        await self._close_now(is_clean=kind is None)

    def metrics(self) -> ConsumerMetrics:
        """What the consumer has counted since its start, and what it holds now. Cheap; does not wait; also after `close`."""
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
        """Close for `raftmq.sync`, which knows who reads; `left`: nothing of these is processed from that offset on, all else is."""
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
                self._hand_out.record_poll()  # it came back from its last record by itself
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
        """Read these topics from now on, and no others. Does not wait; what moves because of it moves in peace.

        Args:
            topics: names; those of a group may be created later.
            pattern: a regular expression that the whole name must match, also of topics created later; needs a group.
            listener: replaces the one before.
        """
        self._affinity.check()
        has_group = self._assignment.group is not None
        self._assignment.subscribe(subscription_of(topics, pattern, self._assignor, has_group=has_group), listener)

    def unsubscribe(self) -> None:
        """Read nothing: give everything up in peace, and leave the group. Does not wait."""
        self._affinity.check()
        self._assignment.unsubscribe()

    def subscription(self) -> frozenset[str]:
        """The topics that are subscribed to by name."""
        self._affinity.check()
        return frozenset(self._assignment.subscription.topics)

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions from now on; those assigned before keep their positions. Does not wait.

        With a group it begins where that group's offsets are, and can commit them; nobody shares with it, and it works only while
        nobody subscribes in that group. Raises `InvalidArgumentError` for a consumer with topics.
        """
        self._affinity.check()
        self._assignment.assign(checked_partitions(partitions))

    def assignment(self) -> frozenset[TopicPartition]:
        """The assigned partitions; of a group, those that this member reads now."""
        self._affinity.check()
        return frozenset(self._fetcher.partitions)

    def pause(self, *partitions: TopicPartition) -> None:
        """Hand out nothing from these partitions until `resume`; what is fetched is kept. Does not wait."""
        self._affinity.check()
        for state in self._assignment.states(partitions):
            state.is_paused = True

    def resume(self, *partitions: TopicPartition) -> None:
        """Undo `pause`. Does not wait."""
        self._affinity.check()
        for state in self._assignment.states(partitions):
            state.is_paused = False
        self._data.set()
        self._fetcher.wake()

    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        self._affinity.check()
        return frozenset(tp for tp, state in self._fetcher.partitions.items() if state.is_paused)

    # ---------------------------------------------------------------------------------------------------------- offsets

    async def commit(self, offsets: Mapping[TopicPartition, int] | None = None) -> None:
        """Commit, and wait for it, at most `request_timeout_ms`.

        Args:
            offsets: for each partition the next one to read. None: all that was handed out (as processed by who calls it).

        Raises:
            FencedError: a partition is another member's by now, or was; its offset is not committed. The others' are.
            OffsetOutOfRangeError: an offset is above the end of its partition.
            RaftMQError: it may have been committed, or not. Cancelling leaves that open, too. Repeating it is harmless.
        """
        await asyncio.shield(self._commit(offsets))

    def commit_nowait(self, offsets: Mapping[TopicPartition, int] | None = None) -> asyncio.Task[None]:
        """As `commit`, and does not wait: the task has the outcome. Commits of a partition keep their order."""
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
        """`left`: of each partition the first record that `raftmq.sync` took and did not hand out."""
        self._check_alive()
        commits = self._assignment.commits()
        if offsets is not None:
            return commits.submit_offsets(checked_offsets(offsets))
        if not left:
            self._assignment.record_poll()
        moved = handed_out_offsets(self._fetcher.partitions.values())
        return commits.submit_offsets(moved | {tp: offset for tp, offset in left.items() if tp in moved})

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """What the group has committed, by partition (default: all assigned); None where it never did. Raises `RaftMQError`."""
        self._check_alive()
        group = self._assignment.group_name
        wanted = partitions or tuple(self._fetcher.partitions)
        found = await fetch_offsets(self._resolver, group, wanted, self._timeout_seconds)
        return {partition: at.offset if at.offset >= 0 else None for partition, at in found.items()}

    async def position(self, partition: TopicPartition) -> int:
        """The offset of the record handed out next; waits until it is looked up, at most `request_timeout_ms`.

        Raises:
            RequestTimedOutError: it is not known in time.
            RaftMQError: the error that stopped the partition.
        """
        self._check_alive()
        (state,) = self._assignment.states([partition])
        deadline = asyncio.get_running_loop().time() + self._timeout_seconds
        while state.position is None:
            state.raise_error()
            if not await self._wait_data(deadline):
                raise self._no_position(state)
            self._check_alive()
        return state.position

    def _no_position(self, state: PartitionFetch) -> RequestTimedOutError:
        """The error for a position that could not be looked up in time; it says who was asked."""
        topic, number = state.topic_partition
        leader = self._resolver.leader(state.group_id)
        asked = (
            f"its leader at {self._resolver.address(leader)} did not say" if leader else "nobody is known to lead it"
        )
        return RequestTimedOutError(f"{topic}/{number} has no position after {self._timeout_seconds:g} s: {asked}")

    def highwater(self, partition: TopicPartition) -> int | None:
        """One past the last committed offset of an assigned partition, as its leader said with the last records; None before that.

        Does not wait. It is behind by at most what was appended since the last answer; `end_offsets` asks.
        """
        self._affinity.check()
        (state,) = self._assignment.states([partition])
        return state.high_watermark if state.high_watermark >= 0 else None

    async def lag(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """How many records are behind the position, by partition (default: all assigned). Raises `RaftMQError`."""
        names = [state.topic_partition for state in self._assignment.states(partitions)]
        ends = await self._offsets_at(names, LATEST_TIME)
        return {name: max(0, end - await self.position(name)) for name, end in ends.items()}

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Hand out the record at `offset` next. What it means that there is none shows when reading (`auto_offset_reset`)."""
        self._check_alive()
        check_whole(LONG_MAX, offset=offset)
        if offset < 0:
            raise InvalidArgumentError(f"offset must be 0 or more, not {offset}: see seek_to_beginning and seek_to_end")
        self._assignment.seek(self._assignment.states([partition]), {partition: offset})

    async def seek_to_committed(self, *partitions: TopicPartition) -> dict[TopicPartition, int | None]:
        """Go back to what the group has committed; without arguments, in every assigned partition.

        Returns:
            The committed offsets. A partition of which the group has committed nothing (None) begins where `auto_offset_reset` says.

        Raises:
            NoPositionError: nothing is committed and `auto_offset_reset` is ``"none"``; no position has changed.
            InvalidArgumentError: there is no group, or a partition is not assigned.
            RaftMQError: as `seek_to_beginning`.
        """
        self._check_alive()
        states = self._assignment.states(partitions)
        found = await self.committed(*(state.topic_partition for state in states)) if states else {}
        missing = [partition for partition, offset in found.items() if offset is None]
        begin: dict[TopicPartition, int] = {}
        if missing and self._reset_time is None:
            names = ", ".join(f"{topic}/{number}" for topic, number in missing)
            raise NoPositionError(f"the group has committed nothing of {names}: seek, or set auto_offset_reset")
        if missing and self._reset_time is not None:
            begin = await self._offsets_at(missing, self._reset_time)
        self._assignment.seek(states, begin | {at: offset for at, offset in found.items() if offset is not None})
        return found

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Go to the first record there is; without arguments, in every assigned partition.

        Waits for the brokers, at most `request_timeout_ms`; cancelled or failed, positions are as before. Raises `RaftMQError`.
        """
        states = self._assignment.states(partitions)
        self._assignment.seek(states, await self.beginning_offsets([state.topic_partition for state in states]))

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Go behind the last committed record; without arguments, in every assigned partition. As `seek_to_beginning`."""
        states = self._assignment.states(partitions)
        self._assignment.seek(states, await self.end_offsets([state.topic_partition for state in states]))

    async def beginning_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The first offset that can be read, of any partitions. Waits at most `request_timeout_ms`; raises `RaftMQError`."""
        return await self._offsets_at(partitions, EARLIEST_TIME)

    async def end_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """One past the last committed offset, of any partitions. Waits at most `request_timeout_ms`; raises `RaftMQError`."""
        return await self._offsets_at(partitions, LATEST_TIME)

    async def partition_count(self, topic: str) -> int:
        """How many partitions a topic has, numbered from 0. Raises `UnknownTopicError`."""
        self._check_alive()
        return (await self._resolver.topic(topic, self._timeout_seconds)).partition_count

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record appended at or after a time (milliseconds since the epoch), per partition; None when there is none.

        It is the time at which the leader appended the record that counts, not the producer's timestamp: that never decreases,
        so the answer is exact. Waits at most `request_timeout_ms`; raises `RaftMQError`.
        """
        self._check_alive()
        for partition, time_ms in times_ms.items():
            check_whole(LONG_MAX, times_ms=time_ms)
            if time_ms < 0:
                name = f"{partition.topic}/{partition.partition}"
                raise InvalidArgumentError(f"times_ms must be 0 or more, not {time_ms} for {name}")
        found = await list_offsets(self._resolver, dict(times_ms), self._timeout_seconds)
        return {partition: None if at.offset < 0 else at for partition, at in found.items()}

    async def _offsets_at(self, partitions: Iterable[TopicPartition], time: int) -> dict[TopicPartition, int]:
        self._check_alive()
        found = await list_offsets(self._resolver, dict.fromkeys(partitions, time), self._timeout_seconds)
        return {partition: at.offset for partition, at in found.items()}

    # ----------------------------------------------------------------------------------------------------------- reading

    async def getmany(
        self, *partitions: TopicPartition, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Record[KeyT_co, ValueT_co]]]:
        """The next records, by partition; an empty dictionary, never an exception, when there are none in time.

        Says that the records of the call before are processed.

        Args:
            partitions: only these; default: all assigned.
            timeout_ms: how long to wait for a first record. 0 returns what is there.
            max_records: most records in all; default `max_poll_records`.

        Raises:
            CorruptBatchError: the next batch of a partition cannot be decoded. Seek to its `next_offset` to go on, or call again
                to fetch it again.
            OffsetOutOfRangeError: the records at the position are gone and ``auto_offset_reset`` is ``"none"``.
            NoPositionError, UnknownTopicError, UnknownPartitionError: a partition cannot be read.
            FencedError: another process joined the group with this one's `group_instance_id`.
            TooManyMembersError, InvalidArgumentError: the group does not take this member.
            ClosedClientError, ForkedClientError: the consumer cannot be used.
            WrongEventLoopError: the consumer was started on another event loop. Every method raises it.

        Whatever a deserializer raises is raised too, with a note that says which record it was. That record stays the next one
        of its partition: `seek` behind it to go on. What the rebalance listener raised is raised once.

        An error is raised only when it is first in line; records before it are returned first. Cancelling while it waits loses
        nothing.
        """
        self._check_usable()
        if max_records is not None:
            check_positive(max_records=max_records)
            check_whole(LONG_MAX, max_records=max_records)
        count_max = self._records_max if max_records is None else max_records
        if not timeout_ms >= 0:  # NaN is not either
            raise InvalidArgumentError(f"timeout_ms must be 0 or more, not {timeout_ms!r}: 0 returns what is there")
        deadline = asyncio.get_running_loop().time() + timeout_ms / 1000
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
            self._fetcher.wake()
            if found or not await self._wait_data(deadline):
                self._reader = asyncio.current_task()
                return found
            self._check_usable()

    def __aiter__(self) -> Self:
        self._check_usable()
        return self

    async def __anext__(self) -> Record[KeyT_co, ValueT_co]:
        """The next record of any partition; waits for it without limit. Ends when the consumer is closed. Raises as `getmany`.

        A loop over records lets the event loop run its other tasks every 10 ms, also while there are records without end.

        Says that the record before is processed. With nothing to read from (no topics, nothing assigned) it raises
        `InvalidArgumentError` rather than wait for ever.
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
                    self._fetcher.wake()  # a batch was opened: there is room to fetch the next
                self._reader = asyncio.current_task(self._affinity.loop)
                return record
            if self._is_closed:
                raise StopAsyncIteration
            self._check_usable()
            self._data.clear()
            has_records = may_hand_out and self._hand_out.choose_current()
            self._fetcher.wake()
            if not has_records:
                if not self._fetcher.partitions and not self._assignment.subscription:
                    raise InvalidArgumentError("nothing is assigned: name topics, or call assign() before reading")
                await self._wait_data(None)
                may_hand_out = self._assignment.may_hand_out

    # ---------------------------------------------------------------------------------------------------------- internal

    async def _wait_data(self, deadline: float | None) -> bool:
        """Wait until something arrived; False when the time is over. `_data` must have been cleared before looking."""
        remaining = deadline - asyncio.get_running_loop().time() if deadline is not None else None
        self._assignment.begin_waiting()
        try:
            if remaining is not None and remaining <= 0:
                await asyncio.sleep(0)  # a caller that polls without waiting must still let the fetcher run
                return False
            async with asyncio.timeout(remaining):
                await self._data.wait()
        except TimeoutError:
            return False
        finally:
            self._assignment.end_waiting()
        self._data.clear()
        return True

    def _check_not_closed(self) -> None:
        if self._is_closed:
            raise ClosedClientError("the consumer is closed; create a new one")

    def _check_usable(self) -> None:
        self._affinity.check()
        self._check_not_closed()
        self._check_alive()
        self._assignment.check()

    def _check_alive(self) -> None:
        """As `_check_usable`; also while it closes, for the listener."""
        self._affinity.check()
        if not self._is_open:
            self._check_not_closed()
            raise ClosedClientError("the consumer is not started: use async with, or await start()")
        self._resolver.check()
        if self._defect.error is not None:
            raise ClosedClientError("the consumer stopped after an internal error") from self._defect.error


class _Defect:
    """What ended a task of a consumer.

    Tasks refer to this and not to the consumer: one that a program forgot is collected, and says so, while its tasks still run.
    """

    def __init__(self, wake: Callable[[], None]) -> None:
        self.error: BaseException | None = None
        """The first one; None while all is well."""
        self._wake = wake

    def note(self, error: BaseException) -> None:
        """Keep the first error, and wake who waits for records."""
        self.error = self.error or error
        self._wake()


async def _outcome(future: asyncio.Future[None]) -> None:
    await asyncio.shield(future)
