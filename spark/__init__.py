"""Provide RaftMQ as the Spark source and sink ``raftmq``, which Spark finds through `pyspark_raftmq`.

Imports nothing itself: the public names are loaded on first use, and need pyspark.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from raftmq.spark.archive.history import read_history
    from raftmq.spark.archive.table import read_archive
    from raftmq.spark.leases.settling import reject, release
    from raftmq.spark.source.lag import PartitionLag, QueryLag
    from raftmq.spark.source.lag_listener import LagListener

__all__ = [
    "LagListener",
    "PartitionLag",
    "QueryLag",
    "read_archive",
    "read_history",
    "register",
    "reject",
    "release",
]

_HOMES: Final = {
    "LagListener": "raftmq.spark.source.lag_listener",
    "PartitionLag": "raftmq.spark.source.lag",
    "QueryLag": "raftmq.spark.source.lag",
    "read_archive": "raftmq.spark.archive.table",
    "read_history": "raftmq.spark.archive.history",
    "reject": "raftmq.spark.leases.settling",
    "release": "raftmq.spark.leases.settling",
}


def register(spark: SparkSession) -> None:
    """Register the format ``raftmq`` in a session. It is harmless where Spark finds the format by itself.

    Spark looks for formats in the installed packages of its interpreter. It does not find one in files that are sent along with a
    program (``--py-files``, ``addArtifacts``), nor one that was installed after it looked.
    """
    from raftmq.spark.data_source import RaftMQDataSource

    spark.dataSource.register(RaftMQDataSource)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
