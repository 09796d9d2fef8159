"""Whole nodes find each other by the addresses that they state, not by metadata alone."""

import asyncio

from raftmq.broker.cluster import bootstrap

from tests.support.broker.whole_nodes import WAIT_SECONDS, three_voters, until


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


async def test_an_address_at_which_a_broker_was_met_counts_until_its_boot_is_registered(nodes, monkeypatch):
    """`join` may name a proxy, whose address leads elsewhere later. When the broker renewed its mark, that address outranked its own."""
    monkeypatch.setattr(bootstrap, "RETRY_SECONDS_MAX", 0.05)
    one = await nodes.serve("one", bootstrap=True)
    two, third = [await nodes.serve(name, join=[one.addresses.peer]) for name in ("two", "three")]
    await three_voters(one)
    for node in (third, two):
        await nodes.stop(node)
    async with asyncio.timeout(WAIT_SECONDS):
        while one.view.is_connected(2):
            await asyncio.sleep(0.01)
    proxy = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    host, port = proxy.sockets[0].getsockname()
    two = nodes.begin("two")
    one._peers.meet(f"{host}:{port}", two._peers.hello(1, 0))  # as `Seeds.on_met` does for an address of `join`
    assert one._peers._addresses[2] == f"{host}:{port}"
    await until(two)
    await two._bootstrap._renew_mark()
    async with asyncio.timeout(WAIT_SECONDS):
        while one.registry.known_boots()[two.registry.uuid][0] != two.registry.boot:
            await asyncio.sleep(0.01)
        await nodes.serve("three")
        while 3 not in one.transport.stated_addresses():
            await asyncio.sleep(0.01)
    proxy.close()
    assert one.view.is_connected(2), "the connection of three made one look at all of its links"
