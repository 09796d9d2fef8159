"""Commands about the location of replicas: desired replicas, retired replicas, and the replicas of a lost disk.

All are pure functions over `MetadataTables`. They change the desired state only: the leader of each partition
reconciles its group towards it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Final

import msgspec
from raftmq.fsm import codes
from raftmq.fsm.feature_levels import NEWCOMER_LEVEL
from raftmq.fsm.metadata_commands import (
    AdmitReplica,
    Done,
    Rejected,
    RemoveReplica,
    ReplaceReplica,
    RevertReplicas,
    SetReplicas,
)
from raftmq.fsm.metadata_tables import METADATA_GROUP, MetadataTables
from raftmq.fsm.metadata_views import GivenUpMove, PartitionView, ReplicaView

REPLICAS_PER_PARTITION_MAX: Final = 9
"""More voters only make commits slower."""


def plan_refusal(tables: MetadataTables, node_ids: tuple[int, ...]) -> Rejected | None:
    """Return why a partition's replicas cannot be on these nodes, or None."""
    if not 1 <= len(node_ids) <= REPLICAS_PER_PARTITION_MAX:
        return Rejected(
            codes.INVALID_REPLICATION_FACTOR, f"a partition has between 1 and {REPLICAS_PER_PARTITION_MAX} replicas"
        )
    if len(set(node_ids)) != len(node_ids):
        return Rejected(codes.INVALID_REPLICATION_FACTOR, "two replicas of a partition cannot be on one broker")
    for node_id in node_ids:
        node = tables.node(node_id)
        if node is None or node.state == "removed":
            return Rejected(codes.UNKNOWN_BROKER, f"there is no broker {node_id}")
    return None


def allocate_replicas(node_ids: Iterable[int], next_replica_id: int) -> tuple[ReplicaView, ...]:
    """Create new replicas on these nodes, with ascending ids from `next_replica_id`."""
    return tuple(ReplicaView(replica_id, node_id) for replica_id, node_id in enumerate(node_ids, next_replica_id))


def set_replicas(tables: MetadataTables, command: SetReplicas) -> Done | Rejected:
    """Set a partition's desired replicas. A node with a desired replica keeps it. Any other node gets a new replica id,
    and the seat of a replica that leaves or has left.

    A node whose old replica of the partition is still retiring is refused for now: a node hosts one replica of a group,
    and the old one votes until it has left. A lost replica no longer votes, so its node gets a new one.
    """
    partition = tables.partition(command.group_id)
    if partition is None:
        return Rejected(codes.UNKNOWN_PARTITION, f"there is no group {command.group_id}")
    if partition.revision > command.expected_revision:
        return Rejected(codes.CONFLICT, f"the partition changed at {partition.revision}")
    refusal = plan_refusal(tables, command.node_ids)
    if refusal is not None:
        return refusal
    kept = {replica.node_id: replica for replica in partition.replicas}
    leaving = {replica.node_id for replica in partition.retiring if not replica.is_lost}
    for node_id in command.node_ids:
        if node_id in leaving and node_id not in kept:
            return Rejected(
                codes.CONFLICT, f"the partition's old replica on broker {node_id} has not left yet; try again"
            )
    cluster = tables.cluster
    placed = with_replicas(
        partition, command.node_ids, cluster.next_replica_id, marks_newcomers=cluster.feature_level >= NEWCOMER_LEVEL
    )
    if placed.replicas == partition.replicas and command.is_pinned == partition.is_pinned:
        return Done(cluster.revision)
    added = sum(1 for node_id in command.node_ids if node_id not in kept)
    if added:
        tables.update_cluster(next_replica_id=cluster.next_replica_id + added)
    tables.put_partition(msgspec.structs.replace(placed, revision=tables.index, is_pinned=command.is_pinned))
    return Done(tables.cluster.revision)


