"""Readers with ``isolation=batch`` see whole batches only, while drivers are killed and several writers write to one topic."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from raftmq import sync
from raftmq.errors import UnknownTopicError
from raftmq.spark.cluster.cluster import cluster_of
from raftmq.spark.errors import BatchMarkedError, InvalidOptionError, LaterBatchError, RaftMQSparkWarning
from raftmq.spark.jobs.main import main as run_job
from raftmq.spark.sink.columns.log import SinkColumns
from raftmq.spark.sink.ledger.batch_ledger import LAST_TASK, WriteIdentity
from raftmq.spark.sink.options import SinkOptions, read_sink_options
from raftmq.spark.sink.task import SinkTask, Written
from raftmq.types import TopicPartition

from tests.spark.conftest import begin
from tests.support.spark.columns import batch_of
from tests.support.spark.reading import counting
from tests.support.spark.sink_run import EXPECTED, LOG_TAIL, ROWS, driver, fill, kill_session, wait_end, wait_held

COLUMNS = SinkColumns(value=0, key=None, headers=None, topic=None, partition=None, order=None, timestamp=None, width=1)
WAIT_SECONDS = 600


@pytest.fixture
def options(servers: str, topic: Callable[..., str]) -> SinkOptions:
    return atomic(servers, topic(partitions=2))


def atomic(servers: str, topic: str, **more: str) -> SinkOptions:
    return read_sink_options({"bootstrap.servers": servers, "topic": topic, "atomicBatches": "true"} | more)


def identity(
    options: SinkOptions, name: str, epoch: int = 0, attempt: int = 1, *, finishes: bool = False
) -> WriteIdentity:
    return WriteIdentity.of(name, options.topic, epoch, attempt, finishes=finishes)


def write(options: SinkOptions, batch: WriteIdentity, task: int, count: int) -> Written:
    values = [b"%s %d %d %d" % (batch.name.encode(), batch.epoch, task, n) for n in range(count)]
    return SinkTask(options, COLUMNS, batch, task).run([batch_of(values)])


def mark(options: SinkOptions, batch: WriteIdentity) -> None:
    SinkTask(options, COLUMNS, batch, LAST_TASK).close_mark()


def visible(options: SinkOptions) -> int:
    """Return how many records readers of whole batches may read."""
    cluster = cluster_of(options.client)
    name = str(options.topic)
    topic_id = cluster.run(lambda: cluster.resolver.topic(name, 30)).topic_id
    return sum(cluster.find_cut(name, topic_id, None).ends)


def test_a_batch_is_visible_when_it_is_marked_and_not_after_its_tasks(options: SinkOptions):
    batch = identity(options, "w")
    write(options, batch, 0, 30)
    write(options, batch, 1, 30)
    assert visible(options) == 0
    mark(options, batch)
    assert visible(options) == 60


def test_a_driver_that_died_before_it_marked_its_batch_marks_it_in_its_next_run(options: SinkOptions):
    write(options, identity(options, "w", attempt=1), 0, 30)
    again = identity(options, "w", attempt=2)
    write(options, again, 0, 30)
    assert visible(options) == 0
    mark(options, again)
    mark(options, again)
    assert visible(options) == 30
    write(options, identity(options, "w", attempt=3), 0, 30)  # Spark repeats a batch whose commit it has not logged
    assert visible(options) == 30


def test_a_marked_batch_that_is_finished_again_writes_nothing(options: SinkOptions):
    """Spark repeats a batch whose commit it has not logged, here with ``delivery=finish``, on fewer tasks."""
    first = identity(options, "w")
    values = [[b"%d %d" % (task, n) for n in range(20)] for task in range(2)]
    for task in range(2):
        SinkTask(options, COLUMNS, first, task).run([batch_of(values[task])])
    mark(options, first)
    again = identity(options, "w", attempt=2, finishes=True)
    written = SinkTask(options, COLUMNS, again, 0).run([batch_of(values[1] + values[0])])
    assert written.rows == {options.topic: 40}
    SinkTask(options, COLUMNS, again, LAST_TASK).write_missing([written.left_out])
    mark(options, again)
    assert visible(options) == 40


def test_rows_that_a_marked_batch_did_not_have_are_refused_and_leave_it_whole(options: SinkOptions):
    """They would be outside of any batch, and a reader between two partitions would see a part of them."""
    first = identity(options, "w")
    done = write(options, first, 0, 30)
    assert done.topic_id is not None
    mark(options, first)
    for finishes in (False, True):
        again = identity(options, "w", attempt=2 + finishes, finishes=finishes)
        for _ in range(2):
            with pytest.raises(BatchMarkedError, match="another writerEpoch"):
                write(options, again, 1, 7)
    # two tasks have an equal row each for one row of the batch
    last = identity(options, "w", attempt=4, finishes=True)
    left_out = [write(options, last, task, 0).left_out for task in range(2)]
    assert left_out == [{}, {}]
    value = [b"%s 0 0 0" % first.name.encode()]
    copies = [SinkTask(options, COLUMNS, last, task).run([batch_of(value)]).left_out for task in range(2)]
    with pytest.raises(BatchMarkedError):
        SinkTask(options, COLUMNS, last, LAST_TASK).write_missing(copies)
    assert visible(options) == 30


def test_a_batch_whose_ledger_was_forgotten_is_refused_once_it_was_marked(options: SinkOptions, admin: sync.Admin):
    """Readers keep the marks alive, but the ledger expires when its writer rests. The writer then begins at batch 0 again."""
    later = identity(options, "w", epoch=5)
    write(options, later, 0, 30)
    mark(options, later)
    for name in (later.ledger_name, later.task_name(0)):
        assert admin.forget_producer_names(prefix=name, unused_seconds=0).count == 1
    for epoch in (0, 5):
        with pytest.raises(LaterBatchError):
            write(options, identity(options, "w", epoch=epoch, attempt=2), 1, 7)
    assert visible(options) == 30


def test_a_batch_that_two_incarnations_of_a_topic_have_parts_of_is_not_marked(options: SinkOptions, admin: sync.Admin):
    name = str(options.topic)
    batch = identity(options, "w")
    parts = {write(options, batch, 0, 30).topic_id}
    admin.delete_topic(name)
    parts.add(admin.create_topic(name, partitions=2).topic_id)
    ids = {each for each in parts if each is not None}
    assert len(ids) == 2
    with pytest.raises(UnknownTopicError, match="created again"):
        SinkTask(options, COLUMNS, batch, LAST_TASK).close_mark(ids)
    with pytest.raises(UnknownTopicError):
        SinkTask(options, COLUMNS, batch, LAST_TASK).close_mark({min(ids)})


def test_a_batch_that_was_abandoned_while_it_was_written_is_reported(options: SinkOptions):
    batch = identity(options, "delays")
    topic_id = write(options, batch, 0, 30).topic_id
    line = ["batches", "--bootstrap-servers", options.client.bootstrap_servers, "--topic", str(options.topic)]
    assert run_job([*line, "--abandon", "delays"]) == 0
    assert topic_id is not None
    with pytest.warns(RaftMQSparkWarning, match="was not open any more"):
        SinkTask(options, COLUMNS, batch, LAST_TASK).close_mark({topic_id})


def test_plain_records_and_other_writers_are_hidden_beside_an_open_batch(options: SinkOptions, producer: sync.Producer):
    mine, others = identity(options, "w"), identity(options, "other")
    write(options, mine, 0, 30)
    write(options, others, 0, 20)
    producer.send(str(options.topic), b"plain").result()
    mark(options, others)
    assert visible(options) == 0
    mark(options, mine)
    assert visible(options) == 51
    producer.send(str(options.topic), b"plain").result()
    assert visible(options) == 52


def test_a_topic_that_is_created_again_has_no_open_batch(options: SinkOptions, admin: sync.Admin):
    name = str(options.topic)
    write(options, identity(options, "w"), 0, 30)
    admin.delete_topic(name)
    admin.create_topic(name, partitions=2)
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := _ends_or_none(options)) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert found == 0


def _ends_or_none(options: SinkOptions) -> int | None:
    cluster = cluster_of(options.client)
    name = str(options.topic)
    topic_id = cluster.run(lambda: cluster.resolver.topic(name, 30, is_fresh=True)).topic_id
    try:
        return sum(cluster.find_cut(name, topic_id, None).ends)
    except Exception:  # noqa: BLE001 - the broker that was asked shows the deleted topic for a moment
        return None


def test_partitions_that_are_added_in_the_middle_of_a_batch_are_hidden_with_it(
    options: SinkOptions, admin: sync.Admin, producer: sync.Producer
):
    batch = identity(options, "w")
    write(options, batch, 0, 30)
    name = str(options.topic)
    admin.add_partitions(name, 3)
    producer.send(name, b"new", partition=2).result()
    assert visible(options) == 0
    mark(options, batch)
    deadline = time.monotonic() + WAIT_SECONDS
    while (found := visible(options)) == 30 and time.monotonic() < deadline:
        time.sleep(0.05)  # readers hear of the new partition later than the producer that was told to use it
    assert found == 31


def test_an_operator_sees_and_abandons_an_open_batch(options: SinkOptions, capsys: pytest.CaptureFixture[str]):
    write(options, identity(options, "delays", epoch=7), 0, 30)
    line = ["batches", "--bootstrap-servers", options.client.bootstrap_servers, "--topic", str(options.topic)]
    assert run_job(line) == 0
    opened, ended = (json.loads(text) for text in capsys.readouterr().out.splitlines())
    assert (opened["event"], opened["writer"], opened["batch"]) == ("open", "delays", 7)
    assert ended["event"] == "ended"
    assert run_job([*line, "--abandon", "nobody"]) == 2
    capsys.readouterr()
    assert visible(options) == 0
    assert run_job([*line, "--abandon", "delays"]) == 0
    assert [json.loads(text)["event"] for text in capsys.readouterr().out.splitlines()] == ["abandoned", "ended"]
    assert visible(options) == 30


@pytest.mark.parametrize("more", [{"delivery": "at-least-once"}, {"topic": ""}])
def test_options_that_cannot_be_atomic_are_refused(more: dict[str, str]):
    with pytest.raises(InvalidOptionError, match="atomicBatches"):
        read_sink_options({"bootstrap.servers": "a:1", "topic": "t", "atomicBatches": "true"} | more)


@pytest.mark.long
def test_a_query_reads_the_batches_that_another_one_wrote(
    spark: Any, servers: str, topic: Callable[..., str], producer: sync.Producer, tmp_path: Path
):
    source, target = topic(partitions=2), topic(partitions=2)
    producer.send_many(source, [(None, b"%d" % n) for n in range(40)]).result()
    query = begin(
        lambda: (
            spark.readStream.format("raftmq")
            .options(**{"bootstrap.servers": servers, "subscribe": source, "startingOffsets": "earliest"})
            .load()
            .select("value")
            .writeStream.format("raftmq")
            .options(**{"bootstrap.servers": servers, "topic": target, "atomicBatches": "true"})
            .option("checkpointLocation", str(tmp_path))
            .trigger(availableNow=True)
            .start()
        )
    )
    assert query.awaitTermination(WAIT_SECONDS)
    read = spark.read.format("raftmq").options(**{"bootstrap.servers": servers, "subscribe": target})
    assert read.option("isolation", "batch").load().count() == 40
    more = atomic(servers, target)
    write(more, identity(more, "w"), 0, 5)
    assert read.option("isolation", "batch").load().count() == 40
    assert read.option("isolation", "record").load().count() == 45


# ------------------------------------------------------------------------------------------------------ killed drivers


class Watch:
    """A query that runs all the time, with the values of each of its batches."""

    def __init__(self, spark: Any, servers: str, topic: str, folder: Path) -> None:
        self.batches: list[Counter[bytes]] = []

        def keep(frame: Any, _: int) -> None:
            self.batches.append(Counter(bytes(row.value) for row in frame.select("value").collect()))

        self.query = begin(
            lambda: (
                spark.readStream.format("raftmq")
                .options(**{"bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"})
                .option("isolation", "batch")
                .load()
                .writeStream.foreachBatch(keep)
                .option("checkpointLocation", str(folder / "watch"))
                .start()
            )
        )

    def wait(self, count: int) -> None:
        """Wait until so many records were seen."""
        deadline = time.monotonic() + WAIT_SECONDS
        while sum(batch.total() for batch in self.batches) < count:
            assert self.query.isActive, self.query.exception()
            assert time.monotonic() < deadline, [batch.total() for batch in self.batches]
            time.sleep(0.1)

    def check_whole(self, *batches: Counter[bytes]) -> None:
        """Check that each batch was seen in one of the watch's own batches, and nothing of it in another one."""
        for batch in batches:
            seen = [found & batch for found in self.batches]
            assert [part for part in seen if part] == [batch]


