"""What the metadata state machine shows the node: frozen values, replaced (never mutated) when something changes."""

from __future__ import annotations

import msgspec


class NodeView(msgspec.Struct, frozen=True):
    """A registered node."""

    node_id: int
    uuid: str
    client_address: str
    peer_address: str
    http_address: str
    host: str
    rack: str
    version: str
    feature_level_max: int
    metadata_replica_id: int
    state: str
    """"active", "draining", "lost" (uuid replaced by a new disk) or "removed"."""


class ReplicaView(msgspec.Struct, frozen=True, array_like=True):
    """A replica of a partition and the node that holds it."""

    replica_id: int
    node_id: int


class PartitionView(msgspec.Struct, frozen=True):
    """A partition: its group, and its replicas."""

    topic_id: int
    partition: int
    group_id: int
    creation_replicas: tuple[ReplicaView, ...]
    """The voters the group was born with: the membership of its synthetic first snapshot."""
    replicas: tuple[ReplicaView, ...]
    """Desired replicas; the first is the preferred leader."""
    retiring: tuple[ReplicaView, ...]
    """Replicas no longer desired and not yet reported out of the group."""
    revision: int


class TopicView(msgspec.Struct, frozen=True):
    """A topic."""

    topic_id: int
    name: str
    kind: str
    replication_factor: int
    config: dict[str, str]
    group_ids: tuple[int, ...]
    """Group of partition i at position i."""
    revision: int
