"""Define the directed links between the brokers of a cluster, which `Namespaces` and `Proxies` implement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

CLIENTS = 0
"""Stands for every client, beside the broker ids, which begin at 1."""


@dataclass(frozen=True)
class Place:
    """The environment in which `launch.py` starts a broker."""

    bind_host: str = ""
    """Replaces the host in its listen options (empty: unchanged)."""
    seen_host: str = ""
    """Host under which the others reach it (empty: loopback)."""
    enter: tuple[str, ...] = ()
    """Command in front of the broker's command."""
    arguments: tuple[str, ...] = ()
    """Additional arguments of ``broker start``."""
    environment: Mapping[str, str] = field(default_factory=dict)


class Links(Protocol):
    """Directed links. Every method takes effect before it returns."""

    first_port: int
    """First port of the cluster (0: any)."""

    def place(self, broker_id: int) -> Place:
        """Return the place of a broker."""
        ...

    def cut(self, source: int, target: int) -> None:
        """Let nothing from `source` reach `target`, silently: no connection is refused. The other direction is unchanged."""
        ...

    def restore(self, source: int, target: int) -> None:
        """Undo `cut`."""
        ...

    def slow(self, broker_id: int) -> None:
        """Throttle everything that the broker sends."""
        ...

    def hurry(self, broker_id: int) -> None:
        """Undo `slow`."""
        ...

    def heal(self) -> None:
        """Undo every `cut` and `slow`."""
        ...

    def close(self) -> None:
        """Release everything. Safe to call again."""
        ...


class NoLinks:
    """Plain loopback, for clusters whose links never fail."""

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
        """Do nothing, since nothing was cut."""

    close = heal


def partition(links: Links, one: Iterable[int], other: Iterable[int]) -> None:
    """Cut every link between two sides, in both directions."""
    others = tuple(other)
    for a in one:
        for b in others:
            links.cut(a, b)
            links.cut(b, a)
