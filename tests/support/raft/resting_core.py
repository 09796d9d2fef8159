"""A core whose shell leaves out the ticks in which it rests. Beside one that is ticked every time, it must behave equally."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from raftmq.raft.core import RaftCore
from raftmq.raft.ready import Role
from raftmq.types import LogIndex, ReplicaId


class RestingCore(RaftCore):
    """Leaves out ticks as the engine does, and sends a resting leader's last heartbeats again."""

    __slots__ = ("_taken",)

    left_out: ClassVar[Counter[Role]] = Counter()
    """The number of ticks that were left out, for each role."""

    def tick(self, count: int = 1) -> None:
        self.ticks.now += count
        if self.next_tick <= self.ticks.now:
            self.on_tick()
            if self.role is Role.FOLLOWER:
                self.rest()
        else:
            self.left_out[self.role] += 1
            self.heartbeat_due = self.role is Role.LEADER

    def take_heartbeats(self) -> list[tuple[ReplicaId, LogIndex, int]]:
        if self.next_tick > self.ticks.now:
            self.heartbeat_due = False
        else:
            self._taken = super().take_heartbeats()
            self.rest()
        return self._taken
