"""Commands about consumer groups: join, leave, assign, release, reset, delete.

All are pure functions over `MetadataTables`. A rejected command changes nothing. An assignment is never computed here.
It is compared with the group that it was computed for, checked, and carried out step by step.

Source: KIP-848.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec
from raftmq.fsm import codes
from raftmq.fsm.consumer_groups import ConsumerGroup, ConsumerGroupRow, GroupMemberRow, PartitionId, is_group_text
from raftmq.fsm.metadata_commands import (
    DeleteConsumerGroup,
    Done,
    JoinConsumerGroup,
    LeaveConsumerGroup,
    MemberJoined,
    RegrantPartitions,
    Rejected,
    ReleasePartitions,
    SetTargetAssignment,
    TakeGroupEpoch,
)
from raftmq.fsm.metadata_tables import MetadataTables
from raftmq.fsm.tables import KEY_TEXT_BYTES_MAX

GROUPS_MAX: Final = 100_000
MEMBERS_PER_GROUP_MAX: Final = 10_000
"""Both limits bound the size of a row or a result. The coordinator applies lower limits for the cluster's capacity."""
SUBSCRIBED_TOPICS_MAX: Final = 1000
PATTERN_BYTES_MAX: Final = 256
TIMEOUT_MS_MAX: Final = 24 * 60 * 60 * 1000


def join_consumer_group(tables: MetadataTables, command: JoinConsumerGroup) -> MemberJoined | Rejected:
    """Add a member, replace the member with the same instance id, or change a member's subscription and attributes."""
    refusal = _join_refusal(tables, command)
    if refusal is not None:
        return refusal
    groups = tables.consumer_groups
    group = groups.by_name.get(command.group)
    known = group.members.get(command.member_id) if group is not None else None
    said = _said(command, known)
    if known is not None and said == known:
        return MemberJoined(tables.cluster.revision, known.epoch)
    tables.update_cluster()
    if group is None:
        group = groups.put_row(command.group, ConsumerGroupRow(tables.index))
    if known is None:
        known = _take_instance(tables, group, command.instance_id)
        if known is not None:
            # keep the same partitions, under epochs that fence the previous process
            kept = tuple((topic_id, number, tables.index) for topic_id, number, _ in known.assigned())
            said = msgspec.structs.replace(said, target=known.target, owned=kept)
    if known is None or _wants(known) != _wants(said):
        groups.put_row(group.name, msgspec.structs.replace(group.row, epoch=tables.index, emptied_time_ms=0))
    groups.put_member(group, command.member_id, said, tables.index)
    _grant(tables, group, known.unreleased() if known is not None else ())
    return MemberJoined(tables.index, group.members[command.member_id].epoch)


def leave_consumer_group(tables: MetadataTables, command: LeaveConsumerGroup, append_time_ms: int) -> Done | Rejected:
    """Remove members, and grant their partitions to the members whose targets include them."""
    group = tables.consumer_groups.by_name.get(command.group)
    leaving = sorted(set(command.member_ids).intersection(group.members)) if group is not None else []
    if group is None or not leaving:
        return Rejected(codes.UNKNOWN_MEMBER, f"consumer group {command.group!r} has no such member")
    tables.update_cluster()
    freed: list[PartitionId] = []
    for member_id in leaving:
        freed += [part[:2] for part in tables.consumer_groups.remove_member(group, member_id).owned]
    row = msgspec.structs.replace(group.row, epoch=tables.index)
    if not group.members:
        # no partition is left to assign: the empty target is correct
        row = ConsumerGroupRow(tables.index, tables.index, row.assignor, (), max(1, append_time_ms))
    tables.consumer_groups.put_row(group.name, row)
    _grant(tables, group, freed)
    return Done(tables.index)


def set_target_assignment(tables: MetadataTables, command: SetTargetAssignment) -> Done | Rejected:
    """Set a computed assignment as the members' targets."""
    group = tables.consumer_groups.by_name.get(command.group)
    if group is None or group.row.epoch != command.expected_epoch:
        return Rejected(codes.CONFLICT, "the group changed while its assignment was computed")
    counts = dict(command.topics)
    if list(counts) != sorted(counts) or len(counts) != len(command.topics):
        return Rejected(codes.INVALID_ARGUMENT, "each topic must be listed once, in ascending order")
    for topic_id, count in counts.items():
        topic = tables.topic(topic_id)
        if topic is None or not 0 <= count <= len(topic.group_ids):
            return Rejected(codes.CONFLICT, f"topic {topic_id} changed while the assignment was computed")
    targets = {member_id: member.target for member_id, member in group.members.items()}
    for change in command.changes:
        if change.member_id not in targets:
            return Rejected(codes.INVALID_ARGUMENT, "the assignment names a member that the group does not have")
        targets[change.member_id] = change.partitions
    if not _is_division(targets.values(), counts):
        return Rejected(codes.INVALID_ARGUMENT, "the assignment names a partition twice, or one that does not exist")
    tables.update_cluster()
    row = ConsumerGroupRow(tables.index, tables.index, command.assignor, command.topics, group.row.emptied_time_ms)
    tables.consumer_groups.put_row(group.name, row)
    _replace_targets(tables, group, targets)
    _grant(tables, group, list(group.targets))
    return Done(tables.index)


