"""Writes an archive back to topics, each record once: keys, values, headers, timestamps and the order of each partition as they were.

The entries of the archive are written one after the other, each under its number as the writer's epoch, so an entry that was half written
when the job died is completed (`raftmq.spark.sink`). Which entries there are is fixed when the job begins, in its checkpoint.
Offsets are new: they begin where the topic ends.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.jobs.folder import Folder
from raftmq.spark.jobs.manifest import Entry, Manifest, read_archive
from raftmq.spark.jobs.running import EXIT_OK, EXIT_STOPPED, Stop, check_topics, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

PLAN: Final = "plan.json"
DONE: Final = "done.json"


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """What to replay, and where to."""

    sink: Mapping[str, str]
    """Options of the sink."""
    archive: str
    checkpoint: str
    topic: str | None
    """Where all records go; None: to the topics that they came from."""
    keeps_partitions: bool
    """False: by key, for a topic with other partitions. The order of each key is kept, if the archive's was by key."""
    tasks: int
    """Into how many tasks each entry is divided."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What one replay writes; fixed when it begins."""

    writer_name: str
    tasks: int
    entries: list[Entry]


def replay(spark: SparkSession, settings: ReplaySettings, stop: Stop) -> int:
    """Write what is not written yet. Returns an exit code. Raises `InvalidOptionError`, or what the sink does."""
    if settings.topic is not None:
        check_topics(settings.sink["bootstrap.servers"], [settings.topic])
    folder = Folder(spark, settings.checkpoint)
    plan = _plan(spark, folder, settings)
    done = int(json.loads(folder.read(DONE) or '{"entries": 0}')["entries"])
    for number in range(done, len(plan.entries)):
        if stop.is_asked:
            return EXIT_STOPPED
        entry = plan.entries[number]
        if entry.records:
            with stop.cancels(spark):
                _write(spark, settings, plan, number)
        folder.write(DONE, json.dumps({"entries": number + 1}))
        say("replayed", entry=entry.name, records=entry.records, done=number + 1, of=len(plan.entries))
    say("complete", entries=len(plan.entries), records=sum(entry.records for entry in plan.entries))
    return EXIT_OK


def _plan(spark: SparkSession, folder: Folder, settings: ReplaySettings) -> Plan:
    """The plan in the checkpoint, or a new one."""
    text = folder.read(PLAN)
    if text is None:
        plan = Plan(f"replay-{uuid4()}", settings.tasks, Manifest(spark, settings.archive).entries())
        if not plan.entries:
            raise InvalidOptionError(f"there is no archive in {settings.archive}")
        folder.write(PLAN, json.dumps(asdict(plan)))
        return plan
    fields = json.loads(text)
    return Plan(fields["writer_name"], fields["tasks"], [Entry(**entry) for entry in fields["entries"]])


def _write(spark: SparkSession, settings: ReplaySettings, plan: Plan, number: int) -> None:
    rows = read_archive(spark, settings.archive, [plan.entries[number]])
    columns = ["key", "value", "headers", "topic", "timestamp", "offset"]
    if settings.keeps_partitions:
        columns.append("partition")
    # a partition's records are in one task, or their order would be lost; the number of tasks is fixed, so a replay has the same
    writer = (
        rows.repartition(plan.tasks, "topic", "partition")
        .select(*columns)
        .write.format("raftmq")
        .mode("append")
        .options(**settings.sink)
        .option("orderColumn", "offset")
        .option("timestampColumn", "timestamp")
        .option("writerName", plan.writer_name)
        .option("writerEpoch", str(number))
    )
    if settings.topic is not None:
        writer = writer.option("topic", settings.topic)
    writer.save()
