"""The rows of the metadata group, and the indexes derived from them.

Every write goes through a method here, which keeps the indexes and the revision correct. The effect of each command is
decided in `metadata_nodes`, `metadata_topics`, `metadata_replicas`, `metadata_groups` and `producer_names`.

Invariants: an index equals the result of a full scan of the rows. A replica id appears in at most one place. Node ids,
topic ids, group ids and replica ids below their counters are never assigned again (node ids only on explicit request).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec
from raftmq.fsm.consumer_groups import ConsumerGroups
from raftmq.fsm.expiry_clock import ExpiryClock
from raftmq.fsm.metadata_views import ConfigView, NodeView, PartitionView, RecoveryView, ReplicaView, TopicView
from raftmq.fsm.producer_names import ProducerNames
from raftmq.fsm.recent_changes import RecentChanges
from raftmq.fsm.tables import DirtyRow, Row, RowSource, Table, load_rows, number_table, take_dirty, text_table

METADATA_GROUP = 0
EVERY_NODE: Final = 0
"""The settings of all nodes stand under this id, which no node has."""
_NO_CONFIG: Final[Mapping[str, str]] = MappingProxyType({})
BOOTSTRAP_METADATA_REPLICA_ID = 1
MOVES_MAX_DEFAULT: Final = 4
"""A few, because each move copies a partition over the network while clients use the same disks."""


class ClusterRow(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The row of the cluster itself. Every change updates it."""

    cluster_id: str = ""
    """Empty until the cluster is formed."""
    feature_level: int = 0
    bootstrap_uuid: str = ""
    is_bootstrap_replica_given: bool = False
    """Whether metadata replica 1 has its node."""
    revision: int = 0
    """Index of the last entry that changed anything."""
    metadata_voters: tuple[int, ...] = ()
    """Desired voters of group 0: replica ids, ascending."""
    metadata_retiring: tuple[ReplicaView, ...] = ()
    """Metadata replicas that must leave group 0's configuration."""
    metadata_membership_revision: int = 0
    """Revision of the last change of desired voters or metadata replicas."""
    next_topic_id: int = 1
    next_group_id: int = 1
    next_replica_id: int = BOOTSTRAP_METADATA_REPLICA_ID + 1
    next_node_id: int = 1
    """Smallest node id that may be free. Ids at and above it may have been assigned on explicit request."""
    next_producer_id: int = 1
    next_named_producer: int = 1
    auto_balance: bool = True
    """Whether the controller spreads and evens replicas and leaderships without an order. Level 3."""
    moves_max: int = MOVES_MAX_DEFAULT
    """Partitions that move simultaneously. Level 3."""
    rebalance: str = ""
    """The operator's wish for one rebalancing that is not carried out yet (`metadata_balancing.REBALANCES`). Level 3."""
    bytes_per_second: int = 0
    """Bytes that each node may send to new replicas of planned moves; 0 is unlimited. Level 5."""


