"""The event loop's side of a group member: follows the assignment, calls the listener, and commits processed records.

Heartbeats continue independently (`heartbeat_runner.py`), even while it waits. Must not return records or decide about ownership.
Invariants: a partition is read only between its opening under its owner epoch and its release. Partitions that do not move are not
affected. The listener's methods run one at a time. A partition is released after the last commit for it.

A revoked partition is released in this order: no more of its records are returned; the program finishes the records that it has (it asks
for more, or its time ends, and with it the membership); `on_revoked`; the commit; the release.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from raftmq.client.base import settings
from raftmq.client.base.background import Backoff, cancel_and_wait, spawn
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.client.connection.leader_calls import EARLIEST_TIME
from raftmq.client.connection.resolver import Resolver
from raftmq.client.connection.transport import Transport, is_caller_cancelled
from raftmq.client.consumer.fetcher import Fetcher
from raftmq.client.consumer.offset_commits import OffsetCommits, Owner
from raftmq.client.consumer.partition_fetch import PartitionFetch
from raftmq.client.consumer.processed import is_at_work
from raftmq.client.consumer.rebalance_listener import RebalanceListener
from raftmq.client.consumer.record_buffer import RecordBuffer
from raftmq.client.membership.group_calls import CommittedPosition, MemberIdentity, OwnedPartition, open_partitions
from raftmq.client.membership.group_member import (
    Grant,
    GroupMember,
    MemberSettings,
    PartitionId,
    Standing,
    Subscription,
)
from raftmq.client.membership.heartbeat_runner import HeartbeatRunner, run_background_calls
from raftmq.client.membership.member_calls import MemberCalls
from raftmq.errors import FencedError, RaftMQError, RequestTimedOutError
from raftmq.methods import LEAVE
from raftmq.types import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """Settings of a consumer's membership in its group."""

    member: MemberSettings
    assignor: str
    heartbeat_seconds: float
    poll_seconds_max: float
    auto_commit_seconds: float | None
    """The interval of automatic commits. None: only the program commits."""
    reset_time: int | None
    request_timeout_seconds: float


