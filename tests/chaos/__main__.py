"""``make chaos``: start chaos runs with random seeds until the time is up, and exit with code 1 at the first finding."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
import tempfile
import time
from pathlib import Path

from tests.chaos.cluster import FAST, SPARE_BROKERS, ChaosCluster, best_links
from tests.chaos.faults import families
from tests.chaos.machine import missing_for_families, missing_for_namespaces, missing_for_shim, missing_for_volumes
from tests.chaos.nemesis import ORDERS
from tests.chaos.proxies import Proxies
from tests.chaos.queue_run import QueueReport, queue_run
from tests.chaos.run import Report, chaos_run

RUN_SECONDS = 60.0
"""Duration of the faults in one run. Then the cluster is healed, the history is judged, and a new cluster starts."""


def possible_families() -> tuple[list[str], list[str]]:
    """Return the families that this machine permits, and a sentence about each restriction."""
    missing = missing_for_families()
    said = [f"no faults of {family}: {why}" for family, why in missing.items() if why]
    if why := missing_for_namespaces():
        said.append(f"links through proxies: {why}")
    return [family for family in families() if not missing.get(family)], said


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed once (default: random seeds)")
    parser.add_argument("--minutes", type=float, default=10.0, help="start new runs for N minutes (default: 10)")
    parser.add_argument("--run-seconds", type=float, default=RUN_SECONDS, help="duration of the faults in one run")
    parser.add_argument(
        "--families", default="", help=f"comma-separated list of {', '.join(families())} (default: all)"
    )
    parser.add_argument(
        "--queues",
        action="store_true",
        help="producers, workers and operators on queue topics, instead of clients of a log topic",
    )
    parser.add_argument("--default-timing", action="store_true", help="use production timers instead of fast ones")
    parser.add_argument(
        "--proxies", action="store_true", help="use proxies for links even where name spaces are permitted"
    )
    parser.add_argument("--keep", type=Path, help="directory for histories and schedules (default: a temporary one)")
    return parser.parse_args(arguments)


def circumstances(options: argparse.Namespace) -> str:
    """Return the arguments, beside seed and families, that repeat a run."""
    parts = ["--default-timing"] * options.default_timing + ["--proxies"] * options.proxies
    parts += [f"--run-seconds {options.run_seconds:g}"] * (options.run_seconds != RUN_SECONDS)
    return "".join(f" {part}" for part in parts)


async def one_run(seed: int, wanted: list[str], options: argparse.Namespace, directory: Path) -> bool:
    """Run one seed on a new cluster and return whether nothing was found."""
    async with ChaosCluster(
        spare=SPARE_BROKERS if ORDERS in wanted else 0,
        links=Proxies if options.proxies else best_links,
        has_disk_orders=missing_for_shim() is None,
        has_clock_orders=missing_for_shim() is None,
        has_volumes=missing_for_volumes() is None,
        settings=() if options.default_timing else FAST,
    ) as cluster:
        report: Report | QueueReport
        if options.queues:
            report = await queue_run(cluster, seed, wanted, options.run_seconds, directory)
            report.circumstances = f"--queues --families {','.join(wanted)}{circumstances(options)}"
        else:
            report = await chaos_run(cluster, seed, wanted, options.run_seconds, directory)
            report.circumstances = circumstances(options)
        if report.findings:
            for broker_id in cluster.broker_ids:
                (directory / f"broker-{broker_id}.log").write_text(cluster.logs(broker_id))
    print(report.text(), flush=True)
    return not report.findings


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    options = parsed(arguments)
    possible, said = possible_families()
    print(*said, sep="\n", end="\n" if said else "", flush=True)
    wanted = [name for name in options.families.split(",") if name] or possible
    impossible = [name for name in wanted if name not in possible]
    if impossible:
        print(f"not possible here: {', '.join(impossible)}; there are {', '.join(possible)}", file=sys.stderr)
        return 2
    keep = options.keep or Path(tempfile.mkdtemp(prefix="raftmq-chaos-findings-"))
    ends_at = time.monotonic() + options.minutes * 60
    runs = 0
    while options.seed is None or not runs:
        seed = options.seed if options.seed is not None else secrets.randbelow(1 << 31)
        print(f"seed {seed}: {', '.join(wanted)}", flush=True)
        runs += 1
        directory = keep / f"seed-{seed}"
        directory.mkdir(parents=True, exist_ok=True)
        if not asyncio.run(one_run(seed, wanted, options, directory)):
            return 1
        if time.monotonic() > ends_at:
            break
    print(f"{runs} runs, nothing found; histories: {keep}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
