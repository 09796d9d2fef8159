"""`RetentionKeeps`: records are deleted only when somebody requests it, or when they are older than their topic's retention time (promise:
acknowledged records are kept as long as the topic says). Their age is measured by the correct time, not by the clock of any node.

`NotStampedOld`: a record's append time is not before its acceptance. Otherwise it would be deleted too early.
"""

from __future__ import annotations

from bisect import bisect_left

from raftmq.raft.entry import Entry

from sim.cluster.invariants.acknowledged import Acknowledged
from sim.core.invariants.violation import demand


def check_stamp(group_id: int, entry: Entry, earliest_ms: int) -> None:
    """Check the stamp of an accepted entry. At that time no trusted clock shows less than `earliest_ms`."""
    demand(
        entry.append_time_ms >= earliest_ms,
        "NotStampedOld",
        f"g{group_id} index {entry.index} is stamped {earliest_ms - entry.append_time_ms} ms too early, or more",
    )


class Retention:
    """The age of the records of all partitions."""

    def __init__(self, acknowledged: Acknowledged) -> None:
        self._acknowledged = acknowledged
        self.kept_ms: dict[int, int] = {}
        """Group -> retention time of its topic. Groups without a limit are absent."""
        self._ends: dict[int, list[int]] = {}
        self._times: dict[int, list[int]] = {}
        """`_ends` and `_times` hold the end offsets and acceptance times of each group's batches, in the order of their offsets."""
        self.trims = 0
        """Number of trims because of age."""

    def rename(self, group_id: int, origin: int) -> None:
        """Let the retention time of a group hold for another id, by which the checker knows it from now on."""
        if group_id in self.kept_ms:
            self.kept_ms[origin] = self.kept_ms.pop(group_id)

    def shorten(self, group_id: int, new_group_id: int, offset: int) -> None:
        """Let a group continue another one's records below an offset."""
        if group_id in self.kept_ms:
            self.kept_ms[new_group_id] = self.kept_ms[group_id]
        ends = [end for end in self._ends.get(group_id, []) if end <= offset]
        self._ends[new_group_id], self._times[new_group_id] = ends, self._times.get(group_id, [])[: len(ends)]

    def on_committed(self, group_id: int, end: int, taken_ms: int) -> None:
        """Record a newly committed batch."""
        ends = self._ends.setdefault(group_id, [])
        place = bisect_left(ends, end)
        ends.insert(place, end)
        self._times.setdefault(group_id, []).insert(place, taken_ms)

    def on_trim(self, group_id: int, before: int, wall_ms_max: int) -> bool:
        """Check a committed trim. At that time no trusted clock shows more than `wall_ms_max`. Return whether its reason is the records' age."""
        self._acknowledged.on_expired(group_id, before)
        if before <= self._acknowledged.trimmed.get(group_id, 0):
            return False
        kept_ms = self.kept_ms.get(group_id)
        demand(kept_ms is not None, "RetentionKeeps", f"g{group_id} is trimmed before {before}, which nobody asked for")
        assert kept_ms is not None
        ends = self._ends.get(group_id, [])
        place = bisect_left(ends, before)
        if place < len(ends):
            newest = self._times[group_id][place]
            demand(
                newest < wall_ms_max - kept_ms,
                "RetentionKeeps",
                f"g{group_id} is trimmed before {before}, whose last record is {wall_ms_max - newest} ms old at most; "
                f"its topic keeps {kept_ms} ms",
            )
        self.trims += 1
        self._acknowledged.on_trim(group_id, before)
        return True
