"""Provide sources and sinks that do nothing, or do the work the plain way, for comparison only.

- `ReadySource` hands over prepared Arrow batches. No source in Python can be faster.
- `RowSource` reads RaftMQ as one Python tuple per record, which shows the gain of Arrow.
- `NothingSink` drops Arrow batches. No sink in Python can be faster.

Both also run micro-batches, with the same care for Spark's workers as the real ones (`worker_garbage`, `worker_socket`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from raftmq.client.codec.batch import decode_records
from raftmq.spark.base.schema import arrow_schema, source_schema
from raftmq.spark.base.worker_garbage import exempt_modules
from raftmq.spark.base.worker_socket import WorkerReader, acknowledge
from raftmq.spark.cluster.cluster import cluster_of
from raftmq.spark.data_source import RaftMQDataSource
from raftmq.spark.source.options import read_source_options
from raftmq.spark.source.range_fetch import fetch_range
from raftmq.spark.source.readers import BatchReader, RangePartition

if TYPE_CHECKING:
    import pyarrow as pa

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
READY_ROWS = 16_384
"""Rows in a batch, as in the source's own."""
Row = tuple[bytes | None, bytes | None, str, int, int, datetime, int]


class ReadyReader(WorkerReader, DataSourceReader):
    def __init__(self, rows: int, tasks: int, record_bytes: int, schema: StructType) -> None:
        self.rows = rows
        self.tasks = tasks
        self.record_bytes = record_bytes
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(self.tasks)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        exempt_modules()
        columns = {
            "key": pa.nulls(READY_ROWS, pa.binary()),
            "value": pa.array([b"x" * self.record_bytes] * READY_ROWS, pa.binary()),
            "topic": pa.array(["bench"] * READY_ROWS, pa.string()),
            "partition": pa.array([0] * READY_ROWS, pa.int32()),
            "offset": pa.array(range(READY_ROWS), pa.int64()),
            "timestamp": pa.array([0] * READY_ROWS, pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array([0] * READY_ROWS, pa.int32()),
        }
        ready = pa.RecordBatch.from_pydict(columns, schema=arrow_schema(self.schema))
        left = self.rows // self.tasks
        while left > 0:
            yield ready.slice(0, min(READY_ROWS, left))
            left -= READY_ROWS


class ReadyStreamReader(ReadyReader, DataSourceStreamReader):
    """Have a new batch whenever Spark asks."""

    number = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's names, here and below
        return {"batch": 0}

    def latestOffset(self) -> dict[str, int]:  # type: ignore[override]  # noqa: N802
        self.number += 1
        return {"batch": self.number}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:  # type: ignore[override]
        return ReadyReader.partitions(self)


class ReadySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bench_ready"

    def schema(self) -> StructType:
        return source_schema(None, include_headers=False)

    def reader(self, schema: StructType) -> ReadyReader:
        return ReadyReader(*self._numbers, schema)

    def streamReader(self, schema: StructType) -> ReadyStreamReader:  # noqa: N802
        return ReadyStreamReader(*self._numbers, schema)

    @property
    def _numbers(self) -> tuple[int, int, int]:
        return int(self.options["rows"]), int(self.options["tasks"]), int(self.options["recordBytes"])


class RowReader(BatchReader):
    def read(self, partition: InputPartition) -> Iterator[Row]:
        if not isinstance(partition, RangePartition):
            return
        (range_,), options = partition.ranges, self.options
        for batch in fetch_range(cluster_of(options.client), range_, timeout_ms=60_000, fail_on_data_loss=True):
            records = decode_records(batch.data, batch.header, range_.topic, range_.partition, batch.base_offset)
            for record in records[batch.first : batch.end]:
                moment = EPOCH + timedelta(milliseconds=record.timestamp)
                yield (record.key, record.value, record.topic, record.partition, record.offset, moment, 0)


class RowSource(RaftMQDataSource):
    @classmethod
    def name(cls) -> str:
        return "bench_rows"

    def reader(self, schema: StructType) -> RowReader:
        options, _ = read_source_options(self.options, is_streaming=False)
        return RowReader(options, schema)


class NothingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        acknowledge()
        exempt_modules()
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None: ...

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None: ...


class NothingStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        acknowledge()
        exempt_modules()
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None: ...  # noqa: N803

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None: ...  # noqa: N803


class NothingSink(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bench_nothing"

    def writer(self, schema: StructType, overwrite: bool) -> NothingWriter:
        return NothingWriter()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NothingStreamWriter:  # noqa: N802
        exempt_modules()
        return NothingStreamWriter()
