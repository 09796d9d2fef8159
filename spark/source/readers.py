"""Implement Spark's reader interfaces, which plan on the driver and read on the executors. One class serves PySpark 4.0 to 4.3.

Each reader exists twice: `partitions` and `latestOffset` run on the driver, and `read` of a pickled copy runs in tasks. So a task
gets its data from its `RangePartition` and the reader's options, and the driver creates its state at first use.

Must not hold logic, which is in `stream_plan`, `range_plan`, `range_fetch` and `arrow_batches`.
Source: ``pyspark.sql.datasource`` and ``pyspark.sql.streaming.datasource`` (4.2 for admission control, SPARK-55304).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType
from raftmq.errors import RaftMQError
from raftmq.spark.base.offsets import OffsetsJson, Position, position_from_json
from raftmq.spark.base.worker_socket import WorkerReader
from raftmq.spark.source.options import SourceOptions
from raftmq.spark.source.planning import OffsetRange
from raftmq.spark.source.pushdown import NOTHING_PUSHED, Pushed, pushed_from

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
    from raftmq.spark.source.stream_plan import StreamPlan
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # before 4.2

        class SupportsTriggerAvailableNow:
            """Replace the interface that this version lacks."""


@dataclass
class RangePartition(InputPartition):
    """Carry the ranges that one task reads."""

    ranges: tuple[OffsetRange, ...]


class _Planned(Protocol):
    @property
    def options(self) -> SourceOptions: ...
    @property
    def schema(self) -> StructType: ...


def _read(reader: _Planned, partition: InputPartition, pushed: Pushed = NOTHING_PUSHED) -> Iterator[pa.RecordBatch]:
    from raftmq.spark.base.schema import arrow_schema
    from raftmq.spark.cluster.cluster import cluster_of
    from raftmq.spark.source.arrow_batches import record_batches
    from raftmq.spark.source.range_fetch import fetch_ranges

    if not isinstance(partition, RangePartition):
        return  # Spark creates a partition of its own where there is none
    options = reader.options
    fetched = fetch_ranges(
        cluster_of(options.client),
        partition.ranges,
        timeout_ms=options.poll_timeout_ms,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    schema = arrow_schema(reader.schema)
    for range_, batches in fetched:
        wanted = (batch for batch in batches if pushed.may_match_times(batch.header))
        yield from record_batches(wanted, range_, schema)


class BatchReader(WorkerReader, DataSourceReader):
    """Read for ``spark.read``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.pushed = NOTHING_PUSHED

    def partitions(self) -> list[InputPartition]:
        """Return the ranges between the two bounds, divided among tasks as the options say. Runs on the driver."""
        from raftmq.spark.base.offsets import not_before
        from raftmq.spark.cluster.cluster import cluster_of
        from raftmq.spark.source.batch_cuts import BatchCuts
        from raftmq.spark.source.bounds import ending_position, existing_topics, starting_position
        from raftmq.spark.source.range_plan import plan_ranges, refuse_reversed
        from raftmq.spark.source.stream_plan import divide

        options = self.options
        view = cluster_of(options.client)
        topics = existing_topics(view, options.subscription)
        start = starting_position(view, options, topics)
        if options.reads_batches:
            end = not_before(BatchCuts(view).position(topics), start)
        else:
            end = ending_position(view, options, topics)
            refuse_reversed(start, end)
        planned = plan_ranges(view, start, end, fail_on_data_loss=options.fail_on_data_loss)
        return [RangePartition(ranges) for ranges in divide(self.pushed.cut(planned), options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the Arrow batches of one task's ranges. Runs in a task."""
        return _read(self, partition, self.pushed)


class PushdownReader(BatchReader):
    """Read for queries that enable pushdown. It is a class of its own because Spark refuses such a reader while its switch is off."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Record the bounds that the filters give. Return all filters, because the records read may still exceed them."""
        self.pushed = pushed_from(filters)
        return filters


class StreamReader(WorkerReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Read for ``spark.readStream``."""

    def __init__(self, options: SourceOptions | RaftMQError, schema: StructType) -> None:
        """Create a reader. `options` may be the error in them, which is raised at Spark's first call.

        If `streamReader` itself raised it, Spark (4.0 to 4.3) would hide it under an ``UnboundLocalError`` of its own, because it
        then stops a reader that it does not have.
        """
        self._options = options
        self.schema = schema
        self._plan: StreamPlan | None = None

    @property
    def options(self) -> SourceOptions:
        """Return the checked options. Raises `InvalidOptionError` when they are invalid."""
        if isinstance(self._options, RaftMQError):
            raise self._options
        return self._options

    @property
    def plan(self) -> StreamPlan:
        """Return the query's plan, which exists in the driver's process only."""
        if self._plan is None:
            from raftmq.spark.cluster.cluster import cluster_of
            from raftmq.spark.source.stream_plan import StreamPlan

            self._plan = StreamPlan(cluster_of(self.options.client), self.options)
        return self._plan

    def __getstate__(self) -> dict[str, object]:
        """Return the state that travels to tasks, without the plan, which holds connections."""
        return {"_options": self._options, "schema": self.schema, "_plan": None}

    # ---------------------------------------------------------------------------------------------------- on the driver

    def initialOffset(self) -> OffsetsJson:  # noqa: N802 - Spark's names, here and below
        """Return the offsets at which a new query begins."""
        return self.plan.initial().to_json()

    def latestOffset(self, start: Mapping[str, object] | None = None, limit: ReadLimit | None = None) -> OffsetsJson:  # noqa: N802
        """Return the end of the next batch. Spark before 4.2 passes no arguments, later versions inspect the signature."""
        from raftmq.spark.source.stream_plan import UNLIMITED, check_blind_cap, limits_of

        if limit is None:
            check_blind_cap(self.options)
            return self.plan.next_end(None, limits_of(self.options)).to_json()
        position = None if start is None else position_from_json(start)
        # Spark has no limit with both bounds. It passes the one of `getDefaultReadLimit`, or "all" where the trigger wants that.
        limits = UNLIMITED if type(limit).__name__ == "ReadAllAvailable" else limits_of(self.options)
        if (rows_max := getattr(limit, "max_rows", None)) is not None:
            limits = replace(limits, rows_max=rows_max)
        return self.plan.next_end(position, limits).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the limit that the options set (4.2)."""
        options = self.options
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

        if options.rows_max is not None:
            return ReadMaxRows(options.rows_max)
        if options.rows_min is not None:
            return ReadMinRows(options.rows_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """End the query after the records that exist now (4.2)."""
        self.plan.prepare_available_now()

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        """Return the ends of the partitions for the query's progress (4.2)."""
        newest: Position | None = self.plan.newest
        return None if newest is None else newest.to_json()

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[InputPartition]:
        """Return the tasks of a batch."""
        tasks = self.plan.tasks(position_from_json(start), position_from_json(end))
        return [RangePartition(ranges) for ranges in tasks]

    def commit(self, end: Mapping[str, object]) -> None:
        """Do nothing, because only the query's checkpoint records its progress."""

    def stop(self) -> None:
        """Do nothing. The connection ends with the process, which Spark ends with the query."""

    # ------------------------------------------------------------------------------------------------------- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the Arrow batches of one task's ranges."""
        return _read(self, partition)
