"""Compute a consumer group's assignment: resolve subscriptions to topics, let an assignor divide them, and return the changes.

Planning is pure: it turns a request of plain values into a plan, so it can run in another process (`assignor_process`) or here.
The assignor sees the members' present partitions: the previous target, and for partitions without a target their present owner.

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
from raftmq.fsm import consumer_groups, topic_kinds
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import MemberTarget, SetTargetAssignment
from raftmq.fsm.metadata_views import TopicView
from raftmq.fsm.topic_config import RESERVED_PREFIX

ENTRY_POINTS: Final = "raftmq.assignors"

Target = tuple[tuple[int, tuple[int, ...]], ...]


class PlannedMember(msgspec.Struct, frozen=True, array_like=True):
    """The facts about a member that a plan depends on."""

    member_id: str
    topics: tuple[str, ...]
    pattern: str
    rack: str
    target: Target
    """Its present target."""
    kept: Target
    """Partitions that it still owns although no target contains them."""


class PlannedTopic(msgspec.Struct, frozen=True, array_like=True):
    """The facts about a topic that a plan depends on."""

    topic_id: int
    name: str
    partition_count: int
    racks: tuple[tuple[str, ...], ...] = ()
    """The racks of each partition's replicas. Empty if no member states its rack."""


class PlanRequest(msgspec.Struct, frozen=True, array_like=True):
    """Everything that an assignment depends on."""

    group: str
    epoch: int
    assignor: str
    members: tuple[PlannedMember, ...]
    topics: tuple[PlannedTopic, ...]
    """All topics that a member may have subscribed to. If a member subscribes by pattern, all existing logs."""

    @property
    def size(self) -> int:
        """Return an estimate of the work to compute the plan."""
        patterns = len({member.pattern for member in self.members if member.pattern})
        names = sum(map(len, {member.topics for member in self.members}))
        partitions = sum(topic.partition_count for topic in self.topics)
        return len(self.members) + partitions + patterns * len(self.topics) + names


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """The result of an assignor."""

    topics: tuple[tuple[int, int], ...]
    changes: tuple[MemberTarget, ...]

    def command(self, request: PlanRequest) -> SetTargetAssignment:
        """Return the command that proposes the plan."""
        return SetTargetAssignment(request.group, request.epoch, request.assignor, self.topics, self.changes)


# ------------------------------------------------------------------------------------------------------------ requests


def plan_request(metadata: Metadata, group: consumer_groups.ConsumerGroup) -> PlanRequest:
    """Return a copy of all facts that the plan for a group depends on. Called on the event loop."""
    members = group.members
    has_pattern = any(member.pattern for member in members.values())
    has_racks = any(member.rack for member in members.values())
    subscribed = {name for member in members.values() for name in member.topics}
    topics = [topic for topic in metadata.topics() if _is_consumed(topic) and (has_pattern or topic.name in subscribed)]
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
    """Return the assignor that most members ask for. Among equally many the first by name wins."""
    votes = Counter(member.assignor or DEFAULT_ASSIGNOR for member in group.members.values())
    return min(votes, key=lambda name: (-votes[name], name), default=DEFAULT_ASSIGNOR)


def is_planned_for(metadata: Metadata, group: consumer_groups.ConsumerGroup) -> bool | None:
    """Return whether the target fits the present group and topics, or None if only a plan can tell (patterns)."""
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
    return all(topic is None or not _is_consumed(topic) or topic.topic_id in planned for topic in found)


def _is_consumed(topic: TopicView) -> bool:
    """Return whether groups consume topics of this kind. A member may have subscribed to the name before the topic existed."""
    return topic.kind == topic_kinds.LOG


def _kept(group: consumer_groups.ConsumerGroup, partitions: Iterable[AssignedPartition]) -> Target:
    return as_target(partition for partition in partitions if partition not in group.targets)


def _racks(metadata: Metadata, group_id: int, racks: Mapping[int, str]) -> tuple[str, ...]:
    partition = metadata.partition(group_id)
    replicas = partition.replicas if partition is not None else ()
    return tuple(sorted({rack for replica in replicas if (rack := racks.get(replica.node_id, ""))}))


# --------------------------------------------------------------------------------------------------------------- plans


def plan(request: PlanRequest, assignors: Mapping[str, Assignor] | None = None) -> Plan:
    """Compute an assignment. Raises LookupError if the assignor does not exist, and any error of a custom assignor."""
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
    """Return partitions in a target's order: by topic, ascending."""
    by_topic: dict[int, list[int]] = {}
    for topic_id, number in sorted(partitions):
        by_topic.setdefault(topic_id, []).append(number)
    return tuple((topic_id, tuple(numbers)) for topic_id, numbers in by_topic.items())


def _partitions(target: Target) -> list[AssignedPartition]:
    return [(topic_id, number) for topic_id, numbers in target for number in numbers]


def _resolved(request: PlanRequest) -> dict[str, frozenset[int]]:
    """Return the topics of each member."""
    ids = {topic.name: topic.topic_id for topic in request.topics}
    by_pattern: dict[str, frozenset[int]] = {"": frozenset()}
    for pattern in sorted({member.pattern for member in request.members if member.pattern}):
        compiled = TopicPattern(pattern)
        by_pattern[pattern] = frozenset(
            topic_id
            for name, topic_id in ids.items()
            # reserved topics are subscribed only by name, never by a pattern that happens to match
            if not name.startswith(RESERVED_PREFIX) and compiled.matches(name)
        )
    return {
        member.member_id: by_pattern[member.pattern] | {ids[name] for name in member.topics if name in ids}
        for member in request.members
    }


# ----------------------------------------------------------------------------------------------------------- assignors


@cache
def assignor_names() -> frozenset[str]:
    """Return the names of the built-in assignors, and of those that were installed at the first call. Loads nothing."""
    return frozenset(BUILTIN_ASSIGNORS) | {found.name for found in entry_points(group=ENTRY_POINTS)}


def load_assignor(name: str) -> Assignor | None:
    """Return a built-in or installed assignor by name, or None if there is none. Raises any error of importing it."""
    if name in BUILTIN_ASSIGNORS:
        return BUILTIN_ASSIGNORS[name]
    for found in entry_points(group=ENTRY_POINTS, name=name):
        return cast("Assignor", found.load()())
    return None
