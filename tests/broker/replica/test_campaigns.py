"""The campaign gate bounds simultaneous campaigns, also those of new groups and of groups whose leader died."""

import asyncio
import time
from dataclasses import replace

from raftmq.broker.base.limits import Limits
from raftmq.broker.peers.codec import FrameType, decode_message
from raftmq.broker.replica.campaigns import FIRST_CAMPAIGN_SECONDS
from raftmq.raft.messages import VoteRequest
from raftmq.raft.ready import Role
from raftmq.storage.log_store import ReplicaKey

from tests.support.broker.engine_cluster import TIMING, EngineCluster, data, next_progress

GROUPS = range(1, 9)


def campaigning(engine) -> int:
    return sum(replica.core.role is not Role.FOLLOWER for replica in engine.replicas.values())


async def test_the_first_campaigns_of_new_groups_pass_the_gate_too():
    """A topic of a thousand partitions started a thousand simultaneous campaigns, because first campaigns bypassed the gate."""
    async with EngineCluster(limits=Limits(campaigns_max=2)) as cluster:
        for node_id in cluster.nodes:
            cluster.isolate(node_id)
        for group_id in GROUPS:
            cluster.create_group(group_id)
        engine = cluster.nodes[1].engine
        for group_id in GROUPS:
            engine.campaigns.begin_first(engine.replicas[group_id])
        assert campaigning(engine) == 2
        cluster.heal()
        for group_id in GROUPS:
            await cluster.leader(group_id)


async def test_the_first_campaign_makes_a_leader_long_before_an_election_timeout():
    async with EngineCluster() as cluster:
        replicas = cluster.create_group(1)
        cluster.nodes[2].engine.campaigns.begin_first(replicas[2])
        while not replicas[2].is_leader:
            await next_progress([replicas[2]])
        assert replicas[2].term == 6, "the first campaign after the log's synthetic start won"


async def test_a_vote_is_requested_after_everything_in_the_request_is_durable():
    """This covers term, own vote and the end of the log. Otherwise a killed candidate could be elected by votes for a log that it lost."""
    async with EngineCluster() as cluster:
        asked = []
        deliver = cluster.deliver

        def look(source, target, frame_type, body):
            message = decode_message(memoryview(body))[1] if frame_type is FrameType.MESSAGE else None
            if isinstance(message, VoteRequest) and not message.is_pre_vote:
                durable = cluster.nodes[source].store._images[ReplicaKey(1, source)]
                state, end = durable.meta.hard_state, durable.meta.last_index
                term_at_end = durable.log[end].term if end in durable.log else durable.meta.position.term
                asked.append(
                    (
                        (message.term, source, message.last_index, message.last_term),
                        (state.term, state.vote, end, term_at_end),
                    )
                )
            deliver(source, target, frame_type, body)

        cluster.deliver = look
        for node in cluster.nodes.values():
            commit = node.store.append_batch
            node.store.append_batch = lambda updates, commit=commit: (time.sleep(0.03), commit(updates))
        cluster.create_group(1)
        for number in range(3):
            leader = await cluster.leader(1)
            await leader.propose([data(number)])[1]
            leader.propose([data(10 + number)])
            cluster.isolate(leader.replica_id)
            await cluster.leader(1, among={1, 2, 3} - {leader.replica_id})
            cluster.heal()
        assert len(asked) >= 4
        assert all(named == held for named, held in asked), asked


async def test_the_first_campaign_waits_for_answers_that_take_longer_than_its_first_pause():
    """Only responses to the latest round count. A candidate that asks again before any can arrive is never elected."""
    async with EngineCluster(timing=replace(TIMING, data_tick_seconds=0.3)) as cluster:
        deliver = cluster.deliver

        def deliver_late(*frame):
            cluster.loop.call_later(0.7 * FIRST_CAMPAIGN_SECONDS, deliver, *frame)

        cluster.deliver = deliver_late
        replicas = cluster.create_group(1)
        cluster.nodes[2].engine.campaigns.begin_first(replicas[2])
        async with asyncio.timeout(2.5):
            while not replicas[2].is_leader:
                await next_progress([replicas[2]])
        assert replicas[2].term == 6


