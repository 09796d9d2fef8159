"""In an orderly stop a peer immediately takes over the node's groups, unless there is none."""

import asyncio

import pytest
from raftmq.broker.cluster.leadership_drain import drain_leadership
from raftmq.broker.replica.disk import IDLE, Writing
from raftmq.raft.membership import MembershipChange, MembershipOp
from raftmq.raft.messages import TimeoutNow
from raftmq.raft.ready import RefusalReason, Role

from tests.support.broker.engine_cluster import TIMING, EngineCluster, data

GROUPS = range(1, 6)


async def let_lead(cluster, group_id, replica_id, among=(1, 2, 3)):
    """Let a replica lead a group that has an entry."""
    leader = await cluster.leader(group_id, among=list(among))
    await leader.propose([data(0)])[1]
    if leader.replica_id != replica_id:
        leader.core.transfer_leader(replica_id)
        cluster.nodes[leader.replica_id].engine.mark_dirty(leader)
        await cluster.leader(group_id, among=[replica_id])


async def all_acknowledged(cluster, leader_id, group_ids):
    """Wait until a leader knows that the others have the whole log. A new one takes them for lagging."""
    while any(len(set(cluster.replica(one, leader_id).core.match_indexes().values())) > 1 for one in group_ids):
        await asyncio.sleep(0.01)


async def test_every_led_group_has_another_leader_before_the_node_goes():
    async with EngineCluster() as cluster:
        for group_id in GROUPS:
            cluster.create_group(group_id)
        for group_id in GROUPS:
            await (await cluster.leader(group_id)).propose([data(0)])[1]
        engine = cluster.nodes[1].engine
        async with asyncio.timeout(5):
            await drain_leadership(engine, lambda node_id: True, lambda: True, 5.0)
        assert not any(replica.is_leader for replica in engine.replicas.values())
        for group_id in GROUPS:
            await (await cluster.leader(group_id, among=[2, 3])).propose([data(1)])[1]


async def test_a_broker_that_is_being_emptied_gets_only_the_groups_that_no_other_can_take():
    """It gave its leaderships away a moment ago, perhaps to the broker that stops now, and offers none again for 10 s."""
    async with EngineCluster() as cluster:
        for group_id in GROUPS:
            cluster.create_group(group_id)
        for group_id in GROUPS:
            await let_lead(cluster, group_id, 1)
        await all_acknowledged(cluster, 1, GROUPS)
        async with asyncio.timeout(5):
            await drain_leadership(
                cluster.nodes[1].engine, lambda node_id: True, lambda: True, 5.0, lambda node_id: node_id == 2
            )
        async with asyncio.timeout(5):
            for group_id in GROUPS:
                await cluster.leader(group_id, among=[3])
        async with asyncio.timeout(5):
            await drain_leadership(
                cluster.nodes[3].engine, lambda node_id: node_id == 2, lambda: True, 5.0, lambda node_id: node_id == 2
            )
        for group_id in GROUPS:
            await cluster.leader(group_id, among=[2])


async def test_a_drain_ends_immediately_without_reachable_peers():
    async with EngineCluster() as cluster:
        cluster.create_group(1)
        leader = await cluster.leader(1)
        cluster.isolate(leader.replica_id)
        started = cluster.loop.time()
        engine = cluster.nodes[leader.replica_id].engine
        await drain_leadership(engine, lambda node_id: False, lambda: False, 5.0)
        assert cluster.loop.time() - started < 4.0


async def learner_ahead(cluster):
    """Return a led group whose learner has more of the log than the other voters, which are connected again."""
    cluster.create_group(1)
    leader = await cluster.leader(1)
    learner = cluster.add_empty(1, 4)
    await leader.propose_membership(MembershipChange(((MembershipOp.ADD_LEARNER, 4),)))
    for voter in {1, 2, 3} - {leader.replica_id}:
        cluster.isolate(voter)
    leader.propose([data(0)])
    while leader.core.match_index(4) < leader.core.last_index or learner.core.last_index < leader.core.last_index:
        await asyncio.sleep(0.001)
    cluster.heal()
    matches = leader.core.match_indexes()
    assert max((replica for replica in matches if replica != leader.replica_id), key=matches.get) == 4
    return leader


async def test_a_leader_whose_disk_hangs_hands_over_to_a_voter_and_never_to_a_learner():
    """A learner may be the furthest member, and a transfer to it is refused."""
    async with EngineCluster(4) as cluster:
        leader = await learner_ahead(cluster)
        engine = cluster.nodes[leader.replica_id].engine
        engine.commits.is_hanging = lambda replica, elections=1: replica is leader and elections == 1
        engine._check_disk(leader)
        assert leader.core.role is Role.LEADER, "it leads until another takes over"
        assert leader.core.propose([data(1)], 0).reason is RefusalReason.TRANSFERRING
        term = leader.core.term
        successor = await cluster.leader(1, among={1, 2, 3} - {leader.replica_id})
        assert successor.core.term == term + 1


