"""Represent the messages that one batch of a query has leased, and convert them to and from the JSON that Spark keeps as an offset.

A queue has no offsets. The end of a batch names the leases of its messages instead: the tokens with which they are settled. Spark logs it
before the batch runs, so a batch that is run again has the same messages. Nobody else has these tokens, so two batches never have equal ends.
The shape is ``{"@leases": 1, "@cluster": "…", "jobs": {"0": "100+500,3#2@17", "topic_id": 3}}``, with the Raft group of the leases after the ``@``.
Must not import Spark or call the cluster.

Invariants: equal leases are equal JSON, because Spark compares the texts. A text has about three bytes for each run of neighboring messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from raftmq.spark.base.offsets import TOPIC_ID_KEY

LEASES_KEY: Final = "@leases"
"""Marks the offsets of a query of queue topics. No topic can have this name."""
CLUSTER_KEY: Final = "@cluster"
"""Names the cluster whose messages these are: another one has the same topic ids."""
_FORMAT: Final = 1
_RUN: Final = re.compile(r"(-?\d+)(?:\+(\d+))?(?:#(\d+))?")

LeasesJson = dict[str, "int | str | dict[str, int | str]"]


class LeaseRun(NamedTuple):
    """Leased messages with neighboring sequences and equal lease numbers."""

    first_sequence: int
    message_count: int
    lease_number: int


class PartitionName(NamedTuple):
    """A partition of one incarnation of a queue topic."""

    topic: str
    topic_id: int
    partition: int


@dataclass(frozen=True, slots=True)
class BatchLeases:
    """Hold the leases of one batch's messages."""

    runs: Mapping[PartitionName, tuple[LeaseRun, ...]]
    cluster_id: str = ""
    groups: Mapping[PartitionName, int] = field(default_factory=dict)
    """The Raft group that leased a partition's messages. A recovery of the partition gives it another one, in which lost tokens are given again.
    Missing: not known."""

    @property
    def count(self) -> int:
        """Return the number of messages."""
        return sum(run.message_count for runs in self.runs.values() for run in runs)

    def to_json(self) -> LeasesJson:
        """Return the leases in the form that Spark keeps."""
        written: LeasesJson = {LEASES_KEY: _FORMAT}
        if self.cluster_id:
            written[CLUSTER_KEY] = self.cluster_id
        for (topic, topic_id), names in groupby(sorted(self.runs), key=lambda name: (name.topic, name.topic_id)):
            partitions: dict[str, int | str] = {
                str(name.partition): _text_of(self.runs[name])
                + (f"@{self.groups[name]}" if name in self.groups else "")
                for name in names
            }
            written[topic] = partitions | {TOPIC_ID_KEY: topic_id}
        return written


NO_LEASES: Final = BatchLeases({})
"""The start of a query's first batch."""


def leases_from_json(written: Mapping[str, object]) -> BatchLeases:
    """Return the leases that `BatchLeases.to_json` wrote. Raises `ValueError` for anything else."""
    if written.get(LEASES_KEY) != _FORMAT:
        raise ValueError(
            "the checkpoint is not that of a query of queue topics, or a later version wrote it: use another checkpoint"
        )
    runs: dict[PartitionName, tuple[LeaseRun, ...]] = {}
    groups: dict[PartitionName, int] = {}
    for topic, partitions in written.items():
        if topic in {LEASES_KEY, CLUSTER_KEY}:
            continue
        if not isinstance(partitions, Mapping):
            raise ValueError(f"{topic!r} in the offsets of a query has no leases: {partitions!r}")  # noqa: TRY004
        topic_id = int(partitions[TOPIC_ID_KEY])
        for partition, text in partitions.items():
            if partition != TOPIC_ID_KEY:
                name = PartitionName(topic, topic_id, int(partition))
                tokens, _, group = str(text).partition("@")
                runs[name] = tuple(_runs_of(tokens))
                if group:
                    groups[name] = int(group)
    return BatchLeases(runs, str(written.get(CLUSTER_KEY, "")), groups)


def joined_runs(tokens: Iterable[tuple[int, int]]) -> tuple[LeaseRun, ...]:
    """Return the runs of some (sequence, lease number)."""
    runs: list[LeaseRun] = []
    for sequence, lease_number in sorted(tokens):
        last = runs[-1] if runs else None
        if last and last.lease_number == lease_number and last.first_sequence + last.message_count == sequence:
            runs[-1] = last._replace(message_count=last.message_count + 1)
        else:
            runs.append(LeaseRun(sequence, 1, lease_number))
    return tuple(runs)


def portions(runs: Iterable[LeaseRun], messages_max: int) -> Iterator[list[LeaseRun]]:
    """Divide runs into portions of at most `messages_max` messages, in their order."""
    portion: list[LeaseRun] = []
    room = messages_max
    for whole in runs:
        run = whole
        while run.message_count:
            taken = min(run.message_count, room)
            portion.append(run._replace(message_count=taken))
            run = LeaseRun(run.first_sequence + taken, run.message_count - taken, run.lease_number)
            room -= taken
            if not room:
                yield portion
                portion, room = [], messages_max
    if portion:
        yield portion


def _text_of(runs: Iterable[LeaseRun]) -> str:
    """Return runs as text: the distance from the end of the run before, the count and the lease number, if they are not 1."""
    parts, end = [], 0
    for run in runs:
        count = f"+{run.message_count}" if run.message_count != 1 else ""
        number = f"#{run.lease_number}" if run.lease_number != 1 else ""
        parts.append(f"{run.first_sequence - end}{count}{number}")
        end = run.first_sequence + run.message_count
    return ",".join(parts)


def _runs_of(text: str) -> Iterator[LeaseRun]:
    end = 0
    for part in text.split(","):
        found = _RUN.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} in the offsets of a query is not a run of leases")
        distance, count, number = (int(group or 1) for group in found.groups())
        yield LeaseRun(end + distance, count, number)
        end += distance + count
