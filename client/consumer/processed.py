"""Determines which of a consumer's records are processed, and therefore which offsets may be committed.

A record is processed when the program asks for the next one (or the next batch): until then its handler may be running. Must not commit.
The state is in `PartitionFetch`: `position`, the next offset to return; `processed`, the next to commit; `committed`, the group's offset as
far as is known. Invariant: committed <= processed <= position, except after seeks. Records below `processed` were all returned, or skipped
by a seek, or deleted, so a commit leaves no gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raftmq.client.consumer.partition_fetch import PartitionFetch
    from raftmq.types import TopicPartition


def is_at_work(partition: PartitionFetch) -> bool:
    """Return whether the program may be processing records of the partition."""
    return partition.processed != partition.position


def processed_offsets(partitions: Iterable[PartitionFetch]) -> dict[TopicPartition, int]:
    """Return the offsets for an automatic commit: those of partitions with records processed since the last commit."""
    return {
        partition.topic_partition: partition.processed
        for partition in partitions
        if partition.processed is not None and partition.processed != partition.committed
    }


def handed_out_offsets(partitions: Iterable[PartitionFetch]) -> dict[TopicPartition, int]:
    """Return the offsets for ``commit()``, whose caller declares that all returned records are processed."""
    return {
        partition.topic_partition: partition.position
        for partition in partitions
        if partition.position is not None and partition.position != partition.committed
    }
