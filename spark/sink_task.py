"""Run one task of a write: gather and sort its rows, prove that they are the batch's, and write each of them once.

The task writes under a producer of its own, named by query and task, whose epoch is the batch. Its n-th row in a partition has
sequence n, and brokers accept each sequence once. That needs the same rows in the same order each time the task runs. So before anything
is written

1. the ledger of the batch is opened, which also fixes the topic's number of partitions for this batch,
2. all rows are read and sorted: by partition and order column, and otherwise in the order in which they came,
3. their digest is claimed, and the task enters the ledger, as `batch_ledger` explains,
4. if the rows came in another order than before, earlier runs of the task are fenced and their rows are read back.

Must not decide which tasks may write (`batch_ledger`), nor cut or send batches (`partition_writer`).
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from raftmq.client.producer.identity import ProducerName
from raftmq.client.producer.sequenced_append import SequencedAppender
from raftmq.errors import ProducerFencedError
from raftmq.spark.batch_ledger import Ask, BatchLedger, Claim, Peek, WriteIdentity, enter_batch, open_batch
from raftmq.spark.cluster import Cluster, cluster_of
from raftmq.spark.log_batches import LogBatches
from raftmq.spark.partition_writer import Batches, Identity, PartitionWriter
from raftmq.spark.queue_batches import QueueBatches
from raftmq.spark.row_sorter import RowSorter, RowT
from raftmq.spark.sink_columns import SORTED_PARTS, RowBuilder, SinkColumns
from raftmq.spark.sink_errors import ReplayMismatchError
from raftmq.spark.sink_kinds import require_log
from raftmq.spark.sink_queue_columns import QueueColumns, QueueRowBuilder
from raftmq.spark.written_rows import Unwritten, WrittenRows

if TYPE_CHECKING:
    from raftmq.client.connection.resolver import TopicInfo
    from raftmq.spark.sink_chunks import Chunk
    from raftmq.spark.sink_columns import SinkRow
    from raftmq.spark.sink_options import SinkOptions

RestRowT = TypeVar("RestRowT", covariant=True)

LEDGER_POLL_SECONDS: Final = 0.5
"""Pause between reads of the ledger while a task waits for others. Each read is an entry in the metadata log."""


REQUEST_TIMEOUT_SECONDS: Final = 10.0
"""Time limit of one request about a name."""


@dataclass(frozen=True, slots=True)
class Written:
    """Report the rows that a task wrote."""

    rows: dict[str, int]
    """Number of rows per topic, including rows that an earlier run of the task had written."""
    is_replay: bool
    """Whether the batch was begun by an earlier attempt."""


class Builder(Protocol[RowT]):
    """Build sortable rows of one kind of topic from chunks."""

    def rows(self, chunk: Chunk) -> tuple[list[RowT], int]:
        """Return all rows of a chunk, and their size. Raises when a row cannot be written."""
        ...


class Rest(Protocol[RestRowT]):
    """Iterate over the rows of a task that earlier rounds have not written."""

    skipped: Counter[str]
    """Number of the other rows so far, by topic."""

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
        self._ledger = BatchLedger(0, 0)
        self._producer_ids: dict[str, int] = {}
        """Producer ids, by the claimed names."""
        self._opened_ms = 0
        """Time on a broker's clock when the ledger was opened."""

    def run(self, chunks: Iterable[Chunk]) -> Written:
        """Write all rows. Returns when they are on disk on a majority.

        Raises:
            ReplayMismatchError: the rows or the tasks differ from an earlier run of the batch. Nothing was written.
            SupersededError, ProducerFencedError: a later run of the batch, or a later batch, has begun.
            TopicKindMismatchError: a row's topic is a queue topic, and the option ``topic`` does not name it. Nothing was written.
            RaftMQError: as `RowBuilder.rows` or `QueueRowBuilder.rows` (nothing was written) and `PartitionWriter.write`.
        """
        identity, topic, options = self._identity, self._options.topic, self._options
        if identity is not None:
            counts = {topic: self._topic(topic).partition_count} if topic is not None else {}
            self._ledger = self._agree(identity, open_batch(identity, counts))
        columns = self._columns
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
            return Written(dict(written), self._is_replay)

    @property
    def _is_replay(self) -> bool:
        return self._identity is not None and self._ledger.first_attempt != self._identity.attempt

    @property
    def _no_time_ms(self) -> int:
        """Return the time of rows whose time is null."""
        return self._ledger.since_ms or time.time_ns() // 1_000_000

    def _unwritten(self, identity: WriteIdentity, rows: Iterable[SinkRow]) -> Unwritten:
        """Fence the earlier rounds of this task, and return the rows without those that they have written."""
        options, name, round_ = self._options, identity.task_name(self._task), self._ledger.round_of(self._task)
        producer = ProducerName(self._cluster.resolver, name, REQUEST_TIMEOUT_SECONDS)
        epoch, timeout_seconds = identity.name_epoch(round_), options.delivery_timeout_seconds
        producer_id = self._cluster.run(lambda: producer.claim(epoch, timeout_seconds))
        written = WrittenRows(
            self._cluster,
            {producer_id},
            range(identity.name_epoch(), epoch),
            self._ledger.since_ms,
            has_timestamps=isinstance(self._columns, SinkColumns) and self._columns.timestamp is not None,
            timeout_ms=options.client.request_timeout_ms,
        )
        return Unwritten(rows, self._no_time_ms, lambda topic, partition: written.count(self._topic(topic), partition))

    # ------------------------------------------------------------------------------------------------------------ topics

    def _topic(self, name: str, partition: int = 0) -> TopicInfo:
        """Return the topic. Refresh it if this process does not know `partition` yet, which may be new."""
        found = self._topics.get(name)
        if found is None or partition >= found.partition_count:
            known = max(partition, self._ledger.partition_counts.get(name, 1) - 1)
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
        count = self._topic(name).partition_count
        return min(self._ledger.partition_counts.get(name, count), count)

    # ---------------------------------------------------------------------------------------------------------- agreeing

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
        deadline = time.monotonic() + self._options.replay_timeout_seconds
        try:
            ask = next(steps)
            while True:
                if isinstance(ask, Claim):
                    answer = self._claim(identity, ask)
                elif isinstance(ask, Peek):
                    answer = self._peek(identity, ask)
                elif time.monotonic() < deadline:
                    time.sleep(LEDGER_POLL_SECONDS)
                    answer = b""
                else:
                    raise ReplayMismatchError(
                        f"task {ask.waiting_for} wrote in an earlier run of batch {identity.epoch} and did not come back within"
                        f" {self._options.replay_timeout_seconds:g} s (replayTimeout): the tasks differ from before, or there are"
                        " too few cores to run them all simultaneously"
                    )
                ask = steps.send(answer)
        except StopIteration as end:
            ledger = end.value
            assert isinstance(ledger, BatchLedger)
            return ledger

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
