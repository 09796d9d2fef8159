"""Run one task of a write: gather and sort its rows, prove that they are the batch's, and write each of them once.

The task writes under a producer of its own, named by query and task, whose epoch is the batch. Its n-th row in a partition has
sequence n, and brokers accept each sequence once. That needs the same rows in the same order each time the task runs. So before anything
is written

1. the ledger of the batch is opened, which also fixes the topic's number of partitions for this batch,
2. all rows are read and sorted: by partition and order column, and otherwise in the order in which they came,
3. their digest is claimed, and the task enters the ledger, as `batch_ledger` explains,
4. if the rows came in another order than before, or the batch is finished with other tasks (``delivery=finish``), earlier runs are fenced
   and their rows are read back.

Must not decide which tasks may write (`batch_ledger`), nor cut or send batches (`partition_writer`).
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Protocol

from raftmq.client.producer.sequenced_append import NamedEpoch, SequencedAppender, StampClaim
from raftmq.errors import ProducerFencedError, RaftMQError, UnknownTopicError
from raftmq.spark.atomic import batch_marks
from raftmq.spark.atomic.batch_marks import TopicMarks, Writer
from raftmq.spark.atomic.mark_calls import describe, run_marks
from raftmq.spark.cluster.cluster import Cluster, cluster_of
from raftmq.spark.errors import (
    BatchMarkedError,
    InvalidOptionError,
    LaterBatchError,
    RaftMQSparkWarning,
    ReplayMismatchError,
    SupersededError,
)
from raftmq.spark.sink.columns.chunks import chunk_of
from raftmq.spark.sink.columns.kinds import require_log
from raftmq.spark.sink.columns.log import SinkColumns
from raftmq.spark.sink.columns.queue import QueueColumns, QueueRow, QueueRowBuilder
from raftmq.spark.sink.ledger.batch_ledger import (
    LOG_DIGESTS,
    ROW_DIGESTS,
    TASKS_MAX,
    Answer,
    Ask,
    BatchLedger,
    Claim,
    Peek,
    WriteIdentity,
    enter_batch,
    fix_count,
    mark_stalled,
    open_batch,
)
from raftmq.spark.sink.ledger.earlier_writers import EarlierWriters
from raftmq.spark.sink.rows.left_out import missing_rows, repeated_hashes
from raftmq.spark.sink.rows.log_batches import LogBatches
from raftmq.spark.sink.rows.log_rows import LogRowBuilder, Places, log_schema, row_at
from raftmq.spark.sink.rows.log_sorter import LogSorter
from raftmq.spark.sink.rows.partition_writer import Identity, PartitionWriter
from raftmq.spark.sink.rows.queue_batches import QueueBatches, groups_of
from raftmq.spark.sink.rows.row_sorter import RowSorter
from raftmq.spark.sink.rows.written_rows import Unwritten, WrittenRows

if TYPE_CHECKING:
    import pyarrow as pa
    from raftmq.client.connection.resolver import TopicInfo
    from raftmq.spark.sink.options import SinkOptions

LEDGER_POLL_SECONDS: Final = 0.5
"""Pause between reads of the ledger while a task waits for others. Each read asks a majority of the metadata's brokers."""
TOPICS_NAMED_MAX: Final = 5
"""Topics that the message of an error names."""


@dataclass(frozen=True, slots=True)
class Written:
    """Report the rows that a task wrote."""

    rows: dict[str, int]
    """Number of rows per topic, including rows that an earlier run of the task had written."""
    is_replay: bool
    """Whether the batch was begun by an earlier attempt."""
    left_out: Mapping[tuple[str, int], bytes] = field(default_factory=dict)
    """As `Unwritten.left_out`."""
    topic_id: int | None = None
    """The incarnation of the topic in whose marks the batch is open. None: the task has not opened it."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """Hold the ledger of a run of a batch as this process knows it."""

    identity: WriteIdentity
    ledger: BatchLedger
    time_ms: int
    """Time on a broker's clock when it was opened."""


