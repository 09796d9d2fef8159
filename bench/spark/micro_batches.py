"""Measure how long a small micro-batch from topic to topic takes: ``python -m bench.spark.micro_batches [--batches 20]``.

A query copies a topic of four partitions to another one. A record is sent to each partition, and when the query has copied them, the
next ones are. Prints the medians of the parts of a batch, which Spark reports with each query's progress. Run it when nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import defaultdict
from typing import Any, Final

from raftmq import sync
from raftmq.testing import LocalCluster

from bench.spark.runs import session

PARTITIONS: Final = 4
WARM_UP: Final = 8
"""Batches that are not counted, while the JVM compiles its code."""


def measure(spark: Any, servers: str, batches: int, sink: dict[str, str]) -> list[dict[str, int]]:  # noqa: ANN401 - a session
    """Return the durations of the parts of each batch in milliseconds."""
    with (
        sync.Admin(bootstrap_servers=servers) as admin,
        sync.Producer(bootstrap_servers=servers) as producer,
        tempfile.TemporaryDirectory() as folder,
    ):
        for topic in ("from", "to"):
            admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
        read = spark.readStream.format("raftmq").options(**{"bootstrap.servers": servers, "subscribe": "from"})
        rows = read.option("startingOffsets", "earliest").load().select("key", "value")
        writer = rows.writeStream.format("raftmq").options(**{"bootstrap.servers": servers, "topic": "to"} | sink)
        query = writer.option("checkpointLocation", folder).start()
        found: list[dict[str, int]] = []
        seen = -1
        while len(found) < WARM_UP + batches:
            for partition in range(PARTITIONS):
                producer.send("from", b"x" * 100, partition=partition)
            producer.flush()
            while True:
                progress = [json.loads(one.json) for one in query.recentProgress]
                new = [one for one in progress if one["numInputRows"] and one["batchId"] > seen]
                if new:
                    break
                if not query.isActive:
                    raise RuntimeError(str(query.exception()))
                time.sleep(0.02)
            seen = new[-1]["batchId"]
            found += [one["durationMs"] for one in new]
        query.stop()
        for topic in ("from", "to"):
            admin.delete_topic(topic)
    return found[WARM_UP:]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark.micro_batches", description=__doc__)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument(
        "--sink", action="append", default=[], metavar="KEY=VALUE", help="option of the sink; repeatable"
    )
    found = parser.parse_args()
    sink = dict(text.split("=", 1) for text in found.sink)
    with LocalCluster(brokers=3) as cluster, session() as spark:
        parts: dict[str, list[int]] = defaultdict(list)
        for one in measure(spark, cluster.bootstrap_servers, found.batches, sink):
            for name, value in one.items():
                parts[name].append(value)
    for name, values in sorted(parts.items()):
        print(f"{name:20} {statistics.median(values):6.0f} ms, {min(values)} to {max(values)}")


if __name__ == "__main__":
    main()
