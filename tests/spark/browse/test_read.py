"""The messages of a queue topic as a table, in a real Spark session, from model brokers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from raftmq import NewMessage, sync

from tests.support.spark.model_brokers import ModelBrokers, model_brokers

Spark = Any  # a SparkSession; pyspark is imported once Java is there


@pytest.fixture(scope="module")
def brokers() -> Iterator[ModelBrokers]:
    with model_brokers() as running:
        yield running


@pytest.fixture(scope="module")
def queue(brokers: ModelBrokers) -> Iterator[sync.Queue]:
    brokers.create_queue("jobs", partitions=2)
    with sync.Queue("jobs", bootstrap_servers=brokers.bootstrap_servers) as opened:
        opened.put_many(
            NewMessage(
                b"mail %d" % number,
                id=f"mail-{number}",
                tenant=f"tenant{number % 3}",
                priority=number % 5,
                delay_ms=0 if number % 4 else 3_600_000,
                headers=[("n", b"%d" % number)],
            )
            for number in range(300)
        )
        opened.put(b"to be rejected", id="bad", tenant="globex")
        message = opened.get(tenants=["globex"])
        assert message is not None
        message.reject("no such address")
        yield opened


def read(spark: Spark, brokers: ModelBrokers, **options: str) -> Any:
    reader = spark.read.format("raftmq").option("bootstrap.servers", brokers.bootstrap_servers)
    return reader.options(**{"browse": "jobs"} | options).load()


def test_every_message_is_a_row_with_its_fields(spark: Spark, brokers: ModelBrokers, queue: sync.Queue) -> None:
    frame = read(spark, brokers)
    rows = {row.id: row for row in frame.collect()}
    assert len(rows) == 301
    assert frame.rdd.getNumPartitions() == 2
    for number in range(300):
        row = rows[f"mail-{number}"]
        assert (bytes(row.value), row.tenant, row.priority) == (b"mail %d" % number, f"tenant{number % 3}", number % 5)
        assert [(header.key, bytes(header.value)) for header in row.headers] == [("n", b"%d" % number)]
        assert row.state == ("ready" if number % 4 else "delayed")
    browsed = {message.id: message for message in queue.browse()}
    assert all(
        (row.topic, row.partition, row.sequence, row.version, row.attempts)
        == ("jobs", browsed[name].partition, browsed[name].sequence, browsed[name].version, browsed[name].attempts)
        for name, row in rows.items()
    )


def test_a_query_over_a_backlog_groups_by_tenant(spark: Spark, brokers: ModelBrokers, queue: sync.Queue) -> None:
    found = read(spark, brokers, state="ready", columns="tenant,due_at").groupBy("tenant").count().collect()
    assert {row["tenant"]: row["count"] for row in found} == {"tenant0": 75, "tenant1": 75, "tenant2": 75}
    one = read(spark, brokers, tenant="tenant1", columns="state").groupBy("state").count().collect()
    assert {row["state"]: row["count"] for row in one} == {"ready": 75, "delayed": 25}


def test_dead_messages_have_their_reason_and_error(spark: Spark, brokers: ModelBrokers, queue: sync.Queue) -> None:
    [row] = read(spark, brokers, state="dead").collect()
    assert (row.id, row.dead_reason, row.error, row.attempts) == ("bad", "rejected", "no such address", 1)
    assert row.due_at is None


def test_what_cannot_be_browsed_is_refused_with_the_reason(
    spark: Spark, brokers: ModelBrokers, queue: sync.Queue
) -> None:
    brokers.call(lambda cluster: cluster.create_topic("log"))
    for options, says in (
        ({"browse": "log"}, "TopicKindMismatchError.*option subscribe"),
        ({"browse": "jobs", "state": "waiting"}, "InvalidOptionError: state is any"),
        ({"browse": "jobs", "pushFilters": "true"}, "pushFilters is for log topics: .*options state and tenant"),
        ({"browse": "jobs", "columns": "offset"}, "there is no column 'offset'"),
    ):
        with pytest.raises(Exception, match=says):
            read(spark, brokers, **options).collect()
    subscribed = spark.read.format("raftmq").option("bootstrap.servers", brokers.bootstrap_servers)
    with pytest.raises(Exception, match=r"TopicKindMismatchError.*option\(.browse., .jobs.\)"):
        subscribed.option("subscribe", "jobs").load().collect()


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("subscribe", "TopicKindMismatchError.*work on them with spark.readStream"),
        ("browse", "InvalidOptionError.*give subscribe and kind=queue instead"),
    ],
)
def test_a_stream_of_a_queue_topic_is_refused_with_the_way_to_work_on_it(
    spark: Spark, brokers: ModelBrokers, queue: sync.Queue, checkpoint: str, option: str, says: str
) -> None:
    frame = spark.readStream.format("raftmq").option("bootstrap.servers", brokers.bootstrap_servers)
    writer = frame.option(option, "jobs").load().writeStream.format("noop").option("checkpointLocation", checkpoint)
    query = writer.start()
    try:
        with pytest.raises(Exception, match=says):
            query.awaitTermination(60)
    finally:
        query.stop()


def test_a_pattern_includes_no_queue_topics(spark: Spark, brokers: ModelBrokers, queue: sync.Queue) -> None:
    brokers.call(lambda cluster: cluster.create_topic("jobs-log"))
    frame = spark.read.format("raftmq").option("bootstrap.servers", brokers.bootstrap_servers)
    assert frame.option("subscribePattern", "jobs.*").load().collect() == []
