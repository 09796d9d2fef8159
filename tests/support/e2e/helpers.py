"""Inspect the brokers of a `LocalCluster`: their files, gauges, readiness and leadership."""

import asyncio
import contextlib
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from raftmq import Admin
from raftmq.testing import LocalCluster

from tests.support.e2e.raftmq_command import RAFTMQ

TOPIC = "records"
"""The topic of the fixtures `cluster` and `workload`."""
PARTITIONS = 3
"""Number of partitions of `TOPIC`."""
WAIT_SECONDS = 60.0
POLL_SECONDS = 0.1


@asynccontextmanager
async def cluster_with_topic(
    topic: str = TOPIC, partitions: int = PARTITIONS, *, brokers: int = 3, command: Sequence[str] = RAFTMQ
) -> AsyncIterator[LocalCluster]:
    """Start brokers for one test and create a topic with three replicas."""
    async with LocalCluster(brokers=brokers, command=command) as cluster:
        async with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            await admin.create_topic(topic, partitions=partitions, replication_factor=3)
        yield cluster


async def eventually(condition: Callable[[], bool]) -> None:
    """Poll a condition, which may block, until it holds. It does not hold while a broker that it asks cannot be reached."""
    async with asyncio.timeout(WAIT_SECONDS):
        while True:
            with contextlib.suppress(OSError):
                if await asyncio.to_thread(condition):
                    return
            await asyncio.sleep(POLL_SECONDS)


def gauge(cluster: LocalCluster, broker_id: int, name: str) -> float:
    """Return the value of a metric without labels."""
    with urllib.request.urlopen(f"http://{cluster.http_address(broker_id)}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
    raise AssertionError(f"broker {broker_id} has no {name}")


def is_ready(cluster: LocalCluster, broker_id: int) -> bool:
    """Return whether /readyz reports that the broker is ready."""
    try:
        with urllib.request.urlopen(f"http://{cluster.http_address(broker_id)}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, TimeoutError):
        return False


def readiness(cluster: LocalCluster, broker_id: int) -> str:
    """Return the text of /readyz, ready or not (empty if the broker does not answer)."""
    try:
        with urllib.request.urlopen(
            f"http://{cluster.http_address(broker_id)}/readyz?format=text", timeout=5
        ) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.read().decode()
    except (urllib.error.URLError, TimeoutError):
        return ""


def busiest_leader(cluster: LocalCluster, topic: str = TOPIC) -> int:
    """Return the broker that leads most partitions."""
    return Counter(cluster.wait_leaders(topic).values()).most_common(1)[0][0]


def data_files(cluster: LocalCluster, broker_id: int) -> list[Path]:
    """Return the broker's partition files."""
    return sorted(p for p in (cluster.data_dir(broker_id) / "groups").glob("*.mdb") if not p.name.startswith("0-"))


async def restart_all(cluster: LocalCluster) -> None:
    """Start all brokers, which must be stopped, one after the other."""
    for broker_id in cluster.broker_ids:
        await asyncio.to_thread(cluster.restart, broker_id)
