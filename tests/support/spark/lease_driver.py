"""Run one query that leases the messages of a queue topic in a separate driver, which a test kills in the middle of its first batch.

Usage: lease_driver.py SERVERS TOPIC FOLDER. FOLDER gets checkpoint/ and the file worked, with the values of the batch.
"""

import sys
import threading
from pathlib import Path
from typing import Any

from tests.spark.conftest import SETTINGS, prepare_environment


def main(servers: str, topic: str, folder: str) -> None:
    prepare_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("lease driver")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.local.dir", f"{folder}/local").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")

    def work(batch: Any, number: int) -> None:
        values = sorted(row.value.decode() for row in batch.collect())
        unfinished = Path(folder) / "working"
        unfinished.write_text("\n".join(values))
        unfinished.rename(Path(folder) / "worked")
        threading.Event().wait()  # until it is killed

    reader = spark.readStream.format("raftmq").option("bootstrap.servers", servers).option("subscribe", topic)
    writer = reader.option("kind", "queue").load().writeStream.foreachBatch(work)
    writer.option("checkpointLocation", f"{folder}/checkpoint").start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
