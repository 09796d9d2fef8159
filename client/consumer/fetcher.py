"""Fetches records for the partitions of a consumer: finds topics, looks up positions, and polls leaders ahead of the reader.

Each partition is in at most one poll at a time. The partitions of one leader that need data share a poll. Must not decode or return
records. Invariant: an answer is used only if no event (a seek, a new leader) made it stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff, Deadline, cancel_and_wait, spawn
from raftmq.client.base.error_details import error_from_detail, name_of
from raftmq.client.base.logs import log
from raftmq.client.base.metrics import ConsumerCounters
from raftmq.client.connection.leader_calls import EARLIEST_TIME, list_each_offset
from raftmq.client.connection.pending_poll import PendingPoll
from raftmq.client.connection.resolver import Leader, Resolver, TopicInfo
from raftmq.client.connection.topic_kinds import require_readable_log
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


@dataclass(slots=True, eq=False)
class _Poll:
    """A poll under way."""

    address: str
    started: float
    """Loop time."""
    sent: dict[tuple[int, int], tuple[PartitionFetch, int]] = field(default_factory=dict)
    """By topic id and partition: each partition, and the number of its poll."""
    pending: PendingPoll | None = None
    """None until it is sent."""


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
        self._loop: asyncio.AbstractEventLoop
        """Set by `start`."""
        self._is_running = False
        self._looking: asyncio.Handle | None = None
        """The look for work that `wake` has asked for."""
        self._lacks_room = False
        """Whether a partition was not polled because too much is buffered."""
        self._polls: dict[str, dict[_Poll, None]] = {}
        """Unanswered polls, by address."""
        self._preparing: asyncio.Task[None] | None = None
        self._unprepared = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = float("inf")

    def start(self) -> None:
        """Start fetching. The resolver must be started."""
        self._loop = asyncio.get_running_loop()
        self._is_running = True
        self._resolver.subscribe(self._on_topology)
        self._preparing = spawn(self._prepare_forever(), "raftmq-fetch-positions", self._on_crash)
        self.wake()

    @property
    def polls_in_flight(self) -> int:
        """Return the number of unanswered polls."""
        return sum(map(len, self._polls.values()))

    async def close(self) -> None:
        """Stop everything. Waits only for the end of its task."""
        self._is_running = False
        for handle in (self._timer, self._looking):
            if handle is not None:
                handle.cancel()
        polls = [poll for polls in self._polls.values() for poll in polls]
        self._polls.clear()
        for poll in polls:
            if poll.pending is not None:
                poll.pending.cancel()
        await cancel_and_wait(self._preparing)

    def wake(self) -> None:
        """Look for new work soon, after a change: positions to look up and partitions to fetch."""
        if self._looking is None and self._is_running:
            self._looking = self._loop.call_soon(self.look)

    def on_room(self) -> None:
        """Look for new work soon if a partition waits until less is buffered."""
        if self._lacks_room:
            self.wake()

    def look(self) -> None:
        """Look for new work now."""
        if self._looking is not None:
            self._looking.cancel()
            self._looking = None
        if not self._is_running or self._resolver.failure is not None:
            return  # of a failure the consumer's next call learns
        try:
            for address, partitions in self._fetchable().items():
                if (
                    len(partitions) > settings.REQUEST_PARTITIONS_MAX
                ):  # the others follow, and then have been polled less often
                    partitions.sort(key=lambda one: one[0].poll_number)
                for start in range(0, len(partitions), settings.REQUEST_PARTITIONS_MAX):
                    if len(self._polls.get(address, ())) < settings.POLLS_IN_FLIGHT_MAX:
                        self._poll(address, partitions[start : start + settings.REQUEST_PARTITIONS_MAX])
        except Exception as error:  # noqa: BLE001 -- the root of a callback: a defect must not go unnoticed
            self._on_crash(error)

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
        return [partition for partition in self.partitions.values() if partition.is_unprepared]

    async def prepare(self, partitions: Iterable[PartitionFetch], timeout_seconds: float) -> None:
        """Find the topics and positions of `partitions` within the timeout. A partition for which that is impossible gets an `error`.

        Raises:
            RaftMQError: a retriable failure of some partitions. These are unchanged, and the others are prepared.
        """
        wanted = list(partitions)
        deadline = Deadline(timeout_seconds)
        known = [partition for partition in wanted if self._is_known(partition)]
        unknown = [partition for partition in wanted if not self._is_known(partition)]
        failure: RaftMQError | None = None
        for some in (known, unknown):  # a topic that nobody can look up at present takes all the time
            if some:
                failure = await self._prepare_some(some, deadline) or failure
                self.wake()
                self._on_data()
        if failure is not None:
            raise failure

    def _is_known(self, partition: PartitionFetch) -> bool:
        topic, number = partition.topic_partition
        info = self._resolver.topics.get(topic)
        return bool(partition.topic_id) or (info is not None and number < info.partition_count)

    async def _prepare_some(self, partitions: Iterable[PartitionFetch], deadline: Deadline) -> RaftMQError | None:
        """Prepare partitions as `prepare` does. Return an error to retry, if any."""
        failure: RaftMQError | None = None
        found: list[PartitionFetch] = []
        for partition in partitions:
            try:
                await self._find_topic(partition, deadline.remaining())
            except RaftMQError as error:
                failure = error
            else:
                found.append(partition)
        failure = await self._begin_at_committed(found, deadline) or failure
        return await self._begin_at_reset_time(found, deadline) or failure

    async def _begin_at_committed(self, partitions: Iterable[PartitionFetch], deadline: Deadline) -> RaftMQError | None:
        """Let partitions that need it begin at the group's committed offsets, if there are any. Return an error to retry, if any."""
        asked = [p for p in partitions if p.must_ask_committed and p.error is None and p.position is None]
        if not asked:
            return None
        numbers = [p.poll_number for p in asked]
        names = [p.topic_partition for p in asked]
        groups: dict[TopicPartition, int] = {}
        found = await fetch_each_offset(self._resolver, self._group, names, deadline.remaining(), groups)
        failure: RaftMQError | None = None
        for partition, number in zip(asked, numbers, strict=True):
            answer = found[partition.topic_partition]
            if isinstance(answer, RaftMQError):
                failure = self._record_not_found(partition, answer) or failure
            elif number == partition.poll_number:  # no seek in the meantime
                partition.must_ask_committed = False
                if answer.offset >= 0:
                    partition.seek(answer.offset, partition.reset_time, groups[partition.topic_partition])
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
        groups: dict[TopicPartition, int] = {}
        found = await list_each_offset(self._resolver, times, deadline.remaining(), groups)
        failure: RaftMQError | None = None
        for partition, number in zip(asked, numbers, strict=True):
            answer = found[partition.topic_partition]
            if isinstance(answer, RaftMQError):
                failure = self._record_not_found(partition, answer) or failure
            elif number == partition.poll_number:  # no seek in the meantime
                partition.seek(answer.offset, partition.reset_time, groups[partition.topic_partition])
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
            self._enter_topic(partition, await self._resolver.topic(topic, timeout_seconds, partition=number))
        except RaftMQError as error:
            if error.retriable:
                raise
            partition.error = error
            self._on_data()

    def _enter_topic(self, partition: PartitionFetch, info: TopicInfo) -> None:
        """Take the ids of the topic. Raises `TopicKindMismatchError` or `UnknownPartitionError`."""
        require_readable_log(info)
        topic, number = partition.topic_partition
        if not 0 <= number < info.partition_count:
            raise UnknownPartitionError(f"{topic} has partitions 0 to {info.partition_count - 1}, not {number}")
        partition.topic_id, partition.group_id = info.topic_id, info.group_ids[number]

    def _new_topic(self, partition: PartitionFetch) -> TopicInfo | None:
        """Return the topic that took the place of the partition's topic, or None. A group's member is assigned the new one instead."""
        if not partition.topic_id or partition.owner_epoch:
            return None
        info = self._resolver.topics.get(partition.topic_partition.topic)
        return info if info is not None and info.topic_id > partition.topic_id else None

    def _begin_in_new_topic(self, partition: PartitionFetch, info: TopicInfo) -> None:
        """Continue in a topic that was created again, at the group's committed offset there, or else at its first record.

        Its records are as new to the reader as those of a partition that was added, so "latest" would skip the first ones. Without a reset
        policy only the program can say where to go on.
        """
        topic, number = partition.topic_partition
        log.warning("topic_created_again topic=%s partition=%d", topic, number)
        partition.begin_topic(info.topic_id, None if partition.reset_time is None else EARLIEST_TIME)
        partition.must_ask_committed = bool(self._group)
        try:
            self._enter_topic(partition, info)
            if partition.reset_time is None and not self._group:
                raise NoPositionError(
                    f"{topic}/{number} was deleted, and its topic was created again: seek to continue"
                )
        except RaftMQError as error:
            partition.error = error
        self._on_data()

    # ---------------------------------------------------------------------------------------------------------- polling

    def _fetchable(self) -> dict[str, list[tuple[PartitionFetch, Leader]]]:
        """Return the partitions that need data, by the address of their leader."""
        now = self._loop.time()
        hungry: dict[str, list[tuple[PartitionFetch, Leader]]] = {}
        room: int | None = None
        self._lacks_room = False
        for partition in self.partitions.values():
            if not partition.topic_id or not partition.wants_poll(now):
                self._on_idle(partition, now)
                continue
            if partition.buffered_bytes:
                room = self._room() if room is None else room
                if partition.buffered_bytes >= room:
                    self._lacks_room = True
                    continue
            leader = self._resolver.leader(partition.group_id)
            if leader is not None:
                address = self._resolver.address(leader)
                hungry.setdefault(address, []).append((partition, leader))
        return hungry

    def _room(self) -> int:
        """Return the buffered bytes of a partition from which on it is not polled, and the most bytes of it in an answer.

        Over the total limit, only partitions with an empty buffer may fetch, one batch each, because each may need it to proceed.
        """
        buffered = sum([partition.buffered_bytes for partition in self.partitions.values()])
        return self._limits.partition_fetch_max_bytes if buffered < settings.CONSUMER_BUFFER_BYTES_MAX else 1

    def _on_idle(self, partition: PartitionFetch, now: float) -> None:
        """Have a partition that is not polled now looked up, or looked at later."""
        if partition.is_outdated and not partition.has_buffered:
            info = self._new_topic(partition)
            if info is not None:
                self._begin_in_new_topic(partition, info)
        if partition.is_unprepared:
            self._unprepared.set()
        elif partition.not_before > now:
            self._wake_at(partition.not_before)

    def _wake_at(self, when: float) -> None:
        """Look for work again at that time. The earliest requested time counts."""
        if when >= self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = when
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        self._timer, self._timer_at = None, float("inf")
        self.look()

    def _poll(self, address: str, wanted: list[tuple[PartitionFetch, Leader]]) -> None:
        limits, room = self._limits, self._room()
        poll = _Poll(address, self._loop.time())
        request = pb.PollRequest(
            metadata_revision=self._resolver.metadata_revision,
            max_wait_ms=limits.fetch_max_wait_ms,
            min_bytes=limits.fetch_min_bytes,
            max_bytes=limits.fetch_max_bytes,
        )
        for partition, leader in wanted:
            topic_id, number = partition.topic_id, partition.topic_partition.partition
            poll.sent[topic_id, number] = (partition, partition.begin_poll(leader))
            if not partition.read_group_id:
                partition.read_group_id = self._resolver.present_group(partition.group_id)
            request.partitions.add(
                topic_id=topic_id,
                partition=number,
                offset=partition.fetch_offset,
                max_bytes=room,
                group_id=partition.read_group_id,
            )
        timeout_seconds = limits.fetch_max_wait_ms / 1000 + settings.LATE_POLL_SECONDS
        self._polls.setdefault(address, {})[poll] = None
        try:
            connection = self._resolver.connection(address)
            poll.pending = connection.poll(request, timeout_seconds, partial(self._on_outcome, poll))
        except RaftMQError as error:
            self._on_failed(poll, error)

    def _on_outcome(self, poll: _Poll, outcome: pb.PollResponse | BaseException) -> None:
        """Take the answer of a poll, or its error, and send the next poll before the program gets the records."""
        try:
            if isinstance(outcome, pb.PollResponse):
                del self._polls[poll.address][poll]
                self.counters.requests.observe(self._loop.time() - poll.started)
                self._on_response(poll.sent, outcome)
                self.look()
            elif isinstance(outcome, RaftMQError):
                self._on_failed(poll, outcome)
            else:
                self._on_crash(outcome)
        except Exception as error:  # noqa: BLE001 -- as in `look`
            self._on_crash(error)

    def _on_failed(self, poll: _Poll, error: RaftMQError) -> None:
        del self._polls[poll.address][poll]
        self._resolver.mark_suspect(poll.address)
        self.counters.requests.record_error(error)
        for partition, number in poll.sent.values():
            if partition.end_poll(number):
                self._on_refused(partition, error)
        self.wake()

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
                partition.read_group_id = result.group_id or partition.read_group_id
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
        """Handle a position before the log start, or after lost records: reset it as configured, after the buffered records are read.

        After a loss the reader goes on where the kept records end, whatever the configured time, so that it skips none.
        """
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
            offset = error.log_start_offset if is_known else None
            if error.kept_end_offset is not None:
                offset = max(error.kept_end_offset, error.log_start_offset)
            partition.seek(offset, partition.reset_time)
            self.wake()

    def _pause(self, partition: PartitionFetch, error: RaftMQError) -> None:
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self._resolver.rng)
        backoff.failures = partition.failures
        partition.failures += 1
        pause = max(backoff.next_seconds(), error.retry_after_ms / 1000)
        partition.not_before = self._loop.time() + pause
        topic, number = partition.topic_partition
        data = (topic, number, name_of(error), partition.failures)
        if partition.failures == settings.FAILURES_BEFORE_WARNING:
            log.warning("partition_unavailable topic=%s partition=%d error_code=%s failures=%d", *data)
        else:
            log.debug("poll_retried topic=%s partition=%d error_code=%s failures=%d", *data)

    def _on_topology(self) -> None:
        """Abandon polls at former leaders, which may be frozen, and poll the new leaders, also of topics that were created again."""
        for partition in self.partitions.values():
            if not partition.is_outdated and self._new_topic(partition) is not None:
                partition.is_outdated = True
                partition.forget_poll()
                if isinstance(partition.error, _GONE):
                    partition.error = None
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
        self.wake()
