"""Measure the cost of idle partitions and of their failover, with 300 and 1,000 partitions on three brokers.

Usage: python -m bench.partitions [300] [--quick]

The order is: create, settle, measure idle processor time, memory, descriptors and threads, restart one broker by SIGTERM, restart all, then
several times kill -9 the broker with most leaders, with the terms of all groups before and after. A living broker reports terms and leaders.
Linux only, because it reads /proc.

Invariants: polling for leaders is slow enough (`POLL_SECONDS`) not to become the load. A figure of brokers or kills has a value for each.
"""

import argparse
import asyncio
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import grpc
import raftmq
from raftmq.errors import TooManyPartitionsError
from raftmq.methods import DESCRIBE_TOPIC
from raftmq.proto import queue_pb2
from raftmq.testing import LocalCluster

from bench.systems import UnavailableError
from bench.workloads import Figure

TOPIC = "idle"
POLL_SECONDS = 0.2
CLUSTER_SECONDS = 300.0
"""Limit for each of creating, starting and electing."""
ASK_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class PartitionScale:
    """Hold the durations of the measurement and the number of kills."""

    settle_seconds: float = 15.0
    """Pause after creating and after each restart, before a measurement."""
    idle_seconds: float = 30.0
    aftermath_seconds: float = 6.0
    """Pause after every group has a leader again. A needless second election would come within an election timeout."""
    kills: int = 3
    partitions_max: int = 10**6


FULL = PartitionScale()
QUICK = PartitionScale(settle_seconds=0.3, idle_seconds=0.5, aftermath_seconds=0.3, kills=1, partitions_max=6)


def figures(count: int) -> tuple[Figure, ...]:
    """Return the figures and their targets."""
    return (
        Figure("create", "s", False),
        Figure("idle_cpu", "% of a core", False, 5.0 if count >= 1000 else None),
        Figure("rss", "MiB", False),
        Figure("pss", "MiB", False),
        Figure("descriptors", "open", False),
        Figure("threads", "", False),
        Figure("stop_one", "s", False),
        Figure("start_one", "s to ready", False),
        Figure("stop_all", "s", False),
        Figure("start_all", "s to leaders", False),
        Figure("failover", "s to leaders", False),
        Figure("start_killed", "s to ready", False),
        Figure("term_by_one", "% of the affected", True, 95.0),
        Figure("term_rise_max", "terms, any group", False, 2.0),
        Figure("bystanders", "other groups risen", False),
    )


# ------------------------------------------------------------------------------------------------- looking at a cluster


@dataclass(frozen=True, slots=True)
class Leadership:
    """Hold the leader of a group, as one broker sees it."""

    broker_id: int
    """The leader's id. 0: no known leader."""
    term: int


