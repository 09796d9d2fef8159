"""Describe the panels of the Grafana dashboards: their titles, queries and legends.

`scripts.dashboards` writes the files from this description. `tests/house/test_dashboards.py` compares every query with the catalogue of
metrics, and `tests/e2e/test_dashboards.py` evaluates it by a real Prometheus on brokers at work.

Queries follow four rules. A number of the whole cluster is the sum over the brokers, but the least or the largest of them where each broker has
a view of its own. A number of a partition that every replica has is the largest of its replicas. Rates are of counters, and `deriv` is the
rate of a gauge. Brokers, topics and groups are chosen by the variables of the dashboard.
"""

from __future__ import annotations

from typing import Final, NamedTuple

RANGE: Final = "$__rate_interval"
"""The range of rates. Grafana replaces it by at least four scrape intervals."""
NOTHING: Final = ""


class Query(NamedTuple):
    """One set of lines of a panel."""

    expression: str
    legend: str


class Panel(NamedTuple):
    """One graph."""

    title: str
    queries: tuple[Query, ...]
    unit: str = NOTHING
    """A unit of Grafana. By default it follows from the name of the first metric."""
    meaning: str = NOTHING
    """By default the first metric's meaning in the catalogue."""
    may_be_negative: bool = False


class Row(NamedTuple):
    """Panels under one title."""

    title: str
    panels: tuple[Panel, ...]


class Variable(NamedTuple):
    """A choice at the head of a dashboard: values of a label."""

    name: str
    metric: str
    """The metric whose series have the values in the label of the variable's name."""


class Dashboard(NamedTuple):
    """One dashboard."""

    name: str
    title: str
    rows: tuple[Row, ...]
    variables: tuple[Variable, ...] = ()


def _one(title: str, expression: str, legend: str, unit: str = NOTHING, meaning: str = NOTHING) -> Panel:
    """Return a panel with one query."""
    return Panel(title, (Query(expression, legend),), unit, meaning)


def _rate(metric: str, *labels: str) -> str:
    """Return the rate of a counter, summed by labels."""
    by = f" by ({', '.join(labels)})" if labels else ""
    return f"sum{by} (rate({metric}[{RANGE}]))"


def _quantiles(title: str, metric: str, *labels: str, matchers: str = "", legend: str = "") -> Panel:
    """Return a panel with the median and the 99th percentile of a histogram."""
    by = ", ".join((*labels, "le"))
    buckets = f"sum by ({by}) (rate({metric}_bucket{matchers}[{RANGE}]))"
    return Panel(
        title,
        (
            Query(f"histogram_quantile(0.99, {buckets})", f"{legend} 99 %".strip()),
            Query(f"histogram_quantile(0.5, {buckets})", f"{legend} median".strip()),
        ),
    )


def _mean(title: str, metric: str, legend: str, unit: str) -> Panel:
    """Return a panel with the mean of a histogram on each broker of the variable."""
    broker = '{instance=~"$instance"}'
    ratio = f"rate({metric}_sum{broker}[{RANGE}]) / rate({metric}_count{broker}[{RANGE}])"
    return _one(title, ratio, legend, unit)


_BROKER: Final = '{instance=~"$instance"}'
_TOPIC: Final = '{topic=~"$topic"}'
_READER: Final = '{group=~"$group", topic=~"$topic"}'
_INSTANCE: Final = "{{instance}}"
_NAMED_TOPIC: Final = "{{topic}}"

