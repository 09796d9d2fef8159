"""Keep the deadlines of the partitions that members were told to give up. It knows no clock: methods receive the time or a deadline.

Each partition has a deadline of its own. With one deadline for each member, a second revocation that comes before the first is done would
inherit the first one's deadline, and the member would be removed although it had only part of its time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic

from raftmq.broker.consumer_groups.sessions import K, Sessions
from raftmq.fsm.consumer_groups import PartitionId


class Revocations(Generic[K]):
    """Members that must give partitions up, with the deadlines of these partitions."""

    def __init__(self) -> None:
        self._partitions: dict[K, dict[PartitionId, float]] = {}
        self._members: Sessions[K] = Sessions()
        """The earliest deadline of each member's partitions."""

    def record(self, member: K, unreleased: Iterable[PartitionId], deadline: float) -> None:
        """Record all partitions that a member must give up now. Those that it already had to give up keep their deadlines."""
        known = self._partitions.get(member, {})
        deadlines = {partition: known.get(partition, deadline) for partition in unreleased}
        if deadlines:
            self._partitions[member] = deadlines
            self._members.extend(member, min(deadlines.values()))
        else:
            self.forget(member)

    def forget(self, member: K) -> None:
        """Remove a member's deadlines."""
        self._partitions.pop(member, None)
        self._members.forget(member)

    def clear(self) -> None:
        """Remove all deadlines."""
        self._partitions.clear()
        self._members.clear()

    def shift(self, seconds: float) -> None:
        """Move all deadlines back by a time in which no heartbeat could be received."""
        self._members.shift(seconds)
        for deadlines in self._partitions.values():
            for partition in deadlines:
                deadlines[partition] += seconds

    def expired(self, now: float) -> list[K]:
        """Remove and return the members that exceeded a deadline."""
        found = self._members.expired(now)
        for member in found:
            del self._partitions[member]
        return found
