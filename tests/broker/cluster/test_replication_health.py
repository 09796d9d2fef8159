"""A leader knows from acknowledgements, not from connections, which voters keep up."""

from raftmq.broker.cluster.replication_health import lagging_voters

from tests.support.broker.engine_cluster import SLOW_TIMING, EngineCluster, data
from tests.support.broker.waiting import until

GROUP = 7


async def followed(cluster):
    """Return a leader that all its followers have acknowledged, and its two followers."""
    leader = await cluster.leader(GROUP)
    await leader.propose([data(1)])[1]
    await until(lambda: not lagging_voters(leader))
    return leader, [node_id for node_id in cluster.nodes if node_id != leader.replica_id]


async def test_a_new_leader_counts_voters_as_lagging_until_they_answer():
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        assert lagging_voters(leader) - {leader.replica_id}
        await until(lambda: not lagging_voters(leader))


async def test_a_voter_whose_replica_is_stopped_lags_though_its_node_is_connected():
    """A defect in one follower's apply leaves every connection up."""
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        cluster.create_group(GROUP)
        leader, (stopped, _) = await followed(cluster)
        cluster.nodes[stopped].engine.remove_group(GROUP)
        await until(lambda: lagging_voters(leader) == {stopped})


async def test_a_voter_that_answers_and_takes_no_entries_lags():
    """Its disk hangs, or its budget is exhausted: it answers heartbeats, but new entries are on one disk fewer."""
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        cluster.create_group(GROUP)
        leader, (full, _) = await followed(cluster)
        engine = cluster.nodes[full].engine
        engine._admit_inbound = lambda replica, message: False
        await leader.propose([data(2)])[1]
        await until(lambda: lagging_voters(leader) == {full})
        del engine._admit_inbound
        await until(lambda: not lagging_voters(leader))


async def test_a_voter_that_keeps_up_under_load_does_not_lag():
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        cluster.create_group(GROUP)
        leader, _ = await followed(cluster)
        until_time = cluster.loop.time() + 1.0
        while cluster.loop.time() < until_time:
            await leader.propose([data(3)])[1]
            assert not lagging_voters(leader)


async def test_a_replica_that_does_not_lead_reports_no_lagging_voters():
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        cluster.create_group(GROUP)
        leader, others = await followed(cluster)
        follower = cluster.replica(GROUP, others[0])
        assert lagging_voters(follower) == frozenset()
        cluster.nodes[leader.replica_id].engine.remove_group(GROUP)
        assert lagging_voters(leader) == frozenset()