_CLUSTER: Final = Dashboard(
    "cluster",
    "RaftMQ / Cluster",
    (
        Row(
            "Health",
            (
                Panel(
                    "Brokers",
                    (Query('count(up{job="raftmq"})', "scraped"), Query("sum(raftmq_ready)", "ready")),
                    meaning="Brokers that Prometheus knows, and those that are ready",
                ),
                _one(
                    "Reasons for not being ready", "sum by (reason) (raftmq_not_ready) > 0 or vector(0)", "{{reason}}"
                ),
                _one("Partitions without a leader", "min(raftmq_partitions_without_leader)", "partitions"),
                _one("Partitions that lack a replica", "sum(raftmq_under_replicated_partitions)", "partitions"),
                Panel(
                    "Metadata",
                    (
                        Query("sum(raftmq_metadata_is_leader)", "leaders"),
                        Query("sum(raftmq_metadata_voters_behind)", "voters behind"),
                    ),
                    meaning="Leaders of the metadata, of which there must be one, and voters that do not keep up",
                ),
                Panel(
                    "Replicas in trouble",
                    (
                        Query("sum(raftmq_quarantined_replicas)", "quarantined"),
                        Query("sum by (reason) (raftmq_replicas_not_served)", "not served: {{reason}}"),
                    ),
                ),
                Panel(
                    "Clock offsets",
                    (Query("raftmq_clock_offset_seconds", _INSTANCE),),
                    may_be_negative=True,
                ),
                Panel(
                    "Signs of a split",
                    (
                        Query("max(raftmq_other_clusters)", "other clusters"),
                        Query("count(raftmq_peer_connected == 0) or vector(0)", "missing connections"),
                    ),
                    meaning="Addresses at which another cluster answered, and pairs of brokers without a connection",
                ),
            ),
        ),
        Row(
            "Traffic",
            (
                _one("Appended bytes", _rate("raftmq_appended_bytes_total", "instance"), _INSTANCE),
                _one("Polled bytes", _rate("raftmq_polled_bytes_total", "instance"), _INSTANCE),
                _one("Requests", _rate("raftmq_requests_total", "method"), "{{method}}"),
                _one(
                    "Refused requests",
                    _rate('raftmq_requests_total{code!~"OK|CANCELLED"}', "method", "code") + " > 0",
                    "{{method}}: {{code}}",
                ),
                _quantiles("Time of appends", "raftmq_request_seconds", matchers='{kind="append"}'),
                _one(
                    "Refused partitions",
                    _rate("raftmq_partition_refusals_total", "method", "code"),
                    "{{method}}: {{code}}",
                ),
            ),
        ),
        Row(
            "Brokers",
            (
                _one("Leaderships", "raftmq_groups_led", _INSTANCE),
                _one(
                    "Space until appends are refused",
                    "raftmq_disk_free_bytes - raftmq_disk_reserve_bytes",
                    _INSTANCE,
                    meaning="Free space less the reserve. Appends are refused while it is negative",
                )._replace(may_be_negative=True),
                _one(
                    "CPU",
                    f'rate(process_cpu_seconds_total{{job="raftmq"}}[{RANGE}])',
                    _INSTANCE,
                    "percentunit",
                    "Processors in use",
                ),
                _one("Versions", "count by (version) (raftmq_build_info)", "{{version}}"),
                _one("Locations", "count by (host, rack) (raftmq_broker_info)", "{{host}} {{rack}}"),
            ),
        ),
    ),
)

_TOPICS: Final = Dashboard(
    "topics",
    "RaftMQ / Topics",
    (
        Row(
            "Writing",
            (
                _one(
                    "Records",
                    f"sum by (topic) (max by (topic, partition) (deriv(raftmq_partition_high_watermark{_TOPIC}[{RANGE}])))",
                    _NAMED_TOPIC,
                    "ops",
                    "Committed records or messages per second",
                ),
                _one(
                    "Bytes",
                    "sum by (topic) (max by (topic, partition) "
                    f"(rate(raftmq_partition_appended_bytes_total{_TOPIC}[{RANGE}])))",
                    _NAMED_TOPIC,
                ),
                _one(
                    "Largest partitions by rate",
                    f"topk(10, max by (topic, partition) (rate(raftmq_partition_appended_bytes_total{_TOPIC}[{RANGE}])))",
                    "{{topic}}/{{partition}}",
                ),
                _one(
                    "Uncommitted entries",
                    f"sum by (topic) (raftmq_partition_uncommitted_entries{_TOPIC} "
                    "* on (instance, topic, partition) raftmq_partition_is_leader)",
                    _NAMED_TOPIC,
                ),
                _one("Appended batches", _rate("raftmq_appended_batches_total", "instance"), _INSTANCE),
                _one(
                    "Fullest table of producers",
                    "max by (instance) (raftmq_producer_table_used_ratio)",
                    _INSTANCE,
                ),
            ),
        ),
        Row(
            "Keeping",
            (
                _one(
                    "Records kept",
                    f"sum by (topic) (max by (topic, partition) (raftmq_partition_high_watermark{_TOPIC}) "
                    f"- max by (topic, partition) (raftmq_partition_log_start_offset{_TOPIC}))",
                    _NAMED_TOPIC,
                    meaning="Offsets between the first readable and the last committed record",
                ),
                _one("Space of all replicas", f"sum by (topic) (raftmq_partition_file_bytes{_TOPIC})", _NAMED_TOPIC),
                _one(
                    "Leaders",
                    f"count by (topic) (raftmq_partition_is_leader{_TOPIC} == 1)",
                    _NAMED_TOPIC,
                    meaning="Partitions that have a leader",
                ),
                _one(
                    "Lag of followers",
                    f"max by (topic) (raftmq_partition_follower_lag_entries{_TOPIC})",
                    _NAMED_TOPIC,
                ),
            ),
        ),
    ),
    (Variable("topic", "raftmq_partition_high_watermark"),),
)

