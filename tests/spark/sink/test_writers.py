"""The names under which queries and batch writes write, without Spark."""

from __future__ import annotations

import pickle
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StructField, StructType
from raftmq.spark.errors import InvalidOptionError, ReplayMismatchError, SupersededError
from raftmq.spark.sink import writers
from raftmq.spark.sink.ledger.batch_ledger import WriteIdentity

from tests.support.spark.reading import value_counts

SCHEMA = StructType([StructField("value", BinaryType())])
TASK = [0]
"""The number of the task that runs."""
BASE = {"bootstrap.servers": "h:1", "topic": "t"}


@pytest.fixture(autouse=True)
def context(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a task of batch 7 of a query."""
    properties = {writers.QUERY_ID_PROPERTY: "query", writers.BATCH_ID_PROPERTY: "7"}
    found = SimpleNamespace(getLocalProperty=properties.get, partitionId=lambda: TASK[0])
    monkeypatch.setattr(writers, "TaskContext", SimpleNamespace(get=lambda: found))


@pytest.mark.parametrize(("given", "name"), [({}, "query"), ({"writerName": "mine"}, "mine")])
def test_a_query_writes_under_its_id_or_a_name_of_its_own(given, name):
    options = writers.stream_writer(BASE | given, SCHEMA, False)._options  # type: ignore[attr-defined]
    assert writers._identity_of_query(options, 5) == WriteIdentity.of(name, "t", 7, 5)
    options = writers.stream_writer(BASE | given | {"delivery": "finish"}, SCHEMA, False)._options  # type: ignore[attr-defined]
    assert writers._identity_of_query(options, 5) == WriteIdentity.of(name, "t", 7, 5, finishes=True)


def test_the_names_of_one_query_for_two_topics_differ():
    """A checkpoint was copied for another topic."""
    one, other = (
        writers._identity_of_query(writers.stream_writer(BASE | {"topic": name}, SCHEMA, False)._options, 5)  # type: ignore[attr-defined]
        for name in ("t", "u")
    )
    assert one.name != other.name


def test_attempts_do_not_depend_on_a_clock(monkeypatch):
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    assert len({writers._attempt() for _ in range(10)}) == 10


def test_a_query_has_no_writer_epoch_and_a_batch_write_has_both_or_none():
    with pytest.raises(InvalidOptionError, match="numbers"):
        writers.stream_writer(BASE | {"writerName": "w", "writerEpoch": "1"}, SCHEMA, False)
    for half in ({"writerName": "w"}, {"writerEpoch": "1"}):
        with pytest.raises(InvalidOptionError, match="together"):
            writers.batch_writer(BASE | half, SCHEMA, False)


def write(
    options: dict[str, str],
    tasks: list[list[bytes]],
    *,
    is_stream: bool,
    before_commit: Callable[[], object] = lambda: None,
) -> Counter[str]:
    """Run a batch as Spark does: each task with a copy of the driver's writer, and the driver with another one.

    Spark 4.0 passes rows to the writer of a stream, and Arrow batches to all others.
    """
    gets_rows = is_stream and writers.ArrowStreamWriter is None
    make = writers.stream_writer if is_stream else writers.batch_writer
    writer = pickle.dumps(make(options, SCHEMA, False))
    messages = []
    for TASK[0], values in enumerate(tasks):
        batches = [pa.record_batch({"value": pa.array(values, pa.binary())})] if values else []
        given = zip(values) if gets_rows else iter(batches)
        messages.append(pickle.loads(pickle.dumps(pickle.loads(writer).write(given))))
    before_commit()
    pickle.loads(writer).commit(messages, *([7] if is_stream else []))
    return sum((Counter(message.rows) for message in messages), Counter())


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_batch_that_runs_again_with_other_tasks_is_finished_by_its_tasks_and_its_driver(
    servers: str, topic: Callable[..., str], is_stream: bool
):
    target = topic(partitions=2)
    given = {"bootstrap.servers": servers, "topic": target, "writerName": f"w-{target}", "replayTimeout": "500ms"}
    options = given if is_stream else given | {"writerEpoch": "7"}
    assert write(options, [[b"a", b"same"], [], [b"b"]], is_stream=is_stream) == {target: 3}
    assert write(options, [[b"a", b"same"], [], [b"b"]], is_stream=is_stream) == {target: 3}
    other = [[b"b", b"same"], [b"same", b"c"], [b"a"]]
    with pytest.raises(ReplayMismatchError, match="delivery=finish"):
        write(options, other, is_stream=is_stream)
    for _ in range(2):
        assert write(options | {"delivery": "finish"}, other, is_stream=is_stream) == {target: 5}
        assert value_counts(servers, target) == {b"a": 1, b"b": 1, b"c": 1, b"same": 2}


def test_a_driver_that_commits_after_a_later_run_has_begun_is_told_so(servers: str, topic: Callable[..., str]):
    target = topic()
    options = {"bootstrap.servers": servers, "topic": target, "writerName": f"w-{target}", "writerEpoch": "7"}
    write(options, [[b"a"], [b"b"]], is_stream=False)

    def begin_another() -> None:
        TASK[0] = 2
        writers.batch_writer(options, SCHEMA, False).write(iter([]))

    with pytest.raises(SupersededError):
        write(options, [[b"a"], [b"b"]], is_stream=False, before_commit=begin_another)
    assert write(options, [[b"a"], [b"b"]], is_stream=False) == {target: 2}
    assert value_counts(servers, target) == {b"a": 1, b"b": 1}


def test_batch_writes_without_a_name_write_once_and_take_turns(servers: str, topic: Callable[..., str]):
    target = topic(partitions=2)
    options = {"bootstrap.servers": servers, "topic": target}
    for number in range(3):
        write(options, [[b"%d" % number], [b"x"]], is_stream=False)
    assert value_counts(servers, target) == {b"0": 1, b"1": 1, b"2": 1, b"x": 3}
