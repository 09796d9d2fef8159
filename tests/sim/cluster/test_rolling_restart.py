"""A rolling restart in virtual time, with the timers of production: no append waits for an election, however busy the machine is."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from raftmq import Producer
from raftmq.broker.base.limits import Timing
from raftmq.types import GroupId

from sim.cluster.cluster import Cluster, Machine, leads
from sim.cluster.rpc.client_transport import ClientTransport
from sim.cluster.world.host import Host
from tests.support.sim.calm_cluster import CalmCluster

BROKERS = 3
PARTITIONS = 6
LONGEST_SECONDS = 0.5
"""More than an append waits in an orderly restart, and less than it waits for an election."""
STABLE_SECONDS = 5.0
SEND_SECONDS = 0.1
ENTRIES_BEHIND_MAX = 10
"""The senders never rest, so some replica always lacks the newest entries."""
TIMING = Timing()


class Senders:
    """One task for each partition sends record after record, and keeps the longest time to an acknowledgement."""

    def __init__(self, cluster: CalmCluster) -> None:
        self.longest_seconds = 0.0
        self.sent = 0
        self._cluster = cluster
        self._is_stopping = False
        host = Host("client", 1, 1.0, 7.0)
        cluster.cluster.clients["client"] = host
        self._work = cluster.loop.spawn(host, self._run())

    async def _run(self) -> None:
        cluster = self._cluster
        producer = Producer(
            bootstrap_servers=cluster.cluster.addresses(), transport=ClientTransport(cluster.loop, cluster.network)
        )
        producer._resolver.rng = random.Random(1)
        async with producer:
            await asyncio.gather(*(self._send(producer, partition) for partition in range(PARTITIONS)))

    async def _send(self, producer: Producer, partition: int) -> None:
        while not self._is_stopping:
            begun = self._cluster.now
            await (await producer.send("t", b"%d" % self.sent, partition=partition))
            self.longest_seconds = max(self.longest_seconds, self._cluster.now - begun)
            self.sent += 1
            await asyncio.sleep(SEND_SECONDS)

    def finish(self) -> None:
        """Stop, and raise the error of a send that failed."""
        self._is_stopping = True
        self._cluster.until(self._work.done)
        self._work.result()


def is_whole(cluster: CalmCluster, group_ids: list[GroupId]) -> bool:
    """Return whether each group is led, and every replica has all but the newest entries of its leader."""
    nodes = [machine.node for machine in cluster.cluster.machines.values() if machine.node is not None]
    replicas = [[node.engine.replicas.get(group_id) for node in nodes] for group_id in (GroupId(0), *group_ids)]
    return all(
        len(found) == BROKERS
        and None not in found
        and any(leads(one) for one in found if one is not None)
        and max(ends := [one.core.commit_index for one in found if one is not None]) - min(ends) <= ENTRIES_BEHIND_MAX
        for found in replicas
    )


@pytest.fixture
def cluster() -> CalmCluster:
    return CalmCluster(
        BROKERS,
        metadata_voters=BROKERS,
        data_tick_seconds=TIMING.data_tick_seconds,
        metadata_tick_seconds=TIMING.metadata_tick_seconds,
        controller_seconds=TIMING.controller_seconds,
        stable_seconds=STABLE_SECONDS,
    )


def restart_all(cluster: CalmCluster, end: Callable[[Cluster, Machine], object]) -> Senders:
    """Restart one broker after the other, the metadata leader last, each when all replicas have caught up."""
    with cluster:
        group_ids = cluster.create("t", *((n % BROKERS + 1, (n + 1) % BROKERS + 1, (n + 2) % BROKERS + 1) for n in range(PARTITIONS)))  # fmt: skip
        cluster.until(lambda: len(cluster.node(1).view.metadata.core.membership.voters) == BROKERS)
        senders = Senders(cluster)
        cluster.run(3.0)
        for number in (2, 3, 1):
            machine = cluster.cluster.machines[f"n{number}"]
            cluster.until(lambda: is_whole(cluster, group_ids))
            assert any(cluster.leader_id(group_id) == number for group_id in group_ids), "it has something to hand over"
            end(cluster.cluster, machine)
            cluster.until(lambda machine=machine: machine.process is None)  # type: ignore[misc]
            cluster.run(1.0)
            cluster.cluster.start(machine)
            cluster.until(lambda machine=machine: machine.process is not None and machine.process.is_ready)  # type: ignore[misc]
            cluster.run(2 * STABLE_SECONDS)  # until preferred leaders are back
        senders.finish()
    return senders


def test_no_append_of_a_rolling_restart_waits_for_an_election(cluster: CalmCluster) -> None:
    senders = restart_all(cluster, Cluster.stop)
    assert senders.sent > 1_000, "they were under way in every restart"
    assert senders.longest_seconds < LONGEST_SECONDS


@pytest.mark.long
def test_appends_wait_longer_if_brokers_end_without_a_drain(cluster: CalmCluster) -> None:
    """This shows that the test above measures the drain."""
    senders = restart_all(cluster, Cluster.crash)
    assert senders.longest_seconds > LONGEST_SECONDS
