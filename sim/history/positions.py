"""Compares the records that each reader received with its position: breaks in the sequence, and the stretches that were read.

Offsets are dense and permanent, so offset n is always followed by n + 1, and a reader that was not moved sees nothing else. This
module must not interpret values. One walk serves three anomalies and the search for lost writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal, NamedTuple

from sim.history.events import Partition
from sim.history.tables import Assigned, History, Moved, Polled, Step

BreakKind = Literal["back", "skip", "misplaced"]


@dataclass(frozen=True, slots=True)
class Break:
    """A record that is not the expected next one."""

    kind: BreakKind
    """`back`: an earlier record. `skip`: a later one. `misplaced`: not the record to which the reader was moved."""
    process: str
    partition: Partition
    expected: int
    found: int
    at: int
    """The poll that returned the record."""
    since: int
    """The event that determined the expected offset. Within one poll it equals `at`."""


class Stretch(NamedTuple):
    """A range of offsets, inclusive, that one reader went through without being moved."""

    first: int
    last: int
    at: int
    """The last poll."""


@dataclass(slots=True)
class _Position:
    """The position of a reader in a partition."""

    expected: int
    since: int
    is_sought: bool
    """Whether nothing was read since the position was set."""
    first: int


@dataclass(slots=True)
class Walk:
    """The result of the walk."""

    breaks: list[Break] = field(default_factory=list)
    stretches: dict[Partition, list[Stretch]] = field(default_factory=dict)


def walk(history: History) -> Walk:
    """Follow every reader through the history."""
    result = Walk()
    for process, steps in history.readers.items():
        _Reader(history, process, result).follow(steps)
    return result


class _Reader:
    """One process and its positions."""

    def __init__(self, history: History, process: str, result: Walk) -> None:
        self._history = history
        self._process = process
        self._result = result
        self._positions: dict[Partition, _Position] = {}
        self._assigned: frozenset[Partition] = frozenset()
        self._excused: set[tuple[Partition, int]] = set()
        """Recoveries, by partition and event, after which the reader has already gone on elsewhere."""

    def follow(self, steps: list[Step]) -> None:
        """Check the steps of the process in order."""
        for step in steps:
            match step:
                case Polled(at, records):
                    for batch in records:
                        self._on_batch(at, Partition(batch.topic, batch.partition), batch.offsets)
                case Assigned():
                    self._on_assigned(step)
                case Moved(at, partition, offset):
                    self._leave(partition)
                    if offset is not None:
                        self._positions[partition] = _Position(offset, at, is_sought=True, first=offset)
        for partition in list(self._positions):
            self._leave(partition)

    def _on_assigned(self, step: Assigned) -> None:
        for partition in [partition for partition in self._positions if partition not in step.partitions]:
            self._leave(partition)
        if step.is_from_start:
            for partition in step.partitions - self._assigned:
                self._positions[partition] = _Position(0, step.at, is_sought=True, first=0)
        self._assigned = step.partitions

    def _leave(self, partition: Partition) -> None:
        """End a position, and record the stretch that was read up to it."""
        position = self._positions.pop(partition, None)
        if position is not None and position.expected > position.first:
            stretch = Stretch(position.first, position.expected - 1, position.since)
            self._result.stretches.setdefault(partition, []).append(stretch)

    def _on_batch(self, at: int, partition: Partition, offsets: list[int]) -> None:
        if not offsets:
            return
        first, last = offsets[0], offsets[-1]
        position = self._positions.get(partition)
        if position is not None and position.since <= self._history.deleted_until(partition.topic):
            self._positions.pop(partition)  # this may be another topic of the same name, whose offsets restart
            position = None
        if position is None:
            position = self._positions[partition] = _Position(first, at, is_sought=False, first=first)
        elif first != position.expected:
            self._break(position, partition, first, at)
            position = self._positions[partition]
        if last - first + 1 != len(offsets) or offsets != list(range(first, last + 1)):
            self._within(partition, offsets, at)
        position.expected = last + 1
        position.since = at
        position.is_sought = False

    def _is_excused(self, partition: Partition, expected: int, at: int) -> bool:
        """Return whether the reader was beyond the end that a recovery kept. It goes on elsewhere once for each recovery."""
        for recovery in self._history.recoveries(partition):
            key = (partition, recovery.at)
            if recovery.at < at and expected > recovery.offset and key not in self._excused:
                self._excused.add(key)
                return True
        return False

    def _break(self, position: _Position, partition: Partition, found: int, at: int) -> None:
        expected = position.expected
        if found > expected and found <= self._history.trimmed_before(partition):
            return
        if self._is_excused(partition, expected, at):
            self._leave(partition)
            self._positions[partition] = _Position(found, at, is_sought=False, first=found)
            return
        kind: BreakKind = "misplaced" if position.is_sought else "back" if found < expected else "skip"
        self._result.breaks.append(Break(kind, self._process, partition, expected, found, at, position.since))
        if found < position.first:
            position.first = found

    def _within(self, partition: Partition, offsets: list[int], at: int) -> None:
        bound = self._history.trimmed_before(partition)
        for before, found in pairwise(offsets):
            expected = before + 1
            if found != expected and not expected < found <= bound and not self._is_excused(partition, expected, at):
                kind: BreakKind = "back" if found < expected else "skip"
                self._result.breaks.append(Break(kind, self._process, partition, expected, found, at, at))
