"""`python -m sim.core`: replay one seed with its trace, or run many.

Exit codes: 0: no defect found. 1: a safety property was broken. 2: no progress after healing. 3: an exception in the code.
"""

from __future__ import annotations

import argparse
import sys
import time

from sim.core.batch import run_batch
from sim.core.mutants import MUTANTS
from sim.core.run import Outcome, Verdict, run_seed

SEEDS_DEFAULT = 1000
REPORT_SECONDS = 2.0
"""Interval of the progress reports of a batch."""


def failure_line(outcome: Outcome) -> str:
    """Return one line with the finding of a seed and the command that replays it."""
    return f"make sim-core SEED={outcome.seed}  # {outcome.verdict.name.lower()}: {outcome.detail}"


def _replay(seed: int, mutant: str | None, is_quiet: bool) -> Verdict:
    trace = None if is_quiet else print
    if mutant:
        outcome = run_seed(seed, MUTANTS[mutant].build, trace, MUTANTS[mutant].profile)
    else:
        outcome = run_seed(seed, trace=trace)
    if outcome.verdict is Verdict.OK:
        print(
            f"seed {seed} ok: {outcome.event_count} events, {outcome.committed_count} committed, "
            f"{outcome.read_count} reads, healed in {outcome.healing_ticks} ticks"
        )
    else:
        print(failure_line(outcome))
    return outcome.verdict


def _run_many(first: int, count: int, jobs: int) -> Verdict:
    begun = reported = time.perf_counter()
    worst = Verdict.OK
    failed = events = 0
    for done, outcome in enumerate(run_batch(first, count, jobs), start=1):
        events += outcome.event_count
        if outcome.verdict is not Verdict.OK:
            failed += 1
            worst = outcome.verdict if worst is Verdict.OK else min(worst, outcome.verdict)
            print(failure_line(outcome), flush=True)
        now = time.perf_counter()
        if now - reported >= REPORT_SECONDS or done == count:
            reported = now
            elapsed = now - begun
            text = (
                f"{done}/{count} seeds, {failed} failed, {done / elapsed:.1f} seeds/s, {events / elapsed:,.0f} events/s"
            )
            print(text, file=sys.stderr, flush=True)
    return worst


def main() -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m sim.core", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed with its trace")
    parser.add_argument("--quiet", action="store_true", help="with --seed: print only the result")
    parser.add_argument("--mutant", choices=sorted(MUTANTS), metavar="NAME", help="with --seed: simulate this mutant")
    parser.add_argument("--first", type=int, default=0, help="first seed of a batch (0)")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS_DEFAULT, help=f"number of seeds in a batch ({SEEDS_DEFAULT})"
    )
    parser.add_argument("--jobs", type=int, default=2, help="number of processes (2)")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _replay(arguments.seed, arguments.mutant, arguments.quiet)
    return _run_many(arguments.first, arguments.seeds, arguments.jobs)


if __name__ == "__main__":
    sys.exit(main())
