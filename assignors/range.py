"""Kafka's range assignor: each subscriber gets one run of each topic's partitions, so that equal numbers of two topics
meet.

Counts are even per topic, not in total: with many topics the first members by id have more. Previous ownership is
ignored.

Source: Kafka's RangeAssignor.
"""

from __future__ import annotations

from raftmq.assignors.assignor import AssignedPartition, Assignment, ConsumerGroup


class RangeAssignor:
    """Give each subscriber one contiguous run of each topic's partitions."""

    name = "range"

    def assign(self, group: ConsumerGroup) -> Assignment:
        """Divide each topic's partitions into one run per subscriber, in order of member id."""
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