_GROUPS: Final = Dashboard(
    "groups",
    "RaftMQ / Consumer groups",
    (
        Row(
            "Lag",
            (
                _one(
                    "Age of the oldest unread record",
                    f"max by (group, topic) (raftmq_consumer_lag_seconds{_READER})",
                    "{{group}} in {{topic}}",
                ),
                _one(
                    "Unread records",
                    f"sum by (group, topic) (raftmq_consumer_lag_records{_READER})",
                    "{{group}} in {{topic}}",
                ),
                _one(
                    "Change of the lag",
                    f"sum by (group, topic) (deriv(raftmq_consumer_lag_records{_READER}[{RANGE}]))",
                    "{{group}} in {{topic}}",
                    "ops",
                    "Records per second by which a lag grows. Below 0 the group catches up",
                )._replace(may_be_negative=True),
                _one("Left out", "sum by (what) (raftmq_consumer_lag_left_out)", "{{what}}"),
            ),
        ),
        Row(
            "Groups",
            (
                Panel(
                    "Groups and members",
                    (
                        Query("max(raftmq_consumer_groups)", "groups"),
                        Query("max(raftmq_consumer_group_members)", "members"),
                    ),
                    meaning="Consumer groups of the cluster and their members",
                ),
                _one("Assignments", _rate("raftmq_consumer_group_assignments_total", "instance"), _INSTANCE),
                _one(
                    "Members that were lost",
                    _rate("raftmq_consumer_group_members_expired_total", "instance"),
                    _INSTANCE,
                ),
            ),
        ),
        Row(
            "Reading",
            (
                _one("Polled bytes", _rate("raftmq_polled_bytes_total", "instance"), _INSTANCE),
                _one("Polled batches", _rate("raftmq_polled_batches_total", "instance"), _INSTANCE),
                _one("Waiting polls", "sum by (instance) (raftmq_parked_polls)", _INSTANCE),
                _quantiles("Time of polls", "raftmq_request_seconds", matchers='{kind="poll"}'),
            ),
        ),
    ),
    (Variable("group", "raftmq_consumer_lag_records"), Variable("topic", "raftmq_consumer_lag_records")),
)


def _messages(title: str, metric: str) -> Panel:
    return _one(title, f"sum by (topic) ({metric}{_TOPIC})", _NAMED_TOPIC)


def _of_queue(title: str, metric: str) -> Panel:
    return _one(title, f"sum by (topic) (rate({metric}{_TOPIC}[{RANGE}]))", _NAMED_TOPIC)


