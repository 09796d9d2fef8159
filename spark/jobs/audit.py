"""Check topics for gaps and repetitions of offsets, duplicates and the order of each key, and count records per hour.

All checks are shuffles or windows by key, so more data than one machine holds can be audited. The driver gets a row for each
partition, and a bounded number of examples and hours. With a checkpoint, an audit begins at the end of the last one and checks
duplicates and order within the new records only. Recoveries of lost majorities are reported, because they leave no gap behind. Must not
change any topic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from raftmq.spark.archive.folder import Folder
from raftmq.spark.archive.table import DATE
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.jobs.running import EXIT_OK, EXIT_STOPPED, EXIT_VIOLATION, Stop, check_topics, say

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from raftmq.client.admin.recovery import PartitionRecovery

ENDS: Final = "ends.json"
TOPICS: Final = "topics.json"
"""The ids of the topics to which the ends belong. A topic that was deleted and created again has another one."""
RECOVERIES: Final = "recoveries.json"
"""The recoveries that earlier audits have reported."""
SAMPLES: Final = 10
"""Number of examples of each kind of violation."""
SAMPLE_BYTES: Final = 200
"""Bytes of a key or value shown in an example."""
HOURS_MAX: Final = 10_000
"""Number of hours reported, the latest ones. Producers may write any timestamps, so there can be as many hours as records."""
HOUR: Final = f"CASE WHEN ({DATE}) IS NOT NULL THEN CAST(date_trunc('HOUR', timestamp) AS STRING) END"
"""The hour of a record's timestamp (UTC) as SQL, as text because Python would show it in its own zone. Null outside the years 1 to 9999."""


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """Hold the settings of an audit."""

    servers: str
    topics: Sequence[str]
    source: Mapping[str, str]
    """More options of the source, without offsets."""
    duplicates_by: str | None
    """``key``, ``value`` or ``header:NAME``, which must differ between the records of a topic. None: not checked."""
    order_by: str | None
    """``timestamp`` or ``header:NAME`` (a number), which must never fall within a key. None: not checked."""
    checkpoint: str | None
    accepts_recoveries: bool = False
    """Whether records that a recovery of a partition has lost are reported and are no violation."""


@dataclass
class Findings:
    """Collect the findings of an audit."""

    records: int = 0
    partitions: int = 0
    violations: dict[str, int] = field(default_factory=dict)
    """Number of violations of each kind."""
    samples: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    """Examples of each kind of violation."""

    def add(self, kind: str, found: DataFrame) -> None:
        """Record the rows of `found`, each of which is a violation."""
        counted = found.count()
        if counted:
            self.violations[kind] = counted
            self.samples[kind] = [row.asDict(recursive=True) for row in found.limit(SAMPLES).collect()]

    def add_one(self, kind: str, count: int, sample: dict[str, object]) -> None:
        """Record `count` violations, with one example of them."""
        self.violations[kind] = self.violations.get(kind, 0) + count
        samples = self.samples.setdefault(kind, [])
        if len(samples) < SAMPLES:
            samples.append(sample)


def audit(spark: SparkSession, settings: AuditSettings, stop: Stop) -> int:
    """Audit topics and report the findings. Returns an exit code, 6 for violations. Raises `InvalidOptionError`."""
    identity = _identity(settings.duplicates_by)
    position = _position(settings.order_by)
    check_topics(settings.servers, settings.topics)
    starts = _starts(spark, settings)
    recovered = _recoveries(settings)
    unseen = [one for one in recovered if _mark_of(one) not in _seen_recoveries(spark, settings)]
    findings = Findings()
    _check_recoveries(unseen, starts, findings, is_accepted=settings.accepts_recoveries)
    # fix the ends now: all passes below must see the same records, even if more are written
    ends, topic_ids = _ends(settings)
    reader = (
        spark.read.format("raftmq")
        .options(**settings.source)
        .option("bootstrap.servers", settings.servers)
        .option("subscribe", ",".join(settings.topics))
        .option("startingOffsets", json.dumps(starts) if starts else "earliest")
        .option("endingOffsets", json.dumps(ends))
    )

    def rows(*columns: str) -> DataFrame:
        return reader.option("columns", ",".join(("topic", "partition", "offset", *columns))).load()

    passes: dict[str, Callable[[], None]] = {"offsets": lambda: _check_offsets(rows(), starts, ends, findings)}
    if identity is not None:
        passes["duplicates"] = lambda: _check_duplicates(rows(identity.column), identity, findings)
    if position is not None:
        columns = dict.fromkeys(("key", position.column))
        passes["order"] = lambda: _check_order(rows(*columns), position, findings)
    with stop.cancels(spark):
        for name, check in passes.items():
            if stop.is_asked:
                return EXIT_STOPPED
            check()
            say("checked", check=name, violations=sum(findings.violations.values()))
        _report_hours(rows("timestamp"))
    say(
        "audited",
        records=findings.records,
        partitions=findings.partitions,
        violations=findings.violations,
        samples=findings.samples,
    )
    if findings.violations:
        return EXIT_VIOLATION
    if settings.checkpoint is not None:
        folder = Folder(spark, settings.checkpoint)
        # the ends come first: a crash between the two repeats a report instead of losing one
        folder.write(ENDS, json.dumps(ends, sort_keys=True))
        folder.write(TOPICS, json.dumps(topic_ids, sort_keys=True))
        folder.write(RECOVERIES, json.dumps([_mark_of(one) for one in recovered]))
    return EXIT_OK


