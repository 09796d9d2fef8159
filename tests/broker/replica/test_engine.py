"""The engine runs real cores, machines and stores on the real loop. Only the network is in memory."""

import asyncio
import dataclasses
import inspect

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.base.supervisor import Work
from raftmq.broker.partitions.append_gate import LogGate
from raftmq.broker.partitions.appends import PartitionAppends
from raftmq.broker.partitions.producer_fence import ProducerFence
from raftmq.broker.replica.engine import Engine
from raftmq.broker.replica.initial_state import founder_state
from raftmq.broker.replica.replica import Replica
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.core import RaftCore
from raftmq.raft.membership import Membership, MembershipChange, MembershipOp
from raftmq.raft.messages import AppendResponse, HeartbeatResponse
from raftmq.raft.ready import Role, RoleChange
from raftmq.types import Term

from tests.support.broker.engine_cluster import SLOW_TIMING, TIMING, EngineCluster, data, next_progress, state_durable
from tests.support.broker.harness import batch
from tests.support.broker.waiting import until

GROUP = 7


async def test_three_replicas_elect_commit_and_agree():
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        replicas = cluster.create_group(7)
        leader = await cluster.leader(7)
        for number in range(20):
            _, future = leader.propose([data(number)])
            await future
        for replica in replicas.values():
            while replica.state_machine.next_offset < 20:
                await next_progress([replica])
        rows = {tuple(replica.state_machine.rows()) for replica in replicas.values()}
    assert len(rows) == 1


async def test_proposals_during_a_commit_share_the_next_one():
    """Group commit: waiting entries are written together."""
    async with EngineCluster(1) as cluster:
        cluster.create_group(7, (1,))
        leader = await cluster.leader(7)
        engine = cluster.nodes[1].engine
        before = engine.counters.commit_seconds.count
        futures = [leader.propose([data(n)])[1] for n in range(500)]
        await asyncio.gather(*futures)
        assert engine.counters.commit_seconds.count - before < 50
        assert leader.state_machine.next_offset == 500


async def test_a_record_takes_a_pass_to_propose_and_one_to_commit():
    async with EngineCluster(1, timing=SLOW_TIMING) as cluster:
        cluster.create_group(GROUP, (1,))
        leader = await cluster.leader(GROUP)
        await leader.propose([data(0)])[1]
        passes = cluster.nodes[1].engine.counters.pass_seconds
        before = passes.count
        await leader.propose([data(1)])[1]
        for _ in range(3):  # a pass that was scheduled for nothing would run now
            await asyncio.sleep(0)
        assert passes.count - before == 2


async def test_an_acknowledgement_that_changes_nothing_needs_no_pass():
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        await leader.propose([data(0)])[1]
        members = [node_id for node_id in cluster.nodes if node_id != leader.replica_id]
        progress, last_index = leader.core.leadership.progress, leader.core.log.last_index
        await until(lambda: all(progress[each].match_index == last_index for each in members) and not leader.is_dirty)
        engine = cluster.nodes[leader.replica_id].engine
        again = AppendResponse(members[0], leader.replica_id, leader.term, last_index)
        engine.on_message(members[0], GROUP, again)
        assert not leader.is_dirty
        engine.on_message(members[0], GROUP, dataclasses.replace(again, term=Term(leader.term + 1)))
        assert leader.is_dirty  # it steps down


async def test_a_follower_refuses_and_names_the_leader():
    async with EngineCluster() as cluster:
        replicas = cluster.create_group(7)
        leader, applied = await proposed(cluster, data(0))
        await applied
        follower = replicas[1 if leader.replica_id != 1 else 2]
        while follower.state_machine.next_offset < 1:
            await next_progress([follower])
        with pytest.raises(RequestError) as refused:
            follower.propose([data(1)])
    assert refused.value.code == pb.NOT_LEADER
    assert refused.value.detail.leader.broker_id == leader.replica_id
    assert refused.value.detail.leader.address == f"node-{leader.replica_id}"


async def test_an_append_of_a_deposed_leader_has_an_unknown_outcome_until_it_is_known():
    """Promise 7: a change that may still happen is never reported as failed."""
    async with EngineCluster() as cluster:
        cluster.create_group(7)
        old = await cluster.leader(7)
        await old.propose([data(0)])[1]
        cluster.isolate(old.replica_id)
        _, stranded = old.propose([data(1)])
        others = [n for n in cluster.nodes if n != old.replica_id]
        new = await cluster.leader(7, among=others)
        await new.propose([data(2)])[1]
        with pytest.raises(RequestError) as lost:
            await stranded
        assert lost.value.code == pb.LEADERSHIP_LOST
        assert lost.value.detail.outcome == pb.UNKNOWN_OUTCOME
        cluster.heal()
        while old.state_machine.next_offset < 2:
            await next_progress([old])
        entries = [e for e in old.log.entries(6, old.core.commit_index, 10**6) if e.record_count]
    assert [e.payload[64:] for e in entries] == [b"0", b"2"]


