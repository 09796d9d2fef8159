"""Fetches records for the partitions of a consumer: finds topics, looks up positions, and polls leaders ahead of the reader.

Each partition is in at most one poll at a time. The partitions of one leader that need data share a poll. Must not decode or return
records. Invariant: an answer is used only if no event (a seek, a new leader) made it stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff, Deadline, cancel_and_wait, spawn
from raftmq.client.base.error_details import error_from_detail, name_of
from raftmq.client.base.logs import log
from raftmq.client.base.metrics import ConsumerCounters
from raftmq.client.connection.leader_calls import EARLIEST_TIME, list_each_offset
from raftmq.client.connection.resolver import Leader, Resolver
from raftmq.client.consumer.partition_fetch import PartitionFetch
from raftmq.client.membership.group_calls import fetch_each_offset
from raftmq.errors import (
    NoPositionError,
    NotLeaderError,
    OffsetOutOfRangeError,
    RaftMQError,
    UnknownPartitionError,
    UnknownTopicError,
)
from raftmq.methods import POLL
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition

_GONE: Final = (UnknownTopicError, UnknownPartitionError)
"""Errors for a partition that no longer exists. A group member's assignment will reflect that soon."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """Limits of the size of a fetch and of the wait for it."""

    fetch_max_bytes: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    partition_fetch_max_bytes: int
    request_timeout_seconds: float


