"""`python -m sim.cluster`: run many seeds of whole nodes, or replay one with its trace.

Exit codes: 0: no defect found. 1: a safety property was broken. 2: the healed cluster did not recover. 3: an exception in the code. The
last printed line is the command that replays the run (the first one with a finding).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Final

from sim.cluster.batch import judged, run_batch
from sim.cluster.mutants import MUTANTS
from sim.cluster.options import Options
from sim.cluster.run import OPERATIONS_MIN, PRODUCT, Build, Outcome, Verdict, run_seed
from sim.cluster.run_records import RunRecord, current_commit, write_record
from sim.cluster.world.logs import logs_to, silence_logs
from sim.history.events import Event, write_history

SEEDS_DEFAULT = 100
FLAGS: Final = {
    "has_queues": "--queues",
    "is_upgraded": "--upgrades",
    "has_claimers": "--claims",
    "has_entrants": "--entries",
}
"""The parts of a build that only some seeds have, with the flags that give them to every seed."""
OPTION_TYPES: Final = {
    one.name: kind for one in fields(Options) if (kind := {"int": int, "float": float}.get(str(one.type)))
}
"""The options of a run that `--set` can change."""
REPORT_SECONDS = 2.0
"""Interval of the progress reports of a batch."""
_BAR_WIDTH = 30


def replay_command(seed: int, mutant: str | None, chosen: Sequence[str]) -> str:
    """Return the command that replays a run with these flags of `chosen_flags`."""
    if mutant is None:
        named = " ".join(chosen)
        return f"make sim SEED={seed}" + (f' ARGS="{named}"' if " " in named else f" ARGS={named}" if named else "")
    return f"python -m sim.cluster --seed {seed} --mutant {mutant}"


def finding(outcome: Outcome) -> str:
    """Describe the finding of a seed on one line."""
    return f"seed {outcome.seed} {outcome.verdict.name.lower()}: {outcome.detail}"


def summary(outcome: Outcome) -> str:
    """Summarize the run of a seed on one line."""
    faults = ", ".join(f"{name} {count}" for name, count in outcome.faults.items() if count)
    return (
        f"seed {outcome.seed} {outcome.verdict.name.lower()}: {outcome.operations} operations, {outcome.acknowledged} "
        f"acknowledged, {outcome.reads} read, {outcome.groups} partitions, {outcome.virtual_seconds:.1f} virtual seconds, "
        f"healed in {outcome.healing_seconds:.1f}, digest {outcome.digest:08x}; faults: {faults or 'none'}"
    )


def chosen_flags(build: Build) -> list[str]:
    """Return the flags that make this build of the product."""
    parts = [flag for part, flag in FLAGS.items() if getattr(build, part)]
    return [*parts, *(f"--set {name}={value}" for name, value in build.option_overrides.items())]


def _option(text: str) -> tuple[str, int | float]:
    """Parse `NAME=VALUE` of `--set`."""
    name, _, value = text.partition("=")
    if name not in OPTION_TYPES:
        raise argparse.ArgumentTypeError(f"{name!r} is no option; those with numbers are {', '.join(OPTION_TYPES)}")
    try:
        return name, OPTION_TYPES[name](value)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{name}: {value!r} is not a number of type {OPTION_TYPES[name].__name__}"
        ) from None


def _replay(seed: int, build: Build, level: str | None, history: Path | None) -> Outcome:
    def say(line: str) -> None:
        print(line)

    if level is None:
        silence_logs()
    else:
        logs_to(say, logging.getLevelNamesMapping()[level.upper()])

    def keep(events: list[Event]) -> None:
        if history is not None:
            write_history(history, events)

    return run_seed(seed, build, say, history=keep)


def _cpu_seconds() -> float:
    """Return the processor time of this process and of its ended children."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _run_many(
    first: int,
    count: int,
    jobs: int,
    mutant: str | None,
    build: Build,
    *,
    is_recorded: bool,
) -> Verdict:
    begun = reported = time.perf_counter()
    cpu_begun = _cpu_seconds()
    commit = current_commit() if is_recorded else ""
    findings: list[Outcome] = []
    totals: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    marks: Counter[str] = Counter()
    virtual_seconds = 0.0
    slowest = Outcome(first, Verdict.OK, "")
    is_terminal = sys.stderr.isatty()
    for done, outcome in enumerate(run_batch(first, count, jobs, build), start=1):
        virtual_seconds += outcome.virtual_seconds
        slowest = max(slowest, outcome, key=lambda one: one.healing_seconds)
        totals["operations"] += outcome.operations
        totals["short"] += outcome.operations < OPERATIONS_MIN
        faults.update(outcome.faults)
        marks.update({name: count for name, count in outcome.counts.items() if " " not in name})
        if outcome.verdict is not Verdict.OK:
            findings.append(outcome)
            print(finding(outcome), flush=True)
        now = time.perf_counter()
        if now - reported >= REPORT_SECONDS or done == count:
            reported = now
            elapsed = now - begun
            filled = _BAR_WIDTH * done // count
            text = (
                f"[{'#' * filled}{'.' * (_BAR_WIDTH - filled)}] {done}/{count} seeds, {len(findings)} found, "
                f"{done / elapsed:.1f} seeds/s, {virtual_seconds / 3600:.2f} virtual hours, "
                f"{totals['operations']:,} operations"
            )
            print(text, file=sys.stderr, end="\r" if is_terminal and done < count else "\n", flush=True)
    for what, counts in (("faults", faults), ("marks", marks)):
        print(f"{what}: " + ", ".join(f"{name} {counts[name]:,}" for name in counts), file=sys.stderr)
    wall_seconds, cpu_seconds = time.perf_counter() - begun, _cpu_seconds() - cpu_begun
    print(f"processor: {cpu_seconds:.1f} s, {cpu_seconds / count:.3f} s for a seed", file=sys.stderr)
    print(f"slowest healing: {slowest.healing_seconds:.1f} s in seed {slowest.seed}", file=sys.stderr)
    print(f"seeds with fewer than {OPERATIONS_MIN} operations: {totals['short']}", file=sys.stderr)
    if is_recorded:
        operations = totals["operations"]
        write_record(
            RunRecord(
                commit,
                chosen_flags(build),
                first,
                count,
                findings,
                operations,
                virtual_seconds,
                wall_seconds,
                cpu_seconds,
                jobs,
            )
        )
    if not findings:
        return Verdict.OK
    print(replay_command(findings[0].seed, mutant, chosen_flags(build)), flush=True)
    return min(one.verdict for one in findings)


