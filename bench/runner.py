"""Runs workloads on systems, round by round: A B A B …, so that a noisy minute hits all systems and not one.

Must not format. Invariants: one system works at a time; each round has a topic of its own, deleted afterwards; before a workload's first
round every system does it once at the smallest scale, which counts for nothing (connections, caches, a JVM that compiles).
"""

import asyncio
import gc
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.machine import load_average, probe_processor
from bench.systems import System
from bench.workloads import PARTITIONS, QUICK, Scale, Workload

ROUND_SECONDS_MAX = 900.0
"""A round that takes longer is given up."""
WARM_UP = 0
"""The number of the round that does not count."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What one system gave for one workload in one round."""

    workload: str
    system: str
    round: int
    """From 1."""
    load_average: float
    """Of the machine, right before."""
    processor_ms: float
    """`probe_processor`, right before: what the machine was worth in this round."""
    seconds: float
    """The whole round, preparation included."""
    figures: dict[str, list[float]]
    """Name → values; several where a round measures several brokers or kills."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A system that failed; it is not measured further with this workload."""

    workload: str
    system: str
    error: str


_topic_numbers = itertools.count(1)


async def run_round(system: System, workload: Workload, scale: Scale) -> dict[str, float]:
    """One workload once, on a fresh topic with a fresh client."""
    topic = f"bench-{next(_topic_numbers)}"
    async with asyncio.timeout(ROUND_SECONDS_MAX), system.connect() as client:
        await client.create_topic(topic, PARTITIONS)
        figures = await workload.run(client, topic, scale, system.share)
        await client.delete_topic(topic)
        return figures


def run_interleaved(
    workload: Workload,
    systems: Sequence[System],
    scale: Scale,
    rounds: int,
    tell: Callable[[str], None],
) -> tuple[list[Sample], list[Failure]]:
    """Every round of one workload, on every system that can do it. A system that fails does not take the others with it."""
    samples: list[Sample] = []
    failures: dict[str, Failure] = {}
    capable = [system for system in systems if workload.name in system.workloads]
    first = 1 if scale is QUICK else WARM_UP
    for number in range(first, rounds + 1):
        for system in capable:
            if system.name in failures:
                continue
            gc.collect()
            load, processor_ms = load_average(), probe_processor()
            started = time.perf_counter()
            try:
                figures = asyncio.run(run_round(system, workload, QUICK if number == WARM_UP else scale))
            except Exception as error:  # noqa: BLE001 -- the root of a round; whatever it is, it is told at the end
                failures[system.name] = Failure(workload.name, system.name, f"{type(error).__name__}: {error}")
                tell(f"{workload.name}, {system.name}: failed: {error}")
                continue
            if number == WARM_UP:
                continue
            values = {name: [value] for name, value in figures.items()}
            seconds = time.perf_counter() - started
            samples.append(Sample(workload.name, system.name, number, load, processor_ms, seconds, values))
            said = ", ".join(f"{name} {value:,.2f}" for name, value in figures.items())
            tell(
                f"{workload.name}, round {number} of {rounds}, {system.name}: {said} (processor {processor_ms:.0f} ms)"
            )
    return samples, list(failures.values())
