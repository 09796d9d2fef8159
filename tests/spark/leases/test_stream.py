"""Streams that lease the messages of queue topics, with real brokers: batches, their settlement, and queries that are started again."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import col
from raftmq import NewMessage, sync
from raftmq.spark import reject, release

from tests.spark.conftest import HAS_ADMISSION_CONTROL, begin
from tests.support.spark.sink_run import kill_session

QUERY_SECONDS = 600
ONCE = {"availableNow": True}

pytestmark = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL, reason="before Spark 4.2 the last batch of a run is not settled"
)


class Run:
    """A query that gives its batches to a function and can be started again from its checkpoint."""

    def __init__(self, spark: Any, servers: str, folder: Path, topic: str) -> None:
        self.spark = spark
        self.servers = servers
        self.folder = folder
        self.topic = topic
        self.rows: list[list[Any]] = []
        """The rows of each run of a batch."""
        self.query: Any = None

    def start(
        self, work: Callable[[Any, int], None] = lambda batch, number: None, trigger: Any = None, **options: str
    ) -> Any:
        reader = self.spark.readStream.format("raftmq").option("bootstrap.servers", self.servers)
        reader = reader.option("subscribe", self.topic).option("kind", "queue").options(**options)

        def on_batch(batch: Any, number: int) -> None:
            self.rows.append(batch.collect())
            work(batch, number)

        writer = reader.load().writeStream.foreachBatch(on_batch)
        writer = writer.option("checkpointLocation", str(self.folder)).trigger(**(trigger or ONCE))
        self.query = begin(writer.start)
        return self.query

    def to_end(
        self, work: Callable[[Any, int], None] = lambda batch, number: None, **options: str
    ) -> list[list[bytes]]:
        """Run until no message is ready, and return the values of each batch."""
        self.rows.clear()
        assert self.start(work, **options).awaitTermination(QUERY_SECONDS)
        return self.values()

    def values(self) -> list[list[bytes]]:
        return [[bytes(row.value) for row in rows] for rows in self.rows]


@pytest.fixture
def name() -> str:
    return f"q-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def queue(admin: sync.Admin, servers: str, name: str) -> Iterator[sync.Queue[bytes]]:
    admin.create_topic(name, partitions=2, kind="queue", config={"attempts.max": 3})
    with sync.Queue(name, bootstrap_servers=servers) as opened:
        yield opened
    admin.delete_topic(name)


@pytest.fixture
def run(spark: Any, servers: str, queue: sync.Queue[bytes], name: str, tmp_path: Path) -> Iterator[Run]:
    made = Run(spark, servers, tmp_path / "checkpoint", name)
    yield made
    if made.query is not None:
        made.query.stop()


def states(queue: sync.Queue[bytes]) -> Counter[str]:
    return Counter(message.state for message in queue.browse())


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + QUERY_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(0.1)


@pytest.mark.long
def test_a_query_settles_what_it_committed_and_goes_on_after_a_restart(run: Run, queue: sync.Queue[bytes]) -> None:
    queue.put_many(
        [NewMessage(b"%d" % n, priority=n % 2) for n in range(50)] + [NewMessage(b"later", delay_ms=3_600_000)]
    )
    batches = run.to_end(maxMessagesPerTrigger="20")
    assert sorted(value for batch in batches for value in batch) == sorted(b"%d" % n for n in range(50))
    assert len(batches) >= 3
    assert states(queue) == Counter(delayed=1)
    assert run.to_end() == []
    queue.put(b"next")
    assert run.to_end() == [[b"next"]]
    [progress] = [json.loads(one.json) for one in run.query.recentProgress if one.numInputRows]
    assert progress["sources"][0]["latestOffset"][run.topic]["delayed"] == 1


@pytest.mark.long
def test_a_batch_that_failed_is_run_again_with_the_same_messages(run: Run, queue: sync.Queue[bytes]) -> None:
    queue.put_many([NewMessage(b"%d" % n, tenant="a") for n in range(30)])

    def fail(batch: Any, number: int) -> None:
        raise RuntimeError("the database is away")

    with pytest.raises(Exception, match="the database is away"):
        run.to_end(fail)
    assert states(queue) == Counter(leased=30)
    first = run.rows[0]
    queue.put(b"new")
    assert [len(batch) for batch in run.to_end()] == [30, 1]
    assert sorted(run.rows[0]) == sorted(first)
    assert {row.attempts for row in first} == {1}
    assert states(queue) == Counter()


@pytest.mark.long
def test_a_driver_that_is_killed_after_the_work_is_followed_by_one_with_the_same_messages(
    run: Run, queue: sync.Queue[bytes], tmp_path: Path
) -> None:
    queue.put_many([NewMessage(b"%d" % n) for n in range(20)])
    arguments = [sys.executable, "-m", "tests.support.spark.lease_driver", run.servers, run.topic, str(tmp_path)]
    with (tmp_path / "driver.log").open("wb") as log:
        driver = subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            wait_until(lambda: (tmp_path / "worked").exists() or driver.poll() is not None)
        finally:
            kill_session(driver)
    first = (tmp_path / "worked").read_text().split()
    assert states(queue) == Counter(leased=20)
    queue.put(b"new")
    batches = run.to_end()
    assert [sorted(value.decode() for value in batch) for batch in batches] == [first, ["new"]]
    assert {row.attempts for rows in run.rows for row in rows} == {1}
    assert states(queue) == Counter()


@pytest.mark.long
def test_failed_rows_are_released_or_rejected_and_the_others_settled(run: Run, queue: sync.Queue[bytes]) -> None:
    queue.put_many([NewMessage(b"%d" % n) for n in range(30)])

    def work(batch: Any, number: int) -> None:
        value = col("value").cast("string").cast("int")
        bad = batch.where(value < 5)
        reject(bad, run.servers, error="too small")
        release(batch.where(value >= 25), run.servers, delay_ms=3_600_000, error=col("value").cast("string"))
        assert batch.count() == 30  # the batch has its rows until its end

    assert [len(batch) for batch in run.to_end(work)] == [30]
    found = {bytes(m.value or b""): m for m in queue.browse(with_values=True)}
    assert {value: m.state for value, m in found.items()} == {
        b"%d" % n: "dead" if n < 5 else "delayed" for n in (*range(5), *range(25, 30))
    }
    assert {m.error for m in found.values() if m.state == "dead"} == {"too small"}
    assert {m.error for m in found.values() if m.state == "delayed"} == {"25", "26", "27", "28", "29"}
    assert all(m.attempts == 1 for m in found.values())


def test_a_lease_is_renewed_while_its_batch_runs(run: Run, queue: sync.Queue[bytes]) -> None:
    queue.put(b"slow")
    [before] = [m.version for m in queue.browse()]

    def work(batch: Any, number: int) -> None:
        wait_until(lambda: next(iter(queue.browse())).version >= before + 4)  # leased, logged, and renewed twice

    assert run.to_end(work, leaseTime="4s") == [[b"slow"]]  # a renewal that is late by less than 2.6 s loses no lease
    assert states(queue) == Counter()


@pytest.mark.long
def test_a_message_whose_lease_ended_comes_again_with_a_higher_attempt(run: Run, queue: sync.Queue[bytes]) -> None:
    queue.put(b"slow")

    def work(batch: Any, number: int) -> None:
        if number == 0:
            wait_until(lambda: states(queue) == Counter(ready=1))

    assert run.to_end(work, leaseTime="3s", maxBatchTime="1s") == [[b"slow"]]
    assert run.to_end() == [[b"slow"]]
    assert run.rows[0][0].attempts == 2


@pytest.mark.long
def test_topics_of_the_wrong_kind_and_triggers_that_cannot_settle_are_refused(
    run: Run, queue: sync.Queue[bytes], topic: Callable[..., str], spark: Any
) -> None:
    name = run.topic
    run.topic = f"{name},{topic()}"
    with pytest.raises(Exception, match="kind=queue is for queue topics alone"):
        run.to_end()
    run.topic = name
    with pytest.raises(Exception, match="Once ends before the messages"):
        run.start(trigger={"once": True}).awaitTermination(QUERY_SECONDS)
    with pytest.raises(Exception, match="startingOffsets is for log topics"):
        run.to_end(startingOffsets="earliest")


@pytest.mark.long
def test_a_continuous_query_takes_messages_as_they_become_ready(run: Run, queue: sync.Queue[bytes]) -> None:
    query = run.start(trigger={"processingTime": "1 second"})
    for number in range(3):
        queue.put(b"%d" % number)
        wait_until(lambda wanted=number: [b"%d" % wanted] in run.values())  # type: ignore[misc]
    wait_until(lambda: not states(queue))
    assert query.exception() is None
    query.stop()
    queue.put(b"after the stop")
    # a poll that the stop interrupted may have leased it: then it is ready again a minute later
    wait_until(lambda: run.to_end() == [[b"after the stop"]])
    assert not states(queue)
