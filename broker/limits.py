"""Every bound of a broker process in one place, each with the reason for its default."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

from raftmq.types import METADATA_GROUP_ID, GroupId

MIB = 1024 * 1024

FILES_PER_REPLICA = 3
"""File descriptors of an open LMDB file: the data, once more for synchronous writes, and the lock file."""


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
    peer_handshakes_max: int = 128
    """Inbound peer connections that have not said who they are; one more, and the oldest of them is closed."""
    peer_connections_max: int = 1024
    """Inbound peer connections that have, three per peer; one more, and the one silent for longest is closed."""
    peer_strangers_max: int = 64
    """Peers that metadata does not show and that are connected to all the same, since they are connected to us."""
    peer_read_buffer_bytes_max: int = 192 * MIB
    """Read buffers of inbound peer connections together: a dozen peers that send the largest frames on two channels."""
    snapshot_chunk_bytes: int = 512 * 1024
    """State rows in one frame of a snapshot: as much as an append carries, so that the receiver's loop never works on one
    frame for long."""
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
    """One gRPC message in either direction: gRPC's own default, so that no client needs to be told."""
    concurrent_rpcs_max: int = 12_288
    """Calls at once. At most half of it are places for polls; streams and other calls have fewer places of their own, so that
    none of them takes those of the others."""
    append_streams_max: int = 512
    """Append streams at once; one more, and the one that has been quiet for longest is ended. Each may hold one request."""
    receiving_bytes_max: int = 256 * MIB
    """Requests of calls on their way in, each counted with 4 MiB; others wait unread, and those that stand still make room."""
    unsent_bytes_max: int = 128 * MIB
    """Answers that their clients have not taken; beyond it the slowest are cancelled."""
    client_connections_max: int = 8192
    """Connections to the client port; more are closed at once."""
    client_handshake_seconds: float = 5.0
    """A connection to the client port that has not begun to speak HTTP/2 within this time is closed."""
    http_connections_max: int = 256
    """Connections to the HTTP port; one more, and the one that has waited longest for its request or reader is closed."""
    http_exchange_seconds: float = 10.0
    """A connection's first request must be complete and answered, and the answer taken, within so long; so each next one."""
    partitions_max: int = 1000
    """Partition replicas in one process, enforced when a topic is created; fewer where the process may open fewer files."""
    partitions_max_reason: str = "its setting partitions_max"
    """Where `partitions_max` comes from, for the refusal to say."""
    connection_files_max: int = 1024
    """File descriptors that replicas leave to connections, logs and the registry (at most half of those there are)."""
    catching_up_max: int = 8
    """Groups led by this node that bring up new replicas at once: repair must leave room for the work."""
    consumer_groups_max: int = 5000
    """Consumer groups in the cluster, those without members included: each costs a look every so often."""
    group_members_max: int = 2000
    """Members of one consumer group: every change of one has an assignment for all computed."""
    members_max: int = 10_000
    """Members of all consumer groups: they send a heartbeat every 5 s, and all of them to one node."""
    subscription_bytes_max: int = 64 * MIB
    """What all members say of themselves (topics, patterns, names): it is metadata, and on every node."""
    rebuilding_max: int = 16
    """Partitions of the whole cluster that are given new replicas at once after a node was removed: a few per node, as one
    full copy of each crosses the network and is written by one node."""


def within_open_files(limits: Limits, open_files_max: int) -> Limits:
    """The limits of a process that may have so many files open: fewer replicas, if need be, but always one."""
    reserved = min(limits.connection_files_max, open_files_max // 2)
    affordable = max(1, (open_files_max - reserved) // FILES_PER_REPLICA)
    if affordable >= limits.partitions_max:
        return limits
    reason = f"its limit of open files, RLIMIT_NOFILE = {open_files_max}, allows no more"
    return replace(limits, partitions_max=affordable, partitions_max_reason=reason)


def within_this_process(limits: Limits) -> Limits:
    """The limits that hold here: as configured, as far as the operating system allows."""
    open_files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits if open_files_max == resource.RLIM_INFINITY else within_open_files(limits, open_files_max)


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds. The defaults are production's; tests and the simulator scale them."""

    data_tick_seconds: float = 0.3
    """One heartbeat of data groups."""
    data_election_ticks: int = 10
    """So data groups elect after 3-6 s of silence."""
    metadata_tick_seconds: float = 0.15
    """One heartbeat of the metadata group: faster, because everything waits for its leader and there is one group only."""
    metadata_election_ticks: int = 10
    """The metadata group elects after 1.5-3 s."""
    refused_campaign_min_seconds: float = 0.2
    """The least wait before a follower campaigns whose leader's process is gone: time for the others to notice it too."""
    refused_campaign_max_seconds: float = 1.5
    """When a leader's process refuses connections the first of its followers pre-votes after a time in this range, which
    differs from group to group."""
    campaign_turn_seconds: float = 0.4
    """How much later the next follower does: more than an election takes."""
    leadership_publish_seconds: float = 10.0
    """How often a node repeats to all others what it leads, for whoever missed the change."""
    retention_check_seconds: float = 5.0
    """How often housekeeping looks at every replica: how late retention may be."""
    controller_seconds: float = 0.5
    """How often each node's reconciler looks, which on the metadata leader is the controller."""
    catch_up_seconds: float = 600.0
    """For so long a learner that catches up holds back the deletion of old records; then it gets another snapshot."""
    connect_timeout_seconds: float = 1.0
    """A connection to a peer that takes longer is given up: its host is gone or cut off."""
    reconnect_min_seconds: float = 0.05
    """The first pause before connecting to a lost peer again; each further one is twice as long."""
    reconnect_max_seconds: float = 1.0
    """The longest pause: how late a peer that came back may be noticed."""
    handshake_timeout_seconds: float = 3.0
    """A new connection that has not said who it is by then is closed."""
    unacked_data_timeout_seconds: float = 3.0
    """TCP gives a peer link up when sent data is not acknowledged for so long (a link that came back must not wait
    for the kernel's exponential retransmission)."""
    read_index_seconds: float = 2.0
    """A read confirmation that takes longer was lost with its messages; the reader is told to ask again."""
    group_tick_seconds: float = 0.1
    """How often the coordinator of consumer groups looks: how long joins are gathered before an assignment is computed."""
    session_min_seconds: float = 1.0
    """The shortest session a member may ask for: three heartbeats, and a coordinator that fails over within it."""
    session_max_seconds: float = 1800.0
    """The longest: so long a partition may have nobody who reads it."""
    session_seconds: float = 45.0
    """A member's session when it does not say: Kafka's."""
    rebalance_seconds: float = 300.0
    """How long a member that does not say may take to give up a partition: Kafka's max.poll.interval.ms."""
    assignor_seconds_max: float = 10.0
    """How long an assignor may compute before it is given up."""
    offsets_retention_seconds: float = 7 * 86_400.0
    """For so long the offsets of a group without members are kept: Kafka's offsets.retention.minutes."""
    stall_seconds: float = 0.5
    """A loop pass later than this is a stall (stacks are dumped by the watchdog)."""
    shutdown_seconds: float = 30.0
    """The longest orderly shutdown: leaderships are handed over within it."""

    def election_seconds(self, group_id: GroupId) -> float:
        """The shortest election timeout of a group."""
        if group_id == METADATA_GROUP_ID:
            return self.metadata_tick_seconds * self.metadata_election_ticks
        return self.data_tick_seconds * self.data_election_ticks
