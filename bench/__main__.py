"""Measure the speed of RaftMQ, and of peers, on local three-broker clusters. RaftMQ fsyncs every record on a majority.

Usage: python -m bench [--quick] [--rounds 3] [--only produce_100b,latency] [--load ready=1000000] [--peers kafka,nats] [--output results.json]

The clients run in this process, brokers in others, all on this machine. Run it when nothing else runs. Rounds alternate among the
systems. The table has medians and spreads. All values and the facts of the machine go to the output file. With --quick it proves in
seconds that everything works, and its figures mean nothing.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path

from bench import assignors, commits, groups, moves, partitions, plans, queue_load_parts, workloads, write_back
from bench.kafka_cluster import kafka_systems
from bench.machine import facts, load_average, probe_disk, probe_processor
from bench.nats_cluster import nats_systems
from bench.queue_loads import LOADS, run_load
from bench.queue_workloads import QUEUE_WORKLOADS
from bench.raftmq_cluster import raftmq_systems
from bench.report import RAFTMQ, Report, rows_of, table
from bench.runner import Failure, Sample, run_interleaved
from bench.spark import runs as spark
from bench.systems import System, UnavailableError
from bench.workloads import WORKLOADS, Figure

DEFAULT_OUTPUT = Path(".venv/bench.json")
ROUNDS = WORKLOADS | QUEUE_WORKLOADS
"""The workloads that run in rounds, with peers."""
PARTITIONS = {"partitions_300": 300, "partitions_1000": 1000}
GROUPS: Mapping[str, tuple[Callable[[], tuple[Figure, ...]], Callable[[], dict[str, float]]]] = {
    "assignors": (assignors.figures, assignors.bench_assignors),
    "plans": (plans.figures, plans.bench_plans),
    "moves": (moves.figures, moves.bench_moves),
    "commits": (commits.figures, commits.bench_commits),
    "groups": (groups.figures, groups.measure),
    "write_back": (write_back.figures, write_back.bench_write_back),
}
"""Measurements without rounds and peers: their figures, and the function that measures them."""
SPARK = "spark"
NAMES = [*ROUNDS, *GROUPS, *PARTITIONS, *LOADS, SPARK]
TOO_LONG_FOR_QUICK = ("partitions_1000", *GROUPS, SPARK)
PEERS: Mapping[str, Callable[[Mapping[str, str]], AbstractContextManager[list[System]]]] = {
    "kafka": kafka_systems,
    "nats": nats_systems,
}
BUSY_LOAD = 0.7
"""A load average above this means that other programs are working."""
QUICK_NOTE = "--quick: the counts are tiny and the figures mean nothing"


def figures_of(name: str) -> Sequence[Figure]:
    """Return the figures of a row."""
    if name in ROUNDS:
        return ROUNDS[name].figures
    if name in GROUPS:
        return GROUPS[name][0]()
    if name in PARTITIONS:
        return partitions.figures(PARTITIONS[name])
    return LOADS[name].figures if name in LOADS else spark.figures()


def measure_group(name: str, found: dict[str, float]) -> None:
    """Run a measurement of `GROUPS`."""
    found.update(GROUPS[name][1]())


def cause_of(error: BaseException) -> str:
    """Return the text of an error, and of the first one in a group of them."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