async def proposed(cluster, batch):
    """Propose to the leader. On a slow disk one may be giving its leadership away, and refuses."""
    while True:
        leader = await cluster.leader(7)
        try:
            return leader, leader.propose([batch])[1]
        except RequestError as error:
            if error.code != pb.NOT_LEADER:
                raise
        await asyncio.sleep(0.01)


async def test_read_index_waits_for_earlier_commits():
    async with EngineCluster() as cluster:
        replicas = cluster.create_group(7)
        leader, applied = await proposed(cluster, data(0))
        await applied
        follower = replicas[1 if leader.replica_id != 1 else 2]
        while not follower.core.leader_id:
            await next_progress([follower])
        index = await follower.read_index()
        assert index >= leader.core.commit_index
        assert follower.state_machine.next_offset == 1


async def test_a_cut_off_leader_confirms_no_read():
    async with EngineCluster() as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        cluster.isolate(leader.replica_id)
        with pytest.raises(RequestError) as refused:
            await leader.read_index()
    assert refused.value.code in (pb.NO_LEADER, pb.NOT_LEADER)


async def write(leader, count):
    """Write this many records, one after another."""
    for number in range(count):
        await leader.propose([data(number)])[1]


async def test_a_new_replica_catches_up_by_snapshot_and_appends():
    async with EngineCluster(4) as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        await write(leader, 50)
        cluster.nodes[leader.replica_id].engine.commits.flush_state(leader)
        joiner = cluster.add_empty(7, 4)
        await leader.propose_membership(MembershipChange(((MembershipOp.ADD_LEARNER, 4),)))
        while joiner.state_machine.next_offset < 50:
            await next_progress([joiner])
        await leader.propose_membership(
            MembershipChange(
                (
                    (MembershipOp.ADD_VOTER, 4),
                    (MembershipOp.REMOVE, next(r for r in (1, 2, 3) if r != leader.replica_id)),
                )
            )
        )
        while 4 not in joiner.core.membership.voters or joiner.core.membership.is_joint:
            await next_progress([joiner])
        assert tuple(joiner.state_machine.rows()) == tuple(leader.state_machine.rows())


async def test_entries_included_in_a_snapshots_state_may_arrive_one_by_one():
    async with EngineCluster(4) as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        await write(leader, 10)
        await state_durable(cluster.nodes[leader.replica_id].engine, leader)
        joiner = cluster.add_empty(7, 4)
        joiner.core.settings = dataclasses.replace(joiner.core.settings, apply_bytes_max=1)
        await leader.propose_membership(MembershipChange(((MembershipOp.ADD_LEARNER, 4),)))
        while joiner.core.applied_index < leader.core.applied_index:
            assert cluster.nodes[4].broken == []
            await next_progress([joiner])
        assert joiner.core.state_floor > joiner.core.first_index  # otherwise no entry was skipped
        assert tuple(joiner.state_machine.rows()) == tuple(leader.state_machine.rows())


async def write_and_truncate(cluster, leader):
    """Write fifty more records, and truncate most of them."""
    await write(leader, 50)
    engine = cluster.nodes[leader.replica_id].engine
    await state_durable(engine, leader)
    await engine.commits.truncate(leader, leader.durable_state_index)
    while leader.log_start.index <= 40:
        await asyncio.sleep(0.001)


async def appended(replica, payload):
    """Return the leader's answer to a batch, as its service does."""
    loop = asyncio.get_running_loop()
    appends = PartitionAppends(
        loop, replica, lambda: 1 << 20, ProducerFence(lambda: pytest.fail("no producer has a name")), LogGate()
    )
    ticket = appends.begin([payload], loop.time() + 10)
    await appends.finish(ticket, loop.time() + 10)
    return ticket.result(replica.state_machine.log_start_offset)


