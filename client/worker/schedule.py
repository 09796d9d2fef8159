"""`LaneSchedule`: decides which record may start next. The records of a lane run one at a time, and lanes run concurrently.

A lane is a key, a partition or a single record, depending on the ordering. Pure: the time is an argument, and nothing is run here. Must not
know the outcome of a record, only that it finished or is tried again. Invariants: only the first job of a lane runs. A job is started once
for each time that it is added or sent back. A lane whose first job waits for its next attempt blocks only itself.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from itertools import count
from typing import Generic, Literal, Protocol, TypeVar

from raftmq.errors import invariant
from raftmq.types import Record, TopicPartition

Ordering = Literal["key", "partition", "none"]


def lane_of(ordering: Ordering, record: Record) -> Hashable:
    """Return the lane of a record. Within its partition, a record must not overtake an earlier one of its lane.

    With the ordering ``"key"``, a record without a key is a lane of its own. Keys are bytes and offsets are numbers, so they never collide.
    """
    if ordering == "key":
        return record.key if record.key is not None else record.offset
    return None if ordering == "partition" else record.offset


class Job(Protocol):
    """A unit of work that is scheduled."""

    @property
    def offset(self) -> int:
        """Return the record's offset."""
        ...

    @property
    def partition(self) -> TopicPartition:
        """Return the record's partition."""
        ...

    @property
    def lane(self) -> Hashable:
        """Return the record's lane, as `lane_of` does."""


J = TypeVar("J", bound=Job)


class _State(Enum):
    READY = 0
    """In the queue of lanes whose first job may start."""
    RUNNING = 1
    WAITING = 2
    """The first job's next attempt is not due."""
    GONE = 3
    """Empty or dropped. Queues skip it."""


@dataclass(slots=True, eq=False)
class _Lane(Generic[J]):
    jobs: deque[J] = field(default_factory=deque)
    state: _State = _State.READY


