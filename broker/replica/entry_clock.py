"""Define the clock that stamps the entries of one replica.

Most groups take the engine's clock, the same for all of them. A group whose state depends on the time, beyond the age of its
records, has a clock of its own: it must know the entries that were stamped by other leaders, and the times in which nobody led.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol


class EntryClock(Protocol):
    """A replica's clock. Its functions must not block."""

    def now_ms(self) -> int:
        """Return the time to stamp an entry with, which is about to be appended, in milliseconds since the epoch."""
        ...

    def on_received(self, append_time_ms: int) -> None:
        """Handle entries or a snapshot from a leader. The last entry has this append time."""
        ...

    def on_doubted(self) -> None:
        """Handle the end of a leadership, or the doubt about it after a stall of the process."""
        ...


class EngineClock:
    """The clock of a replica that stamps with the engine's time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self.now_ms = now_ms

    def on_received(self, append_time_ms: int) -> None:
        """Do nothing: the engine compares its clock with those of other nodes, and not with entries."""

    def on_doubted(self) -> None:
        """Do nothing."""
