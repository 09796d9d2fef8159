"""The thin module that Spark discovers by name: it finds `DefaultSource` here, so ``format("raftmq")`` needs no registration.

Spark imports every ``pyspark_*`` module there is, unguarded, when any Python source is looked up. So this import is light and cannot
fail, and where the source cannot be loaded (no pyspark, or one before 4.0) there is simply no `DefaultSource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raftmq.spark.source import RaftMQDataSource as DefaultSource

__all__ = ["DefaultSource"]


def __getattr__(name: str) -> object:
    if name != "DefaultSource":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from raftmq.spark.source import RaftMQDataSource
    except ImportError as error:  # Spark asks with hasattr, which forgives this one error only
        raise AttributeError(f"the Spark data source cannot be loaded: {error}") from error
    return RaftMQDataSource
