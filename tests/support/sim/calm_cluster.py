"""Whole nodes in virtual time, without faults and clients: for tests of one thing that a cluster does by itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

from raftmq.batch_header import seal
from raftmq.broker.replica.commands import execute
from raftmq.broker.services.call import Call
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.metadata_commands import CreateTopic, Done, MetadataCommand, PartitionPlan, encode_command
from raftmq.fsm.metadata_views import PartitionView
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import EntryKind, Proposal
from raftmq.types import GroupId

from sim.cluster.cluster import Cluster, ClusterSettings, SimNode, leads
from sim.cluster.world.loop import VirtualLoop
from sim.cluster.world.network import Network, Weather

T = TypeVar("T")
WAIT_SECONDS = 600.0
"""Virtual seconds."""


class CalmCluster:
    """Brokers with the ids 1, 2, …, on one loop. Use it as a context manager."""

    def __init__(self, count: int, *, metadata_voters: int = 1, **timing: float) -> None:
        rng = random.Random(7)
        self.loop = VirtualLoop(lambda: 0.0005)  # type: ignore[abstract]  # the rest of a loop is not used
        self.network = Network(self.loop, rng, Weather(0.0001, 0.0001))
        ticks = {
            "data_tick_seconds": 0.1,
            "metadata_tick_seconds": 0.1,
            "controller_seconds": 0.2,
            "stable_seconds": 0.5,
        }
        settings = ClusterSettings(
            timing={**ticks, **timing},
            limits={},
            disk_capacity=1 << 30,
            disk_reserve_bytes=100_000,
            disk_latency=0.001,
            writer_threads=1,
            metadata_voters=metadata_voters,
        )
        self.cluster = Cluster(self.loop, self.network, rng, settings, lambda text: None)
        for _ in range(count):
            self.cluster.add_machine()

    def __enter__(self) -> Self:
        machines = list(self.cluster.machines.values())
        for machine in machines:  # one after the other, so that the ids follow the order
            self.cluster.start(machine)
            self.until(lambda machine=machine: machine.process is not None and machine.process.is_ready)  # type: ignore[misc]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.close()

    @property
    def now(self) -> float:
        """Return the virtual time."""
        return self.loop.now

    def node(self, node_id: int) -> SimNode:
        """Return a running broker."""
        node = self.cluster.machines[f"n{node_id}"].node
        assert node is not None
        return node

    @property
    def metadata(self) -> Metadata:
        """Return the metadata of broker 1, which leads them."""
        return self.node(1).view.metadata.state_machine

    def until(self, is_done: Callable[[], bool], seconds: float = WAIT_SECONDS) -> None:
        """Run until the condition holds."""
        assert self.loop.run_until(is_done, self.loop.now + seconds), f"not within {seconds} virtual seconds"
        self._check()

    def run(self, seconds: float) -> None:
        """Let time pass."""
        self.loop.run_until(lambda: False, self.loop.now + seconds)
        self._check()

    def _check(self) -> None:
        for text, error in self.loop.failures:
            raise AssertionError(text) from error

    def do(self, node_id: int, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the process of a broker to its end."""
        process = self.cluster.machines[f"n{node_id}"].process
        assert process is not None
        task = self.loop.spawn(process.host, work)
        self.until(task.done)
        return task.result()

    def change(self, command: MetadataCommand) -> None:
        """Change metadata."""

        async def change() -> None:
            node = self.node(1)
            await execute(node.view.metadata, encode_command(command), Done, node.loop.time() + 10)

        self.do(1, change())

    def create(self, name: str, *placement: tuple[int, ...]) -> list[GroupId]:
        """Create a topic whose partitions have replicas on these brokers, and wait until each has a leader. Return the groups."""
        plans = tuple(PartitionPlan(node_ids) for node_ids in placement)
        command = CreateTopic(name, "log", len(placement[0]), {}, plans)

        async def create() -> None:
            await self.node(1).view.metadata.propose([Proposal(EntryKind.COMMAND, encode_command(command))])[1]

        self.do(1, create())
        topic = self.metadata.topic_by_name(name)
        assert topic is not None
        group_ids = [GroupId(one) for one in topic.group_ids]
        self.until(lambda: all(self.leader_id(one) for one in group_ids))
        return group_ids

    def partition(self, group_id: GroupId) -> PartitionView:
        """Return a partition."""
        partition = self.metadata.partition(group_id)
        assert partition is not None
        return partition

    def leader_id(self, group_id: GroupId) -> int:
        """Return the broker that leads a partition, or 0."""
        for machine in self.cluster.machines.values():
            replica = machine.node.engine.replicas.get(group_id) if machine.node is not None else None
            if replica is not None and leads(replica):
                return machine.number
        return 0

    def describe_moves(self) -> pb.DescribeMovesResponse:
        """Return the moves under way."""

        async def ask() -> pb.DescribeMovesResponse:
            node = self.node(1)
            return await node.grpc.balancing.describe_moves(pb.DescribeMovesRequest(), Call(node.loop.time() + 10))

        return self.do(1, ask())

    def stuck_in_health(self) -> list[pb.StuckReplica]:
        """Return the replicas that cannot come up, as broker 2 describes the cluster."""

        async def ask() -> pb.DescribeClusterResponse:
            node = self.node(2)
            request = pb.DescribeClusterRequest(with_health=True)
            return await node.grpc.admin.describe_cluster(request, Call(node.loop.time() + 10))

        return list(self.do(2, ask()).health.stuck)

    def fill(self, group_id: GroupId, count: int, size: int) -> None:
        """Append so many entries of so many bytes."""
        leader = self.leader_id(group_id)
        replica = self.node(leader).engine.replicas[group_id]

        async def append() -> None:
            for _ in range(count):
                batch = seal(bytes(size), record_count=1, raw_body_bytes=size, base_timestamp_ms=0, max_timestamp_ms=0)
                await replica.propose([Proposal(EntryKind.DATA, batch, 1)])[1]

        self.do(leader, append())