async def test_followers_of_a_dead_process_campaign_only_as_the_gate_allows():
    async with EngineCluster(limits=Limits(campaigns_max=2)) as cluster:
        for group_id in GROUPS:
            cluster.create_group(group_id)
        led = dict.fromkeys(cluster.nodes, 0)
        for group_id in GROUPS:
            led[(await cluster.leader(group_id)).replica_id] += 1
        engine = cluster.nodes[min(led, key=lambda node_id: led[node_id])].engine
        followers = [replica for replica in engine.replicas.values() if replica.core.role is Role.FOLLOWER]
        assert len(followers) > 2
        for node_id in cluster.nodes:
            cluster.isolate(node_id)
        for replica in followers:
            replica.core.forget_leader()
            engine.campaigns._ask_if_leaderless(replica, replica.core.term)
        assert sum(replica.core.role is Role.PRE_CANDIDATE for replica in followers) == 2


async def test_a_group_without_a_majority_has_a_leader_soon_after_its_peer_returned():
    """Its failed pre-votes had stretched the timeout to the fourfold. The peer's return ends the stretch."""
    async with EngineCluster(2) as cluster:
        replicas = cluster.create_group(1, (1, 2))
        cluster.isolate(1)
        for _ in range(3):
            replicas[1].core.campaign()
            replicas[1].core.tick(0)
        assert replicas[1].core._failed_pre_votes == 2
        cluster.heal()
        engine = cluster.nodes[1].engine
        engine.timing = TIMING
        engine.campaigns._uniform = lambda: 0.0
        engine.campaigns.on_peer_up(2)
        assert replicas[1].core._failed_pre_votes == 0
        await cluster.leader(1)


class _Delays:
    """A loop that only records the group and the delay of each scheduled call."""

    def __init__(self):
        self.of_group = {}

    def call_later(self, delay, callback, replica, *_):
        self.of_group[replica.group_id] = delay


async def test_followers_of_a_dead_process_campaign_one_after_another():
    """Two followers that pre-voted within the time of one vote both became candidates: one group in seven lost a term."""
    async with EngineCluster() as cluster:
        for group_id in GROUPS:
            cluster.create_group(group_id)
            await cluster.leader(group_id)
        gone = (await cluster.leader(1)).replica_id
        led = [group_id for group_id in GROUPS if cluster.nodes[gone].engine.replicas[group_id].is_leader]
        for group_id in led:  # every follower knows its leader, so that a refusal matters
            for node in cluster.nodes.values():
                while not node.engine.replicas[group_id].core.leader_id:
                    await next_progress([node.engine.replicas[group_id]])
        delays = []
        for node_id, node in cluster.nodes.items():
            if node_id != gone:
                noted = _Delays()
                node.engine.campaigns._loop = noted
                node.engine.campaigns.on_peer_refused(gone)
                assert sorted(noted.of_group) == led
                delays.append(noted.of_group)
        first, second = delays
        for group_id in led:
            assert abs(first[group_id] - second[group_id]) >= 0.7 * TIMING.campaign_turn_seconds


async def test_a_campaign_under_way_is_not_disturbed():
    async with EngineCluster() as cluster:
        replicas = cluster.create_group(1)
        leader = await cluster.leader(1)
        follower = next(replica for replica in replicas.values() if replica is not leader)
        engine = cluster.nodes[follower.replica_id].engine
        for node_id in cluster.nodes:
            cluster.isolate(node_id)
        follower.core.forget_leader()
        engine.campaigns._ask_if_leaderless(follower, follower.core.term - 1)
        assert follower.core.role is Role.FOLLOWER
        engine.campaigns._ask_if_leaderless(follower, follower.core.term)
        assert follower.core.role is Role.PRE_CANDIDATE


async def test_groups_without_a_quorum_do_not_block_the_campaign_gate():
    """Each place at the gate was held by a pre-candidate without responses, and no group could ask again."""
    async with EngineCluster(limits=Limits(campaigns_max=2)) as cluster:
        for node_id in cluster.nodes:
            cluster.isolate(node_id)
        for group_id in range(1, 9):
            cluster.create_group(group_id)
        engines = [node.engine for node in cluster.nodes.values()]

        def has_asked_or_waits(replica):
            return not replica.is_dirty and (replica.core.role is Role.PRE_CANDIDATE or replica.core.campaign_due)

        # all have timed out and no message is under way: the present candidates got no response
        async with asyncio.timeout(10):
            while not all(has_asked_or_waits(g) for e in engines for g in e.replicas.values()):
                await asyncio.sleep(0)
        cluster.heal()
        async with asyncio.timeout(10):
            await asyncio.gather(*(cluster.leader(group_id) for group_id in range(1, 9)))
