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

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.errors import ProducerFencedError
from raftmq.spark.batch_ledger import (
    TASKS_MAX,
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
from raftmq.spark.cluster import Cluster, cluster_of
from raftmq.spark.earlier_writers import EarlierWriters
from raftmq.spark.errors import InvalidOptionError
from raftmq.spark.left_out import missing_rows, repeated_hashes
from raftmq.spark.log_batches import LogBatches
from raftmq.spark.partition_writer import Batches, Identity, PartitionWriter
from raftmq.spark.queue_batches import QueueBatches
from raftmq.spark.row_sorter import RowSorter, RowT
from raftmq.spark.sink_columns import SORTED_PARTS, RowBuilder, SinkColumns, SinkRow
from raftmq.spark.sink_errors import LaterBatchError, ReplayMismatchError
from raftmq.spark.sink_kinds import require_log
from raftmq.spark.sink_queue_columns import QueueColumns, QueueRowBuilder
from raftmq.spark.written_rows import Unwritten, WrittenRows

if TYPE_CHECKING:
    from raftmq.client.connection.resolver import TopicInfo
    from raftmq.spark.sink_chunks import Chunk
    from raftmq.spark.sink_options import SinkOptions

RestRowT = TypeVar("RestRowT", covariant=True)

LEDGER_POLL_SECONDS: Final = 0.5
"""Pause between reads of the ledger while a task waits for others. Each read is an entry in the metadata log."""


@dataclass(frozen=True, slots=True)
class Written:
    """Report the rows that a task wrote."""

    rows: dict[str, int]
    """Number of rows per topic, including rows that an earlier run of the task had written."""
    is_replay: bool
    """Whether the batch was begun by an earlier attempt."""
    left_out: Mapping[tuple[str, int], bytes] = field(default_factory=dict)
    """As `Unwritten.left_out`."""


class Builder(Protocol[RowT]):
    """Build sortable rows of one kind of topic from chunks."""

    def rows(self, chunk: Chunk) -> tuple[list[RowT], int]:
        """Return all rows of a chunk, and their size. Raises when a row cannot be written."""
        ...


class Rest(Protocol[RestRowT]):
    """Iterate over the rows of a task that earlier rounds have not written."""

    skipped: Counter[str]
    """Number of the other rows so far, by topic."""
    left_out: dict[tuple[str, int], bytes]
    """Those of them that other tasks may have left out, too."""

    def __iter__(self) -> Iterator[RestRowT]:
        """Return the iterator. Use it once."""
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
        self._identity = identity
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

    def run(self, chunks: Iterable[Chunk]) -> Written:
        """Write all rows. Returns when they are on disk on a majority.

        Raises:
            ReplayMismatchError: the rows or the tasks differ from an earlier run of the batch. Nothing was written.
            SupersededError, ProducerFencedError: a later run of the batch has begun.
            LaterBatchError: a later batch has begun. Nothing was written.
            TopicKindMismatchError: a row's topic is a queue topic, and the option ``topic`` does not name it. Nothing was written.
            RaftMQError: as `RowBuilder.rows` or `QueueRowBuilder.rows` (nothing was written) and `PartitionWriter.write`.
        """
        identity, topic, options, columns = self._identity, self._options.topic, self._options, self._columns
        if identity is not None:
            if identity.finishes and isinstance(columns, QueueColumns):
                raise InvalidOptionError(
                    "delivery=finish is for log topics: messages that were taken cannot be read back"
                )
            self._open(identity)
        if isinstance(columns, QueueColumns):
            assert topic is not None  # `sink_kinds` finds these columns by the topic
            return self._write(
                chunks,
                QueueRowBuilder(columns, self._topic(topic), self._partition_count),
                QueueBatches(options.codec, options.batch_records_max),
                RowSorter(
                    options.sort_memory_bytes, _spill_directory()
                ),  # messages that were taken cannot be read back
                None,
            )
        timestamp_ms = None if columns.timestamp is not None else time.time_ns() // 1_000_000
        batches = LogBatches(options.codec, options.batch_records_max, timestamp_ms, lambda: self._no_time_ms)
        return self._write(
            chunks,
            RowBuilder(columns, options, self._partition_count, lambda name: self._topic(name).record_bytes_max),
            batches,
            RowSorter(
                options.sort_memory_bytes,
                _spill_directory(),
                parts=SORTED_PARTS,
                is_by_column=columns.order is not None,
            ),
            self._unwritten,
        )

    def _write(
        self,
        chunks: Iterable[Chunk],
        builder: Builder[RowT],
        batches: Batches[RowT],
        sorter: RowSorter[RowT],
        unwritten: Callable[[WriteIdentity, Iterable[RowT]], Rest[RowT]] | None,
    ) -> Written:
        with closing(sorter):
            for chunk in chunks:
                sorter.add(*builder.rows(chunk))
            producer = self._enter(self._identity, sorter)
            if producer is None:
                return Written({}, self._is_replay)
            writer = PartitionWriter(self._cluster, self._appender, producer, batches)
            if self._identity is None or unwritten is None or not self._ledger.round_of(self._task):
                return Written(writer.write(sorter, self._topic), self._is_replay)
            rows = unwritten(self._identity, sorter)
            written = Counter(writer.write(rows, self._topic))
            written.update(rows.skipped)
            return Written(dict(written), self._is_replay, rows.left_out)

    @property
    def _is_replay(self) -> bool:
        return self._identity is not None and self._ledger.runs > 1

    @property
    def _no_time_ms(self) -> int:
        """Return the time of rows whose time is null."""
        return self._ledger.since_ms or time.time_ns() // 1_000_000

    def _unwritten(self, identity: WriteIdentity, rows: Iterable[SinkRow]) -> Unwritten:
        """Fence the earlier rounds of this task, and return the rows without those that were written before."""
        earlier = self._earlier(identity)
        own = self._written_by(earlier.fence_own(self._ledger, self._task))
        old = self._written_by(earlier.old(self._ledger))
        return Unwritten(
            rows,
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
        old = self._written_by(self._earlier(identity).old(self._ledger))
        missing = (
            (topic.encode(), partition, 0, *content)
            for (topic, partition), counts in repeated.items()
            for content in missing_rows(counts, old.rows(self._topic(topic), partition))
        )
        options = self._options
        batches = LogBatches(options.codec, options.batch_records_max, None)
        if isinstance(self._columns, SinkColumns) and self._columns.timestamp is None:
            batches = LogBatches(options.codec, options.batch_records_max, time.time_ns() // 1_000_000)
        with closing(RowSorter[SinkRow](options.sort_memory_bytes, _spill_directory())) as sorter:
            for row in missing:
                sorter.add([row], len(row[4]) + len(row[6]) + len(row[7]))
            producer = self._enter(identity, sorter)
            if producer is None:
                return 0
            PartitionWriter(self._cluster, self._appender, producer, batches).write(sorter, self._topic)
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
        """Open the ledger, and fence the writers of earlier generations."""
        topic = self._topic(self._options.topic) if self._options.topic is not None else None
        counts = {topic.topic_id: topic.partition_count} if topic is not None else {}
        try:
            self._ledger = self._agree(identity, open_batch(identity, counts))
        except ProducerFencedError as error:
            raise LaterBatchError(
                f"{identity.name.partition('/')[0]!r} has begun a later batch than {identity.epoch} before"
            ) from error
        self._ledger = self._earlier(identity).fence_old(self._ledger)

    def _enter(self, identity: WriteIdentity | None, sorter: RowSorter[RowT]) -> Identity | None:
        """Prove the rows. Return the identity under which to write them, or None when there are no rows."""
        if not sorter.count:
            if identity is not None and self._ledger.has(self._task):
                raise ReplayMismatchError(
                    f"task {self._task} of batch {identity.epoch} runs again without the rows it had"
                )
            return None
        if identity is None:
            return Identity(self._cluster.run(self._appender.anonymous_id), 0)
        steps = enter_batch(identity, self._task, sorter.digest(), self._ledger, self._opened_ms)
        self._ledger = self._agree(identity, steps)
        epoch = identity.name_epoch(self._ledger.round_of(self._task))
        return Identity(self._producer_ids[identity.task_name(self._task)], epoch)

    def _agree(self, identity: WriteIdentity, steps: Generator[Ask, bytes, BatchLedger]) -> BatchLedger:
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
                    answer = b""
                ask = steps.send(answer)
        except StopIteration as end:
            ledger = end.value
            assert isinstance(ledger, BatchLedger)
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

    def _peek(self, identity: WriteIdentity, ask: Peek) -> bytes:
        try:
            return self._claim(identity, Claim(ask.name, b"", round_=ask.round_))
        except ProducerFencedError:
            return b""

    def _claim(self, identity: WriteIdentity, ask: Claim) -> bytes:
        epoch = identity.name_epoch(ask.round_)
        found = self._cluster.run(lambda: self._appender.claim(ask.name, epoch, ask.stamp, ask.replaces))
        self._producer_ids[ask.name] = found.producer_id
        self._opened_ms = self._opened_ms or found.time_ms
        return found.stamp


def _spill_directory() -> str | None:
    """Return the folder that Spark gives its tasks for temporary files."""
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
