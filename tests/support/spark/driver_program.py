"""Run a Spark program as a separate process, for tests whose driver must not run in the tests' process.

``python -m tests.support.spark.driver_program {MASTER | connect} SERVERS TOPIC TARGET FOLDER`` reads the topic as a batch, copies it to the
target with a query under a `LagListener`, and prints one JSON line.
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

from tests.spark.conftest import QUICK_JAVA, SETTINGS

LISTENER_SECONDS = 60
EXECUTORS = {"spark.executor.memory": "512m", "spark.executor.extraJavaOptions": QUICK_JAVA}


def session(master: str) -> Any:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder
    builder = builder.remote("local[2]") if master == "connect" else builder.master(master)
    for name, value in (SETTINGS | EXECUTORS).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def executor_folders(batches: Iterator[Any]) -> Iterator[Any]:
    import os

    import pyarrow as pa

    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"folder": [os.getcwd()], "rows": [rows]})  # noqa: PTH109 - a plain name suffices


def main(master: str, servers: str, topic: str, target: str, folder: str) -> None:
    from raftmq.spark import LagListener, QueryLag

    spark = session(master)
    options = {"bootstrap.servers": servers, "subscribe": topic, "startingOffsets": "earliest"}
    frame = spark.read.format("raftmq").options(**options).load()
    values = sorted(int(row.value) for row in frame.select("value").collect())
    where = frame.mapInArrow(executor_folders, "folder string, rows long").collect()
    told: list[QueryLag] = []
    listener = LagListener(servers, on_lag=told.append)
    spark.streams.addListener(listener)
    stream = spark.readStream.format("raftmq").options(**options).load()
    writer = stream.select("value").writeStream.format("raftmq").option("checkpointLocation", f"{folder}/check")
    writer = writer.option("bootstrap.servers", servers).option("topic", target)
    writer.trigger(availableNow=True).start().awaitTermination(600)
    deadline = time.monotonic() + LISTENER_SECONDS
    # Spark tells its listeners later. In a Connect client, a session that stops before waits for them without end.
    while (not told or listener.lags()) and time.monotonic() < deadline:
        time.sleep(0.1)
    lags = [[lag.partitions[p].offset for p in sorted(lag.partitions)] + [lag.records] for lag in told]
    found = {"values": values, "lags": lags, "folders": sorted({row.folder for row in where if row.rows})}
    print(json.dumps(found))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
