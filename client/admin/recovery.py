"""Partitions that have lost their majority, and their recovery from one replica: `Admin` offers these functions as methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from raftmq.client.base.arguments import check_flag, check_not_negative, check_positive, check_whole
from raftmq.client.base.texts import check_text
from raftmq.client.connection.resolver import Resolver
from raftmq.errors import InvalidArgumentError
from raftmq.methods import LIST_LOST_PARTITIONS, RECOVER_PARTITION
from raftmq.proto import queue_pb2 as pb

ReplicaCondition = Literal[
    "unreachable", "served", "starting", "not_served", "quarantined", "rebuilding", "lost", "unknown"
]
"""The condition of a replica. ``"unknown"`` is a condition of a newer broker."""
_CONDITIONS: Final[dict[int, ReplicaCondition]] = {
    pb.UNREACHABLE: "unreachable",
    pb.SERVED: "served",
    pb.STARTING: "starting",
    pb.NOT_SERVED: "not_served",
    pb.QUARANTINED: "quarantined",
    pb.REBUILDING: "rebuilding",
    pb.LOST: "lost",
}


@dataclass(frozen=True, slots=True)
class ReplicaKnowledge:
    """The knowledge about one replica of a partition. Without an answer of its broker all positions are 0."""

    broker_id: int
    condition: ReplicaCondition
    """Only a replica that is ``"served"`` can be kept."""
    reason: str
    """Explains the condition. Empty for a replica that is served."""
    leader_epoch: int
    last_leader_epoch: int
    """The leader epoch in which its last entry was written. 0: a broker of an older version does not report it."""
    last_index: int
    """Index of its last entry, committed or not."""
    commit_index: int
    log_start_offset: int
    log_end_offset: int
    """The offset after its last record, committed or not."""
    high_watermark: int
    """The offset after its last record that it knows to be committed."""
    unreachable_seconds: float
    """Time for which the metadata leader has not reached the broker. 0.0: it reaches it."""


@dataclass(frozen=True, slots=True)
class LostPartition:
    """A partition without a majority of running replicas. It is neither written nor read."""

    topic: str
    partition: int
    group_id: int
    """Identifies its group. A recovery replaces the group."""
    replicas: tuple[ReplicaKnowledge, ...]

    @property
    def newest(self) -> ReplicaKnowledge | None:
        """Return the replica to keep: it has every acknowledged record that another one that can be kept has. None: none can be kept.

        It has the highest (`last_leader_epoch`, `last_index`), the order by which Raft elects a leader. The end of a log alone proves nothing: a
        leader that was cut off may have appended records that were never acknowledged, and lack those of the next leader.
        """
        return _newest(self.replicas)

    @property
    def is_newest_certain(self) -> bool:
        """Return whether the brokers reported enough for `newest`. Those of an older version do not: then the highest `commit_index` decides, and
        among equal ones the highest `log_end_offset`.
        """
        return _is_order_known(self.replicas)


@dataclass(frozen=True, slots=True)
class PartitionRecovery:
    """An unsafe recovery of a partition: one replica's data was kept, and the others were abandoned."""

    topic: str
    partition: int
    kept_broker_id: int
    log_end_offset: int
    """The end of the kept log. Records that had this offset or a later one may be lost, and new records get these offsets."""
    known_end_offset: int
    """The highest known end of another log that may have acknowledged records after the kept one's end. Records up to here are lost. If it
    equals `log_end_offset`, none is known.
    """
    other_broker_ids: tuple[int, ...]
    """The brokers of the abandoned replicas."""
    recovered_at_ms: int
    """Time of the recovery in milliseconds since the epoch. 0: a dry run."""
    leader_epoch: int
    """Every leader since then has a higher epoch."""
    replicas: tuple[ReplicaKnowledge, ...] = field(default=(), compare=False)
    """The knowledge from which the recovery was decided. Empty for an earlier recovery, and if the metadata leader runs an older version."""

    @property
    def known_loss(self) -> int:
        """The number of records after `log_end_offset` that are known to be lost. The true number may be higher.

        If there is a `newer` replica, acknowledged records before `log_end_offset` may be lost, too.
        """
        return self.known_end_offset - self.log_end_offset

    @property
    def newer(self) -> ReplicaKnowledge | None:
        """Return the replica that should be kept instead (see `LostPartition.newest`). None: the kept one is as new, as far as known."""
        newest = _newest(self.replicas)
        kept = next((one for one in _keepable(self.replicas) if one.broker_id == self.kept_broker_id), None)
        if newest is None or kept is None or _order(self.replicas)(newest) == _order(self.replicas)(kept):
            return None
        return newest

    @property
    def is_newest_certain(self) -> bool:
        """Return whether `newer` is certain. It is not without `replicas`, or if brokers of an older version reported too little."""
        return bool(self.replicas) and _is_order_known(self.replicas)


