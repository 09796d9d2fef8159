"""Run workloads on systems in alternating rounds (A B A B …), so that a noisy minute affects all systems.

Must not format. Invariants: one system works at a time. Each round has its own topic, which is deleted afterwards. Before a workload's
first round, every system does it once at the smallest scale without a result, to warm up connections, caches and a JVM's compiler.
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
"""A round that takes longer is aborted."""
WARM_UP = 0
"""The number of the round that does not count."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Hold the result of one system for one workload in one round."""

    workload: str
    system: str
    round: int
    """Number of the round, from 1."""
    load_average: float
    """The machine's load average right before the round."""
    processor_ms: float
    """Result of `probe_processor` right before the round, which shows the machine's speed then."""
    seconds: float
    """Duration of the whole round, including preparation."""
    figures: dict[str, list[float]]
    """Name → values. There are several where a round measures several brokers or kills."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Report a system that failed. It is not measured further with this workload."""

    workload: str
    system: str
    error: str


_topic_numbers = itertools.count(1)


async def run_round(system: System, workload: Workload, scale: Scale) -> dict[str, float]:
    """Run one workload once, on a new topic with a new client."""
    topic = f"bench-{next(_topic_numbers)}"
    async with asyncio.timeout(ROUND_SECONDS_MAX), system.connect() as client:
        if workload.is_queue:
            await client.create_queue(topic)
        else:
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
    """Run every round of one workload on every capable system. A failing system does not stop the others."""
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
            except Exception as error:  # noqa: BLE001 -- the root of a round; the report shows every error
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
