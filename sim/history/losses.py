"""Which committed records readers should have seen and did not. One search for three anomalies, which differ in what it proves.

A record is committed for certain once its send is acknowledged, or once anybody has read it. Must not blame for what a trim or a
deletion of the topic explains.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, NamedTuple

from sim.history.events import Partition
from sim.history.positions import Stretch, Walk
from sim.history.tables import NEVER, History, Polled, ReadAll

ANYWHERE: Final = -1
"""The partition of a record whose acknowledgement does not say which one it is in."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A committed record that was not read."""

    partition: Partition
    value: str
    offset: int | None
    """Where it was; None: only the partition is known."""
    committed_at: int
    """The event that proves that it was committed."""
    invoked_at: int | None
    """Its send."""
    missed_at: int
    """The event that proves that it should have been read."""
    missed_by: str


class _Committed(NamedTuple):
    """A record that is committed for certain; the fields are those of `Loss`."""

    value: str
    offset: int | None
    committed_at: int
    invoked_at: int


@dataclass(slots=True)
class Losses:
    """The result. A record is in one list only."""

    passed: list[Loss] = field(default_factory=list)
    """A reader went past its place."""
    beyond: list[Loss] = field(default_factory=list)
    """A complete reading of the partition ended before its place, or where its place is not known."""
    waiting: list[Loss] = field(default_factory=list)
    """No reading of the partition was ever complete, though one was tried until it was given up, and nobody read it."""


@dataclass(slots=True)
class _Reading:
    """What a `read_all` saw of one partition."""

    values: set[str] = field(default_factory=set)
    highest: int = -1


def search(history: History, walked: Walk) -> Losses:
    """Find what is missing."""
    losses = Losses()
    blamed: set[tuple[str, str]] = set()
    committed = _committed_by_partition(history)
    for reading in history.read_alls:
        if reading.is_complete:
            _judge_reading(history, reading, committed, losses, blamed)
    for partition, sends in committed.items():
        _judge_stretches(history, partition, sends, walked.stretches.get(partition, []), losses, blamed)
        _judge_waiting(history, partition, sends, losses, blamed)
    return losses


# --------------------------------------------------------------------------------------------------- what is committed


def _committed_by_partition(history: History) -> dict[Partition, list[_Committed]]:
    """Every record that is committed for certain and that nothing may have removed."""
    found: dict[Partition, list[_Committed]] = {}
    for topic, sends in history.sends.items():
        deleted_until = history.deleted_until(topic)
        by_number: dict[int, list[_Committed]] = {}
        for send in sends.values():
            if send.status == "ok" and send.invoked_at > deleted_until:
                number = ANYWHERE if send.partition is None else send.partition
                record = _Committed(send.value, send.offset, send.ended_at or 0, send.invoked_at)
                into = by_number.get(number)
                if into is None:
                    by_number[number] = [record]
                else:
                    into.append(record)
        found.update((Partition(topic, number), records) for number, records in by_number.items())
    for partition, table in history.partitions.items():
        sends = history.sends.get(partition.topic, {})
        deleted_until = history.deleted_until(partition.topic)
        for offset, value, at in table.reads:
            sent = sends.get(value)
            if sent is not None and sent.status != "ok" and sent.invoked_at > deleted_until:
                found.setdefault(partition, []).append(_Committed(value, offset, at, sent.invoked_at))
    for partition, records in found.items():
        if history.table(partition).trimmed_before > 0:
            found[partition] = [record for record in records if not _may_be_trimmed(history, partition, record.offset)]
    return found


def _may_be_trimmed(history: History, partition: Partition, offset: int | None) -> bool:
    bound = history.table(partition).trimmed_before
    return bound > 0 if offset is None else offset < bound


# ------------------------------------------------------------------------------------------------------ what was missed


