"""Every metric of /metrics by name, with its type, labels and meaning: what the page writes and the reference page prints.

Names follow Prometheus: base units, `_total` for counters, and labels that cannot grow without bound. Nothing is labelled by
client, connection, producer or follower. Only these have labels that grow with use: the metrics of partitions, topic and
partition, one series each for every replica on the broker, of which there are at most `partitions_max`; and consumer lag, group
and topic, of which a broker shows at most `lag_readers_max`.

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
    Metric("raftmq_build_info", "gauge", "Always 1; what runs", ("version", "python_version")),
    Metric(
        "raftmq_broker_info", "gauge", "Always 1; identifies the broker", ("broker_id", "cluster_id", "host", "rack")
    ),
    Metric("raftmq_ready", "gauge", "1 when the broker is ready, as /readyz says"),
    Metric("raftmq_not_ready", "gauge", "1 for each reason why the broker is not ready, 0 for the others", ("reason",)),
    Metric(
        "raftmq_background_failures_total",
        "counter",
        "Times that work in the background failed by a defect and was begun again, by what it was",
        ("loop",),
    ),
    Metric("raftmq_other_clusters", "gauge", "Addresses of brokers where another cluster was met in the last minute"),
    Metric("raftmq_process_threads", "gauge", "Threads of the process"),
    Metric(
        "raftmq_disk_free_bytes",
        "gauge",
        "Free space on the volume of the data directory, less what its ballast file takes back",
    ),
    Metric("raftmq_disk_reserve_bytes", "gauge", "Free space below which appends are refused"),
    Metric(
        "raftmq_clock_offset_seconds",
        "gauge",
        "This broker's wall clock less the majority's; where there is none, less the one that differs most",
    ),
    Metric("raftmq_writes_refused", "gauge", "1 while appends are refused (disk reserve)"),
)

_REQUESTS: Final = (
    Metric(
        "raftmq_requests_total",
        "counter",
        "Requests answered, by method and error code (OK, CANCELLED: the client gave up). "
        "Each request of an AppendStream counts",
        ("method", "code"),
    ),
    Metric(
        "raftmq_request_seconds",
        "histogram",
        "Time to answer a request, by kind: append, poll (its waiting for records included), other",
        ("kind",),
    ),
    Metric(
        "raftmq_partition_refusals_total",
        "counter",
        "Partitions refused within requests that were answered, by method and error code",
        ("method", "code"),
    ),
    Metric("raftmq_streams", "gauge", "Streams open now", ("method",)),
    Metric("raftmq_parked_polls", "gauge", "Long polls waiting for records"),
    Metric("raftmq_topology_watchers", "gauge", "Clients watching the topology"),
    Metric("raftmq_client_received_bytes_total", "counter", "Bytes of requests on the client port"),
    Metric("raftmq_client_sent_bytes_total", "counter", "Bytes of answers on the client port"),
    Metric("raftmq_appended_batches_total", "counter", "Batches committed for clients"),
    Metric("raftmq_appended_bytes_total", "counter", "Bytes of these batches"),
    Metric("raftmq_polled_batches_total", "counter", "Batches handed to clients"),
    Metric("raftmq_polled_bytes_total", "counter", "Bytes of these batches"),
    Metric("raftmq_evictions_total", "counter", "Calls ended because they stood still where others needed room", ("room",)),
)  # fmt: skip

_COMMITS: Final = (
    Metric(
        "raftmq_commit_seconds", "histogram", "Time from handing a write over until the loop knows that it is durable"
    ),
    Metric(
        "raftmq_commit_disk_seconds", "histogram", "Time of the write's transaction on the disk, its fsync included"
    ),
    Metric("raftmq_commit_entries", "histogram", "Entries (batches, commands) in a write; 0 is state only"),
    Metric("raftmq_commit_bytes", "histogram", "Payload of the entries in a write"),
    Metric("raftmq_commit_oldest_seconds", "gauge", "Age of the oldest write in flight"),
    Metric(
        "raftmq_scrubbed_bytes_total", "counter", "Bytes of replica files and their rows read back in the background"
    ),
    Metric(
        "raftmq_scrub_last_pass_timestamp_seconds",
        "gauge",
        "When the last pass over every replica here ended, in seconds since the epoch; 0 before the first of this process",
    ),
    Metric("raftmq_scrub_damaged_replicas_total", "counter", "Replicas that reading back found damaged"),
    Metric("raftmq_map_used_ratio", "gauge", "Part of its map that the fullest replica file uses (0-1)"),
)

_LOOP: Final = (
    Metric("raftmq_loop_lag_seconds", "histogram", "Lag of the event loop, measured ten times a second from outside"),
    Metric("raftmq_loop_lag_max_seconds", "gauge", "Largest lag in the last minute, one that lasts included"),
    Metric("raftmq_loop_stalls_total", "counter", "Times the event loop stood still"),
    Metric(
        "raftmq_space_returned_bytes_total",
        "counter",
        "Given back to the volume by replica files from which data was deleted",
    ),
    Metric("raftmq_engine_pass_seconds", "histogram", "Time of one pass of the engine over the groups with work"),
    Metric("raftmq_gc_pause_seconds", "histogram", "Time of one garbage collection"),
    Metric("raftmq_scrape_loop_seconds", "gauge", "Time that this scrape took on the event loop"),
)

_GROUPS: Final = (
    Metric("raftmq_groups", "gauge", "Raft groups with a replica here"),
    Metric("raftmq_groups_led", "gauge", "Raft groups led here"),
    Metric("raftmq_groups_without_leader", "gauge", "Raft groups with a replica here that knows no leader"),
    Metric("raftmq_elections_started_total", "counter", "Elections that a replica here stood in"),
    Metric("raftmq_elections_won_total", "counter", "Leaderships that replicas here gained"),
    Metric("raftmq_leaderships_lost_total", "counter", "Leaderships that replicas here lost or handed over"),
    Metric("raftmq_metadata_is_leader", "gauge", "1 when this broker leads the metadata group"),
    Metric("raftmq_metadata_term", "gauge", "Term of the metadata group"),
    Metric("raftmq_metadata_applied_index", "gauge", "Metadata revision that this broker has"),
    Metric(
        "raftmq_partitions_without_leader",
        "gauge",
        "Partitions of the cluster that nobody leads, as far as this broker can tell: their leader said so, or has been out of "
        "reach for several election timeouts",
    ),
    Metric(
        "raftmq_under_replicated_partitions",
        "gauge",
        "Partitions led here with fewer replicas than their topic wants, or with one that does not vote, is not connected, is "
        "known to be damaged, or has not lately acknowledged what the leader has",
    ),
    Metric(
        "raftmq_metadata_voters_behind",
        "gauge",
        "On the broker that leads the metadata: its voters that are not connected or do not keep up; 0 elsewhere",
    ),
    Metric("raftmq_consumer_groups", "gauge", "Consumer groups of the cluster, those without members included"),
    Metric("raftmq_consumer_group_members", "gauge", "Members of all consumer groups of the cluster"),
    Metric(
        "raftmq_consumer_group_members_expired_total",
        "counter",
        "Members put out of their consumer groups by this broker as coordinator, because nothing was heard of them",
    ),
    Metric("raftmq_consumer_group_assignments_total", "counter", "Assignments computed by this broker as coordinator"),
    Metric(
        "raftmq_consumer_lag_records",
        "gauge",
        "Records that the consumer group has not read yet in the topic's partitions led here; where it never committed is left out",
        ("group", "topic"),
    ),
    Metric(
        "raftmq_consumer_lag_seconds",
        "gauge",
        "Age of the oldest of them, by the time it was appended",
        ("group", "topic"),
    ),
    Metric(
        "raftmq_consumer_lag_left_out",
        "gauge",
        "What the two before do not show: readers (groups in a topic, those least behind) over the limit lag_readers_max, and "
        "ages (partitions of those shown) that took too long to look up",
        ("what",),
    ),
    Metric("raftmq_quarantined_replicas", "gauge", "Damaged replicas here, not replaced yet"),
    Metric(
        "raftmq_replicas_not_served",
        "gauge",
        "Replicas that metadata wants here and that this broker does not serve: they are being opened, fail (a defect, or a file that "
        "cannot be opened), find no room or descriptors, are of another format, or are quarantined",
        ("reason",),
    ),
    Metric("raftmq_snapshots_sent_total", "counter", "Snapshots streamed to other brokers, whole"),
    Metric("raftmq_snapshots_installed_total", "counter", "Snapshots that replaced the state of a replica here"),
)

_PEERS: Final = (
    Metric("raftmq_peer_connected", "gauge", "1 while the control channel to the broker is up", ("peer_id",)),
    Metric("raftmq_peer_sent_bytes_total", "counter", "Bytes sent to other brokers", ("channel",)),
    Metric("raftmq_peer_received_bytes_total", "counter", "Bytes received from other brokers", ("channel",)),
    Metric("raftmq_peer_unsent_bytes", "gauge", "Bytes that wait for the slowest peer channel to take them"),
    Metric(
        "raftmq_dropped_messages_total", "counter", "Messages to and from peers dropped for want of room or connection"
    ),
)

_BUDGETS: Final = (
    Metric(
        "raftmq_connections_evicted_total",
        "counter",
        "Connections that were closed because their port had too many",
        ("port",),
    ),
    Metric("raftmq_budget_used_bytes", "gauge", "Memory in use of each named budget", ("budget",)),
    Metric("raftmq_budget_limit_bytes", "gauge", "Limit of that budget", ("budget",)),
    Metric("raftmq_slots_used", "gauge", "Slots in use, by kind", ("slot",)),
    Metric("raftmq_slots_limit", "gauge", "Slots that exist, by kind", ("slot",)),
)

_PARTITION: Final = ("topic", "partition")
_PARTITIONS: Final = (
    Metric(
        "raftmq_producer_table_used_ratio",
        "gauge",
        "How full the fullest partition is of producers that it must remember (0-1); at 1 it takes no new ones",
    ),
    Metric("raftmq_partition_log_start_offset", "gauge", "First readable offset", _PARTITION),
    Metric(
        "raftmq_partition_high_watermark",
        "gauge",
        "Offset after the last committed record, as this replica knows it; its rate on the leader is records per second",
        _PARTITION,
    ),
    Metric("raftmq_partition_uncommitted_entries", "gauge", "Entries in the log and not committed yet", _PARTITION),
    Metric("raftmq_partition_is_leader", "gauge", "1 when this broker leads the partition", _PARTITION),
    Metric(
        "raftmq_partition_follower_lag_entries",
        "gauge",
        "Entries that the follower furthest behind lacks; of partitions led here",
        _PARTITION,
    ),
    Metric("raftmq_partition_appended_bytes_total", "counter", "Payload ever applied by the partition", _PARTITION),
    Metric("raftmq_partition_file_bytes", "gauge", "Space that the replica's file takes of the volume", _PARTITION),
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
}
CATALOG: Final[Mapping[str, Metric]] = {metric.name: metric for metrics in SECTIONS.values() for metric in metrics}
