"""`spark.read.format("raftmq")` with real brokers."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql import datasource
from raftmq import sync
from raftmq.types import TopicPartition

KAFKA_SCHEMA = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"
)


def fill(producer: sync.Producer, topic: str, partition: int, count: int, first: int = 0) -> None:
    """Write records whose value is their number."""
    records = [(None, str(number).encode()) for number in range(first, first + count)]
    producer.send_many(topic, records, partition=partition, timestamp_ms=1_000_000 + first).result()


def read(spark: Any, servers: str, **options: object) -> Any:
    reader = spark.read.format("raftmq").option("bootstrap.servers", servers)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def offsets_of(frame: Any) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for row in frame.select("partition", "offset").orderBy("partition", "offset").collect():
        found.setdefault(row.partition, []).append(row.offset)
    return found


def test_columns_equal_those_of_the_kafka_connector(
    spark: Any, servers: str, producer: sync.Producer, topic: Callable[..., str]
) -> None:
    name = topic()
    sent = [
        (b"v0", b"k0", 1_700_000_000_123, ()),
        (None, b"k1", 1_700_000_000_124, (("a", b"1"), ("a", b""))),
        (b"", None, -5, ()),
    ]
    for value, key, timestamp, headers in sent:
        producer.send_and_wait(name, value, key, timestamp_ms=timestamp, headers=headers)
    frame = read(spark, servers, subscribe=name)
    assert frame.schema.simpleString() == KAFKA_SCHEMA + ">"
    assert all(field.nullable for field in frame.schema.fields)
    rows = frame.orderBy("offset").collect()
    assert [(row.key, row.value) for row in rows] == [(key, value) for value, key, _, _ in sent]
    assert [(row.topic, row.partition, row.offset, row.timestampType) for row in rows] == [
        (name, 0, n, 0) for n in range(3)
    ]
    micros = frame.orderBy("offset").selectExpr("unix_micros(timestamp) AS us").collect()
    assert [row.us for row in micros] == [timestamp * 1000 for _, _, timestamp, _ in sent]

    with_headers = read(spark, servers, subscribe=name, includeHeaders="true")
    assert with_headers.schema.simpleString() == KAFKA_SCHEMA + ",headers:array<struct<key:string,value:binary>>>"
    found = [row.headers for row in with_headers.orderBy("offset").collect()]
    assert found[0] is None
    assert [tuple(header) for header in found[1]] == [("a", b"1"), ("a", b"")]
    assert found[2] is None


def test_columns_can_be_left_out(spark: Any, servers: str, producer: sync.Producer, topic: Callable[..., str]) -> None:
    name = topic()
    fill(producer, name, 0, 5)
    frame = read(spark, servers, subscribe=name, columns="offset, key")
    assert frame.schema.simpleString() == "struct<offset:bigint,key:binary>"
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(n, None) for n in range(5)]
    given = spark.read.format("raftmq").schema("value BINARY, partition INT")
    given = given.option("bootstrap.servers", servers).option("subscribe", name).load()
    assert given.columns == ["value", "partition"]
    assert sorted(int(row.value) for row in given.collect()) == list(range(5))
    wrong = spark.read.format("raftmq").schema("value STRING").option("bootstrap.servers", servers)
    with pytest.raises(Exception, match="the source has value:binary"):
        wrong.option("subscribe", name).load().collect()


def test_every_record_is_read_once_with_any_number_of_tasks(
    spark: Any, servers: str, producer: sync.Producer, topic: Callable[..., str]
) -> None:
    name = topic(partitions=3)
    counts = {0: 20_000, 1: 10, 2: 0}
    for partition, count in counts.items():
        for first in range(0, count, 4_000):  # several batches, so that ranges begin and end within one
            fill(producer, name, partition, min(4_000, count), first)
    expected = {partition: list(range(count)) for partition, count in counts.items() if count}
    plain = read(spark, servers, subscribe=name)
    assert plain.rdd.getNumPartitions() == 2
    assert offsets_of(plain) == expected
    divided = read(spark, servers, subscribe=name, minPartitions=7)
    assert divided.rdd.getNumPartitions() == 7
    assert offsets_of(divided) == expected
    together = read(spark, servers, subscribe=name, minRecordsPerPartition=20_001)
    assert together.rdd.getNumPartitions() == 1
    assert offsets_of(together) == expected
    values = divided.where("partition = 0").orderBy("offset").collect()
    assert [int(row.value) for row in values] == expected[0]


def test_a_read_can_begin_and_end_at_given_offsets(
    spark: Any, servers: str, producer: sync.Producer, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    fill(producer, name, 0, 50)
    fill(producer, name, 1, 50)
    start, end = json.dumps({name: {"0": 10, "1": -2}}), json.dumps({name: {"0": 12, "1": -1}})
    frame = read(spark, servers, subscribe=name, startingOffsets=start, endingOffsets=end)
    assert offsets_of(frame) == {0: [10, 11], 1: list(range(50))}
    with pytest.raises(Exception, match="1 is missing"):
        read(spark, servers, subscribe=name, startingOffsets=json.dumps({name: {"0": 1}})).collect()
    with pytest.raises(Exception, match=r"endingOffsets: .*/0 ends at 50, before 51"):
        read(spark, servers, subscribe=name, endingOffsets=json.dumps({name: {"0": 51, "1": 3}})).collect()
    single = read(spark, servers, assign=json.dumps({name: [1]}), startingOffsets=json.dumps({name: {"1": 48}}))
    assert offsets_of(single) == {1: [48, 49]}


def test_a_read_can_begin_and_end_at_given_times(
    spark: Any, servers: str, producer: sync.Producer, topic: Callable[..., str]
) -> None:
    """Times are the records' own, as the Kafka connector's are. They need not be in order."""
    name = topic()
    for timestamp in (500, 100, 900, 300, 800):
        producer.send_and_wait(name, b"v", partition=0, timestamp_ms=timestamp)
    by_partition = json.dumps({name: {"0": 501}})
    for options in ({"startingTimestamp": 501}, {"startingOffsetsByTimestamp": by_partition}):
        assert offsets_of(read(spark, servers, subscribe=name, **options)) == {0: [2, 3, 4]}
    for options in ({"endingTimestamp": 501}, {"endingOffsetsByTimestamp": by_partition}):
        assert offsets_of(read(spark, servers, subscribe=name, **options)) == {0: [0, 1]}
    with pytest.raises(Exception, match="no record with a timestamp at or after"):
        read(spark, servers, subscribe=name, startingTimestamp=901).collect()
    frame = read(spark, servers, subscribe=name, startingTimestamp=901, startingOffsetsByTimestampStrategy="latest")
    assert offsets_of(frame) == {}
    assert offsets_of(read(spark, servers, subscribe=name, endingTimestamp=901)) == {0: [0, 1, 2, 3, 4]}


def test_a_read_can_have_the_append_times(
    spark: Any, servers: str, producer: sync.Producer, topic: Callable[..., str], appended_at: Callable[[str, int], int]
) -> None:
    name = topic()
    fill(producer, name, 0, 3)
    frame = read(spark, servers, subscribe=name, includeAppendTime="true")
    assert frame.schema.simpleString() == KAFKA_SCHEMA + ",appendTime:timestamp>"
    millis = [row.ms for row in frame.orderBy("offset").selectExpr("unix_millis(appendTime) AS ms").collect()]
    assert millis[0] == appended_at(name, 0)
    assert millis == sorted(millis)


def test_a_pattern_selects_topics(spark: Any, servers: str, producer: sync.Producer, topic: Callable[..., str]) -> None:
    one, two, other = topic(), topic(), topic()
    for name in (one, two, other):
        fill(producer, name, 0, 3)
    frame = read(spark, servers, subscribePattern=f"{one}|{two[:-1]}.")
    assert {row.topic for row in frame.select("topic").distinct().collect()} == {one, two}
    assert frame.count() == 6
    assert read(spark, servers, subscribePattern="nothing-like-it").count() == 0


def test_a_read_of_an_unknown_topic_is_an_error(spark: Any, servers: str) -> None:
    with pytest.raises(Exception, match="there is no topic 'missing'"):
        read(spark, servers, subscribe="missing").collect()


def test_trimmed_records_are_an_error_or_are_skipped(
    spark: Any, servers: str, producer: sync.Producer, admin: sync.Admin, topic: Callable[..., str]
) -> None:
    name = topic()
    fill(producer, name, 0, 10)
    admin.delete_records({TopicPartition(name, 0): 4})
    assert offsets_of(read(spark, servers, subscribe=name)) == {0: list(range(4, 10))}
    start = json.dumps({name: {"0": 1}})
    with pytest.raises(Exception, match="offsets 1 to 3 were deleted before they were read"):
        read(spark, servers, subscribe=name, startingOffsets=start).collect()
    frame = read(spark, servers, subscribe=name, startingOffsets=start, failOnDataLoss="false")
    assert offsets_of(frame) == {0: list(range(4, 10))}


@pytest.mark.skipif(not hasattr(datasource, "Filter"), reason="Spark 4.0 pushes no filters into Python sources")
def test_filters_can_be_pushed_down(
    spark: Any, servers: str, producer: sync.Producer, topic: Callable[..., str]
) -> None:
    name = topic(partitions=3)
    for partition in range(3):
        fill(producer, name, partition, 100)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, servers, subscribe=name, pushFilters="true")
        frame = frame.where("partition = 1 AND offset >= 20 AND offset < 23")
        assert frame.rdd.getNumPartitions() == 1
        assert offsets_of(frame) == {1: [20, 21, 22]}
        moment = datetime(1970, 1, 1, 1, 0, tzinfo=UTC)
        assert read(spark, servers, subscribe=name, pushFilters="true").where(f"timestamp > '{moment}'").count() == 0
    finally:
        spark.conf.unset("spark.sql.python.filterPushdown.enabled")
    with pytest.raises(Exception, match="DATA_SOURCE_PUSHDOWN_DISABLED"):
        read(spark, servers, subscribe=name, pushFilters="true").collect()


def test_wrong_options_are_refused_with_the_reason(spark: Any, servers: str) -> None:
    with pytest.raises(Exception, match="give one of subscribe, subscribePattern and assign"):
        read(spark, servers).collect()
    with pytest.raises(Exception, match="neither encryption nor authentication"):
        read(spark, servers, subscribe="t", **{"kafka.security.protocol": "SSL"}).collect()
