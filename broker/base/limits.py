"""Every bound of a broker process in one place, each with the reason for its default."""

from __future__ import annotations

import resource
from dataclasses import dataclass, replace

from raftmq.types import METADATA_GROUP_ID, GroupId

MIB = 1024 * 1024
GIB = 1024 * MIB

DESCRIPTORS_PER_FILE = 3
"""File descriptors of an open LMDB file: the data, once more for synchronous writes, and the lock file."""
FILES_PER_REPLICA_MAX = 2
"""LMDB files of a replica: that of the log, and that of a queue's state. Which kinds of topics will be created is not known, so that room
is kept for two."""
DESCRIPTORS_PER_REPLICA = FILES_PER_REPLICA_MAX * DESCRIPTORS_PER_FILE
"""File descriptors that are kept for a replica."""
CHANNELS_PER_PEER = 4
"""Connections to one peer, and as many from it: control, appends, snapshots, requests."""
FILES_PER_PEER = 2 * CHANNELS_PER_PEER
"""File descriptors of one peer: its channels in each direction."""
OPEN_FILES_MIN = 512
"""The fewest file descriptors that a broker starts with: half for replicas, half for the engine and connections."""
ENGINE_FILES = 96
"""File descriptors reserved for the engine: the registry, the lock, listeners, event loops, gRPC's threads, child processes,
and the new files that snapshots and compaction write (31 are open in an idle broker)."""
ACCEPT_FILES = 32
"""File descriptors reserved for accepting: a connection beyond a port's limit needs one until it, or an older one, is closed.
The loop accepts one connection of a port in one step, so a few are enough."""
ENTRY_BYTES_MAX = 6 * MIB
"""Payload of one log entry of any kind. A peer frame carries at least one entry, so an entry that no frame holds would never be replicated,
and each attempt would cut the channel that all groups share. The largest entry by design is a batch of 3.5 MiB, or a request of 4 MiB."""
ADDRESS_SPACE_BASE_BYTES = 4 * GIB
"""Address space reserved for everything but the maps of replica files: code, stacks, heaps and budgets."""
SPARE_MAPS = 6
"""Maps reserved for the metadata replica, for the registry and for new files that replace old ones."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of the process in bytes and counts. A request that exceeds one is answered with `THROTTLED`: memory never grows beyond."""

    uncommitted_bytes_max: int = 64 * MIB
    """Payload that was proposed on this broker and is not yet applied, over all groups. It bounds the memory that clients can occupy."""
    inbound_append_bytes_max: int = 64 * MIB
    """Entries received from leaders that are not yet durable here. Beyond it incoming appends are dropped, and the leader probes."""
    peer_outbox_bytes_max: int = 16 * MIB
    """Unsent bytes to one peer on one channel. Beyond it messages are dropped and the peer is probed."""
    recent_entries_bytes_max: int = 128 * MIB
    """Recent batches kept for followers and tailing consumers: a few seconds at full speed."""
    frame_bytes_max: int = 8 * MIB
    """One peer frame. An append carries up to 512 KiB, or one batch of at most 3.5 MiB."""
    peer_handshakes_max: int = 128
    """Inbound peer connections that have not identified themselves. Beyond it the oldest of them is closed."""
    peer_connections_max: int = 1024
    """Identified inbound peer connections, four per peer. Beyond it the one that has been silent longest is closed."""
    peer_strangers_max: int = 64
    """Peers that are not in this broker's metadata but connected to it, so that it connects to them too."""
    known_boots_max: int = 1024
    """Other brokers, removed ones included, whose latest boot is remembered: more than a cluster ever has."""
    peers_learned_max: int = 256
    """Replicas of one group whose broker is learned from their messages, before metadata names it: more than one group has."""
    groups_ahead_max: int = 10_000
    """Partitions newer than this broker's copy of metadata whose leaders are remembered: as many as one change of topics may create."""
    peer_requests_max: int = 1024
    """Unanswered requests between two brokers, in each direction. Beyond it further ones are answered with `THROTTLED`."""
    peer_request_bytes_max: int = 6 * MIB
    """One request between brokers. A client's request, which another broker may have to answer, has at most 4 MiB."""
    peer_requests_bytes_max: int = 32 * MIB
    """Unanswered requests between two brokers, in each direction: eight of the largest that clients send."""
    inbound_requests_bytes_max: int = 128 * MIB
    """Unanswered requests of all other brokers together."""
    peer_response_bytes_max: int = 32 * MIB
    """One response between brokers. The description of a group with 100,000 partitions takes a fifth of it."""
    peer_visit_bytes_max: int = 16 * 1024
    """One request of a broker that belongs to no cluster yet: its registration, whose texts have at most 8 KiB together."""
    peer_read_buffer_bytes_max: int = 192 * MIB
    """Read buffers of all inbound peer connections together: enough for a dozen peers that send the largest frames on two channels."""
    snapshot_chunk_bytes: int = 512 * 1024
    """State rows in one frame of a snapshot. This is as much as an append carries, so that the receiver's event loop never spends long
    on one frame."""
    snapshot_memory_bytes_max: int = 64 * MIB
    """Received snapshots that are not yet on disk, all together. The disk bounds the size of a snapshot."""
    snapshot_unwritten_bytes_max: int = 4 * MIB
    """Rows of snapshots that one peer has sent and the disk has not accepted. Beyond it no more snapshots of the peer are read."""
    snapshot_spool_memory_bytes: int = 256 * 1024
    """Memory for one snapshot that is being received. The rest goes to a file. Most snapshots of partitions are smaller and need none."""
    snapshot_spool_files_max: int = 48
    """Files of snapshots that are being received. Each uses a descriptor of those that are reserved for the engine."""
    snapshot_spool_disk_bytes_min: int = 64 * MIB
    """Disk space for received snapshots even below the disk's reserve, because a replica that is behind must be repaired."""
    snapshot_copy_bytes_min: int = 1 * MIB
    """A state file with fewer bytes in use is streamed from the file itself: a few frames do not keep its pages for long."""
    snapshot_copies_max: int = 8
    """Copies of state files from which snapshots are sent, as many as streams and as many again that wait for another receiver. Each uses a
    descriptor of those that are reserved for the engine."""
    snapshot_streams_max: int = 4
    """Snapshots sent simultaneously. The others wait, metadata first."""
    client_reader_threads: int = 4
    """Threads for clients' reads of records that are not in memory: enough that one slow disk read delays few others."""
    catch_up_threads: int = 2
    """Threads that read entries for followers that are behind. Clients' reads cannot delay this repair."""
    snapshot_threads: int = 2
    """Threads that read the rows of snapshots, and restore received ones."""
    upkeep_threads: int = 2
    """Threads for the registry, quarantine, the trash and checks of files. With more than one, deleting a large file does not delay
    the record that a replica is damaged."""
    row_threads: int = 2
    """Threads that read rows of queues whose messages are on disk."""
    queue_recent_entries_bytes_max: int = 16 * MIB
    """Recent batches of one queue, a part of `recent_entries_bytes_max`. A queue needs them for messages that are leased soon after they
    were enqueued. Messages that wait for longer are read from disk."""
    write_back_rows_max: int = 4_000
    """Changed rows of a queue after which they are written to its file. Encoding them occupies the event loop for about 10 ms."""
    write_back_backlog_rows_max: int = 10_000
    """Changed rows of a queue with which its appends are throttled until some are written."""
    write_back_bytes_max: int = 32 * MIB
    """Payload bytes of a queue's log after which its rows are written. A restart replays as many."""
    campaigns_max: int = 64
    """Simultaneous campaigns in one process (metadata and transfers exempt), so that a mass failover causes no storm of elections."""
    parked_polls_max: int = 4096
    """Long polls that may wait simultaneously."""
    cold_polls_max: int = 8
    """Polls that may wait for records from disk simultaneously. Each may already hold an answer of `poll_bytes_max`."""
    poll_bytes_max: int = 3 * MIB + MIB // 2
    """Batches in one Poll response: less than gRPC's message limit of 4 MiB."""
    grpc_message_bytes_max: int = 4 * MIB
    """One gRPC message in either direction: gRPC's own default, so that no client needs to be told."""
    concurrent_rpcs_max: int = 12_288
    """Simultaneous calls. At most half of them may be polls. Streams and other calls have lower limits of their own, so that no kind
    of call can occupy the slots of the others."""
    append_streams_max: int = 512
    """Simultaneous append streams. Beyond it the one that has been idle longest is ended. Each may hold one request."""
    queue_streams_max: int = 1024
    """Simultaneous streams of consumers of queue topics: a client has one to each broker. Beyond it the one that has been idle longest is
    ended, and its client opens another."""
    receiving_bytes_max: int = 256 * MIB
    """Requests that are being received, each counted with 4 MiB. Further ones wait unread, and idle ones are evicted.
    The same number bounds larger requests on data connections until they are answered. There, the requests that wait longest are evicted.
    """
    unsent_bytes_max: int = 128 * MIB
    """Responses that clients have not read. Beyond it the calls of the slowest clients are cancelled."""
    client_connections_max: int = 8192
    """Connections to the client port. Further ones are closed immediately."""
    data_connections_max: int = 2048
    """Connections to the data port. For one more, the connection that was silent longest is closed. The clients of an event loop share three."""
    data_handshakes_max: int = 1024
    """Connections to the data port that have not said HELLO. Beyond it the oldest of them is closed. As many as the kernel can hand over in
    one turn of the event loop, because after a restart of the broker all clients connect simultaneously."""
    client_unacked_seconds: float = 20.0
    """TCP gives up a data connection if the client's host acknowledges nothing for so long."""
    client_idle_seconds: float = 300.0
    """A connection to the client port without a call for this long is closed. The SDK opens a new one for its next call."""
    client_handshake_seconds: float = 5.0
    """A connection to the client port that has not started HTTP/2 within this time is closed."""
    http_connections_max: int = 256
    """Connections to the HTTP port. Beyond it the one that has waited longest for its request or reader is closed."""
    http_exchange_seconds: float = 10.0
    """Time for a connection's first request to arrive, be answered and be read. It applies to each further request too."""
    partitions_max: int = 1000
    """Partition replicas in one process, enforced when a topic is created. The process's limit of open files may lower it."""
    partitions_max_reason: str = "its setting partitions_max"
    """The origin of `partitions_max`, for the error message of a refusal."""
    brokers_expected: int = 1
    """Brokers that the cluster is meant to begin with. Until they have registered, a topic is not given fewer replicas silently."""
    connection_files_max: int = 1024
    """File descriptors that replicas leave to connections, logs and the registry (at most half of all descriptors)."""
    catching_up_max: int = 8
    """Groups led by this broker that bring up new replicas simultaneously, so that repair leaves capacity for clients."""
    consumer_groups_max: int = 5000
    """Consumer groups in the cluster, those without members included. Each is checked regularly, which takes time."""
    group_members_max: int = 2000
    """Members of one consumer group. Every change of one member computes an assignment for all of them."""
    members_max: int = 10_000
    """Members of all consumer groups. They send a heartbeat every 5 s, all of them to one broker."""
    subscription_bytes_max: int = 64 * MIB
    """Size of all members' descriptions (topics, patterns, names). They are metadata, which every broker stores."""
    lag_readers_max: int = 500
    """Pairs of consumer group and topic whose lag one broker shows in its metrics, with two series each. The others are counted."""
    partitions_named_max: int = 100
    """Partitions listed by name in a response beside their number: enough to see the topics concerned, and readable as a table."""
    scrub_bytes_per_second: int = 4 * MIB
    """Bytes of files and rows read back in the background per second: a terabyte in six days, for a few hundredths of a processor."""
    clock_transfers_max: int = 16
    """Leaderships that a broker with a wrong clock transfers in each check, because each causes the messages of an election."""
    leader_transfers_max: int = 4
    """Leaderships that a broker gives to preferred leaders in each round of its reconciler, because each causes the messages of an election."""
    copy_burst_seconds: float = 0.1
    """The share of a second whose bytes of planned moves may leave together, so that a limited rate stays even."""
    rebuilding_max: int = 16
    """Partitions of the whole cluster that get new replicas simultaneously after a broker was removed: a few per broker, because a full
    copy of each crosses the network and is written by one broker."""