async def test_a_leader_restored_from_a_snapshot_recognises_repeated_batches():
    """The batch is in no log that the leader ever saw. Only the snapshot shows that it was written, and where.

    Source: Kafka and Redpanda lost the state of producers on recovery, and wrote repeated batches again; KIP-98.
    """
    async with EngineCluster(4) as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        written = batch(3, sequence=0)
        assert (await appended(leader, written)).base_offsets == [0]
        await write_and_truncate(cluster, leader)
        joiner = cluster.add_empty(7, 4)
        await leader.propose_membership(MembershipChange(((MembershipOp.ADD_LEARNER, 4),)))
        while joiner.state_machine.next_offset < 53:
            await next_progress([joiner])
        assert joiner.log_start.index > 40
        await leader.propose_membership(MembershipChange(((MembershipOp.ADD_VOTER, 4),)))
        while not joiner.is_leader:
            if leader.is_leader:
                leader.core.transfer_leader(4)
                cluster.nodes[leader.replica_id].engine.mark_dirty(leader)
            await next_progress([joiner])

        result = await appended(joiner, written)

        assert not result.HasField("error")
        assert result.base_offsets == [0]
        assert joiner.state_machine.next_offset == 53


async def test_a_follower_behind_the_truncation_point_gets_a_snapshot():
    async with EngineCluster() as cluster:
        replicas = cluster.create_group(7)
        leader = await cluster.leader(7)
        lagging = replicas[1 if leader.replica_id != 1 else 2]
        cluster.isolate(lagging.replica_id)
        await write_and_truncate(cluster, leader)
        cluster.heal()
        end = leader.state_machine.next_offset
        while lagging.state_machine.next_offset < end:
            await next_progress([lagging])
        assert lagging.log_start.index > 40


async def test_the_budget_of_uncommitted_bytes_throttles_and_is_released():
    limits = Limits(uncommitted_bytes_max=1000)
    async with EngineCluster(limits=limits) as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        taken = []
        with pytest.raises(RequestError) as refused:
            for number in range(100):
                taken.append(leader.propose([data(number)])[1])  # noqa: PERF401
        assert refused.value.code == pb.THROTTLED
        assert refused.value.detail.retriable
        await asyncio.gather(*taken)
        await leader.propose([data(0)])[1]
        assert cluster.nodes[leader.replica_id].engine.uncommitted_bytes == 0


async def test_a_full_disk_refuses_appends_and_keeps_the_leader():
    async with EngineCluster() as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        engine = cluster.nodes[leader.replica_id].engine
        engine.write_refusal = RequestError(pb.DISK_FULL, "no room")
        with pytest.raises(RequestError) as refused:
            leader.propose([data(0)])
        assert refused.value.code == pb.DISK_FULL
        await leader.read_index()
        engine.write_refusal = None
        await leader.propose([data(0)])[1]


async def test_followers_on_a_full_disk_accept_the_leaders_entries_and_later_commands():
    """If they refused these entries, no later trim could be committed, and the disks would stay full."""
    async with EngineCluster() as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        others = [node.engine for number, node in cluster.nodes.items() if number != leader.replica_id]
        for engine in others:
            engine.write_refusal = RequestError(pb.DISK_FULL, "no room")
        await leader.propose([data(0)])[1]
        for engine in others:
            engine.refuses_entries = True
        dropped = sum(engine.counters.dropped_messages_total for engine in others)
        stuck = leader.propose([data(1)])[1]
        while sum(engine.counters.dropped_messages_total for engine in others) < dropped + 2:
            await asyncio.sleep(0.001)
        assert not stuck.done()
        for engine in others:
            engine.refuses_entries = False
        await stuck


async def test_a_broken_replica_falls_silent_and_the_others_go_on():
    async with EngineCluster() as cluster:
        cluster.create_group(7)
        cluster.create_group(8)
        leader = await cluster.leader(7)
        other = await cluster.leader(8)
        node = cluster.nodes[leader.replica_id]
        leader.core.log.commit = leader.core.log.last_index + 100  # damaged memory
        with pytest.raises(RequestError):
            await leader.propose([data(0)])[1]
        assert [group_id for group_id, _ in node.broken] == [7]
        successor = await cluster.leader(7, among=[n for n in cluster.nodes if n != leader.replica_id])
        await successor.propose([data(1)])[1]
        await other.propose([data(1)])[1]


async def test_a_state_machine_ahead_of_its_core_stops_the_replica():
    """It would treat unapplied entries as applied, and write its state under a wrong index."""
    async with EngineCluster() as cluster:
        cluster.create_group(7)
        leader = await cluster.leader(7)
        leader.state_machine.applied_index += 5  # damaged memory
        await leader.propose([data(0)])[1]  # it is still committed
        ((group_id, error),) = cluster.nodes[leader.replica_id].broken
        assert (group_id, error.name) == (7, "machine_at_applied_index")


