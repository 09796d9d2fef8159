"""Start one broker process for all attacks. It must survive each of them with the same pid."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import grpc
import pytest
from raftmq import sync
from raftmq.broker.base.limits import MIB, Limits
from raftmq.broker.peers.codec import FRAME_HEADER, FrameType
from raftmq.proto import queue_pb2 as pb
from raftmq.proto import queue_pb2_grpc as pb_grpc
from raftmq.testing import LocalCluster

from tests.support.hostile.attackers import dial, many_descriptors, peak_bytes, reset_peak, resident_bytes
from tests.support.hostile.neighbour import Neighbour
from tests.support.hostile.samples import append_request, hello_frame, opaque_batch

MARGIN_BYTES = 64 * MIB
"""Memory beyond a budget: rounding and fragmentation of allocators, and the work for the neighbour."""
LONG_SECONDS = 5.0
"""The duration from which the neighbour must make progress during the attack, not only after it."""
LOG_BYTES_MAX = MIB // 4
"""Limit of the log output during one attack."""
LIMITS = Limits()


@dataclass
class Victim:
    """The broker under attack."""

    cluster: LocalCluster
    pid: int
    topic_id: int
    """Id of the topic that attackers may write to. It holds 8 MiB."""
    neighbour_topic_id: int
    """Id of the topic that they may not write to. A mutation with this id is skipped."""
    cluster_id: str
    resident_at_first: int
    """Its memory before any attack."""

    @property
    def client_address(self) -> str:
        return self.cluster.address(1)

    @property
    def http_address(self) -> str:
        return self.cluster.http_address(1)

    @property
    def peer_address(self) -> str:
        with grpc.insecure_channel(self.client_address) as channel:
            answer = pb_grpc.AdminStub(channel).DescribeCluster(pb.DescribeClusterRequest(), timeout=10)
        return str(answer.brokers[0].broker.peer_address)


@pytest.fixture(scope="session")
def victim() -> Iterator[Victim]:
    with many_descriptors(), LocalCluster(brokers=1) as cluster:
        with sync.Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            for name in ("neighbours", "attacked"):
                admin.create_topic(name, partitions=1)
        with grpc.insecure_channel(cluster.address(1)) as channel:
            stub = pb_grpc.AdminStub(channel)
            neighbours = stub.DescribeTopic(pb.DescribeTopicRequest(name="neighbours"), timeout=10).topic
            topic = stub.DescribeTopic(pb.DescribeTopicRequest(name="attacked"), timeout=10).topic
            cluster_id = stub.DescribeCluster(pb.DescribeClusterRequest(), timeout=10).cluster_id
            for _ in range(8):
                request = append_request(topic.topic_id, opaque_batch(body=bytes(MIB - 64)))
                answer = pb_grpc.LogStub(channel).Append(request, timeout=10)
                assert not answer.partitions[0].HasField("error"), answer
        pid = cluster.pid(1)
        found = Victim(cluster, pid, topic.topic_id, neighbours.topic_id, cluster_id, resident_bytes(pid))
        greet(found.peer_address, cluster_id)
        yield found


def greet(address: str, cluster_id: str) -> None:
    """Let the broker store the boot of the attackers' node, so that later it answers HELLO with WELCOME without a write."""
    with dial(address) as sock:
        sock.sendall(hello_frame(cluster_id=cluster_id, target_node_id=1, node_id=77))
        assert FRAME_HEADER.unpack(sock.recv(FRAME_HEADER.size, socket.MSG_WAITALL))[1] == FrameType.WELCOME


Siege = Callable[[str, int], AbstractAsyncContextManager[Neighbour]]


@pytest.fixture
def siege(victim: Victim, record_property: Callable[[str, object], None]) -> Siege:
    """Run a neighbour beside the attack in the block of `async with siege(name, budget)`.

    Check afterwards that the broker serves, is the same process, and never used more memory than before plus budget and margin.
    """

    @contextlib.asynccontextmanager
    async def besieged(budget: str, budget_bytes: int) -> AsyncIterator[Neighbour]:
        log_before = len(victim.cluster.logs(1))
        async with Neighbour(victim.cluster.bootstrap_servers, "neighbours") as neighbour:
            await neighbour.settled()
            reset_peak(victim.pid)
            before = resident_bytes(victim.pid)
            began_at, acknowledged = time.monotonic(), len(neighbour.acknowledged_seconds)
            yield neighbour
            if time.monotonic() - began_at > LONG_SECONDS:
                assert len(neighbour.acknowledged_seconds) > acknowledged, "nothing was written during the attack"
        peak, after = peak_bytes(victim.pid), resident_bytes(victim.pid)
        bound = before + budget_bytes + MARGIN_BYTES
        record_property("peak_mib", peak // MIB)
        record_property("bound_mib", bound // MIB)
        print(
            f"{before // MIB} MiB before, {peak // MIB} at most (allowed: {bound // MIB}), {after // MIB} after; {neighbour}"
        )
        log = victim.cluster.logs(1)[log_before:]
        failure_at = log.find("Traceback")
        assert failure_at < 0, log[max(0, failure_at - 500) : failure_at + 3000]
        assert len(log) < LOG_BYTES_MAX, "attackers must not fill the log"
        assert victim.cluster.pid(1) == victim.pid
        assert victim.cluster.is_running(1)
        assert peak < bound, f"the broker took {peak // MIB} MiB, more than {bound // MIB} MiB ({budget})"

    return besieged


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the totals after the other tests, also in random order."""
    items.sort(key=lambda item: item.path.name == "test_totals.py")  # stable