class GroupSession:
    """The membership of one consumer. Created and used in one event loop."""

    def __init__(
        self,
        config: GroupSettings,
        resolver: Resolver,
        transport: Transport,
        fetcher: Fetcher,
        hand_out: RecordBuffer,
        listener: RebalanceListener,
        on_data: Callable[[], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self.listener = listener
        self.listener_error: Exception | None = None
        """An exception of the listener, for the next call that reads."""
        self._config = config
        self._group = config.member.group
        self._resolver = resolver
        self._transport = transport
        self._fetcher = fetcher
        self._hand_out = hand_out
        self._on_data = on_data
        self._on_crash = on_crash
        self._loop = asyncio.get_running_loop()
        self.membership = MemberCalls(
            GroupMember(config.member),
            heartbeat_seconds=config.heartbeat_seconds,
            poll_seconds_max=config.poll_seconds_max,
            rng=resolver.rng,
            now=self._loop.time(),
        )
        self.commits = OffsetCommits(
            resolver,
            fetcher,
            self._group,
            self.owner_of,
            auto_commit_seconds=config.auto_commit_seconds,
            timeout_seconds=config.request_timeout_seconds,
            on_fenced=self._on_commit_fenced,
            on_crash=on_crash,
        )
        self._states: dict[PartitionId, PartitionFetch] = {}
        """All partitions held."""
        self._changed = asyncio.Event()
        """Set when there may be steps to do, or when the program asks for more."""
        self._joined = asyncio.Event()
        self._runner: HeartbeatRunner | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_draining = False
        self._fenced: dict[tuple[PartitionId, int], asyncio.TimerHandle] = {}
        """The partitions that refused this member, with the owner epoch, until it is decided whether to join again."""
        self._subscription = Subscription((), "", "")
        self._known: dict[int, int] = {}
        """The partition count of each topic (by id) at the subscription. Partitions that are created later are read from their start."""

    # -------------------------------------------------------------------------------------------------------- lifecycle

    def start(self) -> None:
        """Start heartbeats, following the assignment, and automatic commits."""
        self.membership.record_addresses(self._resolver.addresses())
        self._resolver.subscribe(self._on_topology)
        self._runner = run_background_calls(self._transport, self.membership, self._on_news, self._resolver.cluster_id)
        self._task = spawn(self._follow_forever(), "raftmq-group", self._on_crash)
        self.commits.start()

    async def wait_joined(self, timeout_seconds: float) -> None:
        """Wait until the group has accepted the member.

        Raises:
            FencedError, TooManyMembersError, InvalidArgumentError: the coordinator refuses the member.
            RequestTimedOutError: no coordinator answered in time.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._joined.wait()
        except TimeoutError:
            asked = ", ".join(self._resolver.addresses())
            reason = f"no coordinator of group {self._group!r} answered within {timeout_seconds:g} s (asked: {asked})"
            raise RequestTimedOutError(reason) from None
        self.membership.check()

    async def close(self, *, is_clean: bool) -> None:
        """Release everything and leave immediately. With `is_clean` and automatic commit, first commit the processed records.

        It leaves even if it is cancelled anywhere: otherwise continued heartbeats would hold the partitions indefinitely.
        """
        self._joined.set()  # wakes a caller of `wait_joined`
        following = self._task if self._task is not asyncio.current_task() else None
        try:
            await self.commits.stop()
            await cancel_and_wait(following)
            await self._give_up_all(is_clean=is_clean)
        finally:
            if following is not None:
                following.cancel()
            await self._leave()

    async def _give_up_all(self, *, is_clean: bool) -> None:
        held = list(self._states)
        for state in self._states.values():
            state.is_withheld = True
        if held:
            async with self.commits.last_commit():
                await self._give_up(held, may_commit=is_clean)

    async def _leave(self) -> None:
        goodbye = self.membership.stop()
        try:
            if self._runner is not None:
                self._runner.wake()
                await self._runner.close()
            if goodbye is not None:
                await self._resolver.call_any(LEAVE, goodbye, settings.LEAVE_SECONDS, is_read=True)
        except RaftMQError as error:
            log.warning("leave_failed consumer_group=%s error_code=%s", self._group, name_of(error))
        finally:
            try:
                await self.commits.close()
            finally:
                for timer in self._fenced.values():
                    timer.cancel()

    def subscribe(self, subscription: Subscription) -> None:
        """Change the subscription. An empty one leaves the group."""
        before, self._subscription = self._subscription, subscription
        for info in self._resolver.topics.values():
            if info.name in before.topics or before.pattern:
                self._known.setdefault(info.topic_id, info.partition_count)
            else:
                self._known[info.topic_id] = info.partition_count
        self.membership.subscribe(subscription, self._loop.time())
        self._wake()
        self._changed.set()

    # ------------------------------------------------------------------------------------------------------- the reader

    def record_poll(self) -> None:
        """Record that the program asks for records, so it is alive and has processed the previous ones."""
        self.membership.asked += 1
        if self.membership.has_lost:
            self._withhold_lost()
        if self._is_draining:
            self._changed.set()

    @property
    def may_hand_out(self) -> bool:
        """Return whether records may be returned. Not after the session may have ended: another member may own the partitions.

        A process that was frozen notices it here.
        """
        if self.membership.has_lost:
            self._withhold_lost()
        return not self.membership.is_overdue(self._loop.time())

    def _withhold_lost(self) -> None:
        """Withhold partitions that the heartbeats reported as lost before the event loop handles the loss."""
        for id_ in self.membership.steps().lose:
            state = self._states.get(id_)
            if state is not None:
                state.is_withheld = True

    def begin_waiting(self) -> None:
        """Record that the program waits for records."""
        self.membership.asking += 1
        if self.membership.standing is Standing.OUT:
            self._wake()  # it was inactive for too long, and is back

    def end_waiting(self) -> None:
        """Record that the program stops waiting for records."""
        self.membership.asking -= 1

    def check(self) -> None:
        """Raise an error that the reader must handle: the group refuses the member, or the listener failed (once)."""
        self.membership.check()
        if self.listener_error is not None:
            error, self.listener_error = self.listener_error, None
            raise error

    # --------------------------------------------------------------------------------------------------------- commits

    def owner_of(self, partition: TopicPartition) -> Owner | None:
        """Return the identity under which the partition is committed, or None if it is not held."""
        state = self._fetcher.partitions.get(partition)
        if state is None or not self.membership.may_commit(
            PartitionId(state.topic_id, partition.partition), state.owner_epoch
        ):
            return None
        owned = OwnedPartition(state.topic_id, state.owner_epoch, state.read_group_id)
        return MemberIdentity(self._group, self.membership.member_id), owned

    def heartbeat(self) -> None:
        """Send a heartbeat to the coordinator now."""
        self.membership.heartbeat_soon(self._loop.time())
        self._wake()

    def _on_commit_fenced(self, state: PartitionFetch) -> None:
        self._on_fenced(PartitionId(state.topic_id, state.topic_partition.partition), state.owner_epoch)
        self.heartbeat()

    def _on_fenced(self, id_: PartitionId, owner_epoch: int) -> None:
        """Join again unless the assignment soon changes.

        The fence in the partition is newer than the assignment, which usually changes with the next heartbeat. It never does if a reset of
        the offsets was interrupted before the owners got new epochs: then nobody would read the partition.
        """
        if (id_, owner_epoch) not in self._fenced:
            self._decide_later(id_, owner_epoch, self._loop.time())

    def _decide_later(self, id_: PartitionId, owner_epoch: int, since: float) -> None:
        self._fenced[id_, owner_epoch] = self._loop.call_later(
            settings.FENCED_SECONDS, self._decide_fenced, id_, owner_epoch, since
        )

    def _decide_fenced(self, id_: PartitionId, owner_epoch: int, since: float) -> None:
        del self._fenced[id_, owner_epoch]
        state = self._states.get(id_)
        if state is not None and state.owner_epoch == owner_epoch and not state.is_fenced:
            return  # opened in the meantime
        joins_again = self.membership.join_again(id_, owner_epoch, since, self._loop.time())
        if joins_again is None:
            self._decide_later(id_, owner_epoch, since)
        elif joins_again:
            log.warning("group_joined_again consumer_group=%s partition=%d", self._group, id_.partition)
            self._wake()
            self._changed.set()

    # ------------------------------------------------------------------------------------------------------- following

    async def _follow_forever(self) -> None:
        backoff = Backoff(settings.RETRY_BACKOFF_MIN_SECONDS, settings.RETRY_BACKOFF_MAX_SECONDS, self._resolver.rng)
        while True:
            self._changed.clear()
            steps = self.membership.steps()
            if steps.lose:
                await self._lose(steps.lose)
            elif steps.revoke:
                await self._revoke(steps.revoke)
            elif steps.open:
                if await self._open(steps.open):
                    backoff.reset()
                else:
                    await self._wait_changed(backoff.next_seconds())
            else:
                await self._wait_changed(None)

    async def _wait_changed(self, timeout_seconds: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._changed.wait()
        except TimeoutError:
            return

    async def _lose(self, partitions: Iterable[PartitionId]) -> None:
        lost = self._drop(partitions)
        self._fetcher.counters.lost_total += len(lost)
        log.warning("group_partitions_lost consumer_group=%s partitions=%d", self._group, len(lost))
        self.heartbeat()
        await self._tell(self.listener.on_lost, lost)

    async def _revoke(self, partitions: Iterable[PartitionId]) -> None:
        wanted = list(partitions)
        for id_ in wanted:
            self._states[id_].is_withheld = True
        self._hand_out.leave_current()
        self._is_draining = True
        try:
            # Wait until the program has processed the records that it has. The assignment may change again in the meantime.
            while any(is_at_work(self._states[id_]) for id_ in wanted):
                await self._changed.wait()
                self._changed.clear()
                steps = self.membership.steps()
                if steps.lose:
                    break
                for id_ in [id_ for id_ in wanted if id_ not in steps.revoke]:
                    # It was assigned again, and the listener knows nothing of it.
                    self._states[id_].is_withheld = self._states[id_].is_fenced
                    wanted.remove(id_)
        finally:
            self._is_draining = False
        lost = self.membership.steps().lose
        if lost:
            self._changed.set()
            for id_ in wanted:
                self._states[id_].is_withheld = id_ in lost or self._states[id_].is_fenced
            return
        if wanted:
            await self._give_up(wanted, may_commit=True)
        self._fetcher.wake()
        self._on_data()

    async def _give_up(self, partitions: list[PartitionId], *, may_commit: bool) -> None:
        """Call the listener, commit and release, without waiting for the program."""
        states = [self._states[id_] for id_ in partitions]
        names = frozenset(state.topic_partition for state in states)
        await self._tell(self.listener.on_revoked, names)
        if may_commit:
            await self.commits.commit_processed(states)
        await self.commits.settled(names)
        self._drop(partitions)
        self._fetcher.counters.revoked_total += len(names)
        log.info("group_partitions_revoked consumer_group=%s partitions=%d", self._group, len(names))
        self.heartbeat()

    def _drop(self, partitions: Iterable[PartitionId]) -> frozenset[TopicPartition]:
        """Return no more records of these partitions, even of fetches in flight."""
        dropped: list[TopicPartition] = []
        for id_ in list(partitions):
            state = self._states.pop(id_)
            state.is_withheld = True
            if self._fetcher.partitions.get(state.topic_partition) is state:
                del self._fetcher.partitions[state.topic_partition]
            self._hand_out.remove(state)
            dropped.append(state.topic_partition)
            self.membership.release([id_])
        return frozenset(dropped)

    async def _open(self, grants: Mapping[PartitionId, Grant]) -> bool:
        """Open all partitions that can be opened. Return whether any was opened."""
        self._resolver.record_revision(self.membership.metadata_revision)
        owned: dict[TopicPartition, OwnedPartition] = {}
        for id_, grant in grants.items():
            if await self._is_known(id_, grant.topic):
                owned[TopicPartition(grant.topic, id_.partition)] = OwnedPartition(id_.topic_id, grant.owner_epoch)
        identity = MemberIdentity(self._group, self.membership.member_id)
        groups: dict[TopicPartition, int] = {}
        results = await open_partitions(self._resolver, identity, owned, settings.OPEN_SECONDS, groups)
        opened: dict[PartitionId, int] = {}
        positions: dict[PartitionId, tuple[TopicPartition, CommittedPosition]] = {}
        for partition, result in results.items():
            id_ = PartitionId(owned[partition].topic_id, partition.partition)
            if isinstance(result, RaftMQError):
                self._on_open_failed(partition, result)
                if isinstance(result, FencedError):
                    self._on_fenced(id_, owned[partition].owner_epoch)
            else:
                opened[id_] = owned[partition].owner_epoch
                positions[id_] = (partition, result)
        kept = self.membership.hold(opened)
        if not kept:
            return False
        states = [self._add(id_, opened[id_], *positions[id_], groups[positions[id_][0]]) for id_ in sorted(kept)]
        self._fetcher.counters.assigned_total += len(states)
        log.info("group_partitions_assigned consumer_group=%s partitions=%d", self._group, len(states))
        await self._tell(self.listener.on_assigned, frozenset(state.topic_partition for state in states))
        for state in states:
            state.is_withheld = state.is_fenced  # the listener may have committed
        self._fetcher.wake()
        self._on_data()
        return True

    def _add(
        self,
        id_: PartitionId,
        owner_epoch: int,
        partition: TopicPartition,
        found: CommittedPosition,
        read_group_id: int,
    ) -> PartitionFetch:
        # A partition created after the subscription is read from its start: "latest" would skip its first records.
        is_late = id_.partition >= self._known.get(id_.topic_id, 0)
        reset_time = EARLIEST_TIME if is_late else self._config.reset_time
        state = PartitionFetch(partition, reset_time, self._fetcher.counters)
        group_id = self._group_id_of(id_.topic_id, partition)
        if group_id:
            state.topic_id, state.group_id = id_.topic_id, group_id
        if found.offset >= 0:
            state.seek(found.offset, self._config.reset_time, read_group_id)
            state.committed, state.finished, state.note = found.offset, found.finished, found.note
        state.high_watermark = found.high_watermark
        state.owner_epoch = owner_epoch
        state.is_withheld = True
        self._states[id_] = self._fetcher.partitions[partition] = state
        self._hand_out.add(state)
        return state

    def _group_id_of(self, topic_id: int, partition: TopicPartition) -> int:
        """Return the group that serves a partition of this incarnation of its topic, or 0 if the topology does not have it."""
        info = self._resolver.topics.get(partition.topic)
        if info is None or info.topic_id != topic_id or partition.partition >= info.partition_count:
            return 0
        return info.group_ids[partition.partition]

    async def _is_known(self, id_: PartitionId, topic: str) -> bool:
        """Return whether the topology has the partition. A new one may require a fresh lookup."""
        for is_fresh in (False, True):
            try:
                info = await self._resolver.topic(topic, settings.OPEN_SECONDS, is_fresh=is_fresh)
            except RaftMQError as error:
                self._on_open_failed(TopicPartition(topic, id_.partition), error)
                return False
            if info.topic_id == id_.topic_id and id_.partition < info.partition_count:
                return True
            if info.topic_id > id_.topic_id:
                return False  # the topic was deleted and created again: the assignment will reflect that
        return False

    def _on_open_failed(self, partition: TopicPartition, error: RaftMQError) -> None:
        data = (self._group, partition.topic, partition.partition, name_of(error))
        log.debug("partition_open_failed consumer_group=%s topic=%s partition=%d error_code=%s", *data)
        if not error.retriable:
            self.heartbeat()  # the assignment has changed by now

    async def _tell(
        self,
        method: Callable[[frozenset[TopicPartition]], Awaitable[None] | None],
        partitions: frozenset[TopicPartition],
    ) -> None:
        """Call the listener. Its method may be a plain function or a coroutine function."""
        error: Exception
        try:
            result = method(partitions)
            if inspect.isawaitable(result):
                await result
            return
        except asyncio.CancelledError as cancellation:
            if is_caller_cancelled():
                raise
            error = RuntimeError(
                "the rebalance listener ended with a cancellation, such as that of a task for which it waited"
            )
            error.__cause__ = cancellation
        except Exception as found:  # noqa: BLE001 -- the program's own code: the rebalance continues, and the next read raises it
            error = found
        log.warning("listener_failed consumer_group=%s error_code=%s", self._group, type(error).__name__)
        self.listener_error = self.listener_error or error
        self._on_data()

    # -------------------------------------------------------------------------------------------------------- internal

    def _wake(self) -> None:
        if self._runner is not None:
            self._runner.wake()

    def _on_news(self) -> None:
        """Handle news from the heartbeats."""
        if self.membership.standing in (Standing.IN, Standing.FAILED) and not self._joined.is_set():
            self._joined.set()
            log.info("group_joined consumer_group=%s member_id=%s", self._group, self.membership.member_id)
        self._on_data()  # wakes readers that wait for records: there may be an error, or records again
        self._changed.set()

    def _on_topology(self) -> None:
        self.membership.record_addresses(self._resolver.addresses())
