"""Exempt the modules of Spark's Python workers from garbage collection. Must not load large modules."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

REUSED: Final = "SPARK_REUSE_WORKER"
"""Spark sets this variable for Python workers that run one task after another."""
EXEMPTIONS_MAX: Final = 4
"""A worker has loaded everything after a few tasks. Programs that load new modules all the time would keep the objects of every task."""
_exemptions = 0
_exempt_modules = 0
"""Number of loaded modules when objects were last exempted. A fork inherits it with the objects."""


def exempt_modules() -> None:
    """Exempt all objects of a worker from garbage collection when it has loaded more modules. Call it at the start of a task.

    Spark's daemon collects all garbage after each task, before it takes the next one. That visits every object of pyspark, pandas, Arrow
    and gRPC and takes longer than a small task. Exempted objects that are in a cycle are never freed, and `gc.get_objects` does not list
    them. Garbage is collected before, and it happens `EXEMPTIONS_MAX` times at most.
    """
    global _exempt_modules, _exemptions
    if REUSED in os.environ and len(sys.modules) > _exempt_modules and _exemptions < EXEMPTIONS_MAX:
        gc.collect()
        gc.freeze()
        _exempt_modules = len(sys.modules)
        _exemptions += 1
