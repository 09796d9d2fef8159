"""Finds committed records that readers should have seen and did not. One search serves three anomalies, which differ in the proof.

A record is certainly committed when its send is acknowledged, or when anybody has read it. A record that a trim or a deletion of the
topic may have removed must not be reported, nor one that a recovery from a replica without it may have lost.
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
"""The partition number of a record whose acknowledgement does not name its partition."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A committed record that was not read."""

    partition: Partition
    value: str
    offset: int | None
    """The record's offset. None if only the partition is known."""
    committed_at: int
    """The event that proves that the record was committed."""
    invoked_at: int | None
    """The beginning of its send."""
    missed_at: int
    """The event that proves that the record should have been read."""
    missed_by: str


class _Committed(NamedTuple):
    """A record that is certainly committed. The fields are those of `Loss`."""

    value: str
    offset: int | None
    committed_at: int
    invoked_at: int


@dataclass(slots=True)
class Losses:
    """The result of the search. Each record is in one list only."""

    passed: list[Loss] = field(default_factory=list)
    """A reader went past the record's place."""
    beyond: list[Loss] = field(default_factory=list)
    """A complete reading of the partition ended before the record's place, or the place is unknown."""
    waiting: list[Loss] = field(default_factory=list)
    """Nobody read the record, and no reading of the partition was complete, though one was tried until it was given up."""


@dataclass(slots=True)
class _Reading:
    """The records of one partition that a `read_all` saw."""

    values: set[str] = field(default_factory=set)
    highest: int = -1


def search(history: History, walked: Walk) -> Losses:
    """Find the missing records."""
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


# --------------------------------------------------------------------------------------------------- committed records


def _committed_by_partition(history: History) -> dict[Partition, list[_Committed]]:
    """Return every record that is certainly committed and cannot have been removed."""
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
        if _bound(history, partition) > 0:
            records = [record for record in records if not _may_be_trimmed(history, partition, record.offset)]
        found[partition] = [record for record in records if not _may_be_lost(history, partition, record)]
    return found


def _may_be_lost(history: History, partition: Partition, record: _Committed) -> bool:
    """Return whether a recovery may have lost the record, of any of the topic's partitions if its own is unknown."""
    places = [partition]
    if partition.partition == ANYWHERE:
        places = [known for known in history.partitions if known.topic == partition.topic]
    return any(history.may_be_lost(place, record.offset, record.invoked_at) for place in places)


def _may_be_trimmed(history: History, partition: Partition, offset: int | None) -> bool:
    bound = _bound(history, partition)
    return bound > 0 if offset is None else offset < bound


def _bound(history: History, partition: Partition) -> float:
    """Return the offset below which records may have been trimmed. For `ANYWHERE` it is the highest one of the topic's partitions."""
    if partition.partition != ANYWHERE:
        return history.trimmed_before(partition)
    return max(
        (table.trimmed_before for known, table in history.partitions.items() if known.topic == partition.topic),
        default=0,
    )


# ------------------------------------------------------------------------------------------------------ missed records


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
    """Return the topics whose known partitions were all read: a record of theirs that was not read is missing, wherever it was."""
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
    """Find records whose offsets a reader went through, but whose values nobody ever read."""
    if not stretches or history.recoveries(partition):  # nobody read this partition, or its offsets were assigned twice
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
    table = history.partitions.get(partition)
    return set() if table is None else {value for _, value, _ in table.reads}


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
    """Describe the place of a lost record."""
    if loss.partition.partition == ANYWHERE:
        return loss.partition.topic
    where = f"{loss.partition.topic}/{loss.partition.partition}"
    return where if loss.offset is None else f"{where} offset {loss.offset}"


def each(losses: list[Loss]) -> Iterator[Loss]:
    """Iterate over losses in the order of their offsets."""
    return iter(sorted(losses, key=lambda loss: (loss.partition, -1 if loss.offset is None else loss.offset)))