async def test_five_hundred_groups_elect_and_commit():
    # production's election timeout, so that one slow pass of five hundred groups does not look like a dead leader
    async with EngineCluster(timing=dataclasses.replace(TIMING, data_tick_seconds=0.3)) as cluster:
        for group_id in range(1, 501):
            replicas = cluster.create_group(group_id)
            first = 1 + group_id % len(replicas)
            cluster.nodes[first].engine.campaigns.begin_first(replicas[first])
        leaders = [await cluster.leader(group_id) for group_id in range(1, 501)]
        await asyncio.gather(*(leader.propose([data(1)])[1] for leader in leaders))
        assert all(leader.state_machine.next_offset == 1 for leader in leaders)
        for node in cluster.nodes.values():
            for replica in node.engine.replicas.values():
                while replica.state_machine.next_offset < 1:
                    await next_progress([replica])
        assert [node.engine.inbound_bytes for node in cluster.nodes.values()] == [0, 0, 0]


async def test_invented_replica_ids_do_not_fill_the_memory():
    """The sender chooses the source of a message, so the number of remembered sources must be bounded."""
    bound = 4
    async with EngineCluster(limits=dataclasses.replace(Limits(), peers_learned_max=bound)) as cluster:
        cluster.create_group(7)
        await cluster.leader(7)
        node = cluster.nodes[1]
        replica = node.engine.replicas[7]
        replica.learned_nodes.clear()
        for source in range(100, 100 + 3 * bound):
            node.engine.on_message(2, 7, HeartbeatResponse(source, 1, 0, 0))
        assert len(replica.learned_nodes) == bound
        for member in (2, 3):
            node.engine.on_message(member, 7, HeartbeatResponse(member, 1, 0, 0))
        assert {replica.learned_nodes[2], replica.learned_nodes[3]} == {2, 3}, (
            "members are remembered, because they answer"
        )
        assert len(replica.learned_nodes) == bound


async def test_a_defect_in_one_group_stops_it_and_no_other():
    """After an unforeseen exception the other dirty groups of the pass stayed marked and were never stepped again."""
    async with EngineCluster(1) as cluster:
        first = cluster.create_group(1, (1,))[1]
        cluster.create_group(2, (1,))
        await cluster.leader(1)
        second = await cluster.leader(2)

        def defect(entry):
            raise ZeroDivisionError

        first.state_machine.apply = defect
        doomed = first.propose([data(0)])[1]
        fine = second.propose([data(0)])[1]
        with pytest.raises(Exception, match="changed before"):
            await doomed
        await asyncio.wait_for(fine, 5)
        assert [group_id for group_id, _ in cluster.nodes[1].broken] == [1]


@pytest.mark.parametrize(
    "function",
    [
        RaftCore.step, RaftCore.propose, RaftCore.ready, RaftCore.append_done, RaftCore.apply_done,
        Engine.on_frame, Engine.on_message, Engine.on_completions, Replica.propose, Replica.apply, PartitionAppends.begin,
    ],
    ids=lambda function: function.__qualname__,
)  # fmt: skip
def test_functions_that_change_a_groups_state_cannot_await(function: object) -> None:
    """aioraft-ng handled AppendEntries in a coroutine without a lock, and chose an append's index before an await."""
    assert not inspect.iscoroutinefunction(function)
    assert not inspect.isasyncgenfunction(function)


def fail(*arguments, **named):
    raise KeyError("planted")


@pytest.mark.parametrize("part", ["_heartbeats", "publisher"])
async def test_an_unsendable_message_does_not_prevent_others(part):
    """The pass must continue after it, or the node would send nothing."""
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        engine = cluster.nodes[leader.replica_id].engine
        flushed, failures = [], []
        cluster.nodes[leader.replica_id].record_failure = lambda work, error: failures.append(work)
        engine._transport.flush = lambda: flushed.append(1)
        setattr(getattr(engine, part), "flush" if part == "_heartbeats" else "publish_changes", fail)
        engine.mark_dirty(leader)
        await until(lambda: flushed)
        assert failures[0] is Work.ENGINE


async def test_the_time_without_a_leader_does_not_begin_again_with_each_campaign():

    async with EngineCluster(1) as cluster:
        replica = cluster.nodes[1].add(7, founder_state(Membership((1, 2, 3))))
        since = replica.leaderless_since
        await asyncio.sleep(0.01)
        for term, role in ((1, Role.PRE_CANDIDATE), (2, Role.CANDIDATE), (2, Role.FOLLOWER), (3, Role.CANDIDATE)):
            replica.on_role_change(RoleChange(role, term, 0))
        assert replica.leaderless_since == since
