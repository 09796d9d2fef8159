"""Many seeds of whole nodes, each in a child of its own."""

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
    """One seed, in a child."""
    return judged(seed, _quietly, build, options, seed)


def judged(seed: int, run: Callable[..., Outcome], *arguments: object) -> Outcome:
    """The outcome of a seed that is run in a child, whatever becomes of the child."""
    try:
        return in_child(run, *arguments)
    except Exception as error:  # noqa: BLE001 -- outside of what the run itself judges
        return _crashed(seed, error)


def run_batch(first: int, count: int, jobs: int, build: Build = PRODUCT) -> Iterator[Outcome]:
    """Outcomes of seeds `first`..`first + count - 1`, in order, as they become known."""
    assignor_names()  # looked up once for each process: here for all of them
    gc.collect()
    gc.freeze()  # children share what is here already
    yield from map_in_children(partial(_quietly, build, None), range(first, first + count), jobs, _crashed)


def _crashed(seed: int, error: Exception) -> Outcome:
    """Of a run that could not even judge itself: its process died, or the simulator is broken."""
    return Outcome(seed, Verdict.CRASH, f"{type(error).__name__}: {error}")


def _quietly(build: Build, options: Options | None, seed: int) -> Outcome:
    silence_logs()
    return run_seed(seed, build, options=options)
