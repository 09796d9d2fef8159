"""One member of a consumer group: what it says to the coordinator, what the answers mean, and what there is to do about them.

Pure: no I/O, no clock, no threads; `membership.py` keeps time and guards it. It must not open or read partitions: it says what to
lose, revoke and open (`steps`), and hears what was done (`hold`, `release`).

Invariants: what it reports as owned is everything it holds, what it is giving up included; a partition is held only under an owner
epoch that the newest assignment names, or is about to be given up; an answer to an older life or of an older epoch changes nothing.

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
    """Under which name and epoch a member has a partition."""

    topic: str
    owner_epoch: int


class Steps(NamedTuple):
    """What to do, in this order. Each is told by `GroupMember.hold` or `release` when it is done."""

    lose: dict[PartitionId, int]
    """Held, and maybe another's by now: stop at once. With the owner epochs they were held under."""
    revoke: dict[PartitionId, int]
    """Held, and to be given up in peace."""
    open: dict[PartitionId, Grant]
    """Granted and not held."""

    @property
    def is_empty(self) -> bool:
        """Nothing to do."""
        return not (self.lose or self.revoke or self.open)


@dataclass(frozen=True, slots=True)
class MemberSettings:
    """What a member says about itself; the same all its life."""

    group: str
    instance_id: str
    client_id: str
    rack: str
    session_timeout_ms: int
    rebalance_timeout_ms: int


@dataclass(frozen=True, slots=True)
class Subscription:
    """What to read: names, a pattern for whole names, or both."""

    topics: tuple[str, ...]
    pattern: str
    assignor: str

    def __bool__(self) -> bool:
        return bool(self.topics or self.pattern)


class Standing(Enum):
    """Where a member is."""

    OUT = "out"
    """Subscribed to nothing, or away because the program does not ask for records: it says nothing."""
    JOINING = "joining"
    IN = "in"
    FAILED = "failed"
    """The coordinator refuses it for good; see `failure`."""


class GroupMember:
    """See the module."""

    def __init__(self, settings: MemberSettings, new_id: Callable[[], str] = lambda: str(uuid.uuid4())) -> None:
        self.settings = settings
        self.standing = Standing.OUT
        self.member_id = new_id()
        """A new one for each life."""
        self.epoch = 0
        """Of the newest assignment; 0: none yet."""
        self.metadata_revision = 0
        """Includes the topics of the assignment."""
        self.is_rebalancing = False
        self.failure: RaftMQError | None = None
        self.incarnation = 0
        """How often it joined, or tried to, under a new id."""
        self._new_id = new_id
        self._subscription = Subscription((), "", "")
        self._assigned: dict[PartitionId, Grant] = {}
        self._held: dict[PartitionId, int] = {}
        self.lost: set[PartitionId] = set()
        """Of those held: may be another's, or were meanwhile, or their offset was reset (another owner epoch)."""
        self._is_cut_off = False
        """Its session may have ended: nothing is opened until the coordinator answers."""
        self._is_leaving = False

    # -------------------------------------------------------------------------------------------------------- talking

    def heartbeat(self) -> pb.HeartbeatRequest:
        """What to say now."""
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
        """Take over an answer; False when it is an old one, of a coordinator that was succeeded."""
        if request.member_id != self.member_id or self.standing in (Standing.OUT, Standing.FAILED):
            return True  # an answer to an earlier life: nothing to learn from it
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
        """The coordinator does not have this member any more: join anew, having lost everything."""
        if request.member_id == self.member_id and self.standing in (Standing.JOINING, Standing.IN):
            self._begin_life(Standing.JOINING)

    def on_refused(self, request: pb.HeartbeatRequest, error: RaftMQError) -> None:
        """The coordinator refuses it for good: another process has its instance id, or what it says makes no sense."""
        if request.member_id == self.member_id and self.standing in (Standing.JOINING, Standing.IN):
            self._begin_life(Standing.FAILED)
            self.failure = error

    def on_silence(self) -> None:
        """No answer for a session: whatever it holds may be another's. It may get the same back when there is an answer again."""
        if self.standing is Standing.IN and not self._is_cut_off:
            self._is_cut_off = True
            self.lost = set(self._held)

    # ------------------------------------------------------------------------------------------------------- wishing

    @property
    def subscription(self) -> Subscription:
        """What it wants to read."""
        return self._subscription

    def subscribe(self, subscription: Subscription) -> None:
        """Want to read this from now on; nothing: give up everything in peace, and then be no member any more."""
        self._is_leaving = not subscription
        if subscription:
            self._subscription = subscription
            self.join()

    @property
    def may_leave(self) -> bool:
        """It wants to be no member, and has given up everything."""
        return self._is_leaving and not self._held and self.standing is not Standing.OUT

    def leave(self) -> None:
        """Be no member any more, until `come`; what is still held is lost. Whoever calls it tells the coordinator."""
        if self._is_leaving:
            self._subscription = Subscription((), "", "")
        if self.standing in (Standing.JOINING, Standing.IN):
            self._begin_life(Standing.OUT)

    def join(self) -> None:
        """Be a member again, if there is something to read."""
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
        """What there is to do."""
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
        """These were opened under these owner epochs. Returns those that it still has; the others must not be read.

        Scenario: an answer took p away while p was being opened. A heartbeat without p may have been sent since, so p may be
        another's: holding it now would be a lie.
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
        """These are not read any more, and nothing of them will be committed; the next heartbeat says so."""
        for partition in partitions:
            self._held.pop(partition, None)
            self.lost.discard(partition)

    @property
    def _may_open(self) -> bool:
        return self.standing is Standing.IN and not self._is_cut_off and not self._is_leaving

    def may_commit(self, partition: PartitionId, owner_epoch: int) -> bool:
        """Whether it holds the partition under this epoch, as far as it knows."""
        return self._held.get(partition) == owner_epoch and partition not in self.lost


def check_failure(member: GroupMember) -> RaftMQError | None:
    """The failure as the program shall see it."""
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
