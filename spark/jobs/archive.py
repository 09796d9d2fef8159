"""Archive topics as Parquet, each record once, and merge the small files that result from small batches.

Each micro-batch becomes a folder of its own, which is part of the archive when its manifest entry exists (`manifest`). A batch that is
run again after a crash replaces its folder. Within it, files are in folders by topic and by the day of the records' timestamps (UTC),
with rows in the order of partitions and offsets. Compaction merges neighbouring small entries into one. The archive does without
Spark's own sink metadata, under which merging files would break readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.jobs.manifest import DATA, Entry, Manifest, read_archive
from raftmq.spark.jobs.running import EXIT_OK, EXIT_STOPPED, Stop, check_topics, describe_source, follow, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

FOLDERS: Final = ("topic", "date")
ORDER: Final = (*FOLDERS, "partition", "offset")
"""The order of rows. It begins with the folders: otherwise Spark sorts by them again on writing, which may disturb the rest."""
SMALL_BYTES: Final = 128 << 20
"""Smaller entries are merged, up to about this size, which suits Parquet readers as a file."""


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """Hold the settings of an archive job."""

    servers: str
    topics: Sequence[str]
    source: Mapping[str, str]
    """More options of the source."""
    archive: str
    checkpoint: str
    trigger_seconds: float | None
    """Seconds between batches. None: archive the records that exist, then end."""


def archive(spark: SparkSession, settings: ArchiveSettings, stop: Stop) -> int:
    """Archive the existing records, or all records until stopped. Returns an exit code.

    Raises:
        InvalidOptionError: a topic does not exist, or the archive was begun under another checkpoint.
        Exception: the error that ended the query, if it failed.
    """
    check_topics(settings.servers, settings.topics)
    manifest = Manifest(spark, settings.archive)
    stream = (
        spark.readStream.format("raftmq")
        .option("startingOffsets", "earliest")
        .options(**settings.source)
        .option("bootstrap.servers", settings.servers)
        .option("subscribe", ",".join(settings.topics))
        .option("includeHeaders", "true")
        .load()
    )

    is_first = True  # only the first batch of a run may have been written before, so only it needs the manifest

    def write(batch: DataFrame, batch_id: int) -> None:
        nonlocal is_first
        entry = Entry(batch_id, batch_id, query_id(batch), records=0, data_bytes=0)
        if not (is_first and is_archived(manifest.entries(), entry)):
            _write(manifest, entry, batch)
        is_first = False

    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", settings.checkpoint)
    if settings.trigger_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{settings.trigger_seconds} seconds")

    def start() -> StreamingQuery:
        query = writer.start()
        try:
            check_owner(manifest.entries(), str(query.id))
        except InvalidOptionError:
            query.stop()
            raise
        return query

    code = follow(start, stop, describe_source)
    entries = manifest.entries()
    say("archived", entries=len(entries), records=sum(entry.records for entry in entries))
    return code


def query_id(batch: DataFrame) -> str:
    """Return the id of the query that the batch belongs to."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if found is None:
        raise RuntimeError("Spark did not say which query this batch belongs to")
    return str(found)


def check_owner(entries: Sequence[Entry], query: str) -> None:
    """Raise `InvalidOptionError` for entries of another checkpoint, whose batch numbers mean other records."""
    for known in entries:
        if known.query_id != query:
            raise InvalidOptionError(
                f"the archive was begun under another checkpoint (query {known.query_id}): use that one, or another folder"
            )


def is_archived(entries: Sequence[Entry], batch: Entry) -> bool:
    """Return whether the batch is already archived. Raises `InvalidOptionError` as `check_owner` does."""
    check_owner(entries, batch.query_id)
    return any(known.first <= batch.first <= known.last for known in entries)


def _write(manifest: Manifest, entry: Entry, rows: DataFrame) -> Entry:
    from pyspark.sql import functions as f

    path = manifest.data_path(entry)
    dated = rows.withColumn("date", f.to_date(f.col("timestamp")))
    # in one pass: rows are sorted within the reading tasks, so nothing is shuffled
    dated.sortWithinPartitions(*ORDER).write.mode("overwrite").partitionBy(*FOLDERS).parquet(path)
    spark = rows.sparkSession
    sizes = spark.read.format("binaryFile").option("recursiveFileLookup", "true").option("pathGlobFilter", "*.parquet")
    data_bytes = sizes.load(path).select(f.coalesce(f.sum("length"), f.lit(0))).head()
    # count the written records, because a reader will find those
    records = spark.read.parquet(path).count() if data_bytes is not None and data_bytes[0] else 0
    complete = Entry(
        entry.first, entry.last, entry.query_id, records=records, data_bytes=int(data_bytes[0]) if data_bytes else 0
    )
    manifest.add(complete)
    return complete


def compact(spark: SparkSession, path: str, stop: Stop, small_bytes: int = SMALL_BYTES) -> int:
    """Merge neighbouring small entries, and delete data that an earlier compaction replaced. Returns an exit code.

    Raises `InvalidOptionError` when there is no archive. After a crash the archive's contents are unchanged, and at most data to delete
    remain.
    """
    manifest = Manifest(spark, path)
    entries = manifest.entries()
    if not entries:
        raise InvalidOptionError(f"there is no archive in {path}: it would have {DATA}/ and a manifest")
    deleted = manifest.delete_replaced()
    say("deleted", folders=deleted)
    for group in groups(entries, small_bytes):
        if stop.is_asked:
            return EXIT_STOPPED
        merged = Entry(group[0].first, group[-1].last, group[0].query_id, records=0, data_bytes=0)
        records = sum(known.records for known in group)
        if records:
            rows = read_archive(spark, path, group).drop("date")
            tasks = max(1, sum(known.data_bytes for known in group) // small_bytes)
            # divide by the topic's partitions, so that a file still has its records in order
            with stop.cancels(spark):
                entry = _write(manifest, merged, rows.repartition(tasks, "topic", "partition"))
            if entry.records != records:
                raise RuntimeError(f"{entry.name} has {entry.records} records, its parts {records}")
        else:
            entry = Entry(merged.first, merged.last, merged.query_id, records=0, data_bytes=0)
            manifest.add(entry)
        say("compacted", batches=[entry.first, entry.last], records=records, data_bytes=entry.data_bytes)
    say("compacted_to", entries=len(manifest.entries()))
    return EXIT_OK


def groups(entries: Sequence[Entry], small_bytes: int) -> Iterator[list[Entry]]:
    """Yield groups of neighbours to merge. Each entry, and each group in all, is at most `small_bytes`."""
    group: list[Entry] = []
    for entry in entries:
        size = sum(known.data_bytes for known in group)
        if group and (entry.data_bytes >= small_bytes or size + entry.data_bytes > small_bytes):
            if len(group) > 1:
                yield group
            group = []
        if entry.data_bytes < small_bytes:
            group.append(entry)
    if len(group) > 1:
        yield group
