"""Known bugs of whole nodes, made by changing the product in a child process; each must be found, or the net has a hole.

The menu is the review checklist of consensus implementations, and the promises. A mutant changes one thing, from outside.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.node.run import Build


@dataclass(frozen=True, slots=True)
class Mutant:
    """One known bug."""

    name: str
    what: str
    """The bug, in a few words."""
    part: str
    """Where: core, store, engine, machine, client or service."""
    build: Build
    seed: int
    """One that finds it."""


MUTANTS: dict[str, Mutant] = {}


def mutant(part: str, seed: int, what: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants the bug. It runs in a child, so nothing undoes it."""

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        name = plant.__name__.strip("_")

        def patch() -> Callable[[], None]:
            plant()
            return lambda: None

        MUTANTS[name] = Mutant(name, what, part, Build(patch=patch), seed)
        return plant

    return register


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:  # noqa: ANN401 -- any class or module
    setattr(owner, name, make(getattr(owner, name)))
