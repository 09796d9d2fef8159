"""Count logical time, and the changes of cores, so that a shell need not touch a core to which nothing happens.

All times of a core are numbers of ticks.
"""

from __future__ import annotations


class Ticks:
    """Count the ticks of every core that shares it. The shell advances it, and then calls `on_tick` of the cores that do not rest."""

    __slots__ = ("changes", "now")

    def __init__(self) -> None:
        self.now: int = 0
        """The number of the present tick."""
        self.changes: int = 0
        """Raised by every change of a core that decides whether a heartbeat or a response is quiet. While it stays the same, a message
        that was quiet is quiet again."""