def release_partitions(tables: MetadataTables, command: ReleasePartitions) -> Done | Rejected:
    """Remove partitions that a member released, and grant them to the members whose targets include them."""
    group = tables.consumer_groups.by_name.get(command.group)
    member = group.members.get(command.member_id) if group is not None else None
    if group is None or member is None:
        return Rejected(codes.UNKNOWN_MEMBER, "the group has no such member")
    if member.epoch != command.member_epoch:
        return Rejected(codes.STALE_EPOCH, f"the member's assignment has epoch {member.epoch} now")
    released = set(command.partitions).intersection(member.unreleased())
    if released:
        tables.update_cluster()
        kept = tuple(part for part in member.owned if part[:2] not in released)
        changed = msgspec.structs.replace(member, owned=kept)
        tables.consumer_groups.put_member(group, command.member_id, changed, tables.index)
        _grant(tables, group, released)
    return Done(tables.cluster.revision)


def regrant_partitions(tables: MetadataTables, command: RegrantPartitions) -> Done | Rejected:
    """Grant partitions to their present owners again, under a new owner epoch."""
    group = tables.consumer_groups.by_name.get(command.group)
    if group is None:
        return Rejected(codes.UNKNOWN_GROUP, f"there is no consumer group {command.group!r}")
    renewed = set(command.partitions).intersection(group.owners)
    if renewed:
        tables.update_cluster()
    for member_id in sorted({group.owners[partition] for partition in renewed}):
        member = group.members[member_id]
        owned = tuple((*part[:2], tables.index) if part[:2] in renewed else part for part in member.owned)
        tables.consumer_groups.put_member(group, member_id, msgspec.structs.replace(member, owned=owned), tables.index)
    return Done(tables.cluster.revision)


def take_group_epoch(tables: MetadataTables, command: TakeGroupEpoch) -> Done | Rejected:
    """Reserve the entry's own index as an epoch. No partition was granted under it, and none will be."""
    if not is_group_text(command.group):
        return _bad_name("group")
    group = tables.consumer_groups.by_name.get(command.group)
    if command.must_be_empty and group is not None and group.members:
        return Rejected(codes.GROUP_NOT_EMPTY, f"group {command.group} has members ({len(group.members)})")
    tables.update_cluster()
    return Done(tables.index)


def delete_consumer_group(tables: MetadataTables, command: DeleteConsumerGroup) -> Done | Rejected:
    """Delete a group without members."""
    group = tables.consumer_groups.by_name.get(command.group)
    if group is None:
        return Rejected(codes.UNKNOWN_GROUP, f"there is no consumer group {command.group!r}")
    if group.members:
        return Rejected(codes.GROUP_NOT_EMPTY, f"group {command.group} has members ({len(group.members)})")
    if 0 < command.emptied_before_ms <= group.row.emptied_time_ms:
        return Rejected(codes.CONFLICT, "the group had members in the meantime")
    tables.update_cluster()
    tables.consumer_groups.delete(group)
    return Done(tables.index)


