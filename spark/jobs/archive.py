"""Archives topics as Parquet, each record once, and merges the small files that come of small batches.

Each micro-batch becomes a folder of its own, and counts once its manifest entry is there (`manifest`): a batch that is run again after a
crash begins its folder anew. Within a folder files are in folders by topic and by the day of the records' timestamps (UTC), and
rows in the order of partitions and offsets. Compaction merges neighbouring small entries into one, without Spark's own sink metadata, under
which merging files would break readers.
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
"""Begins with the folders: otherwise Spark sorts by them once more when it writes, and that may mix up the rest."""
SMALL_BYTES: Final = 128 << 20
"""Entries below it are merged, up to about as much together: what Parquet readers like as a file."""


@dataclass(frozen=True, slots=True)
class ArchiveSettings:
    """What to archive, and where."""

    servers: str
    topics: Sequence[str]
    source: Mapping[str, str]
    """More options of the source."""
    archive: str
    checkpoint: str
    trigger_seconds: float | None
    """None: what is there, then end."""


def archive(spark: SparkSession, settings: ArchiveSettings, stop: Stop) -> int:
    """Archive what is there, or go on for ever. Returns an exit code.

    Raises:
        InvalidOptionError: a topic does not exist, or the archive was begun under another checkpoint.
        Exception: what ended the query, if it failed.
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

    is_first = True  # of this run: only then the batch may have been written before, and the manifest is worth reading

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
    """Of the query whose batch this is."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if found is None:
        raise RuntimeError("Spark did not say which query this batch belongs to")
    return str(found)


def check_owner(entries: Sequence[Entry], query: str) -> None:
    """Raise `InvalidOptionError` when batches of another checkpoint are there: their numbers mean other records."""
    for known in entries:
        if known.query_id != query:
            raise InvalidOptionError(
                f"the archive was begun under another checkpoint (query {known.query_id}): use that one, or another folder"
            )


def is_archived(entries: Sequence[Entry], batch: Entry) -> bool:
    """Whether the batch is there already. Raises `InvalidOptionError` as `check_owner` does."""
    check_owner(entries, batch.query_id)
    return any(known.first <= batch.first <= known.last for known in entries)


def _write(manifest: Manifest, entry: Entry, rows: DataFrame) -> Entry:
    from pyspark.sql import functions as f

    path = manifest.data_path(entry)
    dated = rows.withColumn("date", f.to_date(f.col("timestamp")))
    # in one pass: sorted within the tasks that read, so nothing is shuffled
    dated.sortWithinPartitions(*ORDER).write.mode("overwrite").partitionBy(*FOLDERS).parquet(path)
    spark = rows.sparkSession
    sizes = spark.read.format("binaryFile").option("recursiveFileLookup", "true").option("pathGlobFilter", "*.parquet")
    data_bytes = sizes.load(path).select(f.coalesce(f.sum("length"), f.lit(0))).head()
    # counted in what was written, which is what a reader will find
    records = spark.read.parquet(path).count() if data_bytes is not None and data_bytes[0] else 0
    complete = Entry(
        entry.first, entry.last, entry.query_id, records=records, data_bytes=int(data_bytes[0]) if data_bytes else 0
    )
    manifest.add(complete)
    return complete


def compact(spark: SparkSession, path: str, stop: Stop, small_bytes: int = SMALL_BYTES) -> int:
    """Merge neighbouring small entries, and delete what an earlier compaction replaced. Returns an exit code.

    Raises `InvalidOptionError` when there is no archive. Died in the middle, it has changed nothing, or leaves only data to be deleted.
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
            # by partition of the topic, so that a file still has its records in order
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
    """Neighbours to merge: each of them small, and together not much above."""
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
