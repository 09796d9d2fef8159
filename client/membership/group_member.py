"""The state of one member of a consumer group: its heartbeats, the effect of the answers, and the steps that follow from them.

Pure: no I/O, no clock, no threads. `member_calls.py` keeps time and guards it with a lock. It must not open or read partitions: it
returns which ones to lose, revoke and open (`steps`), and is told what was done (`hold`, `release`).

Invariants: it reports as owned everything that it holds, including partitions that it is about to release. It holds a partition only under
an owner epoch of the newest assignment, unless it is about to release it. An answer to an earlier life or of an older epoch changes nothing.

Source: KIP-848, ConsumerGroupHeartbeat; docs/internals/groups.md.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from raftmq.errors import FencedError, RaftMQError
from raftmq.proto import queue_pb2 as pb


class PartitionId(NamedTuple):
    """A partition of one incarnation of a topic."""

    topic_id: int
    partition: int


class Grant(NamedTuple):
    """The topic name and the owner epoch of an assigned partition."""

    topic: str
    owner_epoch: int


class Steps(NamedTuple):
    """The steps to take, in this order. When a step is done, the caller tells `GroupMember.hold` or `GroupMember.release`."""

    lose: dict[PartitionId, int]
    """Partitions that are held but may already belong to another member: stop immediately. The values are the owner epochs."""
    revoke: dict[PartitionId, int]
    """Partitions that are held and must be released in order. The values are the owner epochs."""
    open: dict[PartitionId, Grant]
    """Partitions that are assigned and not held."""

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to do."""
        return not (self.lose or self.revoke or self.open)


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """Constant data that a member reports about itself."""

    group: str
    instance_id: str
    client_id: str
    rack: str
    session_timeout_ms: int
    rebalance_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """The subscribed topics: names, a pattern for whole names, or both."""

    topics: tuple[str, ...]
    pattern: str
    assignor: str

    def __bool__(self) -> bool:
        return bool(self.topics or self.pattern)


class Standing(Enum):
    """The standing of a member in its group."""

    OUT = "out"
    """Not subscribed, or inactive because the program does not ask for records. It sends no heartbeats."""
    JOINING = "joining"
    IN = "in"
    FAILED = "failed"
    """Refused permanently by the coordinator, for the reason in `failure`."""


