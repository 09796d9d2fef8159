"""The default assignor: as even as subscriptions allow, then as few moves as possible, then partitions near their
consumers.

Even means that the largest load is as small as possible, then the second largest, and so on. Among equal subscriptions,
counts differ by at most one. A move is a partition taken from a member that could have kept it. This assignor does not
only hand out free partitions. It also takes partitions from members that have too many, so a member that joins always
gets its share.

Invariants: see `assignors/README.md`. Racks choose only between assignments that are equally even and need equally few
moves.

Source: KIP-54 (sticky assignment), KIP-848 (uniform assignor).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from raftmq.assignors.assignor import AssignedPartition, Assignment, ConsumerGroup, Member, Topic
from raftmq.assignors.balance import Part, balanced_parts
from raftmq.assignors.flow import UNLIMITED, FlowNetwork


class StickyAssignor:
    """Balance loads first, then keep partitions with their owners, then prefer near racks."""

    name = "sticky"

    def assign(self, group: ConsumerGroup) -> Assignment:
        """Divide all partitions as evenly as subscriptions allow, with the fewest moves."""
        return _Division(group).assignment()


class _Division:
    """Compute one assignment. Members are positions in `members` (by id) throughout."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.members: list[Member] = sorted(group.members, key=lambda member: member.member_id)
        self.topics: dict[int, Topic] = {topic.topic_id: topic for topic in group.topics}
        self.classes, class_of = self._member_classes()
        self.pools, self.subscribers = self._topic_pools(class_of)
        self.owners = self._owners(group)
        self.assigned: list[list[AssignedPartition]] = [[] for _ in self.members]
        self.has_racks = any(member.rack for member in self.members) and any(topic.racks for topic in group.topics)

    def assignment(self) -> Assignment:
        pool_sizes = [sum(self.topics[topic_id].partition_count for topic_id in pool) for pool in self.pools]
        class_sizes = [len(members) for members in self.classes]
        for part in balanced_parts(pool_sizes, class_sizes, self.subscribers):
            self._divide(part)
        return {
            member.member_id: tuple(sorted(partitions))
            for member, partitions in zip(self.members, self.assigned, strict=True)
        }

    def _member_classes(self) -> tuple[list[list[int]], list[int]]:
        """Return the classes of members with equal subscriptions, and the class of each member."""
        numbers: dict[frozenset[int], int] = {}
        classes: list[list[int]] = []
        class_of: list[int] = []
        known = frozenset(self.topics)
        for position, member in enumerate(self.members):
            number = numbers.setdefault(member.topic_ids & known, len(classes))
            if number == len(classes):
                classes.append([])
            classes[number].append(position)
            class_of.append(number)
        return classes, class_of

    def _topic_pools(self, class_of: list[int]) -> tuple[list[list[int]], list[tuple[int, ...]]]:
        """Return the pools of topics with equal subscribers, and each pool's subscribers as classes. Other topics are
        in no pool.
        """
        classes_of_topic: dict[int, list[int]] = {}
        for number, members in enumerate(self.classes):
            for topic_id in self.members[members[0]].topic_ids:
                classes_of_topic.setdefault(topic_id, []).append(number)
        pools: dict[tuple[int, ...], list[int]] = {}
        for topic_id in sorted(self.topics):
            if topic_id in classes_of_topic:
                pools.setdefault(tuple(classes_of_topic[topic_id]), []).append(topic_id)
        return list(pools.values()), list(pools)

    def _owners(self, group: ConsumerGroup) -> dict[AssignedPartition, int]:
        """Return the present owner of each partition that may stay with its owner."""
        owners: dict[AssignedPartition, int] = {}
        for position, member in enumerate(self.members):
            counts = {
                topic_id: self.topics[topic_id].partition_count
                for topic_id in member.topic_ids
                if topic_id in self.topics
            }
            for partition in group.owned.get(member.member_id, ()):
                if 0 <= partition[1] < counts.get(partition[0], 0):
                    owners.setdefault(partition, position)
        return owners

    def _divide(self, part: Part) -> None:
        members = sorted(position for number in part.classes for position in self.classes[number])
        if all(len(set(part.classes).intersection(self.subscribers[pool])) == len(part.classes) for pool in part.pools):
            topic_ids = [topic_id for pool in part.pools for topic_id in self.pools[pool]]
            deal = _Deal(self, topic_ids, members)
            deal.deal(_even_quotas(deal.held, part))
            return
        deals = [_Deal(self, self.pools[pool], self._members_of(pool, part)) for pool in part.pools]
        for deal, quotas in zip(deals, _cheapest_quotas(deals, members, part), strict=True):
            deal.deal(quotas)

    def _members_of(self, pool: int, part: Part) -> list[int]:
        classes = set(part.classes).intersection(self.subscribers[pool])
        return sorted(position for number in classes for position in self.classes[number])


