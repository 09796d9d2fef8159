"""Archive topics as a Delta table, each record once.

Each micro-batch is written to a folder of its own and added by one commit to the table's log (`ArchiveTable`). A batch that runs again
after a crash finds its number in the log, or is written again to another folder. Within a folder, files are in folders by topic and by
the day of the records' timestamps (UTC), with rows in the order of partitions and offsets. The archive does without Spark's own sink
metadata, under which merging files would break readers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raftmq.spark.archive.folder import Folder
from raftmq.spark.archive.table import ArchiveTable
from raftmq.spark.base.offsets import Position, position_from_json
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.jobs.running import Stop, check_topics, describe_source, follow, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CHECKPOINT: Final = "_checkpoint"
"""Folder of the checkpoint. Programs that delete unused files of Delta tables leave names that begin with a _ alone."""
OLD_CHECKPOINT: Final = "checkpoint"
OFFSETS: Final = "offsets"
"""Folder in a checkpoint, with a file for each batch. Its last line is the position of the query's only source after the batch."""


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
        InvalidOptionError: a topic does not exist, or the archive was begun under another checkpoint, or one of the two is older.
        Exception: the error that ended the query, if it failed.
    """
    check_topics(settings.servers, settings.topics)
    table = ArchiveTable(spark, settings.archive)
    stream = (
        spark.readStream.format("raftmq")
        .option("startingOffsets", "earliest")
        .options(**settings.source)
        .option("bootstrap.servers", settings.servers)
        .option("subscribe", ",".join(settings.topics))
        .option("includeHeaders", "true")
        .load()
    )

    def write(batch: DataFrame, batch_id: int) -> None:
        query = query_id(batch)
        position = position_after(spark, settings.checkpoint, batch_id)
        if not table.is_archived(query, batch_id, position):
            table.add_batch(batch, query, batch_id, position)

    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", settings.checkpoint)
    if settings.trigger_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{settings.trigger_seconds} seconds")

    def start() -> StreamingQuery:
        query = writer.start()
        try:
            table.check_owner(str(query.id))
        except InvalidOptionError:
            query.stop()
            raise
        return query

    code = follow(start, stop, describe_source)
    entries = ArchiveTable(spark, settings.archive).entries()
    say("archived", entries=len(entries), records=sum(entry.records for entry in entries))
    return code


def query_id(batch: DataFrame) -> str:
    """Return the id of the query that the batch belongs to."""
    found = batch.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
    if found is None:
        raise RuntimeError("Spark did not say which query this batch belongs to")
    return str(found)


def position_after(spark: SparkSession, checkpoint: str, batch: int) -> Position:
    """Return the query's position after a batch, which Spark writes to the checkpoint before the batch runs."""
    place = f"{checkpoint}/{OFFSETS}"
    text = Folder(spark, place).read(str(batch))
    if text is None:
        raise RuntimeError(f"{place}/{batch} does not exist, but Spark runs this batch")
    *_, last = text.splitlines()
    found = json.loads(last)
    return position_from_json(found)


def default_checkpoint(spark: SparkSession, archive: str) -> str:
    """Return the checkpoint folder of an archive whose job names none. Earlier releases gave it a name that programs may delete."""
    root = archive.rstrip("/")
    name = OLD_CHECKPOINT if OLD_CHECKPOINT in Folder(spark, root).names() else CHECKPOINT
    return f"{root}/{name}"
