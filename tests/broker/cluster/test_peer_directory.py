"""The directory decides which nodes are admitted, and remembers their addresses."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from raftmq.broker.base.limits import Limits
from raftmq.broker.cluster.peer_boots import PeerBoots
from raftmq.broker.cluster.peer_directory import PeerDirectory
from raftmq.broker.peers.codec import WIRE_VERSION
from raftmq.broker.peers.protocol import Channel, Hello
from raftmq.fsm.metadata_commands import RegisterNode
from raftmq.fsm.metadata_views import ReplicaView
from raftmq.proto import queue_pb2 as pb

from tests.support.broker.harness import CLUSTER_ID, running


class Registry:
    """The part of the registry that the directory uses."""

    def __init__(self, cluster_id: str = CLUSTER_ID) -> None:
        self.cluster_id = cluster_id
        self.node_id = 1
        self.uuid = "uuid-1"
        self.boot = 3
        self.boot_marks = b"one_two_thre"
        self.boots = {"uuid-2": (1, b"mark")}
        self.seeds: list[str] = []
        self.peers: dict[int, str] = {}

    def set_seeds(self, seeds):
        self.seeds = seeds

    def known_boots(self):
        return self.boots

    def remember_boot(self, uuid, boot, mark, forgotten):
        self.boots.pop(forgotten, None)
        self.boots[uuid] = (boot, mark)

    def set_peer_addresses(self, addresses):
        self.peers = addresses


class Transport:
    def __init__(self) -> None:
        self.loop = SimpleNamespace(time=lambda: 0.0)
        self.calls: list[dict[int, str]] = []
        self.connected: set[int] = set()

    def set_peers(self, addresses):
        self.calls.append(addresses)

    def is_connected(self, node_id):
        return node_id in self.connected


def write(function, *arguments) -> Future[object]:
    """Write immediately, where a thread would later."""
    done: Future[object] = Future()
    done.set_result(function(*arguments))
    return done


def directory(replica=None, registry=None):
    transport, publisher = Transport(), SimpleNamespace(peers=())
    registry = registry or Registry()
    peers = PeerDirectory(
        registry,
        SimpleNamespace(replica=replica),
        transport,
        publisher,
        write,
        Limits(),
    )
    return peers, registry, transport, publisher


def hello(**changes) -> Hello:
    values = {
        "wire_version": WIRE_VERSION, "cluster_id": CLUSTER_ID, "node_id": 2, "uuid": "uuid-2", "target_node_id": 1,
        "channel": Channel.CONTROL, "boot": 1, "marks": b"mark",
    }  # fmt: skip
    return Hello(**(values | changes))


async def test_the_other_nodes_of_metadata_are_connected_to_and_remembered():
    async with running() as node:
        await node.register(2, "uuid-2")
        await node.register(3, "uuid-3")
        peers, registry, transport, publisher = directory(node.metadata)
        peers.refresh()
        peers.refresh()
    assert transport.calls == [{2: "node-2:9401", 3: "node-3:9401"}], "once, and without this node"
    assert registry.peers == transport.calls[0]
    assert registry.seeds == ["node-2:9401", "node-3:9401"]
    assert publisher.peers == (2, 3)
    assert not peers.is_any_connected()
    transport.connected.add(3)
    assert peers.is_any_connected()
    assert peers.client_address_of(2) == "node-2:9400"
    assert peers.client_address_of(9) == ""


def registration(boot: int, marks: bytes, **changes) -> RegisterNode:
    values = {
        "uuid": "uuid-2", "node_id": 2, "client_address": "node-2:9400", "peer_address": "node-2:9401", "http_address": "", "host": "host-2",
        "rack": "", "version": "1", "feature_level_max": 1, "boot": boot, "lineage": marks,
    }  # fmt: skip
    return RegisterNode(**(values | changes))


async def test_the_address_of_a_meeting_counts_until_metadata_has_the_boot_of_the_meeting():
    """It outranked the known address for good. When it led elsewhere later, a healthy broker was cut off."""
    async with running() as node:
        await node._metadata(registration(1, b"mark"))
        peers, _, transport, _ = directory(node.metadata)
        peers.refresh()
        peers.meet("proxy:1", hello(boot=1))
        assert transport.calls == [{2: "node-2:9401"}], "the known address is of that boot"
        restarted = hello(boot=2, marks=b"marknext")
        peers.meet("proxy:1", restarted)
        peers.refresh()
        assert transport.calls[1:] == [{2: "proxy:1"}], "metadata is older than the meeting"
        await node._metadata(registration(2, b"marknext"))
        peers.refresh()
        peers.meet("proxy:1", restarted)
        assert transport.calls[2:] == [{2: "node-2:9401"}]


async def test_the_address_of_a_meeting_does_not_outlive_the_directory_that_was_met():
    async with running() as node:
        await node._metadata(registration(1, b"mark"))
        peers, _, transport, _ = directory(node.metadata)
        peers.refresh()
        peers.meet("proxy:1", hello(boot=2, marks=b"marknext"))
        await node._metadata(registration(1, b"disk", uuid="uuid-of-another-disk", replaces_lost=True))
        peers.refresh()
        assert transport.calls[1:] == [{2: "proxy:1"}, {2: "node-2:9401"}]


async def test_the_address_of_a_meeting_counts_before_there_is_metadata():
    peers, _, transport, _ = directory()
    peers.learn({2: "node-2:9401"})
    peers.meet("moved:1", hello(boot=2, marks=b"marknext"))
    assert transport.calls[1:] == [{2: "moved:1"}]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"node_id": 9, "uuid": "new"}, None),
        ({"cluster_id": "another"}, "cluster"),
        ({"target_node_id": 2}, "this is broker 1"),
        ({"node_id": 1}, "no other broker's id"),
        ({"node_id": 0}, "no other broker's id"),
        ({"uuid": "uuid-3"}, "another identity"),
        ({"uuid": "lost-2"}, "another identity"),
        ({"uuid": "a disk newer than this metadata"}, None),
    ],
)
async def test_a_peer_of_another_cluster_or_identity_is_refused(changes, reason):
    """An identity that is unknown here may be newer than this copy of metadata, and may be the node that could update it."""
    async with running() as node:
        await node.register(2, "lost-2")
        await node.register(2, "uuid-2", replaces_lost=True)
        await node.register(3, "uuid-3")
        refusal = directory(node.metadata)[0].refusal(hello(**changes))
    assert refusal is None if reason is None else reason in refusal


async def test_the_greeting_of_a_process_counts_until_another_one_begins():
    """Its renewed mark may be greeted on another channel. The address that it stated before may be the only right one that this node knows."""
    async with running() as node:
        await node.register(2, "uuid-2")
        peers = directory(node.metadata)[0]
        first = hello(boot=1, marks=b"mark")
        renewed = hello(boot=2, marks=b"marknext", process_mark=b"mark")
        restarted = hello(boot=3, marks=b"marknextmore")
        peers.boots.remember(first)
        assert peers.is_current(first)
        peers.boots.remember(renewed)
        assert (peers.is_current(first), peers.is_current(renewed)) == (True, True)
        assert "its boot 2 has been seen" in (peers.refusal(first) or ""), "a new connection is refused"
        peers.boots.remember(restarted)
        assert (peers.is_current(renewed), peers.is_current(restarted)) == (False, True)
        me = SimpleNamespace(uuid="uuid-2", boot=4, boot_mark=b"last")
        peers.boots.on_registered([me])
        assert not peers.is_current(restarted), "metadata has the address that was registered with boot 4"
        assert not peers.is_current(hello(node_id=3))
        assert peers.is_current(hello(uuid="unknown here", node_id=9))


def test_a_node_without_a_cluster_admits_no_peer():
    peers = directory(registry=Registry(cluster_id=""))[0]
    assert "no cluster" in peers.refusal(hello())


async def test_only_a_node_with_a_replica_may_lead_a_known_partition():
    async with running() as node:
        topic = await node.topic()
        group_id = topic.partitions[0].group_id
        assert node.metadata.state_machine.partition(group_id).replicas == (ReplicaView(2, 1),)
        peers = directory(node.metadata)[0]
        assert [peers.may_lead(group_id, node_id) for node_id in (1, 2)] == [True, False]
        assert peers.may_lead(group_id + 1, 2), "a partition not heard of yet"


async def test_only_a_known_node_may_lead_the_metadata_group():
    """The table keeps the highest claimed term, so a stranger's claim would have hidden every later leader."""
    async with running() as node:
        await node.register(2, "uuid-2")
        peers = directory(node.metadata)[0]
        assert [peers.may_lead(0, node_id) for node_id in (1, 2, 7)] == [True, True, False]
    assert directory()[0].may_lead(0, 7), "nothing is known yet"


async def test_partitions_that_do_not_exist_have_no_leader():
    """A peer chooses the group ids that it names. They must not fill the table."""
    async with running() as node:
        topic = await node.topic()
        first = topic.partitions[0].group_id
        peers = directory(node.metadata)[0]
        following = node.metadata.state_machine.next_group_id
        assert peers.may_lead(following, 2), "a partition that is newer than this copy of metadata"
        assert not peers.may_lead(following + Limits().groups_ahead_max, 2)
        assert not peers.may_lead(1 << 60, 2)
        assert first < following
        await node.admin.delete_topic(pb.DeleteTopicRequest(name="flights"), node.call())
        assert not peers.may_lead(first, 1), "it was deleted"


async def test_writes_of_boots_are_remembered_for_known_nodes_alone():
    """A sender chooses its identity. Without a bound a peer's defect would fill the memory."""
    boots = PeerBoots(Registry(), SimpleNamespace(replica=None), lambda *arguments: Future(), Limits(known_boots_max=2))
    for number in range(20):
        assert boots.remember(hello(uuid=f"uuid-{number}")) is not None
    assert boots._under_way.keys() == boots._known.keys() == {"uuid-18", "uuid-19"}
