"""Implement Spark's interface of a stream for queue topics, whose messages a query leases and settles. One class serves PySpark 4.0 to 4.3.

The plan lives in the driver's process. A task gets its messages from its `LeasedPartition`, or, when a batch is run again by another driver, reads
those that are still leased. Must not hold logic, which is in `plan` and `calls`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType
from raftmq.errors import UnknownTopicError
from raftmq.message_block import unpack_block
from raftmq.spark.base.worker_socket import WorkerReader
from raftmq.spark.browse.pages import Browsed, Page
from raftmq.spark.errors import InvalidOptionError, RaftMQSparkWarning
from raftmq.spark.leases.offsets import NO_LEASES, LeasesJson, leases_from_json
from raftmq.spark.leases.options import LeaseOptions
from raftmq.spark.leases.plan import LeasedShare, LeasePlan

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # before 4.2

        class SupportsTriggerAvailableNow:
            """Replace the interface that this version lacks."""


@dataclass
class LeasedPartition(InputPartition):
    """Carry the messages of one task."""

    share: LeasedShare


class LeaseReader(WorkerReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lease the messages of queue topics for ``spark.readStream``."""

    def __init__(self, options: LeaseOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self._plan: LeasePlan | None = None

    @property
    def plan(self) -> LeasePlan:
        """Return the query's plan, which exists in the driver's process only."""
        if self._plan is None:
            from raftmq.spark.cluster.cluster import cluster_of

            self._plan = LeasePlan(cluster_of(self.options.client), self.options)
        return self._plan

    def __getstate__(self) -> dict[str, object]:
        """Return the state that travels to tasks, without the plan, which holds connections."""
        return {"options": self.options, "schema": self.schema, "_plan": None}

    # ---------------------------------------------------------------------------------------------------- on the driver

    def initialOffset(self) -> LeasesJson:  # noqa: N802 - Spark's names, here and below
        """Return the start of a new query, which has leased nothing."""
        return NO_LEASES.to_json()

    def latestOffset(self, start: Mapping[str, object] | None = None, limit: ReadLimit | None = None) -> LeasesJson:  # noqa: N802
        """Settle the last batch, and lease the next one. Spark before 4.2 passes no arguments, later versions inspect the signature."""
        if limit is None and not self.options.allow_blind_cap:
            raise InvalidOptionError(
                "this version of Spark does not ask a Python source again after the last batch of Trigger.AvailableNow (4.2 does), so"
                " its messages would not be settled: set allowCapWithoutAdmissionControl=true if the query has another trigger"
            )
        if type(limit).__name__ == "ReadAllAvailable":
            raise InvalidOptionError(
                "Trigger.Once ends before the messages of its batch can be settled: use Trigger.AvailableNow"
            )
        messages_max = getattr(limit, "max_rows", self.options.messages_max)
        leases = None if start is None else leases_from_json(start)
        return self.plan.next_end(leases, messages_max).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set (4.2)."""
        from pyspark.sql.streaming.datasource import ReadMaxRows

        return ReadMaxRows(self.options.messages_max)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query when no message is ready (4.2)."""
        self.plan.prepare_available_now()

    def reportLatestOffset(self) -> dict[str, dict[str, int]] | None:  # noqa: N802
        """Return the number of messages in each state for the query's progress (4.2)."""
        counts = self.plan.counts()
        if counts is None:
            return None
        names = ("ready", "delayed", "leased", "dead", "blocked")
        return {topic: {name: getattr(one, name) for name in names} for topic, one in sorted(counts.items())}

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[InputPartition]:
        """Return the tasks of a batch."""
        shares = self.plan.shares(leases_from_json(start), leases_from_json(end))
        return [LeasedPartition(share) for share in shares]

    def commit(self, end: Mapping[str, object]) -> None:
        """Settle a batch. Usually `latestOffset` has done so, since Spark calls this only when the next batch is logged."""
        self.plan.commit(leases_from_json(end))

    def stop(self) -> None:
        """Give back messages that no batch has."""
        if self._plan is not None:
            self._plan.close()

    # ------------------------------------------------------------------------------------------------------- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one task."""
        from raftmq.spark.base.schema import arrow_schema
        from raftmq.spark.browse.arrow import browsed_batches

        if not isinstance(partition, LeasedPartition):
            return  # Spark creates a partition of its own where there is none
        share = partition.share
        pages = (
            (Page(unpack_block(block), (), 0) for block in share.blocks)
            if share.blocks
            else _read_again(self.options, share)
        )
        yield from browsed_batches(pages, Browsed(*share.name), arrow_schema(self.schema))


def _read_again(options: LeaseOptions, share: LeasedShare) -> Iterator[Page]:
    """Yield the messages of a share that are still leased under its tokens, and warn of the others."""
    from raftmq.spark.cluster.cluster import cluster_of
    from raftmq.spark.leases.calls import READS_MAX, read_leased

    cluster = cluster_of(options.client)
    timeout_seconds = options.client.request_timeout_ms / 1000
    tokens = [(run.first_sequence + at, run.lease_number) for run in share.runs for at in range(run.message_count)]
    found = 0
    for at in range(0, len(tokens), READS_MAX):
        some = tokens[at : at + READS_MAX]
        try:
            blocks = cluster.run(partial(read_leased, cluster.resolver, share.name, some, timeout_seconds))
        except UnknownTopicError:
            break  # deleted, and so are its messages
        for block in blocks:
            found += 1
            yield Page(block, (), 0)
    if found < len(tokens):
        text = (
            f"raftmq: a batch is run again with {found} of its {len(tokens)} messages of {share.name.topic}/{share.name.partition}: the"
            " others were released or rejected by the first run, or their topic was deleted, or their leases have ended, and then they"
            " come again in a later batch"
        )
        warnings.warn(text, RaftMQSparkWarning, stacklevel=2)