_QUEUES: Final = Dashboard(
    "queues",
    "RaftMQ / Queues",
    (
        Row(
            "Waiting",
            (
                _one("Longest wait", f"max by (topic) (raftmq_queue_oldest_ready_seconds{_TOPIC})", _NAMED_TOPIC),
                _messages("Ready messages", "raftmq_queue_ready_messages"),
                _messages("Delayed messages", "raftmq_queue_delayed_messages"),
                _messages("Messages behind one of their key", "raftmq_queue_blocked_messages"),
                _quantiles(
                    "Time until a lease", "raftmq_queue_dwell_seconds", "topic", matchers=_TOPIC, legend=_NAMED_TOPIC
                ),
                _messages("Stored bytes", "raftmq_queue_message_bytes"),
            ),
        ),
        Row(
            "Work",
            (
                _of_queue("Enqueued", "raftmq_queue_enqueued_total"),
                _of_queue("Leases", "raftmq_queue_leased_total"),
                _of_queue("Accepted", "raftmq_queue_accepted_total"),
                _messages("Messages in work", "raftmq_queue_leased_messages"),
                _messages("Waiting consumers", "raftmq_queue_waiting_consumers"),
                _of_queue("Given back", "raftmq_queue_released_total"),
                _of_queue("Leased again", "raftmq_queue_redelivered_total"),
                _of_queue("Leases that ended by time", "raftmq_queue_expired_leases_total"),
                _messages("Unfinished jobs", "raftmq_queue_jobs"),
            ),
        ),
        Row(
            "Trouble",
            (
                _messages("Dead messages", "raftmq_queue_dead_messages"),
                _of_queue("Deaths", "raftmq_queue_dead_total"),
                _of_queue("Removed because of their age", "raftmq_queue_expired_total"),
                _of_queue("Dead messages removed by retention", "raftmq_queue_removed_dead_total"),
                _of_queue("Refused because the queue is full", "raftmq_queue_full_refusals_total"),
                Panel(
                    "Copies to the dead letter topic",
                    (
                        Query(
                            f"sum by (topic) (rate(raftmq_queue_copied_dead_total{_TOPIC}[{RANGE}]))",
                            "{{topic}} copied",
                        ),
                        Query(
                            f"sum by (topic) (rate(raftmq_queue_refused_copies_total{_TOPIC}[{RANGE}]))",
                            "{{topic}} refused",
                        ),
                    ),
                ),
                _messages("Dead messages not copied yet", "raftmq_queue_uncopied_dead_messages"),
            ),
        ),
        Row(
            "Time",
            (
                _messages("Schedules", "raftmq_queue_schedules"),
                _of_queue("Skipped firings", "raftmq_queue_skipped_firings_total"),
                Panel(
                    "Queue clock less the brokers' clocks",
                    (
                        Query(f"min by (topic) (raftmq_queue_clock_difference_seconds{_TOPIC})", "{{topic}} least"),
                        Query(f"max by (topic) (raftmq_queue_clock_difference_seconds{_TOPIC})", "{{topic}} largest"),
                    ),
                    may_be_negative=True,
                ),
                _one(
                    "Steps of the queue clock",
                    f"sum by (topic) (increase(raftmq_queue_clock_stepped_seconds_total{_TOPIC}[{RANGE}]))",
                    _NAMED_TOPIC,
                    "s",
                ),
            ),
        ),
    ),
    (Variable("topic", "raftmq_queue_ready_messages"),),
)

