"""A driver of its own, to be killed: one streaming query from text files to a topic.

Usage: sink_driver.py SERVERS TOPIC FOLDER TASKS MASTER. FOLDER has in/ (the files) and gets checkpoint/. Ends when all files are written.
"""

import sys
from pathlib import Path

from tests.spark.conftest import SETTINGS, prepare_environment


def main(servers: str, topic: str, folder: str, tasks: str, master: str) -> None:
    prepare_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("sink driver").config("spark.executor.memory", "512m")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.config("spark.local.dir", f"{folder}/local").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    query = (
        spark.readStream.text(str(Path(folder) / "in"))
        .repartition(int(tasks))
        .writeStream.format("raftmq")
        .option("bootstrap.servers", servers)
        .option("topic", topic)
        .option("batchRecords", "1")  # a request for every 64 rows: there is time to be killed between them
        .option("replayTimeout", "20s")
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
