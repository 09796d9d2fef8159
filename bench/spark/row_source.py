"""The same source the plain way: one Python tuple per record. What Arrow gains is measured against it; nobody should use it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType
from raftmq.client.batch_codec import decode_records
from raftmq.spark.cluster import cluster_of
from raftmq.spark.range_fetch import fetch_range
from raftmq.spark.readers import BatchReader, RangePartition
from raftmq.spark.source import RaftMQDataSource
from raftmq.spark.source_options import read_source_options

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = tuple[bytes | None, bytes | None, str, int, int, datetime, int]


class RowReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[Row]:
        if not isinstance(partition, RangePartition):
            return
        range_, options = partition.range, self.options
        for batch in fetch_range(cluster_of(options.client), range_, timeout_ms=60_000, fail_on_data_loss=True):
            records = decode_records(batch.data, batch.header, range_.topic, range_.partition, batch.base_offset)
            for record in records[batch.first : batch.end]:
                moment = EPOCH + timedelta(milliseconds=record.timestamp)
                yield (record.key, record.value, record.topic, record.partition, record.offset, moment, 0)


class RowSource(RaftMQDataSource):
    @classmethod
    def name(cls) -> str:
        return "raftmq_rows"

    def reader(self, schema: StructType) -> RowReader:
        options, _ = read_source_options(self.options, is_streaming=False)
        return RowReader(options, schema)
