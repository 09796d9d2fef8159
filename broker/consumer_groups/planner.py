"""Computes a consumer group's assignment: subscriptions become topics, an assignor divides them, the difference is the plan.

Pure: a request of plain values in, a plan out, so that it runs in another process (`assignor_process`) or here. What the
members own now decides what stays: the target before this one, and where its owner is gone whoever has the partition still.

Source: KIP-848 (server-side assignors, regular expressions resolved by the coordinator).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import entry_points
from typing import Final, cast

import msgspec
from raftmq.assignors.assignor import AssignedPartition, Assignment, Assignor, ConsumerGroup, Member, Topic
from raftmq.assignors.builtin import BUILTIN_ASSIGNORS, DEFAULT_ASSIGNOR
from raftmq.broker.consumer_groups.topic_pattern import TopicPattern
from raftmq.fsm import consumer_groups
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import MemberTarget, SetTargetAssignment
from raftmq.fsm.topic_config import RESERVED_PREFIX

ENTRY_POINTS: Final = "raftmq.assignors"

Target = tuple[tuple[int, tuple[int, ...]], ...]


class PlannedMember(msgspec.Struct, frozen=True, array_like=True):
    """A member as a plan needs it."""

    member_id: str
    topics: tuple[str, ...]
    pattern: str
    rack: str
    target: Target
    """What it shall have so far."""
    kept: Target
    """What it has although nobody shall have it."""


class PlannedTopic(msgspec.Struct, frozen=True, array_like=True):
    """A topic as a plan needs it."""

    topic_id: int
    name: str
    partition_count: int
    racks: tuple[tuple[str, ...], ...] = ()
    """Of each partition; empty when no member says where it is."""


class PlanRequest(msgspec.Struct, frozen=True, array_like=True):
    """Everything an assignment depends on."""

    group: str
    epoch: int
    assignor: str
    members: tuple[PlannedMember, ...]
    topics: tuple[PlannedTopic, ...]
    """All that somebody may have subscribed to; all there are when somebody did by pattern."""

    @property
    def size(self) -> int:
        """About how much there is to compute."""
        patterns = len({member.pattern for member in self.members if member.pattern})
        partitions = sum(topic.partition_count for topic in self.topics)
        return len(self.members) + partitions + patterns * len(self.topics)


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """What the assignor said."""

    topics: tuple[tuple[int, int], ...]
    changes: tuple[MemberTarget, ...]

    def command(self, request: PlanRequest) -> SetTargetAssignment:
        """As it is proposed."""
        return SetTargetAssignment(request.group, request.epoch, request.assignor, self.topics, self.changes)


# ------------------------------------------------------------------------------------------------------------ requests


def plan_request(metadata: Metadata, group: consumer_groups.ConsumerGroup) -> PlanRequest:
    """A copy of what the plan for a group needs, made on the loop."""
    members = group.members
    has_pattern = any(member.pattern for member in members.values())
    has_racks = any(member.rack for member in members.values())
    subscribed = {name for member in members.values() for name in member.topics}
    topics = [topic for topic in metadata.topics() if has_pattern or topic.name in subscribed]
    racks = {node.node_id: node.rack for node in metadata.nodes()} if has_racks else {}
    return PlanRequest(
        group.name,
        group.row.epoch,
        wanted_assignor(group),
        tuple(
            PlannedMember(
                member_id, member.topics, member.pattern, member.rack, member.target, _kept(group, member.unreleased())
            )
            for member_id, member in sorted(members.items())
        ),
        tuple(
            PlannedTopic(
                topic.topic_id,
                topic.name,
                len(topic.group_ids),
                tuple(_racks(metadata, group_id, racks) for group_id in topic.group_ids) if has_racks else (),
            )
            for topic in topics
        ),
    )


def wanted_assignor(group: consumer_groups.ConsumerGroup) -> str:
    """The one that most members ask for; of equally many the first by name."""
    votes = Counter(member.assignor or DEFAULT_ASSIGNOR for member in group.members.values())
    return min(votes, key=lambda name: (-votes[name], name), default=DEFAULT_ASSIGNOR)


def is_planned_for(metadata: Metadata, group: consumer_groups.ConsumerGroup) -> bool | None:
    """Whether the target is for the group and its topics as they are; None: only a plan can tell (patterns)."""
    row = group.row
    if row.epoch != row.target_epoch:
        return False
    for topic_id, count in row.topics:
        topic = metadata.topic(topic_id)
        if topic is None or len(topic.group_ids) != count:
            return False
    if any(member.pattern for member in group.members.values()):
        return None
    planned = {topic_id for topic_id, _ in row.topics}
    names = {name for member in group.members.values() for name in member.topics}
    found = (metadata.topic_by_name(name) for name in names)
    return all(topic is None or topic.topic_id in planned for topic in found)


def _kept(group: consumer_groups.ConsumerGroup, partitions: Iterable[AssignedPartition]) -> Target:
    return as_target(partition for partition in partitions if partition not in group.targets)


def _racks(metadata: Metadata, group_id: int, racks: Mapping[int, str]) -> tuple[str, ...]:
    partition = metadata.partition(group_id)
    replicas = partition.replicas if partition is not None else ()
    return tuple(sorted({rack for replica in replicas if (rack := racks.get(replica.node_id, ""))}))


# --------------------------------------------------------------------------------------------------------------- plans


def plan(request: PlanRequest, assignors: Mapping[str, Assignor] | None = None) -> Plan:
    """Compute an assignment. Raises LookupError for an assignor that there is not, and whatever a foreign one raises."""
    assignor = (assignors or BUILTIN_ASSIGNORS).get(request.assignor)
    if assignor is None:
        raise LookupError(f"there is no assignor {request.assignor!r}")
    subscriptions = _resolved(request)
    subscribed = set().union(*subscriptions.values())
    topics = [topic for topic in request.topics if topic.topic_id in subscribed]
    group = ConsumerGroup(
        tuple(Member(member.member_id, subscriptions[member.member_id], member.rack) for member in request.members),
        tuple(
            Topic(topic.topic_id, topic.partition_count, tuple(frozenset(racks) for racks in topic.racks))
            for topic in topics
        ),
        {member.member_id: [*_partitions(member.target), *_partitions(member.kept)] for member in request.members},
    )
    assignment: Assignment = assignor.assign(group)
    targets = {member.member_id: as_target(assignment.get(member.member_id, ())) for member in request.members}
    return Plan(
        tuple(sorted((topic.topic_id, topic.partition_count) for topic in topics)),
        tuple(
            MemberTarget(member.member_id, targets[member.member_id])
            for member in request.members
            if targets[member.member_id] != member.target
        ),
    )


def as_target(partitions: Iterable[AssignedPartition]) -> Target:
    """Partitions as a target has them: by topic, ascending."""
    by_topic: dict[int, list[int]] = {}
    for topic_id, number in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(number)
    return tuple((topic_id, tuple(numbers)) for topic_id, numbers in by_topic.items())


def _partitions(target: Target) -> list[AssignedPartition]:
    return [(topic_id, number) for topic_id, numbers in target for number in numbers]


def _resolved(request: PlanRequest) -> dict[str, frozenset[int]]:
    """The topics of each member."""
    ids = {topic.name: topic.topic_id for topic in request.topics}
    by_pattern: dict[str, frozenset[int]] = {"": frozenset()}
    for pattern in sorted({member.pattern for member in request.members if member.pattern}):
        compiled = TopicPattern(pattern)
        by_pattern[pattern] = frozenset(
            topic_id
            for name, topic_id in ids.items()
            # what is reserved is read by whoever names it, not by chance
            if not name.startswith(RESERVED_PREFIX) and compiled.matches(name)
        )
    return {
        member.member_id: by_pattern[member.pattern] | {ids[name] for name in member.topics if name in ids}
        for member in request.members
    }


# ----------------------------------------------------------------------------------------------------------- assignors


@cache
def assignor_names() -> frozenset[str]:
    """Those that come with RaftMQ, and those installed beside it when it was asked first. Loads nothing."""
    return frozenset(BUILTIN_ASSIGNORS) | {found.name for found in entry_points(group=ENTRY_POINTS)}


def load_assignor(name: str) -> Assignor | None:
    """An assignor by name: one of ours, else one installed. Raises what importing it raises."""
    if name in BUILTIN_ASSIGNORS:
        return BUILTIN_ASSIGNORS[name]
    for found in entry_points(group=ENTRY_POINTS, name=name):
        return cast("Assignor", found.load()())
    return None
