"""Provide `DefaultSource` to Spark, which discovers this module by its name, so ``format("raftmq")`` needs no registration.

Spark imports every installed ``pyspark_*`` module, unguarded, when it looks up any Python source. So this import is light and cannot
fail. If the source cannot be loaded (no pyspark, or one before 4.0), the module has no `DefaultSource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raftmq.spark.data_source import RaftMQDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from raftmq.spark.data_source import RaftMQDataSource
    except ImportError as error:  # Spark asks with hasattr, which tolerates only this error
        raise AttributeError(f"the Spark data source cannot be loaded: {error}") from error
    return RaftMQDataSource
