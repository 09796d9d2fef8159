"""Every bound of a broker process in one place, each with the reason for its default."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

from raftmq.types import METADATA_GROUP_ID, GroupId

MIB = 1024 * 1024
GIB = 1024 * MIB

FILES_PER_REPLICA = 3
"""File descriptors of an open LMDB file: the data, once more for synchronous writes, and the lock file."""
FILES_PER_PEER = 7
"""File descriptors of one peer: three channels in each direction, and one connection to its client port."""
OPEN_FILES_MIN = 512
"""The fewest file descriptors that a broker starts with: half for replicas, half for the engine and connections."""
ENGINE_FILES = 96
"""File descriptors reserved for the engine: the registry, the lock, listeners, event loops, gRPC's threads, child processes,
and the new files that snapshots and compaction write (31 are open in an idle broker)."""
ACCEPT_FILES = 32
"""File descriptors reserved for accepting: a connection beyond a port's limit needs one until it, or an older one, is closed.
The loop accepts one connection of a port in one step, so a few are enough."""
ADDRESS_SPACE_BASE_BYTES = 4 * GIB
"""Address space reserved for everything but the maps of replica files: code, stacks, heaps and budgets."""
SPARE_MAPS = 6
"""Maps reserved for the metadata replica, for the registry and for new files that replace old ones."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Process-wide budgets in bytes and counts. Exceeding one answers `THROTTLED`, never grows memory."""

    uncommitted_bytes_max: int = 64 * MIB
    """Payload proposed on this broker and not yet applied, over all groups: what a client can make us hold."""
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
    known_boots_max: int = 1024
    """Other brokers whose latest boot is remembered, also of those removed: more than a cluster ever has."""
    peers_learned_max: int = 256
    """Replicas of one group whose broker is learned from their messages, before metadata names it: more than one group has."""
    groups_ahead_max: int = 10_000
    """Partitions newer than this broker's copy of metadata whose leaders are remembered: what one change of topics may make."""
    peer_read_buffer_bytes_max: int = 192 * MIB
    """Read buffers of inbound peer connections together: a dozen peers that send the largest frames on two channels."""
    snapshot_chunk_bytes: int = 512 * 1024
    """State rows in one frame of a snapshot: as much as an append carries, so that the receiver's loop never works on one
    frame for long."""
    snapshot_memory_bytes_max: int = 64 * MIB
    """Snapshots that arrive and are not on disk yet, all together. How large a snapshot may be is the disk's business."""
    snapshot_unwritten_bytes_max: int = 4 * MIB
    """Rows of snapshots that one peer has sent and the disk has not taken. Beyond it the peer's snapshots are not read."""
    snapshot_spool_memory_bytes: int = 256 * 1024
    """Of an arriving snapshot, before it goes to a file: most snapshots of partitions are smaller and need none."""
    snapshot_spool_files_max: int = 48
    """Files of arriving snapshots: a descriptor each, part of what is reserved for the engine."""
    snapshot_spool_disk_bytes_min: int = 64 * MIB
    """Arriving snapshots may take so much of the disk even below its reserve: a replica that is behind must be repaired."""
    snapshot_streams_max: int = 4
    """Snapshots sent at once: the rest wait, metadata first."""
    client_reader_threads: int = 4
    """Threads for clients' reads of records that memory does not hold: enough that one slow disk read holds up few others."""
    catch_up_threads: int = 2
    """Threads that read entries for followers that are behind: repair goes on however much clients read."""
    snapshot_threads: int = 2
    """Threads that read the rows of snapshots, and restore those that arrived."""
    upkeep_threads: int = 2
    """Threads for the registry, quarantine, the trash and looks at files: a large file that is deleted must not
    hold up the note that a replica is damaged."""
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
    """Requests of calls on their way in, each counted with 4 MiB; others wait unread, and those that stand still make room.
    And as much again for larger requests of data connections until they are answered: those that wait longest make room."""
    unsent_bytes_max: int = 128 * MIB
    """Answers that their clients have not taken; beyond it the slowest are cancelled."""
    client_connections_max: int = 8192
    """Connections to the client port; more are closed at once."""
    data_connections_max: int = 2048
    """Connections to the data port; one more, and the one silent for longest is closed. The clients of an event loop share two."""
    client_unacked_seconds: float = 20.0
    """TCP gives a data connection up when the client's host acknowledges nothing for so long."""
    client_idle_seconds: float = 300.0
    """A connection to the client port without a call for so long is closed. The SDK opens a new one for its next call."""
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
    """Groups led by this broker that bring up new replicas at once: repair must leave room for the work."""
    consumer_groups_max: int = 5000
    """Consumer groups in the cluster, those without members included: each costs a look every so often."""
    group_members_max: int = 2000
    """Members of one consumer group: every change of one has an assignment for all computed."""
    members_max: int = 10_000
    """Members of all consumer groups: they send a heartbeat every 5 s, and all of them to one broker."""
    subscription_bytes_max: int = 64 * MIB
    """What all members say of themselves (topics, patterns, names): it is metadata, and on every broker."""
    lag_readers_max: int = 500
    """Consumer groups in a topic whose lag one broker shows in its metrics: two series each. The others are counted."""
    partitions_named_max: int = 100
    """Partitions named in an answer beside their number: enough to see which topics are meant, and a table for a person."""
    scrub_bytes_per_second: int = 4 * MIB
    """Of files and rows read back in the background: a terabyte in six days, for a few hundredths of a processor."""
    clock_transfers_max: int = 16
    """Leaderships that a broker whose clock is wrong gives away at each look: an election's worth of messages each."""
    rebuilding_max: int = 16
    """Partitions of the whole cluster that are given new replicas at once after a broker was removed: a few per broker, as one
    full copy of each crosses the network and is written by one broker."""


