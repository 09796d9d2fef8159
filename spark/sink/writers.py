"""Implement Spark's writer interfaces, which write to topics exactly once per (query, batch, task).

`batch_writer` and `stream_writer` are called on the driver, once for each run of a batch. The writers that they return travel to the
tasks, so they hold plain values only. They check the columns as for log topics, and each task finds those of its topic's kind. A batch
write has no query, so its name is the option ``writerName``, or is lent to it (`write_slots`) and given back when it has ended. Must not do
the work, which is in `task`.

Must stay light: Spark plans and commits batches in Python processes of their own, for which a query's first batch waits, and every batch
where ``spark.python.worker.reuse`` is off. Modules that need gRPC or Arrow are therefore imported where they are used.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamWriter, WriterCommitMessage
from pyspark.taskcontext import TaskContext
from raftmq.errors import ProducerFencedError, RaftMQError
from raftmq.spark.base.worker_garbage import exempt_modules
from raftmq.spark.base.worker_memory import keep_freed_memory
from raftmq.spark.base.worker_socket import acknowledge
from raftmq.spark.errors import InvalidOptionError, NotInQueryError, RaftMQSparkWarning, ReplayMismatchError
from raftmq.spark.sink.columns.log import check_schema
from raftmq.spark.sink.ledger.batch_ledger import LAST_TASK, BatchLedger, WriteIdentity
from raftmq.spark.sink.ledger.write_slots import SLOTS_NAME, WRITE_ID_BYTES, SlotTable
from raftmq.spark.sink.options import SinkOptions, read_sink_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import Row, StructType

QUERY_ID_PROPERTY: Final = "sql.streaming.queryId"
BATCH_ID_PROPERTY: Final = "streaming.sql.batchId"
"""Local properties that Spark gives the tasks of a streaming query."""


@dataclass
class TaskDone(WriterCommitMessage):
    """Report a finished task to the driver."""

    rows: dict[str, int]
    """Number of rows per topic."""
    replay_of: WriteIdentity | None = None
    """The batch, if an earlier run had begun it. The driver then checks that all tasks of that run came back."""
    left_out: Mapping[tuple[str, int], bytes] = field(default_factory=dict)
    """As `Written.left_out`."""
    marked: WriteIdentity | None = None
    """The batch, if the driver must mark it as complete."""
    topic_id: int | None = None
    """As `Written.topic_id`."""


def batch_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> BatchWriter:
    """Create the writer of one `DataFrame.write`. Raises `InvalidOptionError`, `InvalidSchemaError`."""
    found = _checked(options, schema, overwrite)
    if (found.writer_name is None) != (found.writer_epoch is None):
        raise InvalidOptionError("writerName and writerEpoch go together in a batch write: set both, or neither")
    if found.is_atomic and found.writer_name is None:
        raise InvalidOptionError(
            "atomicBatches needs writerName and writerEpoch in a batch write: without them nobody could finish the write after a crash"
        )
    return BatchWriter(found, schema, os.urandom(WRITE_ID_BYTES), _attempt())


def stream_writer(options: Mapping[str, str], schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
    """Create the writer of one run of a streaming query's batch. Raises `InvalidOptionError`, `InvalidSchemaError`."""
    exempt_modules()
    found = _checked(options, schema, overwrite)
    if found.writer_epoch is not None:
        raise InvalidOptionError("writerEpoch is for batch writes; the batches of a query have numbers")
    if ArrowStreamWriter is not None:
        return ArrowStreamWriter(found, schema, _attempt())
    return RowStreamWriter(found, schema, _attempt())