def _join_refusal(tables: MetadataTables, command: JoinConsumerGroup) -> Rejected | None:
    if not is_group_text(command.group):
        return _bad_name("group")
    if not is_group_text(command.member_id):
        return _bad_name("member")
    for text in (command.instance_id, command.client_id, command.rack, command.assignor):
        if text and not is_group_text(text):
            return _bad_name("instance, client, rack or assignor")
    if len(command.topics) > SUBSCRIBED_TOPICS_MAX or len(command.pattern.encode()) > PATTERN_BYTES_MAX:
        return Rejected(
            codes.INVALID_ARGUMENT,
            f"a subscription has at most {SUBSCRIBED_TOPICS_MAX} topics and a pattern of {PATTERN_BYTES_MAX} bytes",
        )
    if any(len(name.encode()) > KEY_TEXT_BYTES_MAX for name in command.topics):
        return _bad_name("topic")
    if not all(0 < ms <= TIMEOUT_MS_MAX for ms in (command.session_timeout_ms, command.rebalance_timeout_ms)):
        return Rejected(codes.INVALID_ARGUMENT, f"timeouts are between 1 and {TIMEOUT_MS_MAX} ms")
    group = tables.consumer_groups.by_name.get(command.group)
    known = group.members.get(command.member_id) if group is not None else None
    if known is not None:
        if known.instance_id == command.instance_id:
            return None
        return Rejected(codes.INVALID_ARGUMENT, "a member cannot change its instance id")
    if command.must_exist:
        return Rejected(codes.UNKNOWN_MEMBER, "the group has no such member")
    if group is None and len(tables.consumer_groups.by_name) >= GROUPS_MAX:
        return Rejected(codes.TOO_MANY_MEMBERS, f"there are {GROUPS_MAX} consumer groups")
    if group is not None and len(group.members) >= MEMBERS_PER_GROUP_MAX:
        return Rejected(codes.TOO_MANY_MEMBERS, f"the group has {MEMBERS_PER_GROUP_MAX} members")
    return None


def _bad_name(what: str) -> Rejected:
    return Rejected(
        codes.INVALID_ARGUMENT, f"the name of a {what} has 1 to {KEY_TEXT_BYTES_MAX} bytes and no control characters"
    )


def _said(command: JoinConsumerGroup, known: GroupMemberRow | None) -> GroupMemberRow:
    """Build the member's row from the command, with its present target and partitions."""
    return GroupMemberRow(
        instance_id=command.instance_id,
        client_id=command.client_id,
        rack=command.rack,
        topics=tuple(sorted(set(command.topics))),
        pattern=command.pattern,
        assignor=command.assignor,
        session_timeout_ms=command.session_timeout_ms,
        rebalance_timeout_ms=command.rebalance_timeout_ms,
        epoch=known.epoch if known is not None else 0,
        target=known.target if known is not None else (),
        owned=known.owned if known is not None else (),
    )


def _wants(member: GroupMemberRow) -> tuple[object, ...]:
    """Return the attributes that an assignment depends on."""
    return (member.topics, member.pattern, member.assignor, member.rack)


def _take_instance(tables: MetadataTables, group: ConsumerGroup, instance_id: str) -> GroupMemberRow | None:
    predecessor = group.instance(instance_id)
    return tables.consumer_groups.remove_member(group, predecessor) if predecessor is not None else None


def _is_division(targets: Iterable[tuple[tuple[int, tuple[int, ...]], ...]], counts: dict[int, int]) -> bool:
    """Return whether the targets name only existing partitions, each once, and all in order, so that rows are equal."""
    seen: set[PartitionId] = set()
    named = 0
    for target in targets:
        topic_ids = [topic_id for topic_id, _ in target]
        if topic_ids != sorted(set(topic_ids)):
            return False
        for topic_id, numbers in target:
            if not numbers or list(numbers) != sorted(numbers):
                return False
            if not 0 <= numbers[0] <= numbers[-1] < counts.get(topic_id, 0):
                return False
            named += len(numbers)
            seen.update((topic_id, number) for number in numbers)
    return named == len(seen)


def _replace_targets(
    tables: MetadataTables, group: ConsumerGroup, targets: dict[str, tuple[tuple[int, tuple[int, ...]], ...]]
) -> None:
    """Set new targets, and drop owned partitions of deleted topics: there is nothing to release."""
    for member_id in sorted(targets):
        member = group.members[member_id]
        owned = tuple(part for part in member.owned if tables.topic(part[0]) is not None)
        changed = msgspec.structs.replace(member, target=targets[member_id], owned=owned)
        if changed != member:
            tables.consumer_groups.put_member(group, member_id, changed, tables.index)


def _grant(tables: MetadataTables, group: ConsumerGroup, partitions: Iterable[PartitionId]) -> None:
    """Grant partitions without an owner to the members whose targets include them."""
    granted: dict[str, list[PartitionId]] = {}
    for partition in partitions:
        member_id = group.targets.get(partition)
        if member_id is not None and partition not in group.owners:
            granted.setdefault(member_id, []).append(partition)
    for member_id in sorted(granted):
        member = group.members[member_id]
        owned = sorted((*member.owned, *((*partition, tables.index) for partition in granted[member_id])))
        tables.consumer_groups.put_member(
            group, member_id, msgspec.structs.replace(member, owned=tuple(owned)), tables.index
        )
