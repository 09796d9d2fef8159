"""Known bugs of whole nodes, planted by patching the product in a child process. If one is not found, the net has a hole.

The bugs come from the review checklist of consensus implementations and from RaftMQ's promises. A mutant changes one thing, from outside.
"""

# ruff: noqa: ANN401 -- a mutant has the parameters of the product's method

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sim.cluster.options import FAULTS
from sim.cluster.run import Build


@dataclass(frozen=True, slots=True)
class Mutant:
    """One known bug."""

    name: str
    what: str
    """The bug, in a few words."""
    part: str
    """The part of the product: core, store, engine, machine, client, service or queue."""
    build: Build


MUTANTS: dict[str, Mutant] = {}
SEEDS_MAX = 16
"""Number of seeds, from 0 on, within which each mutant must be found. Most are found by the first."""
OVERTAKING = {
    **dict.fromkeys(FAULTS, 0), "overtake": 1, "fault_every": 0.5, "machines": 5, "replication_factor": 5, "topics": 1, "partitions": 3,
    "retention_ms": 1_200, "retention_seconds": 1.0, "tick_seconds": 0.15, "election_ticks": 5,
}  # fmt: skip
"""Options with no other fault than leaders that are overtaken while a follower installs their snapshot."""


def mutant(part: str, what: str, **option_overrides: object) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants a bug. It runs in a child process, so nothing undoes it.

    `option_overrides` are options under which the bug shows soon.
    """
    overrides = {"operate": 0, **option_overrides}  # most bugs show without orders of an operator
    return _registering(part, what, {"option_overrides": overrides, "has_queues": False, "is_upgraded": False})


def claim_mutant(
    part: str, what: str, **option_overrides: object
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants a bug of claims of producers' names."""
    settings = {
        "option_overrides": {"operate": 0, **option_overrides},
        "has_queues": False,
        "is_upgraded": False,
        "has_claimers": True,
    }
    return _registering(part, what, settings)


def entry_mutant(part: str, what: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants a bug of claims that add bits to a stamp."""
    settings = {"option_overrides": {"operate": 0}, "has_queues": False, "is_upgraded": False, "has_entrants": True}
    return _registering(part, what, settings)


def queue_mutant(
    what: str, *, queues: Mapping[str, object] | None = None, **option_overrides: object
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants a bug of queue topics. `queues` are their options under which the bug shows soon."""
    settings = {
        "option_overrides": {"operate": 0, **option_overrides},
        "has_queues": True,
        "is_upgraded": False,
        "queue_overrides": {"has_dead_letters": False, "chain_share": 0.0, **(queues or {})},
    }
    return _registering("queue", what, settings)


def upgrade_mutant(part: str, what: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function that plants a bug that shows while brokers of two versions serve together."""
    settings = {"option_overrides": {"operate": 0, "seconds": 14.0}, "has_queues": False, "is_upgraded": True}
    return _registering(part, what, settings)


def _registering(
    part: str, what: str, settings: Mapping[str, Any]
) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def register(plant: Callable[[], None]) -> Callable[[], None]:
        name = plant.__name__

        def patch() -> Callable[[], None]:
            plant()
            return lambda: None

        MUTANTS[name] = Mutant(
            name, what, part, Build(patch=patch, **{"has_claimers": False, "has_entrants": False, **settings})
        )
        return plant

    return register


def replace_method(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Replace a method or function by the result of `make` for it."""
    setattr(owner, name, make(getattr(owner, name)))
