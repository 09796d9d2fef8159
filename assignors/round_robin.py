"""Kafka's round robin assignor: all partitions in order to all members in turn, skipping members without a
subscription.

Counts are even among members if all have the same subscription. Previous ownership is ignored.

Source: Kafka's RoundRobinAssignor.
"""

from __future__ import annotations

from raftmq.assignors.assignor import AssignedPartition, Assignment, ConsumerGroup


class RoundRobinAssignor:
    """Give partitions in order to members in turn."""

    name = "round_robin"

    def assign(self, group: ConsumerGroup) -> Assignment:
        """Give each partition to the next member in turn that subscribed to its topic."""
        assigned: dict[str, list[AssignedPartition]] = {member.member_id: [] for member in group.members}
        members = sorted(group.members, key=lambda member: member.member_id)
        subscribed: frozenset[int] = frozenset().union(*(member.topic_ids for member in members))
        turn = 0
        for topic in sorted(group.topics, key=lambda topic: topic.topic_id):
            if topic.topic_id not in subscribed:
                continue
            for number in range(topic.partition_count):
                while topic.topic_id not in members[turn % len(members)].topic_ids:
                    turn += 1
                assigned[members[turn % len(members)].member_id].append((topic.topic_id, number))
                turn += 1
        return {member_id: tuple(partitions) for member_id, partitions in assigned.items()}
