"""The driver's part of the sink loads no large modules, because Spark runs it in two processes of their own."""

import subprocess
import sys

PROGRAM = """
import sys
from pyspark.sql.types import StringType, StructField, StructType
import pyspark.sql.worker.write_into_data_source

before = set(sys.modules)
from raftmq.spark.data_source import RaftMQDataSource

options = {"bootstrap.servers": "127.0.0.1:1", "topic": "t", "compression.type": "zstd"}
schema = StructType([StructField("value", StringType())])
writer = RaftMQDataSource(options).streamWriter(schema, False)
from raftmq.spark.sink.writers import TaskDone

writer.commit([TaskDone({"t": 1})], 7)
print(sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""
LARGE = {"grpc", "google", "numpy", "pandas", "pyarrow", "msgspec", "asyncio"}


def test_planning_and_committing_a_batch_load_no_large_modules() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert "raftmq" in found.stdout
    assert not {name for name in LARGE if repr(name) in found.stdout}
