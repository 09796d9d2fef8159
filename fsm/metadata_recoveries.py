"""The recoveries of lost majorities: of a partition by a command, and of the metadata itself by an operator at a stopped broker.

Both are pure functions over `MetadataTables`. The node of the kept replica turns that replica's files into those of the new group's
founder (`broker/cluster/replica_manager.py`). Every other replica of the old group is retired by the loss of its group.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

import msgspec
from raftmq.fsm import codes
from raftmq.fsm.metadata_commands import Done, RecoverPartition, Rejected
from raftmq.fsm.metadata_tables import MetadataTables
from raftmq.fsm.metadata_views import PartitionView, RecoveryView, ReplicaView

RECOVERIES_PER_PARTITION_MAX: Final = 4
"""Recoveries of a partition that are remembered. They tell an operator which records may be missing, and the latest matter."""
ID_GAP: Final = 1_000_000
"""Ids of each kind that lost voters of the metadata may have given out unknown to the kept one."""
ID_RANGES: Final = 1 << 16
"""Ranges of so many ids, of which a recovery of the metadata chooses one. An operator may recover a cluster twice, from two of its brokers by
mistake: a broker that changes from one of the new clusters to the other must not meet its replica ids with another meaning."""
_IDS_PER_BLOCK: Final = 1000
"""Producer ids are given out in blocks."""
TERM_MAX: Final = (1 << 62) - 1
"""Terms are 64-bit numbers on disk. The later elections of the new group need some, too."""


def recover_partition(tables: MetadataTables, command: RecoverPartition, append_time_ms: int) -> Done | Rejected:
    """Replace the partition's group by a new one with a single founder on the kept replica's node."""
    partition = tables.partition(command.group_id)
    if partition is None:
        return _repeated(tables, command)
    kept = next(
        (
            replica
            for replica in (*partition.replicas, *partition.retiring)
            if replica.replica_id == command.replica_id and not replica.is_lost
        ),
        None,
    )
    topic = tables.topic(partition.topic_id)
    if kept is None or topic is None:
        return Rejected(codes.INVALID_ARGUMENT, f"group {command.group_id} has no replica {command.replica_id} to keep")
    if partition.revision > command.expected_revision:
        return Rejected(codes.CONFLICT, f"the partition changed at {partition.revision}")
    if not 0 < command.term <= TERM_MAX:
        return Rejected(codes.INVALID_ARGUMENT, f"{command.term} is no term of a new group")
    cluster = tables.cluster
    founder = ReplicaView(cluster.next_replica_id, kept.node_id)
    created = PartitionView(
        topic_id=partition.topic_id,
        partition=partition.partition,
        group_id=cluster.next_group_id,
        creation_replicas=(founder,),
        replicas=(founder,),
        retiring=(),
        revision=tables.index,
    )
    others = {replica.node_id for replica in (*partition.replicas, *partition.retiring)} - {kept.node_id}
    tables.update_cluster(next_group_id=created.group_id + 1, next_replica_id=founder.replica_id + 1)
    tables.replace_partition(topic, partition, created)
    tables.put_recovery(
        RecoveryView(
            group_id=created.group_id,
            topic_id=partition.topic_id,
            partition=partition.partition,
            old_group_id=partition.group_id,
            old_replica_id=kept.replica_id,
            node_id=kept.node_id,
            term=command.term,
            log_end_offset=command.log_end_offset,
            known_end_offset=max(command.known_end_offset, command.log_end_offset),
            other_node_ids=tuple(sorted(others)),
            recovered_at_ms=append_time_ms,
        )
    )
    _forget_oldest(tables, created)
    return Done(tables.cluster.revision)


def _repeated(tables: MetadataTables, command: RecoverPartition) -> Done | Rejected:
    for recovery in tables.recoveries():
        if (recovery.old_group_id, recovery.old_replica_id) == (command.group_id, command.replica_id):
            return Done(tables.cluster.revision)
    return Rejected(codes.UNKNOWN_PARTITION, f"there is no group {command.group_id}")


def _forget_oldest(tables: MetadataTables, partition: PartitionView) -> None:
    place = (partition.topic_id, partition.partition)
    known = [one.group_id for one in tables.recoveries() if (one.topic_id, one.partition) == place]
    for group_id in known[:-RECOVERIES_PER_PARTITION_MAX]:
        tables.delete_recovery(group_id)


def recover_metadata(tables: MetadataTables, cluster_id: str, node_id: int) -> int:
    """Begin a new metadata group under a new cluster id, whose only voter is on this node. Return its replica id.

    Every node gets a new metadata replica, because the old ones belong to a group that must not be believed any more. Ids that the old
    group may have given out after this state are skipped, and so are those of a recovery under another cluster id. Every partition gets
    the revision of this state: its group may have carried out a later target that is lost, and would refuse the present one as older.
    So does every member of a consumer group, with its partitions: it may know a later assignment that is lost, and would refuse this one.
    """
    cluster = tables.cluster
    gap = ID_GAP * (1 + crc32(cluster_id.encode()) % ID_RANGES)
    next_replica_id = cluster.next_replica_id + gap
    voter = next_replica_id
    for node in tables.nodes():
        if node.state == "removed":
            continue
        if node.node_id == node_id:
            voter = next_replica_id
        tables.put_node(msgspec.structs.replace(node, metadata_replica_id=next_replica_id, revision=tables.index))
        next_replica_id += 1
    for topic in tables.topics():
        for group_id in topic.group_ids:
            partition = tables.partition(group_id)
            if partition is not None:
                tables.put_partition(msgspec.structs.replace(partition, revision=tables.index))
    for group in tables.consumer_groups.by_name.values():
        for member_id, member in list(group.members.items()):
            owned = tuple((*part[:2], tables.index) for part in member.owned)
            renewed = msgspec.structs.replace(member, owned=owned, epoch=tables.index)
            tables.consumer_groups.put_member(group, member_id, renewed, tables.index)
    tables.update_cluster(
        cluster_id=cluster_id,
        metadata_voters=(voter,),
        metadata_retiring=(),
        next_replica_id=next_replica_id,
        next_group_id=cluster.next_group_id + gap,
        next_topic_id=cluster.next_topic_id + gap,
        next_producer_id=cluster.next_producer_id + gap * _IDS_PER_BLOCK,
        next_named_producer=cluster.next_named_producer + gap,
    )
    return voter
