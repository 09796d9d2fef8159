"""The sink and the table of messages with real brokers."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from raftmq import NewMessage, sync

from tests.support.spark.reading import take_all

Spark = Any  # a SparkSession; pyspark is imported once Java is there


@pytest.fixture
def topic(admin: sync.Admin) -> Iterator[str]:
    name = f"q-{uuid.uuid4().hex[:12]}"
    admin.create_topic(name, partitions=2, kind="queue")
    yield name
    admin.delete_topic(name)


def write(frame: Any, servers: str, topic: str, **options: str) -> None:
    writer = frame.write.format("raftmq").mode("append").option("bootstrap.servers", servers)
    writer.option("topic", topic).options(**options).save()


def browse(spark: Spark, servers: str, topic: str, **options: str) -> Any:
    return spark.read.format("raftmq").options(**{"bootstrap.servers": servers, "browse": topic} | options).load()


def test_rows_are_enqueued_once_over_repeated_writes(spark: Spark, servers: str, topic: str) -> None:
    """Without ids, so that sequences alone tell it. The second write has other batches, which overlap with those of the first."""
    frame = spark.range(3000).selectExpr(
        "concat('v', id) AS value", "IF(id % 2 = 0, 'acme.eu', 'globex') AS tenant", "CAST(id % 3 AS INT) AS priority"
    )
    name = {"writerName": topic, "writerEpoch": "1"}
    write(frame, servers, topic, batchRecords="300", **name)
    write(frame, servers, topic, batchRecords="77", **name)
    taken = take_all(servers, topic)
    assert Counter(message.value for message in taken) == Counter(b"v%d" % n for n in range(3000))
    numbers = [(int(message.value[1:]), message) for message in taken]
    assert all((m.tenant, m.priority) == ("globex" if n % 2 else "acme.eu", n % 3) for n, m in numbers)
    assert {message.partition for message in taken} == {0, 1}
    with pytest.raises(Exception, match="ReplayMismatchError"):
        write(frame.where("id < 2999"), servers, topic, **name)


def test_an_id_is_enqueued_once_over_different_writes(spark: Spark, servers: str, topic: str) -> None:
    frame = spark.range(100).selectExpr("concat('v', id) AS value", "concat('i', id) AS id")
    write(frame, servers, topic)
    write(frame, servers, topic)
    assert Counter(message.id for message in take_all(servers, topic)) == Counter(f"i{n}" for n in range(100))


def test_every_message_is_shown_by_partition_and_tenant(spark: Spark, servers: str, topic: str) -> None:
    frame = spark.range(3000).selectExpr("concat('v', id) AS value", "IF(id % 2 = 0, 'acme.eu', 'globex') AS tenant")
    write(frame, servers, topic)
    shown = browse(spark, servers, topic).collect()
    assert Counter(bytes(row.value) for row in shown) == Counter(b"v%d" % n for n in range(3000))
    assert {row.state for row in shown} == {"ready"}
    assert {row.partition for row in shown} == {0, 1}
    assert browse(spark, servers, topic, tenant="acme", columns="sequence").count() == 1500


def test_a_row_has_the_state_of_its_message(spark: Spark, servers: str, topic: str) -> None:
    with sync.Queue(topic, bootstrap_servers=servers) as queue:
        queue.put_many(
            [
                NewMessage(b"bad", id="bad", tenant="a", headers=[("h", b"1")]),
                NewMessage(b"held", id="held", tenant="b"),
                NewMessage(b"later", id="later", tenant="c", delay_ms=3_600_000, expires_ms=7_200_000),
                NewMessage(b"now", id="now", tenant="d", priority=-5),
            ]
        )
        rejected = queue.get(tenants=["a"], wait_ms=10_000)
        held = queue.get(tenants=["b"], wait_ms=10_000)
        assert rejected is not None
        assert held is not None
        rejected.reject("no such address")
        held.renew(progress="half")
        rows = {row.id: row for row in browse(spark, servers, topic).collect()}
        assert {name: row.state for name, row in rows.items()} == {
            "bad": "dead",
            "held": "leased",
            "later": "delayed",
            "now": "ready",
        }
        bad, leased, later, now = (rows[name] for name in ("bad", "held", "later", "now"))
        assert (bad.error, bad.dead_reason, bad.attempts, bad.due_at) == ("no such address", "rejected", 1, None)
        assert bad.dead_since >= bad.enqueued_at
        assert [(header.key, bytes(header.value)) for header in bad.headers] == [("h", b"1")]
        assert (leased.progress, leased.attempts) == ("half", 1)
        assert 0 < leased.lease_left_ms <= 30_000
        assert 3500 < (later.due_at - later.enqueued_at).total_seconds() < 3700
        assert 7100 < (later.expires_at - later.enqueued_at).total_seconds() < 7300
        assert (now.priority, now.attempts, now.error, now.lease_left_ms) == (-5, 0, None, None)
        [dead] = browse(spark, servers, topic, state="dead").collect()
        assert dead == bad
        held.ack()
