"""Define the ways of reading and of writing the same records that are compared. Must not measure.

A way is a function that reads or writes all records once. Its name describes it in the table. Kafka's connector reads and writes the same
rows, where there is one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from itertools import count
from typing import Any, Final, cast  # Any: pyspark's DataFrame and session have several classes

from raftmq import sync
from raftmq.client.producer.producer import CompressionType
from raftmq.spark.base.schema import arrow_schema, source_schema
from raftmq.spark.cluster.cluster import cluster_of
from raftmq.spark.source.arrow_batches import record_batches
from raftmq.spark.source.options import read_source_options
from raftmq.spark.source.range_fetch import fetch_range
from raftmq.spark.source.readers import BatchReader, RangePartition

from bench.report import RAFTMQ
from bench.spark.floors import NothingSink, ReadySource, RowSource
from bench.spark.kafka_topics import PARTITIONS, REPLICAS, KafkaTopics
from bench.workloads import DISTINCT_VALUES

RECORD_BYTES: Final = 100
SEND_MANY_MAX: Final = 100_000
"""Records handed to the producer in one call."""
# Rows are distinct and in random order, so that a sorting sink does not get sorted rows. Spark computes them cheaply.
ROW_VALUE: Final = f"CAST(concat(hex(xxhash64(id)), repeat('x', {RECORD_BYTES - 16})) AS BINARY) AS value"

Way = Callable[[], Mapping[str, list[float]] | None]
"""Returns its own figures, or None if it is measured by its time."""


def fill(servers: str, topic: str, records: int, codec: str) -> None:
    """Create a topic with `records` records of random bytes."""
    with sync.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic(topic, partitions=PARTITIONS, replication_factor=REPLICAS)
    send_many(servers, topic, records, codec)


def send_many(servers: str, topic: str, records: int, codec: str = "none") -> None:
    """Write records with the SDK, the same number to each partition."""
    distinct = [os.urandom(RECORD_BYTES) for _ in range(DISTINCT_VALUES)]
    values = [(None, value) for value in (distinct * (SEND_MANY_MAX // DISTINCT_VALUES + 1))[:SEND_MANY_MAX]]
    with sync.Producer(bootstrap_servers=servers, compression_type=cast("CompressionType", codec)) as producer:
        for partition in range(PARTITIONS):
            left = records // PARTITIONS
            while left > 0:
                producer.send_many(topic, values[:left], partition=partition).result()
                left -= len(values)


def without_spark(options: Mapping[str, str], *, decode: bool) -> None:
    """Read the partitions one after another in this process, as a task does."""
    found, _ = read_source_options(options, is_streaming=False)
    schema = source_schema(None, include_headers=False)
    for task in BatchReader(found, schema).partitions():
        assert isinstance(task, RangePartition)
        (range_,) = task.ranges
        batches = fetch_range(cluster_of(found.client), range_, timeout_ms=60_000, fail_on_data_loss=True)
        read = record_batches(batches, range_, arrow_schema(schema)) if decode else batches
        for _ in read:
            pass


def drain(frame: Any) -> None:  # noqa: ANN401 - a DataFrame
    """Read all rows and drop them."""
    frame.write.format("noop").mode("overwrite").save()


def ways_of_reading(
    spark: Any,  # noqa: ANN401 - a session
    servers: str,
    topic: str,
    records: int,
    kafka: KafkaTopics | None,
) -> dict[str, Way]:
    """Return the ways of reading. Each reads all records of the topic, or generates as many."""
    for source in (RowSource, ReadySource):
        spark.dataSource.register(source)
    options = {"bootstrap.servers": servers, "subscribe": topic}

    def load(name: str, **more: str) -> Any:  # noqa: ANN401 - a DataFrame
        return spark.read.format(name).options(**options, **more).load()

    ready = {"rows": str(records), "tasks": str(PARTITIONS), "recordBytes": str(RECORD_BYTES)}
    assert load("raftmq").count() == records
    found: dict[str, Way] = {RAFTMQ: lambda: drain(load("raftmq"))}
    if kafka is not None:
        kafka.create(topic)
        known = {"kafka.bootstrap.servers": kafka.addresses}
        load("raftmq").select("value", "partition").write.format("kafka").options(**known, topic=topic).save()
        read = spark.read.format("kafka").options(**known, subscribe=topic)
        assert read.load().count() == records
        found["Kafka's connector"] = lambda: drain(read.load())
    return found | {
        "RaftMQ, sum(offset)": lambda: drain(load("raftmq").agg({"offset": "sum"})),
        "RaftMQ, columns=offset": lambda: drain(load("raftmq", columns="offset")),
        "the same as Python rows": lambda: drain(load("bench_rows")),
        "one process, fetching only": lambda: without_spark(options, decode=False),
        "one process, fetching and decoding": lambda: without_spark(options, decode=True),
        "Spark, with Arrow batches that are ready": lambda: drain(load("bench_ready", **ready)),
        "Spark, with rows of its own": lambda: drain(spark.range(0, records, 1, PARTITIONS)),
    }


def ways_of_writing(
    spark: Any,  # noqa: ANN401 - a session
    servers: str,
    records: int,
    kafka: KafkaTopics | None,
) -> dict[str, Way]:
    """Return the ways of writing `records` records. Each way that needs a topic creates one and deletes it afterwards."""
    spark.dataSource.register(NothingSink)
    numbers = count()
    rows = spark.range(0, records, 1, PARTITIONS).selectExpr(ROW_VALUE)

    def on_new_topic(write: Callable[[str], None]) -> None:
        topic = f"sink-{next(numbers)}"
        with sync.Admin(bootstrap_servers=servers) as admin:
            admin.create_topic(topic, partitions=PARTITIONS, replication_factor=REPLICAS)
            write(topic)
            admin.delete_topic(topic)

    def save(topic: str, **more: str) -> None:
        options = {"bootstrap.servers": servers, "topic": topic} | more
        rows.write.format("raftmq").mode("append").options(**options).save()

    def save_to_kafka(topics: KafkaTopics, *, fsync: bool) -> None:
        topic = f"sink-{next(numbers)}"
        topics.create(topic, fsync=fsync)
        options = {"kafka.bootstrap.servers": topics.addresses, "topic": topic}
        rows.write.format("kafka").mode("append").options(**options).save()
        topics.delete(topic)

    found: dict[str, Way] = {
        RAFTMQ: lambda: on_new_topic(save),
        "RaftMQ, at least once": lambda: on_new_topic(partial(save, delivery="at-least-once")),
    }
    if kafka is not None:
        found["Kafka's connector"] = partial(save_to_kafka, kafka, fsync=False)
        found["Kafka's connector, fsync"] = partial(save_to_kafka, kafka, fsync=True)
    return found | {
        "the SDK's send_many, one process": lambda: on_new_topic(partial(send_many, servers, records=records)),
        "Spark, with a sink that does nothing": lambda: rows.write.format("bench_nothing").mode("append").save(),
    }
