"""Serve the Groups RPCs on the coordinator: heartbeats of members, and administration of consumer groups.

The coordinator is the metadata leader. Other nodes forward requests to it by one hop. `heartbeat_validator` decides the effect of
a heartbeat. This module checks it, proposes the effect, and answers from the resulting state.

Source: KIP-848.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from raftmq.broker.base.futures import consume_exception
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.consumer_groups.coordinator import GroupCoordinator
from raftmq.broker.consumer_groups.partition_leaders import PartitionLeaders
from raftmq.broker.consumer_groups.planner import assignor_names
from raftmq.broker.consumer_groups.topic_pattern import TopicPattern, TopicPatternError
from raftmq.broker.partitions.kinds import LOG
from raftmq.broker.replica.commands import refused
from raftmq.broker.services.call import Call
from raftmq.broker.services.committed_offsets import check_group_name
from raftmq.broker.services.host import ServiceHost
from raftmq.broker.services.locator import check_partitions
from raftmq.broker.services.messages import node_message
from raftmq.broker.services.metadata_leader import MetadataLeader, on_metadata_leader
from raftmq.fsm.consumer_groups import ConsumerGroup, PartitionId, is_group_text
from raftmq.fsm.heartbeat_validator import MemberHeartbeat, MemberSubscription, validate_heartbeat
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import (
    DeleteConsumerGroup,
    Done,
    JoinConsumerGroup,
    LeaveConsumerGroup,
    MemberJoined,
    RegrantPartitions,
    Rejected,
    TakeGroupEpoch,
)
from raftmq.fsm.metadata_groups import SUBSCRIBED_TOPICS_MAX
from raftmq.fsm.tables import KEY_TEXT_BYTES_MAX
from raftmq.proto import queue_pb2 as pb

OWNED_MAX: Final = 100_000
"""Partitions that one heartbeat may name: as many as a cluster of a hundred nodes has. A 4 MiB request could name millions."""
REGRANT_SECONDS: Final = 5.0
"""Minimum time to give owners new epochs after a reset."""
_ROUNDS_MAX: Final = 4
"""Rounds of validating one heartbeat. It usually leads to at most a change and a release, or to more if the group changes
concurrently."""


class GroupsService:
    """Answers the RPCs about consumer groups."""

    def __init__(
        self, host: ServiceHost, leader: MetadataLeader, coordinator: GroupCoordinator, partitions: PartitionLeaders
    ) -> None:
        self._host = host
        self.leader = leader
        self._coordinator = coordinator
        self._partitions = partitions
        self._assignors = assignor_names()

    @property
    def _metadata(self) -> Metadata:
        return self._host.metadata.state_machine

    # ------------------------------------------------------------------------------------------------ members

    @on_metadata_leader
    async def heartbeat(self, request: pb.HeartbeatRequest, call: Call) -> pb.HeartbeatResponse:
        """Apply a member's heartbeat and answer with its assignment."""
        heartbeat = self._heard(request)
        for _ in range(_ROUNDS_MAX):
            group = self._metadata.consumer_group(heartbeat.group)
            self._keep_alive(group, heartbeat)
            result = validate_heartbeat(group, heartbeat, self._metadata.applied_index)
            if result is None:
                break
            if isinstance(result, Rejected):
                raise refused(result)
            if isinstance(result, JoinConsumerGroup):
                self._check_join(group, result)
                await self.leader.execute(result, MemberJoined, call.deadline)
                continue
            try:
                await self.leader.execute(result, Done, call.deadline)
            except RequestError as error:
                if error.code != pb.STALE_EPOCH:  # the group changed in the meantime: the answer shows the new state
                    raise
        return self._answer(heartbeat)

    def _keep_alive(self, group: ConsumerGroup | None, heartbeat: MemberHeartbeat) -> None:
        member = group.members.get(heartbeat.member_id) if group is not None else None
        if member is not None:
            self._coordinator.heard_of(heartbeat.group, heartbeat.member_id, member)

    def _answer(self, heartbeat: MemberHeartbeat) -> pb.HeartbeatResponse:
        metadata = self._metadata
        group = metadata.consumer_group(heartbeat.group)
        member = group.members.get(heartbeat.member_id) if group is not None else None
        if group is None or member is None:
            raise RequestError(pb.UNKNOWN_MEMBER, "the group no longer has this member: join again")
        self._coordinator.heard_of(heartbeat.group, heartbeat.member_id, member)
        response = pb.HeartbeatResponse(
            member_epoch=member.epoch,
            next_heartbeat_ms=int(self._coordinator.next_heartbeat_seconds(group, member) * 1000),
            metadata_revision=metadata.revision,
            is_rebalancing=not group.is_settled,
        )
        if heartbeat.member_epoch != member.epoch:
            response.has_assignment = True
            response.assignment.extend(_assignment(metadata, member.assigned()))
        node = metadata.node(self._host.node_id)
        if node is not None:
            response.coordinator.CopyFrom(node_message(node))
        return response

    @on_metadata_leader
    async def leave(self, request: pb.LeaveRequest, call: Call) -> pb.LeaveResponse:
        """End a membership immediately."""
        check_group_name(request.group)
        group = self._metadata.consumer_group(request.group)
        member_id = request.member_id or (group.instance(request.instance_id) if group is not None else None)
        if not member_id:
            raise RequestError(pb.UNKNOWN_MEMBER, f"consumer group {request.group!r} has no such member")
        refusal = self._host.metadata.refusal_of_time()
        if refusal is not None:
            raise refusal  # an empty group expires by the time of this command
        done = await self.leader.execute(LeaveConsumerGroup(request.group, (member_id,)), Done, call.deadline)
        self._coordinator.forget(request.group, member_id)
        return pb.LeaveResponse(metadata_revision=done.revision)

    # ------------------------------------------------------------------------------------------------ administration

    @on_metadata_leader
    async def list_groups(self, request: pb.ListGroupsRequest, call: Call) -> pb.ListGroupsResponse:
        """Return all groups that members ever joined or that have committed offsets, and that are not forgotten."""
        summaries, is_complete = await self._partitions.summarize(call)
        metadata = self._metadata
        response = pb.ListGroupsResponse(metadata_revision=metadata.revision)
        for name in sorted({*metadata.consumer_group_names(), *summaries}):
            group, summary = metadata.consumer_group(name), summaries.get(name)
            listing = _listing(group) if group is not None else pb.GroupListing(group=name, state="empty")
            listing.lag_records = 0 if is_complete else -1
            if summary is not None:
                listing.partitions = summary.partitions
                listing.lag_records = summary.lag_records if is_complete else -1
            response.groups.append(listing)
        return response

    @on_metadata_leader
    async def describe(self, request: pb.DescribeGroupRequest, call: Call) -> pb.DescribeGroupResponse:
        """Return a group's members, their partitions, and the group's offsets and lag."""
        check_group_name(request.group)
        metadata = self._metadata
        response = pb.DescribeGroupResponse(metadata_revision=metadata.revision)
        group = metadata.consumer_group(request.group)
        named: list[PartitionId] = []
        if group is not None:
            response.group.CopyFrom(_listing(group))
            response.members.extend(self._member(metadata, group, member_id) for member_id in sorted(group.members))
            named = sorted({*group.owners, *group.targets})
        if not request.without_offsets:
            offsets, is_complete = await self._partitions.fetch(request.group, named, call)
            response.offsets.extend(offsets)
            response.is_partial = not is_complete
        if group is None and not response.offsets and not response.is_partial:
            raise RequestError(pb.UNKNOWN_GROUP, f"there is no consumer group {request.group!r}")
        if group is None:
            response.group.CopyFrom(pb.GroupListing(group=request.group, state="empty"))
        topic_ids = {part[0] for part in named} | {offset.topic_id for offset in response.offsets}
        for topic_id in sorted(topic_ids):
            topic = self._metadata.topic(topic_id)
            if topic is not None:
                response.topics.add(topic_id=topic_id, name=topic.name, kind=topic.kind)
        return response

    def _member(self, metadata: Metadata, group: ConsumerGroup, member_id: str) -> pb.GroupMember:
        member = group.members[member_id]
        return pb.GroupMember(
            member_id=member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            rack=member.rack,
            member_epoch=member.epoch,
            subscription=pb.Subscription(topics=member.topics, pattern=member.pattern, assignor=member.assignor),
            session_timeout_ms=member.session_timeout_ms,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            owned=_assignment(metadata, member.owned),
            target=[pb.TopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in member.target],
            session_left_ms=int(self._coordinator.session_left_seconds(group.name, member_id) * 1000),
        )

    @on_metadata_leader
    async def reset_offsets(self, request: pb.ResetOffsetsRequest, call: Call) -> pb.ResetOffsetsResponse:
        """Set a group's offsets.

        The group epoch is taken first, so that it is above every fence. Owners get new epochs after the offsets are written.

        A member that opens a partition between these steps is fenced, because its epoch is older. If the partition is assigned
        to another member between them, that member's epoch is higher, and the reset of the partition is refused as FENCED.
        """
        check_group_name(request.group)
        check_partitions(len(request.partitions))
        parts = [(reset.topic_id, reset.partition) for reset in request.partitions]
        if len(set(parts)) != len(parts):
            raise RequestError(pb.INVALID_ARGUMENT, "a request may reset each partition only once")
        must_be_empty = not request.fence_members
        taken = await self.leader.execute(TakeGroupEpoch(request.group, must_be_empty), Done, call.deadline)
        results = await self._partitions.reset(request.group, taken.revision, request.partitions, call)
        # If it is unknown whether an offset was written, its owner may be fenced, too.
        fenced = tuple(part for part in parts if _may_be_reset(results[part]))
        group = self._metadata.consumer_group(request.group)
        if request.fence_members and fenced and group is not None and group.members:
            # Owners without new epochs could not commit. So this step does not depend on the time that a slow leader left, or on the caller.
            deadline = max(call.deadline, self._host.loop.time() + REGRANT_SECONDS)
            regrant = self.leader.execute(RegrantPartitions(request.group, fenced), Done, deadline)
            granting = self._host.loop.create_task(regrant)
            granting.add_done_callback(consume_exception)
            await asyncio.shield(granting)
        return pb.ResetOffsetsResponse(partitions=[results[part] for part in parts], owner_epoch=taken.revision)

    @on_metadata_leader
    async def delete(self, request: pb.DeleteGroupRequest, call: Call) -> pb.DeleteGroupResponse:
        """Forget a group without members, and its offsets."""
        check_group_name(request.group)
        response = pb.DeleteGroupResponse(metadata_revision=self._metadata.revision)
        unknown: RequestError | None = None
        last_epoch: int = self._metadata.applied_index
        try:
            done = await self.leader.execute(DeleteConsumerGroup(request.group), Done, call.deadline)
            response.metadata_revision = last_epoch = done.revision
        except RequestError as error:
            if error.code != pb.UNKNOWN_GROUP:
                raise
            unknown = error  # offsets may still exist: committed without members, or left by an interrupted call
        forgotten = await self._partitions.forget(request.group, last_epoch, call)
        may_have_changed = unknown is None or forgotten.partitions > 0 or forgotten.is_in_doubt
        if forgotten.failure is not None:
            if may_have_changed:
                forgotten.failure.detail.outcome = pb.UNKNOWN_OUTCOME
            raise forgotten.failure
        if unknown is not None and not may_have_changed:
            raise unknown
        response.partitions = forgotten.partitions
        return response

    # ------------------------------------------------------------------------------------------------ checks

    def _heard(self, request: pb.HeartbeatRequest) -> MemberHeartbeat:
        check_group_name(request.group)
        if not is_group_text(request.member_id):
            raise RequestError(
                pb.INVALID_ARGUMENT, f"a member id must have 1 to {KEY_TEXT_BYTES_MAX} bytes and no control characters"
            )
        if sum(len(topic.partitions) for topic in request.owned) > OWNED_MAX:
            raise RequestError(pb.INVALID_ARGUMENT, f"a member may hold at most {OWNED_MAX} partitions")
        subscription = None
        if request.HasField("subscription"):
            said = request.subscription
            if len(said.topics) > SUBSCRIBED_TOPICS_MAX:
                raise RequestError(
                    pb.INVALID_ARGUMENT, f"a member may subscribe to at most {SUBSCRIBED_TOPICS_MAX} topics"
                )
            subscription = MemberSubscription(tuple(said.topics), said.pattern, said.assignor)
        timing = self._host.timing
        return MemberHeartbeat(
            request.group,
            request.member_id,
            request.member_epoch,
            request.instance_id,
            request.client_id,
            request.rack,
            request.session_timeout_ms or int(timing.session_seconds * 1000),
            request.rebalance_timeout_ms or int(timing.rebalance_seconds * 1000),
            subscription,
            frozenset((topic.topic_id, number) for topic in request.owned for number in topic.partitions),
        )

    def _check_join(self, group: ConsumerGroup | None, command: JoinConsumerGroup) -> None:
        """Refuse a command that applying would refuse, or that this version or this node cannot accept."""
        timing, limits, metadata = self._host.timing, self._host.limits, self._metadata
        if not timing.session_min_seconds <= command.session_timeout_ms / 1000 <= timing.session_max_seconds:
            raise RequestError(
                pb.INVALID_ARGUMENT,
                f"a session timeout must be between {timing.session_min_seconds:g} and {timing.session_max_seconds:g} s, "
                f"not {command.session_timeout_ms} ms",
            )
        if not command.topics and not command.pattern:
            raise RequestError(pb.INVALID_ARGUMENT, "a member must subscribe to topics or to a pattern")
        if command.assignor and command.assignor not in self._assignors:
            raise RequestError(
                pb.INVALID_ARGUMENT,
                f"there is no assignor {command.assignor!r}; the assignors are {', '.join(sorted(self._assignors))}",
            )
        if command.pattern:
            try:
                TopicPattern(command.pattern)
            except TopicPatternError as error:
                raise RequestError(pb.INVALID_ARGUMENT, str(error)) from error
        for topic in filter(None, map(metadata.topic_by_name, command.topics)):
            LOG.require(topic)
        if group is not None and command.member_id in group.members:
            return
        if group is None and metadata.consumer_group_count >= limits.consumer_groups_max:
            raise _too_many(f"there are {limits.consumer_groups_max} consumer groups, which is the maximum")
        takes_over = group is not None and group.instance(command.instance_id) is not None
        if group is not None and not takes_over and len(group.members) >= limits.group_members_max:
            raise _too_many(
                f"consumer group {command.group!r} has {limits.group_members_max} members, which is the maximum"
            )
        if not takes_over and metadata.member_count >= limits.members_max:
            raise _too_many(f"all consumer groups together have {limits.members_max} members, which is the maximum")
        if metadata.subscription_bytes >= limits.subscription_bytes_max:
            raise _too_many("the subscriptions of all members together exceed their limit")


