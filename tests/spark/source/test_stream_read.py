"""`spark.readStream.format("raftmq")`: queries with checkpoints and real brokers."""

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from raftmq import sync
from raftmq.types import TopicPartition

from tests.spark.conftest import HAS_ADMISSION_CONTROL, begin

QUERY_SECONDS = 600


class Run:
    """A query that writes its records to Parquet and can be started again from its checkpoint."""

    def __init__(self, spark: Any, servers: str, folder: Path, options: dict[str, object]) -> None:
        self.spark = spark
        self.folder = folder
        self.options = {"bootstrap.servers": servers, "startingOffsets": "earliest"} | options
        self.query: Any = None

    def start(self, trigger: dict[str, object], **more: object) -> "Run":
        reader = self.spark.readStream.format("raftmq")
        for name, value in (self.options | more).items():
            reader = reader.option(name, value)
        writer = reader.load().writeStream.format("parquet").option("path", str(self.folder / "out"))
        writer = writer.option("checkpointLocation", str(self.folder / "check")).trigger(**trigger)
        self.query = begin(writer.start)
        return self

    def to_end(self, **more: object) -> list[int]:
        """Run until everything is read (AvailableNow), and return the number of rows of each batch that has rows."""
        self.start({"availableNow": True}, **more)
        assert self.query.awaitTermination(QUERY_SECONDS)
        return [batch["numInputRows"] for batch in self.progress() if batch["numInputRows"]]

    def progress(self) -> list[dict[str, Any]]:
        return [json.loads(batch.json) for batch in self.query.recentProgress]

    def rows(self) -> list[Any]:
        if not list((self.folder / "out").glob("_spark_metadata/[0-9]*")):
            return []  # no batch is committed
        found = self.spark.read.parquet(str(self.folder / "out")).orderBy("topic", "partition", "offset")
        return list(found.collect())

    def offsets(self) -> dict[tuple[str, int], list[int]]:
        found: dict[tuple[str, int], list[int]] = {}
        for row in self.rows():
            found.setdefault((row.topic, row.partition), []).append(row.offset)
        return found

    def wait_rows(self, count: int) -> None:
        deadline = time.monotonic() + QUERY_SECONDS
        while len(self.rows()) < count:
            assert self.query.isActive, self.query.exception()
            assert time.monotonic() < deadline
            threading.Event().wait(0.2)

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


@pytest.fixture
def run(spark: Any, servers: str, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    made: list[Run] = []

    def make(**options: object) -> Run:
        made.append(Run(spark, servers, tmp_path / uuid.uuid4().hex, options))
        return made[-1]

    yield make
    for one in made:
        one.stop()


def fill(producer: sync.Producer, topic: str, partition: int, count: int) -> None:
    producer.send_many(topic, [(None, b"%d" % number) for number in range(count)], partition=partition).result()


def test_a_query_continues_from_its_checkpoint(
    run: Callable[..., Run], producer: sync.Producer, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    fill(producer, name, 0, 30)
    fill(producer, name, 1, 10)
    one = run(subscribe=name)
    assert one.to_end() == [40]
    assert one.to_end() == []  # without new records there is no batch
    fill(producer, name, 1, 5)
    assert one.to_end() == [5]
    assert one.offsets() == {(name, 0): list(range(30)), (name, 1): list(range(15))}
    [source] = one.progress()[-1]["sources"]
    end = source["endOffset"][name]
    assert end == {"0": 30, "1": 15, "topic_id": end["topic_id"], "group_ids": end["group_ids"]}
    assert set(end["group_ids"]) == {"0", "1"}


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="before Spark 4.2 a run that is capped would end early")
def test_a_cap_divides_the_backlog_and_available_now_reads_all_of_it(
    run: Callable[..., Run], producer: sync.Producer, topic: Callable[..., str]
) -> None:
    name = topic(partitions=2)
    fill(producer, name, 0, 90)
    fill(producer, name, 1, 10)
    one = run(subscribe=name, maxOffsetsPerTrigger=40, minOffsetsPerTrigger=30)
    assert one.to_end() == [40, 40, 20]
    assert one.offsets() == {(name, 0): list(range(90)), (name, 1): list(range(10))}
    first = one.progress()[0]["sources"][0]["endOffset"][name]
    assert (first["0"], first["1"]) == (36, 4)


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="before Spark 4.2 a minimum is refused as a cap is")
@pytest.mark.long
def test_a_query_waits_for_the_minimum_and_at_most_for_the_delay(
    run: Callable[..., Run], producer: sync.Producer, topic: Callable[..., str]
) -> None:
    name = topic()
    fill(producer, name, 0, 5)
    one = run(subscribe=name, minOffsetsPerTrigger=10)
    one.start({"processingTime": "50 milliseconds"}).query.processAllAvailable()  # the first trigger does not wait
    fill(producer, name, 0, 3)
    one.query.processAllAvailable()  # returns when a trigger finds nothing to do
    fill(producer, name, 0, 7)
    one.query.processAllAvailable()
    assert [batch["numInputRows"] for batch in one.progress() if batch["numInputRows"]] == [5, 10]
    one.stop()
    one.start({"processingTime": "50 milliseconds"}, maxTriggerDelay="1s").query.processAllAvailable()
    for _ in range(2):  # the first trigger does not wait, and the second one waits for a second
        fill(producer, name, 0, 3)
        one.wait_rows(len(one.rows()) + 3)
    assert len(one.rows()) == 21
    one.stop()


