"""Prometheus metrics: requests are counted as they happen, everything else is read from the engine on a scrape.

A scrape copies numbers on the loop (microseconds per partition) and renders them in a thread. Labels are bounded: methods,
codes, and the partitions a node may hold.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from raftmq.broker.service_host import ServiceHost
from raftmq.raft.ready import Role
from raftmq.types import METADATA_GROUP_ID

if TYPE_CHECKING:
    from raftmq.broker.engine import Engine
    from raftmq.broker.group_coordinator import GroupCoordinator
    from raftmq.broker.reconciler import Reconciler
    from raftmq.broker.services.queue import QueueService
    from raftmq.broker.services.topology import TopologyService
    from raftmq.broker.watchdog import Watchdog
    from raftmq.fsm.metadata import Metadata
    from raftmq.storage.log_store import ReplicaKey

disable_created_metrics()  # type: ignore[no-untyped-call]  # a second sample for each counter that says when it was first counted: nobody asks

LATENCY_BUCKETS_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""From one commit on a fast disk to a call's default deadline."""


class RequestMetrics:
    """Counts calls. Cheap: no label is looked up twice for a method and code that were seen before."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.queue: QueueService | None = None
        self.topology: TopologyService | None = None
        self.coordinator: GroupCoordinator | None = None
        self._requests = Counter(
            "raftmq_requests_total",
            "Calls answered, by method and error code",
            ("method", "code"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "raftmq_request_seconds",
            "Time to answer a call, waiting of long polls included",
            ("method",),
            buckets=LATENCY_BUCKETS_SECONDS,
            registry=self.registry,
        )
        self._streams = Gauge("raftmq_streams", "Streams open now", ("method",), registry=self.registry)
        self._counters: dict[tuple[str, str], Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        ProcessCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def observe(self, method: str, code: str, seconds: float) -> None:
        """A call was answered."""
        counter = self._counters.get((method, code))
        if counter is None:
            counter = self._counters[method, code] = self._requests.labels(method, code)
        counter.inc()
        histogram = self._histograms.get(method)
        if histogram is None:
            histogram = self._histograms[method] = self._seconds.labels(method)
        histogram.observe(seconds)

    def stream_started(self, method: str) -> None:
        """A stream was opened."""
        self._streams.labels(method).inc()

    def stream_ended(self, method: str) -> None:
        """A stream ended."""
        self._streams.labels(method).dec()


class MetricsHost(ServiceHost, Protocol):
    """The node as its metrics see it."""

    engine: Engine
    watchdog: Watchdog
    reconciler: Reconciler

    def quarantined(self) -> dict[ReplicaKey, str]:
        """Damaged replicas here, with the reason."""
        ...


@dataclass(slots=True)
class _PartitionNumbers:
    topic: str
    partition: str
    log_start_offset: int
    high_watermark: int
    appended_bytes: int
    commit_lag: int
    is_leader: bool


@dataclass(slots=True)
class EngineNumbers:
    """Everything a scrape shows of the node, copied on the loop."""

    gauges: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Name → (help, value)."""
    counters: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    partitions: list[_PartitionNumbers] = field(default_factory=list)


