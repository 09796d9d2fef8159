"""`raftmq.spark.LagListener` tells the lag of real queries, and its errors stay its own."""

import logging
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryTerminatedEvent,
    StreamingQueryProgress,
)
from raftmq import sync
from raftmq.errors import BootstrapError
from raftmq.spark import LagListener, PartitionLag, QueryLag
from raftmq.spark.errors import InvalidOptionError
from raftmq.types import TopicPartition

from tests.spark.conftest import begin

DEADLINE_SECONDS = 300
QUERY = uuid.UUID(int=7)


def progress(start: object, end: object, rows: int, *, batch: int = 0, name: str | None = "q") -> QueryProgressEvent:
    """Return the event of a batch, as Spark Connect writes it."""
    source = {"description": "x", "startOffset": start, "endOffset": end, "latestOffset": None, "numInputRows": rows}
    rates = {"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    written = {
        "id": str(QUERY),
        "runId": str(QUERY),
        "name": name,
        "timestamp": "",
        "batchId": batch,
        "batchDuration": 0,
        "durationMs": {},
        "eventTime": {},
        "stateOperators": [],
        "sources": [source | rates],
        "sink": {"description": "x", "numOutputRows": rows},
        "numInputRows": rows,
        "observedMetrics": {},
        **rates,
    }
    return QueryProgressEvent(StreamingQueryProgress.fromJson(written))


def fill(producer: sync.Producer, topic: str, count: int) -> None:
    producer.send_many(topic, [(None, b"v")] * count, partition=0).result()


@pytest.fixture
def filled(producer: sync.Producer, topic: Callable[..., str]) -> str:
    name = topic(partitions=2)
    fill(producer, name, 10)
    return name


@pytest.fixture
def offsets(admin: sync.Admin, filled: str) -> Callable[..., dict[str, object]]:
    topic_id = admin.describe_topic(filled).topic_id

    def make(first: int, second: int = 0) -> dict[str, object]:
        return {filled: {"0": first, "1": second, "topic_id": topic_id}}

    return make


def test_a_listener_tells_the_lag_of_a_real_query_and_commits_its_offsets(
    spark: Any, servers: str, admin: sync.Admin, producer: sync.Producer, filled: str, checkpoint: str
) -> None:
    told: list[QueryLag] = []
    listener = LagListener(servers, group_prefix=f"{filled}-", on_lag=told.append)
    spark.streams.addListener(listener)
    try:
        source = spark.readStream.format("raftmq").option("bootstrap.servers", servers)
        frame = source.option("subscribe", filled).option("startingOffsets", "earliest").load()
        writer = frame.writeStream.format("noop").queryName("copy").option("checkpointLocation", checkpoint)
        query = begin(writer.start)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not told:
            assert time.monotonic() < deadline
            assert query.isActive, query.exception()
            threading.Event().wait(0.05)
        [lag] = listener.lags()
        assert lag.query == "copy"
        assert lag.partitions[TopicPartition(filled, 0)].offset == 10
        assert (lag.records, lag.lost_records, lag.lost_topics) == (0, 0, ())
        query.stop()
        while listener.lags():
            assert time.monotonic() < deadline
            threading.Event().wait(0.05)
    finally:
        spark.streams.removeListener(listener)
    fill(producer, filled, 5)
    described = admin.describe_group(f"{filled}-copy")
    assert {one.partition: (one.offset, one.lag_records) for one in described.offsets} == {
        TopicPartition(filled, 0): (10, 5),
        TopicPartition(filled, 1): (0, 0),
    }
    (listed,) = (one for one in admin.list_groups() if one.group == described.group)
    assert (listed.members, listed.partitions, listed.lag_records) == (0, 2, 5)