_latest: list[_Opened | None] = [None]
"""The ledger that a task of this process has read or changed last. Spark runs a process's tasks one after the other."""


class Sorter(Protocol):
    """Describe the rows of a task to the ledger."""

    count: int
    """Number of rows."""

    def digest(self) -> bytes:
        """Return the digest of all rows: their number, a hash of the rows, and a hash of their order."""
        ...


class SinkTask:
    """Write the rows of one task. Use once, in the task's process."""

    def __init__(
        self, options: SinkOptions, columns: SinkColumns | QueueColumns, identity: WriteIdentity | None, task: int
    ) -> None:
        """Create a task for topics of the kind of `columns`.

        Without `identity` its rows are written at least once, because each run of it writes all of them.
        """
        self._options = options
        self._columns = columns
        version = ROW_DIGESTS if isinstance(columns, QueueColumns) else LOG_DIGESTS
        self._identity = replace(identity, version=version) if identity is not None else None
        self._task = task
        self._cluster: Cluster = cluster_of(options.client)
        self._appender = SequencedAppender(
            self._cluster.resolver, delivery_timeout_seconds=options.delivery_timeout_seconds
        )
        self._topics: dict[str, TopicInfo] = {}
        self._ledger = BatchLedger((0,))
        self._producer_ids: dict[str, int] = {}
        """Producer ids, by the claimed names."""
        self._has_full_ledger = False
        """Whether the ledger had no room for the number of partitions of a topic."""
        self._opened_ms = 0
        """Time on a broker's clock when the ledger was opened."""

    def run(self, batches: Iterable[pa.RecordBatch]) -> Written:
        """Write all rows. Returns when they are on disk on a majority.

        Raises:
            ReplayMismatchError: the rows or the tasks differ from an earlier run of the batch. Nothing was written.
            BatchMarkedError: the batch is marked as complete, and the task has other rows. Nothing was written.
            SupersededError, ProducerFencedError: a later run of the batch has begun.
            LaterBatchError: a later batch has begun. Nothing was written.
            TopicKindMismatchError: a row's topic is a queue topic, and the option ``topic`` does not name it. Nothing was written.
            RaftMQError: as `LogRowBuilder.rows` or `QueueRowBuilder.rows` (nothing was written) and `PartitionWriter.write`.
        """
        identity, topic, options, columns = self._identity, self._options.topic, self._options, self._columns
        if identity is not None:
            if options.is_atomic and isinstance(columns, QueueColumns):
                raise InvalidOptionError(
                    "atomicBatches is for log topics: messages of a queue topic are taken one by one"
                )
            if identity.finishes and isinstance(columns, QueueColumns):
                raise InvalidOptionError(
                    "delivery=finish is for log topics: messages that were taken cannot be read back"
                )
            batches = self._open_meanwhile(identity, batches)
        if isinstance(columns, QueueColumns):
            assert topic is not None  # `kinds` finds these columns by the topic
            return self._write_messages(batches, columns, topic)
        builder = LogRowBuilder(
            columns,
            options,
            self._partition_count,
            lambda name: self._topic(name).record_bytes_max,
            spreads_by_crc=identity is not None and self._ledger.spreads_by_crc,
        )
        with closing(self._log_sorter(builder.schema, builder.places)) as sorter:
            for batch in batches:
                for rows in builder.rows(batch):
                    sorter.add(rows)
            return self._write_rows(sorter)

    def _write_rows(self, sorter: LogSorter) -> Written:
        """Write the rows of log topics."""
        identity = self._identity
        if self._options.is_atomic and identity is not None and self._is_marked(identity):
            return self._written_before(identity, sorter)
        producer = self._enter(identity, sorter)
        if producer is None:
            return Written({}, self._is_replay)
        topic_id = self._open_mark(identity) if self._options.is_atomic and identity is not None else None
        return replace(self._write_entered(producer, sorter), topic_id=topic_id)

    def _write_entered(self, producer: Identity, sorter: LogSorter) -> Written:
        """Write the rows of a task that has entered the ledger."""
        writer = PartitionWriter(self._cluster, self._appender, producer, self._log_batches())
        if self._identity is None or not self._ledger.round_of(self._task):
            return Written(writer.write(sorter.groups(), self._topic), self._is_replay)
        rows = self._unwritten(self._identity, sorter)
        written = Counter(writer.write(rows.groups(), self._topic))
        written.update(rows.skipped)
        return Written(dict(written), self._is_replay, rows.left_out)

    def _write_messages(self, batches: Iterable[pa.RecordBatch], columns: QueueColumns, topic: str) -> Written:
        """Write the rows of a queue topic. Messages that were taken cannot be read back, so all parts of the rows are sorted."""
        options = self._options
        builder = QueueRowBuilder(columns, self._topic(topic), self._partition_count)
        with closing(RowSorter[QueueRow](options.sort_memory_bytes, _spill_directory())) as sorter:
            for batch in batches:
                if batch.num_rows:
                    sorter.add(*builder.rows(chunk_of(batch, columns)))
            producer = self._enter(self._identity, sorter)
            if producer is None:
                return Written({}, self._is_replay)
            sealed = QueueBatches(options.codec, options.batch_records_max)
            writer = PartitionWriter(self._cluster, self._appender, producer, sealed)
            return Written(writer.write(groups_of(sorter), self._topic), self._is_replay)

    def _is_marked(self, identity: WriteIdentity) -> bool:
        """Return whether an earlier run of the batch has marked it as complete.

        It is asked before the task enters the ledger, so that a task with other rows leaves no trace there.

        Raises:
            LaterBatchError: a later batch of the writer was marked.
        """
        if not self._is_replay:
            return False
        assert self._options.topic is not None  # `read_sink_options` refuses others
        topic = self._topic(self._options.topic)
        timeout_seconds = self._options.delivery_timeout_seconds
        marks = run_marks(self._cluster, topic.name, topic.topic_id, batch_marks.read_marks(), timeout_seconds)
        self._require_no_later(identity, marks)
        return marks.is_closed(writer_of(identity), identity.epoch)

    def _written_before(self, identity: WriteIdentity, sorter: LogSorter) -> Written:
        """Check that the rows of a batch that is marked as complete were written, and write none.

        Rows that were written now would be outside of any batch, so readers of whole batches could see a part of them.

        Raises:
            BatchMarkedError: the task has rows that were not written.
            ReplayMismatchError: the task has other rows than in the run that marked the batch.
        """
        if self._ledger.has(self._task):
            self._enter(identity, sorter)  # the same rows, maybe in another order, and that run has written all of them
            return Written({self._options.topic or "": sorter.count}, True)
        if not sorter.count:
            return Written({}, True)
        if not self._ledger.generation:
            raise BatchMarkedError(
                f"batch {identity.epoch} is marked as complete, and task {self._task} has {sorter.count} rows that it did not have"
            )
        old = self._written_by(self._earlier(identity).old(self._ledger))
        rows = Unwritten(
            sorter.groups(),
            self._no_time_ms,
            lambda topic, partition: Counter(),
            lambda topic, partition: old.count(self._topic(topic), partition),
        )
        missing = sum(block.num_rows for _, _, left in rows.groups() for block in left)
        if missing:
            raise BatchMarkedError(
                f"batch {identity.epoch} is marked as complete, and {missing} of the {sorter.count} rows of task {self._task} were not"
                " found in it"
            )
        return Written(dict(rows.skipped), True, rows.left_out)

    def _open_mark(self, identity: WriteIdentity) -> int:
        """Open the batch in the topic's marks, so that no reader of whole batches reads its first rows. Return the topic's id.

        Raises:
            LaterBatchError: the writer has marked this batch or a later one, and the cluster has forgotten the batch's earlier runs.
            SupersededError: another run of the batch has marked it a moment ago.
        """
        assert self._options.topic is not None  # `read_sink_options` refuses others
        topic = self._topic(self._options.topic)  # it has all partitions that rows name
        patience_ms = self._options.open_batch_timeout_ms
        steps = batch_marks.open_batch(writer_of(identity), identity.epoch, topic.partition_count, patience_ms)
        marks = run_marks(self._cluster, topic.name, topic.topic_id, steps, self._options.delivery_timeout_seconds)
        self._require_no_later(identity, marks)
        if marks.is_closed(writer_of(identity), identity.epoch):
            # Names of ledgers expire 14 days after the writer's last use, but readers keep the marks alive.
            if not self._is_replay:
                raise LaterBatchError(
                    f"{writer_of(identity).shown!r} has written batch {identity.epoch} and marked it as complete before"
                )
            raise SupersededError(f"another run of batch {identity.epoch} has marked it as complete")
        for batch in marks.slow(writer_of(identity), patience_ms):
            warnings.warn(
                f"raftmq: {topic.name}: {describe(batch)} is still open, and hides this batch and later ones from readers with"
                " isolation=batch; start its query again, or abandon it (python -m raftmq.spark batches), but only if its query is dead: the"
                " batch of a running one is then read in parts",
                RaftMQSparkWarning,
                stacklevel=2,
            )
        return topic.topic_id

    def _require_no_later(self, identity: WriteIdentity, marks: TopicMarks) -> None:
        if marks.is_closed(writer_of(identity), identity.epoch + 1):
            raise LaterBatchError(
                f"{writer_of(identity).shown!r} has marked a later batch than {identity.epoch} before"
            )

    def close_mark(self, topic_ids: Iterable[int] = ()) -> None:
        """Close the batch in the topic's marks. The driver calls it when all tasks have ended and all rows are written.

        Args:
            topic_ids: The incarnations of the topic in which tasks have opened the batch.

        Raises:
            UnknownTopicError: the topic was deleted and created again while the batch was written.
        """
        assert self._options.topic is not None
        assert self._identity is not None
        opened_in = set(topic_ids)
        name = self._options.topic
        if len(opened_in) > 1:
            raise UnknownTopicError(
                f"{name} was deleted and created again while batch {self._identity.epoch} was written"
            )
        topic_id = opened_in.pop() if opened_in else None
        epoch, writer = self._identity.epoch, writer_of(self._identity)
        steps = batch_marks.close_batch(writer, epoch)
        known_id = topic_id if topic_id is not None else self._topic(name).topic_id
        marks = run_marks(self._cluster, name, known_id, steps, self._options.delivery_timeout_seconds)
        if topic_id is not None and not marks.is_closed(writer, epoch):
            # All rows are written, so an error would help nobody.
            warnings.warn(
                f"raftmq: {name}: batch {epoch} of writer {writer.shown!r} was not open any more when it was complete: it was abandoned, a"
                " later batch took its place, or the cluster has forgotten it; readers with isolation=batch have perhaps seen a part of it",
                RaftMQSparkWarning,
                stacklevel=2,
            )

    def _log_sorter(self, schema: pa.Schema, places: Places) -> LogSorter:
        return LogSorter(self._options.sort_memory_bytes, schema, places, _spill_directory())

    def _log_batches(self) -> LogBatches:
        has_times = isinstance(self._columns, SinkColumns) and self._columns.timestamp is not None
        timestamp_ms = None if has_times else time.time_ns() // 1_000_000
        options = self._options
        return LogBatches(options.codec, options.batch_records_max, timestamp_ms, lambda: self._no_time_ms)

    @property
    def _is_replay(self) -> bool:
        return self._identity is not None and self._ledger.runs > 1

    @property
    def _no_time_ms(self) -> int:
        """Return the time of rows whose time is null."""
        return self._ledger.since_ms or time.time_ns() // 1_000_000

    def _unwritten(self, identity: WriteIdentity, sorter: LogSorter) -> Unwritten:
        """Fence the earlier rounds of this task, and return the rows without those that were written before."""
        earlier = self._earlier(identity)
        own = self._written_by(earlier.fence_own(self._ledger, self._task))
        old = self._written_by(earlier.old(self._ledger))
        return Unwritten(
            sorter.groups(),
            self._no_time_ms,
            lambda topic, partition: own.count(self._topic(topic), partition),
            lambda topic, partition: old.count(self._topic(topic), partition),
        )

    def _written_by(self, writers: Mapping[int, range]) -> WrittenRows:
        return WrittenRows(
            self._cluster,
            writers,
            self._ledger.since_ms,
            has_timestamps=isinstance(self._columns, SinkColumns) and self._columns.timestamp is not None,
            timeout_ms=self._options.client.request_timeout_ms,
        )

    def _earlier(self, identity: WriteIdentity) -> EarlierWriters:
        return EarlierWriters(
            self._cluster,
            self._appender,
            identity,
            lambda steps: self._agree(identity, steps),
            self._options.delivery_timeout_seconds,
        )

    def write_missing(self, left_out: Iterable[Mapping[tuple[str, int], bytes]]) -> int:
        """Write the rows that several tasks of the batch left out for the same record. Return their number.

        The driver calls it on a task with the number `LAST_TASK` when all tasks have ended.

        Args:
            left_out: `Written.left_out` of each task.
        """
        identity = self._identity
        repeated = repeated_hashes(left_out)
        if identity is None or not repeated:
            return 0
        self._open(identity)
        is_marked = self._options.is_atomic and self._is_marked(identity)
        old = self._written_by(self._earlier(identity).old(self._ledger))
        has_times = isinstance(self._columns, SinkColumns) and self._columns.timestamp is not None
        schema = log_schema(has_order=False, has_key=True, has_headers=True, has_time=has_times)
        places = Places()
        with closing(self._log_sorter(schema, places)) as sorter:
            for (topic, partition), counts in repeated.items():
                place = places.base(topic) + partition
                for row in missing_rows(counts, old.rows(self._topic(topic), partition)):
                    sorter.add(row_at(place, row, schema))
            if is_marked and sorter.count:
                raise BatchMarkedError(
                    f"batch {identity.epoch} is marked as complete, and several tasks have {sorter.count} equal rows more than it has"
                )
            producer = self._enter(identity, sorter)
            if producer is None:
                return 0
            if self._options.is_atomic:
                self._open_mark(identity)
            PartitionWriter(self._cluster, self._appender, producer, self._log_batches()).write(
                sorter.groups(), self._topic
            )
            return sorter.count

    # ------------------------------------------------------------------------------------------------------------ topics

    def _topic(self, name: str, partition: int = 0) -> TopicInfo:
        """Return the topic. Refresh it if this process does not know `partition` yet, which may be new."""
        found = self._topics.get(name)
        if found is None or partition >= found.partition_count:
            known = partition
            timeout_seconds = self._options.client.request_timeout_ms / 1000
            found = self._topics[name] = self._cluster.run(
                lambda: self._cluster.resolver.topic(name, timeout_seconds, partition=known)
            )
            if isinstance(self._columns, SinkColumns):
                require_log(found)
        return found

    def _partition_count(self, name: str, partition: int | None) -> int:
        """Return the topic's number of partitions at the batch's first run.

        For a row that names its `partition`, return the current number.
        """
        if partition is not None:
            return self._topic(name, partition).partition_count
        topic = self._topic(name)
        if self._identity is None:
            return topic.partition_count
        counts = self._ledger.partition_counts
        if topic.topic_id not in counts and not self._has_full_ledger:
            steps = fix_count(self._identity, topic.topic_id, topic.partition_count, self._ledger)
            self._ledger = self._agree(self._identity, steps)
            counts = self._ledger.partition_counts
            self._has_full_ledger = topic.topic_id not in counts
        count = counts.get(topic.topic_id, topic.partition_count)
        # this process may not know yet that the topic had got more partitions before the batch began
        return min(count, self._topic(name, count - 1).partition_count)

    # ---------------------------------------------------------------------------------------------------------- agreeing

    def _open(self, identity: WriteIdentity) -> None:
        """Open the ledger, and fence the writers of earlier generations.

        If another task of this process has opened it in this run of the batch, begin with its copy.
        """
        self._open_meanwhile(identity, ())

    def _open_meanwhile(self, identity: WriteIdentity, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Open the ledger as `_open` does, while Spark computes the first of the batches. Return the batches.

        The ledger does not wait for Spark: a run of the batch that began earlier must not enter it later.
        """
        opened = _latest[0]
        if opened is not None and opened.identity == identity and not opened.ledger.missing(identity.attempt):
            self._ledger, self._opened_ms = opened.ledger, opened.time_ms
        else:
            has_rows = threading.Event()
            opening = self._begin_opening(identity, has_rows.is_set)
            rest = iter(batches)
            try:
                first = list(islice(rest, 1))
                has_rows.set()
                self._ledger = self._opened(identity, opening)
            finally:
                opening.cancel()  # if Spark has failed
            batches = chain(first, rest)
        self._ledger = self._earlier(identity).fence_old(self._ledger)
        return batches

    def _begin_opening(self, identity: WriteIdentity, is_awaited: Callable[[], bool]) -> Future[_Opened]:
        """Begin to open the ledger. A failure that may pass is final only if somebody waits for the ledger."""
        topic = self._topic(self._options.topic) if self._options.topic is not None else None
        counts = {topic.topic_id: topic.partition_count} if topic is not None else {}

        async def open_now() -> _Opened:
            while True:
                try:
                    return await self._open_once(identity, counts)
                except RaftMQError as error:
                    if not error.retriable or is_awaited():
                        raise
                await asyncio.sleep(LEDGER_POLL_SECONDS)

        return self._cluster.start(open_now)

    async def _open_once(self, identity: WriteIdentity, partition_counts: Mapping[int, int]) -> _Opened:
        steps = open_batch(identity, partition_counts, self._cluster.clock.now_ms())
        ask, time_ms = next(steps), 0
        try:
            while True:
                assert isinstance(ask, Claim)
                found = await self._claim_of(identity, ask)
                time_ms = time_ms or found.time_ms
                ask = steps.send(Answer(found.stamp, found.time_ms))
        except StopIteration as end:
            return _Opened(identity, end.value, time_ms)

    def _opened(self, identity: WriteIdentity, opening: Future[_Opened] | None = None) -> BatchLedger:
        opening = opening or self._begin_opening(identity, lambda: True)
        try:
            _latest[0] = opened = opening.result()
            self._opened_ms = self._opened_ms or opened.time_ms
            return opened.ledger
        except ProducerFencedError as error:
            writer = identity.name.rpartition("/")[0] or identity.name  # names that are lent have no topic
            raise LaterBatchError(f"{writer!r} has begun a later batch than {identity.epoch} before") from error

    def _enter(self, identity: WriteIdentity | None, sorter: Sorter) -> Identity | None:
        """Prove the rows. Return the identity under which to write them, or None when there are no rows."""
        if identity is None:
            return Identity(self._cluster.run(self._appender.anonymous_id), 0) if sorter.count else None
        if not sorter.count:
            self._ledger = self._opened(identity)  # another run of this task may have entered it
            if self._ledger.has(self._task):
                raise ReplayMismatchError(
                    f"task {self._task} of batch {identity.epoch} runs again without the rows it had"
                )
            return None
        digest = sorter.digest()
        try:
            self._ledger = self._agree(identity, self._entering(identity, digest))
        except ProducerFencedError:  # the copy of the ledger was older than the task's present round
            known, self._ledger = self._ledger, self._opened(identity)
            if self._ledger == known:
                raise
            self._ledger = self._agree(identity, self._entering(identity, digest))
        epoch = identity.name_epoch(self._ledger.round_of(self._task))
        return Identity(self._producer_ids[identity.task_name(self._task)], epoch)

    def _entering(self, identity: WriteIdentity, digest: bytes) -> Generator[Ask, Answer, BatchLedger]:
        return enter_batch(identity, self._task, digest, self._ledger, self._opened_ms, self._about_topics())

    def _about_topics(self) -> str:
        """Return the topics of the rows, for the message of an error, and whether one of them is not the one that the batch began with.

        In a topic with another number of partitions the rows of a task are divided in another way, so they are other rows.
        """
        names = sorted(self._topics)
        if not names:
            return ""
        more = f" and {len(names) - TOPICS_NAMED_MAX} more" if len(names) > TOPICS_NAMED_MAX else ""
        listed = ", ".join(names[:TOPICS_NAMED_MAX]) + more
        existing = {info.topic_id for info in (*self._cluster.resolver.topics.values(), *self._topics.values())}
        gone = len(self._ledger.partition_counts.keys() - existing)
        if not gone:
            return f" ({'topics' if names[1:] else 'topic'} {listed})"
        if self._options.topic is not None:
            return f" (topic {listed}, which was deleted and created again after the batch began)"
        was = "topic of the batch was" if gone == 1 else "topics of the batch were"
        return f" ({'topics' if names[1:] else 'topic'} {listed}; {gone} {was} deleted, and perhaps created again, after it began)"

    def _agree(self, identity: WriteIdentity, steps: Generator[Ask, Answer, BatchLedger]) -> BatchLedger:
        """Execute the requests of the steps until they end."""
        deadline, left = 0.0, TASKS_MAX + 1
        try:
            ask = next(steps)
            while True:
                if isinstance(ask, Claim):
                    answer = self._claim(identity, ask)
                elif isinstance(ask, Peek):
                    answer = self._peek(identity, ask)
                else:
                    if ask.left < left:
                        deadline, left = time.monotonic() + self._options.replay_timeout_seconds, ask.left
                    if time.monotonic() >= deadline:
                        raise self._waited_in_vain(identity, ask.waiting_for)
                    time.sleep(LEDGER_POLL_SECONDS)
                    answer = Answer()
                ask = steps.send(answer)
        except StopIteration as end:
            ledger = end.value
            assert isinstance(ledger, BatchLedger)
            _latest[0] = _Opened(identity, ledger, self._opened_ms)
            return ledger

    def _waited_in_vain(self, identity: WriteIdentity, task: int) -> ReplayMismatchError:
        """Record it, so that the next run of the batch begins a generation, in which no task waits."""
        hint = "run the batch with as many cores as before"
        if isinstance(self._columns, SinkColumns):
            self._agree(identity, mark_stalled(identity, self._agree(identity, open_batch(identity, {}))))
            hint = "start the query again: it then reads back the rows of the earlier run instead of waiting"
        return ReplayMismatchError(
            f"task {task} wrote in an earlier run of batch {identity.epoch} and did not come back, and for"
            f" {self._options.replay_timeout_seconds:g} s (replayTimeout) no other one did: the tasks differ from before, or there are too"
            f" few cores to run them all simultaneously; {hint}"
        )

    def _peek(self, identity: WriteIdentity, ask: Peek) -> Answer:
        try:
            return self._claim(identity, Claim(ask.name, b"", round_=ask.round_))
        except ProducerFencedError:
            return Answer()

    def _claim(self, identity: WriteIdentity, ask: Claim) -> Answer:
        found = self._cluster.run(lambda: self._claim_of(identity, ask))
        self._producer_ids[ask.name] = found.producer_id
        self._opened_ms = self._opened_ms or found.time_ms
        return Answer(found.stamp, found.time_ms, found.then)

    async def _claim_of(self, identity: WriteIdentity, ask: Claim) -> NamedEpoch:
        epoch = identity.name_epoch(ask.round_)
        then = None
        if ask.then is not None:
            entry = ask.then
            then = StampClaim(entry.name, identity.name_epoch(), entry.stamp, entry.replaces, entry.shared_bytes)
        found = await self._appender.claim(ask.name, epoch, ask.stamp, ask.replaces, then=then)
        self._cluster.clock.note(found.time_ms)
        return found


def writer_of(identity: WriteIdentity) -> Writer:
    """Return the writer in a topic's marks."""
    return Writer.of(identity.name, identity.name.rpartition("/")[0])


def _spill_directory() -> str | None:
    """Return the folder that Spark gives its tasks for temporary files."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
