"""The state machine of the metadata group: the contents of the cluster.

It applies commands strictly in log order, answers each with a result, and returns immutable views to the node. It plans nothing:
proposers place replicas, check names and configuration, and choose voters (`placement`, `topic_config`).

Invariants: equal logs give byte-equal rows. `apply` raises only for a command of a newer version. A rejected command
changes nothing.

Source: Ongaro's thesis, sections 2.1 and 3.2 (replicated state machines).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from raftmq.errors import invariant
from raftmq.fsm import codes
from raftmq.fsm.consumer_groups import ConsumerGroup
from raftmq.fsm.feature_levels import metadata_level
from raftmq.fsm.metadata_balancing import set_balancing
from raftmq.fsm.metadata_commands import (
    AddPartitions,
    AdmitReplica,
    AllocateProducerIds,
    AlterConfig,
    AlterTopicConfig,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteTopic,
    ForgetProducerNames,
    InitializeCluster,
    InitNamedProducer,
    JoinConsumerGroup,
    LeaveConsumerGroup,
    MetadataCommand,
    MetadataResult,
    ProducerInitialized,
    RaiseFeatureLevel,
    RecoverPartition,
    RegisterNode,
    RegrantPartitions,
    Rejected,
    ReleasePartitions,
    RemoveNode,
    RemoveReplica,
    ReplaceReplica,
    RevertReplicas,
    SetBalancing,
    SetMetadataMembership,
    SetNodeState,
    SetReplicas,
    SetReplicationFactor,
    SetTargetAssignment,
    TakeGroupEpoch,
    decode_command,
)
from raftmq.fsm.metadata_config import alter_config
from raftmq.fsm.metadata_groups import (
    delete_consumer_group,
    join_consumer_group,
    leave_consumer_group,
    regrant_partitions,
    release_partitions,
    set_target_assignment,
    take_group_epoch,
)
from raftmq.fsm.metadata_nodes import (
    feature_level_max,
    initialize_cluster,
    raise_feature_level,
    register_node,
    remove_node,
    replace_metadata_replica,
    set_metadata_membership,
    set_node_state,
)
from raftmq.fsm.metadata_producers import (
    allocate_producer_ids,
    forget_producer_names,
    init_named_producer,
    standing_claim,
)
from raftmq.fsm.metadata_recoveries import recover_metadata, recover_partition
from raftmq.fsm.metadata_replicas import (
    admit_replica,
    remove_replica,
    replace_replica,
    revert_replicas,
    set_replicas,
)
from raftmq.fsm.metadata_tables import EVERY_NODE, METADATA_GROUP, MetadataTables
from raftmq.fsm.metadata_topics import (
    add_partitions,
    alter_topic_config,
    create_topic,
    delete_topic,
    set_replication_factor,
)
from raftmq.fsm.metadata_views import BalancingView, NodeView, PartitionView, RecoveryView, ReplicaView, TopicView
from raftmq.fsm.recent_changes import RecentChanges
from raftmq.fsm.state_machine import StateMachine, UnsupportedCommandError
from raftmq.fsm.tables import all_rows
from raftmq.raft.entry import GENESIS, Entry, EntryKind
from raftmq.types import LogIndex

_NOT_FORMED = Rejected(codes.NOT_FORMED, "the cluster is not formed yet")


class Metadata:
    """Apply the log of group 0. Returned views never change, so ask for new ones after applying."""

    def __init__(self, applied_index: LogIndex = GENESIS.index) -> None:
        self.applied_index = applied_index
        self._tables = MetadataTables()

    # ------------------------------------------------------------------------------------------------------ state machine

    def apply(self, entry: Entry) -> MetadataResult | None:
        """Apply the next entry. Return None for entries already applied and for entries without a command."""
        if entry.index <= self.applied_index:
            return None
        invariant(
            entry.index == self.applied_index + 1,
            "apply_is_contiguous",
            index=entry.index,
            applied_index=self.applied_index,
        )
        if entry.kind is not EntryKind.COMMAND:
            self.applied_index = entry.index
            return None
        command = decode_command(entry.payload)
        if command is None:
            raise UnsupportedCommandError(entry, "command")
        self.applied_index = entry.index
        tables = self._tables
        tables.index = entry.index
        tables.producer_names.expire(tables.expiry.advance(entry.append_time_ms))
        if not tables.cluster.cluster_id and not isinstance(command, InitializeCluster):
            return _NOT_FORMED
        return _execute(tables, command, entry.append_time_ms)

    def level_needed(self, payload: bytes) -> int | None:
        """Return the feature level that a command needs, or None when it cannot be read back."""
        return metadata_level(payload)

    def take_dirty_rows(self) -> tuple[tuple[bytes, bytes | None], ...]:
        """Return the rows changed since the last call, in key order. None means deleted."""
        return self._tables.take_dirty_rows()

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Return all rows in key order."""
        return all_rows(self._tables.sources)

    def adopt(self, other: StateMachine) -> None:
        """Take over the state of `other`, a metadata machine that nobody uses afterwards."""
        assert isinstance(other, type(self))
        other._tables.continue_versions(self._tables)
        vars(self).update(vars(other))

    def restore(self, rows: Iterable[tuple[bytes, bytes]], state_index: LogIndex) -> None:
        """Replace the state by the one that `rows` describe. Raises if a row does not decode: the caller quarantines
        the replica.
        """
        self._tables.restore(tuple(rows))
        self.applied_index = state_index

    def found_again(self, cluster_id: str, node_id: int, index: LogIndex) -> int | None:
        """Become the state at `index` of a new metadata group, as an operator's recovery of a lost one begins it.

        Returns:
            The replica id of the only voter, which is the one of `node_id`, or None if there is no such node. Then nothing changed.
        """
        invariant(index > self.applied_index, "recovery_goes_ahead", index=index, applied_index=self.applied_index)
        if self.node(node_id) is None or self.node(node_id) not in self.nodes():
            return None
        self.applied_index = self._tables.index = index
        return recover_metadata(self._tables, cluster_id, node_id)

    # ------------------------------------------------------------------------------------------------------------- cluster

    @property
    def cluster_id(self) -> str:
        """The cluster's id. It is empty until the cluster is formed."""
        return self._tables.cluster.cluster_id

    @property
    def feature_level(self) -> int:
        """The cluster's feature level. Commands up to this level may be proposed."""
        return self._tables.cluster.feature_level

    @property
    def feature_level_max(self) -> int:
        """The highest level that every node supports, to which the cluster's level may be raised."""
        return feature_level_max(self.nodes())

    @property
    def revision(self) -> int:
        """Index of the last entry that changed anything. It is never above `applied_index`."""
        return self._tables.cluster.revision

    # --------------------------------------------------------------------------------------------------------------- nodes

    def nodes(self) -> tuple[NodeView, ...]:
        """Return the nodes by id, without removed ones."""
        return tuple(node for node in self._tables.nodes() if node.state != "removed")

    @property
    def registered_count(self) -> int:
        """Return the number of nodes that have ever registered, including removed ones."""
        return len(self._tables.nodes())

    def node(self, node_id: int) -> NodeView | None:
        """Return a node. A removed node is returned too, and its state says so."""
        return self._tables.node(node_id)

    def node_by_uuid(self, uuid: str) -> NodeView | None:
        """Return the node with this uuid, or None for uuids never seen, removed or lost."""
        return self._tables.node_by_uuid(uuid)

    def is_uuid_retired(self, uuid: str) -> bool:
        """Return whether the uuid was removed or lost, and is refused permanently."""
        return self._tables.retired_uuid(uuid) is not None

    # -------------------------------------------------------------------------------------------------- metadata membership

    @property
    def metadata_replicas(self) -> tuple[ReplicaView, ...]:
        """The metadata replica of every node, by node id."""
        return tuple(ReplicaView(node.metadata_replica_id, node.node_id) for node in self.nodes())

    @property
    def metadata_voters(self) -> tuple[int, ...]:
        """Desired voters of group 0 as replica ids, ascending; the other metadata replicas are learners."""
        return self._tables.cluster.metadata_voters

    @property
    def metadata_retiring(self) -> tuple[ReplicaView, ...]:
        """Metadata replicas that must leave group 0's configuration before `RemoveReplica(0, id)` removes their rows."""
        return self._tables.cluster.metadata_retiring

    @property
    def metadata_membership_revision(self) -> int:
        """Revision of the last change of metadata replicas or desired voters, which a membership change of group 0
        carries out.
        """
        return self._tables.cluster.metadata_membership_revision

    # -------------------------------------------------------------------------------------------------- topics and replicas

    def topics(self) -> tuple[TopicView, ...]:
        """Return all topics by id."""
        return self._tables.topics()

    def topic(self, topic_id: int) -> TopicView | None:
        """Return a topic by id."""
        return self._tables.topic(topic_id)

    def topic_by_name(self, name: str) -> TopicView | None:
        """Return a topic by name."""
        return self._tables.topic_by_name(name)

    @property
    def topic_count(self) -> int:
        """Number of topics."""
        return self._tables.topic_count()

    @property
    def partition_count(self) -> int:
        """Number of partitions of all topics."""
        return self._tables.partition_count()

    def partition(self, group_id: int) -> PartitionView | None:
        """Return a partition by its group id."""
        return self._tables.partition(group_id)

    def partitions_of_node(self, node_id: int) -> tuple[PartitionView, ...]:
        """Return the partitions with a replica on the node, desired or retiring but not lost, by group id."""
        found = (self._tables.partition(group_id) for group_id in self._tables.groups_of_node(node_id))
        return tuple(partition for partition in found if partition is not None)

    def replica_count_of_node(self, node_id: int) -> int:
        """Return the number of groups (without group 0) with a replica on the node."""
        return len(self._tables.groups_of_node(node_id))

    def replica_node(self, group_id: int, replica_id: int) -> int | None:
        """Return the node that holds a desired or retiring replica, also of group 0, or None if it is unknown, removed
        or lost.
        """
        return self._tables.replica_node(group_id, replica_id)

    def unsettled_partitions(self) -> tuple[PartitionView, ...]:
        """Return the partitions with a retiring replica or a newcomer: those that move or are rebuilt."""
        found = (self._tables.partition(group_id) for group_id in self._tables.unsettled_groups())
        return tuple(partition for partition in found if partition is not None)

    def short_partitions(self) -> tuple[PartitionView, ...]:
        """Return the partitions with fewer replicas than their topic wants."""
        found = (self._tables.partition(group_id) for group_id in self._tables.short_groups())
        return tuple(partition for partition in found if partition is not None)

    def given_up_partitions(self) -> tuple[PartitionView, ...]:
        """Return the partitions whose last move was given up."""
        found = (self._tables.partition(group_id) for group_id in self._tables.given_up_groups())
        return tuple(partition for partition in found if partition is not None)

    def recovery(self, group_id: int) -> RecoveryView | None:
        """Return the recovery by which a group replaced one without a majority, or None."""
        return self._tables.recovery(group_id)

    def recovery_from(self, group_id: int, replica_id: int) -> RecoveryView | None:
        """Return the recovery that kept the data of this replica, or None."""
        kept = (group_id, replica_id)
        return next((one for one in self.recoveries() if (one.old_group_id, one.old_replica_id) == kept), None)

    def recoveries(self) -> tuple[RecoveryView, ...]:
        """Return the recoveries of all partitions, oldest first."""
        return self._tables.recoveries()

    def kept_end_offset(self, group_id: int, earlier_group_id: int) -> int | None:
        """Return the lowest end of the logs that recoveries of a group's partition kept since an earlier group served it, or None without one.

        Records that the earlier group had from that offset on may be lost, and others may have their offsets. 0 is an unknown group.
        """
        partition = self.partition(group_id)
        if partition is None or earlier_group_id in (0, group_id):
            return None
        place = (partition.topic_id, partition.partition)
        ends = (
            one.log_end_offset
            for one in self.recoveries()
            if (one.topic_id, one.partition) == place and one.group_id > earlier_group_id
        )
        return min(ends, default=None)

    @property
    def balancing(self) -> BalancingView:
        """How the controller moves replicas."""
        cluster = self._tables.cluster
        return BalancingView(cluster.auto_balance, cluster.moves_max, cluster.rebalance, cluster.bytes_per_second)

    def config(self, node_id: int = EVERY_NODE) -> Mapping[str, str]:
        """Return the run-time settings of one node alone, or those of all nodes. Another mapping is returned after a change."""
        return self._tables.config(node_id)

    @property
    def layout_version(self) -> int:
        """Number of changes of nodes, topics, partitions and the settings of balancing in this process. It may jump."""
        return self._tables.layout_version

    @property
    def wishes_version(self) -> int:
        """The same number without the changes of partitions."""
        return self._tables.wishes_version

    @property
    def group_changes(self) -> RecentChanges[int]:
        """The groups of which the partition, a replica or a recovery changed lately. Group 0 stands for the nodes."""
        return self._tables.group_changes

    @property
    def topic_changes(self) -> RecentChanges[int]:
        """The topics that changed lately, without the changes of their partitions."""
        return self._tables.topic_changes

    @property
    def next_group_id(self) -> int:
        """The id that the next partition gets. Ids are assigned in order and never reused."""
        return self._tables.cluster.next_group_id

    def is_group_given_out(self, group_id: int) -> bool:
        """Return whether the group id was ever assigned to a partition, which may be deleted by now. False for group 0.

        Ids are assigned in order and never reused, so an assigned id without a partition belongs to a deleted one.
        """
        return 0 < group_id < self._tables.cluster.next_group_id

    def is_replica_retired(self, group_id: int, replica_id: int) -> bool:
        """Return whether a replica whose id was assigned is no longer wanted on any node, so that its files may be
        deleted.

        The answer counts only when the metadata is caught up. False for a replica id that is not assigned yet.
        """
        tables = self._tables
        if replica_id >= tables.cluster.next_replica_id or tables.replica_node(group_id, replica_id) is not None:
            return False
        if group_id == METADATA_GROUP:
            return bool(tables.cluster.cluster_id) and tables.cluster.is_bootstrap_replica_given
        return self.is_group_given_out(group_id)

    # ---------------------------------------------------------------------------------------------------- named producers

    @property
    def producer_name_count(self) -> int:
        """Return the number of producers with a name."""
        return len(self._tables.producer_names)

    def unused_producer_names(self, prefix: str, unused_ms: int) -> list[tuple[str, int, int]]:
        """Return name, epoch and unused milliseconds of the names that were unused for so long, the longest first."""
        now_ms = self._tables.expiry.now_ms
        rows = self._tables.producer_names.used_until(now_ms - unused_ms)
        return [(name, row.epoch, now_ms - row.used_time_ms) for name, row in rows if name.startswith(prefix)]

    def standing_claim(self, command: InitNamedProducer, append_time_ms: int) -> ProducerInitialized | None:
        """Return the answer to a claim of one name that would change nothing, or None if it must be applied.

        `append_time_ms` is the append time that an entry would have now.
        """
        return standing_claim(self._tables, command, append_time_ms)

    @property
    def expiry_now_ms(self) -> int:
        """Return the time of the expiry clock."""
        return self._tables.expiry.now_ms

    def batch_epoch_min(self, producer_id: int) -> int:
        """Return the lowest epoch of batches that may still be appended under the id, or 0 for an id without a name."""
        return self._tables.producer_names.batch_epoch_min(producer_id)

    # ---------------------------------------------------------------------------------------------------- consumer groups

    def consumer_group(self, name: str) -> ConsumerGroup | None:
        """Return a consumer group. Unlike other views it changes with the next entry, so read it immediately."""
        return self._tables.consumer_groups.by_name.get(name)

    def consumer_group_names(self) -> tuple[str, ...]:
        """Return the names of all consumer groups, ascending."""
        return tuple(sorted(self._tables.consumer_groups.by_name))

    @property
    def consumer_group_count(self) -> int:
        """Number of consumer groups, including groups without members."""
        return len(self._tables.consumer_groups.by_name)

    @property
    def member_count(self) -> int:
        """Number of members of all consumer groups."""
        return self._tables.consumer_groups.member_count

    @property
    def subscription_bytes(self) -> int:
        """Approximate size of the subscriptions and other texts of all members."""
        return self._tables.consumer_groups.subscription_bytes


