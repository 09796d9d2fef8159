"""One task of a write: gathers and sorts its rows, proves that they are the batch's, and writes each of them once.

What makes it once: the task writes under a producer of its own (name of query and task, epoch the batch), its n-th row in a partition
under sequence n, and brokers take each sequence once. That needs the same rows each time the task runs, so before anything is written

1. the ledger of the batch is opened, which also fixes how many partitions the topic has for this batch;
2. all rows are read, and their digest is claimed under the task's name: another digest than an earlier run's is refused;
3. the task enters itself in the ledger and, if it has not written in an earlier run, waits until all that have are in it.

See `batch_ledger` for why. Nothing can be left out: Spark tells a task neither how many there are nor that it runs again.

Deviation: Kafka's sink promises at least once, and Spark's own idempotent sinks compare the batch id alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raftmq.client.exact_append import ExactAppender, NamedEpoch
from raftmq.spark.batch_ledger import BatchLedger
from raftmq.spark.cluster import Cluster, cluster_of
from raftmq.spark.partition_writer import Identity, PartitionWriter
from raftmq.spark.row_sorter import RowSorter
from raftmq.spark.sink_columns import Chunk, RowBuilder, SinkColumns, SinkRow
from raftmq.spark.sink_errors import ReplayMismatchError

if TYPE_CHECKING:
    from raftmq.client.resolver import TopicInfo
    from raftmq.spark.sink_options import SinkOptions

LEDGER_POLL_SECONDS: Final = 0.25
"""Between looks at the ledger while a task waits for others; each look is an entry in the metadata log."""


@dataclass(frozen=True, slots=True)
class WriteIdentity:
    """What is written: the same three are written once."""

    name: str
    """Of the query, or of one batch write."""
    epoch: int
    """Of the batch within the query."""
    attempt: int
    """Of the driver's run of the batch; see `BatchLedger.attempt`."""

    @property
    def ledger_name(self) -> str:
        """Under which the batch's ledger is."""
        return f"spark-ledger/{self.name}"

    def task_name(self, task: int) -> str:
        """The producer's name of one task."""
        return f"spark-task/{task}/{self.name}"


@dataclass(frozen=True, slots=True)
class Written:
    """What a task wrote."""

    rows: dict[str, int]
    """Per topic; those count that an earlier run of the task had written already."""
    is_replay: bool
    """Whether the batch was begun by an earlier attempt."""


