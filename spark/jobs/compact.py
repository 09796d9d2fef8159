"""Merge the small files of an archive that result from small batches, and delete data and commits that are no longer used.

Merging replaces neighbouring entries by one, in a single commit that changes no records. Readers that have planned a read may still use the
replaced files, so these are deleted only after a retention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raftmq.spark.archive.delta_log import LOG_KEPT_MS, now_ms
from raftmq.spark.archive.entries import groups
from raftmq.spark.archive.table import ArchiveTable
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.jobs.running import EXIT_OK, EXIT_STOPPED, Stop, say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SMALL_BYTES: Final = 128 << 20
"""Smaller entries are merged, up to about this size, which suits Parquet readers as a file."""
HOUR_MS: Final = 3_600_000
KEPT_MS: Final = 168 * HOUR_MS
"""How long replaced data are kept: Delta's default."""


def compact(
    spark: SparkSession, path: str, stop: Stop, small_bytes: int = SMALL_BYTES, *, kept_ms: int = KEPT_MS
) -> int:
    """Merge neighbouring small entries, and delete data that were replaced more than `kept_ms` ago. Returns an exit code.

    Raises `InvalidOptionError` when there is no archive. After a crash the archive's contents are unchanged, and at most data to delete
    remain.
    """
    archive = ArchiveTable(spark, path)
    if archive.owner is None:
        raise InvalidOptionError(f"there is no archive in {path}: it would have data/ and _delta_log/")
    archive.convert()
    kept_since_ms = now_ms() - kept_ms
    say("deleted", folders=archive.delete_replaced(kept_since_ms))
    for group in groups(archive.entries(), small_bytes):
        if stop.is_asked:
            return EXIT_STOPPED
        tasks = max(1, sum(entry.data_bytes for entry in group) // small_bytes)
        with stop.cancels(spark):
            entry = archive.merge(group, tasks)
        say("compacted", batches=[entry.first, entry.last], records=entry.records, data_bytes=entry.data_bytes)
    commits = archive.shorten_log(kept_since_ms, now_ms() - LOG_KEPT_MS)
    say("compacted_to", entries=len(archive.entries()), deleted_commits=commits)
    return EXIT_OK
