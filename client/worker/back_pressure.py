"""`BackPressure`: which partitions may be read, so that what is in work stays within its limits.

Must not take records or run anything: it is told, and pauses and resumes. Invariants: a partition is read only while a whole poll of it
fits beside what is in work of it, and beside what is in work of all; what has been paused here is resumed here, or gone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from raftmq.client.worker.group_consumer import GroupConsumer
from raftmq.client.worker.partition_work import PartitionWork, WorkState


@dataclass(frozen=True, slots=True)
class WorkLimits:
    """How much is in work at most, and how long things may take."""

    concurrency: int
    """Handlers that run at once."""
    records_max: int
    """Taken and not below the prefix, over all partitions."""
    partition_records_max: int
    """The same of one partition."""
    bytes_max: int
    drain_seconds: float
    """For handlers to end when the worker stops."""
    revocation_seconds: float
    """For handlers to end when partitions go to another member."""
    commit_interval_seconds: float

    @property
    def poll_records(self) -> int:
        """Most records of one poll; a partition is read while so many still fit. Half: the other half is worked on meanwhile."""
        return max(1, self.partition_records_max // 2)


class BackPressure:
    """Told by the work loop of everything that changes what is in work."""

    def __init__(self, consumer: GroupConsumer, limits: WorkLimits) -> None:
        self.records = 0
        """In work: the sum of the spans of all partitions that are ours. Written by the work loop."""
        self.bytes = 0
        """Of records that are not done, of partitions that went away, too, while a handler has them. Written by the work loop."""
        self._consumer = consumer
        self._limits = limits
        self._is_full = False  # everything is paused because a total is reached
        self._is_ended = False

    def end(self, works: Iterable[PartitionWork]) -> None:
        """Read nothing any more."""
        self._is_ended = True
        self._pause(works)

    def admit(self, works: Iterable[PartitionWork]) -> None:
        """Partitions came: while nothing may be read, they are not either."""
        if self._is_full or self._is_ended:
            self._pause(works)

    def restrain(self, works: Iterable[PartitionWork]) -> None:
        """Records were taken: pause what has no room for another poll."""
        if self._has_total_room:
            self._pause(work for work in works if not self._has_room(work))
        else:
            self._is_full = True
            self._pause(works)

    def relieve(self, works: Iterable[PartitionWork], work: PartitionWork | None = None) -> None:
        """Records are done, of `work`: resume it, or all of them when a total had been reached, as far as there is room."""
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
        if chosen:  # without arguments it would pause everything
            self._consumer.pause(*(work.partition for work in chosen))

    def _resume(self, works: Iterable[PartitionWork]) -> None:
        chosen = self._assigned(w for w in works if w.is_paused and w.state is WorkState.HELD and self._has_room(w))
        for work in chosen:
            work.is_paused = False
        if chosen:
            self._consumer.resume(*(work.partition for work in chosen))

    def _assigned(self, works: Iterable[PartitionWork]) -> list[PartitionWork]:
        """Those that the consumer has, which may know before us that a partition is gone."""
        chosen = list(works)
        if not chosen:
            return chosen
        assigned = self._consumer.assignment()
        return [work for work in chosen if work.partition in assigned]
