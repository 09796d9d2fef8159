"""Runs many seeds in one or several processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

from sim.core.run import Outcome, run_seed

CHUNK_SEEDS = 10
"""Number of seeds that a worker takes at a time: few enough for steady reports, and enough to make the hand-over negligible."""


def run_chunk(first: int, count: int) -> list[Outcome]:
    """Run the seeds `first`..`first + count - 1` in this process."""
    return [run_seed(seed) for seed in range(first, first + count)]


def run_batch(first: int, count: int, jobs: int) -> Iterator[Outcome]:
    """Yield the outcomes of the seeds `first`..`first + count - 1`, in order, as soon as they are known."""
    starts = range(first, first + count, CHUNK_SEEDS)
    sizes = [min(CHUNK_SEEDS, first + count - start) for start in starts]
    if jobs <= 1:
        for start, size in zip(starts, sizes, strict=True):
            yield from run_chunk(start, size)
        return
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for outcomes in pool.map(run_chunk, starts, sizes):
            yield from outcomes
