"""`LaneSchedule`: which record may be worked on next. Records of one lane go one after the other, lanes side by side.

A lane is a key, a partition or a single record, as the ordering says. Pure: time is handed in; it runs nothing. Must not know what
became of a record, only that it is finished or comes again. Invariants: of a lane at most the first job runs; a job is started once for each
time that it is added or sent back; a lane whose first job waits for its next try blocks itself and nothing else.
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
    """What a record shares with those that it must not overtake, within its partition.

    A record without a key has no key's order to keep: with ``"key"`` it is a lane of its own. Keys are bytes and offsets numbers, so the
    two never meet.
    """
    if ordering == "key":
        return record.key if record.key is not None else record.offset
    return None if ordering == "partition" else record.offset


class Job(Protocol):
    """What is scheduled."""

    @property
    def offset(self) -> int:
        """The record's."""
        ...

    @property
    def partition(self) -> TopicPartition:
        """Whose."""
        ...

    @property
    def lane(self) -> Hashable:
        """What `lane_of` says."""


J = TypeVar("J", bound=Job)


class _State(Enum):
    READY = 0
    """In the queue of those whose first job may start."""
    RUNNING = 1
    WAITING = 2
    """The first job's next try is not due."""
    GONE = 3
    """Empty or dropped; queues that still name it pass over it."""


@dataclass(slots=True, eq=False)
class _Lane(Generic[J]):
    jobs: deque[J] = field(default_factory=deque)
    state: _State = _State.READY


class LaneSchedule(Generic[J]):
    """Fair: lanes take turns, in the order in which they became ready; those of partitions that are being left come first."""

    def __init__(self) -> None:
        self.queued_count = 0
        """Jobs that are neither running nor waiting for another try."""
        self.running_count = 0
        self.waiting_count = 0
        """Jobs that wait for another try."""
        self._lanes: dict[TopicPartition, dict[Hashable, _Lane[J]]] = {}
        self._ready: deque[_Lane[J]] = deque()
        self._waiting: list[tuple[float, int, _Lane[J]]] = []  # a heap; each entry was made by one `retry`
        self._numbers = count()
        self._left: set[TopicPartition] = set()  # see `leave`

    def add(self, job: J) -> None:
        """Put a job behind those of its lane."""
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
        """Take the job that may start now; the caller runs it and then calls `finish` or `retry`. None: there is none."""
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
        """When the next waiting job may be tried again; None: none waits."""
        while self._waiting and self._waiting[0][2].state is not _State.WAITING:
            heapq.heappop(self._waiting)
        return self._waiting[0][0] if self._waiting else None

    def finish(self, job: J) -> None:
        """A running job is over: the next of its lane may start."""
        lane = self._running_lane(job)
        lane.jobs.popleft()
        self.running_count -= 1
        if not lane.jobs:
            self._forget(job, lane)
            return
        self._make_ready(lane)

    def abandon(self, job: J) -> list[J]:
        """A running job is over and not done, so nothing of its lane may start any more: forget them all, and return the others."""
        lane = self._running_lane(job)
        self.running_count -= 1
        rest = list(lane.jobs)[1:]
        self.queued_count -= len(rest)
        lane.jobs.clear()
        self._forget(job, lane)
        return rest

    def retry(self, job: J, due: float) -> None:
        """A running job is to be started again at `due`; until it is finished its lane waits."""
        lane = self._running_lane(job)
        lane.state = _State.WAITING
        self.running_count -= 1
        self.waiting_count += 1
        heapq.heappush(self._waiting, (due, next(self._numbers), lane))

    def leave(self, partition: TopicPartition, last: int) -> list[J]:
        """A partition is being left: keep what is running and what may still start, which is what lies at or below `last`.

        That comes before everything else, and what waits for its next try waits no longer. Returns what was forgotten.
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
        """Forget a partition's jobs that are not running, and return them.

        What runs goes on blocking its lane: a job added later under the same lane starts when it has finished.
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
        """Those with any job."""
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
