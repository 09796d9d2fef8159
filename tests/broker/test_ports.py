"""A node tells clients and other brokers the names at which they reach it."""

from __future__ import annotations

import pytest

from tests.support.broker.whole_nodes import Nodes


@pytest.mark.parametrize(
    ("settings", "client", "peer"),
    [
        ({}, "127.0.0.1", "127.0.0.1"),
        ({"advertise": "one.outside"}, "one.outside", "one.outside"),
        ({"advertise": "one.outside", "peer_advertise": "127.0.0.1"}, "one.outside", "127.0.0.1"),
        ({"peer_advertise": "::1"}, "127.0.0.1", "[::1]"),
    ],
)
async def test_peers_have_a_name_of_their_own(
    nodes: Nodes, settings: dict[str, object], client: str, peer: str
) -> None:
    node = await nodes.serve("one", bootstrap=True, **settings)
    assert node.addresses.client.rpartition(":")[0] == client
    assert node.addresses.data.rpartition(":")[0] == client
    assert node.addresses.peer.rpartition(":")[0] == peer
