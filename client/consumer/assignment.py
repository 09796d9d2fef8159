"""The partitions that a consumer reads, and the identity under which it commits.

Must not return records. It has exactly one of three forms: a subscription without a group (all partitions of the topics), a membership
(`group_session.py` adds and removes partitions), or partitions assigned by the program, with a group's named offsets if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from raftmq.client.connection.leader_calls import EARLIEST_TIME
from raftmq.client.connection.resolver import Resolver, TopicInfo
from raftmq.client.connection.transport import Transport
from raftmq.client.consumer.fetcher import Fetcher
from raftmq.client.consumer.group_session import GroupSession, GroupSettings
from raftmq.client.consumer.offset_commits import OffsetCommits
from raftmq.client.consumer.partition_fetch import PartitionFetch
from raftmq.client.consumer.rebalance_listener import RebalanceListener
from raftmq.client.consumer.record_buffer import RecordBuffer
from raftmq.client.membership.group_calls import MemberIdentity, OwnedPartition
from raftmq.client.membership.group_member import Subscription
from raftmq.errors import InvalidArgumentError
from raftmq.types import TopicPartition


class Assignment:
    """The assignment of one consumer. Used in the event loop, from `begin` on."""

    def __init__(
        self,
        group: GroupSettings | None,
        subscription: Subscription,
        listener: RebalanceListener,
        resolver: Resolver,
        transport: Transport,
        fetcher: Fetcher,
        hand_out: RecordBuffer,
        reset_time: int | None,
        timeout_seconds: float,
        on_data: Callable[[], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self.group = group
        self.subscription = subscription
        self.session: GroupSession | None = None
        """The membership, or None without one."""
        self._listener = listener
        self._resolver = resolver
        self._transport = transport
        self._fetcher = fetcher
        self._hand_out = hand_out
        self._reset_time = reset_time
        self._timeout_seconds = timeout_seconds
        self._on_data = on_data
        self._on_crash = on_crash
        self._commits: OffsetCommits | None = None
        self._has_begun = False

    # -------------------------------------------------------------------------------------------------------- lifecycle

    def begin(self) -> None:
        """Follow the topology and commit automatically, because the consumer is open."""
        self._has_begun = True
        self._resolver.subscribe(self._on_topology)
        if self.group is not None and self._hand_out.order:
            self.commits()

    def join(self) -> GroupSession:
        """Become a member of the group."""
        if self.group is None:
            raise InvalidArgumentError("membership of a group needs a group_id")
        session = self.session = GroupSession(
            self.group,
            self._resolver,
            self._transport,
            self._fetcher,
            self._hand_out,
            self._listener,
            self._on_data,
            self._on_crash,
        )
        self._commits = session.commits
        session.subscribe(self.subscription)
        session.start()
        return session

    async def close(self, *, is_clean: bool) -> None:
        """Release everything, commit the processed records if `is_clean`, and leave the group."""
        if self.session is not None:
            await self.session.close(is_clean=is_clean)
        elif self._commits is not None:
            await self._commits.finish(self._hand_out.order, is_clean=is_clean)

    # --------------------------------------------------------------------------------------------------------- choosing

    def subscribe(self, wanted: Subscription, listener: RebalanceListener | None) -> None:
        """Read these topics, and no others."""
        if not wanted:
            raise InvalidArgumentError("subscribe needs topics or a pattern: call unsubscribe to read nothing")
        if self.session is None and not self.subscription and self._hand_out.order:
            raise InvalidArgumentError("partitions were assigned by the program: create another consumer to subscribe")
        self._listener = listener or self._listener
        self.subscription = wanted
        if self.group is None:
            self._keep(state for state in self._hand_out.order if state.topic_partition.topic in wanted.topics)
            for topic in wanted.topics:
                info = self._resolver.topics.get(topic)
                if info is not None:  # later ones are read from their start
                    self.add(TopicPartition(topic, number) for number in range(info.partition_count))
            self._on_topology()
        elif self.session is not None:
            self.session.listener = self._listener
            self.session.subscribe(wanted)
        elif self._has_begun:
            self.join()

    def unsubscribe(self) -> None:
        """Stop reading."""
        self.subscription = Subscription((), "", "")
        if self.session is not None:
            self.session.subscribe(self.subscription)
        else:
            self._keep(())

    def assign(self, wanted: Sequence[TopicPartition]) -> None:
        """Read exactly these partitions. Those that are already assigned keep their state."""
        if self.subscription or self.session is not None:
            raise InvalidArgumentError(
                "the consumer reads whole topics: create one without topics to assign partitions"
            )
        chosen = set(wanted)
        self._keep(state for state in self._hand_out.order if state.topic_partition in chosen)
        self.add(wanted)

    def add(self, partitions: Iterable[TopicPartition], *, is_late: bool = False) -> None:
        """Read these partitions, too."""
        for partition in partitions:
            if partition not in self._fetcher.partitions:
                # A partition that is added while the consumer reads is read from its start: "latest" would skip its first records.
                reset_time = EARLIEST_TIME if is_late else self._reset_time
                state = PartitionFetch(partition, reset_time, self._fetcher.counters)
                state.must_ask_committed = self.group is not None
                self._fetcher.partitions[partition] = state
                self._hand_out.add(state)
        if self.group is not None and self._has_begun:
            self.commits()
        self._fetcher.wake()

    def _keep(self, kept: Iterable[PartitionFetch]) -> None:
        """Drop all other partitions."""
        staying = set(kept)
        dropped = [state for state in self._hand_out.order if state not in staying]
        if self._commits is not None:
            self._commits.submit_processed(dropped)
        for state in dropped:
            del self._fetcher.partitions[state.topic_partition]
            self._hand_out.remove(state)
        self._hand_out.leave_current()

    def _on_topology(self) -> None:
        for topic in self.subscription.topics if self.group is None else ():
            info = self._resolver.topics.get(topic)
            if info is not None:
                self.add((TopicPartition(topic, number) for number in range(info.partition_count)), is_late=True)
                self._drop_partitions_without_successor(topic, info)
        self._on_data()

    def _drop_partitions_without_successor(self, topic: str, info: TopicInfo) -> None:
        """Drop the partitions that a topic lacks because it was created again with fewer. A broker that is behind does not know the last ones."""
        order = self._hand_out.order
        gone = {
            state
            for state in order
            if state.topic_partition.topic == topic
            and state.topic_partition.partition >= info.partition_count
            and 0 < state.topic_id < info.topic_id
        }
        if gone:
            self._keep([state for state in order if state not in gone])

    # -------------------------------------------------------------------------------------------------------- positions

    def states(self, partitions: Iterable[TopicPartition]) -> list[PartitionFetch]:
        """Return the states of these assigned partitions, or of all assigned ones."""
        names = list(partitions) or list(self._fetcher.partitions)
        try:
            return [self._fetcher.partitions[name] for name in names]
        except KeyError as error:
            raise InvalidArgumentError(f"{error.args[0]} is not assigned") from None

    def seek(self, offsets: Mapping[TopicPartition, int], groups: Mapping[TopicPartition, int] | None = None) -> None:
        """Continue at these offsets, found in these groups or of the present ones. If a partition is not assigned, no position changes."""
        found = groups or {}
        for state in self.states(offsets) if offsets else ():
            partition = state.topic_partition
            group_id = found.get(partition) or self._resolver.present_group(state.group_id)
            state.seek(offsets[partition], self._reset_time, group_id)
        self._hand_out.leave_current()
        self._fetcher.wake()

    def give_back(self, left: Mapping[TopicPartition, int]) -> None:
        """Return records from these offsets on again, because their receiver did not pass them on."""
        for partition, offset in left.items():
            state = self._fetcher.partitions.get(partition)
            if state is not None and state.position is not None and offset < state.position:
                processed = state.processed
                state.seek(offset, state.reset_time, state.read_group_id)
                state.processed = min(processed, offset) if processed is not None else None
        self._hand_out.leave_current()
        self._fetcher.wake()

    # ---------------------------------------------------------------------------------------------------------- commits

    def _read_partition(self, partition: TopicPartition) -> OwnedPartition:
        """Return the topic and the group whose records were read. Their offsets mean nothing in a topic that was created again."""
        state = self._fetcher.partitions.get(partition)
        return OwnedPartition(state.topic_id, 0, state.read_group_id) if state is not None else OwnedPartition(0, 0)

    @property
    def group_name(self) -> str:
        """Return the group whose offsets are committed. Raises `InvalidArgumentError` without a group."""
        if self.group is None:
            raise InvalidArgumentError("only groups commit offsets: pass a group_id")
        return self.group.member.group

    def commits(self) -> OffsetCommits:
        """Return the commits. Without a membership they commit named offsets that no member owns."""
        name, group = self.group_name, self.group
        if self._commits is None and group is not None:
            self._commits = OffsetCommits(
                self._resolver,
                self._fetcher,
                name,
                lambda partition: (MemberIdentity(name), self._read_partition(partition)),
                auto_commit_seconds=group.auto_commit_seconds,
                timeout_seconds=self._timeout_seconds,
                on_fenced=lambda _: None,
                on_crash=self._on_crash,
            )
            self._commits.start()
        if self._commits is None:
            raise InvalidArgumentError("only groups commit offsets: pass a group_id")
        return self._commits

    # ------------------------------------------------------------------------------------------------------- the reader

    def record_poll(self) -> bool:
        """Record that the program asks for records, so it has processed the previous ones. Return `may_hand_out`."""
        self._hand_out.record_poll()
        if self.session is None:
            return True
        self.session.record_poll()
        return self.session.may_hand_out

    @property
    def may_hand_out(self) -> bool:
        """Return whether records may be returned, as `GroupSession.may_hand_out` does."""
        return self.session is None or self.session.may_hand_out

    def begin_waiting(self) -> None:
        """Record that the reader begins to wait for records."""
        if self.session is not None:
            self.session.begin_waiting()

    def end_waiting(self) -> None:
        """Record that the reader stops waiting for records."""
        if self.session is not None:
            self.session.end_waiting()

    def check(self) -> None:
        """Raise an error of the group that the reader must handle."""
        if self.session is not None:
            self.session.check()
