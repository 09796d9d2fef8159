"""Measure consumer lag for /metrics, per group and topic, over the partitions that this node leads.

A leader knows both the committed offset of a group and the end of the partition. Each partition has one leader, so Prometheus can
add up the brokers. Records are counted from memory. The age of the oldest unread record needs its append time, which may have to
be read from the disk, and is cached until the group moves on. Measuring must not change anything.

A group that never committed an offset in a partition has no lag there, because its start is not known yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from raftmq.broker.base.limits import Limits, Timing
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.partitions.log import PartitionLog
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.services.host import ServiceHost
from raftmq.fsm.group_offsets import NO_OFFSET
from raftmq.types import GroupId

_STEPS_PER_TURN = 1000
"""Committed offsets read before other tasks get a turn: about a millisecond."""


class Reader(NamedTuple):
    """A consumer group in a topic: the labels of the metrics."""

    group: str
    topic: str


class _Position(NamedTuple):
    """The oldest unread record of a reader in one partition."""

    partition: PartitionLog
    offset: int

    @property
    def key(self) -> tuple[GroupId, int]:
        return self.partition.replica.group_id, self.offset


@dataclass(slots=True)
class _Behind:
    records: int = 0
    unread: list[_Position] = field(default_factory=list[_Position])


@dataclass(frozen=True, slots=True)
class Lag:
    """Result of one measurement."""

    records: dict[Reader, int]
    seconds: dict[Reader, float]
    """Age of the oldest unread record, or 0 if there is none. Readers whose ages are all unknown are left out."""
    left_out_readers: int
    """Readers beyond `Limits.lag_readers_max`, which are those with the least lag."""
    left_out_ages: int
    """Partitions of the shown readers whose oldest unread record could not be looked up within `Timing.lag_seconds`."""


class ConsumerLag:
    """Measures the lag of all groups on one node."""

    def __init__(self, host: ServiceHost, limits: Limits, timing: Timing) -> None:
        self._host = host
        self._limits = limits
        self._timing = timing
        self._append_times_ms: dict[tuple[GroupId, int], int] = {}
        """Append times of the oldest unread records, from the last measurement."""

    async def measure(self, partitions: Sequence[tuple[str, Partition]]) -> Lag:
        """Measure the given partitions that are logs and led here. Each comes with its topic's name."""
        deadline = self._host.loop.time() + self._timing.lag_seconds
        readers: dict[Reader, _Behind] = {}
        for steps, (reader, position, records) in enumerate(_offsets(partitions), 1):
            behind = readers.setdefault(reader, _Behind())
            behind.records += records
            if records:
                behind.unread.append(position)
            if not steps % _STEPS_PER_TURN:
                await asyncio.sleep(0)
        shown = sorted(readers, key=lambda reader: (-readers[reader].records, reader))[: self._limits.lag_readers_max]
        seconds, left_out_ages = await self._ages({reader: readers[reader].unread for reader in shown}, deadline)
        return Lag(
            {reader: readers[reader].records for reader in shown}, seconds, len(readers) - len(shown), left_out_ages
        )

    async def _ages(self, unread: dict[Reader, list[_Position]], deadline: float) -> tuple[dict[Reader, float], int]:
        now_ms = self._host.now_ms()
        known: dict[tuple[GroupId, int], int] = {}
        seconds: dict[Reader, float] = {}
        left_out = steps = 0
        for reader, positions in unread.items():
            times_ms: list[int] = []
            for position in positions:
                steps += 1
                if not steps % _STEPS_PER_TURN:
                    await asyncio.sleep(0)
                time_ms = await self._append_time_ms(position, deadline)
                if time_ms is None:
                    left_out += 1
                else:
                    known[position.key] = time_ms
                    times_ms.append(time_ms)
            if times_ms or not positions:
                seconds[reader] = max(0, now_ms - min(times_ms, default=now_ms)) / 1000
        self._append_times_ms = known
        return seconds, left_out

    async def _append_time_ms(self, position: _Position, deadline: float) -> int | None:
        known = self._append_times_ms.get(position.key)
        if known is not None or self._host.loop.time() >= deadline:
            return known
        try:
            async with asyncio.timeout_at(deadline):
                header = await position.partition.header_at(position.offset)
        except (RequestError, TimeoutError):
            return None
        return header.append_time_ms if header is not None else None


def _offsets(partitions: Sequence[tuple[str, Partition]]) -> Iterator[tuple[Reader, _Position, int]]:
    """Yield each committed offset in the partitions led here, with the number of unread records after it."""
    for topic, partition in partitions:
        if not isinstance(partition, PartitionLog) or not partition.replica.is_leader:
            continue
        group, offsets = partition.replica, partition.offsets
        for name, known in group.state_machine.group_offsets():
            if known.offset != NO_OFFSET:
                offset = max(known.offset, partition.log_start_offset)
                yield Reader(name, topic), _Position(partition, offset), offsets.lag_records(known)
