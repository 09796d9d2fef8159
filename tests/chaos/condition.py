"""How a cluster of processes is, seen from outside: who leads, what is whole. Every function blocks; none changes anything."""

from __future__ import annotations

import http.client
import re
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable

import grpc
from raftmq.testing import LocalClusterError

from tests.chaos.cluster import ChaosCluster

ASK_SECONDS = 2.0
POLL_SECONDS = 0.1
_SAMPLE = re.compile(r"^(raftmq_\w+)(\{[^}]*\})? (\S+)$", re.MULTILINE)


def metrics(cluster: ChaosCluster, broker_id: int) -> dict[str, float]:
    """The broker's metrics, summed over their labels; empty when it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{cluster.http_address(broker_id)}/metrics", timeout=ASK_SECONDS) as answer:
            text = answer.read().decode()
    except (OSError, urllib.error.URLError, http.client.HTTPException):
        return {}
    found: Counter[str] = Counter()
    for name, _, value in _SAMPLE.findall(text):
        found[name] += float(value)  # type: ignore[assignment]  # a Counter of floats
    return {name: float(value) for name, value in found.items()}


def is_ready(cluster: ChaosCluster, broker_id: int) -> bool:
    """The broker says that it is ready."""
    return metrics(cluster, broker_id).get("raftmq_ready") == 1.0


def is_led(cluster: ChaosCluster, topic: str) -> bool:
    """Every partition has a leader that runs."""
    try:
        leaders = cluster.leaders(topic)
    except (grpc.RpcError, LocalClusterError):
        return False
    return bool(leaders) and all(broker and cluster.is_running(broker) for broker in leaders.values())


def what_is_not_whole(cluster: ChaosCluster, topic: str) -> str:
    """Empty when every broker answers, every partition of the topic (empty: none is asked for) is led, and every replica that is wanted
    is served, votes and keeps up; else what is wrong.
    """
    problems = []
    for broker_id in cluster.broker_ids:
        if not cluster.is_running(broker_id):
            problems.append(f"broker {broker_id} does not run")
            continue
        seen = metrics(cluster, broker_id)
        if not seen.get("raftmq_ready"):
            problems.append(f"broker {broker_id} is not ready")
        for name in (
            "raftmq_under_replicated_partitions",
            "raftmq_quarantined_replicas",
            "raftmq_replicas_not_serving",
            "raftmq_metadata_voters_behind",
            "raftmq_groups_without_leader",
        ):
            problems += [f"broker {broker_id}: {name} = {seen[name]:g}"] if seen.get(name) else []
    if topic and not problems and not is_led(cluster, topic):
        problems.append(f"not every partition of {topic} is led")
    return "; ".join(problems)


class StoppedError(Exception):
    """Whoever waits is no longer wanted."""


def wait_until(condition: Callable[[], bool], seconds: float, stop: threading.Event | None = None) -> bool:
    """Poll until it holds (True) or the time is over (False). Raises StoppedError once `stop` is set."""
    deadline = time.monotonic() + seconds
    while not condition():
        if stop is not None and stop.is_set():
            raise StoppedError
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True


def busiest_leader(cluster: ChaosCluster, topic: str) -> int:
    """The broker that leads most of the topic's partitions; the first running one when nobody is known to lead."""
    running = [broker_id for broker_id in cluster.broker_ids if cluster.is_running(broker_id)]
    try:
        led = Counter(broker for broker in cluster.leaders(topic).values() if broker in running)
    except (grpc.RpcError, LocalClusterError):
        led = Counter()
    return led.most_common(1)[0][0] if led else running[0]
