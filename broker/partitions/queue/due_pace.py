"""Choose how many due messages each entry of a queue partition promotes.

A million messages may come due together. All replicas promote the same ones in the same entry, which is one stall of their event loops. So an
entry gets no more messages than take a small part of a second, and while messages are left due, the next entry follows.

Only the leader's choice counts. It is in the entry, so that all replicas apply the same.
"""

from __future__ import annotations

from typing import Final

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.queue.commands import Tick, decode_commands
from raftmq.fsm.queue.levels import DUE_LEVEL
from raftmq.fsm.queue.limits import HOUSEKEEPING_MAX
from raftmq.fsm.queue.partition import QueuePartition
from raftmq.fsm.queue.results import Results
from raftmq.raft.entry import Entry

STALL_SECONDS: Final = 0.002
"""The time of one entry. Other commits wait for it, in three brokers."""
COUNT_MIN: Final = 50
"""Messages of an entry, at least. Fewer would hardly shorten the stall, and each entry costs a commit."""
COUNT_MAX: Final = HOUSEKEEPING_MAX
_SECONDS_EACH: Final = 10e-6
"""The time of one message before one was measured."""
_WEIGHT: Final = 0.125
"""Of the latest measurement in the average."""


class DuePace:
    """The number of one partition. Every replica measures, because each may become the leader."""

    def __init__(self, replica: Replica[QueuePartition]) -> None:
        self._replica = replica
        self._seconds_each = _SECONDS_EACH
        """Time of the event loop for each message, as an average."""
        replica.applier.listeners.append(self._on_applied)

    def due_max(self) -> int:
        """Return how many messages the next entry may promote. 0: the feature level lets no entry name a number, so that each promotes up to
        `HOUSEKEEPING_MAX`.
        """
        if self._replica.cluster_level() < DUE_LEVEL:
            return 0
        return min(max(COUNT_MIN, int(STALL_SECONDS / max(self._seconds_each, 1e-9))), COUNT_MAX)

    def _on_applied(self, entry: Entry, result: object) -> None:
        """Learn from an entry that did nothing else, and enough to be measured."""
        if type(result) is not Results or result.due_count < COUNT_MIN // 2:
            return
        commands = decode_commands(entry.payload)
        assert commands is not None, "it was applied"
        if all(type(item) is Tick for item in commands.items):
            seconds = self._replica.applier.entry_seconds / result.due_count
            self._seconds_each += _WEIGHT * (seconds - self._seconds_each)