def _checked(options: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkOptions:
    found = read_sink_options(options)
    if overwrite:
        raise InvalidOptionError("a topic cannot be overwritten: write with mode append, or output mode append")
    check_schema(schema.fields, found)
    return found


def _attempt() -> int:
    return int.from_bytes(os.urandom(8)) >> 1


class BatchWriter(DataSourceArrowWriter):
    """Write one DataFrame."""

    def __init__(self, options: SinkOptions, schema: StructType, write_id: bytes, attempt: int) -> None:
        self._options = options
        self._schema = schema
        self._write_id = write_id
        self._attempt = attempt

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows. Raises as `SinkTask.run`, and `TooManyWritesError`."""
        return _run(self._options, self._schema, self._identity(), iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Check the write after all tasks, and give its name back.

        Raises `ReplayMismatchError` when a task of an earlier run did not come back.
        """
        _end_batch(self._options, self._schema, messages)
        self._give_back()

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Give the name back after a failed write. Written rows stay, and a named write's next run writes the rest."""
        self._give_back()

    @property
    def _has_slot(self) -> bool:
        return self._options.is_exactly_once and self._options.writer_name is None

    def _identity(self) -> WriteIdentity | None:
        options = self._options
        if not options.is_exactly_once:
            return None
        if options.writer_name is not None and options.writer_epoch is not None:
            return WriteIdentity.of(
                options.writer_name, options.topic, options.writer_epoch, self._attempt, finishes=options.finishes
            )
        table = change_slots(options, lambda table, now_ms: table.taken(self._write_id, now_ms))
        return table.identity(self._write_id, self._attempt)

    def _give_back(self) -> None:
        if not self._has_slot:
            return
        try:
            change_slots(self._options, lambda table, _: table.given_back(self._write_id))
        except RaftMQError as error:  # the rows are written, so the write must not fail
            warnings.warn(
                f"raftmq: the names of a batch write were not given back, and stay in use for an hour: {error}",
                RaftMQSparkWarning,
                stacklevel=2,
            )


def change_slots(options: SinkOptions, change: Callable[[SlotTable, int], SlotTable]) -> SlotTable:
    """Change the table of lent names by compare and swap, and return it. `change` gets the table and the time in milliseconds."""
    from raftmq.client.producer.sequenced_append import SequencedAppender
    from raftmq.spark.cluster.cluster import cluster_of

    cluster = cluster_of(options.client)
    appender = SequencedAppender(cluster.resolver, delivery_timeout_seconds=options.delivery_timeout_seconds)
    found = cluster.run(lambda: appender.claim(SLOTS_NAME, 0))
    while True:
        table, stamp = SlotTable.decode(found.stamp), found.stamp
        wanted = change(table, found.time_ms or time.time_ns() // 1_000_000)
        if wanted == table:
            return table
        found = cluster.run(partial(appender.claim, SLOTS_NAME, 0, wanted.encode(), stamp))


class _StreamWriter:
    """Share the code of the stream writers for rows and for Arrow."""

    def __init__(self, options: SinkOptions, schema: StructType, attempt: int) -> None:
        self._options = options
        self._schema = schema
        self._attempt = attempt

    def _write(self, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        identity = _identity_of_query(self._options, self._attempt) if self._options.is_exactly_once else None
        return _run(self._options, self._schema, identity, batches)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Check the batch after all tasks. Raises `ReplayMismatchError` when a task of an earlier run did not come back."""
        _end_batch(self._options, self._schema, messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing after a failed batch. Written rows stay, and the batch's next run writes the rest."""


class RowStreamWriter(_StreamWriter, DataSourceStreamWriter):
    """Write rows, for PySpark 4.0, which passes only rows to a stream writer."""

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Write one task's rows. Raises as `SinkTask.run`."""
        from raftmq.spark.sink.columns.chunks import batches_of_rows

        return self._write(batches_of_rows(iterator, self._schema.fields))


def _arrow_stream_writer() -> Callable[[SinkOptions, StructType, int], DataSourceStreamWriter] | None:
    base = getattr(datasource, "DataSourceStreamArrowWriter", None)
    if base is None:
        return None

    class ArrowStreamWriter(_StreamWriter, base):  # type: ignore[misc, valid-type] # the base exists from 4.1 on
        """Write Arrow batches, for PySpark from 4.1 on."""

        def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
            """Write one task's rows. Raises as `SinkTask.run`."""
            return self._write(iterator)

    ArrowStreamWriter.__qualname__ = "ArrowStreamWriter"  # so that it pickles by name
    return ArrowStreamWriter


ArrowStreamWriter = _arrow_stream_writer()


def _identity_of_query(options: SinkOptions, attempt: int) -> WriteIdentity:
    context = TaskContext.get()
    query_id = context.getLocalProperty(QUERY_ID_PROPERTY) if context is not None else None
    batch_id = context.getLocalProperty(BATCH_ID_PROPERTY) if context is not None else None
    if query_id is None or batch_id is None:
        raise NotInQueryError(f"Spark did not say which batch this is ({QUERY_ID_PROPERTY}, {BATCH_ID_PROPERTY})")
    name = options.writer_name if options.writer_name is not None else query_id
    return WriteIdentity.of(name, options.topic, int(batch_id), attempt, finishes=options.finishes)


def _run(
    options: SinkOptions, schema: StructType, identity: WriteIdentity | None, batches: Iterator[pa.RecordBatch]
) -> WriterCommitMessage:
    acknowledge()
    keep_freed_memory()
    from raftmq.spark.sink.columns.kinds import find_columns
    from raftmq.spark.sink.task import SinkTask

    context = TaskContext.get()
    if context is None:
        raise NotInQueryError("the sink writes in Spark's tasks only")
    columns = find_columns(schema.fields, options)
    written = SinkTask(options, columns, identity, context.partitionId()).run(batches)
    marked = identity if options.is_atomic and (written.rows or written.is_replay) else None
    replay_of = identity if written.is_replay else None
    return TaskDone(written.rows, replay_of, written.left_out, marked, written.topic_id)


def _end_batch(options: SinkOptions, schema: StructType, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Check that every task that wrote in an earlier run has come back, and write the rows that several tasks left out.

    Then make an atomic batch visible.

    Raises:
        ReplayMismatchError: a task did not come back.
        SupersededError: a later run of the batch has begun, so nobody knows whether all tasks came back.
        UnknownTopicError: the topic was deleted and created again while an atomic batch was written.
    """
    _check_complete(options, schema, messages)
    marked = next((m.marked for m in messages if isinstance(m, TaskDone) and m.marked is not None), None)
    if marked is not None:
        from raftmq.spark.sink.columns.kinds import find_columns
        from raftmq.spark.sink.task import SinkTask

        topic_ids = {m.topic_id for m in messages if isinstance(m, TaskDone) and m.topic_id is not None}
        SinkTask(options, find_columns(schema.fields, options), marked, LAST_TASK).close_mark(topic_ids)


def _check_complete(options: SinkOptions, schema: StructType, messages: Sequence[WriterCommitMessage | None]) -> None:
    identity = next((m.replay_of for m in messages if isinstance(m, TaskDone) and m.replay_of is not None), None)
    if identity is None:
        return
    from raftmq.client.producer.sequenced_append import SequencedAppender
    from raftmq.spark.cluster.cluster import cluster_of
    from raftmq.spark.sink.columns.kinds import find_columns
    from raftmq.spark.sink.task import SinkTask

    cluster = cluster_of(options.client)
    appender = SequencedAppender(cluster.resolver)
    try:
        found = cluster.run(lambda: appender.claim(identity.ledger_name, identity.name_epoch()))
    except ProducerFencedError:
        return  # a later batch has begun, so this one was found complete
    ledger = BatchLedger.decode(found.stamp)
    missing = ledger.missing(identity.attempt)
    if not missing:
        left_out = [m.left_out for m in messages if isinstance(m, TaskDone) and m.left_out]
        if left_out:
            SinkTask(options, find_columns(schema.fields, options), identity, LAST_TASK).write_missing(left_out)
    else:
        ledger.advanced(identity)  # a later run has begun: its tasks have not come back yet
        raise ReplayMismatchError(
            f"tasks {missing} of batch {identity.epoch} wrote in an earlier run and have no rows in this one; the rows that they"
            " wrote stay"
        )
