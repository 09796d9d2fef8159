"""Measures Python's garbage collections, which stop the loop: a pause nobody else can see from inside.

Must not collect, nor change when Python does.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping

from raftmq.broker.base.histogram import SHORT_SECONDS, Histogram


class GcPauses:
    """One process's collections between `start` and `stop`. A callback of the collector: it allocates nothing that is collected."""

    def __init__(self) -> None:
        self.seconds = Histogram(SHORT_SECONDS)
        self._began_at = 0.0

    def start(self) -> None:
        """Begin to measure."""
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Measure no more. Safe to call again."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began_at = time.perf_counter()
        else:
            self.seconds.observe(time.perf_counter() - self._began_at)
