"""Register the format for a session whose Spark cannot find it by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """Register the format ``raftmq`` in a session. It is harmless where Spark finds the format by itself.

    Spark looks for formats in the installed packages of its interpreter. It does not find one in files that are sent along with a
    program (``--py-files``, ``addArtifacts``), nor one that was installed after it looked.
    """
    from raftmq.spark.source import RaftMQDataSource

    spark.dataSource.register(RaftMQDataSource)