Offsets = dict[str, dict[str, int]]
"""Offsets by topic and partition, in the form of the source's options."""


def _starts(spark: SparkSession, settings: AuditSettings) -> Offsets:
    if settings.checkpoint is None:
        return {}
    folder = Folder(spark, settings.checkpoint)
    found: Offsets = json.loads(folder.read(ENDS) or "{}")
    if not found:
        return {}
    known: dict[str, int] = json.loads(folder.read(TOPICS) or "{}")  # earlier releases did not keep them
    ends, topic_ids = _ends(settings)
    same = {topic: found.get(topic, {}) for topic, number in topic_ids.items() if known.get(topic, number) == number}
    # topics and partitions created since begin at their earliest offset
    return {
        topic: {partition: same.get(topic, {}).get(partition, -2) for partition in partitions}
        for topic, partitions in ends.items()
    }


def _ends(settings: AuditSettings) -> tuple[Offsets, dict[str, int]]:
    """Return the ends of all partitions, and the id of each topic."""
    from raftmq.sync import Admin, Consumer
    from raftmq.types import TopicPartition

    servers = settings.servers
    with Admin(bootstrap_servers=servers) as admin, Consumer(bootstrap_servers=servers) as consumer:
        found: Offsets = {}
        topic_ids: dict[str, int] = {}
        for topic in settings.topics:
            about = admin.describe_topic(topic)
            topic_ids[topic] = about.topic_id
            ends = consumer.end_offsets([TopicPartition(topic, n) for n in range(len(about.partitions))])
            found[topic] = {str(partition.partition): offset for partition, offset in ends.items()}
        return found, topic_ids


def _recoveries(settings: AuditSettings) -> list[PartitionRecovery]:
    """Return the recoveries of the topics' partitions that the cluster remembers."""
    from raftmq.sync import Admin

    with Admin(bootstrap_servers=settings.servers) as admin:
        return [one for topic in settings.topics for one in admin.list_lost_partitions(topic).recoveries]


def _mark_of(recovery: PartitionRecovery) -> list[object]:
    """Return values that identify a recovery, as they are stored."""
    return [recovery.topic, recovery.partition, recovery.leader_epoch, recovery.recovered_at_ms]


def _seen_recoveries(spark: SparkSession, settings: AuditSettings) -> list[list[object]]:
    if settings.checkpoint is None:
        return []
    found: list[list[object]] = json.loads(Folder(spark, settings.checkpoint).read(RECOVERIES) or "[]")
    return found


def _check_recoveries(
    unseen: Sequence[PartitionRecovery], starts: Offsets, findings: Findings, *, is_accepted: bool
) -> None:
    """Report recoveries that no earlier audit has reported, and count the records that they are known to have lost.

    Other records may have the lost offsets by now, so the rows of the topic do not show the loss. Records that the last audit has read
    and that are gone are a loss, too. The audit then begins at the end of the kept records.
    """
    for recovery in unseen:
        topic, partition, end = recovery.topic, str(recovery.partition), recovery.log_end_offset
        start = starts.get(topic, {}).get(partition, -2)
        lost = max(recovery.known_loss, start - end)
        about = {
            "topic": topic,
            "partition": recovery.partition,
            "kept_end_offset": end,
            "lost_records": max(0, lost),
            "recovered_at_ms": recovery.recovered_at_ms,
        }
        say(
            "recovered",
            **about,
            reason="records from this offset on may be missing: the partition had lost its majority",
        )
        if lost > 0 and not is_accepted:
            findings.add_one("lost_records", lost, about)
        if start > end:
            starts[topic][partition] = end