class Observer:
    """Ask one broker about the topic over one connection. A connection for each request would be a load itself."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        self._describe: grpc.UnaryUnaryMultiCallable[
            queue_pb2.DescribeTopicRequest, queue_pb2.DescribeTopicResponse
        ] = self._channel.unary_unary(
            DESCRIBE_TOPIC.path,
            request_serializer=queue_pb2.DescribeTopicRequest.SerializeToString,
            response_deserializer=queue_pb2.DescribeTopicResponse.FromString,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._channel.close()

    def leaderships(self) -> dict[int, Leadership]:
        """Return group → leadership, for every partition."""
        answer = self._describe(queue_pb2.DescribeTopicRequest(name=TOPIC), timeout=ASK_SECONDS, wait_for_ready=True)
        known = {leader.group_id: Leadership(leader.broker_id, leader.leader_epoch) for leader in answer.leaders}
        return {p.group_id: known.get(p.group_id, Leadership(0, 0)) for p in answer.topic.partitions}

    def wait_led(self, count: int, avoiding: int = 0) -> dict[int, Leadership]:
        """Wait until each of `count` partitions has a leader other than broker `avoiding`."""
        deadline = time.monotonic() + CLUSTER_SECONDS
        while True:
            found = self.leaderships()
            led = sum(leadership.broker_id not in (0, avoiding) for leadership in found.values())
            if led == count:
                return found
            if time.monotonic() > deadline:
                raise TimeoutError(f"{led} of {count} partitions have a leader after {CLUSTER_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)


@dataclass(frozen=True, slots=True)
class TermRise:
    """Report the rise of terms in an election."""

    by_one_percent: float
    """Percentage, among the groups that the killed broker led, whose term rose by one."""
    maximum: int
    """Largest rise of any group."""
    bystanders: int
    """Number of groups led by another broker whose term rose nevertheless."""


def term_rise(before: dict[int, Leadership], after: dict[int, Leadership], killed: int) -> TermRise:
    rises = {group: after[group].term - leadership.term for group, leadership in before.items()}
    affected = [rise for group, rise in rises.items() if before[group].broker_id == killed]
    others = [rise for group, rise in rises.items() if before[group].broker_id != killed]
    if not affected:
        raise ValueError(f"broker {killed} led nothing")
    return TermRise(
        by_one_percent=100 * affected.count(1) / len(affected),
        maximum=max(rises.values()),
        bystanders=sum(rise > 0 for rise in others),
    )


# ------------------------------------------------------------------------------------------------ looking at a process


def cpu_seconds(pid: int) -> float:
    """Return the processor time of a process so far, user and system."""
    values = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


def memory_mib(pid: int) -> tuple[float, float]:
    """Return (RSS, PSS): resident memory, and resident memory with shared pages divided among the sharing processes."""
    values = {
        line.split(":")[0]: line.split()[1] for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    }
    return int(values["Rss"]) / 1024, int(values["Pss"]) / 1024


def descriptors(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def threads(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())


# ----------------------------------------------------------------------------------------------------------- measuring


class _Measurement:
    """Measure one cluster, and hold the results so far."""

    def __init__(self, cluster: LocalCluster, count: int, scale: PartitionScale, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._count = count
        self._scale = scale
        self._tell = tell
        self.values: dict[str, list[float]] = {figure.name: [] for figure in figures(count)}

    def add(self, name: str, *values: float) -> None:
        self.values[name] += values
        self._tell(f"{self._count} partitions, {name}: " + ", ".join(f"{value:,.2f}" for value in values))

    def settle(self) -> None:
        time.sleep(self._scale.settle_seconds)

    def create(self) -> None:
        async def create() -> None:
            servers = self._cluster.bootstrap_servers
            async with raftmq.Admin(bootstrap_servers=servers, request_timeout_ms=CLUSTER_SECONDS * 1000) as admin:
                await admin.create_topic(TOPIC, partitions=self._count, replication_factor=3)

        started = time.perf_counter()
        try:
            asyncio.run(create())
        except TooManyPartitionsError as error:
            raise UnavailableError(f"{self._count} partitions are left out: {error}") from error
        with self._observer() as observer:
            observer.wait_led(self._count)
        self.add("create", time.perf_counter() - started)

    def idle(self) -> None:
        pids = [self._cluster.pid(broker) for broker in self._cluster.broker_ids]
        started, before = time.perf_counter(), [cpu_seconds(pid) for pid in pids]
        time.sleep(self._scale.idle_seconds)
        elapsed, after = time.perf_counter() - started, [cpu_seconds(pid) for pid in pids]
        self.add("idle_cpu", *(100 * (b - a) / elapsed for a, b in zip(before, after, strict=True)))
        memory = [memory_mib(pid) for pid in pids]
        self.add("rss", *(rss for rss, _ in memory))
        self.add("pss", *(pss for _, pss in memory))
        self.add("descriptors", *map(descriptors, pids))
        self.add("threads", *map(threads, pids))

    def restart_one(self) -> None:
        broker = self._cluster.broker_ids[-1]
        started = time.perf_counter()
        self._cluster.stop(broker)
        stopped = time.perf_counter()
        self._cluster.restart(broker)
        self.add("stop_one", stopped - started)
        self.add("start_one", time.perf_counter() - stopped)

    def restart_all(self) -> None:
        started = time.perf_counter()
        self._cluster.stop_all()
        stopped = time.perf_counter()
        for broker in self._cluster.broker_ids:
            self._cluster.restart(broker, wait=False)
        for broker in self._cluster.broker_ids:
            self._cluster.wait_ready(broker)
        with self._observer() as observer:
            observer.wait_led(self._count)
        self.add("stop_all", stopped - started)
        self.add("start_all", time.perf_counter() - stopped)

    def kill(self, broker: int) -> None:
        with self._observer(avoiding=broker) as observer:
            before = observer.wait_led(self._count)
            started = time.perf_counter()
            self._cluster.kill(broker)
            observer.wait_led(self._count, avoiding=broker)
            self.add("failover", time.perf_counter() - started)
            time.sleep(self._scale.aftermath_seconds)
            rise = term_rise(before, observer.wait_led(self._count, avoiding=broker), broker)
        self.add("term_by_one", rise.by_one_percent)
        self.add("term_rise_max", rise.maximum)
        self.add("bystanders", rise.bystanders)
        started = time.perf_counter()
        self._cluster.restart(broker)
        self.add("start_killed", time.perf_counter() - started)

    def leaders_of(self, broker: int) -> int:
        with self._observer(avoiding=broker) as observer:
            return sum(leadership.broker_id == broker for leadership in observer.leaderships().values())

    def _observer(self, avoiding: int = 0) -> Observer:
        return Observer(
            self._cluster.address(next(broker for broker in self._cluster.broker_ids if broker != avoiding))
        )


def measure(count: int, scale: PartitionScale, tell: Callable[[str], None]) -> dict[str, list[float]]:
    """Return figure → values of `count` partitions. Raises `UnavailableError` where so many cannot be measured."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # else each start of a broker would also compile all modules again
    if not Path("/proc/self/smaps_rollup").exists():
        raise UnavailableError(f"{count} partitions are left out: memory and descriptors are read from Linux's /proc")
    with LocalCluster(brokers=3, timeout_seconds=CLUSTER_SECONDS) as cluster:
        measurement = _Measurement(cluster, min(count, scale.partitions_max), scale, tell)
        measurement.create()
        measurement.settle()
        measurement.idle()
        measurement.restart_one()
        measurement.settle()
        measurement.restart_all()
        for _ in range(scale.kills):
            measurement.settle()
            # Kill the broker that leads most: one that returned a moment ago leads few groups, so its end would show little.
            measurement.kill(max(cluster.broker_ids, key=measurement.leaders_of))
        return measurement.values


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.partitions", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=300)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    measure(arguments.count, QUICK if arguments.quick else FULL, print)


if __name__ == "__main__":
    main()
