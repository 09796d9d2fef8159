"""Copy topics from one cluster to another as they grow, each record once.

Partitions, order, keys, headers and timestamps are kept. A topic that the target lacks is created there with as many partitions. A
target topic with fewer partitions is refused. Offsets differ from the source's if the source was trimmed or the target was not empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raftmq.errors import TopicAlreadyExistsError, UnknownTopicError
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.jobs.running import Stop, describe_source, follow, require_log, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession
    from raftmq.client.admin.descriptions import TopicDescription
    from raftmq.sync import Admin


@dataclass(frozen=True, slots=True)
class MirrorSettings:
    """Hold the settings of a mirror job."""

    source_servers: str
    target_servers: str
    topics: Sequence[str]
    prefix: str
    """Prefix of topic names on the target."""
    source: Mapping[str, str]
    """More options of the source."""
    checkpoint: str
    trigger_seconds: float | None
    """Seconds between batches. None: copy the records that exist, then end."""


def mirror(spark: SparkSession, settings: MirrorSettings, stop: Stop) -> int:
    """Copy the existing records, or all records until stopped. Returns an exit code.

    Raises:
        InvalidOptionError: a topic does not exist, or has fewer partitions on the target.
        Exception: the error that ended the query, if it failed.
    """
    from pyspark.sql import functions as f

    prepare_target(settings)
    stream = (
        spark.readStream.format("raftmq")
        .option("startingOffsets", "earliest")
        .options(**settings.source)
        .option("bootstrap.servers", settings.source_servers)
        .option("subscribe", ",".join(settings.topics))
        .option("includeHeaders", "true")
        .load()
    )
    writer = (
        stream.withColumn("topic", f.concat(f.lit(settings.prefix), f.col("topic")))
        .writeStream.format("raftmq")
        .option("bootstrap.servers", settings.target_servers)
        .option("orderColumn", "offset")
        .option("timestampColumn", "timestamp")
        .option("checkpointLocation", settings.checkpoint)
    )
    if settings.trigger_seconds is None:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{settings.trigger_seconds} seconds")
    return follow(writer.start, stop, describe_source)


def prepare_target(settings: MirrorSettings) -> None:
    """Create the topics that the target lacks. Raises `InvalidOptionError`, `TopicKindMismatchError`, `BootstrapError`."""
    from raftmq.sync import Admin

    with (
        Admin(bootstrap_servers=settings.source_servers) as source,
        Admin(bootstrap_servers=settings.target_servers) as target,
    ):
        if not settings.prefix and source.describe_cluster().cluster_id == target.describe_cluster().cluster_id:
            raise InvalidOptionError(
                "source and target are the same cluster: set --prefix, or each topic would be copied into itself"
            )
        for name in settings.topics:
            there = _found(source, name)
            if there is None:
                raise InvalidOptionError(f"{settings.source_servers} has no topic {name!r}")
            require_log(there)
            copy = settings.prefix + name
            count = len(there.partitions)
            try:
                target.create_topic(copy, partitions=count)
                say("topic_created", topic=copy, partitions=count)
            except TopicAlreadyExistsError:
                here = _found(target, copy)
                if here is not None and len(here.partitions) < count:
                    raise InvalidOptionError(
                        f"{copy} has {len(here.partitions)} partitions on {settings.target_servers}, {name} has {count}"
                    ) from None


def _found(admin: Admin, name: str) -> TopicDescription | None:
    try:
        return admin.describe_topic(name)
    except UnknownTopicError:
        return None
