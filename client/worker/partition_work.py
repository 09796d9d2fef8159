"""What the work loop knows of one partition, and of one record in work. Holds, and does nothing by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import IntEnum

from raftmq.client.worker.contiguous_offsets import ContiguousOffsets, Progress
from raftmq.types import Record, TopicPartition


class WorkState(IntEnum):
    """Whose a partition is."""

    HELD = 0
    LEAVING = 1
    """Nothing is taken of it any more; what lies below its highest finished record is still begun."""
    CLOSING = 2
    """Nothing is begun; what runs may end and counts."""
    GONE = 3
    """It is not ours any more: no outcome counts."""


@dataclass(slots=True, eq=False)
class PartitionWork:
    """A partition from its assignment to its end; assigned again, it is another one."""

    partition: TopicPartition
    tracker: ContiguousOffsets = field(default_factory=ContiguousOffsets)
    state: WorkState = WorkState.HELD
    committed: Progress | None = None
    """What was committed last, by this worker."""
    running_count: int = 0
    """Handlers that run and records under way to the dead-letter topic."""
    job_count: int = 0
    """The same and what is queued, or waits for its next try."""
    empty: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while `job_count` is 0."""
    is_paused: bool = False

    def __post_init__(self) -> None:
        self.empty.set()

    def add_job(self) -> None:
        """One more is in work."""
        self.job_count += 1
        self.empty.clear()

    def remove_jobs(self, count: int) -> None:
        """So many are in work no longer."""
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
    """Tries begun."""

    @property
    def offset(self) -> int:
        """The record's."""
        return self.record.offset

    @property
    def partition(self) -> TopicPartition:
        """Whose."""
        return self.work.partition


def bytes_of(record: Record) -> int:
    """What a record holds in memory, but for its objects."""
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(text) for name, text in record.headers) if record.headers else size
