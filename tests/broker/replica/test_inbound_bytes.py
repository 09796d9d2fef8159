"""A budget bounds the bytes that appends of peers hold until they are durable or dropped."""

import asyncio
import dataclasses

from raftmq.broker.base.limits import Limits
from raftmq.broker.replica.initial_state import founder_state
from raftmq.raft.membership import Membership
from raftmq.raft.messages import AppendRequest

from tests.support.broker.engine_cluster import EngineCluster, data, next_progress
from tests.support.broker.imaginary_leader import entry
from tests.support.broker.waiting import turn_until

GROUP = 7


async def test_inbound_bytes_that_the_core_drops_are_released():
    async with EngineCluster() as cluster:
        cluster.nodes[1].add(GROUP, founder_state(Membership((1, 2, 3))))
        engine = cluster.nodes[1].engine
        good = AppendRequest(2, 1, 6, 5, 5, (entry(6),), 5)
        engine.on_message(2, GROUP, good)
        await turn_until(lambda: engine.inbound_bytes == 0)
        gap = dataclasses.replace(good, entries=(entry(6), entry(9, payload=b"y" * 100)))
        engine.on_message(2, GROUP, gap)
        await turn_until(lambda: not engine.replicas[GROUP].is_dirty)
        assert engine.inbound_bytes == 0


async def test_inbound_bytes_of_a_replica_that_a_defect_stops_are_released(monkeypatch):
    """A replica that was restarted repeatedly and stopped each time used up the budget of the others."""
    async with EngineCluster() as cluster:
        node = cluster.nodes[1]
        replica = node.add(GROUP, founder_state(Membership((1, 2, 3))))

        def defect(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(node.engine.commits, "_update", defect)
        node.engine.on_message(2, GROUP, AppendRequest(2, 1, 6, 5, 5, (entry(6),), 5))
        await turn_until(lambda: node.broken)
        assert replica.is_closed
        assert node.engine.inbound_bytes == 0


async def test_an_append_and_a_proposal_larger_than_their_budgets_fit_when_nothing_is_held():
    limits = Limits(inbound_append_bytes_max=1, uncommitted_bytes_max=1)
    async with EngineCluster(limits=limits) as cluster:
        replicas = cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        async with asyncio.timeout(5):
            await leader.propose([data(0)])[1]
            while any(replica.state_machine.next_offset < 1 for replica in replicas.values()):
                await next_progress(list(replicas.values()))


async def test_an_append_dropped_for_lack_of_budget_is_sent_again():
    async with EngineCluster() as cluster:
        replicas = cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        await leader.propose([data(0)])[1]
        follower = replicas[1 if leader.replica_id != 1 else 2]
        engine = cluster.nodes[follower.replica_id].engine
        engine.limits = Limits(inbound_append_bytes_max=1)
        engine._inbound.total += 1  # held by another group
        await leader.propose([data(1)])[1]
        await turn_until(lambda: engine.counters.dropped_messages_total)
        engine._inbound.total -= 1
        engine.limits = Limits()
        async with asyncio.timeout(5):
            while follower.state_machine.next_offset < 2:
                await next_progress([follower])
