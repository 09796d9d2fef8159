"""A purge or a redrive of many messages, as `Queue.jobs` shows it, and its id as text. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from raftmq.errors import InvalidArgumentError
from raftmq.proto import queue_pb2 as pb

JobKindName = Literal["purge", "redrive", "other"]
"""``other``: a kind that only a newer broker knows."""
_KINDS: Final[dict[int, JobKindName]] = {pb.PURGE_JOB: "purge", pb.REDRIVE_JOB: "redrive"}
_TEXT: Final = re.compile(r"(\d{1,10})-(\d{1,19})", re.ASCII)
_PARTITION_MAX: Final = (1 << 32) - 1
_NUMBER_MAX: Final = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class QueueJob:
    """Work of one partition's leader on many messages. A `Queue.purge` or `Queue.redrive` starts one in each partition."""

    partition: int
    number: int
    kind: JobKindName
    done_count: int
    """The messages that it has deleted or redriven so far."""
    is_finished: bool
    """Leaders remember the jobs that ended with them for a while."""

    @property
    def id(self) -> str:
        """Its name within the topic, such as ``"0-7"``: `Queue.cancel_job` takes it."""
        return f"{self.partition}-{self.number}"


def read_job(partition: int, job: pb.QueueJob) -> QueueJob:
    """Return a job of an answer."""
    return QueueJob(partition, job.job, _KINDS.get(job.kind, "other"), job.done_count, job.is_finished)


def parse_job(job: object) -> tuple[int, int]:
    """Return the partition and the number of a job, or of its id. Raises `TypeError` or `InvalidArgumentError`."""
    if isinstance(job, QueueJob):
        return job.partition, job.number
    if not isinstance(job, str):
        raise TypeError(f"a job must be a QueueJob or its id, not {type(job).__name__}")
    found = _TEXT.fullmatch(job)
    partition, number = map(int, found.groups()) if found is not None else (-1, -1)
    if not 0 <= partition <= _PARTITION_MAX or not 0 <= number <= _NUMBER_MAX:
        raise InvalidArgumentError(f"{job[:80]!r} is not the id of a job, such as '0-7'")
    return partition, number
