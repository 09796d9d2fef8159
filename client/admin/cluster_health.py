"""How partitions, brokers and the cluster are, as they say themselves: what `Admin` adds to its descriptions when asked to."""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.proto import queue_pb2 as pb
from raftmq.types import TopicPartition


@dataclass(frozen=True, slots=True)
class PartitionState:
    """How a partition is, as its leader says."""

    in_sync_brokers: tuple[int, ...]
    """Brokers whose replicas vote and keep up with the leader, its own included."""
    log_start_offset: int
    high_watermark: int
    size_bytes: int
    """Of the file of the leader's replica."""


@dataclass(frozen=True, slots=True)
class PartitionNames:
    """Some partitions of the cluster."""

    count: int
    first: tuple[TopicPartition, ...]
    """The first hundred of them, by name."""


@dataclass(frozen=True, slots=True)
class BrokerHealth:
    """How a broker is, as it says itself."""

    not_ready: tuple[str, ...]
    """Why its ``/readyz`` says no; empty when it is ready."""
    under_replicated: PartitionNames
    """Partitions led by it of which fewer replicas than wanted vote and keep up."""
    not_served: PartitionNames
    """Partitions of which it should serve a replica and does not."""
    quarantined: PartitionNames
    """Partitions of which its replica is damaged, and not replaced yet."""
    warnings: tuple[str, ...] = ()
    """What its ``/readyz`` warns of, the first: what fails there, and why replicas are not served."""


@dataclass(frozen=True, slots=True)
class ClusterHealth:
    """What all brokers that answered say together."""

    leaderless: PartitionNames
    """Partitions that none of them leads."""
    unknown: PartitionNames
    """Partitions whose leader, as far as is known, did not answer."""
    metadata_voters_behind: tuple[int, ...]
    """Brokers whose vote on metadata does not keep up."""
    is_metadata_led: bool
    """Whether one of them leads the metadata."""


def read_state(state: pb.PartitionState) -> PartitionState:
    """From the answer of a partition's leader."""
    return PartitionState(
        in_sync_brokers=tuple(state.in_sync_brokers),
        log_start_offset=state.log_start_offset,
        high_watermark=state.high_watermark,
        size_bytes=state.size_bytes,
    )


def _names(names: pb.PartitionNames) -> PartitionNames:
    return PartitionNames(names.count, tuple(TopicPartition(name.topic, name.partition) for name in names.first))


def read_cluster_health(health: pb.ClusterHealth) -> ClusterHealth:
    """From what all brokers said."""
    return ClusterHealth(
        leaderless=_names(health.leaderless),
        unknown=_names(health.unknown),
        metadata_voters_behind=tuple(health.metadata_voters_behind),
        is_metadata_led=health.is_metadata_led,
    )


def read_broker_health(health: pb.BrokerHealth) -> BrokerHealth:
    """From what one broker said of itself."""
    return BrokerHealth(
        not_ready=tuple(health.not_ready),
        under_replicated=_names(health.under_replicated),
        not_served=_names(health.not_served),
        quarantined=_names(health.quarantined),
        warnings=tuple(health.warnings),
    )
