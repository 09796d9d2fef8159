"""Whole nodes: a broker that gave up a replica in another cluster's name gets a new one when metadata wants it there."""

from __future__ import annotations

from raftmq import Admin, Producer
from raftmq.broker.cluster.metadata_recovery import leave_cluster, recover_metadata

from tests.broker.cluster.test_metadata_recovery import has_records, until
from tests.support.broker.whole_nodes import Nodes, three_voters


async def test_a_broker_that_was_recovered_by_mistake_gets_its_partitions_back(nodes: Nodes) -> None:
    """Its older metadata did not know a partition, so that it gave its replica up. The right cluster wanted this replica without end."""
    first = await nodes.serve("one", bootstrap=True, stable_seconds=0.3)
    join = (first.addresses.peer,)
    others = [await nodes.serve(name, join=join, stable_seconds=0.3) for name in ("two", "three")]
    await three_voters(first)
    await nodes.stop(others[1])
    # as if the third broker got no metadata from now on
    groups = others[1].config.data_dir / "groups"
    kept = {path.name: path.read_bytes() for path in groups.iterdir() if path.is_file()}
    running = [first, others[0], await nodes.serve("three", join=join, stable_seconds=0.3)]
    async with Admin(bootstrap_servers=first.addresses.client) as admin:
        await admin.create_topic("flights", 1, 3)
        async with Producer(bootstrap_servers=first.addresses.client) as producer:
            for number in range(10):
                await producer.send("flights", b"%d" % number)
    await until(lambda: all(has_records(node, 10) for node in running))
    for node in running:
        await nodes.stop(node)
    one, two, three = (node.config.data_dir for node in running)
    for name, data in kept.items():
        (groups / name).write_bytes(data)

    recover_metadata(three, lambda: "by-mistake")
    wrong = await nodes.serve("three", stable_seconds=0.3)
    await until(lambda: len(wrong.registry.live_replicas()) == 1)
    await nodes.stop(wrong)

    recover_metadata(one, lambda: "right")
    right = await nodes.serve("one", stable_seconds=0.3)
    join = (right.addresses.peer,)
    for directory in (two, three):
        leave_cluster(directory)
    back = [await nodes.serve(name, join=join, stable_seconds=0.3) for name in ("two", "three")]
    await until(lambda: all(has_records(node, 10) for node in (right, *back)))