_RAFT: Final = Dashboard(
    "raft",
    "RaftMQ / Raft",
    (
        Row(
            "Leaders",
            (
                Panel(
                    "Groups",
                    (
                        Query(f"raftmq_groups{_BROKER}", "{{instance}} replicas"),
                        Query(f"raftmq_groups_led{_BROKER}", "{{instance}} led"),
                    ),
                    meaning="Raft groups with a replica on the broker, and those that it leads",
                ),
                _one("Replicas that know no leader", f"raftmq_groups_without_leader{_BROKER}", _INSTANCE),
                Panel(
                    "Elections",
                    (
                        Query(_rate(f"raftmq_elections_started_total{_BROKER}", "instance"), "{{instance}} started"),
                        Query(_rate(f"raftmq_elections_won_total{_BROKER}", "instance"), "{{instance}} won"),
                    ),
                ),
                _one("Leaderships lost", _rate(f"raftmq_leaderships_lost_total{_BROKER}", "instance"), _INSTANCE),
                _one("Term of the metadata", f"raftmq_metadata_term{_BROKER}", _INSTANCE),
                _one("Metadata revision", f"raftmq_metadata_applied_index{_BROKER}", _INSTANCE),
                _one(
                    "Names of producers",
                    "max(raftmq_producer_names)",
                    "names",
                ),
                _one("Used part of the names of producers", "max(raftmq_producer_names_used_ratio)", "used"),
            ),
        ),
        Row(
            "Commits",
            (
                _quantiles("Time on the disk", "raftmq_commit_disk_seconds", matchers=_BROKER),
                _quantiles("Time until a write is durable", "raftmq_commit_seconds", matchers=_BROKER),
                _one("Oldest write in flight", f"raftmq_commit_oldest_seconds{_BROKER}", _INSTANCE),
                _mean("Entries of a write", "raftmq_commit_entries", _INSTANCE, "short"),
                _mean("Bytes of a write", "raftmq_commit_bytes", _INSTANCE, "bytes"),
            ),
        ),
        Row(
            "Replication",
            (
                _one(
                    "Lag of followers",
                    f"max by (instance) (raftmq_partition_follower_lag_entries{_BROKER})",
                    "led by {{instance}}",
                ),
                _one("Connected brokers", f"sum by (instance) (raftmq_peer_connected{_BROKER})", _INSTANCE),
                _one(
                    "Sent to brokers",
                    _rate(f"raftmq_peer_sent_bytes_total{_BROKER}", "instance", "channel"),
                    "{{instance}} {{channel}}",
                ),
                _one(
                    "Received from brokers",
                    _rate(f"raftmq_peer_received_bytes_total{_BROKER}", "instance", "channel"),
                    "{{instance}} {{channel}}",
                ),
                _one("Bytes that wait to be sent", f"raftmq_peer_unsent_bytes{_BROKER}", _INSTANCE),
                _one("Dropped messages", _rate(f"raftmq_dropped_messages_total{_BROKER}", "instance"), _INSTANCE),
                _one(
                    "Refused requests of brokers",
                    _rate(f"raftmq_peer_requests_refused_total{_BROKER}", "instance"),
                    _INSTANCE,
                ),
            ),
        ),
        Row(
            "Snapshots and moves",
            (
                Panel(
                    "Snapshots",
                    (
                        Query(_rate(f"raftmq_snapshots_sent_total{_BROKER}", "instance"), "{{instance}} sent"),
                        Query(_rate(f"raftmq_snapshots_resumed_total{_BROKER}", "instance"), "{{instance}} resumed"),
                        Query(
                            _rate(f"raftmq_snapshots_installed_total{_BROKER}", "instance"), "{{instance}} installed"
                        ),
                    ),
                    meaning="Snapshots that were sent completely, continued after an interruption, and installed",
                ),
                Panel(
                    "Copies of queue states",
                    (Query(f"raftmq_snapshot_copy_bytes{_BROKER}", "{{instance}}"),),
                ),
                _one("Copies made", _rate(f"raftmq_snapshot_copies_made_total{_BROKER}", "instance"), _INSTANCE),
                _one("Bytes of moves", _rate(f"raftmq_moved_bytes_total{_BROKER}", "instance"), _INSTANCE),
                _one("Moves given up", "max(raftmq_given_up_moves)", "partitions"),
            ),
        ),
    ),
    (Variable("instance", "raftmq_ready"),),
)

_SHARE: Final = "Seconds per second"
_PROCESS: Final = '{job="raftmq", instance=~"$instance"}'