def with_replicas(
    partition: PartitionView, node_ids: tuple[int, ...], next_replica_id: int, *, marks_newcomers: bool = True
) -> PartitionView:
    """Return the partition with its desired replicas on these nodes. A plan uses it to look ahead."""
    kept = {replica.node_id: replica for replica in partition.replicas}
    dropped = tuple(replica for replica in partition.replicas if replica.node_id not in node_ids)
    newcomers = allocate_replicas((node_id for node_id in node_ids if node_id not in kept), next_replica_id)
    vacant = _vacant_seats(partition, dropped)
    added = tuple(
        msgspec.structs.replace(newcomer, inherited_seat=seat, is_newcomer=is_unsettled and marks_newcomers)
        for newcomer, (seat, is_unsettled) in zip(newcomers, chain(vacant, repeat((0, True))), strict=False)
    )
    by_node = kept | {replica.node_id: replica for replica in added}
    return msgspec.structs.replace(
        partition,
        replicas=tuple(by_node[node_id] for node_id in node_ids),
        retiring=(*partition.retiring, *dropped),
    )


def _vacant_seats(partition: PartitionView, dropped: tuple[ReplicaView, ...]) -> list[tuple[int, bool]]:
    """Return the seats that newcomers can take, each with whether it may have no voter until the newcomer votes.

    The voter of a dropped or lost replica's seat stays until its successor votes. A replica that was dropped earlier may have
    left its group at any moment.
    """
    taken = {replica.seat for replica in partition.replicas if replica not in dropped}
    vacant: dict[int, bool] = {}
    for gone in (*dropped, *partition.retiring):
        if gone.seat not in taken:
            is_unsettled = gone.is_newcomer or (gone not in dropped and not gone.is_lost)
            vacant.setdefault(gone.seat, is_unsettled)
    return list(vacant.items())


def revert_replicas(tables: MetadataTables, command: RevertReplicas, now_ms: int) -> Done | Rejected:
    """Give up a partition's move. The same command again is `Done`.

    Each replica that takes the seat of one that is to leave gives the seat back. At most one replica of a seat votes, so the leader
    exchanges them in either direction: it removes the learner, or exchanges the voters again. The files of a replica that is to leave are
    kept until metadata lists it no more, so it still has them.
    """
    partition = tables.partition(command.group_id)
    if partition is None:
        return Rejected(codes.UNKNOWN_PARTITION, f"there is no group {command.group_id}")
    if partition.revision > command.expected_revision:
        return Rejected(codes.CONFLICT, f"the partition changed at {partition.revision}")
    reverted = without_move(partition)
    if reverted == partition:
        return Done(tables.cluster.revision)
    before = {replica.node_id for replica in reverted.replicas}
    node_ids = tuple(replica.node_id for replica in partition.replicas if replica.node_id not in before)
    last = partition.given_up
    is_repeated = last is not None and not set(last.node_ids).isdisjoint(node_ids)
    given_up = GivenUpMove(node_ids, now_ms, last.count + 1 if last is not None and is_repeated else 1, command.reason)
    tables.put_partition(msgspec.structs.replace(reverted, revision=tables.index, given_up=given_up, is_pinned=False))
    return Done(tables.cluster.revision)


def without_move(partition: PartitionView) -> PartitionView:
    """Return the partition with the replicas that it had before it began to move."""
    leaving: dict[int, ReplicaView] = {}
    for replica in partition.retiring:
        if not replica.is_lost:
            leaving.setdefault(
                replica.seat, replica
            )  # of several in a row, the first one is the voter until it is replaced
    seats = {replica.seat for replica in partition.replicas if not replica.is_newcomer}.intersection(leaving)
    given_back = tuple(leaving[seat] for seat in leaving if seat in seats)
    replicas = tuple(leaving[one.seat] if one.seat in seats else one for one in partition.replicas)
    dropped = tuple(one for one in partition.replicas if one.seat in seats)
    retiring = (*(one for one in partition.retiring if one not in given_back), *dropped)
    return msgspec.structs.replace(partition, replicas=replicas, retiring=retiring)


def _without_fulfilled(given_up: GivenUpMove | None, partition: PartitionView) -> GivenUpMove | None:
    """Forget a move that was given up once a later one has brought a replica to one of its nodes."""
    if given_up is None or partition.retiring:
        return given_up
    is_fulfilled = any(replica.node_id in given_up.node_ids for replica in partition.replicas)
    return None if is_fulfilled else given_up


def admit_replica(tables: MetadataTables, command: AdmitReplica) -> Done | Rejected:
    """Record that a newcomer votes. The same command again is `Done`."""
    partition = tables.partition(command.group_id)
    if partition is None:
        return Rejected(codes.UNKNOWN_PARTITION, f"there is no group {command.group_id}")
    replicas = tuple(
        msgspec.structs.replace(replica, is_newcomer=False) if replica.replica_id == command.replica_id else replica
        for replica in partition.replicas
    )
    if replicas != partition.replicas:
        tables.put_partition(msgspec.structs.replace(partition, replicas=replicas, revision=tables.index))
    return Done(tables.cluster.revision)


