"""Consumer groups as an administrator sees them: listed, described, their offsets reset, their members removed, deleted.

Functions over a resolver; `Admin` has them as methods. Targets such as a time or a shift are turned into offsets here: the brokers
only know offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from raftmq.client.base.background import Deadline
from raftmq.client.base.error_details import error_from_detail
from raftmq.client.connection.leader_calls import EARLIEST_TIME, LATEST_TIME, list_offsets
from raftmq.client.connection.resolver import Resolver
from raftmq.errors import InvalidArgumentError, OffsetOutOfRangeError, RaftMQError, UnknownGroupError
from raftmq.methods import DELETE_GROUP, DESCRIBE_GROUP, LEAVE, LIST_GROUPS, RESET_OFFSETS
from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A consumer group in a list."""

    group: str
    state: str
    """``stable``, ``rebalancing`` or ``empty``."""
    members: int
    assignor: str


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """A member of a group."""

    member_id: str
    instance_id: str
    """Of a static member; empty: none."""
    client_id: str
    rack: str
    topics: tuple[str, ...]
    """Subscribed by name."""
    pattern: str
    """Subscribed by regular expression; empty: none."""
    partitions: tuple[TopicPartition, ...]
    """What it has, also what it is asked to give up."""
    session_left_seconds: float


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """Where a group is in one partition."""

    partition: TopicPartition
    offset: int | None
    """Committed: the next to read; None: nothing was."""
    lag_records: int | None
    """Records behind it; None: nothing was committed."""
    lag_seconds: float | None
    """Age of the oldest of them; 0: there is none; None: nothing was committed."""
    log_start_offset: int
    end_offset: int
    member_id: str
    """Who has the partition; empty: nobody."""
    note: str
    error: RaftMQError | None
    """Why its leader could not say; the numbers mean nothing then."""
    finished_records: int = 0
    """Of `lag_records`: workers have finished them, beyond others that they have not."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with everything in it."""

    group: str
    state: str
    assignor: str
    members: tuple[GroupMemberDescription, ...]
    offsets: tuple[GroupOffset, ...]
    """Of every partition that is assigned or that knows the group."""


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """What a reset does, or would do, to one partition."""

    partition: TopicPartition
    before: int | None
    """None: nothing was committed."""
    after: int


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """Where a group shall go: one of these."""

    to: Literal["earliest", "latest"] | None = None
    time_ms: int | None = None
    """The first record appended at or after this; the end where there is none."""
    shift: int | None = None
    """So many records on, or back; at most to the end, or the start."""
    offsets: Mapping[TopicPartition, int] | None = None

    def check(self) -> None:
        """Raise `InvalidArgumentError` unless it is exactly one."""
        if sum(value is not None for value in (self.to, self.time_ms, self.shift, self.offsets)) != 1:
            raise InvalidArgumentError("give one of to, time_ms, shift and offsets")
        if self.to not in (None, "earliest", "latest"):
            raise InvalidArgumentError(f"to is 'earliest' or 'latest', not {self.to!r}")
        if self.time_ms is not None and self.time_ms < 0:
            raise InvalidArgumentError(f"time_ms must be 0 or more, not {self.time_ms!r}")


async def list_groups(resolver: Resolver, timeout_seconds: float) -> list[GroupListing]:
    """All groups that have, or lately had, members, by name."""
    response = await resolver.call_any(LIST_GROUPS, pb.ListGroupsRequest(), timeout_seconds, is_read=True)
    resolver.record_revision(response.metadata_revision)
    listed = (GroupListing(g.group, g.state, g.members, g.assignor) for g in response.groups)
    return sorted(listed, key=lambda group: group.group)


async def describe_group(
    resolver: Resolver, group: str, timeout_seconds: float, *, with_offsets: bool = True
) -> GroupDescription:
    """Members and offsets. Raises `UnknownGroupError` when it has neither."""
    request = pb.DescribeGroupRequest(group=group, without_offsets=not with_offsets)
    response = await resolver.call_any(DESCRIBE_GROUP, request, timeout_seconds, is_read=True)
    resolver.record_revision(response.metadata_revision)
    names = {topic.topic_id: topic.name for topic in response.topics}
    living = {member.member_id for member in response.members}
    return GroupDescription(
        group=response.group.group or group,
        state=response.group.state,
        assignor=response.group.assignor,
        members=tuple(
            sorted(map(_member, response.members), key=lambda member: (member.instance_id, member.member_id))
        ),
        offsets=tuple(sorted((_offset(one, names, living) for one in response.offsets), key=lambda one: one.partition)),
    )


async def reset_group_offsets(
    resolver: Resolver,
    group: str,
    target: ResetTarget,
    timeout_seconds: float,
    *,
    topics: Iterable[str] = (),
    partitions: Iterable[TopicPartition] = (),
    dry_run: bool = False,
    fence_members: bool = False,
) -> list[OffsetChange]:
    """Commit other offsets for a group; see `Admin.reset_group_offsets`."""
    target.check()
    deadline = Deadline(timeout_seconds)
    must_exist = not (topics or partitions or target.offsets)
    before = await _committed(resolver, group, deadline.remaining(), must_exist=must_exist)
    wanted = list(target.offsets or partitions)
    for topic in topics:
        info = await resolver.topic(topic, deadline.remaining())
        wanted += [TopicPartition(topic, number) for number in range(info.partition_count)]
    if not wanted:
        wanted = [partition for partition, offset in before.items() if target.shift is None or offset is not None]
    after = await _resolved(resolver, target, dict.fromkeys(wanted), before, deadline)
    changes = [OffsetChange(partition, before.get(partition), offset) for partition, offset in sorted(after.items())]
    if changes and not dry_run:
        await _reset(resolver, group, after, deadline, fence_members=fence_members)
    return changes


