"""A thread reads entries that are no longer in memory, while the log keeps growing."""

import asyncio
import time

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.replica import replica_log as group_log
from raftmq.broker.replica.recent_entries import RecentEntriesBudget
from raftmq.broker.replica.replica_log import ReplicaLog
from raftmq.raft.entry import Entry, EntryKind
from raftmq.storage.log_store import ReplicaKey
from raftmq.storage.memory_log_store import MemoryLogStore
from raftmq.types import GroupId, LogIndex, Offset, ReplicaId, Term

from tests.support.broker.engine_cluster import EngineCluster, data, next_progress

READ_SECONDS = 0.02
"""The time of a read from the disk, many times longer than a write takes here."""
READS_MAX = 20
"""One read can return nearly all of the entries. When each new entry discarded the earlier read, a hundred reads were needed."""
MISSED = 500


class SlowReads:
    """Makes the stores' reads slow, and counts them by node."""

    def __init__(self, cluster):
        self.counts = {}
        for node_id, node in cluster.nodes.items():
            self.counts[node_id] = 0
            self._slow(node_id, node.store)

    def _slow(self, node_id, store):
        read = store.entries

        def entries(*arguments):
            self.counts[node_id] += 1
            time.sleep(READ_SECONDS)
            return read(*arguments)

        store.entries = entries


async def write_while(leader, lagging):
    """Write one record after another until the other replica has applied the records that it missed."""

    async def write():
        number = MISSED
        while True:
            await leader.propose([data(number)])[1]
            number += 1

    writing = asyncio.create_task(write())
    try:
        async with asyncio.timeout(30):
            while lagging.state_machine.next_offset < MISSED:
                await next_progress([lagging])
    finally:
        writing.cancel()
        await asyncio.wait([writing])


async def test_a_follower_far_behind_catches_up_during_steady_writes():
    async with EngineCluster(limits=Limits(recent_entries_bytes_max=2000)) as cluster:
        replicas = cluster.create_group(7)
        leader = await cluster.leader(7)
        lagging = replicas[1 if leader.replica_id != 1 else 2]
        cluster.isolate(lagging.replica_id)
        for number in range(MISSED):
            await leader.propose([data(number)])[1]
        reads = SlowReads(cluster)
        cluster.heal()
        await write_while(leader, lagging)
        assert 0 < reads.counts[leader.replica_id] < READS_MAX


async def test_a_restarted_replica_applies_its_log_during_steady_writes():
    async with EngineCluster(limits=Limits(recent_entries_bytes_max=2000)) as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        for number in range(MISSED):
            await leader.propose([data(number)])[1]
        restarted = 1 if leader.replica_id != 1 else 2
        cluster.restart(restarted)
        reads = SlowReads(cluster)
        lagging = cluster.replica(7, restarted)
        await write_while(leader, lagging)
        assert reads.counts[restarted] < READS_MAX


def entry(index, term=1):
    return Entry(LogIndex(index), Term(term), EntryKind.DATA, Offset(index), 1, 0, b"batch")


class Fetches:
    """A log without entries in memory, and a reader that delivers entries when the test decides."""

    def __init__(self):
        self.asked = []
        loop = asyncio.get_running_loop()
        self.log = ReplicaLog(
            ReplicaKey(GroupId(7), ReplicaId(1)), MemoryLogStore(), loop, self._fetch, RecentEntriesBudget(1)
        )

    async def _fetch(self, _read, _key, first, last, _bytes_max):
        found = asyncio.get_running_loop().create_future()
        self.asked.append(found)
        return await found

    async def fetch(self, first, last, meanwhile=None):
        assert self.log.entries(LogIndex(first), LogIndex(last), 1000) is None
        await asyncio.sleep(0)
        if meanwhile is not None:
            self.log.append((meanwhile,))
        self.asked[-1].set_result(tuple(entry(index) for index in range(first, last + 1)))
        while self.log._fetching is not None:
            await asyncio.sleep(0)

    def served(self, first, last, bytes_max=1000):
        found = self.log.entries(LogIndex(first), LogIndex(last), bytes_max)
        return [one.index for one in found] if found is not None else None


async def test_fetched_entries_are_served_although_newer_ones_arrived():
    one = Fetches()
    await one.fetch(1, 5, meanwhile=entry(6))
    assert one.served(1, 5, 10) == [1, 2]
    one.log.append((entry(7),))
    assert one.served(3, 5, 10) == [3, 4]
    assert one.served(5, 5) == [5]
    one.log.append((entry(8),))
    assert one.log._fetched == (), "all entries were handed over"


@pytest.mark.parametrize("replaced", [2, 3, 5])
async def test_fetched_entries_are_not_served_after_a_part_was_replaced(replaced):
    meanwhile, later = Fetches(), Fetches()
    await meanwhile.fetch(1, 5, meanwhile=entry(replaced, term=2))
    assert meanwhile.served(1, 5) is None
    await later.fetch(1, 5)
    later.log.append((entry(replaced, term=2),))
    assert later.served(1, 5) is None


async def test_entries_fetched_for_a_lost_peer_are_dropped(monkeypatch):
    monkeypatch.setattr(group_log, "UNASKED_SECONDS", 0.0)
    one = Fetches()
    await one.fetch(1, 5)
    await asyncio.sleep(0.001)
    one.log.append((entry(6),))
    assert one.log._fetched == ()
