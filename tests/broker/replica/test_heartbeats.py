"""Heartbeats of all groups in one frame."""

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
        await until(lambda: bad.is_closed)
        assert [group_id for group_id, _ in cluster.nodes[follower].broken] == [GROUP]
        assert not good.is_closed
        await leaders[1].propose([data(1)])[1]
        await until(lambda: good.state_machine.next_offset == 1)
