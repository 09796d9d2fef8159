"""What of a consumer's records counts as processed, and so what may be committed.

A record is handed out, and processed when the program asks for the next one (or batch): until then its handler may be at it. Must
not commit. Kept at the partition (`PartitionFetch`): `position`, the next to hand out; `processed`, the next to commit; `committed`,
what the group has, as far as is known. Invariant: committed <= processed <= position, but for seeks; records below `processed` were
all handed out, or skipped by a seek, or deleted, so a commit leaves no gap.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raftmq.client.consumer.partition_fetch import PartitionFetch
    from raftmq.types import TopicPartition


def is_at_work(partition: PartitionFetch) -> bool:
    """Whether the program may be processing records of it."""
    return partition.processed != partition.position


def processed_offsets(partitions: Iterable[PartitionFetch]) -> dict[TopicPartition, int]:
    """What automatic commit has to commit: where something was processed since the last commit."""
    return {
        partition.topic_partition: partition.processed
        for partition in partitions
        if partition.processed is not None and partition.processed != partition.committed
    }


def handed_out_offsets(partitions: Iterable[PartitionFetch]) -> dict[TopicPartition, int]:
    """What ``commit()`` commits: who calls it says that all that was handed out is processed."""
    return {
        partition.topic_partition: partition.position
        for partition in partitions
        if partition.position is not None and partition.position != partition.committed
    }