@dataclass(frozen=True, slots=True)
class LostPartitions:
    """The partitions without a majority, and the recoveries of earlier ones."""

    count: int
    """The number of partitions without a majority."""
    partitions: tuple[LostPartition, ...]
    """These partitions, at most the first thousand."""
    recoveries: tuple[PartitionRecovery, ...]
    """The recoveries that the cluster remembers, oldest first. A deleted topic's are forgotten."""


async def list_lost_partitions(resolver: Resolver, topic: str | None, timeout_seconds: float) -> LostPartitions:
    """List the partitions without a majority."""
    if topic is not None:
        _check_topic(topic)
    request = pb.ListLostPartitionsRequest(topic=topic or "")
    response = await resolver.call_any(LIST_LOST_PARTITIONS, request, timeout_seconds, is_read=True)
    return LostPartitions(
        response.count,
        tuple(
            LostPartition(one.topic, one.partition, one.group_id, tuple(map(_read_replica, one.replicas)))
            for one in response.partitions
        ),
        tuple(map(_read_recovery, response.recoveries)),
    )


async def recover_partition(
    resolver: Resolver,
    topic: str,
    partition: int,
    keep_broker_id: int,
    timeout_seconds: float,
    *,
    unsafe: bool,
    dry_run: bool,
    group_id: int | None,
) -> PartitionRecovery:
    """Recover a partition from one replica."""
    _check_topic(topic)
    check_whole(partition=partition, keep_broker_id=keep_broker_id)
    check_not_negative(partition=partition)
    check_positive(keep_broker_id=keep_broker_id)
    check_flag(unsafe=unsafe, dry_run=dry_run)
    if group_id is not None:
        check_whole(group_id=group_id)
        check_positive(group_id=group_id)
    if not unsafe:
        raise InvalidArgumentError("recover_partition may lose acknowledged records: pass unsafe=True to accept that")
    request = pb.RecoverPartitionRequest(
        topic=topic,
        partition=partition,
        keep_broker_id=keep_broker_id,
        unsafe=unsafe,
        dry_run=dry_run,
        group_id=group_id or 0,
        metadata_revision=resolver.metadata_revision,
    )
    response = await resolver.call_any(RECOVER_PARTITION, request, timeout_seconds, is_read=dry_run)
    resolver.record_revision(response.metadata_revision)
    replicas = tuple(map(_read_replica, response.replicas))
    return replace(_read_recovery(response.recovery), replicas=replicas)


def _keepable(replicas: Iterable[ReplicaKnowledge]) -> list[ReplicaKnowledge]:
    return [one for one in replicas if one.condition == "served"]


def _is_order_known(replicas: Iterable[ReplicaKnowledge]) -> bool:
    compared = _keepable(replicas)
    return len(compared) < 2 or all(one.last_leader_epoch for one in compared)


def _order(replicas: Iterable[ReplicaKnowledge]) -> Callable[[ReplicaKnowledge], tuple[int, int]]:
    """Return the key by which replicas are compared: that of Raft's elections, or an estimate if a broker did not report it."""
    if _is_order_known(replicas):
        return lambda one: (one.last_leader_epoch, one.last_index)
    return lambda one: (one.commit_index, one.log_end_offset)


def _newest(replicas: Sequence[ReplicaKnowledge]) -> ReplicaKnowledge | None:
    return max(_keepable(replicas), key=_order(replicas), default=None)


def _check_topic(topic: object) -> None:
    if not isinstance(topic, str):
        raise TypeError(f"topic must be a string, not {topic!r}")
    check_text(topic, "topic")


def _read_replica(known: pb.ReplicaKnowledge) -> ReplicaKnowledge:
    return ReplicaKnowledge(
        broker_id=known.broker_id,
        condition=_CONDITIONS.get(known.condition, "unknown"),
        reason=known.reason,
        leader_epoch=known.term,
        last_leader_epoch=known.last_term,
        last_index=known.last_index,
        commit_index=known.commit_index,
        log_start_offset=known.log_start_offset,
        log_end_offset=known.log_end_offset,
        high_watermark=known.high_watermark,
        unreachable_seconds=known.unreachable_ms / 1000,
    )


def _read_recovery(recovery: pb.PartitionRecovery) -> PartitionRecovery:
    return PartitionRecovery(
        topic=recovery.topic,
        partition=recovery.partition,
        kept_broker_id=recovery.kept_broker_id,
        log_end_offset=recovery.log_end_offset,
        known_end_offset=recovery.known_end_offset,
        other_broker_ids=tuple(recovery.other_broker_ids),
        recovered_at_ms=recovery.recovered_at_ms,
        leader_epoch=recovery.leader_epoch,
    )
