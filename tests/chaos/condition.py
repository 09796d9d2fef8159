"""Observe a cluster of processes from outside. Every function blocks and changes nothing."""

from __future__ import annotations

import http.client
import re
import threading
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable

import grpc
from raftmq.testing import LocalClusterError

from tests.chaos.cluster import ChaosCluster

ASK_SECONDS = 2.0
POLL_SECONDS = 0.1
ZERO_WHEN_WHOLE = (
    "raftmq_under_replicated_partitions",
    "raftmq_quarantined_replicas",
    "raftmq_replicas_not_served",
    "raftmq_metadata_voters_behind",
    "raftmq_groups_without_leader",
)
"""Metrics that are 0 on each broker of a healthy cluster."""
_SAMPLE = re.compile(r"^(raftmq_\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)


def _samples(cluster: ChaosCluster, broker_id: int) -> list[tuple[str, str, float]]:
    """Return name, labels and value of each of the broker's own metrics (nothing if it does not answer)."""
    try:
        with urllib.request.urlopen(f"http://{cluster.http_address(broker_id)}/metrics", timeout=ASK_SECONDS) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError, http.client.HTTPException):
        return []
    return [(name, labels, float(value)) for name, labels, value in _SAMPLE.findall(text)]


def metrics(cluster: ChaosCluster, broker_id: int) -> dict[str, float]:
    """Return the broker's metrics, summed over their labels (empty if it does not answer)."""
    found: defaultdict[str, float] = defaultdict(float)
    for name, _, value in _samples(cluster, broker_id):
        found[name] += value
    return dict(found)


def answered_calls(cluster: ChaosCluster, method: str) -> int:
    """Return how many requests of this method the brokers have answered with success, each since its last start."""
    return sum(
        int(value)
        for broker_id in cluster.broker_ids
        for name, labels, value in _samples(cluster, broker_id)
        if name == "raftmq_requests_total" and f'method="{method}"' in labels and 'code="OK"' in labels
    )


def is_ready(cluster: ChaosCluster, broker_id: int) -> bool:
    """Return whether the broker reports that it is ready."""
    return metrics(cluster, broker_id).get("raftmq_ready") == 1.0


def is_led(cluster: ChaosCluster, topic: str) -> bool:
    """Return whether every partition has a running leader."""
    try:
        leaders = cluster.leaders(topic)
    except (grpc.RpcError, LocalClusterError):
        return False
    return bool(leaders) and all(broker and cluster.is_running(broker) for broker in leaders.values())


def what_is_not_whole(cluster: ChaosCluster, topic: str) -> str:
    """Describe the problems of the cluster: brokers that do not answer, replicas that are not served or lag, partitions without a leader.

    The text is empty for a healthy cluster. An empty topic asks for no partition's leader.
    """
    problems = []
    for broker_id in cluster.broker_ids:
        if not cluster.is_running(broker_id):
            problems.append(f"broker {broker_id} does not run")
            continue
        seen = metrics(cluster, broker_id)
        if not seen.get("raftmq_ready"):
            problems.append(f"broker {broker_id} is not ready")
        for name in ZERO_WHEN_WHOLE:
            problems += [f"broker {broker_id}: {name} = {seen[name]:g}"] if seen.get(name) else []
    if topic and not problems and not is_led(cluster, topic):
        problems.append(f"not every partition of {topic} is led")
    return "; ".join(problems)


class StoppedError(Exception):
    """Raised when the run ends during a wait."""


def wait_until(condition: Callable[[], bool], seconds: float, stop: threading.Event | None = None) -> bool:
    """Poll until the condition holds (True) or the time is up (False). Raise StoppedError once `stop` is set."""
    deadline = time.monotonic() + seconds
    while not condition():
        if stop is not None and stop.is_set():
            raise StoppedError
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def busiest_leader(cluster: ChaosCluster, topic: str) -> int:
    """Return the broker that leads most partitions of the topic, or the first running one if no leader is known."""
    running = [broker_id for broker_id in cluster.broker_ids if cluster.is_running(broker_id)]
    try:
        led = Counter(broker for broker in cluster.leaders(topic).values() if broker in running)
    except (grpc.RpcError, LocalClusterError):
        led = Counter()
    return led.most_common(1)[0][0] if led else running[0]