class LaneSchedule(Generic[J]):
    """Schedules lanes fairly: they take turns in the order in which they became ready. Lanes of partitions that are being left go first."""

    def __init__(self) -> None:
        self.queued_count = 0
        """Jobs that are neither running nor waiting for another attempt."""
        self.running_count = 0
        self.waiting_count = 0
        """Jobs that wait for another attempt."""
        self._lanes: dict[TopicPartition, dict[Hashable, _Lane[J]]] = {}
        self._ready: deque[_Lane[J]] = deque()
        self._waiting: list[tuple[float, int, _Lane[J]]] = []  # a heap; each `retry` adds one entry
        self._numbers = count()
        self._left: set[TopicPartition] = set()  # partitions that `leave` was called for

    def add(self, job: J) -> None:
        """Append a job to its lane."""
        lanes = self._lanes.get(job.partition)
        if lanes is None:
            lanes = self._lanes[job.partition] = {}
        lane = lanes.get(job.lane)
        if lane is None:
            lane = lanes[job.lane] = _Lane()
            self._ready.append(lane)
        lane.jobs.append(job)
        self.queued_count += 1

    def start_next(self, now: float) -> J | None:
        """Start and return the next job, or None if no job may start now. The caller runs it and then calls `finish` or `retry`."""
        while self._waiting and (self._waiting[0][2].state is not _State.WAITING or self._waiting[0][0] <= now):
            _, _, lane = heapq.heappop(self._waiting)
            if lane.state is _State.WAITING:
                self._make_ready(lane)
                self.waiting_count -= 1
                self.queued_count += 1
        while self._ready:
            lane = self._ready.popleft()
            if lane.state is _State.READY:
                lane.state = _State.RUNNING
                self.queued_count -= 1
                self.running_count += 1
                return lane.jobs[0]
        return None

    def next_due(self) -> float | None:
        """Return the time of the next waiting job's attempt, or None if none waits."""
        while self._waiting and self._waiting[0][2].state is not _State.WAITING:
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def finish(self, job: J) -> None:
        """Record that a running job ended. The next job of its lane may start."""
        lane = self._running_lane(job)
        lane.jobs.popleft()
        self.running_count -= 1
        if not lane.jobs:
            self._forget(job, lane)
            return
        self._make_ready(lane)

    def abandon(self, job: J) -> list[J]:
        """Record that a running job ended without being done.

        No other job of its lane may start any more. They are dropped and returned.
        """
        lane = self._running_lane(job)
        self.running_count -= 1
        rest = list(lane.jobs)[1:]
        self.queued_count -= len(rest)
        lane.jobs.clear()
        self._forget(job, lane)
        return rest

    def retry(self, job: J, due: float) -> None:
        """Schedule a running job to start again at `due`. Until it is finished, its lane waits."""
        lane = self._running_lane(job)
        lane.state = _State.WAITING
        self.running_count -= 1
        self.waiting_count += 1
        heapq.heappush(self._waiting, (due, next(self._numbers), lane))

    def leave(self, partition: TopicPartition, last: int) -> list[J]:
        """Drop the jobs of a partition above `last`, except running ones, and return them.

        The remaining jobs start before those of all other partitions, and those that wait for their next attempt may start immediately.
        """
        lanes = self._lanes.get(partition, {})
        dropped: list[J] = []
        for name, lane in list(lanes.items()):
            first = int(lane.state is _State.RUNNING)
            if lane.state is _State.WAITING:
                lane.state = _State.READY
                self.waiting_count -= 1
                self.queued_count += 1
            kept = [job for number, job in enumerate(lane.jobs) if number < first or job.offset <= last]
            dropped += list(lane.jobs)[len(kept) :]
            lane.jobs = deque(kept)
            if not kept:
                lane.state = _State.GONE
                del lanes[name]
        self.queued_count -= len(dropped)
        if lanes:
            self._left.add(partition)
        else:
            self._lanes.pop(partition, None)
        ready = [lane for lane in lanes.values() if lane.state is _State.READY]
        others = set(ready)
        self._ready = deque((*ready, *(lane for lane in self._ready if lane not in others)))
        self._waiting = [entry for entry in self._waiting if entry[2].state is _State.WAITING]
        heapq.heapify(self._waiting)
        return dropped

    def drop(self, partition: TopicPartition) -> list[J]:
        """Drop and return a partition's jobs that are not running.

        A running job keeps blocking its lane: a job that is added to the lane later starts when the running one has finished.
        """
        self._left.discard(partition)
        dropped: list[J] = []
        kept: dict[Hashable, _Lane[J]] = {}
        for name, lane in self._lanes.pop(partition, {}).items():
            jobs = iter(lane.jobs)
            if lane.state is _State.RUNNING:
                lane.jobs = deque((next(jobs),))
                kept[name] = lane
            elif lane.state is _State.WAITING:
                self.waiting_count -= 1
                self.queued_count += 1  # counted as dropped below
            rest = list(jobs)
            self.queued_count -= len(rest)
            dropped += rest
            if lane.state is not _State.RUNNING:
                lane.state = _State.GONE
                lane.jobs.clear()
        if kept:
            self._lanes[partition] = kept
        return dropped

    def partitions(self) -> Iterator[TopicPartition]:
        """Iterate over the partitions that have jobs."""
        return iter(list(self._lanes))

    def _make_ready(self, lane: _Lane[J]) -> None:
        lane.state = _State.READY
        if lane.jobs[0].partition in self._left:
            self._ready.appendleft(lane)
        else:
            self._ready.append(lane)

    def _running_lane(self, job: J) -> _Lane[J]:
        lane = self._lanes.get(job.partition, {}).get(job.lane)
        is_running = lane is not None and lane.state is _State.RUNNING and lane.jobs[0] is job
        invariant(is_running, "only_a_running_job_ends", partition=job.partition)
        assert lane is not None
        return lane

    def _forget(self, job: J, lane: _Lane[J]) -> None:
        lane.state = _State.GONE
        lanes = self._lanes[job.partition]
        del lanes[job.lane]
        if not lanes:
            del self._lanes[job.partition]