class SinkTask:
    """See the module. Use once, in the task's process."""

    def __init__(self, options: SinkOptions, columns: SinkColumns, identity: WriteIdentity | None, task: int) -> None:
        """Without `identity` the rows are written at least once: each run of the task writes all of them."""
        self._options = options
        self._columns = columns
        self._identity = identity
        self._task = task
        self._cluster: Cluster = cluster_of(options.client)
        self._appender = ExactAppender(
            self._cluster.resolver, delivery_timeout_seconds=options.delivery_timeout_seconds
        )
        self._topics: dict[str, TopicInfo] = {}
        self._ledger = BatchLedger(0)

    def run(self, chunks: Iterable[Chunk]) -> Written:
        """Write all rows; returns when they are on disk on a majority.

        Raises:
            ReplayMismatchError: the rows, or the tasks, are not those of an earlier run of the batch. Nothing was written.
            SupersededError, ProducerFencedError: a later run of the batch, or a later batch, has begun.
            RaftMQError: as `RowBuilder.rows` (nothing was written) and `PartitionWriter.write`.
        """
        if self._identity is not None:
            self._open_ledger(self._identity)
        directory = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        with closing(RowSorter[SinkRow](self._options.sort_memory_bytes, directory)) as sorter:
            builder = RowBuilder(self._columns, self._options, self._partition_count)
            for chunk in chunks:
                for row, size in builder.rows(chunk):
                    sorter.add(row, size)
            producer = self._enter(self._identity, sorter)
            if producer is None:
                return Written({}, self._is_replay)
            has_timestamps = self._columns.timestamp is not None
            writer = PartitionWriter(
                self._cluster,
                self._appender,
                producer,
                codec=self._options.codec,
                batch_records_max=self._options.batch_records_max,
                timestamp_ms=None if has_timestamps else time.time_ns() // 1_000_000,
            )
            return Written(writer.write(sorter, self._topic), self._is_replay)

    @property
    def _is_replay(self) -> bool:
        return self._identity is not None and (
            self._ledger.prior != 0 or self._ledger.attempt != self._identity.attempt
        )

    # ------------------------------------------------------------------------------------------------------------ topics

    def _topic(self, name: str) -> TopicInfo:
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = self._cluster.run(
                lambda: self._cluster.resolver.topic(name, self._options.client.request_timeout_ms / 1000)
            )
        return found

    def _partition_count(self, name: str) -> int:
        """As many as the topic had when the batch was first run."""
        fixed = self._ledger.partition_counts.get(name)
        count = self._topic(name).partition_count
        return count if fixed is None else min(fixed, count)

    # ---------------------------------------------------------------------------------------------------------- agreeing

    def _open_ledger(self, identity: WriteIdentity) -> None:
        counts = {self._options.topic: self._topic(self._options.topic).partition_count} if self._options.topic else {}
        opened = self._claim(
            identity.ledger_name, identity.epoch, BatchLedger(identity.attempt, partition_counts=counts).encode()
        )
        self._ledger = BatchLedger.decode(opened.stamp)
        self._ledger.check_attempt(identity.attempt)

    def _enter(self, identity: WriteIdentity | None, sorter: RowSorter[SinkRow]) -> Identity | None:
        """Prove the rows; returns under what to write them, or None when there are none."""
        if not sorter.count:
            if self._ledger.is_entered(self._task):
                raise self._mismatch("it has no rows, and had some")
            return None
        if identity is None:
            return Identity(self._cluster.run(self._appender.anonymous_id), 0)
        digest = sorter.digest()
        claimed = self._claim(identity.task_name(self._task), identity.epoch, digest)
        if claimed.stamp != digest:
            before = int.from_bytes(claimed.stamp[:8], "little")
            raise self._mismatch(f"it has {sorter.count} rows that are not the {before} rows it had")
        self._join_ledger(identity)
        return Identity(claimed.producer_id, claimed.epoch)

    def _join_ledger(self, identity: WriteIdentity) -> None:
        deadline = time.monotonic() + self._options.replay_timeout_seconds
        while True:
            self._join_once(identity)
            waiting_for = self._ledger.unproved(identity.attempt)
            if not waiting_for or self._ledger.is_prior(self._task):
                return
            if time.monotonic() > deadline:
                raise self._mismatch(
                    f"task {waiting_for[0]} wrote in an earlier run of the batch and did not come back within"
                    f" {self._options.replay_timeout_seconds:g} s: there are fewer tasks than before, or too few cores to"
                    " run as many at once"
                )
            time.sleep(LEDGER_POLL_SECONDS)

    def _join_once(self, identity: WriteIdentity) -> None:
        """Enter the task in the newest ledger, however many others do the same."""
        known = self._ledger
        while True:
            wanted = known.joined(identity.attempt, self._task).encode()
            stamp = known.encode()
            found = self._claim(identity.ledger_name, identity.epoch, wanted, stamp).stamp
            known = self._ledger = BatchLedger.decode(found)
            if found == wanted:
                return

    def _claim(self, name: str, epoch: int, stamp: bytes, replaces: bytes | None = None) -> NamedEpoch:
        return self._cluster.run(lambda: self._appender.claim(name, epoch, stamp, replaces))

    def _mismatch(self, what: str) -> ReplayMismatchError:
        epoch = self._identity.epoch if self._identity is not None else 0
        return ReplayMismatchError(f"task {self._task} of batch {epoch} runs again: {what}; nothing was written")
