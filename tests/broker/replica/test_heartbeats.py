"""Heartbeats of all groups in one frame."""

from raftmq.broker.replica.initial_state import founder_state
from raftmq.raft.membership import Membership
from raftmq.types import METADATA_GROUP_ID

from tests.support.broker.engine_cluster import SLOW_TIMING, EngineCluster, data
from tests.support.broker.waiting import until

GROUP, OTHER = 7, 8


def fail(*arguments, **named):
    raise KeyError("planted")


async def test_a_defect_in_a_heartbeat_stops_only_its_group():
    """One frame carries the heartbeats of all groups. The other groups must still be answered, or they would hold elections."""
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        for group_id in (GROUP, OTHER):
            cluster.create_group(group_id)
        leaders = [await cluster.leader(group_id) for group_id in (GROUP, OTHER)]
        follower = next(n for n in cluster.nodes if n not in [leader.replica_id for leader in leaders])
        bad, good = cluster.replica(GROUP, follower), cluster.replica(OTHER, follower)
        bad.core.__class__ = type("Bad", (type(bad.core),), {"on_quiet_heartbeat": fail, "__slots__": ()})
        bad.core.wake()  # or an equal frame would not be looked at
        await until(lambda: bad.is_closed)
        assert [group_id for group_id, _ in cluster.nodes[follower].broken] == [GROUP]
        assert not good.is_closed
        await leaders[1].propose([data(1)])[1]
        await until(lambda: good.state_machine.next_offset == 1)


async def test_an_equal_frame_is_not_decoded_until_something_happens_to_a_core():
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        for group_id in (GROUP, OTHER):
            cluster.create_group(group_id)
        leaders = [await cluster.leader(group_id) for group_id in (GROUP, OTHER)]
        await leaders[1].propose([data(1)])[1]
        follower = next(n for n in cluster.nodes if n not in [leader.replica_id for leader in leaders])
        quiet, other = cluster.replica(GROUP, follower), cluster.replica(OTHER, follower)
        await until(lambda: other.state_machine.next_offset == 1)
        await until(lambda: is_resting(quiet) and is_resting(other) and is_known(cluster.nodes[follower], quiet.core))
        quiet.core.__class__ = type("Unread", (type(quiet.core),), {"on_quiet_heartbeat": fail, "__slots__": ()})

        begun_at = quiet.core.ticks.now
        await until(lambda: quiet.is_closed or quiet.core._heard_at > begun_at + 2)

        assert not quiet.is_closed, "the frame was decoded"
        await leaders[1].propose([data(1)])[1]
        await until(lambda: quiet.is_closed)


async def test_a_replica_that_is_hosted_later_gets_heartbeats_equal_to_those_that_were_dropped_before():
    """Neither its group's time nor that of the others tells of it: the metadata group has a time of its own."""
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        state = founder_state(Membership((1, 2, 3)))
        for node_id in (1, 2):
            cluster.nodes[node_id].add(METADATA_GROUP_ID, state)
        leader = await cluster.leader(METADATA_GROUP_ID, among=(1, 2))
        late = cluster.nodes[3]
        await until(lambda: late.engine._heartbeats._quiet)

        replica = late.add(METADATA_GROUP_ID, state)

        await until(lambda: replica.core.leader_id == leader.replica_id)


def is_resting(replica):
    return replica.core.next_tick > replica.core.ticks.now


def is_known(node, core):
    """Return whether the next frame with a heartbeat for the core will be equal to the last one, if nothing happens."""
    return any(
        core.repeat_quiet_heartbeat in frame.repeats and frame.changes == core.ticks.changes
        for frame in node.engine._heartbeats._quiet.values()
    )
