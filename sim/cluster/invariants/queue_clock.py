"""`QueueClockHolds`: the queue clock never goes back, and it is near the correct time (promise: never early by the queue clock, which no
single wrong clock moves, and which no restart, suspension or change of the leader stops).

It may be far behind only until a majority of clocks agrees after a start. Otherwise it may be behind for a while, since a new leader continues from the last entry that it received and slews by 5 %. It is ahead by no
more than the clocks of a majority.
"""

from __future__ import annotations

from raftmq.raft.entry import Entry

from sim.core.invariants.violation import demand

BEHIND_MS_MAX = 60_000
"""Above the cost of messages, elections and slewing in a run, and below the shortest time for which all machines sleep or are down."""


class QueueClocks:
    """The check of all queue partitions of a run."""

    def __init__(self, ahead_ms_max: int) -> None:
        self._ahead_ms_max = ahead_ms_max
        self._stamped_ms: dict[tuple[int, int], int] = {}
        """(group, index) -> append time of a committed entry."""

    def on_proposed(self, group_id: int, entry: Entry, true_ms: int, *, may_be_behind: bool = False) -> None:
        """Check the time that a leader gives an entry. It may be behind while no majority of clocks agreed since the leader's start."""
        ahead_ms = entry.append_time_ms - true_ms
        demand(
            ahead_ms <= self._ahead_ms_max and (may_be_behind or ahead_ms >= -BEHIND_MS_MAX),
            "QueueClockHolds",
            f"g{group_id} stamps entry {entry.index} in term {entry.term} {ahead_ms} ms ahead of the correct time",
        )

    def on_applied(self, group_id: int, entry: Entry) -> None:
        """Check that a committed entry is not older than the one before."""
        self._stamped_ms[group_id, entry.index] = entry.append_time_ms
        before_ms = self._stamped_ms.get((group_id, entry.index - 1), 0)
        demand(
            entry.append_time_ms >= before_ms,
            "QueueClockHolds",
            f"g{group_id} goes back from {before_ms} to {entry.append_time_ms} at entry {entry.index}",
        )