async def delete_group(resolver: Resolver, group: str, timeout_seconds: float) -> int:
    """Forget a group and its offsets; returns in how many partitions it had any. Raises `GroupNotEmptyError`."""
    response = await resolver.call_any(DELETE_GROUP, pb.DeleteGroupRequest(group=group), timeout_seconds)
    resolver.record_revision(response.metadata_revision)
    return response.partitions


async def remove_group_member(
    resolver: Resolver, group: str, timeout_seconds: float, *, member_id: str, instance_id: str
) -> None:
    """End a member's session. Raises `UnknownMemberError`."""
    if bool(member_id) == bool(instance_id):
        raise InvalidArgumentError("give member_id or instance_id")
    request = pb.LeaveRequest(group=group, member_id=member_id, instance_id=instance_id)
    response = await resolver.call_any(LEAVE, request, timeout_seconds)
    resolver.record_revision(response.metadata_revision)


async def _committed(
    resolver: Resolver, group: str, timeout_seconds: float, *, must_exist: bool
) -> dict[TopicPartition, int | None]:
    """What the group has committed, of every partition that it has to do with."""
    try:
        described = await describe_group(resolver, group, timeout_seconds)
    except UnknownGroupError:
        if must_exist:
            raise
        return {}
    for one in described.offsets:
        if one.error is not None:
            raise one.error
    return {one.partition: one.offset for one in described.offsets}


async def _resolved(
    resolver: Resolver,
    target: ResetTarget,
    wanted: Iterable[TopicPartition],
    before: Mapping[TopicPartition, int | None],
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """The offset that the target means, by partition. Raises `OffsetOutOfRangeError` for an offset that does not exist."""
    names = list(wanted)
    starts = await list_offsets(resolver, dict.fromkeys(names, EARLIEST_TIME), deadline.remaining())
    ends = await list_offsets(resolver, dict.fromkeys(names, LATEST_TIME), deadline.remaining())
    found = (
        await list_offsets(resolver, dict.fromkeys(names, target.time_ms), deadline.remaining())
        if target.time_ms is not None
        else {}
    )
    resolved: dict[TopicPartition, int] = {}
    for name in names:
        start, end = starts[name].offset, ends[name].offset
        if target.offsets is not None:
            resolved[name] = offset = target.offsets[name]
            if not start <= offset <= end:
                raise OffsetOutOfRangeError(
                    f"{name.topic}/{name.partition} has no offset {offset}: the first is {start}, the next record gets {end}",
                    log_start_offset=start,
                    high_watermark=end,
                )
        elif target.time_ms is not None:
            resolved[name] = found[name].offset if found[name].offset >= 0 else end
        elif target.shift is not None:
            committed = before.get(name)
            if committed is None:
                raise InvalidArgumentError(f"{name.topic}/{name.partition} has no committed offset to shift")
            resolved[name] = min(max(committed + target.shift, start), end)
        else:
            resolved[name] = start if target.to == "earliest" else end
    return resolved


async def _reset(
    resolver: Resolver,
    group: str,
    offsets: Mapping[TopicPartition, int],
    deadline: Deadline,
    *,
    fence_members: bool,
) -> None:
    request = pb.ResetOffsetsRequest(group=group, fence_members=fence_members)
    for partition, offset in offsets.items():
        info = await resolver.topic(partition.topic, deadline.remaining())
        request.partitions.add(topic_id=info.topic_id, partition=partition.partition, offset=offset)
    response = await resolver.call_any(RESET_OFFSETS, request, deadline.remaining())
    for partition, result in zip(offsets, response.partitions, strict=True):
        if result.HasField("error"):
            raise error_from_detail(result.error, f"{partition.topic}/{partition.partition}")


def _member(member: pb.GroupMember) -> GroupMemberDescription:
    return GroupMemberDescription(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        rack=member.rack,
        topics=tuple(member.subscription.topics),
        pattern=member.subscription.pattern,
        partitions=tuple(
            sorted(TopicPartition(topic.topic, number) for topic in member.owned for number in topic.partitions)
        ),
        session_left_seconds=member.session_left_ms / 1000,
    )


def _offset(one: pb.CommittedOffset, names: Mapping[int, str], living: set[str]) -> GroupOffset:
    partition = TopicPartition(names.get(one.topic_id, f"topic with id {one.topic_id}"), one.partition)
    error = error_from_detail(one.error, f"{partition.topic}/{partition.partition}") if one.HasField("error") else None
    has_offset = error is None and one.offset >= 0
    return GroupOffset(
        partition=partition,
        offset=one.offset if has_offset else None,
        lag_records=one.lag_records if has_offset else None,
        lag_seconds=one.lag_ms / 1000 if has_offset else None,
        log_start_offset=one.log_start_offset,
        end_offset=one.high_watermark,
        member_id=one.member_id if one.member_id in living else "",
        note=one.note,
        error=error,
        finished_records=one.finished_records if has_offset else 0,
    )
