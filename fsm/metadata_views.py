"""The frozen values that the metadata state machine returns to the node. They are replaced, never mutated.

They are also its rows on disk: append fields with defaults, and never rename or retype a field.
"""

from __future__ import annotations

import msgspec


class NodeView(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
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
    """Maximum number of partition replicas that the node accepts, by its own account; 0 if it does not say."""
    boot: int = 0
    """The boot of its data directory that registered last; 0 if it did not say."""
    boot_mark: bytes = b""
    """The random mark of that boot."""


class ReplicaView(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A replica of a partition and the node that holds it."""

    replica_id: int
    node_id: int
    is_lost: bool = False
    """True if the replica's disk is permanently gone. Only a retiring replica can be lost. Nothing may be sent to it;
    it only has to leave the group's configuration."""
    inherited_seat: int = 0
    """The seat of the replaced replica; 0 if the replica has a seat of its own."""
    is_newcomer: bool = False
    """True from the creation of a replica that replaces none until its group's leader reports that it votes. Until then its
    seat may have no voter. Level 3."""

    @property
    def seat(self) -> int:
        """The id of the first replica that held this seat. At most one replica of a seat votes."""
        return self.inherited_seat or self.replica_id


class GivenUpMove(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A move whose new replicas made no progress. The partition has its replicas of before again. Level 5."""

    node_ids: tuple[int, ...]
    """The nodes that were to get a replica."""
    at_ms: int
    """Append time of the command."""
    count: int
    """Number of moves to one of these nodes that were given up one after the other."""
    reason: str


class PartitionView(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A partition: its group and its replicas."""

    topic_id: int
    partition: int
    group_id: int
    creation_replicas: tuple[ReplicaView, ...]
    """The group's initial voters: the membership of its synthetic first snapshot."""
    replicas: tuple[ReplicaView, ...]
    """Desired replicas; the first is the preferred leader."""
    retiring: tuple[ReplicaView, ...]
    """Replicas that are no longer desired and not yet reported as having left the group."""
    revision: int
    given_up: GivenUpMove | None = None
    """The last move that was given up, until a move to one of its nodes succeeds. Level 5."""
    is_pinned: bool = False
    """Whether an operator placed the replicas, so that automatic balancing must leave them. It ends when they change otherwise. Level 5."""

    @property
    def is_unsettled(self) -> bool:
        """Whether the group may not have the desired membership yet: a replica leaves, or a newcomer does not vote yet."""
        return bool(self.retiring) or any(replica.is_newcomer for replica in self.replicas)


class RecoveryView(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An unsafe recovery: a partition lost its majority, and one replica founded a new group with the data that it had. Level 4."""

    group_id: int
    """The group that replaced the old one."""
    topic_id: int
    partition: int
    old_group_id: int
    """The group without a majority. It is never served again."""
    old_replica_id: int
    """The replica of the old group whose data was kept."""
    node_id: int
    """The node that held it."""
    term: int
    """The first leader of the new group has a later term."""
    log_end_offset: int
    """End of the kept log when the operator decided. Records from here on may be lost."""
    known_end_offset: int
    """The highest end, as known then, of a log that may have acknowledged records after the kept one's end: a lower bound of the loss."""
    other_node_ids: tuple[int, ...]
    """The nodes of the old group's other replicas."""
    recovered_at_ms: int
    """Append time of the command."""


class ConfigView(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The run-time settings of one node, or of all nodes. Level 7."""

    config: dict[str, str]
    revision: int


class BalancingView(msgspec.Struct, frozen=True):
    """How the controller moves replicas."""

    auto_balance: bool
    moves_max: int
    rebalance: str
    """The wish for one rebalancing: empty, "leaders" or "replicas"."""
    bytes_per_second: int = 0
    """Bytes that each node may send to new replicas of planned moves; 0 is unlimited."""

    @property
    def may_move_replicas(self) -> bool:
        """Whether replicas are spread and evened."""
        return self.auto_balance or self.rebalance == "replicas"

    @property
    def may_move_leaders(self) -> bool:
        """Whether leaderships are evened, and given to the preferred leaders."""
        return self.auto_balance or self.rebalance != ""


class TopicView(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A topic."""

    topic_id: int
    name: str
    kind: str
    replication_factor: int
    config: dict[str, str]
    group_ids: tuple[int, ...]
    """The group of partition i is at position i."""
    revision: int
    schedule_partitions: int = 0
    """Partitions of a queue topic at its creation: the name of a schedule chooses one of them. 0: another kind. Level 2."""
