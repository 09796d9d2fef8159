"""Every bound of a broker process in one place, each with the reason for its default."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Process-wide budgets in bytes and counts. Exceeding one answers `THROTTLED`, never grows memory."""

    uncommitted_bytes_max: int = 64 * MIB
    """Payload proposed on this node and not yet applied, over all groups: what a client can make us hold."""
    inbound_append_bytes_max: int = 64 * MIB
    """Entries received from leaders and not yet durable here; beyond it incoming appends are dropped (the leader probes)."""
    peer_outbox_bytes_max: int = 16 * MIB
    """Unsent bytes to one peer on one channel; beyond it messages are dropped and the peer is probed."""
    recent_entries_bytes_max: int = 128 * MIB
    """Recent batches kept for followers and tailing consumers: a few seconds at full speed."""
    frame_bytes_max: int = 8 * MIB
    """One peer frame. An append carries up to 512 KiB, or one batch of at most 3.5 MiB."""
    snapshot_chunk_bytes: int = 512 * 1024
    snapshot_bytes_max: int = 512 * MIB
    """State rows of one snapshot, assembled in memory before it is installed."""
    snapshot_streams_max: int = 4
    """Snapshots sent at once: the rest wait, metadata first."""
    campaigns_max: int = 64
    """Campaigns at once in one process (metadata and transfers exempt): a mass failover must not become a storm."""
    parked_polls_max: int = 4096
    """Long polls waiting at once."""
    poll_bytes_max: int = 3 * MIB + MIB // 2
    """Batches in one Poll answer: under gRPC's 4 MiB message."""
    grpc_message_bytes_max: int = 4 * MIB
    concurrent_rpcs_max: int = 4096
    """Unary calls and streams at once; each may hold one message of 4 MiB before a handler sees it, so it is bounded."""
    partitions_max: int = 1000
    """Partition replicas in one process, enforced when a topic is created."""
    catching_up_max: int = 8
    """Groups led by this node that bring up new replicas at once: repair must leave room for the work."""
    batches_in_flight_max: int = 5
    """Batches of one producer in flight per partition (as Kafka's idempotent producer)."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. The defaults are production's; tests and the simulator scale them."""

    data_tick_seconds: float = 0.3
    """One heartbeat of data groups."""
    data_election_ticks: int = 10
    """So data groups elect after 3-6 s of silence."""
    metadata_tick_seconds: float = 0.15
    metadata_election_ticks: int = 10
    """The metadata group elects after 1.5-3 s."""
    refused_campaign_min_seconds: float = 0.2
    refused_campaign_max_seconds: float = 1.5
    """When a leader's process refuses connections its followers pre-vote after a uniform time in this range."""
    leadership_publish_seconds: float = 10.0
    retention_check_seconds: float = 5.0
    controller_seconds: float = 0.5
    """How often the controller and the reconcilers look (they also run on each change)."""
    catch_up_seconds: float = 600.0
    """For so long a learner that catches up holds back the deletion of old records; then it gets another snapshot."""
    connect_timeout_seconds: float = 1.0
    reconnect_min_seconds: float = 0.05
    reconnect_max_seconds: float = 1.0
    handshake_timeout_seconds: float = 3.0
    unacked_data_timeout_seconds: float = 3.0
    """TCP gives a peer link up when sent data is not acknowledged for so long (a link that came back must not wait
    for the kernel's exponential retransmission)."""
    read_index_seconds: float = 2.0
    """A read confirmation that takes longer was lost with its messages; the reader is told to ask again."""
    stall_seconds: float = 0.5
    """A loop pass later than this is a stall (stacks are dumped by the watchdog)."""
    shutdown_seconds: float = 30.0
