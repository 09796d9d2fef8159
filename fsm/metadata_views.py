"""What the metadata state machine shows the node: frozen values, replaced (never mutated) when something changes.

They are also its rows on disk: append fields with defaults, never rename or retype one.
"""

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
    """"active", "draining" or "removed". (A lost uuid has no row of its own: its node id belongs to its successor.)"""
    revision: int = 0
    partitions_max: int = 0
    """Partition replicas that the node takes, as it says itself; 0: it does not say."""
    boot: int = 0
    """The boot of its data directory that registered last; 0: it did not say."""
    boot_mark: bytes = b""
    """The random mark of that boot."""


class ReplicaView(msgspec.Struct, frozen=True, array_like=True):
    """A replica of a partition and the node that holds it."""

    replica_id: int
    node_id: int
    is_lost: bool = False
    """Its disk is gone for good: only ever true of a retiring replica. Nothing may be sent to it; it only has to leave the
    group's configuration."""
    inherited_seat: int = 0
    """The seat of the replica whose place it takes; 0: its own."""

    @property
    def seat(self) -> int:
        """Of all replicas of one seat, one votes at most: the id of the first that held it."""
        return self.inherited_seat or self.replica_id


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
