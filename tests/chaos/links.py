"""The links between the brokers of a cluster, each direction on its own: what both ways of cutting them have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

CLIENTS = 0
"""Stands for every client, beside the broker ids, which begin at 1."""


@dataclass(frozen=True)
class Place:
    """Where a broker's process is started; what `launch.py` is told of it."""

    bind_host: str = ""
    """Takes the place of the loopback address in its listen options; empty: nothing does."""
    seen_host: str = ""
    """Where the others find it; empty: on loopback."""
    enter: tuple[str, ...] = ()
    """Command in front of the broker's."""
    arguments: tuple[str, ...] = ()
    """More arguments of ``broker start``."""
    environment: Mapping[str, str] = field(default_factory=dict)


class Links(Protocol):
    """Directed links. Every method takes effect before it returns; `cut` is silent: nothing is refused, nothing arrives."""

    first_port: int
    """What the cluster must be told as its first port; 0: any will do."""

    def place(self, broker_id: int) -> Place:
        """Where this broker's broker belongs."""
        ...

    def cut(self, source: int, target: int) -> None:
        """Nothing that `source` sends reaches `target` any more; the other direction is as it was."""
        ...

    def restore(self, source: int, target: int) -> None:
        """Undo `cut`."""
        ...

    def slow(self, broker_id: int) -> None:
        """What the broker sends to others trickles."""
        ...

    def hurry(self, broker_id: int) -> None:
        """Undo `slow`."""
        ...

    def heal(self) -> None:
        """Undo everything."""
        ...

    def close(self) -> None:
        """Give everything back. Safe to call again."""
        ...


class NoLinks:
    """Loopback as it is: for clusters whose links nobody touches."""

    first_port = 0

    def place(self, broker_id: int) -> Place:
        return Place()

    def cut(self, source: int, target: int) -> None:
        raise NotImplementedError("this cluster was made without links that can be cut")

    restore = cut

    def slow(self, broker_id: int) -> None:
        raise NotImplementedError("this cluster was made without links that can be slowed")

    hurry = slow

    def heal(self) -> None:
        """Nothing to undo."""

    close = heal


def partition(links: Links, one: Iterable[int], other: Iterable[int]) -> None:
    """Cut every link between two sides, in both directions."""
    others = tuple(other)
    for a in one:
        for b in others:
            links.cut(a, b)
            links.cut(b, a)