@pytest.fixture
def watch(spark: Any, servers: str, tmp_path: Path) -> Iterator[Callable[[str], Watch]]:
    made: list[Watch] = []

    def start(topic: str) -> Watch:
        made.append(Watch(spark, servers, topic, tmp_path))
        return made[-1]

    yield start
    for one in made:
        one.query.stop()


def put(producer: sync.Producer, topic: str, values: Sequence[bytes]) -> None:
    producer.send_many(topic, [(None, value) for value in values]).result()


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_reader_never_sees_a_part_of_a_batch_whose_driver_is_killed(
    spark: Any,
    servers: str,
    topic: Callable[..., str],
    producer: sync.Producer,
    watch: Callable[[str], Watch],
    tmp_path: Path,
):
    name = topic(partitions=3)
    put(producer, name, [b"before"])
    folder = fill(tmp_path)
    watching = watch(name)
    watching.wait(1)
    other = [f"other {n}" for n in range(50)]

    def write_other(epoch: int) -> None:
        rows = spark.createDataFrame([(f"{epoch}: {text}",) for text in other], "value string").repartition(2)
        named = {"writerName": "other", "writerEpoch": str(epoch), "openBatchTimeout": "1s", "atomicBatches": "true"}
        rows.write.format("raftmq").mode("append").options(
            **{"bootstrap.servers": servers, "topic": name} | named
        ).save()

    with counting(servers, name) as written:
        with driver(servers, name, folder, 2, holds=2, atomicBatches="true") as process:
            wait_held(process, folder, 0, 1)
            kill_session(process)
        assert 1 < written() < ROWS + 1
        put(producer, name, [b"beside"])
        write_other(0)
        write_other(1)  # a writer does not wait for a dead one for long
        assert written() > 100
    assert sum(batch.total() for batch in watching.batches) == 1
    with driver(servers, name, folder, 2, atomicBatches="true") as process:
        output = wait_end(process, folder)
        assert process.returncode == 0, output[-LOG_TAIL:]
    watching.wait(2 + 2 * len(other) + ROWS)
    others = [Counter(f"{epoch}: {text}".encode() for text in other) for epoch in (0, 1)]
    watching.check_whole(EXPECTED, *others)
    assert sum(watching.batches, Counter()) == EXPECTED + others[0] + others[1] + Counter([b"before", b"beside"])


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_two_queries_write_while_a_reader_runs(
    spark: Any,
    servers: str,
    topic: Callable[..., str],
    producer: sync.Producer,
    watch: Callable[[str], Watch],
    tmp_path: Path,
):
    """Two queries copy from topics of their own, in many small batches, with a plain producer beside them."""
    target = topic(partitions=3)
    sources = [topic(partitions=2) for _ in range(2)]
    watching = watch(target)
    queries = []
    for source in sources:
        read = spark.readStream.format("raftmq").options(**{"bootstrap.servers": servers, "subscribe": source})
        rows = read.option("startingOffsets", "earliest").load()
        rows = rows.selectExpr("concat(topic, ' ', CAST(value AS STRING)) AS value")
        sink = rows.writeStream.format("raftmq").options(**{"bootstrap.servers": servers, "topic": target})
        sink = sink.option("atomicBatches", "true").option("checkpointLocation", str(tmp_path / source))
        queries.append(begin(sink.start))
    sent = 0
    for number in range(12):
        for source in sources:
            put(producer, source, [b"%d %d" % (number, n) for n in range(20)])
        put(producer, target, [b"plain %d" % number])
        sent += 41
        time.sleep(0.3)  # more batches; nothing depends on it
    watching.wait(sent)
    wholes = []
    for source, query in zip(sources, queries, strict=True):
        query.processAllAvailable()
        wholes += [batches_of(source, progress) for progress in query.recentProgress if progress["numInputRows"]]
        query.stop()
    assert len(wholes) > 2
    with sync.Consumer(bootstrap_servers=servers) as consumer:
        for whole in wholes:
            watching.check_whole(values_of(consumer, whole))


def batches_of(source: str, progress: Any) -> dict[TopicPartition, tuple[int, int]]:
    """Return the offsets that a batch of a query read from its source."""
    [found] = json.loads(progress.json)["sources"]
    start, end = found["startOffset"], found["endOffset"]
    first = (end.get("@initial") or start or {}).get(source, {})
    return {
        TopicPartition(source, int(number)): (first.get(number, 0), stop)
        for number, stop in end[source].items()
        if number not in {"topic_id", "group_ids"}
    }


def values_of(consumer: sync.Consumer, spans: dict[TopicPartition, tuple[int, int]]) -> Counter[bytes]:
    found: Counter[bytes] = Counter()
    for partition, (first, stop) in spans.items():
        if first == stop:
            continue
        consumer.assign([partition])
        consumer.seek(partition, first)
        while consumer.position(partition) < stop:
            for records in consumer.getmany(timeout_ms=1000).values():
                found.update(
                    b"%s %s" % (partition.topic.encode(), record.value or b"")
                    for record in records
                    if record.offset < stop
                )
    return found
