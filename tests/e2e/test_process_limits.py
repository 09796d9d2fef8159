"""A broker whose process may open few files or map little memory: it refuses to start, or it bounds its connections."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from raftmq import TopicPartition, sync
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc
from raftmq.testing import LocalCluster

from tests.support.hostile import http2
from tests.support.hostile.attackers import connections, many_descriptors

pytestmark = pytest.mark.e2e

OPEN_FILES = 1024
IDLE_CONNECTIONS = 1500
"""Idle connections to each port, more than the files that the broker may have open."""

SERVED_SECONDS = 30.0
"""Time within which new clients are served although idle ones hold every slot.

Silent connections are closed, and the SDK connects again.
"""


def limited(option: str, value: int) -> tuple[str, ...]:
    """Return the command `raftmq` under a soft and hard limit of the shell."""
    return ("sh", "-c", f'ulimit {option} {value}; exec "$0" "$@"', sys.executable, "-m", "raftmq")


def started(data_dir: Path, command: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    ports = [part for name in ("listen", "peer-listen", "http-listen") for part in (f"--{name}", "127.0.0.1:0")]
    arguments = [*command, "broker", "start", "--bootstrap", "--data-dir", str(data_dir), *ports]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("-n", 48, ("RLIMIT_NOFILE", "512")),
        ("-v", 3_000_000, ("RLIMIT_AS", "map_bytes")),
        ("-f", 100_000, ("RLIMIT_FSIZE", "map_bytes")),
    ],
)
def test_a_start_under_too_low_limits_is_refused_with_one_line(
    tmp_path: Path, option: str, value: int, words: tuple[str, ...]
):
    ended = started(tmp_path / "data", limited(option, value))
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


@contextmanager
def three_small_brokers() -> Iterator[LocalCluster]:
    with many_descriptors(), LocalCluster(brokers=3, command=limited("-n", OPEN_FILES)) as cluster:
        yield cluster


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def places(cluster: LocalCluster, broker_id: int, metric: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{cluster.http_address(broker_id)}/metrics", timeout=10) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(metric + "{")]
    return {line.split('"')[1]: float(line.split()[-1]) for line in lines}


def peer_address(cluster: LocalCluster, broker_id: int) -> str:
    with grpc.insecure_channel(cluster.address(broker_id)) as channel:
        answer = pb_grpc.AdminStub(channel).DescribeCluster(pb.DescribeClusterRequest(), timeout=10)
    return next(str(one.broker.peer_address) for one in answer.brokers if one.broker.broker_id == broker_id)


@pytest.mark.long
def test_idle_connections_to_each_port_leave_descriptors_for_everything_else():
    with three_small_brokers() as cluster, sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topic("before", partitions=20, replication_factor=3)
        victim = cluster.wait_leaders("before")[0]
        pid = cluster.pid(victim)
        peers = peer_address(cluster, victim)
        client, http = cluster.address(victim), cluster.http_address(victim)
        with (
            connections(client, IDLE_CONNECTIONS, http2.greeting()),
            connections(peers, IDLE_CONNECTIONS),
            connections(http, IDLE_CONNECTIONS),
        ):
            most = 0
            for _ in range(20):
                most = max(most, open_files(pid))
                time.sleep(0.1)
            used, most_places = (places(cluster, victim, f"raftmq_slots_{name}") for name in ("used", "limit"))
            assert most < OPEN_FILES - 64, "there must be descriptors left"
            for port in ("client_connections", "http_connections", "peer_handshakes"):
                assert used[port] <= most_places[port]
            assert used["client_connections"] > most_places["client_connections"] / 2, "the attack must be seen"
            evicted = places(cluster, victim, "raftmq_connections_evicted_total")
            assert evicted["http"] > IDLE_CONNECTIONS / 2
            assert evicted["peer"] > IDLE_CONNECTIONS / 2
            began_at = time.monotonic()
            # the cluster serves: new replicas open files and elect leaders, and records are written and trimmed
            admin.create_topic("after", partitions=20, replication_factor=3)
            cluster.wait_leaders("after")
            with sync.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
                for partition in range(20):
                    producer.send("before", b"value", partition=partition)
                producer.flush()
            assert admin.delete_records({TopicPartition("before", 0): -1}) == {TopicPartition("before", 0): 1}
            assert time.monotonic() - began_at < SERVED_SECONDS
        assert cluster.pid(victim) == pid
        assert cluster.is_running(victim)
        log = cluster.logs(victim)
        assert "descriptor limit reached" not in log
        assert "Too many open files" not in log
        assert "Traceback" not in log
