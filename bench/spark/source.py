"""Measures the Spark source in batch mode, and beside it the same records read as Python rows, and without Spark.

Usage: python -m bench.spark.source [--records 2000000] [--rounds 3] [--codec none] [--output results.json]

One broker, four partitions, records of 100 bytes, Spark on two cores of the same machine with a sink that takes everything and keeps
nothing. Rounds go round the ways of reading; figures are medians of records per second, and ratios of one run. Run it when nothing
else runs.

- ``arrow``: the source, all its columns
- ``arrow_offsets``: the source with ``columns=offset``: what the payloads cost
- ``rows``: the same fetching, one Python tuple per record (`row_source.py`): what Arrow gains
- ``fetch``: fetching and checking batches in one process, without Spark and without decoding: the brokers' and the network's share
- ``decode``: the same with Arrow batches made of them: everything that is ours in a task
- ``spark_range``: Spark alone: as many rows of its own (`spark.range`) into the same sink
- ``spark_arrow``: Spark and a source that hands over Arrow batches it has ready: what no source can be faster than
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any  # pyspark objects: its DataFrame and its session have several classes

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType
from raftmq import sync
from raftmq.spark.arrow_batches import record_batches
from raftmq.spark.cluster import cluster_of
from raftmq.spark.range_fetch import fetch_range
from raftmq.spark.readers import BatchReader, RangePartition
from raftmq.spark.schema import arrow_schema, source_schema
from raftmq.spark.source_options import read_source_options
from raftmq.testing import LocalCluster

from bench.machine import facts, load_average, probe_disk

PARTITIONS = 4
RECORD_BYTES = 100
SETTINGS = {
    "spark.driver.memory": "1g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class ReadyReader(DataSourceReader):
    """Hands over the same Arrow batch again and again."""

    def __init__(self, rows: int, schema: StructType) -> None:
        self.rows = rows
        self.schema = schema

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[Any]:  # a pyarrow.RecordBatch
        import pyarrow as pa

        size = 16_384
        columns = {
            "key": pa.nulls(size, pa.binary()),
            "value": pa.array([b"x" * RECORD_BYTES] * size, pa.binary()),
            "topic": pa.array(["bench"] * size, pa.string()),
            "partition": pa.array([0] * size, pa.int32()),
            "offset": pa.array(range(size), pa.int64()),
            "timestamp": pa.array([0] * size, pa.timestamp("us", tz="UTC")),
            "timestampType": pa.array([0] * size, pa.int32()),
        }
        ready = pa.RecordBatch.from_pydict(columns, schema=arrow_schema(self.schema))
        left = self.rows // PARTITIONS
        while left > 0:
            yield ready.slice(0, min(size, left))
            left -= size


class ReadySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "bench_ready"

    def schema(self) -> StructType:
        return source_schema(None, include_headers=False)

    def reader(self, schema: StructType) -> ReadyReader:
        return ReadyReader(int(self.options["rows"]), schema)


def fill(servers: str, records: int, codec: str) -> str:
    """Write the records; returns the topic's name."""
    with sync.Admin(bootstrap_servers=servers) as admin:
        admin.create_topic("bench", partitions=PARTITIONS, replication_factor=1)
    values = [(None, f"{number:0{RECORD_BYTES}d}".encode()) for number in range(100_000)]
    with sync.Producer(bootstrap_servers=servers, compression_type=codec) as producer:
        for partition in range(PARTITIONS):
            left = records // PARTITIONS
            while left > 0:
                producer.send_many("bench", values[:left], partition=partition).result()
                left -= len(values)
    return "bench"


def without_spark(options: dict[str, str], *, decode: bool) -> int:
    """Read every partition here, one after the other; returns the number of records."""
    found, _ = read_source_options(options, is_streaming=False)
    schema = source_schema(None, include_headers=False)
    reader = BatchReader(found, schema)
    count = 0
    for task in reader.partitions():
        assert isinstance(task, RangePartition)
        batches = fetch_range(cluster_of(found.client), task.range, timeout_ms=60_000, fail_on_data_loss=True)
        if decode:
            count += sum(batch.num_rows for batch in record_batches(batches, task.range, arrow_schema(schema)))
        else:
            count += sum(batch.end - batch.first for batch in batches)
    return count


def drain(frame: Any) -> None:  # noqa: ANN401 - a pyspark DataFrame, of either kind
    """Read everything, keep nothing."""
    frame.write.format("noop").mode("overwrite").save()


def ways(
    spark: Any,  # noqa: ANN401 - a pyspark SparkSession, of either kind
    options: dict[str, str],
    records: int,
) -> dict[str, Callable[[], object]]:
    """The ways of reading, by name."""
    from bench.spark.row_source import RowSource

    spark.dataSource.register(RowSource)
    spark.dataSource.register(ReadySource)

    def load(name: str, **more: str) -> Any:  # noqa: ANN401 - a pyspark DataFrame, of either kind
        return spark.read.format(name).options(**options, **more).load()

    assert load("raftmq").count() == records
    return {
        "arrow": lambda: drain(load("raftmq")),
        "arrow_offsets": lambda: drain(load("raftmq", columns="offset")),
        "rows": lambda: drain(load("raftmq_rows")),
        "fetch": lambda: without_spark(options, decode=False),
        "decode": lambda: without_spark(options, decode=True),
        "spark_range": lambda: drain(spark.range(0, records, 1, PARTITIONS)),
        "spark_arrow": lambda: drain(spark.read.format("bench_ready").option("rows", records).load()),
    }


def measure(chosen: dict[str, Callable[[], object]], records: int, rounds: int) -> dict[str, list[float]]:
    """Records per second of each way in each round, after one round that warms up."""
    found: dict[str, list[float]] = {name: [] for name in chosen}
    for number in range(rounds + 1):
        for name, read in chosen.items():
            started = time.perf_counter()
            read()
            speed = records / (time.perf_counter() - started)
            print(f"round {number or 'warm-up'}: {name} {speed:,.0f} records/s", file=sys.stderr)
            if number:
                found[name].append(speed)
    return found


def table(found: dict[str, list[float]]) -> str:
    """Medians, spreads, and ratios to reading rows."""
    rows = statistics.median(found["rows"])
    lines = [f"{'way':<14} {'records/s':>12} {'spread':>25} {'x rows':>7}"]
    for name, values in found.items():
        middle = statistics.median(values)
        spread = f"{min(values):,.0f} to {max(values):,.0f}"
        lines.append(f"{name:<14} {middle:>12,.0f} {spread:>25} {middle / rows:>7.2f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--codec", default="none", choices=("none", "lz4", "zstd", "snappy"))
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    records = arguments.records // PARTITIONS * PARTITIONS
    print(f"load average {load_average():.2f}", file=sys.stderr)
    with LocalCluster(brokers=1) as cluster:
        options = {"bootstrap.servers": cluster.bootstrap_servers, "subscribe": "bench"}
        fill(cluster.bootstrap_servers, records, arguments.codec)
        builder = SparkSession.builder.master("local[2]").appName("raftmq bench")
        for name, value in SETTINGS.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
        try:
            found = measure(ways(spark, options, records), records, arguments.rounds)
        finally:
            spark.stop()
    print(table(found))
    if arguments.output:
        report = {"machine": facts(probe_disk()), "records": records, "codec": arguments.codec, "speeds": found}
        arguments.output.write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