def _judge_reading(
    history: History,
    reading: ReadAll,
    committed: dict[Partition, list[_Committed]],
    losses: Losses,
    blamed: set[tuple[str, str]],
) -> None:
    seen = _seen_by(history, reading)
    for partition in [*reading.partitions, *_topics_read_wholly(history, reading)]:
        read = seen.get(partition, _Reading())
        for record in committed.get(partition, ()):
            if record.committed_at >= reading.invoked_at or record.value in read.values:
                continue
            is_passed = record.offset is not None and record.offset <= read.highest
            into = losses.passed if is_passed else losses.beyond
            _blame(into, blamed, partition, record, int(reading.ended_at), reading.process)


def _topics_read_wholly(history: History, reading: ReadAll) -> list[Partition]:
    """The topics of which every known partition was read: a record of theirs is missing wherever it was."""
    known: dict[str, set[Partition]] = {}
    for partition in history.partitions:
        known.setdefault(partition.topic, set()).add(partition)
    topics = sorted({partition.topic for partition in reading.partitions})
    return [Partition(topic, ANYWHERE) for topic in topics if known.get(topic, set()) <= reading.partitions]


def _seen_by(history: History, reading: ReadAll) -> dict[Partition, _Reading]:
    found: dict[Partition, _Reading] = {}
    for step in history.readers.get(reading.process, ()):
        if isinstance(step, Polled) and reading.invoked_at < step.at < reading.ended_at:
            for batch in step.records:
                read = found.setdefault(Partition(batch.topic, batch.partition), _Reading())
                read.values.update(batch.values)
                read.highest = max(read.highest, max(batch.offsets, default=-1))
                found.setdefault(Partition(batch.topic, ANYWHERE), _Reading()).values.update(batch.values)
    return found


def _judge_stretches(
    history: History,
    partition: Partition,
    committed: list[_Committed],
    stretches: list[Stretch],
    losses: Losses,
    blamed: set[tuple[str, str]],
) -> None:
    """A reader went through these offsets, and nobody ever read the value."""
    if not stretches:  # nobody read here, or nobody knows where
        return
    ordered = sorted(stretches)
    firsts = [stretch.first for stretch in ordered]
    furthest = list(accumulate(ordered, _further))
    read_values = _values_read(history, partition)
    for record in committed:
        if record.offset is None or record.value in read_values:
            continue
        at = bisect_right(firsts, record.offset) - 1
        if at >= 0 and furthest[at].last >= record.offset:
            _blame(losses.passed, blamed, partition, record, furthest[at].at, "a reader")


def _further(one: Stretch, other: Stretch) -> Stretch:
    return one if one.last >= other.last else other


def _judge_waiting(
    history: History, partition: Partition, committed: list[_Committed], losses: Losses, blamed: set[tuple[str, str]]
) -> None:
    tried = [reading for reading in history.read_alls if partition in reading.partitions and reading.ended_at != NEVER]
    if not tried or any(reading.is_complete for reading in tried):
        return
    read_values = _values_read(history, partition)
    last = tried[-1]
    for record in committed:
        if record.value not in read_values and record.committed_at < last.invoked_at:
            _blame(losses.waiting, blamed, partition, record, last.invoked_at, last.process)


def _values_read(history: History, partition: Partition) -> set[str]:
    return {value for _, value, _ in history.table(partition).reads}


def _blame(
    into: list[Loss],
    blamed: set[tuple[str, str]],
    partition: Partition,
    record: _Committed,
    missed_at: int,
    missed_by: str,
) -> None:
    key = (partition.topic, record.value)
    if key not in blamed:
        blamed.add(key)
        into.append(
            Loss(
                partition,
                record.value,
                record.offset,
                record.committed_at,
                record.invoked_at,
                missed_at,
                missed_by,
            )
        )


def place_of(loss: Loss) -> str:
    """For people: where it was."""
    if loss.partition.partition == ANYWHERE:
        return loss.partition.topic
    where = f"{loss.partition.topic}/{loss.partition.partition}"
    return where if loss.offset is None else f"{where} offset {loss.offset}"


def each(losses: list[Loss]) -> Iterator[Loss]:
    """In the order of offsets."""
    return iter(sorted(losses, key=lambda loss: (loss.partition, -1 if loss.offset is None else loss.offset)))
