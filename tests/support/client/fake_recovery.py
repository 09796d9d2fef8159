# ruff: noqa: N802 - the names of gRPC's servicer methods
"""Partitions of a fake cluster that have lost their majority."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from raftmq.proto import queue_pb2 as pb

if TYPE_CHECKING:
    from tests.support.client.fake_broker import FakeCluster


@dataclass
class FakeLosses:
    """The lost partitions of a fake cluster."""

    partitions: list[pb.LostPartition] = field(default_factory=list)
    recoveries: list[pb.PartitionRecovery] = field(default_factory=list)
    requests: list[pb.RecoverPartitionRequest] = field(default_factory=list)
    is_old: bool = False
    """Whether the metadata leader runs a version that does not return the replicas of a recovery."""
    unlisted_count: int = 0
    """Partitions that an answer counts and has no room for."""


class FakeRecoveryService:
    """The methods of Admin about partitions without a majority. A mixin of `FakeBroker`."""

    cluster: FakeCluster

    async def refuse(self, context, code: int) -> None:
        raise NotImplementedError

    async def ListLostPartitions(self, request, context):
        losses = self.cluster.losses
        found = [one for one in losses.partitions if request.topic in ("", one.topic)]
        count = len(found) + losses.unlisted_count
        return pb.ListLostPartitionsResponse(count=count, partitions=found, recoveries=losses.recoveries)

    async def RecoverPartition(self, request, context):
        losses = self.cluster.losses
        losses.requests.append(request)
        name = (request.topic, request.partition)
        lost = next((one for one in losses.partitions if (one.topic, one.partition) == name), None)
        if lost is None:
            await self.refuse(context, pb.INVALID_ARGUMENT)
        assert lost is not None
        kept = next(one for one in lost.replicas if one.broker_id == request.keep_broker_id)
        recovery = pb.PartitionRecovery(
            topic=request.topic,
            partition=request.partition,
            kept_broker_id=kept.broker_id,
            log_end_offset=kept.log_end_offset,
            known_end_offset=max(one.log_end_offset for one in lost.replicas),
            other_broker_ids=[one.broker_id for one in lost.replicas if one is not kept],
            recovered_at_ms=0 if request.dry_run else 1_700_000_000_000,
            leader_epoch=1007,
        )
        if not request.dry_run:
            losses.partitions.remove(lost)
            losses.recoveries.append(recovery)
        return pb.RecoverPartitionResponse(
            metadata_revision=self.cluster.revision,
            recovery=recovery,
            replicas=[] if losses.is_old else lost.replicas,
        )


def lose(losses: FakeLosses, topic: str, partition: int) -> None:
    """Let a partition lose its majority: broker 1 and 2 have its last records, and only broker 1 runs."""
    losses.partitions.append(
        pb.LostPartition(
            topic=topic,
            partition=partition,
            group_id=5,
            replicas=[
                pb.ReplicaKnowledge(
                    broker_id=1, condition=pb.SERVED, term=7, last_term=6, last_index=30, commit_index=28, log_start_offset=2,
                    log_end_offset=20, high_watermark=18,
                ),
                pb.ReplicaKnowledge(
                    broker_id=2, condition=pb.QUARANTINED, reason="its file is missing", log_end_offset=23
                ),
                pb.ReplicaKnowledge(broker_id=3, reason="its broker does not answer", unreachable_ms=61_400),
            ],
        )
    )  # fmt: skip
