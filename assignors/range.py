"""Kafka's range assignor: each topic's partitions in one run per subscriber, so that equal numbers of two topics meet.

Even per topic, not over all: with many topics the first members by id have more. What was owned before is ignored.

Source: Kafka's RangeAssignor.
"""

from __future__ import annotations

from raftmq.assignors.assignor import AssignedPartition, Assignment, ConsumerGroup


class RangeAssignor:
    """See the module."""

    name = "range"

    def assign(self, group: ConsumerGroup) -> Assignment:
        """See `Assignor`."""
        assigned: dict[str, list[AssignedPartition]] = {member.member_id: [] for member in group.members}
        members = sorted(group.members, key=lambda member: member.member_id)
        for topic in sorted(group.topics, key=lambda topic: topic.topic_id):
            subscribers = [member.member_id for member in members if topic.topic_id in member.topic_ids]
            if not subscribers:
                continue
            base, extra = divmod(topic.partition_count, len(subscribers))
            start = 0
            for position, member_id in enumerate(subscribers):
                end = start + base + (position < extra)
                assigned[member_id] += [(topic.topic_id, number) for number in range(start, end)]
                start = end
        return {member_id: tuple(partitions) for member_id, partitions in assigned.items()}
