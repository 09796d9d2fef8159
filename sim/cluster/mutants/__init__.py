"""Known bugs of whole nodes, one file for each part of the product. If one is not found, the net has a hole."""

from sim.cluster.mutants import (
    claims,
    client,
    controller,
    core,
    engine,
    machine,
    queue_machine,
    queue_partition,
    recovery,
    service,
    store,
    upgrade,
)
from sim.cluster.mutants.registry import MUTANTS, SEEDS_MAX, Mutant

__all__ = [
    "MUTANTS",
    "SEEDS_MAX",
    "Mutant",
    "claims",
    "client",
    "controller",
    "core",
    "engine",
    "machine",
    "queue_machine",
    "queue_partition",
    "recovery",
    "service",
    "store",
    "upgrade",
]
