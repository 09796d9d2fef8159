"""Measure how long small micro-batches take: a record for each of four partitions, copied from topic to topic. Must not format.

A record is sent to each partition, and when the query has copied them, the next ones are. Spark reports how long each batch took, and its
parts. Sources that need no records run one batch after another.

Some ways run once more with `QUICK_CHECKPOINTS`, or with one task for all partitions.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, Final  # Any: pyspark's session and frames have several classes

from raftmq import sync

from bench.report import RAFTMQ
from bench.spark.floors import NothingSink, ReadySource
from bench.spark.kafka_topics import PARTITIONS, REPLICAS, KafkaTopics

if TYPE_CHECKING:
    from bench.spark.ways import Way

FIGURE: Final = "micro_batch"
WARM_UP: Final = 8
"""Batches of each query that are not counted: its Python workers start, and the JVM compiles its code."""
BATCHES: Final = 20
POLL_SECONDS: Final = 0.5
VALUE: Final = b"x" * 100
QUICK_CHECKPOINTS: Final = (
    "spark.sql.streaming.checkpointFileManagerClass",
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
)
"""The setting for checkpoints on local disks that `docs/guides/spark.md` advises (Spark from 4.1 on)."""
ONE_TASK: Final = {"minRecordsPerPartition": "1000"}
"""The option of the source that lets one task read all partitions of a small batch."""
_numbers = count()

Feed = Callable[[], None]


def ways_of_micro_batches(
    spark: Any,  # noqa: ANN401 - a session
    servers: str,
    kafka: KafkaTopics | None,
    batches: int = BATCHES,
) -> dict[str, Way]:
    """Return the ways of running small batches. Each returns the durations of the batches and of their parts, in milliseconds."""
    for source in (NothingSink, ReadySource):
        spark.dataSource.register(source)
    ready = spark.readStream.format("bench_ready").options(rows=PARTITIONS, tasks=PARTITIONS, recordBytes=len(VALUE))
    rates = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=PARTITIONS, numPartitions=PARTITIONS)
    run = partial(_durations, batches=batches)

    def ours(read: Mapping[str, str] | None = None, **more: str) -> dict[str, list[float]]:
        with _raftmq_topics(servers, "from", "to") as (source, target, feed):
            sink = {"bootstrap.servers": servers, "topic": target} | more
            return run(_read_raftmq(spark, servers, source, read), "raftmq", sink, feed)

    def only_read() -> dict[str, list[float]]:
        with _raftmq_topics(servers, "from", "to") as (source, _, feed):
            return run(_read_raftmq(spark, servers, source), "noop", {}, feed)

    def only_written() -> dict[str, list[float]]:
        with _raftmq_topics(servers, "from", "to") as (_, target, _):
            rows = rates.load().selectExpr("CAST(value AS STRING) AS value")
            return run(rows, "raftmq", {"bootstrap.servers": servers, "topic": target})

    def quickly(way: Way) -> Way:
        def run_quickly() -> Mapping[str, list[float]] | None:
            spark.conf.set(*QUICK_CHECKPOINTS)
            try:
                return way()
            finally:
                spark.conf.unset(QUICK_CHECKPOINTS[0])

        return run_quickly

    def theirs(topics: KafkaTopics, *, fsync: bool) -> dict[str, list[float]]:
        with _kafka_topics(topics, fsync=fsync) as (source, target, feed):
            known = {"kafka.bootstrap.servers": topics.addresses}
            read = spark.readStream.format("kafka").options(**known, subscribe=source, startingOffsets="earliest")
            return run(read.load().select("key", "value"), "kafka", known | {"topic": target}, feed)

    found: dict[str, Way] = {
        RAFTMQ: ours,
        "RaftMQ, quick checkpoints": quickly(ours),
        "RaftMQ, one task": partial(ours, ONE_TASK),
        "RaftMQ, one task, quick checkpoints": quickly(partial(ours, ONE_TASK)),
        "RaftMQ, at least once": partial(ours, delivery="at-least-once"),
    }
    if kafka is not None:
        found["Kafka's connector"] = partial(theirs, kafka, fsync=False)
        found["Kafka's connector, fsync"] = partial(theirs, kafka, fsync=True)

    def own() -> dict[str, list[float]]:
        return run(rates.load(), "noop", {})

    return found | {
        "RaftMQ, read only": only_read,
        "RaftMQ, written only": only_written,
        "Spark, source and sink in Python that do nothing": lambda: run(ready.load(), "bench_nothing", {}),
        "Spark, a sink in Python that does nothing": lambda: run(rates.load(), "bench_nothing", {}),
        "Spark, with a source and sink of its own": own,
        "Spark, with a source and sink of its own, quick checkpoints": quickly(own),
    }


def _read_raftmq(spark: Any, servers: str, topic: str, more: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - a session and a frame
    options = {"bootstrap.servers": servers, "subscribe": topic} | dict(more or {})
    read = spark.readStream.format("raftmq").options(**options)
    return read.option("startingOffsets", "earliest").load().select("key", "value")


@contextmanager
def _raftmq_topics(servers: str, *kinds: str) -> Iterator[tuple[str, str, Feed]]:
    names = [f"{kind}-{next(_numbers)}" for kind in kinds]
    with (
        sync.Admin(bootstrap_servers=servers) as admin,
        sync.Producer(bootstrap_servers=servers) as producer,
        ExitStack() as stack,
    ):
        for name in names:
            admin.create_topic(name, partitions=PARTITIONS, replication_factor=REPLICAS)
            stack.callback(admin.delete_topic, name)

        def feed() -> None:
            for partition in range(PARTITIONS):
                producer.send(names[0], VALUE, partition=partition)
            producer.flush()

        yield names[0], names[1], feed


@contextmanager
def _kafka_topics(topics: KafkaTopics, *, fsync: bool) -> Iterator[tuple[str, str, Feed]]:
    source, target = (f"{kind}-{next(_numbers)}" for kind in ("from", "to"))
    with ExitStack() as stack:
        for name in (source, target):
            topics.create(name, fsync=fsync)
            stack.callback(topics.delete, name)

        def feed() -> None:
            for partition in range(PARTITIONS):
                topics.send(source, partition, VALUE)
            topics.flush()

        yield source, target, feed


def _durations(
    rows: Any,  # noqa: ANN401 - a frame
    sink: str,
    options: Mapping[str, str],
    feed: Feed | None = None,
    *,
    batches: int,
) -> dict[str, list[float]]:
    """Run a query until it has run the batches, and return the durations of each.

    Waits in the JVM: calls from here while a batch runs would take its processors' time.
    """
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        query = rows.writeStream.format(sink).options(**options).option("checkpointLocation", folder).start()
        try:
            if feed is not None:
                for _ in range(WARM_UP + batches):
                    feed()
                    query.processAllAvailable()
            while feed is None and (query.lastProgress or {"batchId": 0})["batchId"] < WARM_UP + batches:
                query.awaitTermination(POLL_SECONDS)
            done = [json.loads(progress.json) for progress in query.recentProgress]
        finally:
            with suppress(Exception):  # a query that failed says why above
                query.stop()
    # a batch that begins while records are sent has only some of them
    full = [progress["durationMs"] for progress in done if progress["numInputRows"] == PARTITIONS]
    found: defaultdict[str, list[float]] = defaultdict(list)
    for parts in full[-batches:]:
        for part, milliseconds in parts.items():
            found[FIGURE if part == "triggerExecution" else part].append(milliseconds)
    return dict(found)
