"""Run ``raftmq`` commands against three fake brokers whose partitions can be moved."""

from __future__ import annotations

import asyncio

import pytest
from raftmq.cli.placement import waiting
from raftmq.client.base.loop_thread import LoopThread

from tests.support.cli.queue_commands import QueueCommands
from tests.support.client.fake_broker import FakeCluster
from tests.support.client.fake_moves import FakeMoves

TOPIC = "orders"


class ClusterCommands(QueueCommands):
    """Three fake brokers with the topic ``orders``: its partitions are on the brokers 1 and 2, 2 and 3, 3 and 1."""

    @classmethod
    def start_cluster(cls, monkeypatch: pytest.MonkeyPatch) -> ClusterCommands:
        loop = LoopThread.get()

        async def make() -> ClusterCommands:
            cluster = await FakeCluster(brokers=3).__aenter__()
            cluster.create_topic(TOPIC, partitions=3, replication_factor=2)
            return cls(cluster, [])

        monkeypatch.setattr(asyncio, "run", loop.run)
        monkeypatch.setattr(waiting, "POLL_SECONDS", 0.001)
        monkeypatch.setattr(waiting, "LINE_SECONDS", 0.0)
        return loop.run(make())

    @property
    def moves(self) -> FakeMoves:
        return self.cluster.moves

    def replicas(self) -> list[list[int]]:
        """Return the brokers of each partition of the topic."""
        return [partition.replicas for partition in self.cluster.topics[TOPIC].partitions]

    def wait_described(self, count: int) -> None:
        """Wait until the moves were described `count` times."""
        LoopThread.get().run(self.cluster.wait_queue(lambda: self.moves.descriptions >= count))