class Run:
    """Hold one call of the command, with the chosen workloads and the results so far."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._is_quick: bool = arguments.quick
        self._rounds: int = arguments.rounds
        self._only: list[str] = arguments.only
        self._peers: list[str] = arguments.peers
        self._output: Path = arguments.output
        self._disk = probe_disk(20, 5) if self._is_quick else probe_disk()
        self._machine = facts(self._disk)
        self._systems: dict[str, str] = {}
        self._samples: list[Sample] = []
        self._failures: list[Failure] = []
        self._notes: list[str] = [QUICK_NOTE] if self._is_quick else []
        if (load := load_average()) > BUSY_LOAD:
            self._notes.append(f"the machine was busy before the run (load average {load:.1f}): measure again in quiet")
        self._loads: queue_load_parts.LoadScale = arguments.load
        self._figures: dict[str, Sequence[Figure]] = {name: figures_of(name) for name in self._only}

    def run(self) -> int:
        """Measure, write and print. Return the exit code."""
        self._tell(f"disk alone: {self._disk}; load average {load_average():.2f}")
        if chosen := [ROUNDS[name] for name in self._only if name in ROUNDS]:
            with ExitStack() as stack:
                systems = self._start(stack)
                scale = workloads.QUICK if self._is_quick else workloads.FULL
                for workload in chosen:
                    samples, failures = run_interleaved(workload, systems, scale, self._rounds, self._tell)
                    self._samples += samples
                    self._failures += failures
                    self._write()  # keeps the results even if a later workload fails
        for name in self._only:
            if name in PARTITIONS:
                self._measure_partitions(name)
            elif name in GROUPS:
                self._measure(name, partial(measure_group, name))
            elif name in LOADS:
                self._measure(name, partial(run_load, LOADS[name], self._loads))
            elif name == SPARK:
                self._measure_spark()
        report = self._write()
        print(table(self._figures, report.rows))
        for note in report.notes:
            print(f"note: {note}")
        for failure in report.failures:
            print(f"FAILED: {failure.workload}, {failure.system}: {failure.error}")
        print(f"disk alone: {self._disk}")
        if speeds := sorted(sample.processor_ms for sample in self._samples):
            print(
                f"processor alone: {speeds[len(speeds) // 2]:.0f} ms ({speeds[0]:.0f} – {speeds[-1]:.0f}) for a million rounds of a loop"
            )
        print(f"written: {self._output}")
        return 1 if report.failures else 0

    def _start(self, stack: ExitStack) -> list[System]:
        """Start RaftMQ and the chosen peers. A missing peer is left out, with a note on its installation."""
        systems = stack.enter_context(raftmq_systems())
        for peer in self._peers:
            self._tell(f"starting {peer}")
            try:
                systems += stack.enter_context(PEERS[peer](os.environ))
            except UnavailableError as error:
                self._tell(str(error))
                self._notes.append(str(error))
        self._systems = {system.name: system.version for system in systems}
        return systems

    def _measure_partitions(self, name: str) -> None:
        """Measure one round on a fresh cluster, with each broker and several kills."""
        scale = partitions.QUICK if self._is_quick else partitions.FULL
        load, processor_ms, started = load_average(), probe_processor(), time.perf_counter()
        try:
            figures = partitions.measure(PARTITIONS[name], scale, self._tell)
        except UnavailableError as error:
            self._notes.append(str(error))
            return
        seconds = time.perf_counter() - started
        self._samples.append(Sample(name, RAFTMQ, 1, load, processor_ms, seconds, figures))
        self._write()

    def _measure(self, name: str, measure: Callable[[dict[str, float]], None]) -> None:
        """Measure one round on fresh clusters, or without a cluster. If it fails, its figures so far and the other rows remain."""
        load, processor_ms, started = load_average(), probe_processor(), time.perf_counter()
        found: dict[str, float] = {}
        try:
            measure(found)
        except Exception as error:  # noqa: BLE001 -- the root of a measurement; the report shows every error
            self._failures.append(Failure(name, RAFTMQ, cause_of(error)))
            self._tell(f"{name}: failed: {cause_of(error)}")
        seconds = time.perf_counter() - started
        if found:
            self._tell(f"{name}: {', '.join(f'{figure} {value:,.2f}' for figure, value in found.items())}")
            figures = {figure: [value] for figure, value in found.items()}
            self._samples.append(Sample(name, RAFTMQ, 1, load, processor_ms, seconds, figures))
        self._write()

    def _measure_spark(self) -> None:
        """Measure on a fresh cluster and a Spark session. Rounds alternate among the ways of reading, then of writing."""
        try:
            self._samples += spark.measure(self._rounds, self._tell)
        except UnavailableError as error:
            self._notes.append(str(error))
        self._write()

    def _write(self) -> Report:
        rows = rows_of(self._figures, self._samples)
        report = Report(self._machine, self._systems, rows, self._samples, self._failures, self._notes)
        self._output.parent.mkdir(parents=True, exist_ok=True)
        self._output.write_text(json.dumps(report.as_json(), indent=1) + "\n")
        return report

    @staticmethod
    def _tell(text: str) -> None:
        print(f"  {text}", file=sys.stderr, flush=True)


def _names(known: Sequence[str], text: str) -> list[str]:
    """Parse comma-separated names, and return them in the order of `known`."""
    chosen = [name.strip() for name in text.split(",") if name.strip()]
    if unknown := [name for name in chosen if name not in known]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(known)}")
    return [name for name in known if name in chosen]


def _load_values(text: str) -> dict[str, str]:
    """Parse comma-separated sizes, each NAME=NUMBER."""
    pairs = [pair.partition("=") for pair in text.split(",") if pair.strip()]
    return {name.strip(): value.replace("_", "") for name, _, value in pairs}


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny counts and one round, to prove that everything works"
    )
    parser.add_argument("--rounds", type=int, help="how often each workload runs (default 3)")
    parser.add_argument(
        "--only",
        type=partial(_names, NAMES),
        help=f"comma-separated: {', '.join(NAMES)} (default: all; quick: without {', '.join(TOO_LONG_FOR_QUICK)})",
    )
    parser.add_argument(
        "--load",
        type=_load_values,
        default={},
        help="sizes of the rows of large queues, comma-separated: "
        + ", ".join(f"{field.name}={field.default:,}" for field in fields(queue_load_parts.LoadScale)),
    )
    parser.add_argument(
        "--peers",
        type=partial(_names, list(PEERS)),
        default=[],
        help=f"peers to measure, comma-separated: {', '.join(PEERS)}",
    )
    parser.add_argument(
        "--output", type=Path, default=DEFAULT_OUTPUT, help=f"JSON file of the results (default {DEFAULT_OUTPUT})"
    )
    arguments = parser.parse_args(words)
    arguments.only = arguments.only or [name for name in NAMES if not (arguments.quick and name in TOO_LONG_FOR_QUICK)]
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    if arguments.rounds < 1:
        parser.error("--rounds is at least 1")
    try:
        scale = queue_load_parts.QUICK if arguments.quick else queue_load_parts.FULL
        arguments.load = scale.with_values(arguments.load)
    except ValueError as error:
        parser.error(f"--load: {error}")
    return arguments


if __name__ == "__main__":
    sys.exit(Run(parse()).run())
