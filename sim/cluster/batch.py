"""Runs many seeds of whole nodes, each in a child process of its own."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial

from raftmq.broker.consumer_groups.planner import assignor_names

from sim.cluster.child import in_child, map_in_children
from sim.cluster.options import Options
from sim.cluster.run import PRODUCT, Build, Outcome, Verdict, run_seed
from sim.cluster.world.logs import silence_logs


def run_isolated(seed: int, build: Build = PRODUCT, options: Options | None = None) -> Outcome:
    """Run one seed in a child process."""
    return judged(seed, _quietly, build, options, seed)


def judged(seed: int, run: Callable[..., Outcome], *arguments: object) -> Outcome:
    """Return the outcome of a seed that runs in a child process, even if the child dies."""
    try:
        return in_child(run, *arguments)
    except Exception as error:  # noqa: BLE001 -- any failure outside the run itself is a verdict
        return _crashed(seed, error)


def run_batch(first: int, count: int, jobs: int, build: Build = PRODUCT) -> Iterator[Outcome]:
    """Yield the outcomes of the seeds `first`..`first + count - 1`, in order, as soon as they are known."""
    assignor_names()  # looked up once here, so that no child process has to do it
    gc.collect()
    gc.freeze()  # child processes share the objects that exist now
    yield from map_in_children(partial(_quietly, build, None), range(first, first + count), jobs, _crashed)


def _crashed(seed: int, error: Exception) -> Outcome:
    """Return the outcome of a run that had no verdict: its process died, or the simulator is broken."""
    return Outcome(seed, Verdict.CRASH, f"{type(error).__name__}: {error}")


def _quietly(build: Build, options: Options | None, seed: int) -> Outcome:
    gc.disable()  # also after the run: the process ends with it
    silence_logs()
    return run_seed(seed, build, options=options)
