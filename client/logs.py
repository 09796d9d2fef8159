"""The SDK's logger, ``raftmq``: static event names with ``key=value`` data, never payloads or keys of records.

DEBUG: connections and retries. INFO: what a client is connected to, and leaders of the partitions it uses that moved. WARNING:
degraded and healing by itself. Nothing is logged per record or per batch. Without a handler of the program nothing is written
(Python would otherwise print warnings to stderr).
"""

from __future__ import annotations

import logging
import time
from typing import Final

log: Final = logging.getLogger("raftmq")
log.addHandler(logging.NullHandler())


class Pace:
    """Whether it is time to say again what lasts."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._said_at = float("-inf")

    def is_due(self) -> bool:
        """True at most once per interval."""
        now = time.monotonic()
        if now - self._said_at < self._interval_seconds:
            return False
        self._said_at = now
        return True
