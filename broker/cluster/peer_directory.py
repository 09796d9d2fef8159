"""Know the other nodes: their addresses, their identities, and the groups that they may lead.

The facts come from this node's metadata. They are stored for the next start, before metadata is available. A node of another cluster, a
connection meant for another node, and a node whose identity changed are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from raftmq.broker.base.limits import Limits
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.metadata_replica import MetadataReplica
from raftmq.broker.cluster.other_clusters import OtherClusters
from raftmq.broker.cluster.peer_boots import PeerBoots, lineage_of
from raftmq.broker.peers.codec import WIRE_VERSION, WIRE_VERSION_MIN
from raftmq.broker.peers.link import NOT_FORMED_REASON
from raftmq.broker.peers.protocol import OTHER_CLUSTER, STALE_DIRECTORY, Channel, Hello
from raftmq.broker.peers.transport import PeerTransport
from raftmq.broker.replica.leadership_publisher import LeadershipPublisher
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.node_lineage import Lineage
from raftmq.proto import queue_pb2 as pb
from raftmq.storage.registry import Registry
from raftmq.types import METADATA_GROUP_ID, GroupId, NodeId


@dataclass(slots=True)
class NodeAddresses:
    """The addresses of this node as `host:port`. Each is empty until its port is bound. Written by the node."""

    client: str = ""
    peer: str = ""
    http: str = ""
    data: str = ""


class _Meeting(NamedTuple):
    """A node that was met elsewhere than at its known address."""

    known_address: str
    """The address of the node by metadata at that time."""
    address: str
    """The address at which the node was met."""
    uuid: str
    boot: int
    """The boot of the node at that time. Its registration states where the node is."""


class PeerDirectory:
    """Decides which nodes are admitted, and where they are."""

    def __init__(
        self,
        registry: Registry,
        metadata: MetadataReplica,
        transport: PeerTransport,
        publisher: LeadershipPublisher,
        in_background: Callable[..., Future[object]],
        limits: Limits,
    ) -> None:
        self.own_addresses = NodeAddresses()
        self.boots = PeerBoots(registry, metadata, in_background, limits)
        self.other_clusters = OtherClusters(transport.loop.time)
        self._groups_ahead_max = limits.groups_ahead_max
        self._registry = registry
        self._metadata = metadata
        self._transport = transport
        self._publisher = publisher
        self._in_background = in_background
        self._addresses: dict[NodeId, str] = {}
        self._refused: dict[NodeId, tuple[str, str]] = {}
        """Members of which a stale data directory was refused while they were not connected: its uuid, and words about it.

        One entry for each broker id at most.
        """
        self._known: dict[NodeId, str] = {}
        """The addresses of the other nodes by metadata, or from the last start before there is metadata."""
        self._found: dict[NodeId, _Meeting] = {}
        """Nodes that were met elsewhere than at their known address, until metadata has the boot in which they were met."""

    def refresh(self) -> None:
        """Take over the nodes of the present metadata."""
        replica = self._metadata.replica
        if replica is None:
            return
        nodes = [n for n in replica.state_machine.nodes() if n.state in ("active", "draining")]
        if nodes:
            self.boots.on_registered(nodes)
            self.learn({NodeId(n.node_id): n.peer_address for n in nodes})
            seeds = [n.peer_address for n in nodes if n.node_id != self._registry.node_id]
            self._in_background(self._registry.set_seeds, seeds)

    def learn(self, addresses: dict[NodeId, str]) -> None:
        """Keep connections to these nodes, this one excluded. See `Transport.set_peers`."""
        self._known = {node: address for node, address in addresses.items() if node != self._registry.node_id}
        # The known address may be older than the meeting, until it changes or the registration of that boot confirms it. The address of the
        # meeting may be a proxy's, or a port that another broker gets later, so it must not outrank a confirmed one.
        self._found = {
            node: met
            for node, met in self._found.items()
            if self._known.get(node) == met.known_address and not self._is_registered(met)
        }
        addresses = self._known | {node: met.address for node, met in self._found.items()}
        if addresses == self._addresses:
            return
        self._addresses = addresses
        self._publisher.peers = tuple(addresses)
        self._transport.set_peers(addresses)
        self._in_background(self._registry.set_peer_addresses, dict(addresses))

    def meet(self, address: str, hello: Hello) -> None:
        """Connect to a node that was met at an address, if it is known at another one from an earlier boot.

        Brokers that have all moved know only each other's old addresses. An operator names one that runs.
        """
        node_id = NodeId(hello.node_id)
        known = self._known.get(node_id)
        if known is None or known == address or hello.cluster_id != self._registry.cluster_id:
            return
        replica = self._metadata.replica
        node = replica.state_machine.node(node_id) if replica is not None else None
        if not self.is_connected(node_id) and (node is None or node.uuid == hello.uuid):
            self._found[node_id] = _Meeting(known, address, hello.uuid, hello.boot)
            self.learn(self._known)

    def _is_registered(self, met: _Meeting) -> bool:
        """Return whether metadata has the address that the node had in the boot of a meeting, or knows that its directory is retired."""
        replica = self._metadata.replica
        if replica is None:
            return False
        node = replica.state_machine.node_by_uuid(met.uuid)
        return replica.state_machine.is_uuid_retired(met.uuid) or (node is not None and node.boot >= met.boot)

    def on_peer_up(self, node_id: NodeId) -> None:
        """Forget the stale directory of a node that runs on its newest one now. When that stops, nothing is wrong with it."""
        self._refused.pop(node_id, None)

    def is_connected(self, node_id: NodeId) -> bool:
        """Return whether this node's control channel to that node is up (True for itself)."""
        return node_id == self._registry.node_id or self._transport.is_connected(node_id)

    def stated_addresses(self) -> tuple[str, ...]:
        """Return the addresses that connected peers state. They may all have moved since this node's metadata was written."""
        return tuple(self._transport.stated_addresses().values())

    def is_any_connected(self) -> bool:
        """Return whether any other node is reachable."""
        return any(self._transport.is_connected(node_id) for node_id in self._addresses)

    def client_address_of(self, node_id: NodeId) -> str:
        """Return the address at which clients reach a node, or an empty text if it is unknown."""
        if node_id == self._registry.node_id:
            return self.own_addresses.client
        replica = self._metadata.replica
        node = replica.state_machine.node(node_id) if replica is not None else None
        return node.client_address if node is not None else ""

    def may_lead(self, group_id: GroupId, node_id: NodeId) -> bool:
        """Return whether the node has a replica of the group, as far as this one knows. The other node chooses both ids.

        A partition that is missing in this node's metadata counts only if its id is one of the next to be assigned, because group ids are assigned
        in order. A deleted partition has no leader.
        """
        replica = self._metadata.replica
        if replica is None:
            return True
        metadata = replica.state_machine
        if group_id == METADATA_GROUP_ID:
            node = metadata.node(node_id)
            return not metadata.cluster_id or (node is not None and node.state != "removed")
        partition = metadata.partition(group_id)
        if partition is None:
            return 0 <= group_id - metadata.next_group_id < self._groups_ahead_max
        return any(r.node_id == node_id for r in partition.replicas + partition.retiring)

    def hello(self, target: NodeId, channel: Channel) -> Hello:
        """Return this node's description of itself for a peer."""
        mine, address = self._registry, self.own_addresses.peer
        lineage = lineage_of(mine)
        return Hello(
            WIRE_VERSION_MIN,
            mine.cluster_id,
            mine.node_id,
            mine.uuid,
            target,
            channel,
            lineage.boot,
            address,
            lineage.marks,
            WIRE_VERSION,
            mine.process_mark,
        )

    def process_of(self, node_id: NodeId) -> bytes | None:
        """Return the mark that distinguishes that node's process from an earlier one, or None while it is not connected."""
        if node_id == self._registry.node_id:
            return self._registry.process_mark
        return self._transport.process_of(node_id)

    def refusal_of_directory(self, uuid: str, lineage: Lineage, process: bytes) -> RequestError | None:
        """Return why the directory of a node with this identity is refused, or None if it is accepted.

        `process` distinguishes the process that asks from other ones on the same directory.

        Raises:
            RequestError: NOT_FORMED or NOT_READY if this node has no metadata yet.
        """
        mine = lineage_of(self._registry)
        if uuid == self._registry.uuid:
            if lineage == mine:
                return None
            return RequestError(pb.STALE_DIRECTORY, f"this broker runs as boot {mine.boot} of the same data directory")
        stale = self.boots.contradiction(uuid, lineage)
        if stale is not None:
            return RequestError(pb.STALE_DIRECTORY, f"the data directory is not the newest one of this broker: {stale}")
        node = self._metadata.require_filled().state_machine.node_by_uuid(uuid)
        rivalry = self._transport.rivalry(NodeId(node.node_id), uuid, process) if node is not None else None
        return RequestError(pb.NOT_READY, rivalry, retry_after_ms=1000) if rivalry is not None else None

    def refusal(self, hello: Hello) -> str | None:
        """Return why a peer is refused, or None to admit it."""
        cluster_id, node_id = self._registry.cluster_id, self._registry.node_id
        if not cluster_id:
            return NOT_FORMED_REASON
        if hello.cluster_id != cluster_id:
            self.other_clusters.record(
                hello.address or "an unknown address",
                f"it is of cluster {hello.cluster_id} and connects to this broker",
            )
            return f"{OTHER_CLUSTER} {cluster_id}, not {hello.cluster_id}"
        if hello.target_node_id != node_id:
            return f"this is broker {node_id}, not {hello.target_node_id}"
        if hello.node_id < 1 or hello.node_id == node_id:
            return f"{hello.node_id} is no other broker's id"
        replica = self._metadata.replica
        stranger = _stranger(replica.state_machine, hello) if replica is not None else None
        return stranger or self._stale(hello)

    def is_current(self, hello: Hello) -> bool:
        """Return whether the greeting of a connected node still counts: the node is a member, and its directory has not begun another process."""
        replica = self._metadata.replica
        if replica is not None and _stranger(replica.state_machine, hello) is not None:
            return False
        return self.boots.is_of_latest_process(hello) or self.boots.contradiction(hello.uuid, hello.lineage) is None

    def contradiction(self, hello: Hello) -> str | None:
        """Return why the sender's data directory contradicts its known lineage, or None if it does not."""
        return hello.lineage.defect() or self.boots.contradiction(hello.uuid, hello.lineage)

    def _stale(self, hello: Hello) -> str | None:
        defect = hello.lineage.defect()
        if defect is not None:
            return f"malformed lineage: {defect}"
        stale = self.boots.contradiction(hello.uuid, hello.lineage)
        if stale is None:
            return None
        # While the node is connected, this is a copy beside it, or its own greeting that a renewal of its mark overtook. Neither says anything
        # about the node when it stops later.
        if self._is_member(hello.uuid, hello.node_id) and not self.is_connected(NodeId(hello.node_id)):
            said = f"a process at {hello.address or 'an unknown address'} was refused: {stale}"
            self._refused[NodeId(hello.node_id)] = (hello.uuid, said)
        return f"{STALE_DIRECTORY}: {stale}"

    def _is_member(self, uuid: str, node_id: int) -> bool:
        """Return whether metadata knows the directory with this uuid as that broker's."""
        replica = self._metadata.replica
        node = replica.state_machine.node_by_uuid(uuid) if replica is not None else None
        return node is not None and node.node_id == node_id

    def refused_versions(self) -> dict[NodeId, str]:
        """Return the members that speak no wire version of this node, with words about it."""
        return self._transport.refused_versions()

    def refused_directories(self) -> dict[NodeId, str]:
        """Return the members that are not connected, and of which an older or a second data directory was refused since then, with the reason."""
        return {
            node_id: said
            for node_id, (uuid, said) in self._refused.items()
            if self._is_member(uuid, node_id) and not self.is_connected(node_id)
        }


def _stranger(metadata: Metadata, hello: Hello) -> str | None:
    """Return why the sender of this description is no member, or None if it is one, or may be one that this node's metadata does not contain yet."""
    known = metadata.node(NodeId(hello.node_id))
    if known is not None and known.uuid == hello.uuid:
        return f"broker {hello.node_id} was removed from the cluster" if known.state == "removed" else None
    if metadata.is_uuid_retired(hello.uuid) or metadata.node_by_uuid(hello.uuid) is not None:
        return f"broker {hello.node_id} has another identity here: its disk was replaced or its id is taken"
    return None
