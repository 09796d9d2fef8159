"""The state of one partition and of one record in the work loop. Values only."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum

from raftmq.client.worker.contiguous_offsets import ContiguousOffsets, Progress
from raftmq.types import Record, TopicPartition


class WorkState(IntEnum):
    """The ownership of a partition."""

    HELD = 0
    LEAVING = 1
    """No more records are taken. Those below the highest finished record are still started."""
    CLOSING = 2
    """No more records are started. Running handlers may end, and their outcomes count."""
    GONE = 3
    """The partition was lost or released: no outcome counts."""


@dataclass(slots=True, eq=False)
class PartitionWork:
    """A partition from its assignment to its end. A new assignment creates a new object."""

    partition: TopicPartition
    tracker: ContiguousOffsets = field(default_factory=ContiguousOffsets)
    state: WorkState = WorkState.HELD
    committed: Progress | None = None
    """The progress that this worker committed last."""
    running_count: int = 0
    """Running handlers, and records that are being moved to the dead-letter topic."""
    job_count: int = 0
    """All jobs: running, queued, and waiting for their next attempt."""
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while `job_count` is 0."""
    is_paused: bool = False

    def __post_init__(self) -> None:
        self.empty.set()

    def add_job(self) -> None:
        """Count a new job."""
        self.job_count += 1
        self.empty.clear()

    def remove_jobs(self, count: int) -> None:
        """Subtract jobs that ended."""
        self.job_count -= count
        if self.job_count == 0:
            self.empty.set()


@dataclass(slots=True, eq=False)
class RecordJob:
    """One record in work."""

    work: PartitionWork
    record: Record
    lane: Hashable
    bytes: int
    attempts: int = 0
    """Attempts that were started."""

    @property
    def offset(self) -> int:
        """Return the record's offset."""
        return self.record.offset

    @property
    def partition(self) -> TopicPartition:
        """Return the record's partition."""
        return self.work.partition


def bytes_of(record: Record) -> int:
    """Return the size of a record in memory, without the overhead of its objects."""
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(text) for name, text in record.headers) if record.headers else size
