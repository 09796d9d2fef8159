"""Count the payload received from leaders and not yet durable, which they can make this node hold."""

from __future__ import annotations

from raftmq.types import GroupId


class InboundBytes:
    """A plain account: the engine adds, and the end of a write subtracts. Invariant: total >= sum of `waiting` >= 0."""

    __slots__ = ("total", "waiting")

    def __init__(self) -> None:
        self.total = 0
        """Bytes held now, including those in writes."""
        self.waiting: dict[GroupId, int] = {}
        """Bytes that a group's core received and that no write holds yet."""

    def forget(self, group_id: GroupId) -> None:
        """Release the bytes that the core received and that will not be written."""
        self.total -= self.waiting.pop(group_id, 0)
