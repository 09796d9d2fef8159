"""Commits of several partitions, one of which has no leader, on a real broker in memory."""

from __future__ import annotations

import asyncio

import pytest
from raftmq.client.base.metrics import ConsumerCounters
from raftmq.client.connection.resolver import Resolver
from raftmq.client.consumer.committer import Commit, Committer
from raftmq.client.membership.group_calls import MemberIdentity, OffsetCommit, OwnedPartition
from raftmq.errors import ClosedClientError, RaftMQError
from raftmq.types import TopicPartition

from tests.support.broker.harness import running
from tests.support.client.broker_transport import ADDRESS, BrokerTransport, produce

LED, SILENT = TopicPartition("t", 0), TopicPartition("t", 1)
UNOWNED = OwnedPartition(0, 0)


async def test_each_partition_is_settled_when_its_own_leader_has_answered() -> None:
    committed: list[TopicPartition] = []
    outcomes: list[tuple[TopicPartition, RaftMQError | None]] = []
    async with running() as broker:
        topic = await broker.topic("t", partitions=2)
        for number in range(2):
            await produce(broker, topic, number, 10)
        broker.lose_leadership(topic.partitions[1].group_id)
        resolver = Resolver(ADDRESS, BrokerTransport(broker))
        await resolver.start(5)
        counters = ConsumerCounters()
        committer = Committer(resolver, 30, lambda at, _, error: outcomes.append((at, error)), lambda _: None, counters)
        commits = {at: Commit(OffsetCommit(4), UNOWNED, MemberIdentity("g")) for at in (LED, SILENT)}
        both = committer.submit(commits, committed.append)
        async with asyncio.timeout(5):
            await committer.settled([LED])
        assert (committed, outcomes, counters.commits_total) == ([LED], [(LED, None)], 1)
        assert not committer.is_busy(LED)
        assert committer.is_busy(SILENT)
        again = committer.submit(commits)
        waiting = asyncio.ensure_future(committer.settled([SILENT]))
        async with asyncio.timeout(5):
            await committer.settled([LED])
        assert not both.done()
        await committer.close()
        for ended in (both, again):
            with pytest.raises(ClosedClientError):
                await ended
        async with asyncio.timeout(5):
            await waiting
        await resolver.close()