class Fetcher:
    """Runs from `start` to `close`. `partitions` is the consumer's assignment, which may change at any time."""

    def __init__(
        self,
        resolver: Resolver,
        limits: FetchLimits,
        on_data: Callable[[], None],
        on_crash: Callable[[BaseException], None],
        group: str = "",
    ) -> None:
        self._group = group
        """The group at whose committed offsets partitions begin, or empty without a group."""
        self.partitions: dict[TopicPartition, PartitionFetch] = {}
        self._resolver = resolver
        self._limits = limits
        self._on_data = on_data
        self._on_crash = on_crash
        self.counters = ConsumerCounters()
        self._wake = asyncio.Event()
        self._polls: dict[str, dict[asyncio.Task[None], None]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._unprepared = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def start(self) -> None:
        """Start the background tasks. The resolver must be started."""
        self._resolver.subscribe(self._on_topology)
        self._tasks = [
            spawn(self._poll_forever(), "raftmq-fetch", self._on_crash),
            spawn(self._prepare_forever(), "raftmq-fetch-positions", self._on_crash),
        ]
        self.wake()

    @property
    def polls_in_flight(self) -> int:
        """Return the number of unanswered polls."""
        return sum(map(len, self._polls.values()))

    async def close(self) -> None:
        """Stop everything. Waits only for the end of its tasks."""
        if self._timer is not None:
            self._timer.cancel()
        polls = [task for tasks in self._polls.values() for task in tasks]
        await cancel_and_wait(*self._tasks, *polls)

    def wake(self) -> None:
        """Look for new work after a change: positions to look up and partitions to fetch."""
        self._wake.set()
        self._unprepared.set()

    # ------------------------------------------------------------------------------------------------------- preparing

    async def _prepare_forever(self) -> None:
        """Find the topics and positions of partitions that have none."""
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self._resolver.rng)
        patience = min(self._limits.request_timeout_seconds, settings.POSITIONS_SECONDS)
        while True:
            await self._unprepared.wait()
            self._unprepared.clear()
            try:
                await self.prepare(self._unready(), patience)
                backoff.reset()
            except RaftMQError as error:
                if not error.retriable:
                    continue  # recorded in the partitions
                await self._resolver.wait_change(backoff.next_seconds())
                self._unprepared.set()

    def _unready(self) -> list[PartitionFetch]:
        return [p for p in self.partitions.values() if p.error is None and (not p.topic_id or p.position is None)]

    async def prepare(self, partitions: Iterable[PartitionFetch], timeout_seconds: float) -> None:
        """Find the topics and positions of `partitions` within the timeout. A partition for which that is impossible gets an `error`.

        Raises:
            RaftMQError: a retriable failure of some partitions. These are unchanged, and the others are prepared.
        """
        wanted = list(partitions)
        if not wanted:
            return
        deadline = Deadline(timeout_seconds)
        for partition in wanted:
            await self._find_topic(partition, deadline.remaining())
        failure = await self._begin_at_committed(wanted, deadline)
        failure = await self._begin_at_reset_time(wanted, deadline) or failure
        self._wake.set()
        self._on_data()
        if failure is not None:
            raise failure

    async def _begin_at_committed(self, partitions: Iterable[PartitionFetch], deadline: Deadline) -> RaftMQError | None:
        """Let partitions that need it begin at the group's committed offsets, if there are any. Return an error to retry, if any."""
        asked = [p for p in partitions if p.must_ask_committed and p.error is None and p.position is None]
        if not asked:
            return None
        numbers = [p.poll_number for p in asked]
        names = [p.topic_partition for p in asked]
        found = await fetch_each_offset(self._resolver, self._group, names, deadline.remaining())
        failure: RaftMQError | None = None
        for partition, number in zip(asked, numbers, strict=True):
            answer = found[partition.topic_partition]
            if isinstance(answer, RaftMQError):
                failure = self._record_not_found(partition, answer) or failure
            elif number == partition.poll_number:  # no seek in the meantime
                partition.must_ask_committed = False
                if answer.offset >= 0:
                    partition.seek(answer.offset, partition.reset_time)
                    partition.committed = answer.offset
        return failure

    async def _begin_at_reset_time(
        self, partitions: Iterable[PartitionFetch], deadline: Deadline
    ) -> RaftMQError | None:
        """Let the remaining partitions begin at their `reset_time`. Return an error to retry, if any."""
        asked: list[PartitionFetch] = []
        times: dict[TopicPartition, int] = {}
        for partition in partitions:
            if partition.error is not None or partition.position is not None or partition.must_ask_committed:
                continue
            if partition.reset_time is None:
                topic, number = partition.topic_partition
                partition.error = NoPositionError(f"{topic}/{number} has no position: seek, or set auto_offset_reset")
            else:
                asked.append(partition)
                times[partition.topic_partition] = partition.reset_time
        if not asked:
            return None
        numbers = [p.poll_number for p in asked]
        found = await list_each_offset(self._resolver, times, deadline.remaining())
        failure: RaftMQError | None = None
        for partition, number in zip(asked, numbers, strict=True):
            answer = found[partition.topic_partition]
            if isinstance(answer, RaftMQError):
                failure = self._record_not_found(partition, answer) or failure
            elif number == partition.poll_number:  # no seek in the meantime
                partition.seek(answer.offset, partition.reset_time)
        return failure

    def _record_not_found(self, partition: PartitionFetch, error: RaftMQError) -> RaftMQError | None:
        """Handle a failed lookup of a position. Return the error if it may be retried, else store it in the partition."""
        if error.retriable:
            return error
        partition.error = partition.error or error
        return None

    async def _find_topic(self, partition: PartitionFetch, timeout_seconds: float) -> None:
        if partition.topic_id:
            return
        topic, number = partition.topic_partition
        try:
            info = await self._resolver.topic(topic, timeout_seconds, partition=number)
        except RaftMQError as error:
            if error.retriable:
                raise
            partition.error = error
            self._on_data()
            return
        if not 0 <= number < info.partition_count:
            partition.error = UnknownPartitionError(
                f"{topic} has partitions 0 to {info.partition_count - 1}, not {number}"
            )
            self._on_data()
            return
        partition.topic_id, partition.group_id = info.topic_id, info.group_ids[number]

    # ---------------------------------------------------------------------------------------------------------- polling

    async def _poll_forever(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._resolver.failure is not None:
                return  # the consumer's next call raises it
            for address, partitions in self._fetchable().items():
                tasks = self._polls.setdefault(address, {})
                if len(tasks) < settings.POLLS_IN_FLIGHT_MAX:
                    task = spawn(self._poll(address, partitions), f"raftmq-poll-{address}", self._on_crash)
                    tasks[task] = None
                    task.add_done_callback(tasks.pop)
                    await asyncio.sleep(0)  # let the task mark its partitions

    def _fetchable(self) -> dict[str, list[tuple[PartitionFetch, Leader]]]:
        """Return the partitions that need data, by the address of their leader."""
        now = asyncio.get_running_loop().time()
        buffered = sum(p.buffered_bytes for p in self.partitions.values())
        hungry: dict[str, list[tuple[PartitionFetch, Leader]]] = {}
        for partition in self.partitions.values():
            # Over the total limit, only partitions with an empty buffer may fetch, because each may need one batch to proceed.
            room = self._limits.partition_fetch_max_bytes if buffered < settings.CONSUMER_BUFFER_BYTES_MAX else 1
            if not partition.topic_id or not partition.wants_poll(now, room):
                self._wake_at(partition.not_before, now)
                continue
            leader = self._resolver.leader(partition.group_id)
            if leader is not None:
                address = self._resolver.address(leader)
                hungry.setdefault(address, []).append((partition, leader))
        return hungry

    def _wake_at(self, when: float, now: float) -> None:
        """Look for work again at that time. The earliest requested time counts."""
        if when <= now or when >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = asyncio.get_running_loop().call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self._wake.set()

    async def _poll(self, address: str, wanted: list[tuple[PartitionFetch, Leader]]) -> None:
        limits, loop = self._limits, asyncio.get_running_loop()
        sent = {(p.topic_id, p.topic_partition.partition): (p, p.begin_poll(leader)) for p, leader in wanted}
        request = pb.PollRequest(
            metadata_revision=self._resolver.metadata_revision,
            max_wait_ms=limits.fetch_max_wait_ms,
            min_bytes=limits.fetch_min_bytes,
            max_bytes=limits.fetch_max_bytes,
            partitions=[
                pb.PartitionPoll(
                    topic_id=p.topic_id,
                    partition=p.topic_partition.partition,
                    offset=p.fetch_offset,
                    max_bytes=limits.partition_fetch_max_bytes,
                )
                for p, _ in wanted
            ],
        )
        try:
            timeout_seconds = limits.fetch_max_wait_ms / 1000 + settings.LATE_POLL_SECONDS
            started = loop.time()
            response = await self._resolver.connection(address).call(POLL, request, timeout_seconds)
        except RaftMQError as error:
            self._resolver.mark_suspect(address)
            self.counters.requests.record_error(error)
            for partition, number in sent.values():
                if partition.end_poll(number):
                    self._on_refused(partition, error)
        else:
            self.counters.requests.observe(loop.time() - started)
            self._on_response(sent, response)
        finally:
            self._wake.set()

    def _on_response(self, sent: dict[tuple[int, int], tuple[PartitionFetch, int]], response: pb.PollResponse) -> None:
        has_news = False
        for result in response.partitions:
            partition, number = sent.pop((result.topic_id, result.partition), (None, 0))
            if partition is None or not partition.end_poll(number):
                continue
            partition.high_watermark = max(partition.high_watermark, result.high_watermark)
            if result.HasField("error"):
                topic, at = partition.topic_partition
                error = error_from_detail(result.error, f"{topic}/{at}")
                self.counters.requests.record_error(error)
                self._on_refused(partition, error)
            else:
                partition.failures = 0
                partition.add(result.base_offsets, result.batches)
            has_news = True
        for partition, number in sent.values():
            partition.end_poll(number)  # nothing new in it
        if has_news:
            self._on_data()

    def _on_refused(self, partition: PartitionFetch, error: RaftMQError) -> None:
        if isinstance(error, OffsetOutOfRangeError):
            self._on_out_of_range(partition, error)
        elif isinstance(error, NotLeaderError):
            if not self._resolver.on_not_leader(partition.group_id, error):
                self._pause(partition, error)
        elif error.retriable or (
            # The broker may be behind: the group assigned the partition, or the topology contains it.
            isinstance(error, _GONE)
            and (
                partition.owner_epoch
                or self._resolver.has_partition(partition.topic_partition.topic, partition.group_id)
            )
        ):
            self._pause(partition, error)
        else:
            partition.error = error
            self._on_data()

    def _on_out_of_range(self, partition: PartitionFetch, error: OffsetOutOfRangeError) -> None:
        """Handle a position before the log start: reset it as configured, after the buffered records are read."""
        if partition.has_buffered:
            self._pause(partition, error)
        elif partition.reset_time is None:
            partition.error = error
            self._on_data()
        else:
            topic, number = partition.topic_partition
            data = (topic, number, partition.fetch_offset, error.log_start_offset, error.high_watermark)
            log.warning("position_reset topic=%s partition=%d offset=%d log_start_offset=%d high_watermark=%d", *data)
            # The earliest offset is known from the error. A lookup might reach a replica that does not know the deletion yet and serves the records.
            is_known = partition.reset_time == EARLIEST_TIME
            partition.seek(error.log_start_offset if is_known else None, partition.reset_time)
            self.wake()

    def _pause(self, partition: PartitionFetch, error: RaftMQError) -> None:
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self._resolver.rng)
        backoff.failures = partition.failures
        partition.failures += 1
        pause = max(backoff.next_seconds(), error.retry_after_ms / 1000)
        partition.not_before = asyncio.get_running_loop().time() + pause
        topic, number = partition.topic_partition
        data = (topic, number, name_of(error), partition.failures)
        if partition.failures == settings.FAILURES_BEFORE_WARNING:
            log.warning("partition_unavailable topic=%s partition=%d error_code=%s failures=%d", *data)
        else:
            log.debug("poll_retried topic=%s partition=%d error_code=%s failures=%d", *data)

    def _on_topology(self) -> None:
        """Abandon polls at former leaders, which may be frozen, and poll the new leaders."""
        for partition in self.partitions.values():
            leader = self._resolver.leader(partition.group_id)
            if leader is not None and leader.leader_epoch > partition.leader_epoch:
                if partition.leader_epoch:
                    topic, number = partition.topic_partition
                    data = (topic, number, leader.broker_id, leader.leader_epoch)
                    log.info("leader_changed topic=%s partition=%d broker_id=%d leader_epoch=%d", *data)
                    partition.leader_epoch = leader.leader_epoch
                if partition.polled is not None:
                    partition.forget_poll()
                partition.not_before = 0.0
        self._wake.set()
