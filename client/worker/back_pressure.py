"""`BackPressure`: pauses and resumes partitions so that the records in work stay within their limits.

Must not take records or run anything. Invariants: a partition is read only while a whole poll of it fits within its own limit and within
the total limits. Every partition that was paused here is resumed here, unless it was lost.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raftmq.client.worker.group_consumer import GroupConsumer
from raftmq.client.worker.partition_work import PartitionWork, WorkState


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """Limits of the work in progress and of the time that things may take."""

    concurrency: int
    """Handlers that run concurrently."""
    records_max: int
    """Records in all partitions that are taken and not below the committable prefix."""
    partition_records_max: int
    """The same for one partition."""
    bytes_max: int
    drain_seconds: float
    """Time for handlers to end when the worker stops."""
    revocation_seconds: float
    """Time for handlers to end when partitions move to another member."""
    commit_interval_seconds: float

    @property
    def poll_records(self) -> int:
        """Return the maximum number of records of one poll. A partition is read while that many more fit.

        It is half the limit, so that one half is processed while the other is fetched.
        """
        return max(1, self.partition_records_max // 2)


class BackPressure:
    """Pauses partitions. The work loop reports every change of the work in progress to it."""

    def __init__(self, consumer: GroupConsumer, limits: WorkLimits) -> None:
        self.records = 0
        """Records in work: the sum of the spans of all assigned partitions. Written by the work loop."""
        self.bytes = 0
        """Bytes of the records that are not done. Records of lost partitions count while a handler has them. Written by the work loop."""
        self._consumer = consumer
        self._limits = limits
        self._is_full = False  # everything is paused because a total limit is reached
        self._is_ended = False

    def end(self, works: Iterable[PartitionWork]) -> None:
        """Stop reading permanently."""
        self._is_ended = True
        self._pause(works)

    def admit(self, works: Iterable[PartitionWork]) -> None:
        """Record that partitions were assigned. They are paused if nothing may be read."""
        if self._is_full or self._is_ended:
            self._pause(works)

    def restrain(self, works: Iterable[PartitionWork]) -> None:
        """Record that records were taken. Pause the partitions that have no room for another poll."""
        if self._has_total_room:
            self._pause(work for work in works if not self._has_room(work))
        else:
            self._is_full = True
            self._pause(works)

    def relieve(self, works: Iterable[PartitionWork], work: PartitionWork | None = None) -> None:
        """Record that records were finished, and resume partitions that have room.

        Args:
            works: All partitions. They are resumed if a total limit had been reached.
            work: The partition whose records were finished.
        """
        if self._is_ended or not (self._is_full or (work is not None and work.is_paused)) or not self._has_total_room:
            return
        if self._is_full:
            self._is_full = False
            self._resume(works)
        elif work is not None:
            self._resume((work,))

    @property
    def _has_total_room(self) -> bool:
        limits = self._limits
        return self.records + limits.poll_records <= limits.records_max and self.bytes < limits.bytes_max

    def _has_room(self, work: PartitionWork) -> bool:
        return work.tracker.span + self._limits.poll_records <= self._limits.partition_records_max

    def _pause(self, works: Iterable[PartitionWork]) -> None:
        chosen = self._assigned(work for work in works if not work.is_paused)
        for work in chosen:
            work.is_paused = True
        if chosen:  # without arguments, `pause` would pause everything
            self._consumer.pause(*(work.partition for work in chosen))

    def _resume(self, works: Iterable[PartitionWork]) -> None:
        chosen = self._assigned(w for w in works if w.is_paused and w.state is WorkState.HELD and self._has_room(w))
        for work in chosen:
            work.is_paused = False
        if chosen:
            self._consumer.resume(*(work.partition for work in chosen))

    def _assigned(self, works: Iterable[PartitionWork]) -> list[PartitionWork]:
        """Keep the partitions that are still assigned. The consumer may know earlier than the loop that a partition was lost."""
        chosen = list(works)
        if not chosen:
            return chosen
        assigned = self._consumer.assignment()
        return [work for work in chosen if work.partition in assigned]
