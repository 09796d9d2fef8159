"""Payload received from leaders and not yet durable: what they can make this node hold."""

from __future__ import annotations

from raftmq.types import GroupId


class InboundBytes:
    """A plain account: the engine adds, whoever ends a write takes away. Invariant: total >= sum of `waiting` >= 0."""

    __slots__ = ("total", "waiting")

    def __init__(self) -> None:
        self.total = 0
        """Bytes held now, those in writes included."""
        self.waiting: dict[GroupId, int] = {}
        """Bytes that a group's core was handed and no write holds yet."""

    def forget(self, group_id: GroupId) -> None:
        """What the core was handed will come to no write."""
        self.total -= self.waiting.pop(group_id, 0)