def test_the_lag_is_that_of_the_moment_in_the_middle_of_a_batch_too(
    servers: str, producer: sync.Producer, filled: str, offsets: Callable[..., dict[str, object]]
) -> None:
    told: list[QueryLag] = []
    listener = LagListener(servers, on_lag=told.append)
    listener.onQueryProgress(progress(offsets(0), offsets(4), 4))
    listener.onQueryProgress(progress(offsets(4), offsets(7), 3, batch=1))
    assert [(lag.batch_id, lag.records) for lag in told] == [(0, 6), (1, 3)]
    fill(producer, filled, 5)
    [lag] = listener.lags()
    assert lag.partitions[TopicPartition(filled, 0)] == PartitionLag(7, 15)
    listener.onQueryIdle(QueryIdleEvent(QUERY, QUERY, ""))
    assert told[-1] == lag
    listener.onQueryTerminated(QueryTerminatedEvent(QUERY, QUERY, None, None))
    listener.onQueryIdle(QueryIdleEvent(QUERY, QUERY, ""))
    assert (listener.lags(), len(told)) == ([], 3)


def test_lost_records_and_topics_are_counted_and_logged(
    servers: str,
    admin: sync.Admin,
    filled: str,
    offsets: Callable[..., dict[str, object]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    admin.delete_records({TopicPartition(filled, 0): 8})
    listener = LagListener(servers)
    gone = {"gone": {"0": 3, "topic_id": 1}}
    with caplog.at_level(logging.WARNING, logger="raftmq"):
        listener.onQueryProgress(progress(offsets(2) | gone, offsets(6), 0))
        listener.onQueryProgress(progress(offsets(6), offsets(10), 2, batch=1))
    [lag] = listener.lags()
    assert (lag.lost_records, lag.lost_topics) == (6, ("gone",))
    assert [record.getMessage() for record in caplog.records] == [
        "query_lost_records query=q batch_id=0 records=4 topics=gone",
        "query_lost_records query=q batch_id=1 records=2 topics=",
    ]


def test_queries_without_a_source_of_raftmq_are_ignored(servers: str) -> None:
    listener = LagListener(servers, on_lag=lambda lag: pytest.fail("it was told"))
    listener.onQueryProgress(progress({"t": {"0": 1}}, {"t": {"0": 5}}, 4))
    assert listener.lags() == []


def test_a_query_without_a_name_is_known_by_its_id(servers: str, offsets: Callable[..., dict[str, object]]) -> None:
    listener = LagListener(servers)
    listener.onQueryProgress(progress(None, {"@initial": offsets(0), **offsets(4)}, 4, name=None))
    assert [(lag.query, lag.lost_records) for lag in listener.lags()] == [(str(QUERY), 0)]


def test_a_group_with_members_is_left_alone(
    servers: str, filled: str, offsets: Callable[..., dict[str, object]], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[QueryLag] = []
    with sync.Consumer(
        filled, bootstrap_servers=servers, group_id=f"{filled}-q", auto_offset_reset="earliest"
    ) as consumer:
        assert consumer.getmany(timeout_ms=DEADLINE_SECONDS * 1000)
        consumer.commit()
        listener = LagListener(servers, group_prefix=f"{filled}-", on_lag=told.append)
        with caplog.at_level(logging.WARNING, logger="raftmq"):
            listener.onQueryProgress(progress(offsets(0), offsets(4), 4))
        assert consumer.committed(TopicPartition(filled, 0)) == {TopicPartition(filled, 0): 10}
    [message] = [record.getMessage() for record in caplog.records if "query_not" in record.getMessage()]
    assert message.startswith(f"query_not_committed query=q group={filled}-q topic={filled}")
    assert message.endswith("error_code=FENCED")
    assert [lag.records for lag in told] == [6]


def test_a_cluster_that_does_not_answer_is_logged_once_a_minute_and_raised_only_to_the_program(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = LagListener("127.0.0.1:1", request_timeout_ms=100, on_lag=lambda lag: pytest.fail("it was told"))
    with caplog.at_level(logging.WARNING, logger="raftmq"):
        for _ in range(2):
            listener.onQueryProgress(progress(None, {"t": {"0": 4, "topic_id": 1}}, 4))
    assert [record.getMessage() for record in caplog.records if "query_" in record.getMessage()] == [
        "query_lag_unknown query=q error_code=BootstrapError"
    ]
    with pytest.raises(BootstrapError):
        listener.lags()


def test_wrong_arguments_are_refused_when_the_listener_is_created() -> None:
    with pytest.raises(InvalidOptionError, match="not host:port"):
        LagListener("http://localhost")
    with pytest.raises(InvalidOptionError, match=r"request\.timeout\.ms is at least 1"):
        LagListener("localhost:9400", request_timeout_ms=0)
