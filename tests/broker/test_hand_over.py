"""An orderly stop: what the node leads is taken over by a peer at once, or nobody is waited for."""

import asyncio

from raftmq.broker.hand_over import hand_over

from tests.broker.engine_cluster import EngineCluster, data

GROUPS = range(1, 6)


async def test_every_led_group_has_another_leader_before_the_node_goes():
    async with EngineCluster() as cluster:
        for group_id in GROUPS:
            cluster.create_group(group_id)
        for group_id in GROUPS:
            await (await cluster.leader(group_id)).propose([data(0)])[1]
        engine = cluster.nodes[1].engine
        async with asyncio.timeout(5):
            await hand_over(engine, lambda node_id: True, lambda: True, 5.0)
        assert not any(group.is_leader for group in engine.groups.values())
        for group_id in GROUPS:
            await (await cluster.leader(group_id, among=[2, 3])).propose([data(1)])[1]


async def test_nobody_is_waited_for_when_nobody_is_there():
    async with EngineCluster() as cluster:
        cluster.create_group(1)
        leader = await cluster.leader(1)
        cluster.isolate(leader.replica_id)
        started = cluster.loop.time()
        engine = cluster.nodes[leader.replica_id].engine
        await hand_over(engine, lambda node_id: False, lambda: False, 5.0)
        assert cluster.loop.time() - started < 1.0


async def test_a_group_of_one_stays_with_its_only_voter():
    async with EngineCluster(1) as cluster:
        cluster.create_group(1, (1,))
        leader = await cluster.leader(1)
        await hand_over(cluster.nodes[1].engine, lambda node_id: True, lambda: True, 5.0)
        assert leader.is_leader
