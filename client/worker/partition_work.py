"""What the work loop knows of one partition, and of one record in work. Holds, and does nothing by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from raftmq.client.worker.prefix import PrefixTracker
from raftmq.types import Record, TopicPartition


class WorkState(Enum):
    """Whose a partition is."""

    HELD = 0
    LEAVING = 1
    """Nothing new is begun; what runs may end and counts."""
    GONE = 2
    """It is not ours any more: no outcome counts."""


@dataclass(slots=True, eq=False)
class PartitionWork:
    """A partition from its assignment to its end; assigned again, it is another one."""

    partition: TopicPartition
    tracker: PrefixTracker = field(default_factory=PrefixTracker)
    state: WorkState = WorkState.HELD
    committed: int | None = None
    """What was committed last, by this worker."""
    running_count: int = 0
    """Handlers that run and records under way to the dead-letter topic."""
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while `running_count` is 0."""
    is_paused: bool = False

    def __post_init__(self) -> None:
        self.idle.set()

    def begin(self) -> None:
        """One more runs."""
        self.running_count += 1
        self.idle.clear()

    def end(self) -> None:
        """One less."""
        self.running_count -= 1
        if self.running_count == 0:
            self.idle.set()


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
    def partition(self) -> TopicPartition:
        """Whose."""
        return self.work.partition


def bytes_of(record: Record) -> int:
    """What a record holds in memory, but for its objects."""
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(text) for name, text in record.headers) if record.headers else size