class GroupMember:
    """The state machine of one member."""

    def __init__(self, settings: MemberSettings, new_id: Callable[[], str] = lambda: str(uuid.uuid4())) -> None:
        self.settings = settings
        self.standing = Standing.OUT
        self.member_id = new_id()
        """The member id. Each life has a new one."""
        self.epoch = 0
        """The epoch of the newest assignment. 0: no assignment yet."""
        self.metadata_revision = 0
        """A metadata revision that includes the topics of the assignment."""
        self.is_rebalancing = False
        self.failure: RaftMQError | None = None
        self.incarnation = 0
        """The number of times that it joined, or tried to, under a new id."""
        self._new_id = new_id
        self._subscription = Subscription((), "", "")
        self._assigned: dict[PartitionId, Grant] = {}
        self._held: dict[PartitionId, int] = {}
        self.lost: set[PartitionId] = set()
        """Held partitions that may belong to another member, or belonged to one in between, or whose offset was reset (another owner epoch)."""
        self._is_cut_off = False
        """Its session may have ended: nothing is opened until the coordinator answers."""
        self._is_leaving = False

    # -------------------------------------------------------------------------------------------------------- talking

    def heartbeat(self) -> pb.HeartbeatRequest:
        """Return the next heartbeat."""
        settings, subscription = self.settings, self._subscription
        return pb.HeartbeatRequest(
            group=settings.group,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=settings.instance_id,
            client_id=settings.client_id,
            rack=settings.rack,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            subscription=pb.Subscription(
                topics=subscription.topics, pattern=subscription.pattern, assignor=subscription.assignor
            ),
            owned=_by_topic(self._held),
        )

    def on_answer(self, request: pb.HeartbeatRequest, answer: pb.HeartbeatResponse) -> bool:
        """Apply an answer. Return False if it is from an older epoch, that of a replaced coordinator."""
        if request.member_id != self.member_id or self.standing in (Standing.OUT, Standing.FAILED):
            return True  # an answer to an earlier life is irrelevant
        if answer.member_epoch < self.epoch:
            return False
        if answer.has_assignment:
            self._assigned = _grants(answer.assignment)
            self.lost |= {
                partition
                for partition, owner_epoch in self._held.items()
                if (grant := self._assigned.get(partition)) is not None and grant.owner_epoch != owner_epoch
            }
        self.standing = Standing.IN
        self.epoch = answer.member_epoch
        self.metadata_revision = max(self.metadata_revision, answer.metadata_revision)
        self.is_rebalancing = answer.is_rebalancing
        self._is_cut_off = False
        return True

    def on_unknown(self, request: pb.HeartbeatRequest) -> None:
        """Join again, having lost everything, because the coordinator no longer knows this member."""
        if request.member_id == self.member_id and self.standing in (Standing.JOINING, Standing.IN):
            self._begin_life(Standing.JOINING)

    def on_refused(self, request: pb.HeartbeatRequest, error: RaftMQError) -> None:
        """Stop permanently, because another process has its instance id or its request is invalid."""
        if request.member_id == self.member_id and self.standing in (Standing.JOINING, Standing.IN):
            self._begin_life(Standing.FAILED)
            self.failure = error

    def join_again(self) -> None:
        """Join under a new id, which gives all partitions new owner epochs. The caller informs the coordinator."""
        if self.standing is Standing.IN:
            self._begin_life(Standing.JOINING)

    def on_silence(self) -> None:
        """Treat all held partitions as lost, because no answer came for a whole session. A later answer may assign them again."""
        if self.standing is Standing.IN and not self._is_cut_off:
            self._is_cut_off = True
            self.lost = set(self._held)

    # ------------------------------------------------------------------------------------------------------- wishing

    @property
    def subscription(self) -> Subscription:
        """Return the current subscription."""
        return self._subscription

    def subscribe(self, subscription: Subscription) -> None:
        """Change the subscription. An empty one releases everything in order, and then leaves the group."""
        self._is_leaving = not subscription
        if subscription:
            self._subscription = subscription
            self.join()

    @property
    def may_leave(self) -> bool:
        """Return whether it wants to leave and has released everything."""
        return self._is_leaving and not self._held and self.standing is not Standing.OUT

    def leave(self) -> None:
        """Leave the group until `join`. Partitions that are still held are lost. The caller informs the coordinator."""
        if self._is_leaving:
            self._subscription = Subscription((), "", "")
        if self.standing in (Standing.JOINING, Standing.IN):
            self._begin_life(Standing.OUT)

    def join(self) -> None:
        """Join the group again, if it has a subscription."""
        if self.standing is Standing.OUT and self._subscription:
            self.standing = Standing.JOINING

    def _begin_life(self, standing: Standing) -> None:
        self.member_id, self.epoch = self._new_id(), 0
        self.incarnation += 1
        self.standing = standing
        self._assigned = {}
        self.lost = set(self._held)
        self._is_cut_off = False

    # -------------------------------------------------------------------------------------------------------- acting

    def steps(self) -> Steps:
        """Return the steps to take."""
        lose: dict[PartitionId, int] = {}
        revoke: dict[PartitionId, int] = {}
        for partition, owner_epoch in self._held.items():
            if partition in self.lost:
                lose[partition] = owner_epoch
            elif partition not in self._assigned or self._is_leaving:
                revoke[partition] = owner_epoch
        granted = self._assigned.items() if self._may_open else ()
        return Steps(lose, revoke, {partition: grant for partition, grant in granted if partition not in self._held})

    def hold(self, opened: Mapping[PartitionId, int]) -> set[PartitionId]:
        """Record that partitions were opened under these owner epochs. Return those that it still has. The others must not be read.

        Scenario: an answer revoked p while p was being opened. A heartbeat without p may have been sent since, so p may belong to another
        member. Holding it now would contradict that heartbeat.
        """
        kept = {
            partition
            for partition, owner_epoch in opened.items()
            if self._may_open
            and (grant := self._assigned.get(partition)) is not None
            and grant.owner_epoch == owner_epoch
        }
        self._held.update((partition, opened[partition]) for partition in kept)
        return kept

    def release(self, partitions: Iterable[PartitionId]) -> None:
        """Record that these partitions are no longer read, and that nothing will be committed for them. The next heartbeat reports it."""
        for partition in partitions:
            self._held.pop(partition, None)
            self.lost.discard(partition)

    def is_granted(self, partition: PartitionId, owner_epoch: int) -> bool:
        """Return whether the newest assignment contains the partition under this epoch."""
        grant = self._assigned.get(partition)
        return self.standing is Standing.IN and grant is not None and grant.owner_epoch == owner_epoch

    @property
    def _may_open(self) -> bool:
        return self.standing is Standing.IN and not self._is_cut_off and not self._is_leaving

    def may_commit(self, partition: PartitionId, owner_epoch: int) -> bool:
        """Return whether it holds the partition under this epoch, as far as it knows."""
        return self._held.get(partition) == owner_epoch and partition not in self.lost


def check_failure(member: GroupMember) -> RaftMQError | None:
    """Return the failure in the form that the program sees."""
    failure = member.failure
    if isinstance(failure, FencedError) and member.settings.instance_id:
        return FencedError(
            f"another process joined group {member.settings.group!r} as instance {member.settings.instance_id!r}"
        )
    return failure


def _by_topic(partitions: Iterable[PartitionId]) -> list[pb.TopicPartitions]:
    numbers: dict[int, list[int]] = {}
    for topic_id, number in partitions:
        numbers.setdefault(topic_id, []).append(number)
    return [pb.TopicPartitions(topic_id=topic_id, partitions=sorted(found)) for topic_id, found in numbers.items()]


def _grants(assignment: Iterable[pb.TopicAssignment]) -> dict[PartitionId, Grant]:
    return {
        PartitionId(topic.topic_id, number): Grant(topic.topic, owner_epoch)
        for topic in assignment
        for number, owner_epoch in zip(topic.partitions, topic.owner_epochs, strict=True)
    }
