"""Read an archive and its live topic as one table: archived records up to the archive's end, and the topic's from there on.

Invariant: a record that the archive or the topic has is read once, and the loss of records between the two is reported.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from raftmq.spark.errors import InvalidOptionError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from raftmq.spark.archive.table import ArchiveTable

EARLIEST: Final = -2
"""The earliest offset, in the source's options."""
OWN_OPTIONS: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "browse",
    "includeHeaders",
    "includeAppendTime",
    "pushFilters",
    *(f"{side}{kind}" for side in ("starting", "ending") for kind in ("Offsets", "Timestamp", "OffsetsByTimestamp")),
)
"""Options of the source that `read_history` sets itself, or that an archive cannot serve."""
NO_BATCHES: Final = "isolation is not an option of read_history: an archive does not know where batches begin and end"


def read_history(spark: SparkSession, *, archive: str, topic: str, options: Mapping[str, str]) -> DataFrame:
    """Return all records of a topic, each once: those in its archive, and those that were written after the archive's end.

    The columns are the source's with headers, and `date`. The archive is read as it is now, the topic up to its end when Spark plans the
    read. Call it again to see later records. With the option ``columns``, only these columns are read, and `date`.

    Args:
        spark: a session with a JVM of its own, not Spark Connect.
        archive: the folder that the job ``archive`` wrote.
        topic: the topic's name.
        options: options of the source: at least ``bootstrap.servers``.

    Raises:
        InvalidOptionError: an option is missing or not allowed, or the topic ends before the archive does.
        UnknownTopicError: there is no such topic.
        RecordsLostError: records after the archive's end are gone, because they were trimmed, or the topic was deleted and created
            again. It is raised by this call, or by the action that reads the rows. With ``failOnDataLoss=false`` there is a warning.

    ::

        flights = read_history(spark, archive="/data/flights", topic="flights", options={"bootstrap.servers": "localhost:9400"})
    """
    from pyspark.sql import functions as f
    from raftmq.spark.archive.table import DATE, ArchiveTable

    lowered = {name.lower() for name in OWN_OPTIONS}
    for name in options:
        if name.lower() == "isolation":
            raise InvalidOptionError(NO_BATCHES)
        if name.lower() in lowered:
            raise InvalidOptionError(
                f"{name} is not an option of read_history, which reads one topic from its beginning"
            )
    archived = ArchiveTable(spark, archive)
    if archived.owner is None:
        raise InvalidOptionError(f"there is no archive in {archive}: it would have data/ and _delta_log/")
    starts = _starts(archived, topic, options)
    live = (
        spark.read.format("raftmq")
        .options(**options)
        .option("subscribe", topic)
        .option("includeHeaders", str("columns" not in {name.lower() for name in options}).lower())
        .option("startingOffsets", json.dumps({topic: {str(number): offset for number, offset in starts.items()}}))
        .load()
    )
    columns = live.columns
    if "timestamp" in columns:
        live = live.withColumn("date", f.expr(DATE))
        columns = [*columns, "date"]
    rows = archived.rows()
    if rows is None:
        return live
    return rows.where(f.col("topic") == topic).select(*columns).unionByName(live)


def _starts(archived: ArchiveTable, topic: str, options: Mapping[str, str]) -> dict[int, int]:
    """Return the offset at which each partition of the topic continues the archive."""
    from raftmq.errors import UnknownTopicError
    from raftmq.spark.cluster.cluster import cluster_of
    from raftmq.spark.cluster.subscriptions import Named
    from raftmq.spark.source.options import read_source_options
    from raftmq.spark.source.range_plan import report_loss

    found, _ = read_source_options({**options, "subscribe": topic}, is_streaming=False)
    views = cluster_of(found.client).topics(Named((topic,)), is_fresh=True)
    if topic not in views:
        raise UnknownTopicError(f"there is no topic {topic!r}")
    view, position = views[topic], archived.position(topic)
    if position is None:  # the topic is not archived, or an earlier release archived it
        ends = _ends(archived, topic)
        return {number: ends.get(number, 0 if ends else EARLIEST) for number in view.partitions}
    topic_id, ends = position
    if topic_id != view.topic_id:
        report_loss(
            f"{topic}: the topic was deleted and created again after it was archived, with records that may not be archived",
            found.fail_on_data_loss,
        )
        return dict.fromkeys(view.partitions, EARLIEST)
    # a partition that the archive does not know is newer, so it began at offset 0
    return {number: ends.get(number, 0) for number in view.partitions}


def _ends(archived: ArchiveTable, topic: str) -> dict[int, int]:
    """Return the offset after the last archived record of each partition, by reading the archive."""
    from pyspark.sql import functions as f

    rows = archived.rows()
    if rows is None:
        return {}
    found = rows.where(f.col("topic") == topic).groupBy("partition").agg(f.max("offset").alias("last")).collect()
    return {row["partition"]: row["last"] + 1 for row in found}
