"""A core whose shell leaves out the ticks in which it rests, and does not look at quiet messages that are repeated.

Beside one that gets everything, it must behave equally.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from raftmq.raft.core import RaftCore
from raftmq.raft.ready import Role
from raftmq.types import LogIndex, ReplicaId, Term


class RestingCore(RaftCore):
    """Leaves out ticks as the engine does, and sends a resting leader's last heartbeats again."""

    __slots__ = ("_quiet", "_taken")

    left_out: ClassVar[Counter[Role]] = Counter()
    """The number of ticks that were left out, for each role."""
    repeated: ClassVar[Counter[Role]] = Counter()
    """The number of messages that were not looked at, as they were equal to earlier ones, for each role of their receiver."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._quiet: dict[tuple[Role, ReplicaId], tuple[int, ...]] = {}
        """The last quiet message of each source, and `Ticks.changes` when it came."""

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

    def on_quiet_heartbeat(self, source: ReplicaId, term: Term, commit_index: LogIndex) -> bool:
        key, seen = (Role.FOLLOWER, source), (term, commit_index, self.ticks.changes)
        if self._quiet.get(key) == seen:
            self.repeated[self.role] += 1
            self.repeat_quiet_heartbeat()
            return True
        self._quiet[key] = seen
        return super().on_quiet_heartbeat(source, term, commit_index) or self._forget(key)

    def on_quiet_heartbeat_response(self, source: ReplicaId, term: Term, read_counter: int) -> bool:
        key, seen = (Role.LEADER, source), (term, read_counter, self.ticks.changes)
        if self._quiet.get(key) == seen:
            self.repeated[self.role] += 1
            self.progress[source].record_heard()
            return True
        self._quiet[key] = seen
        return super().on_quiet_heartbeat_response(source, term, read_counter) or self._forget(key)

    def _forget(self, key: tuple[Role, ReplicaId]) -> bool:
        del self._quiet[key]
        return False