def read_numbers(host: MetricsHost, requests: RequestMetrics) -> EngineNumbers:
    """Copy what a scrape shows. Runs on the loop, where nothing changes meanwhile."""
    engine, counted, watchdog = host.engine, host.engine.counters, host.watchdog
    groups = list(engine.groups.values())
    now = host.loop.time()
    gauges = {
        "raftmq_up": ("1 while the broker runs", 1.0),
        "raftmq_ready": ("1 when the node is ready", 0.0 if host.not_ready_reasons() else 1.0),
        "raftmq_groups": ("Raft groups with a replica here", len(groups)),
        "raftmq_groups_led": ("Raft groups led here", sum(group.role is Role.LEADER for group in groups)),
        "raftmq_groups_without_leader": (
            "Raft groups here whose leader is not known",
            sum(not group.core.leader_id for group in groups),
        ),
        "raftmq_uncommitted_bytes": ("Payload proposed here and not yet applied", engine.uncommitted_bytes),
        "raftmq_inbound_bytes": ("Payload received from leaders and not yet durable", engine.inbound_bytes),
        "raftmq_recent_entries_bytes": ("Recent batches kept in memory", engine.recent_budget.bytes_used),
        "raftmq_oldest_append_seconds": (
            "Age of the oldest write in flight",
            max((now - group.append_started_at for group in groups if group.append_in_flight), default=0.0),
        ),
        "raftmq_writes_refused": (
            "1 while appends are refused (disk reserve)",
            float(engine.write_refusal is not None),
        ),
        "raftmq_map_used_fraction_max": (
            "Part of its map that the fullest replica file uses (0-1)",
            engine.map_used_fraction_max,
        ),
        "raftmq_loop_lag_seconds": ("Latest measured lag of the event loop", watchdog.lag_seconds),
        "raftmq_loop_lag_max_seconds": ("Largest lag of the event loop so far", watchdog.lag_seconds_max),
    }
    counters = {
        "raftmq_commits": ("Write transactions that became durable", float(counted.commits_total)),
        "raftmq_commit_seconds": ("Time spent in them, queueing included", counted.commit_seconds_total),
        "raftmq_elections": ("Elections this node stood in", float(counted.elections_total)),
        "raftmq_stalls": ("Times the event loop stood still", float(counted.stalls_total)),
        "raftmq_dropped_messages": (
            "Messages to peers dropped for want of room",
            float(counted.dropped_messages_total),
        ),
    }
    if requests.queue is not None:
        queue = requests.queue
        counters["raftmq_appended_batches"] = ("Batches committed for clients", float(queue.appended_batches_total))
        counters["raftmq_appended_bytes"] = ("Bytes of these batches", float(queue.appended_bytes_total))
        counters["raftmq_polled_batches"] = ("Batches handed to clients", float(queue.polled_batches_total))
        counters["raftmq_polled_bytes"] = ("Bytes of these batches", float(queue.polled_bytes_total))
        gauges["raftmq_parked_polls"] = ("Long polls waiting", queue.parked_polls)
    if requests.topology is not None:
        gauges["raftmq_topology_watchers"] = ("Clients watching the topology", requests.topology.watchers)
    if requests.coordinator is not None:
        counters["raftmq_consumer_group_members_expired"] = (
            "Members of consumer groups put out by this coordinator because nothing was heard of them",
            float(requests.coordinator.expired_total),
        )
        counters["raftmq_consumer_group_assignments"] = (
            "Assignments computed by this coordinator",
            float(requests.coordinator.plans_total),
        )
    metadata = engine.groups.get(METADATA_GROUP_ID)
    if metadata is not None:
        gauges["raftmq_metadata_applied_index"] = ("Metadata revision of this node", metadata.core.applied_index)
        gauges["raftmq_metadata_term"] = ("Term of the metadata group", metadata.term)
        gauges["raftmq_quarantined_replicas"] = ("Damaged replicas here, not replaced yet", len(host.quarantined()))
        if host.cluster_id:
            machine = cast("Metadata", metadata.machine)
            gauges["raftmq_consumer_groups"] = ("Consumer groups in the cluster", machine.consumer_group_count)
            gauges["raftmq_consumer_group_members"] = ("Members of all consumer groups", machine.member_count)
            gauges["raftmq_under_replicated_partitions"] = (
                "Partitions led here that a wanted replica does not vote in, or whose node is not connected",
                host.reconciler.under_replicated(),
            )
    return EngineNumbers(gauges, counters, _read_partitions(host))


def _read_partitions(host: MetricsHost) -> list[_PartitionNumbers]:
    groups = host.partition_groups()
    if not groups:
        return []
    metadata = host.metadata.machine
    numbers: list[_PartitionNumbers] = []
    for group in groups:
        partition = metadata.partition(group.group_id)
        topic = metadata.topic(partition.topic_id) if partition is not None else None
        if partition is not None and topic is not None:
            machine, core = group.machine, group.core
            numbers.append(
                _PartitionNumbers(
                    topic.name,
                    str(partition.partition),
                    machine.log_start_offset,
                    machine.next_offset,
                    machine.appended_bytes,
                    core.last_index - core.commit_index,
                    group.role is Role.LEADER,
                )
            )
    return numbers


class _EngineCollector:
    """Makes metric families of numbers already copied."""

    def __init__(self, numbers: EngineNumbers) -> None:
        self._numbers = numbers

    def collect(self) -> Iterable[Metric]:
        """See prometheus_client."""
        for name, (text, value) in self._numbers.gauges.items():
            yield GaugeMetricFamily(name, text, value=value)
        for name, (text, value) in self._numbers.counters.items():
            yield CounterMetricFamily(name, text, value=value)
        labels = ("topic", "partition")
        start = GaugeMetricFamily("raftmq_partition_log_start_offset", "First readable offset", labels=labels)
        end = GaugeMetricFamily(
            "raftmq_partition_high_watermark", "Offset after the last committed record", labels=labels
        )
        lag = GaugeMetricFamily("raftmq_partition_uncommitted_entries", "Entries not yet committed", labels=labels)
        led = GaugeMetricFamily("raftmq_partition_is_leader", "1 when this node leads the partition", labels=labels)
        size = CounterMetricFamily("raftmq_partition_appended_bytes", "Payload ever applied", labels=labels)
        for one in self._numbers.partitions:
            key = (one.topic, one.partition)
            start.add_metric(key, one.log_start_offset)
            end.add_metric(key, one.high_watermark)
            lag.add_metric(key, one.commit_lag)
            led.add_metric(key, float(one.is_leader))
            size.add_metric(key, one.appended_bytes)
        yield from (start, end, lag, led, size)


class BrokerMetrics:
    """One node's /metrics."""

    def __init__(self, host: MetricsHost, requests: RequestMetrics) -> None:
        self._host = host
        self._requests = requests

    async def render(self) -> bytes:
        """The text exposition format."""
        started = time.perf_counter()
        numbers = read_numbers(self._host, self._requests)
        seconds = time.perf_counter() - started
        return await asyncio.to_thread(self._render, numbers, seconds)

    def _render(self, numbers: EngineNumbers, loop_seconds: float) -> bytes:
        registry = CollectorRegistry()
        registry.register(_EngineCollector(numbers))
        Gauge("raftmq_scrape_loop_seconds", "Time this scrape took on the event loop", registry=registry).set(
            loop_seconds
        )
        return generate_latest(registry) + generate_latest(self._requests.registry)