def test_wrong_options_are_refused_with_the_reason(run: Callable[..., Run]) -> None:
    """The reason is in the last line of the traceback, which is all that many users read."""
    one = run(subscribe="t", **{"kafka.ssl.truststore.location": "x"})
    with pytest.raises(Exception, match=r"InvalidOptionError: kafka\.ssl\.truststore\.location: this release") as ended:
        one.to_end()
    assert "UnboundLocalError" not in str(ended.value)


def test_new_partitions_and_topics_are_found_while_a_query_runs(
    run: Callable[..., Run], producer: sync.Producer, admin: sync.Admin, topic: Callable[..., str]
) -> None:
    name = topic()
    fill(producer, name, 0, 3)
    one = run(subscribePattern=f"{name}.*").start({"processingTime": "200 milliseconds"})
    one.wait_rows(3)
    admin.add_partitions(name, 2)
    fill(producer, name, 1, 4)
    one.wait_rows(7)
    admin.create_topic(f"{name}-second", partitions=1, replication_factor=1)
    fill(producer, f"{name}-second", 0, 5)
    one.wait_rows(12)
    one.stop()
    admin.delete_topic(f"{name}-second")
    assert one.offsets() == {(name, 0): [0, 1, 2], (name, 1): [0, 1, 2, 3], (f"{name}-second", 0): list(range(5))}


def test_records_trimmed_during_a_query_are_an_error_or_are_skipped(
    run: Callable[..., Run], producer: sync.Producer, admin: sync.Admin, topic: Callable[..., str]
) -> None:
    name = topic()
    fill(producer, name, 0, 5)
    one = run(subscribe=name)
    one.to_end()
    fill(producer, name, 0, 10)
    admin.delete_records({TopicPartition(name, 0): 8})
    with pytest.raises(Exception, match="offsets 5 to 7 were deleted before they were read"):
        one.to_end()
    one.to_end(failOnDataLoss="false")
    assert one.offsets() == {(name, 0): [0, 1, 2, 3, 4, *range(8, 15)]}


@pytest.mark.long
def test_a_topic_created_again_during_a_query_is_an_error_or_is_read_from_its_first_record(
    run: Callable[..., Run], producer: sync.Producer, admin: sync.Admin, topic: Callable[..., str]
) -> None:
    name = topic()
    fill(producer, name, 0, 5)
    one = run(subscribe=name)
    one.to_end()
    admin.delete_topic(name)
    with pytest.raises(Exception, match=f"topic {name} was deleted while a query reads it"):
        one.to_end()
    admin.create_topic(name, partitions=1, replication_factor=1)
    fill(producer, name, 0, 7)  # more records than before, so offsets alone do not show the difference
    with pytest.raises(Exception, match="was deleted and created again"):
        one.to_end()
    one.to_end(failOnDataLoss="false")
    assert one.offsets() == {(name, 0): [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6]}


def test_latest_is_the_end_at_the_start_of_the_query_and_only_chosen_columns_are_read(
    run: Callable[..., Run], producer: sync.Producer, topic: Callable[..., str]
) -> None:
    name = topic()
    fill(producer, name, 0, 5)
    one = run(subscribe=name, startingOffsets="latest", includeHeaders="true", columns="topic,partition,offset,key")
    one.start({"processingTime": "200 milliseconds"})  # when it returns, the query has fixed its start
    producer.send_and_wait(name, b"v", b"k", headers=(("h", b"1"),))
    one.wait_rows(1)
    one.stop()
    assert [row.asDict(recursive=True) for row in one.rows()] == [
        {"topic": name, "partition": 0, "offset": 5, "key": b"k", "headers": [{"key": "h", "value": b"1"}]}
    ]


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="since Spark 4.2 a cap needs no second word")
def test_a_cap_needs_a_second_option_if_spark_would_end_early(
    run: Callable[..., Run], producer: sync.Producer, topic: Callable[..., str]
) -> None:
    name = topic()
    fill(producer, name, 0, 30)
    with pytest.raises(Exception, match="allowCapWithoutAdmissionControl"):
        run(subscribe=name, maxOffsetsPerTrigger=10).to_end()
    one = run(subscribe=name, maxOffsetsPerTrigger=10, allowCapWithoutAdmissionControl="true")
    one.start({"processingTime": "200 milliseconds"}).wait_rows(30)
    one.stop()
    assert one.offsets() == {(name, 0): list(range(30))}
    assert max(batch["numInputRows"] for batch in one.progress()) == 10
