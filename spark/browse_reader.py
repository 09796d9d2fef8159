"""Implement Spark's reader interface for the messages of queue topics, which it shows as a table and leaves as they are.

`partitions` runs on the driver, and `read` of a pickled copy runs in tasks, one for each partition of the topics. Must not hold logic,
which is in `browse_pages` and `browse_arrow`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from raftmq.spark.browse_options import BrowseOptions, narrowed
from raftmq.spark.browse_pages import Browsed, browsed_partitions, fetch_pages
from raftmq.spark.cluster import cluster_of
from raftmq.spark.pushdown import NOTHING_PUSHED, pushed_from

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import Filter


@dataclass
class BrowsedPartition(InputPartition):
    """Carry the partition that one task shows."""

    browsed: Browsed


class BrowseReader(DataSourceReader):
    """Show the messages of queue topics for ``spark.read``."""

    def __init__(self, options: BrowseOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema
        self.pushed = NOTHING_PUSHED

    def partitions(self) -> list[InputPartition]:
        """Return the partitions of the topics that may hold wanted messages. Runs on the driver."""
        cluster = cluster_of(self.options.client)
        found = browsed_partitions(cluster, self.options)
        return [
            BrowsedPartition(browsed)
            for browsed in found
            if self.pushed.allows_partition(browsed.topic, browsed.partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one partition. Runs in a task."""
        from raftmq.spark.browse_arrow import browsed_batches
        from raftmq.spark.schema import arrow_schema

        if not isinstance(partition, BrowsedPartition):
            return  # Spark creates a partition of its own where there is none
        pages = fetch_pages(
            cluster_of(self.options.client),
            partition.browsed,
            self.options,
            with_bodies="value" in self.schema.fieldNames(),
        )
        yield from browsed_batches(pages, partition.browsed, arrow_schema(self.schema))


class PushdownBrowseReader(BrowseReader):
    """Show messages for queries that enable pushdown. It is a class of its own for the same reason as `PushdownReader`."""

    def pushFilters(self, filters: list[Filter]) -> list[Filter]:  # noqa: N802 - Spark's name
        """Narrow the read to what the filters allow. Return all filters, because the messages read may still exceed them."""
        self.pushed = pushed_from(filters)
        self.options = narrowed(self.options, self.pushed)
        return filters
