"""A removed broker that others tell of its removal, because its own metadata never contains it, sends its clients to others."""

from __future__ import annotations

import asyncio

from raftmq import Admin
from raftmq.broker.base.readiness import Reason
from raftmq.broker.node import Node
from raftmq.broker.services.call import Call
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.whole_nodes import Nodes, three_voters, until


async def three(nodes: Nodes) -> list[Node]:
    one = await nodes.serve("one", bootstrap=True)
    others = [await nodes.serve(name, join=[one.addresses.peer]) for name in ("two", "three")]
    await three_voters(one)
    return [one, *others]


def watch_of(node: Node):
    return node.grpc.topology.watch(pb.WatchRequest(), Call(node.loop.time() + 3600, None))


async def check_watches_end(removed: Node, early) -> None:
    """Check that a watch which began before the node learned of its removal ends, and that a later one does after the full table."""
    await until(removed, Reason.REMOVED)
    own = removed.view.metadata.state_machine.node(removed.view.node_id)
    assert (own.state, own.uuid) == ("active", removed.registry.uuid), "its metadata knows nothing of the removal"
    async with asyncio.timeout(10):
        assert [update async for update in early if update.is_full] == []
        (full,) = [update async for update in watch_of(removed)]
    assert full.is_full
    assert [broker.broker_id for broker in full.brokers] == [1, 2, 3]


async def begun(nodes: Nodes, name: str):
    """Start a broker that is removed already. Return it, and a watch that has begun before it knows of that."""
    removed = nodes.begin(name)
    async with asyncio.timeout(10):
        while removed._metadata.replica is None or not removed._metadata.replica.state_machine.nodes():
            await asyncio.sleep(0)
        watch = watch_of(removed)
        assert (await anext(watch)).is_full
    assert not removed._bootstrap.removal
    return removed, watch


async def test_a_broker_that_was_removed_while_it_was_down_ends_its_watches(nodes):
    one, _, third = await three(nodes)
    await nodes.stop(third)
    async with Admin(bootstrap_servers=one.addresses.client) as admin:
        await admin.remove_broker(3, force=True)
    await check_watches_end(*await begun(nodes, "three"))


async def test_a_broker_whose_lost_disk_was_replaced_and_returns_ends_its_watches(nodes):
    one, _, third = await three(nodes)
    await nodes.stop(third)
    await nodes.serve("other", join=[one.addresses.peer], broker_id=3, replace_lost=True)
    await check_watches_end(*await begun(nodes, "three"))
