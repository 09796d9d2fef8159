"""Define every metric of /metrics with its type, labels and meaning. The page and the reference page are written from it.

Names follow Prometheus: base units, `_total` for counters, and labels that cannot grow without bound. No metric has a label for a
client, connection, producer or follower. Only two kinds have labels that grow with use. The metrics of partitions have the labels
topic and partition, with one series for every replica on the broker, of which there are at most `partitions_max`. Consumer lag has the
labels group and topic, of which a broker shows at most `lag_readers_max`.

Source: https://prometheus.io/docs/practices/naming/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

Kind = Literal["counter", "gauge", "histogram"]


class Metric(NamedTuple):
    """One metric."""

    name: str
    kind: Kind
    text: str
    labels: tuple[str, ...] = ()


_BROKER: Final = (
    Metric(
        "raftmq_build_info",
        "gauge",
        "Always 1; labels with the versions of RaftMQ and Python",
        ("version", "python_version"),
    ),
    Metric(
        "raftmq_broker_info",
        "gauge",
        "Always 1; labels that identify the broker",
        ("broker_id", "cluster_id", "host", "rack"),
    ),
    Metric("raftmq_ready", "gauge", "1 when the broker is ready, as /readyz reports"),
    Metric("raftmq_not_ready", "gauge", "1 for each reason why the broker is not ready, 0 for the others", ("reason",)),
    Metric(
        "raftmq_background_failures_total",
        "counter",
        "Failures of background work because of a defect, after which it was restarted, by kind of work",
        ("loop",),
    ),
    Metric(
        "raftmq_other_clusters", "gauge", "Addresses of brokers at which another cluster answered in the last minute"
    ),
    Metric("raftmq_process_threads", "gauge", "Threads of the process"),
    Metric(
        "raftmq_disk_free_bytes",
        "gauge",
        "Free space on the volume of the data directory, less the size of a released ballast file",
    ),
    Metric("raftmq_disk_reserve_bytes", "gauge", "Free space below which appends are refused"),
    Metric(
        "raftmq_clock_offset_seconds",
        "gauge",
        "This broker's wall clock minus the majority's, or without a majority minus the clock that differs most",
    ),
    Metric("raftmq_writes_refused", "gauge", "1 while appends are refused because of the disk reserve"),
)

_REQUESTS: Final = (
    Metric(
        "raftmq_requests_total",
        "counter",
        "Answered requests, by method and error code (OK; CANCELLED: the client gave up). "
        "Each request of an AppendStream counts",
        ("method", "code"),
    ),
    Metric(
        "raftmq_request_seconds",
        "histogram",
        "Time to answer a request, by kind: append, poll (including its wait for records), other",
        ("kind",),
    ),
    Metric(
        "raftmq_partition_refusals_total",
        "counter",
        "Refused partitions within answered requests, by method and error code",
        ("method", "code"),
    ),
    Metric(
        "raftmq_slow_requests_total",
        "counter",
        "Requests that took longer than slow_request_seconds, by method. Methods that wait on purpose do not count: polls, WaitFinished, CreateTopic, AddPartitions, TransferLeader",
        ("method",),
    ),
    Metric("raftmq_streams", "gauge", "Open streams", ("method",)),
    Metric("raftmq_parked_polls", "gauge", "Long polls waiting for records"),
    Metric("raftmq_topology_watchers", "gauge", "Clients watching the topology"),
    Metric("raftmq_client_received_bytes_total", "counter", "Bytes of requests on the client port"),
    Metric("raftmq_client_sent_bytes_total", "counter", "Bytes of answers on the client port"),
    Metric("raftmq_appended_batches_total", "counter", "Batches that were committed for clients"),
    Metric("raftmq_appended_bytes_total", "counter", "Bytes of batches that were committed for clients"),
    Metric("raftmq_polled_batches_total", "counter", "Batches sent to clients"),
    Metric("raftmq_polled_bytes_total", "counter", "Bytes of batches sent to clients"),
    Metric("raftmq_evictions_total", "counter", "Idle calls evicted because other calls needed their budget", ("budget",)),
)  # fmt: skip

_COMMITS: Final = (
    Metric(
        "raftmq_commit_seconds",
        "histogram",
        "Time from submitting a write until the event loop knows that it is durable",
    ),
    Metric("raftmq_commit_disk_seconds", "histogram", "Time of a write's transaction on the disk, including its fsync"),
    Metric("raftmq_commit_entries", "histogram", "Entries (batches, commands) in a write. 0 means state only"),
    Metric("raftmq_commit_bytes", "histogram", "Payload of the entries in a write"),
    Metric("raftmq_commit_oldest_seconds", "gauge", "Age of the oldest write in flight"),
    Metric(
        "raftmq_scrubbed_bytes_total", "counter", "Bytes of replica files and their rows read back in the background"
    ),
    Metric(
        "raftmq_scrub_last_pass_timestamp_seconds",
        "gauge",
        "Time at which the last pass over every replica here ended, in seconds since the epoch. 0 before the first pass",
    ),
    Metric(
        "raftmq_scrub_damaged_replicas_total", "counter", "Replicas that were found damaged when they were read back"
    ),
    Metric("raftmq_map_used_ratio", "gauge", "Used part (0-1) of the map of the fullest replica file"),
)

_LOOP: Final = (
    Metric(
        "raftmq_loop_lag_seconds", "histogram", "Lag of the event loop, measured ten times a second by another thread"
    ),
    Metric(
        "raftmq_loop_lag_max_seconds",
        "gauge",
        "Largest lag of the event loop in the last minute, including a present one",
    ),
    Metric("raftmq_loop_stalls_total", "counter", "Stalls of the event loop"),
    Metric(
        "raftmq_space_returned_bytes_total",
        "counter",
        "Bytes of deleted data that replica files returned to the volume",
    ),
    Metric("raftmq_engine_pass_seconds", "histogram", "Time of one pass of the engine over the groups with work"),
    Metric("raftmq_gc_pause_seconds", "histogram", "Time of one garbage collection"),
    Metric("raftmq_scrape_loop_seconds", "gauge", "Time that this scrape occupied the event loop"),
)

_GROUPS: Final = (
    Metric("raftmq_groups", "gauge", "Raft groups with a replica here"),
    Metric("raftmq_groups_led", "gauge", "Raft groups led here"),
    Metric("raftmq_groups_without_leader", "gauge", "Raft groups whose replica here knows no leader"),
    Metric("raftmq_elections_started_total", "counter", "Elections in which a replica here was a candidate"),
    Metric("raftmq_elections_won_total", "counter", "Leaderships that replicas here gained"),
    Metric("raftmq_leaderships_lost_total", "counter", "Leaderships that replicas here lost or transferred"),
    Metric("raftmq_metadata_is_leader", "gauge", "1 when this broker leads the metadata group"),
    Metric("raftmq_metadata_term", "gauge", "Term of the metadata group"),
    Metric("raftmq_producer_names", "gauge", "Producers with a name that the cluster remembers"),
    Metric(
        "raftmq_producer_names_used_ratio",
        "gauge",
        "Used part (0-1) of the maximum number of producers with a name. At 1 new names are refused",
    ),
    Metric("raftmq_metadata_applied_index", "gauge", "Metadata revision that this broker has"),
    Metric(
        "raftmq_partitions_without_leader",
        "gauge",
        "Partitions of the cluster without a leader, as far as this broker can tell: their leader resigned, or has been "
        "unreachable for several election timeouts",
    ),
    Metric(
        "raftmq_under_replicated_partitions",
        "gauge",
        "Partitions led here with fewer replicas than their topic wants, or with a replica that does not vote, is not connected, "
        "is known to be damaged, or has not acknowledged the leader's recent entries",
    ),
    Metric(
        "raftmq_metadata_voters_behind",
        "gauge",
        "On the broker that leads the metadata: metadata voters that are not connected or do not keep up. 0 elsewhere",
    ),
    Metric("raftmq_consumer_groups", "gauge", "Consumer groups of the cluster, including those without members"),
    Metric("raftmq_consumer_group_members", "gauge", "Members of all consumer groups of the cluster"),
    Metric(
        "raftmq_consumer_group_members_expired_total",
        "counter",
        "Members that this broker as coordinator removed from their consumer groups because they sent no heartbeats",
    ),
    Metric(
        "raftmq_consumer_group_assignments_total", "counter", "Assignments that this broker computed as coordinator"
    ),
    Metric(
        "raftmq_consumer_lag_records",
        "gauge",
        "Records that the consumer group has not read yet in the topic's partitions led here, except partitions without a commit",
        ("group", "topic"),
    ),
    Metric(
        "raftmq_consumer_lag_seconds",
        "gauge",
        "Age of the oldest record that the consumer group has not read yet in the topic's partitions led here, by append time",
        ("group", "topic"),
    ),
    Metric(
        "raftmq_consumer_lag_left_out",
        "gauge",
        "Items missing in the consumer lag metrics: readers (a group in a topic, least lag first) beyond the limit "
        "lag_readers_max, and ages (partitions of shown readers) that took too long to look up",
        ("what",),
    ),
    Metric("raftmq_quarantined_replicas", "gauge", "Damaged replicas here that are not replaced yet"),
    Metric(
        "raftmq_replicas_not_served",
        "gauge",
        "Replicas that metadata wants here and that this broker does not serve, by reason: they are being opened, fail (a defect, or "
        "a file that cannot be opened), lack disk space or descriptors, have another format, or are quarantined",
        ("reason",),
    ),
    Metric("raftmq_snapshots_sent_total", "counter", "Snapshots that were streamed to other brokers completely"),
    Metric(
        "raftmq_snapshots_resumed_total",
        "counter",
        "Incoming snapshots that went on where an earlier stream was interrupted",
    ),
    Metric("raftmq_snapshot_copies_made_total", "counter", "Copies of queue states that were made to send snapshots"),
    Metric("raftmq_snapshot_copy_bytes", "gauge", "Disk space of copies of queue states. They are deleted when idle"),
    Metric(
        "raftmq_given_up_moves",
        "gauge",
        "Partitions whose last move made no progress and was given up. Only the metadata leader shows it",
    ),
    Metric("raftmq_moved_bytes_total", "counter", "Bytes sent to new replicas of partitions that move, without repair"),
    Metric("raftmq_snapshots_installed_total", "counter", "Snapshots that replaced the state of a replica here"),
)

_PEERS: Final = (
    Metric("raftmq_peer_connected", "gauge", "1 while the control channel to the broker is up", ("peer_id",)),
    Metric("raftmq_peer_sent_bytes_total", "counter", "Bytes sent to other brokers", ("channel",)),
    Metric("raftmq_peer_received_bytes_total", "counter", "Bytes received from other brokers", ("channel",)),
    Metric(
        "raftmq_peer_requests_refused_total",
        "counter",
        "Requests of other brokers that were refused because too many of them had no answer yet",
    ),
    Metric("raftmq_peer_unsent_bytes", "gauge", "Bytes that wait to be sent on the slowest peer channel"),
    Metric(
        "raftmq_dropped_messages_total",
        "counter",
        "Messages to and from peers dropped because of a full budget or a missing connection",
    ),
)

_BUDGETS: Final = (
    Metric(
        "raftmq_connections_evicted_total",
        "counter",
        "Connections closed because their port had too many",
        ("port",),
    ),
    Metric("raftmq_budget_used_bytes", "gauge", "Used memory of each budget", ("budget",)),
    Metric("raftmq_budget_limit_bytes", "gauge", "Memory limit of each budget", ("budget",)),
    Metric("raftmq_slots_used", "gauge", "Slots in use, by kind", ("slot",)),
    Metric("raftmq_slots_limit", "gauge", "Limit of slots, by kind", ("slot",)),
)

_PARTITION: Final = ("topic", "partition")
_PARTITIONS: Final = (
    Metric(
        "raftmq_producer_table_used_ratio",
        "gauge",
        "Used part (0-1) of the fullest partition's table of producers. At 1 it accepts no new ones",
    ),
    Metric("raftmq_partition_log_start_offset", "gauge", "First readable offset", _PARTITION),
    Metric(
        "raftmq_partition_high_watermark",
        "gauge",
        "Offset after the last committed record that this replica knows. Its rate on the leader is records per second",
        _PARTITION,
    ),
    Metric(
        "raftmq_partition_uncommitted_entries", "gauge", "Entries in the log that are not committed yet", _PARTITION
    ),
    Metric("raftmq_partition_is_leader", "gauge", "1 when this broker leads the partition", _PARTITION),
    Metric(
        "raftmq_partition_follower_lag_entries",
        "gauge",
        "Entries that the follower furthest behind lacks, for partitions led here",
        _PARTITION,
    ),
    Metric(
        "raftmq_partition_appended_bytes_total",
        "counter",
        "Payload bytes that the partition has applied since its creation",
        _PARTITION,
    ),
    Metric("raftmq_partition_file_bytes", "gauge", "Space that the replica's file occupies on the volume", _PARTITION),
)

_QUEUES: Final = (
    Metric("raftmq_queue_ready_messages", "gauge", "Messages that may be leased now", _PARTITION),
    Metric("raftmq_queue_delayed_messages", "gauge", "Messages that are not due yet", _PARTITION),
    Metric("raftmq_queue_leased_messages", "gauge", "Messages with a consumer", _PARTITION),
    Metric("raftmq_queue_dead_messages", "gauge", "Messages that were given up and are kept", _PARTITION),
    Metric(
        "raftmq_queue_blocked_messages",
        "gauge",
        "Messages that are due and wait behind an unfinished message of their key",
        _PARTITION,
    ),
    Metric("raftmq_queue_message_bytes", "gauge", "Stored bodies of all these messages", _PARTITION),
    Metric(
        "raftmq_queue_oldest_ready_seconds",
        "gauge",
        "Time for which the longest waiting message has been ready, without earlier leases and the wait for its key. The next "
        "messages of each tenant are looked at, so it may be too low, and is never too high. 0 without any",
        _PARTITION,
    ),
    Metric(
        "raftmq_queue_enqueued_total", "counter", "Messages enqueued since this broker leads the partition", _PARTITION
    ),
    Metric(
        "raftmq_queue_full_refusals_total",
        "counter",
        "Batches of messages (puts, chains, firings of schedules) refused with QUEUE_FULL since this broker leads the partition",
        _PARTITION,
    ),
    Metric("raftmq_queue_leased_total", "counter", "Leases since this broker leads the partition", _PARTITION),
    Metric(
        "raftmq_queue_redelivered_total", "counter", "Those leases whose message had been leased before", _PARTITION
    ),
    Metric(
        "raftmq_queue_accepted_total", "counter", "Messages accepted since this broker leads the partition", _PARTITION
    ),
    Metric(
        "raftmq_queue_released_total",
        "counter",
        "Messages that consumers gave back since this broker leads the partition",
        _PARTITION,
    ),
    Metric(
        "raftmq_queue_expired_leases_total",
        "counter",
        "Leases that ended by time since this broker leads the partition",
        _PARTITION,
    ),
    Metric(
        "raftmq_queue_expired_total",
        "counter",
        "Messages removed because their time to live had passed, since this broker leads the partition. With expired.keep they die",
        _PARTITION,
    ),
    Metric(
        "raftmq_queue_dead_total", "counter", "Messages that died since this broker leads the partition", _PARTITION
    ),
    Metric(
        "raftmq_queue_removed_dead_total",
        "counter",
        "Dead messages removed by retention since this broker leads the partition",
        _PARTITION,
    ),
    Metric(
        "raftmq_queue_uncopied_dead_messages",
        "gauge",
        "Dead messages that are not in the dead letter topic yet. 0 without such a topic",
        _PARTITION,
    ),
    Metric(
        "raftmq_queue_copied_dead_total",
        "counter",
        "Messages copied to the dead letter topic since this broker leads the partition",
        _PARTITION,
    ),
    Metric(
        "raftmq_queue_refused_copies_total",
        "counter",
        "Failed attempts to copy messages to the dead letter topic since this broker leads the partition",
        _PARTITION,
    ),
    Metric(
        "raftmq_queue_dwell_seconds",
        "histogram",
        "Time from when a message became ready, or ready again, to its lease, of the first message of each run of neighbors",
        _PARTITION,
    ),
    Metric("raftmq_queue_waiting_consumers", "gauge", "Consumers that wait for messages of the partition", _PARTITION),
    Metric("raftmq_queue_jobs", "gauge", "Jobs that are not finished", _PARTITION),
    Metric("raftmq_queue_schedules", "gauge", "Schedules of the partition", _PARTITION),
    Metric(
        "raftmq_queue_skipped_firings_total",
        "counter",
        "Missed firings of schedules that were skipped since this broker leads the partition",
        _PARTITION,
    ),
    Metric(
        "raftmq_queue_clock_stepped_seconds_total",
        "counter",
        "Seconds by which the queue clock here was set forward: after a start, from the last append time to the brokers' clocks, and by "
        "operators",
        _PARTITION,
    ),
    Metric(
        "raftmq_queue_clock_difference_seconds",
        "gauge",
        "Queue clock less the median of the brokers' clocks. Below -3600 see raftmq queue clock --step",
        _PARTITION,
    ),
)

SECTIONS: Final[Mapping[str, tuple[Metric, ...]]] = {
    "The broker": _BROKER,
    "Requests of clients": _REQUESTS,
    "Commits": _COMMITS,
    "The event loop": _LOOP,
    "Groups and leaders": _GROUPS,
    "Other brokers": _PEERS,
    "Budgets and slots": _BUDGETS,
    "Partitions": _PARTITIONS,
    "Queues led by the broker": _QUEUES,
}
CATALOG: Final[Mapping[str, Metric]] = {metric.name: metric for metrics in SECTIONS.values() for metric in metrics}
