"""Measure Python's garbage collections. They stop the event loop, and no other measurement inside the process shows such a pause.

This module must neither collect nor change when Python does.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping

from raftmq.broker.base.histogram import SHORT_SECONDS, Histogram


class GcPauses:
    """Measures one process's collections between `start` and `stop`. The collector's callback must not allocate tracked objects."""

    def __init__(self) -> None:
        self.seconds = Histogram(SHORT_SECONDS)
        self._began_at = 0.0

    def start(self) -> None:
        """Begin to measure."""
        gc.callbacks.append(self._on_collection)

    def stop(self) -> None:
        """Stop measuring. It may be called repeatedly."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if phase == "start":
            self._began_at = time.perf_counter()
        else:
            self.seconds.observe(time.perf_counter() - self._began_at)
