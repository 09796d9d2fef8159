"""Count logical time. All times of a core are numbers of ticks, so that a tick in which nothing is due need not touch it."""

from __future__ import annotations


class Ticks:
    """Count the ticks of every core that shares it. The shell advances it, and then calls `on_tick` of the cores that do not rest."""

    __slots__ = ("now",)

    def __init__(self) -> None:
        self.now: int = 0
        """The number of the present tick."""