class _Deal:
    """Divide partitions that may go to any of the given members."""

    def __init__(self, division: _Division, topic_ids: Iterable[int], members: list[int]) -> None:
        self._division = division
        self.members = members
        self.held: dict[int, list[AssignedPartition]] = {member: [] for member in members}
        """The partitions that each member has now, ascending."""
        self._free: list[AssignedPartition] = []
        self.size = 0
        owner_of = division.owners.get
        for topic_id in sorted(topic_ids):
            count = division.topics[topic_id].partition_count
            self.size += count
            for number in range(count):
                partition = (topic_id, number)
                owner = owner_of(partition)
                # an owner outside this deal could keep it only at the cost of balance
                holders = self.held.get(owner) if owner is not None else None
                (self._free if holders is None else holders).append(partition)

    def deal(self, quotas: dict[int, int]) -> None:
        """Give every member its quota: first as many of its present partitions as it may keep, then free ones in turn."""
        assigned = self._division.assigned
        needs: dict[int, int] = {}
        for member, held in self.held.items():
            quota = quotas[member]
            if len(held) > quota:
                held = self._near_first(member, held)
                self._free += held[quota:]
                held = held[:quota]
            assigned[member] += held
            if len(held) < quota:
                needs[member] = quota - len(held)
        free = sorted(self._free)
        if self._division.has_racks:
            free = self._deal_near(free, needs)
        turns = deque(member for member in self.members if member in needs)
        for partition in free:
            member = turns.popleft()
            assigned[member].append(partition)
            needs[member] -= 1
            if needs[member]:
                turns.append(member)

    def _near_first(self, member: int, partitions: list[AssignedPartition]) -> list[AssignedPartition]:
        if not self._division.has_racks:
            return partitions
        rack = self._division.members[member].rack
        return sorted(partitions, key=lambda partition: rack not in self._racks(partition))

    def _deal_near(self, free: list[AssignedPartition], needs: dict[int, int]) -> list[AssignedPartition]:
        """Give partitions to members in a rack that holds a replica, up to their needs, and return the rest."""
        turns: dict[str, deque[int]] = {}
        for member in self.members:
            rack = self._division.members[member].rack
            if rack and member in needs:
                turns.setdefault(rack, deque()).append(member)
        left: list[AssignedPartition] = []
        # partitions with few racks first: the others find a member more easily
        for partition in sorted(free, key=lambda partition: (len(self._racks(partition)), partition)):
            queues = [queue for rack in sorted(self._racks(partition)) if (queue := turns.get(rack))]
            if not queues:
                left.append(partition)
                continue
            queue = max(queues, key=len)
            member = queue.popleft()
            self._division.assigned[member].append(partition)
            needs[member] -= 1
            if needs[member]:
                queue.append(member)
            else:
                del needs[member]
        return sorted(left)

    def _racks(self, partition: AssignedPartition) -> frozenset[str]:
        racks = self._division.topics[partition[0]].racks
        return racks[partition[1]] if partition[1] < len(racks) else frozenset()


def _even_quotas(held: dict[int, list[AssignedPartition]], part: Part) -> dict[int, int]:
    """Return quotas when any member may have any partition. The extra ones go first to members above the base, who then
    keep them.
    """
    ranked = sorted(held, key=lambda member: len(held[member]) <= part.base)
    favoured = set(ranked[: part.extra])
    return {member: part.base + (member in favoured) for member in held}


def _cheapest_quotas(deals: Sequence[_Deal], members: list[int], part: Part) -> list[dict[int, int]]:
    """Return each member's quota in each deal, when subscriptions differ. A minimum-cost flow in which keeping a
    partition is free.
    """
    source, sink, surplus = 0, 1, 2
    node_of = {member: 3 + len(deals) + position for position, member in enumerate(members)}
    network = FlowNetwork(3 + len(deals) + len(members))
    edges: list[dict[int, tuple[int, int]]] = []
    for position, deal in enumerate(deals):
        node = 3 + position
        network.add_edge(source, node, deal.size)
        edges.append(
            {
                member: (
                    network.add_edge(node, node_of[member], len(deal.held[member])),
                    network.add_edge(node, node_of[member], UNLIMITED, cost=1),
                )
                for member in deal.members
            }
        )
    for node in node_of.values():
        network.add_edge(node, sink, part.base)
        network.add_edge(node, surplus, 1)
    network.add_edge(surplus, sink, part.extra)
    network.solve(source, sink)
    return [
        {member: network.flow_of(kept) + network.flow_of(taken) for member, (kept, taken) in row.items()}
        for row in edges
    ]
