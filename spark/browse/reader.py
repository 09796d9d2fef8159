"""Implement Spark's reader interface for the messages of queue topics, which it shows as a table and leaves as they are.

`partitions` runs on the driver, and `read` of a pickled copy runs in tasks, one for each partition of the topics. Must not hold logic,
which is in `pages` and `arrow`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from raftmq.spark.base.worker_socket import WorkerReader
from raftmq.spark.browse.options import BrowseOptions
from raftmq.spark.browse.pages import Browsed, browsed_partitions, fetch_pages
from raftmq.spark.cluster.cluster import cluster_of

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class BrowsedPartition(InputPartition):
    """Carry the partition that one task shows."""

    browsed: Browsed


class BrowseReader(WorkerReader, DataSourceReader):
    """Show the messages of queue topics for ``spark.read``."""

    def __init__(self, options: BrowseOptions, schema: StructType) -> None:
        self.options = options
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        """Return all partitions of the topics. Runs on the driver."""
        cluster = cluster_of(self.options.client)
        return [BrowsedPartition(browsed) for browsed in browsed_partitions(cluster, self.options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the messages of one partition. Runs in a task."""
        from raftmq.spark.base.schema import arrow_schema
        from raftmq.spark.browse.arrow import browsed_batches

        if not isinstance(partition, BrowsedPartition):
            return  # Spark creates a partition of its own where there is none
        pages = fetch_pages(
            cluster_of(self.options.client),
            partition.browsed,
            self.options,
            with_bodies="value" in self.schema.fieldNames(),
        )
        yield from browsed_batches(pages, partition.browsed, arrow_schema(self.schema))