def _may_be_reset(result: pb.PartitionResetResult) -> bool:
    return not result.HasField("error") or result.error.outcome == pb.UNKNOWN_OUTCOME


def _too_many(reason: str) -> RequestError:
    return RequestError(pb.TOO_MANY_MEMBERS, reason, retry_after_ms=1000)


def _assignment(metadata: Metadata, owned: Iterable[tuple[int, int, int]]) -> list[pb.TopicAssignment]:
    """Return partitions grouped by topic, as protocol messages."""
    by_topic: dict[int, pb.TopicAssignment] = {}
    for topic_id, number, owner_epoch in owned:
        message = by_topic.get(topic_id)
        if message is None:
            topic = metadata.topic(topic_id)
            message = by_topic[topic_id] = pb.TopicAssignment(
                topic_id=topic_id, topic=topic.name if topic is not None else ""
            )
        message.partitions.append(number)
        message.owner_epochs.append(owner_epoch)
    return list(by_topic.values())


def _listing(group: ConsumerGroup) -> pb.GroupListing:
    state = "stable" if group.is_settled else "rebalancing"
    return pb.GroupListing(
        group=group.name,
        state=state if group.members else "empty",
        members=len(group.members),
        group_epoch=group.row.epoch,
        assignor=group.row.assignor,
    )