_BROKERS: Final = Dashboard(
    "broker",
    "RaftMQ / Broker",
    (
        Row(
            "Process",
            (
                _one(
                    "CPU",
                    f"rate(process_cpu_seconds_total{_PROCESS}[{RANGE}])",
                    _INSTANCE,
                    "percentunit",
                    "Processors in use",
                ),
                _one("Memory", f"process_resident_memory_bytes{_PROCESS}", _INSTANCE, "bytes", "Resident memory"),
                Panel(
                    "Open files",
                    (
                        Query(f"process_open_fds{_PROCESS}", "{{instance}} open"),
                        Query(f"process_max_fds{_PROCESS}", "{{instance}} limit"),
                    ),
                    "short",
                    "File descriptors in use, and their limit",
                ),
                _one("Threads", f"raftmq_process_threads{_BROKER}", _INSTANCE),
                _one(
                    "Uptime", f"time() - process_start_time_seconds{_PROCESS}", _INSTANCE, "s", "Time since the start"
                ),
                _one(
                    "Failures of background work",
                    _rate(f"raftmq_background_failures_total{_BROKER}", "instance", "loop"),
                    "{{instance}} {{loop}}",
                ),
            ),
        ),
        Row(
            "Event loop",
            (
                _one("Longest lag of the last minute", f"raftmq_loop_lag_max_seconds{_BROKER}", _INSTANCE),
                _quantiles("Lag", "raftmq_loop_lag_seconds", "instance", matchers=_BROKER, legend=_INSTANCE),
                _one(
                    "Time in the engine",
                    _rate(f"raftmq_engine_pass_seconds_sum{_BROKER}", "instance"),
                    _INSTANCE,
                    "percentunit",
                    f"{_SHARE} in passes of the engine",
                ),
                _one(
                    "Time in garbage collection",
                    _rate(f"raftmq_gc_pause_seconds_sum{_BROKER}", "instance"),
                    _INSTANCE,
                    "percentunit",
                    f"{_SHARE} in garbage collection",
                ),
                _one("Stalls", _rate(f"raftmq_loop_stalls_total{_BROKER}", "instance"), _INSTANCE),
                _one("Time of a scrape on the loop", f"raftmq_scrape_loop_seconds{_BROKER}", _INSTANCE),
            ),
        ),
        Row(
            "Requests",
            (
                _quantiles("Time of requests", "raftmq_request_seconds", "kind", matchers=_BROKER, legend="{{kind}}"),
                _one("Slow requests", _rate(f"raftmq_slow_requests_total{_BROKER}", "method"), "{{method}}"),
                _one("Open streams", f"sum by (method) (raftmq_streams{_BROKER})", "{{method}}"),
                _one(
                    "Received from clients",
                    _rate(f"raftmq_client_received_bytes_total{_BROKER}", "instance"),
                    _INSTANCE,
                ),
                _one("Sent to clients", _rate(f"raftmq_client_sent_bytes_total{_BROKER}", "instance"), _INSTANCE),
                _one("Watchers of the topology", f"raftmq_topology_watchers{_BROKER}", _INSTANCE),
            ),
        ),
        Row(
            "Limits",
            (
                _one(
                    "Used part of budgets",
                    'max by (budget) (raftmq_budget_used_bytes{budget!="recent_entries", instance=~"$instance"} '
                    "/ raftmq_budget_limit_bytes)",
                    "{{budget}}",
                    "percentunit",
                    "The fullest broker of each budget. recent_entries is left out: it is a cache, which stays full",
                ),
                _one(
                    "Used part of slots",
                    f"max by (slot) (raftmq_slots_used{_BROKER} / raftmq_slots_limit)",
                    "{{slot}}",
                    "percentunit",
                    "The fullest broker of each kind of slots",
                ),
                _one(
                    "Connections closed",
                    _rate(f"raftmq_connections_evicted_total{_BROKER}", "instance", "port"),
                    "{{instance}} {{port}}",
                ),
                _one(
                    "Calls evicted",
                    _rate(f"raftmq_evictions_total{_BROKER}", "instance", "budget"),
                    "{{instance}} {{budget}}",
                ),
            ),
        ),
        Row(
            "Disk",
            (
                Panel(
                    "Free space",
                    (
                        Query(f"raftmq_disk_free_bytes{_BROKER}", "{{instance}} free"),
                        Query(f"raftmq_disk_reserve_bytes{_BROKER}", "{{instance}} reserve"),
                    ),
                ),
                _one("Brokers that refuse appends", "sum(raftmq_writes_refused)", "brokers"),
                _one("Space returned", _rate(f"raftmq_space_returned_bytes_total{_BROKER}", "instance"), _INSTANCE),
                _one("Fullest map of a file", f"raftmq_map_used_ratio{_BROKER}", _INSTANCE),
                _one("Read back", _rate(f"raftmq_scrubbed_bytes_total{_BROKER}", "instance"), _INSTANCE),
                _one(
                    "Time since everything was read back",
                    f"time() - (raftmq_scrub_last_pass_timestamp_seconds{_BROKER} > 0)",
                    _INSTANCE,
                    "s",
                    "Time since the last pass over every replica. Empty before the first pass",
                ),
                _one(
                    "Damaged replicas found",
                    f"sum by (instance) (increase(raftmq_scrub_damaged_replicas_total{_BROKER}[1d]))",
                    _INSTANCE,
                    "short",
                    "Damaged replicas that were found in the last day",
                ),
            ),
        ),
    ),
    (Variable("instance", "raftmq_ready"),),
)

DASHBOARDS: Final = (_CLUSTER, _TOPICS, _GROUPS, _QUEUES, _RAFT, _BROKERS)
