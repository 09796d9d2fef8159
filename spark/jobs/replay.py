"""Write an archive back to topics, each record once, with its key, value, headers and timestamp, and each partition in order.

The entries of the archive are written one after another, each under its number as the writer's epoch. So an entry that was half written
at a crash is completed (`raftmq.spark.sink.writers`). The list of entries is fixed in the checkpoint when the job begins.
Offsets are new: they begin at the end of the topic.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from raftmq.spark.archive.entries import Entry
from raftmq.spark.archive.folder import Folder
from raftmq.spark.archive.table import ArchiveTable
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.jobs.running import EXIT_OK, EXIT_STOPPED, Stop, check_topics, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

PLAN: Final = "plan.json"
DONE: Final = "done.json"


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """Hold the settings of a replay job."""

    sink: Mapping[str, str]
    """Options of the sink."""
    archive: str
    checkpoint: str
    topic: str | None
    """The topic of all records. None: each record goes to the topic that it came from."""
    keeps_partitions: bool
    """Whether records keep their partitions. Otherwise partitions are chosen by key, for a topic with another number of partitions.
    The order of each key is then kept if the archived topic was partitioned by key."""
    tasks: int
    """Number of tasks into which each entry is divided."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold the plan of one replay, which is fixed when it begins."""

    writer_name: str
    tasks: int
    entries: list[Entry]
    topic: str | None


def replay(spark: SparkSession, settings: ReplaySettings, stop: Stop) -> int:
    """Write the entries that are not written yet. Returns an exit code. Raises `InvalidOptionError` and the sink's errors."""
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
    """Return the plan in the checkpoint, or a new one. Raises `InvalidOptionError` for the checkpoint of another replay."""
    text = folder.read(PLAN)
    archived = ArchiveTable(spark, settings.archive)
    if text is None:
        plan = Plan(f"replay-{uuid4()}", settings.tasks, archived.entries(), settings.topic)
        if not plan.entries:
            raise InvalidOptionError(f"there is no archive in {settings.archive}")
        folder.write(PLAN, json.dumps(asdict(plan)))
        return plan
    fields = json.loads(text)
    topic = fields.get("topic", settings.topic)  # earlier releases did not keep it
    plan = Plan(fields["writer_name"], fields["tasks"], [Entry(**entry) for entry in fields["entries"]], topic)
    if topic != settings.topic or archived.owner != plan.entries[0].query_id:
        raise InvalidOptionError(
            f"the checkpoint {settings.checkpoint} is that of a replay of another archive, or to another topic, whose finished parts would"
            " be left out: use another folder"
        )
    return plan


def _write(spark: SparkSession, settings: ReplaySettings, plan: Plan, number: int) -> None:
    entry = plan.entries[number]
    rows = ArchiveTable(spark, settings.archive).rows_of([entry])
    if rows is None:
        raise ValueError("an entry without records has no files to write")
    if (found := rows.count()) != entry.records:  # from the ends of the files
        raise RuntimeError(
            f"{entry.folder_name} in the archive has {found} of its {entry.records} records: files are missing"
        )
    columns = ["key", "value", "headers", "topic", "timestamp", "offset"]
    if settings.keeps_partitions:
        columns.append("partition")
    # One task gets all records of a partition, to keep their order. The plan fixes the number of tasks, so a rerun divides alike.
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