def within_open_files(limits: Limits, open_files_max: int, replicas: int = 0) -> Limits:
    """Return the limits of a process that may open `open_files_max` files and has `replicas` replica files already.

    Replicas get what `connection_files_max` leaves, but always one. Connections get what replicas leave.
    """
    reserved = min(limits.connection_files_max, open_files_max // 2)
    affordable = max(1, (open_files_max - reserved) // FILES_PER_REPLICA)
    if affordable < limits.partitions_max:
        reason = f"its limit of open files, RLIMIT_NOFILE = {open_files_max}, allows no more"
        limits = replace(limits, partitions_max=affordable, partitions_max_reason=reason)
    left = open_files_max - max(limits.partitions_max, replicas) * FILES_PER_REPLICA
    return _within_connection_files(limits, left)


def _within_connection_files(limits: Limits, files: int) -> Limits:
    """Share the descriptors that replicas leave: the engine and accepting first, then the four ports."""
    connections = files - ENGINE_FILES - ACCEPT_FILES
    wanted = (
        limits.client_connections_max
        + limits.data_connections_max
        + limits.http_connections_max
        + limits.peer_handshakes_max
    )
    peers = limits.peer_connections_max // 3
    if wanted + peers * FILES_PER_PEER <= connections:
        return limits
    http = min(limits.http_connections_max, max(1, connections // 8))
    handshakes = min(limits.peer_handshakes_max, max(1, connections // 16))
    peers = min(peers, max(1, connections // 4 // FILES_PER_PEER))
    data = min(limits.data_connections_max, max(1, connections // 4))
    clients = connections - http - handshakes - data - peers * FILES_PER_PEER
    return replace(
        limits,
        http_connections_max=http,
        peer_handshakes_max=handshakes,
        peer_connections_max=3 * peers,
        peer_strangers_max=min(limits.peer_strangers_max, peers),
        data_connections_max=data,
        client_connections_max=min(limits.client_connections_max, max(1, clients)),
    )


def within_address_space(limits: Limits, address_space_max: int, map_bytes: int) -> Limits:
    """Return the limits of a process that may map so many bytes: each replica file takes `map_bytes` of them."""
    affordable = max(1, (address_space_max - ADDRESS_SPACE_BASE_BYTES) // map_bytes - SPARE_MAPS)
    if affordable >= limits.partitions_max:
        return limits
    reason = f"its limit of address space, RLIMIT_AS = {address_space_max}, allows no more maps of {map_bytes} bytes"
    return replace(limits, partitions_max=affordable, partitions_max_reason=reason)


def within_this_process(limits: Limits, map_bytes: int = 0, replicas: int = 0) -> Limits:
    """Return the limits that hold here: as configured, as far as the operating system allows.

    Args:
        limits: As configured.
        map_bytes: Address space of one replica file. 0: the limit of address space is not looked at.
        replicas: Replica files that are there already.
    """
    address_space_max, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space_max != resource.RLIM_INFINITY and map_bytes:
        limits = within_address_space(limits, address_space_max, map_bytes)
    open_files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return limits if open_files_max == resource.RLIM_INFINITY else within_open_files(limits, open_files_max, replicas)


def why_process_is_too_small(map_bytes: int, replicas: int) -> str | None:
    """Say why a broker with so many replica files cannot run in this process, and what it needs. None when it can."""
    open_files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(OPEN_FILES_MIN, OPEN_FILES_MIN // 2 + replicas * FILES_PER_REPLICA)
    if open_files_max != resource.RLIM_INFINITY and open_files_max < needed:
        return (
            f"this process may open {open_files_max} files (RLIMIT_NOFILE), and a broker with {replicas} replicas needs "
            f"at least {needed}: raise its hard limit (ulimit -Hn, or LimitNOFILE of its systemd unit)"
        )
    address_space_max, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed = ADDRESS_SPACE_BASE_BYTES + (max(1, replicas) + SPARE_MAPS) * map_bytes
    if address_space_max != resource.RLIM_INFINITY and address_space_max < needed:
        return (
            f"this process may map {address_space_max} bytes (RLIMIT_AS), and a broker with {replicas} replicas needs at "
            f"least {needed}, {map_bytes} for each replica file: raise the limit (ulimit -v unlimited), or set map_bytes lower"
        )
    return None


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
    """How often a broker repeats to all others what it leads, for whoever missed the change."""
    retention_check_seconds: float = 5.0
    """How often housekeeping looks at every replica: how late retention may be."""
    controller_seconds: float = 0.5
    """How often each broker's reconciler looks, which on the metadata leader is the controller."""
    catch_up_seconds: float = 600.0
    """For so long a learner that catches up holds back the deletion of old records; then it gets another snapshot."""
    connect_timeout_seconds: float = 1.0
    """A connection to a peer that takes longer is given up: its host is gone or cut off."""
    reconnect_min_seconds: float = 0.05
    """The first pause before connecting to a lost peer again; each further one is twice as long."""
    reconnect_max_seconds: float = 1.0
    """The longest pause: how late a peer that came back may be noticed."""
    rival_heard_seconds: float = 30.0
    """A broker of the same identity that is still heard so long after another one of it came is the original: the other is a copy."""
    rival_silent_seconds: float = 60.0
    """A connection that is silent for so long after a later boot of its broker came is taken for dead, if the kernel keeps it open."""
    handshake_timeout_seconds: float = 3.0
    """A new connection that has not said who it is by then is closed."""
    unacked_data_timeout_seconds: float = 3.0
    """TCP gives a peer link up when sent data is not acknowledged for so long (a link that came back must not wait
    for the kernel's exponential retransmission)."""
    read_index_seconds: float = 2.0
    """A read confirmation that takes longer was lost with its messages; the reader is told to ask again."""
    lag_seconds: float = 1.0
    """How long a scrape may look for the ages of what consumer groups have not read: most are remembered from the one before."""
    describe_seconds: float = 1.0
    """How long a description of the cluster or of a topic waits for other brokers: one that hangs is reported as unknown by then.
    Clients give the broker that they ask two seconds."""
    group_tick_seconds: float = 0.1
    """How often the coordinator of consumer groups looks: how long joins are gathered before an assignment is computed."""
    clock_check_seconds: float = 2.0
    """How often a broker asks the others for their time: how late a clock that was set is noticed there."""
    clock_difference_seconds: float = 10.0
    """A wall clock that differs by more from the majority's is wrong: more than any that is set by NTP or by hand, and less than
    what any retention is counted in."""
    clock_wait_seconds: float = 10.0
    """For so long a broker that has others takes no records before they have said what time it is (see `PeerClocks.is_comparable`)."""
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
    scrub_pass_seconds: float = 86_400.0
    """A pass over every replica's file begins at most so often."""
    suspicion_seconds: float = 600.0
    """A process that has run for so long did not die of what it reads: no file is verified for that any more."""
    stall_seconds: float = 0.5
    """A loop pass later than this is a stall (stacks are dumped by the watchdog)."""
    shutdown_seconds: float = 30.0
    """The longest orderly shutdown as a whole: leaderships are handed over within it, and what hangs longer is left. Then the exit is
    an abnormal one."""

    def election_seconds(self, group_id: GroupId) -> float:
        """The shortest election timeout of a group."""
        if group_id == METADATA_GROUP_ID:
            return self.metadata_tick_seconds * self.metadata_election_ticks
        return self.data_tick_seconds * self.data_election_ticks
