"""A cluster forms once: no second one forms at its addresses, and no stranger replaces one of its brokers."""

from __future__ import annotations

import asyncio
import socket

from raftmq.broker.base.readiness import Reason
from raftmq.broker.cluster.other_clusters import ADDRESSES_MAX, FORGOTTEN_SECONDS, OtherClusters
from raftmq.broker.peers.codec import FrameType, frame
from raftmq.broker.peers.protocol import NO_COMMON_VERSION
from raftmq.fsm.metadata_commands import RemoveNode
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.whole_nodes import NOBODY, WAIT_SECONDS, three_voters, until


async def test_bootstrapping_is_refused_when_a_known_broker_is_in_a_cluster(nodes):
    """When the command was repeated on an empty disk it formed a second cluster at the same address, and clients saw either."""
    one = await nodes.serve("one", bootstrap=True)
    two = await nodes.serve("two", join=[one.addresses.peer])
    again = nodes.begin("again", bootstrap=True, join=[NOBODY, two.addresses.peer])
    refused = await nodes.failure(again)
    assert refused.code == pb.CLUSTER_ALREADY_FORMED
    assert one.view.cluster_id in str(refused)
    assert "--broker-id" in str(refused)
    assert again.registry.cluster_id == ""


async def test_bootstrapping_is_refused_when_a_known_broker_waits_for_its_cluster(nodes):
    """The broker has no majority now, so it cannot answer reliably, but it knows that a cluster exists."""
    one = await nodes.serve("one", bootstrap=True)
    others = [await nodes.serve(name, join=[one.addresses.peer]) for name in ("two", "three")]
    await three_voters(one)
    for node in (one, *others):
        await nodes.stop(node)
    two = nodes.begin("two")
    await until(two, Reason.RECOVERING_METADATA)
    refused = await nodes.failure(nodes.begin("again", bootstrap=True, join=[two.addresses.peer]))
    assert refused.code == pb.CLUSTER_ALREADY_FORMED


async def test_a_first_broker_forms_a_cluster_beside_brokers_that_are_in_none(nodes):
    waiting = nodes.begin("waiting", join=[NOBODY])
    async with asyncio.timeout(WAIT_SECONDS):
        while not waiting.addresses.http:  # the port that is bound last
            await asyncio.sleep(0.01)
    await until(waiting, Reason.JOINING)
    one = await nodes.serve("one", bootstrap=True, join=[waiting.addresses.peer, NOBODY])
    await until(one)


async def test_a_directory_that_waited_to_join_a_cluster_can_form_one(nodes):
    """Its identity had no number yet, and the broker that formed a cluster called itself 0 forever."""
    waiting = nodes.begin("one", join=[NOBODY])
    async with asyncio.timeout(WAIT_SECONDS):
        while not waiting.registry.uuid:
            await asyncio.sleep(0.01)
    await nodes.stop(waiting)
    one = await nodes.serve("one", bootstrap=True)
    assert (one.view.node_id, one.registry.uuid) == (1, waiting.registry.uuid)
    await until(one)


async def test_a_client_port_given_for_a_peer_port_is_named_and_nothing_is_formed_or_joined(nodes):
    """`--join` took client addresses once. A command that is repeated after a disk was lost must not form a second cluster."""
    one = await nodes.serve("one", bootstrap=True)
    for name, settings in (("joining", {}), ("forming", {"bootstrap": True})):
        refused = await nodes.failure(nodes.begin(name, join=[one.addresses.client], **settings))
        assert refused.code == pb.INVALID_ARGUMENT
        assert f"{one.addresses.client} is no peer address" in str(refused)
        assert "9401 by default" in str(refused)


async def test_a_port_for_another_purpose_among_the_seeds_is_passed_over_and_named(nodes):
    one = await nodes.serve("one", bootstrap=True)
    waiting = nodes.begin("waiting", join=[one.addresses.http, NOBODY])
    await until(waiting, Reason.JOINING)
    async with asyncio.timeout(WAIT_SECONDS):
        while one.addresses.http not in waiting.standing.not_ready_reasons()[0].message:
            await asyncio.sleep(0.01)
    two = await nodes.serve("two", join=[one.addresses.client, one.addresses.peer])
    assert two.view.cluster_id == one.view.cluster_id


async def test_a_broker_of_a_foreign_version_among_the_seeds_is_passed_over(nodes):
    """It ended the start of a broker that joined, and an announcement never reached the seeds behind it."""

    async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.writelines(frame(FrameType.REFUSED, [f"{NO_COMMON_VERSION} of mine".encode()]))
        writer.close()

    one = await nodes.serve("one", bootstrap=True)
    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as foreign:
        address = f"127.0.0.1:{foreign.sockets[0].getsockname()[1]}"
        refused = await nodes.failure(nodes.begin("three", join=[address]))
        assert refused.code == pb.UNSUPPORTED_VERSION
        two = await nodes.serve("two", join=[address, one.addresses.peer])
        assert two.view.cluster_id == one.view.cluster_id


