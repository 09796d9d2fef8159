"""Exempt the modules of Spark's Python workers from garbage collection. Must not load large modules."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

REUSED: Final = "SPARK_REUSE_WORKER"
"""Spark sets this variable for Python workers that run one task after another."""
_exempt_modules = 0
"""Number of loaded modules when objects were last exempted. A fork inherits it with the objects."""


def exempt_modules() -> None:
    """Exempt all objects of a worker from garbage collection, each time that it has loaded more modules. Call it at the start of a task.

    Spark's daemon collects all garbage after each task, before it takes the next one. That visits every object of pyspark, pandas, Arrow
    and gRPC and takes longer than a small task. Cycles among the exempted objects are never freed. These are those of a few tasks, as a
    worker soon has loaded everything.
    """
    global _exempt_modules
    if REUSED in os.environ and len(sys.modules) > _exempt_modules:
        gc.freeze()
        _exempt_modules = len(sys.modules)
