"""One fault of several steps: a leader is overtaken while one of its followers installs its snapshot.

1. The follower's disk hangs in a write. It is cut off until the leader's log is deleted past its own.
2. It gets a snapshot, which must wait for the disk. At that moment its leader loses all others, and goes on sending it entries.
3. The disk writes again: the snapshot and those entries are handed to it together. It hangs again while the snapshot is installed.
4. The others elect a leader, which replaces the entries.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import Any

from raftmq.broker.replica.disk import Installing, Writing
from raftmq.broker.replica.replica import Replica

from sim.cluster.cluster import Cluster, Machine

VOTERS_MIN = 5
"""Voters of a group in which others can elect a leader although one of them has got entries that none of the others has."""
SECONDS_MAX = 8.0
SUSPENDED_SECONDS = 1.5
_LOOK_SECONDS = 0.002
_SHORTLY = 0.0003
"""Time between two looks for a state that passes quickly."""


def steps(
    cluster: Cluster, rng: random.Random, leading: Machine, following: Machine, group_id: int
) -> Generator[float]:
    """Take the steps. Yields the seconds until the next one. Closing it, or its end, undoes everything."""
    leader, follower = _replica(leading, group_id), _replica(following, group_id)
    others = [name for name in cluster.machines if name not in (leading.name, following.name)]
    disk, log = following.disk, follower.core.log
    cuts: list[tuple[str, str]] = []
    suspended_by = cluster.loop.now + SUSPENDED_SECONDS
    while follower.is_disk_backed and not follower.applier.is_suspended and cluster.loop.now < suspended_by:
        yield _SHORTLY  # a disk that hangs in a read leaves an entry half applied
    disk.hangs = True
    try:
        while not isinstance(follower.disk, Writing):
            yield _LOOK_SECONDS
        yield rng.uniform(0.0, 0.3)
        cuts = _cut(cluster, following.name, [leading.name, *others])
        while leader.log_start.index <= log.last_index:
            yield _LOOK_SECONDS
        _restore(cluster, cuts)
        while log.snapshot is None:
            yield _LOOK_SECONDS
        cluster.trace(f"-- {following.name} has got a snapshot, and {leading.name} is cut off from {' '.join(others)}")
        cuts = _cut(cluster, leading.name, others)
        while log.last_index == log.position.index:
            yield _LOOK_SECONDS
        yield rng.uniform(0.0, 0.2)
        disk.hangs = False
        while not _is_installing(follower):
            yield _SHORTLY
        disk.hangs = True
        term = log.last_term
        while log.last_term == term:
            yield _LOOK_SECONDS
        disk.overtaken_installs += 1
        cluster.trace(f"-- entries of {leading.name} are replaced on {following.name}, which installs their snapshot")
        yield rng.uniform(0.0, 0.2)
        disk.hangs = False
        while _is_installing(follower):
            yield _SHORTLY
    finally:
        disk.hangs = False
        _restore(cluster, cuts)


def _replica(machine: Machine, group_id: int) -> Replica[Any]:
    assert machine.node is not None
    replicas: Any = machine.node.engine.replicas
    replica: Replica[Any] = replicas[group_id]
    return replica


def _is_installing(replica: Replica[Any]) -> bool:
    return isinstance(replica.disk, Installing)


def _cut(cluster: Cluster, name: str, others: Sequence[str]) -> list[tuple[str, str]]:
    """Cut the links between a machine and others. Return those that were not cut before."""
    network = cluster.network
    links = [link for other in others for link in ((name, other), (other, name)) if not network.is_cut(*link)]
    for link in links:
        network.cut(*link)
    return links


def _restore(cluster: Cluster, links: list[tuple[str, str]]) -> None:
    for link in links:
        cluster.network.heal(*link)
