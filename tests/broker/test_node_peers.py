"""Whole nodes find each other by the addresses that they state, not by metadata alone."""

import asyncio

from tests.support.broker.whole_nodes import WAIT_SECONDS


async def test_a_node_that_metadata_does_not_show_is_answered(nodes):
    """It may lead metadata: a node that was cut off during its registration learns of it only by answering it."""
    one = await nodes.serve("one", bootstrap=True)
    two = await nodes.serve("two", join=[one.addresses.peer])
    one.transport.set_peers({})  # as in the metadata of a node that was cut off
    async with asyncio.timeout(WAIT_SECONDS):
        while not one.transport.is_connected(two.view.node_id):
            await asyncio.sleep(0.01)
    assert one.transport.connections() == {two.view.node_id: True}


async def test_a_broker_of_a_version_without_a_common_protocol_is_named_with_the_reason(nodes, monkeypatch):
    """`raftmq cluster status` said only that it is not connected."""
    one = await nodes.serve("one", bootstrap=True)
    monkeypatch.setattr(one.transport, "refused_versions", lambda: {2: "no common wire version: ..."})
    assert "broker 2 is not connected: no common wire version: ..." in one.standing.warnings()
