"""Copy a topic as a program for `spark-submit`.

``submitted_job.py SERVERS SOURCE TARGET [register]`` prints a JSON line with the folder of each executor and the path of its RaftMQ package.
The program needs only RaftMQ's own requirements.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any


def where(rows: Iterator[Any]) -> Iterator[tuple[str, str]]:
    from pathlib import Path

    import raftmq

    assert list(rows), "a task without a record"
    yield str(Path.cwd()), str(raftmq.__file__)


def main(servers: str, source: str, target: str, registration: str = "") -> None:
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    if registration:
        from raftmq.spark import register

        register(spark)
    frame = spark.read.format("raftmq").option("bootstrap.servers", servers).option("subscribe", source).load()
    found = frame.rdd.mapPartitions(where).collect()
    stream = spark.readStream.format("raftmq").option("bootstrap.servers", servers).option("subscribe", source)
    copy = stream.option("startingOffsets", "earliest").load().select("key", "value", "partition").writeStream
    copy = copy.format("raftmq").option("bootstrap.servers", servers).option("topic", target)
    copy.option("checkpointLocation", "checkpoint").trigger(availableNow=True).start().awaitTermination()
    print(json.dumps(sorted(set(found))))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