async def test_a_broker_that_is_removed_before_it_has_metadata_learns_of_it(nodes):
    """It waited for the metadata forever, because it announced itself only afterwards."""
    one = await nodes.serve("one", bootstrap=True)
    two = nodes.begin("two", join=[one.addresses.peer], peer_advertise="127.0.0.9")  # nobody reaches it there
    await until(two, Reason.RECOVERING_METADATA)
    await one._metadata.propose(RemoveNode(2, is_forced=True))
    await until(two, Reason.REMOVED)


async def test_a_broker_announces_itself_to_connected_peers_before_silent_addresses(nodes):
    """Each dead host before the connected peer cost 5 s, in each round."""
    one = await nodes.serve("one", bootstrap=True, stable_seconds=0.3)
    others = [await nodes.serve(name, join=[one.addresses.peer], stable_seconds=0.3) for name in ("two", "three")]
    await three_voters(one)
    await nodes.stop(one)

    def followers():
        roles = [(node, node.view.metadata.core.role.name) for node in others]
        return [node for node, role in roles if role == "FOLLOWER"] if "LEADER" in dict(roles).values() else []

    async with asyncio.timeout(WAIT_SECONDS):
        while len(followers()) != 1:
            await asyncio.sleep(0.01)
    host, port = one.addresses.peer.split(":")
    with socket.create_server((host, int(port))):  # it accepts connections and never says anything
        async with asyncio.timeout(3):
            await followers()[0]._bootstrap._announce_once()


async def test_a_broker_with_a_cluster_id_neither_forms_nor_joins_another_cluster(nodes):
    one = await nodes.serve("one", bootstrap=True)
    refused = await nodes.failure(nodes.begin("again", bootstrap=True, cluster_id=one.view.cluster_id))
    assert refused.code == pb.CLUSTER_ALREADY_FORMED
    wrong = await nodes.failure(nodes.begin("wrong", join=[one.addresses.peer], cluster_id="another"))
    assert wrong.code == pb.WRONG_CLUSTER
    two = await nodes.serve("two", join=[one.addresses.peer], cluster_id=one.view.cluster_id)
    await nodes.stop(two)
    moved = await nodes.failure(nodes.begin("two", cluster_id="another"))
    assert moved.code == pb.WRONG_CLUSTER
    assert "cluster_id = another" in str(moved)


async def test_an_empty_directory_at_a_known_address_is_refused_with_advice_to_replace_the_lost_disk(nodes):
    """Admitted as a new broker, it would exist beside its dead predecessor, with the same host and address."""
    one = await nodes.serve("one", bootstrap=True)
    two = await nodes.serve("two", join=[one.addresses.peer])
    await nodes.stop(two)
    same = {"listen": two.addresses.client, "peer_listen": two.addresses.peer, "http_listen": two.addresses.http}
    stranger = nodes.begin("empty", join=[one.addresses.peer], **same)
    refused = await nodes.failure(stranger)
    await nodes.stop(stranger)
    assert refused.code == pb.ADDRESS_TAKEN
    assert f"--broker-id {two.view.node_id}" in str(refused)
    async with asyncio.timeout(WAIT_SECONDS):
        while one.view.is_connected(two.view.node_id):
            await asyncio.sleep(0.01)
    replaced = await nodes.serve("empty", join=[one.addresses.peer], broker_id=int(two.view.node_id), **same)
    assert replaced.view.node_id == two.view.node_id
    assert [node.node_id for node in one.view.metadata.state_machine.nodes()] == [
        one.view.node_id,
        two.view.node_id,
    ]


async def test_two_clusters_at_each_others_addresses_are_reported(nodes):
    """A broker with an empty disk that bootstraps again forms a second cluster, which operators must notice."""
    one = await nodes.serve("one", bootstrap=True)
    two = await nodes.serve("two", join=[one.addresses.peer])
    await nodes.stop(two)
    same = {"listen": two.addresses.client, "peer_listen": two.addresses.peer, "http_listen": two.addresses.http}
    second = await nodes.serve("second", bootstrap=True, **same)
    assert second.view.cluster_id != one.view.cluster_id
    async with asyncio.timeout(WAIT_SECONDS):
        while not (one.other_clusters.addresses() and second.other_clusters.addresses()):
            await asyncio.sleep(0.02)
    assert list(one.other_clusters.addresses()) == [two.addresses.peer]
    assert list(second.other_clusters.addresses()) == [one.addresses.peer]
    for node, other in ((one, second), (second, one)):
        (warning,) = [text for text in node.standing.warnings() if "another cluster is at" in text]
        assert other.view.cluster_id in warning
        assert "raftmq recover rejoin" in warning


def test_addresses_of_other_clusters_are_bounded_and_forgotten():
    now = 0.0
    met = OtherClusters(lambda: now)
    for number in range(3 * ADDRESSES_MAX):
        met.record(f"{number}:1", "x" * 100_000)
    assert len(met.addresses()) == ADDRESSES_MAX
    assert max(map(len, met.addresses().values())) < 1000
    now = FORGOTTEN_SECONDS + 1
    assert met.addresses() == {}
    met.record("new:1", "cluster b")
    assert met.addresses() == {"new:1": "cluster b"}