def remove_replica(tables: MetadataTables, command: RemoveReplica) -> Done | Rejected:
    """Remove a retiring replica that has left its group's configuration. The same command again is `Done`."""
    if command.group_id == METADATA_GROUP:
        return _remove_metadata_replica(tables, command.replica_id)
    partition = tables.partition(command.group_id)
    if partition is None:
        return Rejected(codes.UNKNOWN_PARTITION, f"there is no group {command.group_id}")
    if any(replica.replica_id == command.replica_id for replica in partition.replicas):
        return Rejected(codes.CONFLICT, f"replica {command.replica_id} is still desired")
    remaining = tuple(replica for replica in partition.retiring if replica.replica_id != command.replica_id)
    if remaining != partition.retiring:
        changed = msgspec.structs.replace(partition, retiring=remaining, revision=tables.index)
        given_up = _without_fulfilled(partition.given_up, changed)
        tables.put_partition(msgspec.structs.replace(changed, given_up=given_up))
    return Done(tables.cluster.revision)


def replace_replica(tables: MetadataTables, command: ReplaceReplica) -> Done | Rejected:
    """Retire a damaged replica as lost, and give its node a new replica in its place. The same command again is `Done`."""
    partition = tables.partition(command.group_id)
    if partition is None:
        return Rejected(codes.UNKNOWN_PARTITION, f"there is no group {command.group_id}")
    if any(replica.replica_id == command.replica_id for replica in (*partition.replicas, *partition.retiring)):
        _retire_as_lost(tables, partition, lambda replica: replica.replica_id == command.replica_id, is_replaced=True)
    return Done(tables.cluster.revision)


def retire_lost_replicas(tables: MetadataTables, node_id: int, *, is_replaced: bool) -> None:
    """Retire every replica of a node as lost because its disk is gone. If the node stays, replace each under a new id."""
    for group_id in tables.groups_of_node(node_id):
        partition = tables.partition(group_id)
        if partition is not None:  # always: the index is derived from the partitions
            _retire_as_lost(tables, partition, lambda replica: replica.node_id == node_id, is_replaced=is_replaced)


def _retire_as_lost(
    tables: MetadataTables, partition: PartitionView, is_lost: Callable[[ReplicaView], bool], *, is_replaced: bool
) -> None:
    """Retire the lost replicas. A replacement keeps the position among the desired replicas, and so the preferred
    leader stays.
    """
    next_replica_id = tables.cluster.next_replica_id
    replicas: list[ReplicaView] = []
    retiring = [_lost(replica) if is_lost(replica) else replica for replica in partition.retiring]
    for replica in partition.replicas:
        if not is_lost(replica):
            replicas.append(replica)
            continue
        retiring.append(_lost(replica))
        if is_replaced:
            replicas.append(ReplicaView(next_replica_id, replica.node_id, inherited_seat=replica.seat))
            next_replica_id += 1
    if next_replica_id != tables.cluster.next_replica_id:
        tables.update_cluster(next_replica_id=next_replica_id)
    changed = msgspec.structs.replace(
        partition,
        replicas=tuple(replicas),
        retiring=tuple(retiring),
        is_pinned=partition.is_pinned and len(replicas) == len(partition.replicas),
    )
    if changed != partition:
        tables.put_partition(msgspec.structs.replace(changed, revision=tables.index))


def _lost(replica: ReplicaView) -> ReplicaView:
    return msgspec.structs.replace(replica, is_lost=True)


def _remove_metadata_replica(tables: MetadataTables, replica_id: int) -> Done | Rejected:
    if tables.replica_node(METADATA_GROUP, replica_id) is not None:
        return Rejected(codes.CONFLICT, f"metadata replica {replica_id} belongs to a broker of the cluster")
    retiring = tables.cluster.metadata_retiring
    remaining = tuple(replica for replica in retiring if replica.replica_id != replica_id)
    if remaining != retiring:
        tables.update_cluster(metadata_retiring=remaining)
    return Done(tables.cluster.revision)
