"""The sink in a real Spark session, with a queue topic of model brokers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import TIMEOUT_SECONDS
from tests.support.spark.model_brokers import ModelBrokers, model_brokers

Spark = Any  # a SparkSession; pyspark is imported once Java is there


@pytest.fixture
def brokers() -> Iterator[ModelBrokers]:
    with model_brokers() as running:
        yield running


def write(frame: Any, brokers: ModelBrokers, **options: str) -> None:
    writer = frame.write.format("raftmq").mode("append").option("bootstrap.servers", brokers.bootstrap_servers)
    writer.options(**{"topic": "q"} | options).save()


def test_a_frame_becomes_messages_once_under_the_name_of_its_write(spark: Spark, brokers: ModelBrokers) -> None:
    brokers.create_queue("q", partitions=2)
    frame = spark.range(2000).selectExpr(
        "concat('v', id) AS value",
        "IF(id % 2 = 0, concat('i', id), NULL) AS id",
        "IF(id % 2 = 0, 'acme.eu', NULL) AS tenant",
        "CAST(id % 3 AS INT) AS priority",
        "IF(id = 7, timestamp'2999-01-01 00:00:00', NULL) AS not_before",
        "array(struct('n' AS key, CAST(CAST(id AS STRING) AS BINARY) AS value)) AS headers",
    )
    for _ in range(2):
        write(frame, brokers, writerName="fill", writerEpoch="1")
    partitions = brokers.messages("q")
    found = {message.body: message for messages in partitions for message in messages}
    assert brokers.bodies("q") == sorted(b"v%d" % n for n in range(2000))
    assert all(found[b"v%d" % n].tenant == (b"" if n % 2 else b"acme.eu") for n in range(2000))
    assert all(found[b"v%d" % n].id == (None if n % 2 else b"i%d" % n) for n in range(2000))
    assert all(found[b"v%d" % n].priority == n % 3 for n in range(2000))
    now = brokers.change("q", 0, lambda queue: queue.now_ms())
    assert {body for body, message in found.items() if message.due_ms > now} == {b"v7"}
    assert all(partitions)


def test_a_stream_becomes_messages_once_across_restarts(
    spark: Spark, brokers: ModelBrokers, checkpoint: str, tmp_path: Path
) -> None:
    brokers.create_queue("q")
    source = tmp_path / "in"
    source.mkdir()
    for number, lines in enumerate((["a", "bb"], ["c"])):
        (source / f"{number}.txt").write_text("\n".join(lines))
        query = (
            spark.readStream.text(str(source))
            .selectExpr("value", "concat('tenant', length(value)) AS tenant")
            .writeStream.format("raftmq")
            .option("bootstrap.servers", brokers.bootstrap_servers)
            .option("topic", "q")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(TIMEOUT_SECONDS)
        finally:
            query.stop()
    assert brokers.bodies("q") == [b"a", b"bb", b"c"]


@pytest.mark.parametrize(
    ("columns", "options", "says"),
    [
        (["CAST(id AS STRING) AS value", "id"], {}, "InvalidSchemaError: the column 'id' is string, not bigint"),
        (["CAST(id AS STRING) AS value", "1 AS partition"], {}, "'q' is a queue topic"),
        (["'a' AS value", "CAST(id AS INT) AS priority"], {"partitioner": "murmur2"}, "InvalidOptionError"),
        (["'a' AS value", "'' AS id"], {}, "InvalidSchemaError: the column 'id'"),
    ],
)
def test_frames_that_a_queue_topic_does_not_take_are_refused_with_the_reason(
    spark: Spark, brokers: ModelBrokers, columns: list[str], options: dict[str, str], says: str
) -> None:
    brokers.create_queue("q")
    with pytest.raises(Exception, match=says):
        write(spark.range(2).selectExpr(*columns), brokers, **options)
    assert brokers.bodies("q") == []
