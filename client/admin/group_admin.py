"""Administration of consumer groups: list, describe and delete groups, reset their offsets, remove their members.

These functions take a resolver, and `Admin` offers them as methods. Targets such as a time or a shift are converted to offsets here,
because brokers only know offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from raftmq.client.base import settings
from raftmq.client.base.background import Deadline
from raftmq.client.base.error_details import error_from_detail, with_doubt
from raftmq.client.connection.leader_calls import EARLIEST_TIME, LATEST_TIME, list_offsets
from raftmq.client.connection.resolver import Resolver
from raftmq.errors import (
    FailedPreconditionError,
    InvalidArgumentError,
    NoLeaderError,
    OffsetOutOfRangeError,
    Outcome,
    RaftMQError,
    UnknownGroupError,
)
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
    partitions: int
    """The number of partitions in which it has committed an offset."""
    lag_records: int | None
    """The number of records after these offsets, or None if the leader of some partition did not answer."""


@dataclass(frozen=True, slots=True)
class GroupMemberDescription:
    """A member of a group."""

    member_id: str
    instance_id: str
    """The instance id of a static member, or empty."""
    client_id: str
    rack: str
    topics: tuple[str, ...]
    """The topics subscribed by name."""
    pattern: str
    """The subscribed regular expression, or empty."""
    partitions: tuple[TopicPartition, ...]
    """The partitions that it holds, including those that it must release."""
    session_left_seconds: float


@dataclass(frozen=True, slots=True)
class GroupOffset:
    """The position of a group in one partition."""

    partition: TopicPartition
    offset: int | None
    """The committed offset, which is the next to read, or None if nothing was committed."""
    lag_records: int | None
    """The number of records from the offset on, or None if nothing was committed."""
    lag_seconds: float | None
    """The age of the oldest of these records, 0 if there is none, or None if nothing was committed."""
    log_start_offset: int
    end_offset: int
    member_id: str
    """The owner of the partition, or empty if it has none."""
    note: str
    error: RaftMQError | None
    """The reason why its leader could not answer. The numbers have no meaning then."""
    finished_records: int = 0
    """The part of `lag_records` that workers have finished, after others that they have not."""


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group with its members and offsets."""

    group: str
    state: str
    assignor: str
    members: tuple[GroupMemberDescription, ...]
    offsets: tuple[GroupOffset, ...]
    """The positions in every partition that is assigned or that has an offset of the group."""
    is_partial: bool = False
    """Whether the leaders of some partitions did not answer. The group may have offsets there that are not in `offsets`."""


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """The effect of a reset on one partition."""

    partition: TopicPartition
    before: int | None
    """The committed offset before, or None if nothing was committed."""
    after: int


@dataclass(frozen=True, slots=True)
class ResetTarget:
    """The target of a reset: exactly one of these fields."""

    to: Literal["earliest", "latest"] | None = None
    time_ms: int | None = None
    """The first record with a timestamp at or after this time (milliseconds since the epoch), or the end if there is none."""
    shift: int | None = None
    """The number of records to go forward, or back if negative, limited to the start and end."""
    offsets: Mapping[TopicPartition, int] | None = None

    def check(self) -> None:
        """Raise `InvalidArgumentError` unless exactly one field is set, and valid."""
        if sum(value is not None for value in (self.to, self.time_ms, self.shift, self.offsets)) != 1:
            raise InvalidArgumentError("pass exactly one of to, time_ms, shift and offsets")
        if self.to not in (None, "earliest", "latest"):
            raise InvalidArgumentError(f"to must be 'earliest' or 'latest', not {self.to!r}")
        if self.time_ms is not None and self.time_ms < 0:
            raise InvalidArgumentError(f"time_ms must be 0 or more, not {self.time_ms!r}")
        if self.offsets is not None and not self.offsets:
            raise InvalidArgumentError("offsets must name at least one partition")


async def list_groups(resolver: Resolver, timeout_seconds: float) -> list[GroupListing]:
    """Return all groups that have or had members, or committed offsets, by name."""
    response = await resolver.call_any(LIST_GROUPS, pb.ListGroupsRequest(), timeout_seconds, is_read=True)
    resolver.record_revision(response.metadata_revision)
    listed = (
        GroupListing(
            g.group, g.state, g.members, g.assignor, g.partitions, g.lag_records if g.lag_records >= 0 else None
        )
        for g in response.groups
    )
    return sorted(listed, key=lambda group: group.group)


