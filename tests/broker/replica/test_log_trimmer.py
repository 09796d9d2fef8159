"""Rows before a truncation point are deleted, and failures of that are survived."""

import asyncio

from raftmq.storage.errors import StorageFullError

from tests.support.broker.engine_cluster import SLOW_TIMING, EngineCluster, data, state_durable
from tests.support.broker.waiting import until

GROUP = 7


async def test_deleting_rows_of_a_retired_replica_does_not_end_the_process():
    """A topic was deleted between two slices of a truncation."""
    async with EngineCluster(1) as cluster:
        cluster.create_group(GROUP, (1,))
        leader = await cluster.leader(GROUP)
        node = cluster.nodes[1]
        node.engine.remove_group(GROUP)
        await asyncio.wrap_future(node.writers.run(leader.key, lambda: node.store.retire(leader.key)))
        node.engine.commits._log_trimmer.delete(leader)
        await node.engine.commits.truncate(leader, leader.core.applied_index)
        await asyncio.wrap_future(node.writers.run(leader.key, lambda: None))
        await asyncio.sleep(0)
        assert cluster.fatal == []


async def test_rows_that_cannot_be_deleted_for_lack_of_space_do_not_end_the_process():
    async with EngineCluster(1) as cluster:
        cluster.create_group(GROUP, (1,))
        leader = await cluster.leader(GROUP)
        node = cluster.nodes[1]

        def full(key, rows_max):
            raise StorageFullError(key, "no room")

        node.store.delete_truncated = full
        node.engine.commits._log_trimmer.delete(leader)
        await asyncio.wrap_future(node.writers.run(leader.key, lambda: None))
        await asyncio.sleep(0)
        assert cluster.fatal == []
        await leader.propose([data(0)])[1]


def fail(*arguments, **named):
    raise KeyError("planted")


async def test_rows_that_cannot_be_deleted_by_a_defect_stop_their_replica_and_not_the_process():
    async with EngineCluster(timing=SLOW_TIMING) as cluster:
        cluster.create_group(GROUP)
        leader = await cluster.leader(GROUP)
        for number in range(5):
            await leader.propose([data(number)])[1]
        node = cluster.nodes[leader.replica_id]
        await state_durable(node.engine, leader)
        node.store.delete_truncated = fail
        await node.engine.commits.truncate(leader, leader.core.applied_index)
        await until(lambda: leader.is_closed)
        assert isinstance(node.broken[0][1], KeyError)
        assert not cluster.fatal
