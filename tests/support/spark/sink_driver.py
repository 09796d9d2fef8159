"""Run one streaming query from text files to a topic in a separate driver, which tests kill.

Usage: sink_driver.py SERVERS TOPIC FOLDER TASKS MASTER OPTIONS. OPTIONS is JSON with options of the sink. FOLDER has in/ (the files) and gets
checkpoint/. The driver ends when all files are written.
"""

import json
import os
import sys
from pathlib import Path

from tests.spark.conftest import QUICK_JAVA, SETTINGS, prepare_environment
from tests.support.spark import holding_daemon

ROOT = Path(__file__).resolve().parents[3]


def holding() -> dict[str, str]:
    """Return settings for Python workers of `holding_daemon` on executors that do not run in this checkout."""
    executors = {name: os.environ[name] for name in (holding_daemon.FOLDER, holding_daemon.HOLDS)}
    executors["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    there = {"spark.executor.extraJavaOptions": QUICK_JAVA} | {
        f"spark.executorEnv.{name}": value for name, value in executors.items()
    }
    return there | {"spark.python.daemon.module": holding_daemon.__name__}


def main(servers: str, topic: str, folder: str, tasks: str, master: str, options: str) -> None:
    prepare_environment()
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("sink driver").config("spark.executor.memory", "512m")
    for name, value in (SETTINGS | holding()).items():
        builder = builder.config(name, value)
    spark = builder.config("spark.local.dir", f"{folder}/local").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    query = (
        spark.readStream.text(str(Path(folder) / "in"))
        .repartition(int(tasks))
        .writeStream.format("raftmq")
        .option("bootstrap.servers", servers)
        .option("topic", topic)
        .option("batchRecords", "1")  # a request for every 64 rows, so a task sends several
        .option("replayTimeout", "20s")
        .options(**json.loads(options))
        .option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
