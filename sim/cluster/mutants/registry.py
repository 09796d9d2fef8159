"""Known bugs of whole nodes, made by changing the product in a child process; each must be found, or the net has a hole.

The menu is the review checklist of consensus implementations, and the promises. A mutant changes one thing, from outside.
"""

# ruff: noqa: ANN401 -- a mutant takes whatever the product's method takes

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sim.cluster.run import Build


@dataclass(frozen=True, slots=True)
class Mutant:
    """One known bug."""

    name: str
    what: str
    """The bug, in a few words."""
    part: str
    """Where: core, store, engine, machine, client or service."""
    build: Build


MUTANTS: dict[str, Mutant] = {}
SEEDS_MAX = 16
"""Each must be found by one of so many seeds, from 0 on; most are by the first."""


def mutant(part: str, what: str, **option_overrides: object) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants the bug. It runs in a child, so nothing undoes it.

    `option_overrides`: options under which it shows soon.
    """

    def register(plant: Callable[[], None]) -> Callable[[], None]:
        name = plant.__name__

        def patch() -> Callable[[], None]:
            plant()
            return lambda: None

        MUTANTS[name] = Mutant(name, what, part, Build(patch=patch, option_overrides=option_overrides))
        return plant

    return register


def replace_method(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put what `make` makes of a method (or function) in its place."""
    setattr(owner, name, make(getattr(owner, name)))