def main() -> int:
    """Parse arguments and run."""
    parser = argparse.ArgumentParser(prog="python -m sim.cluster", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this seed with its trace")
    parser.add_argument(
        "--log", choices=("debug", "info", "warning", "error"), help="with --seed: print log lines from this level on"
    )
    parser.add_argument("--history", type=Path, help="with --seed: file for the history of the clients")
    parser.add_argument(
        "--mutant",
        choices=sorted(MUTANTS),
        metavar="NAME",
        help="simulate this mutant (docs/internals/testing.md lists them)",
    )
    parser.add_argument("--first", type=int, default=0, help="first seed of a batch (0)")
    parser.add_argument(
        "--seeds", type=int, default=SEEDS_DEFAULT, help=f"number of seeds in a batch ({SEEDS_DEFAULT})"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="number of processes (one per core)")
    parser.add_argument("--queues", action="store_true", help="every seed has queue topics, not only some")
    parser.add_argument(
        "--upgrades", action="store_true", help="upgrade the brokers to a next version in every seed, not only in some"
    )
    parser.add_argument(
        "--claims", action="store_true", help="clients claim names of producers in every seed, not only in some"
    )
    parser.add_argument(
        "--entries", action="store_true", help="clients enter shared sets in every seed, not only in some"
    )
    parser.add_argument(
        "--set",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option that every seed has, such as wrong_clock=8 for clocks that are often wrong (sim/cluster/options.py). Repeatable",
    )
    parser.add_argument("--record", action="store_true", help="add a row to sim/cluster/runs.csv")
    arguments = parser.parse_args()
    if arguments.record and (arguments.mutant is not None or arguments.seed is not None):
        parser.error("only a batch of seeds of the product is recorded")
    if arguments.set and arguments.mutant is not None:
        parser.error("a mutant has options of its own: use --set without --mutant")
    if arguments.mutant is not None:
        build = MUTANTS[arguments.mutant].build
    else:
        build = replace(
            PRODUCT,
            option_overrides=dict(arguments.set),
            has_queues=arguments.queues or None,
            is_upgraded=arguments.upgrades or None,
            has_claimers=arguments.claims or None,
            has_entrants=arguments.entries or None,
        )
    if arguments.seed is None:
        return _run_many(
            arguments.first, arguments.seeds, arguments.jobs, arguments.mutant, build, is_recorded=arguments.record
        )
    seed = arguments.seed
    outcome = judged(seed, _replay, seed, build, arguments.log, arguments.history)
    print(summary(outcome))
    if outcome.verdict is not Verdict.OK:
        print(finding(outcome))
    print(replay_command(outcome.seed, arguments.mutant, chosen_flags(build)))
    return outcome.verdict


if __name__ == "__main__":
    sys.exit(main())
