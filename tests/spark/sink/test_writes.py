"""The sink in a real Spark session: batch writes, streaming writes, and refused writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from raftmq import sync
from raftmq.client.producer.partitioner import crc32_partition

from tests.support.spark.reading import read_all, value_counts

Spark = Any  # a SparkSession; pyspark is imported once Java is there


def write(frame: Any, servers: str, topic: str | None, **options: str) -> None:
    writer = frame.write.format("raftmq").mode("append").option("kafka.bootstrap.servers", servers)
    if topic is not None:
        writer = writer.option("topic", topic)
    writer.options(**options).save()


def test_a_frame_is_written_with_keys_headers_and_nulls(spark: Spark, servers: str, topic: Callable[..., str]):
    name = topic(partitions=3)
    frame = spark.range(200).selectExpr(
        "CAST(id AS STRING) AS key",
        "CASE WHEN id % 10 = 0 THEN NULL ELSE CAST(CONCAT('v', id) AS BINARY) END AS value",
        "CASE WHEN id % 3 = 0 THEN array(struct('n' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value),"
        " struct('x' AS key, CAST(NULL AS BINARY) AS value)) END AS headers",
        "id AS ignored",
    )
    write(frame, servers, name, **{"kafka.compression.type": "lz4", "sortMemoryBytes": "20000"})
    records = read_all(servers, name)
    assert {record.key: (record.value, record.headers) for record in records} == {
        b"%d" % n: (
            None if n % 10 == 0 else b"v%d" % n,
            (("n", b"%d" % n), ("x", None)) if n % 3 == 0 else (),
        )
        for n in range(200)
    }
    assert len(records) == 200
    assert all(record.partition == crc32_partition(record.key or b"", 3) for record in records)


def test_rows_go_to_the_topics_and_partitions_in_their_columns(spark: Spark, servers: str, topic: Callable[..., str]):
    names = [topic(partitions=3), topic(partitions=3)]
    frame = spark.range(30).selectExpr(
        "CAST(id AS STRING) AS value",
        f"IF(id < 10, '{names[0]}', '{names[1]}') AS topic",
        "CAST(id % 3 AS INT) AS partition",
    )
    write(frame, servers, None)
    found = {(name, record.partition, record.value) for name in names for record in read_all(servers, name)}
    assert found == {(names[n >= 10], n % 3, b"%d" % n) for n in range(30)}
    write(frame.where("id >= 10"), servers, names[0])  # the option overrides the column
    assert len(read_all(servers, names[0])) == 30


def test_the_order_column_and_the_timestamp_column_are_respected(spark: Spark, servers: str, topic: Callable[..., str]):
    name = topic()
    frame = spark.range(100).selectExpr(
        "CAST(99 - id AS STRING) AS value", "id AS at_offset", "timestamp_millis(1700000000000 + id * 10) AS at"
    )
    write(frame.coalesce(1), servers, name, orderColumn="at_offset", timestampColumn="at")
    records = read_all(servers, name)
    assert [record.value for record in records] == [b"%d" % (99 - n) for n in range(100)]
    assert [record.timestamp for record in records] == [1_700_000_000_000 + n * 10 for n in range(100)]


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (["CAST(id AS STRING) AS key"], {}, "InvalidSchemaError"),
        (["id AS value"], {}, "string or binary, not bigint"),
        (["CAST(id AS STRING) AS value"], {"topic": "there-is-none"}, "UnknownTopicError"),
        (["CAST(id AS STRING) AS value"], {"kafka.sasl.mechanism": "PLAIN"}, "InvalidOptionError"),
        (["CAST(id AS STRING) AS value", "7 AS partition"], {}, "UnknownPartitionError"),
    ],
)
def test_frames_that_cannot_be_written_are_refused_with_the_reason(
    spark: Spark, servers: str, topic: Callable[..., str], columns, options, says
):
    name = topic()
    with pytest.raises(Exception, match=says):
        write(spark.range(2).selectExpr(*columns), servers, **{"topic": name, **options})
    assert read_all(servers, name) == []


def test_a_topic_cannot_be_overwritten(spark: Spark, servers: str, topic: Callable[..., str]):
    writer = spark.range(2).selectExpr("CAST(id AS STRING) AS value").write.format("raftmq").mode("overwrite")
    with pytest.raises(Exception, match="append"):
        writer.option("bootstrap.servers", servers).option("topic", topic()).save()


def test_a_named_write_is_written_once_and_other_rows_under_its_name_are_refused(
    spark: Spark, servers: str, topic: Callable[..., str]
):
    name = topic(partitions=2)
    frame = spark.range(1000).selectExpr("CAST(id AS STRING) AS value")
    options = {"writerName": f"job-{name}", "writerEpoch": "3"}
    write(frame, servers, name, **options)
    write(frame, servers, name, **options)
    expected = Counter(b"%d" % n for n in range(1000))
    assert value_counts(servers, name) == expected
    with pytest.raises(Exception, match="ReplayMismatchError"):  # the plan is not deterministic
        write(frame.selectExpr("CAST(rand() AS STRING) AS value"), servers, name, **options)
    with pytest.raises(Exception, match="ReplayMismatchError"):  # the same rows are in other tasks
        write(frame.repartition(3), servers, name, **options)
    assert value_counts(servers, name) == expected
    write(frame, servers, name, **(options | {"writerEpoch": "4"}))
    assert sum(value_counts(servers, name).values()) == 2000


def test_a_stream_is_written_once_across_restarts(
    spark: Spark, servers: str, topic: Callable[..., str], checkpoint: str, tmp_path: Path, admin: sync.Admin
):
    name = topic(partitions=2)
    source = tmp_path / "in"
    source.mkdir()
    for number in range(3):
        (source / f"{number}.txt").write_text("\n".join(f"{number}-{n}" for n in range(50)))

    def run() -> list[dict[str, Any]]:
        lines = spark.readStream.option("maxFilesPerTrigger", 1).text(str(source))
        query = (
            lines.writeStream.format("raftmq")
            .option("bootstrap.servers", servers)
            .option("topic", name)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(100)
            return list(query.recentProgress)
        finally:
            query.stop()

    assert len([progress for progress in run() if progress["numInputRows"]]) == 3
    (source / "3.txt").write_text("last")
    run()
    assert value_counts(servers, name) == Counter(
        [*(f"{f}-{n}".encode() for f in range(3) for n in range(50)), b"last"]
    )