def _check_offsets(rows: DataFrame, starts: Offsets, ends: Offsets, findings: Findings) -> None:
    """Check that each partition is dense: every offset from its first to its end exists, and none of them twice."""
    from pyspark.sql import functions as f

    per_partition = rows.groupBy("topic", "partition").agg(
        f.count("*").alias("records"),
        f.count_distinct("offset").alias("distinct_offsets"),
        f.min("offset").alias("first"),
        f.max("offset").alias("last"),
    )
    found = {(row["topic"], row["partition"]): row for row in per_partition.toLocalIterator()}
    findings.records = sum(row["records"] for row in found.values())
    findings.partitions = sum(map(len, ends.values()))
    for topic, partitions in ends.items():
        for partition, end in partitions.items():
            row = found.get((topic, int(partition)))
            start = starts.get(topic, {}).get(partition, -2)
            kinds = _offset_violations(row.asDict() if row is not None else None, start, end)
            for kind, count in kinds.items():
                sample = {"topic": topic, "partition": int(partition), "start": start, "end": end}
                findings.add_one(kind, count, sample | (row.asDict() if row is not None else {}))


def _offset_violations(row: Mapping[str, int] | None, start: int, end: int) -> dict[str, int]:
    if row is None:
        # all offsets are missing if the start is explicit; otherwise retention may have removed them
        return {"missing_offsets": end - start} if 0 <= start < end else {}
    first = row["first"] if start < 0 else start
    kinds = {
        "missing_offsets": end - first - row["distinct_offsets"],
        "repeated_offsets": row["records"] - row["distinct_offsets"],
    }
    return {kind: count for kind, count in kinds.items() if count > 0}


class Part(NamedTuple):
    """Define a part of each record that is compared."""

    column: str
    """The column of the source."""
    value: Callable[[], Column]
    """Creates the part's column. Call it when a session exists."""


def _identity(text: str | None) -> Part | None:
    from pyspark.sql import functions as f

    if text is None:
        return None
    if text in ("key", "value"):
        return Part(text, lambda: f.col(text))
    return _header(text, "--duplicates-by is key, value or header:NAME")


def _position(text: str | None) -> Part | None:
    from pyspark.sql import functions as f

    if text is None:
        return None
    if text == "timestamp":
        return Part(text, lambda: f.col(text))
    header = _header(text, "--order-by is timestamp or header:NAME")
    # A header that is not a number fails the job with an error. Skipping it would pass unchecked records.
    return Part(header.column, lambda: header.value().cast("string").cast("decimal(38,9)"))


def _header(text: str, rule: str) -> Part:
    from pyspark.sql import functions as f

    kind, _, name = text.partition(":")
    if kind != "header" or not name:
        raise InvalidOptionError(f"{rule}, not {text!r}")

    def value() -> Column:
        named = f.filter("headers", lambda header: header["key"] == f.lit(name))
        return f.when(f.size(named) > 0, f.element_at(named, 1)["value"])

    return Part("headers", value)


def _check_duplicates(rows: DataFrame, identity: Part, findings: Findings) -> None:
    from pyspark.sql import functions as f

    named = rows.select("topic", "partition", "offset", identity.value().alias("identity")).where(
        "identity IS NOT NULL"
    )
    groups = named.groupBy("topic", "identity").agg(
        f.count("*").alias("records"),
        f.min(f.struct("partition", "offset")).alias("first"),
        f.max(f.struct("partition", "offset")).alias("last"),
    )
    findings.add("duplicates", _shown(groups.where("records > 1"), "identity"))


def _check_order(rows: DataFrame, position: Part, findings: Findings) -> None:
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    keyed = rows.where("key IS NOT NULL").select(
        "topic", "partition", "key", "offset", position.value().alias("position")
    )
    keyed = keyed.where("position IS NOT NULL")
    in_key = Window.partitionBy("topic", "partition", "key").orderBy("offset")
    before = keyed.withColumn("position_before", f.lag("position").over(in_key)).where("position < position_before")
    as_text = {name: f.col(name).cast("string") for name in ("position", "position_before")}  # Python has no year 10000
    findings.add("out_of_order", _shown(before.withColumns(as_text), "key"))


def _shown(rows: DataFrame, column: str) -> DataFrame:
    """Replace a binary column by its beginning as text."""
    from pyspark.sql import functions as f

    return rows.withColumn(column, f.substring(column, 1, SAMPLE_BYTES).cast("string"))


def _report_hours(rows: DataFrame) -> None:
    from pyspark.sql import functions as f

    hours = rows.groupBy("topic", f.expr(HOUR).alias("hour")).count()
    latest = hours.orderBy(f.desc("hour"), "topic").limit(HOURS_MAX + 1).collect()
    if len(latest) > HOURS_MAX:
        say("hours_left_out", after=HOURS_MAX, reason="only the latest are shown")
    for row in reversed(latest[:HOURS_MAX]):
        say("hour", topic=row["topic"], hour=row["hour"], records=row["count"])