class RetiredUuid(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A uuid that is refused permanently."""

    node_id: int
    reason: str
    """"lost" (another uuid took over its node id) or "removed"."""
    revision: int


class MetadataTables:
    """Hold all rows of the metadata group."""

    def __init__(self) -> None:
        self.index = 0
        """Index of the entry being applied, which is the revision of its changes. Written by `Metadata.apply`."""
        self._cluster: Table[int, ClusterRow] = number_table(1, ClusterRow)
        self._nodes: Table[int, NodeView] = number_table(2, NodeView)
        self._retired_uuids: Table[str, RetiredUuid] = text_table(3, RetiredUuid)
        self._topics: Table[int, TopicView] = number_table(4, TopicView)
        self._partitions: Table[int, PartitionView] = number_table(5, PartitionView)
        self.producer_names = ProducerNames(6)
        self.consumer_groups = ConsumerGroups(7, 8)
        self.expiry = ExpiryClock(9)
        """The clock by which names of producers are forgotten."""
        self._recoveries: Table[int, RecoveryView] = number_table(10, RecoveryView)
        self._configs: Table[int, ConfigView] = number_table(11, ConfigView)
        """Run-time settings by node id."""
        self.cluster = ClusterRow()
        self._node_by_uuid: dict[str, NodeView] = {}
        self._topic_by_name: dict[str, TopicView] = {}
        self._replica_nodes: dict[tuple[int, int], int] = {}
        """(group id, replica id) → node id, of replicas that are not lost, including group 0."""
        self._groups_by_node: dict[int, set[int]] = {}
        """Node id → groups with a desired or retiring replica (not lost) on the node."""
        self._unsettled_groups: dict[int, None] = {}
        """Groups with a retiring replica or a newcomer, in the order in which they became so."""
        self._short_groups: dict[int, None] = {}
        """Groups with fewer replicas than their topic wants."""
        self._given_up_groups: dict[int, None] = {}
        """Groups whose last move was given up, oldest first."""
        self._pinned_groups: dict[int, None] = {}
        """Groups whose replicas an operator placed, oldest first."""
        self.layout_version = 0
        """Number of changes of nodes, topics and partitions in this process. A reader uses it to tell whether to look again."""
        self.wishes_version = 0
        """The same number without the changes of partitions."""
        self.group_changes: RecentChanges[int] = RecentChanges()
        """The groups of which the partition, a replica or a recovery changed. Group 0 if a node did."""
        self.topic_changes: RecentChanges[int] = RecentChanges()
        """The topics that changed, without the changes of their partitions."""
        self._ordered_nodes: tuple[NodeView, ...] | None = None
        """All nodes by id. None after a change."""
        self._ordered_topics: tuple[TopicView, ...] | None = None
        """All topics by id. None after a change."""

    # ------------------------------------------------------------------------------------------------------------ reading

    def node(self, node_id: int) -> NodeView | None:
        """Return a node, which may be removed."""
        return self._nodes.get(node_id)

    def node_by_uuid(self, uuid: str) -> NodeView | None:
        """Return the node that has this uuid now."""
        return self._node_by_uuid.get(uuid)

    def nodes(self) -> tuple[NodeView, ...]:
        """Return all nodes by id, including removed ones."""
        if self._ordered_nodes is None:
            self._ordered_nodes = tuple(node for _, node in self._nodes.ordered())
        return self._ordered_nodes

    def retired_uuid(self, uuid: str) -> RetiredUuid | None:
        """Return why a uuid is refused, or None."""
        return self._retired_uuids.get(uuid)

    def topic(self, topic_id: int) -> TopicView | None:
        """Return a topic by id."""
        return self._topics.get(topic_id)

    def topic_by_name(self, name: str) -> TopicView | None:
        """Return a topic by name."""
        return self._topic_by_name.get(name)

    def topics(self) -> tuple[TopicView, ...]:
        """Return all topics by id."""
        if self._ordered_topics is None:
            self._ordered_topics = tuple(topic for _, topic in self._topics.ordered())
        return self._ordered_topics

    def topic_count(self) -> int:
        """Return the number of topics."""
        return len(self._topics.by_key)

    def partition(self, group_id: int) -> PartitionView | None:
        """Return a partition by its group."""
        return self._partitions.get(group_id)

    def partition_count(self) -> int:
        """Return the number of partitions."""
        return len(self._partitions.by_key)

    def groups_of_node(self, node_id: int) -> tuple[int, ...]:
        """Return the groups with a desired or retiring replica on the node, ascending."""
        return tuple(sorted(self._groups_by_node.get(node_id, ())))

    def unsettled_groups(self) -> tuple[int, ...]:
        """Return the groups with a retiring replica or a newcomer: those that move or are rebuilt."""
        return tuple(self._unsettled_groups)

    def short_groups(self) -> tuple[int, ...]:
        """Return the groups with fewer replicas than their topic wants."""
        return tuple(self._short_groups)

    def given_up_groups(self) -> tuple[int, ...]:
        """Return the groups whose last move was given up."""
        return tuple(self._given_up_groups)

    def pinned_groups(self) -> tuple[int, ...]:
        """Return the groups whose replicas an operator placed."""
        return tuple(self._pinned_groups)

    def replica_node(self, group_id: int, replica_id: int) -> int | None:
        """Return the node that holds a replica, unless the replica is lost."""
        return self._replica_nodes.get((group_id, replica_id))

    def config(self, node_id: int) -> Mapping[str, str]:
        """Return the run-time settings of one node alone, or of all nodes (`EVERY_NODE`)."""
        row = self._configs.get(node_id)
        return row.config if row is not None else _NO_CONFIG

    def recovery(self, group_id: int) -> RecoveryView | None:
        """Return the recovery that created a group, or None."""
        return self._recoveries.get(group_id)

    def recoveries(self) -> tuple[RecoveryView, ...]:
        """Return all recoveries by the group that they created, so oldest first."""
        return tuple(recovery for _, recovery in self._recoveries.ordered())

    # ------------------------------------------------------------------------------------------------------------ writing

    def update_cluster(self, **changes: object) -> None:
        """Replace fields of the cluster's row."""
        self.cluster = msgspec.structs.replace(self.cluster, **{"revision": self.index, **changes})
        self._cluster.put(0, self.cluster)
        if "metadata_voters" in changes or "metadata_retiring" in changes:
            self.mark_membership_changed()

    def mark_membership_changed(self) -> None:
        """Record that metadata replicas or desired voters changed."""
        if self.cluster.metadata_membership_revision != self.index:
            self.update_cluster(metadata_membership_revision=self.index)

    def put_node(self, node: NodeView) -> None:
        """Insert or replace a node's row."""
        self._touch()
        self.record_layout_change()
        old = self._nodes.get(node.node_id)
        if old is not None:
            self._drop_node_indexes(old)
        self._nodes.put(node.node_id, node)
        self._ordered_nodes = None
        self.group_changes.record(METADATA_GROUP)
        self._add_node_indexes(node)

    def retire_uuid(self, uuid: str, retired: RetiredUuid) -> None:
        """Refuse a uuid permanently."""
        self._touch()
        self._retired_uuids.put(uuid, retired)
        self.group_changes.record(METADATA_GROUP)

    def put_topic(self, topic: TopicView) -> None:
        """Insert or replace a topic's row."""
        self._touch()
        self.record_layout_change()
        old = self._topics.get(topic.topic_id)
        self._topics.put(topic.topic_id, topic)
        self._record_topic(topic.topic_id)
        if old is None or old.replication_factor != topic.replication_factor:
            for group_id in topic.group_ids:
                self._index_short(self._partitions.by_key[group_id])
        self._topic_by_name[topic.name] = topic

    def delete_topic(self, topic: TopicView) -> None:
        """Remove a topic with all its partitions."""
        self._touch()
        self.record_layout_change()
        for group_id in topic.group_ids:
            partition = self._partitions.by_key[group_id]
            self._drop_partition_indexes(partition)
            self._partitions.delete(group_id)
            self.group_changes.record(group_id)
        for recovery in self.recoveries():
            if recovery.topic_id == topic.topic_id:
                self.delete_recovery(recovery.group_id)
        self._topics.delete(topic.topic_id)
        self._record_topic(topic.topic_id)
        del self._topic_by_name[topic.name]

    def put_partition(self, partition: PartitionView) -> None:
        """Insert or replace a partition's row."""
        self._touch()
        self.layout_version += 1
        old = self._partitions.get(partition.group_id)
        if old is not None:
            self._drop_partition_indexes(old)
        self._partitions.put(partition.group_id, partition)
        self._record_group(partition.group_id)
        self._add_partition_indexes(partition)

    def replace_partition(self, topic: TopicView, old: PartitionView, new: PartitionView) -> None:
        """Replace a partition's group by another one. The old group id then belongs to no partition."""
        self._drop_partition_indexes(old)
        self._partitions.delete(old.group_id)
        self._record_group(old.group_id)
        self.put_partition(new)
        group_ids = tuple(new.group_id if one == old.group_id else one for one in topic.group_ids)
        self.put_topic(msgspec.structs.replace(topic, group_ids=group_ids, revision=self.index))

    def put_config(self, node_id: int, config: dict[str, str]) -> None:
        """Replace the run-time settings of one node alone, or of all nodes."""
        self._touch()
        if config:
            self._configs.put(node_id, ConfigView(config, self.index))
        elif self._configs.get(node_id) is not None:
            self._configs.delete(node_id)

    def put_recovery(self, recovery: RecoveryView) -> None:
        """Insert a recovery's row."""
        self._touch()
        self._recoveries.put(recovery.group_id, recovery)
        self._record_group(recovery.group_id)

    def delete_recovery(self, group_id: int) -> None:
        """Delete a recovery's row."""
        self._touch()
        self._record_group(group_id)
        self._recoveries.delete(group_id)

    # --------------------------------------------------------------------------------------------------------------- rows

    def take_dirty_rows(self) -> tuple[DirtyRow, ...]:
        """Return the changed rows in key order."""
        return take_dirty(self.sources)

    @property
    def sources(self) -> tuple[RowSource, ...]:
        """All tables in tag order."""
        return (
            *(self._cluster, self._nodes, self._retired_uuids, self._topics, self._partitions, self.producer_names),
            *self.consumer_groups.sources,
            self.expiry,
            self._recoveries,
            self._configs,
        )

    def restore(self, rows: tuple[Row, ...]) -> None:
        """Replace the state by the one that the rows describe, including the indexes."""
        load_rows(self.sources, rows)
        self.producer_names.rebuild_order()
        self.consumer_groups.rebuild()
        self.cluster = self._cluster.get(0) or ClusterRow()
        self._node_by_uuid.clear()
        self._topic_by_name = {topic.name: topic for topic in self._topics.by_key.values()}
        self._replica_nodes.clear()
        self._groups_by_node.clear()
        self._unsettled_groups.clear()
        self._short_groups.clear()
        self._given_up_groups.clear()
        self._pinned_groups.clear()
        self._ordered_nodes = self._ordered_topics = None
        self.group_changes.record_all()
        self.topic_changes.record_all()
        self.record_layout_change()
        for node in self._nodes.by_key.values():
            self._add_node_indexes(node)
        for partition in self._partitions.by_key.values():
            self._add_partition_indexes(partition)

    # ------------------------------------------------------------------------------------------------------------ indexes

    def _touch(self) -> None:
        if self.cluster.revision != self.index:
            self.update_cluster()

    def continue_versions(self, before: MetadataTables) -> None:
        """Count on from the versions of the tables that these replace, so that no version repeats."""
        self.layout_version += before.layout_version
        self.wishes_version += before.wishes_version
        self.group_changes.record_all(before.group_changes.version)
        self.topic_changes.record_all(before.topic_changes.version)

    def record_layout_change(self) -> None:
        """Record that the wished layout may have changed."""
        self.layout_version += 1
        self.wishes_version += 1

    def _record_topic(self, topic_id: int) -> None:
        self._ordered_topics = None
        self.topic_changes.record(topic_id)

    def _record_group(self, group_id: int) -> None:
        self.group_changes.record(group_id)
        recovery = self._recoveries.get(group_id)
        if recovery is not None:
            self.group_changes.record(recovery.old_group_id)  # its files are needed until the new group has them

    def _add_node_indexes(self, node: NodeView) -> None:
        if node.state != "removed":
            self._node_by_uuid[node.uuid] = node
            self._replica_nodes[METADATA_GROUP, node.metadata_replica_id] = node.node_id

    def _drop_node_indexes(self, node: NodeView) -> None:
        self._node_by_uuid.pop(node.uuid, None)
        self._replica_nodes.pop((METADATA_GROUP, node.metadata_replica_id), None)

    def _add_partition_indexes(self, partition: PartitionView) -> None:
        group_id = partition.group_id
        if partition.is_unsettled:
            self._unsettled_groups[group_id] = None
        self._index_short(partition)
        if partition.given_up is not None:
            self._given_up_groups[group_id] = None
        if partition.is_pinned:
            self._pinned_groups[group_id] = None
        for replica in (*partition.replicas, *partition.retiring):
            if not replica.is_lost:
                self._replica_nodes[group_id, replica.replica_id] = replica.node_id
                self._groups_by_node.setdefault(replica.node_id, set()).add(group_id)

    def _index_short(self, partition: PartitionView) -> None:
        """Index whether a partition lacks a replica. A topic that is being created is unknown while its partitions are inserted."""
        topic = self._topics.get(partition.topic_id)
        if topic is not None and len(partition.replicas) < topic.replication_factor:
            self._short_groups[partition.group_id] = None
        else:
            self._short_groups.pop(partition.group_id, None)

    def _drop_partition_indexes(self, partition: PartitionView) -> None:
        group_id = partition.group_id
        for index in (self._unsettled_groups, self._short_groups, self._given_up_groups, self._pinned_groups):
            index.pop(group_id, None)
        for replica in (*partition.replicas, *partition.retiring):
            if not replica.is_lost:
                self._replica_nodes.pop((group_id, replica.replica_id), None)
                self._groups_by_node[replica.node_id].discard(group_id)