async def describe_group(
    resolver: Resolver, group: str, timeout_seconds: float, *, with_offsets: bool = True
) -> GroupDescription:
    """Return the members and offsets of a group.

    Raises `UnknownGroupError` if it has neither. If the leaders of some partitions do not answer, it may have offsets there, so it is then described as empty.
    """
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
        is_partial=response.is_partial,
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
    """Commit other offsets for a group, as `Admin.reset_group_offsets` describes."""
    target.check()
    if target.offsets is not None and (topics or partitions):
        raise InvalidArgumentError("offsets names the partitions: pass neither topics nor partitions with it")
    deadline = Deadline(timeout_seconds)
    is_named = bool(topics or partitions or target.offsets)
    must_exist = target.shift is not None or not is_named
    before = await _committed(resolver, group, deadline.remaining(), must_exist=must_exist, is_whole=not is_named)
    wanted = list(target.offsets or partitions)
    for topic in topics:
        info = await resolver.topic(topic, deadline.remaining())
        wanted += [TopicPartition(topic, number) for number in range(info.partition_count)]
    if not wanted:
        wanted = [partition for partition, offset in before.items() if target.shift is None or offset is not None]
    # as of now: the offsets that are looked up mean nothing in a topic that is created again in the meantime
    ids = {
        name: (await resolver.topic(name, deadline.remaining())).topic_id
        for name in dict.fromkeys(tp.topic for tp in wanted)
    }
    after = await _resolved(resolver, target, dict.fromkeys(wanted), before, deadline)
    changes = [OffsetChange(partition, before.get(partition), offset) for partition, offset in sorted(after.items())]
    if changes and not dry_run:
        await _reset(resolver, group, after, ids, deadline, fence_members=fence_members)
    return changes


async def delete_group(resolver: Resolver, group: str, timeout_seconds: float) -> int:
    """Delete a group and its offsets. Return the number of partitions in which it had offsets. Raises `GroupNotEmptyError`."""
    response = await resolver.call_any(DELETE_GROUP, pb.DeleteGroupRequest(group=group), timeout_seconds)
    resolver.record_revision(response.metadata_revision)
    return response.partitions


async def remove_group_member(
    resolver: Resolver, group: str, timeout_seconds: float, *, member_id: str, instance_id: str
) -> None:
    """End a member's session. Raises `UnknownMemberError`."""
    if bool(member_id) == bool(instance_id):
        raise InvalidArgumentError("pass either member_id or instance_id")
    request = pb.LeaveRequest(group=group, member_id=member_id, instance_id=instance_id)
    response = await resolver.call_any(LEAVE, request, timeout_seconds)
    resolver.record_revision(response.metadata_revision)


async def _committed(
    resolver: Resolver, group: str, timeout_seconds: float, *, must_exist: bool, is_whole: bool
) -> dict[TopicPartition, int | None]:
    """Return the group's committed offset of every partition that it uses, or None where there is none.

    With `is_whole` it raises `NoLeaderError` if partitions may be missing, because their leaders did not answer.
    """
    try:
        described = await describe_group(resolver, group, timeout_seconds)
    except UnknownGroupError:
        if must_exist:
            raise
        return {}
    for one in described.offsets:
        if one.error is not None:
            raise one.error
    if is_whole and described.is_partial:
        raise NoLeaderError(
            f"the leaders of some partitions do not answer, and group {group!r} may have offsets there: try again later, or name the topics or "
            "partitions to reset"
        )
    return {one.partition: one.offset for one in described.offsets}


async def _resolved(
    resolver: Resolver,
    target: ResetTarget,
    wanted: Iterable[TopicPartition],
    before: Mapping[TopicPartition, int | None],
    deadline: Deadline,
) -> dict[TopicPartition, int]:
    """Return the target's offset in each partition. Raises `OffsetOutOfRangeError` for an offset that does not exist."""
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
                    f"{name.topic}/{name.partition} has no offset {offset}: the first is {start}, and the next record gets {end}",
                    log_start_offset=start,
                    high_watermark=end,
                )
        elif target.time_ms is not None:
            resolved[name] = found[name].offset if found[name].offset >= 0 else end
        elif target.shift is not None:
            committed = before.get(name)
            if committed is None:
                raise FailedPreconditionError(
                    f"the group has no committed offset in {name.topic}/{name.partition} to shift: name only partitions in which it has one, "
                    "or move it to the earliest or latest record, a time or an offset"
                )
            resolved[name] = min(max(committed + target.shift, start), end)
        else:
            resolved[name] = start if target.to == "earliest" else end
    return resolved


async def _reset(
    resolver: Resolver,
    group: str,
    offsets: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, int],
    deadline: Deadline,
    *,
    fence_members: bool,
) -> None:
    partitions = list(offsets)
    for start in range(0, len(partitions), settings.REQUEST_PARTITIONS_MAX):
        part = partitions[start : start + settings.REQUEST_PARTITIONS_MAX]
        request = pb.ResetOffsetsRequest(group=group, fence_members=fence_members)
        for partition in part:
            request.partitions.add(
                topic_id=topic_ids[partition.topic], partition=partition.partition, offset=offsets[partition]
            )
        try:
            response = await resolver.call_any(RESET_OFFSETS, request, deadline.remaining())
        except RaftMQError as error:
            if start or (fence_members and error.retriable):
                # others have changed, or these have, and the step after that, which fences the members, has failed
                raise with_doubt(error) from error
            raise
        refusals = [
            error_from_detail(result.error, f"{partition.topic}/{partition.partition}")
            for partition, result in zip(part, response.partitions, strict=True)
            if result.HasField("error")
        ]
        if refusals:
            if start or len(refusals) < len(part) or any(one.outcome is Outcome.UNKNOWN for one in refusals):
                raise with_doubt(refusals[0])  # others have changed, or may have
            raise refusals[0]


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