def _execute(tables: MetadataTables, command: MetadataCommand, append_time_ms: int) -> MetadataResult:
    match command:
        case RaiseFeatureLevel():
            return raise_feature_level(tables, command)
        case RegisterNode():
            return register_node(tables, command)
        case RemoveNode():
            return remove_node(tables, command)
        case SetNodeState():
            return set_node_state(tables, command)
        case SetMetadataMembership():
            return set_metadata_membership(tables, command)
        case CreateTopic():
            return create_topic(tables, command)
        case AddPartitions():
            return add_partitions(tables, command)
        case AlterTopicConfig():
            return alter_topic_config(tables, command)
        case DeleteTopic():
            return delete_topic(tables, command)
        case AllocateProducerIds():
            return allocate_producer_ids(tables, command)
        case InitNamedProducer():
            return init_named_producer(tables, command, tables.expiry.now_ms)
        case ForgetProducerNames():
            return forget_producer_names(tables, command)
        case RemoveReplica():
            return remove_replica(tables, command)
        case ReplaceReplica() if command.group_id == METADATA_GROUP:
            return replace_metadata_replica(tables, command)
        case ReplaceReplica():
            return replace_replica(tables, command)
        case SetReplicas():
            return set_replicas(tables, command)
        case RevertReplicas():
            return revert_replicas(tables, command, append_time_ms)
        case AdmitReplica():
            return admit_replica(tables, command)
        case RecoverPartition():
            return recover_partition(tables, command, append_time_ms)
        case SetReplicationFactor():
            return set_replication_factor(tables, command)
        case SetBalancing():
            return set_balancing(tables, command)
        case AlterConfig():
            return alter_config(tables, command)
        case InitializeCluster():
            return initialize_cluster(tables, command)
        case JoinConsumerGroup():
            return join_consumer_group(tables, command)
        case LeaveConsumerGroup():
            return leave_consumer_group(tables, command, append_time_ms)
        case SetTargetAssignment():
            return set_target_assignment(tables, command)
        case ReleasePartitions():
            return release_partitions(tables, command)
        case RegrantPartitions():
            return regrant_partitions(tables, command)
        case TakeGroupEpoch():
            return take_group_epoch(tables, command)
        case DeleteConsumerGroup():
            return delete_consumer_group(tables, command)