async def test_a_leader_with_a_hanging_disk_and_no_reachable_voter_steps_down():
    async with EngineCluster(4) as cluster:
        leader = await learner_ahead(cluster)
        for voter in {1, 2, 3} - {leader.replica_id}:
            cluster.isolate(voter)
        engine = cluster.nodes[leader.replica_id].engine
        engine.commits.is_hanging = lambda replica, elections=1: replica is leader and elections == 1
        engine._check_disk(leader)
        assert leader.core.role is Role.FOLLOWER


async def test_a_leader_with_a_hanging_disk_steps_down_if_no_voter_takes_over_in_time():
    """The furthest voter may be frozen while another one can lead."""
    async with EngineCluster() as cluster:
        cluster.create_group(1)
        leader = await cluster.leader(1)
        engine = cluster.nodes[leader.replica_id].engine
        leader.disk = Writing(cluster.loop.time() - 1.5 * TIMING.election_seconds(1))
        engine._check_disk(leader)
        assert leader.is_leader
        leader.disk = Writing(cluster.loop.time() - 2.5 * TIMING.election_seconds(1))
        engine._check_disk(leader)
        assert not leader.is_leader
        leader.disk = IDLE


async def test_a_node_that_stops_offers_its_leadership_to_no_learner():
    async with EngineCluster(4) as cluster:
        leader = await learner_ahead(cluster)
        engine = cluster.nodes[leader.replica_id].engine
        async with asyncio.timeout(5):
            await drain_leadership(engine, lambda node_id: True, lambda: True, 5.0)
        assert not leader.is_leader
        assert not cluster.replica(1, 4).is_leader


async def test_a_group_of_one_stays_with_its_only_voter():
    async with EngineCluster(1) as cluster:
        cluster.create_group(1, (1,))
        leader = await cluster.leader(1)
        await drain_leadership(cluster.nodes[1].engine, lambda node_id: True, lambda: True, 5.0)
        assert leader.is_leader


async def test_the_groups_of_a_stopping_node_are_shared_by_the_others():
    async with EngineCluster() as cluster:
        for group_id in range(1, 9):
            cluster.create_group(group_id)
        for group_id in range(1, 9):
            await let_lead(cluster, group_id, 1)
        await all_acknowledged(cluster, 1, range(1, 9))
        await drain_leadership(cluster.nodes[1].engine, lambda node_id: True, lambda: True, 5.0)
        heirs = [(await cluster.leader(group_id, among=[2, 3])).replica_id for group_id in range(1, 9)]
        assert sorted(heirs) == [2] * 4 + [3] * 4


async def test_brokers_that_stop_together_do_not_hand_leaderships_back_and_forth():
    """They did so until the time for it was over, in a hundred elections of each group."""
    async with EngineCluster() as cluster:
        for group_id in range(1, 7):
            cluster.create_group(group_id)
        cluster.isolate(3)  # it was stopped before
        for group_id in range(1, 7):
            await let_lead(cluster, group_id, 1 + group_id % 2, among=[1, 2])
        await asyncio.sleep(0.2)
        before = {g: max(cluster.replica(g, n).core.term for n in (1, 2)) for g in range(1, 7)}
        await asyncio.gather(
            *(
                drain_leadership(cluster.nodes[n].engine, lambda node_id: node_id in (1, 2), lambda: True, 2.0)
                for n in (1, 2)
            )
        )
        risen = {g: max(cluster.replica(g, n).core.term for n in (1, 2)) - term for g, term in before.items()}
        assert max(risen.values()) <= 3, risen


@pytest.mark.parametrize("emptied", [(), (2,)])
async def test_an_intact_replica_of_a_broker_that_is_being_emptied_is_preferred_to_a_silent_one(emptied):
    """The replica on node 3 is damaged, and its broker is connected. It was offered the group until the time was over."""
    async with EngineCluster() as cluster:
        cluster.create_group(1)
        await let_lead(cluster, 1, 1)
        cluster.nodes[3].engine.remove_group(1)
        await cluster.replica(1, 1).propose([data(1)])[1]
        async with asyncio.timeout(4):
            await drain_leadership(
                cluster.nodes[1].engine, lambda node_id: True, lambda: True, 5.0, lambda node_id: node_id in emptied
            )
        await cluster.leader(1, among=[2])


async def test_one_leadership_that_returns_does_not_make_its_node_a_stopping_one():
    """Its disk hung, for example. The groups that it alone can take were left to an election timeout."""
    async with EngineCluster(2) as cluster:
        for group_id in (1, 2):
            cluster.create_group(group_id, (1, 2))
            await let_lead(cluster, group_id, 1, among=(1, 2))
        heir = cluster.nodes[2].engine
        take = heir.on_message

        def take_late(node_id, group_id, message):
            if group_id != 2 or not isinstance(message, TimeoutNow):
                take(node_id, group_id, message)

        heir.on_message = take_late
        drain = asyncio.ensure_future(
            drain_leadership(cluster.nodes[1].engine, lambda node_id: node_id == 2, lambda: True, 5.0)
        )
        returned = await cluster.leader(1, among=[2])
        returned.core.transfer_leader(1)
        heir.mark_dirty(returned)
        await cluster.leader(1, among=[1])
        await asyncio.sleep(0.1)
        heir.on_message = take
        async with asyncio.timeout(4):
            await drain
        assert not any(replica.is_leader for replica in cluster.nodes[1].engine.replicas.values())
