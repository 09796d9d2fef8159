"""Spark's reader interfaces: the driver's half plans, the executors' half reads. One class serves PySpark 4.0 to 4.3.

Two objects live apart: the one whose `partitions` and `latestOffset` run on the driver, and a pickled copy whose `read` runs in tasks.
So what a task needs is in its `RangePartition`, and what the driver tracks is made there at first use.

Must not hold logic: see `stream_plan`, `range_plan`, `range_fetch`, `arrow_batches`.
Source: ``pyspark.sql.datasource`` and ``pyspark.sql.streaming.datasource`` (4.2 for admission control, SPARK-55304).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType
from raftmq.errors import RaftMQError
from raftmq.spark.offsets import OffsetsJson, Position, position_from_json
from raftmq.spark.planning import OffsetRange, split
from raftmq.spark.pushdown import NOTHING_PUSHED, Pushed, pushed_from
from raftmq.spark.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter
    from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
    from raftmq.spark.stream_plan import StreamPlan
else:
    try:
        from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
    except ImportError:  # before 4.2

        class SupportsTriggerAvailableNow:
            """Stands for the interface that is not there."""


@dataclass
class RangePartition(InputPartition):
    """One task: a range and what it takes to read it."""

    range: OffsetRange


class _Planned(Protocol):
    @property
    def options(self) -> SourceOptions: ...
    @property
    def schema(self) -> StructType: ...


def _read(reader: _Planned, partition: InputPartition, pushed: Pushed = NOTHING_PUSHED) -> Iterator[pa.RecordBatch]:
    from raftmq.spark.arrow_batches import record_batches
    from raftmq.spark.cluster import cluster_of
    from raftmq.spark.range_fetch import fetch_range
    from raftmq.spark.schema import arrow_schema

    if not isinstance(partition, RangePartition):
        return  # Spark makes a partition of its own where there is none
    options = reader.options
    batches = fetch_range(
        cluster_of(options.client),
        partition.range,
        timeout_ms=options.poll_timeout_ms,
        fail_on_data_loss=options.fail_on_data_loss,
    )
    wanted = (batch for batch in batches if pushed.may_match_times(batch.header))
    yield from record_batches(wanted, partition.range, arrow_schema(reader.schema))


class BatchReader(DataSourceReader):
    """``spark.read``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.pushed = NOTHING_PUSHED

    def partitions(self) -> list[InputPartition]:
        """The ranges between the two bounds, split as asked. Runs on the driver."""
        from raftmq.spark.bounds import ending_position, existing_topics, starting_position
        from raftmq.spark.cluster import cluster_of
        from raftmq.spark.range_plan import plan_ranges

        options = self.options
        view = cluster_of(options.client)
        topics = existing_topics(view, options.subscription)
        start = starting_position(view, options, topics)
        end = ending_position(view, options, topics)
        planned = plan_ranges(view, start, end, fail_on_data_loss=options.fail_on_data_loss)
        return [RangePartition(range_) for range_ in split(self.pushed.cut(planned), options.partitions_min)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one range. Runs in a task."""
        return _read(self, partition, self.pushed)


class PushdownReader(BatchReader):
    """The same for queries that ask for pushdown: Spark refuses a reader that can do it while its own switch is off."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Note what helps to read less. All filters are left to Spark, too: what is read may still hold more."""
        self.pushed = pushed_from(filters)
        return filters


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``."""

    def __init__(self, options: SourceOptions | RaftMQError, schema: StructType) -> None:
        """Instead of `options`, what is wrong with them.

        It is raised at Spark's first question: whatever leaves `streamReader` itself, Spark (4.0 to 4.3) buries under an
        ``UnboundLocalError`` of its own, as it stops a reader that it does not have.
        """
        self._options = options
        self.schema = schema
        self._plan: StreamPlan | None = None

    @property
    def options(self) -> SourceOptions:
        """What was asked for. Raises `InvalidOptionError` when that cannot be."""
        if isinstance(self._options, RaftMQError):
            raise self._options
        return self._options

    @property
    def plan(self) -> StreamPlan:
        """The query's progress; in the driver's process only."""
        if self._plan is None:
            from raftmq.spark.cluster import cluster_of
            from raftmq.spark.stream_plan import StreamPlan

            self._plan = StreamPlan(cluster_of(self.options.client), self.options)
        return self._plan

    def __getstate__(self) -> dict[str, object]:
        """What travels to tasks: never the progress, which holds connections."""
        return {"_options": self._options, "schema": self.schema, "_plan": None}

    # ---------------------------------------------------------------------------------------------------- on the driver

    def initialOffset(self) -> OffsetsJson:  # noqa: N802 - Spark's names, here and below
        """Where a new query begins."""
        return self.plan.initial().to_json()

    def latestOffset(self, start: Mapping[str, object] | None = None, limit: ReadLimit | None = None) -> OffsetsJson:  # noqa: N802
        """The end of the next batch. Spark before 4.2 calls it without arguments; later ones look at the signature."""
        from raftmq.spark.stream_plan import UNLIMITED, check_blind_cap, limits_of

        if limit is None:
            check_blind_cap(self.options)
            return self.plan.next_end(None, limits_of(self.options)).to_json()
        position = None if start is None else position_from_json(start)
        # Spark has no limit of two sides: it hands back the one of `getDefaultReadLimit`, or "all" where the trigger wants that.
        limits = UNLIMITED if type(limit).__name__ == "ReadAllAvailable" else limits_of(self.options)
        if (rows_max := getattr(limit, "max_rows", None)) is not None:
            limits = replace(limits, rows_max=rows_max)
        return self.plan.next_end(position, limits).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """The limit that the options name (4.2)."""
        options = self.options
        from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

        if options.rows_max is not None:
            return ReadMaxRows(options.rows_max)
        if options.rows_min is not None:
            return ReadMinRows(options.rows_min)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """The query ends when it has read what is there now (4.2)."""
        self.plan.prepare_available_now()

    def reportLatestOffset(self) -> OffsetsJson | None:  # noqa: N802
        """Where the partitions end, for the query's progress (4.2)."""
        newest: Position | None = self.plan.newest
        return None if newest is None else newest.to_json()

    def partitions(self, start: Mapping[str, object], end: Mapping[str, object]) -> list[InputPartition]:
        """The tasks of a batch."""
        ranges = self.plan.ranges(position_from_json(start), position_from_json(end))
        return [RangePartition(range_) for range_ in ranges]

    def commit(self, end: Mapping[str, object]) -> None:
        """Nothing: the query's checkpoint is the only truth about what was read."""

    def stop(self) -> None:
        """Nothing: the connection ends with the process, which Spark ends with the query."""

    # ------------------------------------------------------------------------------------------------------- in a task

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Arrow batches of one range."""
        return _read(self, partition)
