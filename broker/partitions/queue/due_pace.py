"""Choose how many due messages each entry of a queue partition promotes, and when the next entry follows while more are due.

A million messages may come due together. All replicas promote the same ones in the same entry, which is one stall of their event loops. Each
promoted message is a changed row of three brokers, so the promotion of many takes their processors and disks from all others. Therefore

- an entry gets no more messages than take a small part of a second,
- while messages are left due, all entries together promote at a rate, which falls when commits become slow and rises again afterwards,
- few are promoted while a write-back is behind: otherwise it would throttle the producers.

Only the leader's choice counts. It is in the entry, so that all replicas apply the same.
"""

from __future__ import annotations

import asyncio
from typing import Final

from raftmq.broker.partitions.queue.clock import QueueClock
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.commands import decode_commands
from raftmq.fsm.queue.housekeeping import due_bound
from raftmq.fsm.queue.levels import DUE_LEVEL
from raftmq.fsm.queue.limits import HOUSEKEEPING_MAX
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Results
from raftmq.raft.entry import Entry

STALL_SECONDS: Final = 0.002
"""The time of one entry. Other commits wait for it, in three brokers."""
COUNT_MIN: Final = 5
"""Messages of an entry, at least. Entries of consumers promote them whatever the rate."""
TICK_COUNT: Final = 50
"""Messages for which an entry is proposed that does nothing else, while the rate allows no more."""
RATE_MIN, RATE_MAX, RATE_FIRST = 1_500.0, 50_000.0, 5_000.0
"""Messages per second while more are due."""
SLOW_MS: Final = 15
SLOW_TIMES: Final = 3
"""A commit is slow if it takes longer than this, and longer than so many times the average commit while no message is left due."""
SLOWER, FASTER = 0.8, 1.02
"""The factors by which slow commits, and the others, change the rate."""
UNWRITTEN_MAX: Final = 6_000
"""Messages with changed rows above which a write-back counts as behind. Limits.write_back_backlog_rows_max, at which appends are refused, is higher."""
_SECONDS_EACH: Final = 10e-6
"""The time of one message before one was measured."""
_WEIGHT: Final = 0.125
"""Of the latest measurement in the average."""


class DuePace:
    """The pace of one partition."""

    def __init__(self, loop: asyncio.AbstractEventLoop, replica: Replica[QueuePartition], clock: QueueClock) -> None:
        self._loop = loop
        self._replica = replica
        self._clock = clock
        self._seconds_each = _SECONDS_EACH
        """Time of the event loop for each message, as an average."""
        self.rate = RATE_FIRST
        """Messages per second while more are due."""
        self._allowed = float(HOUSEKEEPING_MAX)
        """Messages that the rate allows, as of `_allowed_at`."""
        self._allowed_at = loop.time()
        self._slowed_ms = 0
        """The time at which the rate fell. Commits that began before say nothing about the new one."""
        self._calm_ms = 0.0
        """The time of a commit while no message is left due, as an average."""
        self._is_more_due = False
        self.rest_ends_at = 0.0
        """Loop time before which no entry is proposed only for messages that were left due."""
        replica.applier.listeners.append(self._on_applied)

    def due_max(self) -> int:
        """Return how many messages the next entry may promote. 0: the feature level lets no entry name a number, so that each promotes up to
        `HOUSEKEEPING_MAX`.
        """
        if self._replica.cluster_level() < DUE_LEVEL:
            return 0
        if self._replica.state_machine.dirty_count > UNWRITTEN_MAX:
            return COUNT_MIN
        count = min(HOUSEKEEPING_MAX, STALL_SECONDS / max(self._seconds_each, 1e-9), self._allowed_now())
        return max(COUNT_MIN, int(count))

    def take(self) -> int:
        """Return `due_max` for an entry that is proposed now."""
        count = self.due_max()
        if self._is_more_due:
            self._allowed = max(0.0, self._allowed_now() - count)
            self._allowed_at = self._loop.time()
        return count

    def _allowed_now(self) -> float:
        elapsed_seconds = self._loop.time() - self._allowed_at
        return min(self._allowed + self.rate * elapsed_seconds, HOUSEKEEPING_MAX)

    def _on_applied(self, entry: Entry, result: object) -> None:
        """Learn from an entry whether it left messages due: then it did as many as it may."""
        if type(result) is not Results:
            return
        self._is_more_due = result.has_more_due
        if not self._is_more_due:
            if self._replica.is_leader:
                self._calm_ms += _WEIGHT * (self._clock.read_ms() - entry.append_time_ms - self._calm_ms)
            return
        commands = decode_commands(entry.payload)
        assert commands is not None, "it was applied"
        seconds = self._replica.applier.entry_seconds
        self._seconds_each += _WEIGHT * (seconds / due_bound(commands.due_max) - self._seconds_each)
        if self._replica.is_leader:
            self._follow_commit(entry.append_time_ms)
            self.rest_ends_at = self._loop.time() + TICK_COUNT / self.rate

    def _follow_commit(self, began_ms: int) -> None:
        now_ms = self._clock.read_ms()
        if now_ms - began_ms <= max(SLOW_MS, SLOW_TIMES * self._calm_ms):
            self.rate = min(self.rate * FASTER, RATE_MAX)
        elif began_ms >= self._slowed_ms:
            self.rate, self._slowed_ms = max(self.rate * SLOWER, RATE_MIN), now_ms