def within_open_files(limits: Limits, open_files_max: int, replica_files: int = 0) -> Limits:
    """Return the limits of a process that may open `open_files_max` files and has so many files of replicas already.

    Replicas get what `connection_files_max` and the metadata's replica leave, but always one, so that a broker with as many can be
    restarted (`why_process_is_too_small`). Connections get what replicas leave.
    """
    reserved = min(limits.connection_files_max, open_files_max // 2) + DESCRIPTORS_PER_FILE
    affordable = max(1, (open_files_max - reserved) // DESCRIPTORS_PER_REPLICA)
    if affordable < limits.partitions_max:
        reason = f"its limit of open files, RLIMIT_NOFILE = {open_files_max}, allows no more"
        limits = replace(limits, partitions_max=affordable, partitions_max_reason=reason)
    wanted = limits.partitions_max * DESCRIPTORS_PER_REPLICA + DESCRIPTORS_PER_FILE
    taken = max(wanted, replica_files * DESCRIPTORS_PER_FILE)
    return _within_connection_files(limits, open_files_max - taken)


def _within_connection_files(limits: Limits, files: int) -> Limits:
    """Share the descriptors that replicas leave: the engine and accepting first, then the four ports."""
    connections = files - ENGINE_FILES - ACCEPT_FILES
    wanted = (
        limits.client_connections_max
        + limits.data_connections_max
        + limits.data_handshakes_max
        + limits.http_connections_max
        + limits.peer_handshakes_max
    )
    peers = limits.peer_connections_max // CHANNELS_PER_PEER
    if wanted + peers * FILES_PER_PEER <= connections:
        return limits
    http = min(limits.http_connections_max, max(1, connections // 8))
    handshakes = min(limits.peer_handshakes_max, max(1, connections // 16))
    peers = min(peers, max(1, connections // 4 // FILES_PER_PEER))
    data = min(limits.data_connections_max, max(1, connections // 4))
    data_handshakes = min(limits.data_handshakes_max, max(1, connections // 16))
    clients = connections - http - handshakes - data - data_handshakes - peers * FILES_PER_PEER
    return replace(
        limits,
        http_connections_max=http,
        peer_handshakes_max=handshakes,
        peer_connections_max=CHANNELS_PER_PEER * peers,
        peer_strangers_max=min(limits.peer_strangers_max, peers),
        data_connections_max=data,
        data_handshakes_max=data_handshakes,
        client_connections_max=min(limits.client_connections_max, max(1, clients)),
    )


def within_address_space(limits: Limits, address_space_max: int, map_bytes: int) -> Limits:
    """Return the limits of a process with a limited address space, of which each replica file takes `map_bytes`."""
    maps = (address_space_max - ADDRESS_SPACE_BASE_BYTES) // map_bytes - SPARE_MAPS
    affordable = max(1, maps // FILES_PER_REPLICA_MAX)
    if affordable >= limits.partitions_max:
        return limits
    reason = f"its limit of address space, RLIMIT_AS = {address_space_max}, allows no more maps of {map_bytes} bytes"
    return replace(limits, partitions_max=affordable, partitions_max_reason=reason)


def within_this_process(limits: Limits, map_bytes: int = 0, replica_files: int = 0) -> Limits:
    """Return the configured limits, lowered to the limits that the operating system sets for this process.

    Args:
        limits: The configured limits.
        map_bytes: Address space of one replica file. With 0 the limit of the address space is not checked.
        replica_files: Number of existing replica files.
    """
    address_space_max, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space_max != resource.RLIM_INFINITY and map_bytes:
        limits = within_address_space(limits, address_space_max, map_bytes)
    open_files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return (
        limits if open_files_max == resource.RLIM_INFINITY else within_open_files(limits, open_files_max, replica_files)
    )


def why_process_is_too_small(map_bytes: int, replica_files: int) -> str | None:
    """Return why a broker with this many replica files cannot run in this process, and what it needs. None if it can."""
    open_files_max, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max(OPEN_FILES_MIN, OPEN_FILES_MIN // 2 + replica_files * DESCRIPTORS_PER_FILE)
    if open_files_max != resource.RLIM_INFINITY and open_files_max < needed:
        return (
            f"this process may open {open_files_max} files (RLIMIT_NOFILE), and a broker with {replica_files} replica files "
            f"needs at least {needed}: raise its hard limit (ulimit -Hn, or LimitNOFILE of its systemd unit)"
        )
    address_space_max, _ = resource.getrlimit(resource.RLIMIT_AS)
    needed = ADDRESS_SPACE_BASE_BYTES + (max(1, replica_files) + SPARE_MAPS) * map_bytes
    if address_space_max != resource.RLIM_INFINITY and address_space_max < needed:
        return (
            f"this process may map {address_space_max} bytes (RLIMIT_AS), and a broker with {replica_files} replica files "
            f"needs at least {needed}, {map_bytes} for each: raise the limit (ulimit -v unlimited), or set map_bytes lower"
        )
    file_bytes_max, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if file_bytes_max != resource.RLIM_INFINITY and file_bytes_max < map_bytes:
        return (
            f"the files of this process may grow to {file_bytes_max} bytes (RLIMIT_FSIZE), and a replica's file to {map_bytes} bytes "
            "(map_bytes): raise the limit (ulimit -f unlimited, or LimitFSIZE of its systemd unit)"
        )
    return None


@dataclass(frozen=True, slots=True)
class Timing:
    """Times in seconds. The defaults are for production. Tests and the simulator scale them."""

    data_tick_seconds: float = 0.3
    """Heartbeat interval of data groups."""
    data_election_ticks: int = 10
    """Ticks before an election: data groups elect after 3-6 s of silence."""
    metadata_tick_seconds: float = 0.15
    """Heartbeat interval of the metadata group. It is shorter because everything waits for its leader and there is only one group."""
    metadata_election_ticks: int = 10
    """Ticks before an election: the metadata group elects after 1.5-3 s of silence."""
    refused_campaign_min_seconds: float = 0.2
    """The least wait before a follower campaigns after its leader's process died, so that the other followers notice it too."""
    refused_campaign_max_seconds: float = 1.5
    """When a leader's process refuses connections, the first of its followers pre-votes after a time in this range. The time differs from
    group to group."""
    campaign_turn_seconds: float = 0.4
    """The delay of each further follower's campaign: more than an election takes."""
    leadership_publish_seconds: float = 10.0
    """Interval at which a broker repeats its leaderships to all others, for those that missed a change."""
    snapshot_read_seconds: float = 300.0
    """Time for which a snapshot may be streamed from a replica's file itself, because its read transaction keeps all pages that are freed
    in the meantime. Streams from a copy have no limit."""
    snapshot_stalled_seconds: float = 60.0
    """Time after which a snapshot whose receiver accepts nothing is given up. The log is not truncated while one is sent."""
    snapshot_resume_seconds: float = 60.0
    """Time for which the log of a queue is not truncated after a snapshot was interrupted, so that the rows sent so far remain of use. A
    receiver that fails repeatedly gets it once."""
    snapshot_idle_seconds: float = 600.0
    """Time for which a copy of a state file, and the received part of an interrupted snapshot, wait to be used again."""
    retention_check_seconds: float = 5.0
    """Interval at which housekeeping checks every replica. Retention may be late by as much."""
    controller_seconds: float = 0.5
    """Interval of each broker's reconciler. On the metadata leader it is the controller."""
    move_stuck_seconds: float = 180.0
    """Time after which a move whose new replica makes no progress is given up. It is longer than the restart of a broker or its machine."""
    size_check_seconds: float = 600.0
    """Interval at which the controller asks for the sizes of all partitions, to even the bytes of brokers. It is long, because moving data for it
    again and again would cost more than it brings."""
    stable_seconds: float = 10.0
    """Time for which a broker must have been connected, and the same process, before it is given replicas and leaderships. A broker that
    restarts repeatedly would otherwise attract them each time."""
    catch_up_seconds: float = 600.0
    """Time for which a learner that catches up delays the deletion of old records. After it the learner gets another snapshot."""
    connect_timeout_seconds: float = 1.0
    """A connection attempt to a peer that takes longer is given up: the host is down or unreachable."""
    reconnect_min_seconds: float = 0.05
    """The first pause before reconnecting to a lost peer. Each further pause is twice as long."""
    reconnect_max_seconds: float = 1.0
    """The longest pause before reconnecting. A peer that came back may be noticed this late."""
    rival_heard_seconds: float = 30.0
    """If a process with the same identity is still heard this long after another one appeared, it is the original: the other runs on a
    copy."""
    rival_silent_seconds: float = 60.0
    """A connection that is silent for this long after a later boot of its broker appeared counts as dead, even if the kernel keeps it."""
    handshake_timeout_seconds: float = 3.0
    """A new connection that has not identified itself within this time is closed."""
    visit_seconds: float = 10.0
    """A connection of a broker that is no member yet, or looks for its cluster, is closed after this time."""
    unacked_data_timeout_seconds: float = 3.0
    """TCP gives up a peer link when sent data is not acknowledged for this long. Without it a restored link would wait for the kernel's
    exponential retransmission."""
    read_index_seconds: float = 2.0
    """A read confirmation that takes longer counts as lost. The reader is told to ask again."""
    lag_seconds: float = 1.0
    """Time that a scrape may spend to look up the ages of records that consumer groups have not read. Most ages are cached."""
    describe_seconds: float = 1.0
    """Time that a description of the cluster or a topic waits for other brokers. One that does not answer is reported as unknown. It is
    shorter than the two seconds that clients give the broker that they ask."""
    group_tick_seconds: float = 0.1
    """Interval of the coordinator of consumer groups: joins within it are gathered before an assignment is computed."""
    mark_renewal_seconds: float = 600.0
    """Time after which a running broker renews the mark of its data directory. A copy of a directory whose broker stops before its next
    renewal is not recognized, so a day would be too long. A renewal costs an entry of about 1.3 KB in metadata, and the latest
    256 marks reach back almost two days."""
    clock_check_seconds: float = 2.0
    """Interval at which a broker asks the others for their time. A clock that was set is noticed this late."""
    clock_difference_seconds: float = 10.0
    """A wall clock that differs by more from the majority's is wrong. This is more than the error of NTP or of a clock set by hand, and
    less than the unit of any retention."""
    clock_wait_seconds: float = 10.0
    """The longest time that a broker with peers accepts no records while it waits for their clocks (see `PeerClocks.is_comparable`)."""
    session_min_seconds: float = 1.0
    """The shortest session that a member may request: three heartbeats, and long enough for a failover of the coordinator."""
    session_max_seconds: float = 1800.0
    """The longest session that a member may request. A partition of a dead member may be without a reader for this long."""
    session_seconds: float = 45.0
    """The session of a member that requests none, as in Kafka."""
    rebalance_seconds: float = 300.0
    """Time to give up a partition, for a member that requests none: Kafka's max.poll.interval.ms."""
    assignor_seconds_max: float = 10.0
    """The longest time that an assignor may compute."""
    offsets_retention_seconds: float = 7 * 86_400.0
    """Time for which the offsets of a group without members are kept: Kafka's offsets.retention.minutes."""
    write_back_seconds: float = 5.0
    """The longest time for which changed rows of a queue are only in memory and in its log. A longer time writes fewer rows: a message
    that is finished within it never becomes one."""
    scrub_pass_seconds: float = 86_400.0
    """The least interval between two passes over all replicas' files."""
    suspicion_seconds: float = 600.0
    """A process that runs for this long did not die of reading its files, so the abnormal exits recorded for them are reset to 0."""
    slow_request_seconds: float = 1.0
    """A request that takes longer is logged, an append with its phases. It is many times what a healthy broker needs. 0: no request is logged."""
    stall_seconds: float = 0.5
    """A delay of the event loop that counts as a stall. The watchdog then dumps all stacks."""
    shutdown_seconds: float = 30.0
    """The longest orderly shutdown as a whole. Leaderships are transferred within it. Work that takes longer is abandoned, and the exit
    counts as abnormal."""

    def election_seconds(self, group_id: GroupId) -> float:
        """Return the shortest election timeout of a group."""
        if group_id == METADATA_GROUP_ID:
            return self.metadata_tick_seconds * self.metadata_election_ticks
        return self.data_tick_seconds * self.data_election_ticks
