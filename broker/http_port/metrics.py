"""Write the page /metrics: copy the node's numbers on the event loop, and format them in a thread.

Values are read when a scrape arrives. Events are counted in plain integers by the code that handles them. A scrape costs the event
loop microseconds per partition. It must not change anything. `metric_catalog.py` lists the metrics with their meanings.
"""

from __future__ import annotations

import asyncio
import platform
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

import structlog
from prometheus_client import CollectorRegistry, GCCollector, ProcessCollector
from raftmq.broker.base.budget import Budget
from raftmq.broker.base.histogram import Histogram
from raftmq.broker.base.log_throttle import LogThrottle
from raftmq.broker.base.metric_catalog import CATALOG
from raftmq.broker.base.readiness import Reason
from raftmq.broker.base.request_error import RequestError
from raftmq.broker.cluster.other_clusters import OtherClusters
from raftmq.broker.cluster.standing import Standing
from raftmq.broker.cluster.unserved import NotServedReason
from raftmq.broker.cluster.upkeep import Upkeep
from raftmq.broker.data_port.port import DataPort
from raftmq.broker.http_port.consumer_lag import ConsumerLag, Lag
from raftmq.broker.http_port.exposition import Samples, Value, page
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.replica.disk import Idle
from raftmq.broker.replica.replica import Replica
from raftmq.broker.services.host import ServiceHost
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.producer_names import NAMED_PRODUCERS_MAX
from raftmq.raft.ready import Role
from raftmq.types import GroupId

if TYPE_CHECKING:
    from raftmq.broker.base.config import BrokerConfig
    from raftmq.broker.base.gc_pauses import GcPauses
    from raftmq.broker.base.supervisor import Supervisor
    from raftmq.broker.base.watchdog import Watchdog
    from raftmq.broker.cluster.clock_watch import ClockWatch
    from raftmq.broker.cluster.disk_watch import DiskWatch
    from raftmq.broker.grpc_port.server import GrpcServer
    from raftmq.broker.peers.protocol import Channel
    from raftmq.broker.peers.transport import PeerTransport
    from raftmq.broker.replica.engine import Engine
    from raftmq.storage.log_store import LogStore, ReplicaKey

log = structlog.get_logger(__name__)

_Sample = tuple[tuple[str, ...], float]
_Named = tuple[tuple[str, str], Partition]
"""The labels of a partition that is served here, and the partition."""
_TASKS: Final = Path("/proc/self/task")


class MetricsHost(Protocol):
    """The parts of a node that metrics and health are read from."""

    config: BrokerConfig
    version: str
    standing: Standing
    engine: Engine
    transport: PeerTransport
    watchdog: Watchdog
    gc_pauses: GcPauses
    grpc: GrpcServer
    data_port: DataPort
    partitions: Mapping[GroupId, Partition]
    disk_watch: DiskWatch
    supervisor: Supervisor
    upkeep: Upkeep
    clock_watch: ClockWatch
    other_clusters: OtherClusters

    @property
    def view(self) -> ServiceHost:
        """Return the node as its services see it."""
        ...

    @property
    def store(self) -> LogStore:
        """Return the store of its replicas."""
        ...


class HttpConnections(Protocol):
    """The connections of the HTTP port, which serves the metrics."""

    evicted_total: int
    """Connections closed since the start because there were too many."""

    @property
    def connections(self) -> int:
        """Return the number of open connections."""
        ...


class BrokerMetrics:
    """Renders one node's /metrics."""

    def __init__(self, host: MetricsHost, http: HttpConnections) -> None:
        self._host = host
        self._http = http
        self._lag = ConsumerLag(host.view, host.view.limits, host.view.timing)
        self._unknown = LogThrottle()
        self._python = CollectorRegistry()
        ProcessCollector(registry=self._python)
        GCCollector(registry=self._python)

    async def render(self) -> bytes:
        """Return the page in the text exposition format."""
        named = [(labels[0], partition) for labels, partition in _named_partitions(self._host)]
        lag = await self._lag.measure(named)
        partitions = _named_partitions(self._host)  # the set may have changed during the await
        values = self.read(partitions) | _lag_values(lag)
        text = await asyncio.to_thread(
            self._render, values, [(labels, partition.replica.key) for labels, partition in partitions]
        )
        self._report_unknown(values)
        return text

    def read(self, partitions: Sequence[_Named]) -> dict[str, Value]:
        """Copy the values that the page shows. Runs on the event loop without an await, so all values belong to one moment."""
        started_at = time.perf_counter()
        host = self._host
        values: dict[str, Value] = {
            **_node_values(host),
            **_request_values(host),
            **_engine_values(host),
            **_group_values(host),
            **_peer_values(host),
            **_budget_values(host, self._http),
            **_partition_values(partitions),
        }
        values["raftmq_scrape_loop_seconds"] = time.perf_counter() - started_at
        return values

    def _report_unknown(self, values: Mapping[str, Value]) -> None:
        """Log the names that the catalog lacks. The page left them out: an operator needs the others more than an error."""
        for name in values.keys() - CATALOG.keys():
            if self._unknown.is_due(name):
                log.error("metric_unknown", metric=name)

    def _render(self, values: dict[str, Value], files: list[tuple[tuple[str, str], ReplicaKey]]) -> bytes:
        """Add the values that need system calls, and format the page. Runs in a thread."""
        values["raftmq_process_threads"] = _thread_count()
        clients = self._host.grpc.connections.count()
        cast("list[_Sample]", values["raftmq_slots_used"]).append((("client_connections",), float(clients)))
        values["raftmq_partition_file_bytes"] = [(labels, self._host.store.file_bytes(key)) for labels, key in files]
        return page(values, self._python)


def _thread_count() -> int:
    try:
        return sum(1 for _ in _TASKS.iterdir())
    except OSError:  # without /proc, threads that Python does not know are not counted
        return threading.active_count()


def _node_values(host: MetricsHost) -> dict[str, Value]:
    reasons = {not_ready.reason for not_ready in host.standing.not_ready_reasons()}
    config, disk = host.config, host.disk_watch
    return {
        "raftmq_build_info": [((host.version, platform.python_version()), 1.0)],
        "raftmq_broker_info": [((str(host.view.node_id), host.view.cluster_id, config.host_label(), config.rack), 1.0)],
        "raftmq_ready": float(not reasons),
        "raftmq_not_ready": [((reason.value,), float(reason in reasons)) for reason in Reason],
        "raftmq_background_failures_total": [
            ((work.value,), float(count)) for work, count in host.supervisor.failures.items()
        ],
        "raftmq_other_clusters": float(len(host.other_clusters.addresses())),
        "raftmq_disk_free_bytes": float(disk.free_bytes),
        "raftmq_disk_reserve_bytes": float(disk.reserve_bytes),
        "raftmq_clock_offset_seconds": host.clock_watch.offset_seconds,
        "raftmq_writes_refused": float(host.engine.write_refusal is not None),
    }


def _request_values(host: MetricsHost) -> dict[str, Value]:
    counted, log, admission = host.grpc.metrics, host.grpc.log, host.grpc.admission
    return {
        "raftmq_requests_total": [*counted.requests.items()],
        "raftmq_request_seconds": [((kind,), seconds.copy()) for kind, seconds in counted.seconds.items()],
        "raftmq_partition_refusals_total": [*counted.refusals.items()],
        "raftmq_slow_requests_total": [((method,), float(count)) for method, count in counted.slow.total.items()],
        "raftmq_streams": [((method,), float(count)) for method, count in counted.streams.items()],
        "raftmq_parked_polls": float(log.parked_polls),
        "raftmq_topology_watchers": float(host.grpc.topology.watchers),
        "raftmq_client_received_bytes_total": float(admission.received_bytes + host.data_port.received_bytes),
        "raftmq_client_sent_bytes_total": float(admission.sent_bytes + host.data_port.sent_bytes),
        "raftmq_appended_batches_total": float(log.appended_batches_total),
        "raftmq_appended_bytes_total": float(log.appended_bytes_total),
        "raftmq_polled_batches_total": float(log.polled_batches_total),
        "raftmq_polled_bytes_total": float(log.polled_bytes_total),
        "raftmq_evictions_total": [
            ((name,), float(budget.evictions)) for name, budget in _shared_budgets(host).items()
        ],
    }


def _engine_values(host: MetricsHost) -> dict[str, Value]:
    engine, watchdog = host.engine, host.watchdog
    counted = engine.counters
    now = host.view.loop.time()
    disks = (replica.disk for replica in engine.replicas.values())
    in_flight = (now - disk.started_at for disk in disks if not isinstance(disk, Idle))
    return {
        "raftmq_commit_seconds": counted.commit_seconds.copy(),
        "raftmq_commit_disk_seconds": counted.commit_disk_seconds.copy(),
        "raftmq_commit_entries": counted.commit_entries.copy(),
        "raftmq_commit_bytes": counted.commit_bytes.copy(),
        "raftmq_commit_oldest_seconds": max(in_flight, default=0.0),
        "raftmq_scrubbed_bytes_total": float(host.upkeep.scrubber.bytes_total),
        "raftmq_scrub_last_pass_timestamp_seconds": host.upkeep.scrubber.last_pass_ms / 1000,
        "raftmq_scrub_damaged_replicas_total": float(host.upkeep.scrubber.damaged_total),
        "raftmq_map_used_ratio": engine.map_used_fraction_max,
        "raftmq_loop_lag_seconds": watchdog.lag.copy(),
        "raftmq_loop_lag_max_seconds": watchdog.lag_seconds_max(),
        "raftmq_loop_stalls_total": float(counted.stalls_total),
        "raftmq_space_returned_bytes_total": float(counted.space_returned_bytes_total),
        "raftmq_engine_pass_seconds": counted.pass_seconds.copy(),
        "raftmq_gc_pause_seconds": host.gc_pauses.seconds.copy(),
        "raftmq_elections_started_total": float(counted.elections_total),
        "raftmq_elections_won_total": float(counted.elections_won_total),
        "raftmq_leaderships_lost_total": float(counted.leaderships_lost_total),
        "raftmq_snapshots_sent_total": float(engine.snapshots.sent_total),
        "raftmq_snapshots_resumed_total": float(engine.receiver.resumed_total),
        "raftmq_snapshot_copies_made_total": float(engine.snapshots.copies.made_total),
        "raftmq_snapshot_copy_bytes": float(engine.snapshots.copies.disk_bytes),
        "raftmq_moved_bytes_total": float(engine.copy_pace.sent_bytes),
        "raftmq_snapshots_installed_total": float(engine.snapshots.installed_total),
        "raftmq_dropped_messages_total": float(counted.dropped_messages_total),
    }


def _group_values(host: MetricsHost) -> dict[str, Value]:
    replicas = host.engine.replicas.values()
    values: dict[str, Value] = {
        "raftmq_groups": float(len(replicas)),
        "raftmq_groups_led": float(sum(replica.role is Role.LEADER for replica in replicas)),
        "raftmq_groups_without_leader": float(sum(not replica.core.leader_id for replica in replicas)),
    }
    replica = _metadata_replica(host)
    if replica is None:
        return values
    metadata = replica.state_machine
    not_served = dict.fromkeys(NotServedReason, 0)
    for one in host.standing.not_served():
        not_served[one.reason] += 1
    group_ids = (group_id for topic in metadata.topics() for group_id in topic.group_ids)
    return values | {
        "raftmq_metadata_is_leader": float(replica.role is Role.LEADER),
        "raftmq_metadata_term": float(replica.term),
        "raftmq_producer_names": float(replica.state_machine.producer_name_count),
        "raftmq_producer_names_used_ratio": replica.state_machine.producer_name_count / NAMED_PRODUCERS_MAX,
        "raftmq_metadata_applied_index": float(replica.core.applied_index),
        "raftmq_partitions_without_leader": float(
            sum(not host.view.is_led(GroupId(group_id)) for group_id in group_ids)
        ),
        "raftmq_under_replicated_partitions": float(len(host.view.replication.under_replicated())),
        "raftmq_metadata_voters_behind": float(len(host.view.replication.metadata_voters_behind())),
        "raftmq_given_up_moves": float(len(metadata.given_up_partitions()) if replica.role is Role.LEADER else 0),
        "raftmq_consumer_groups": float(metadata.consumer_group_count),
        "raftmq_consumer_group_members": float(metadata.member_count),
        "raftmq_consumer_group_members_expired_total": float(host.grpc.coordinator.expired_total),
        "raftmq_consumer_group_assignments_total": float(host.grpc.coordinator.plans_total),
        "raftmq_quarantined_replicas": float(len(host.view.quarantined())),
        "raftmq_replicas_not_served": [((reason.value,), float(count)) for reason, count in not_served.items()],
    }


def _metadata_replica(host: MetricsHost) -> Replica[Metadata] | None:
    """Return the metadata replica, or None before the node belongs to a cluster or while a metadata snapshot is installed."""
    try:
        return host.view.metadata if host.view.cluster_id else None
    except RequestError:
        return None


def _peer_values(host: MetricsHost) -> dict[str, Value]:
    transport = host.transport
    return {
        "raftmq_peer_connected": [((str(node),), float(is_up)) for node, is_up in transport.connections().items()],
        "raftmq_peer_sent_bytes_total": _by_channel(transport.sent_bytes),
        "raftmq_peer_received_bytes_total": _by_channel(transport.received_bytes),
        "raftmq_peer_requests_refused_total": float(transport.requests.refused_total),
        "raftmq_peer_unsent_bytes": float(transport.unsent_bytes_max()),
    }


def _by_channel(counts: Mapping[Channel, int]) -> Samples:
    return [((channel.name.lower(),), float(count)) for channel, count in counts.items()]


def _shared_budgets(host: MetricsHost) -> dict[str, Budget]:
    port = host.data_port
    return host.grpc.admission.budgets() | {"data_connections": port.connections, "requests": port.requests}


def _budget_values(host: MetricsHost, http: HttpConnections) -> dict[str, Value]:
    engine, transport, limits = host.engine, host.transport, host.engine.limits
    shared = _shared_budgets(host)
    of_bytes = {name: shared.pop(name) for name in ("receiving", "requests", "unsent")}
    budgets = {
        "uncommitted": (engine.uncommitted_bytes, limits.uncommitted_bytes_max),
        "inbound_append": (engine.inbound_bytes, limits.inbound_append_bytes_max),
        "recent_entries": (engine.recent_budget.bytes_used, limits.recent_entries_bytes_max),
        "peer_read_buffers": (transport.read_buffer_bytes, limits.peer_read_buffer_bytes_max),
        "peer_outbox": (transport.unsent_bytes_max(), limits.peer_outbox_bytes_max),
        "peer_requests": (transport.requests.bytes, limits.inbound_requests_bytes_max),
    } | {name: (budget.size, budget.size_max) for name, budget in of_bytes.items()}
    handshakes = transport.handshakes
    slots = {name: (budget.size, budget.size_max) for name, budget in shared.items()} | {
        "replicas": (len(host.view.partition_replicas()), limits.partitions_max),
        "campaigns": (engine.campaigns.held, limits.campaigns_max),
        "snapshot_streams": (engine.snapshots.streams, limits.snapshot_streams_max),
        "data_handshakes": (host.data_port.handshakes, limits.data_handshakes_max),
        "http_connections": (http.connections, limits.http_connections_max),
        "peer_handshakes": (handshakes, limits.peer_handshakes_max),
        "peer_connections": (transport.inbound_connections - handshakes, limits.peer_connections_max),
    }
    return {
        "raftmq_budget_used_bytes": [((name,), float(used)) for name, (used, _) in budgets.items()],
        "raftmq_budget_limit_bytes": [((name,), float(limit)) for name, (_, limit) in budgets.items()],
        "raftmq_slots_used": [((name,), float(used)) for name, (used, _) in slots.items()],
        "raftmq_slots_limit": [
            *(((name,), float(limit)) for name, (_, limit) in slots.items()),
            (("client_connections",), float(limits.client_connections_max)),
        ],
        "raftmq_connections_evicted_total": [
            (("client",), float(host.grpc.connections.evicted_total)),
            (("data",), float(host.data_port.evicted_total)),
            (("http",), float(http.evicted_total)),
            (("peer",), float(transport.evicted_total)),
        ],
    }


def _partition_values(partitions: Sequence[_Named]) -> dict[str, Value]:
    uncommitted: list[_Sample] = []
    led: list[_Sample] = []
    behind: list[_Sample] = []
    of_kinds: dict[str, list[tuple[tuple[str, str], float | Histogram]]] = {}
    for labels, partition in partitions:
        core = partition.replica.core
        last_index = core.last_index
        is_leader = core.role is Role.LEADER
        uncommitted.append((labels, last_index - core.commit_index))
        led.append((labels, float(is_leader)))
        if is_leader:
            behind.append((labels, last_index - min(core.match_indexes().values(), default=last_index)))
        for name, value in partition.samples():
            of_kinds.setdefault(name, []).append((labels, value))
    return {
        "raftmq_producer_table_used_ratio": _fullest_producer_table(partition for _, partition in partitions),
        "raftmq_partition_uncommitted_entries": uncommitted,
        "raftmq_partition_is_leader": led,
        "raftmq_partition_follower_lag_entries": behind,
        **of_kinds,
    }


def _lag_values(lag: Lag) -> dict[str, Value]:
    return {
        "raftmq_consumer_lag_records": [(reader, float(records)) for reader, records in lag.records.items()],
        "raftmq_consumer_lag_seconds": [*lag.seconds.items()],
        "raftmq_consumer_lag_left_out": [
            (("readers",), float(lag.left_out_readers)),
            (("ages",), float(lag.left_out_ages)),
        ],
    }


def _fullest_producer_table(partitions: Iterable[Partition]) -> float:
    """Return the used fraction of the fullest producer table. A table is looked through only if it may be the fullest."""
    fullest = 0.0
    for partition in sorted(partitions, key=lambda partition: len(partition.producers), reverse=True):
        producers = partition.producers
        if len(producers) <= fullest * producers.named_max:
            break
        fullest = max(fullest, producers.used_ratio(partition.expiry_now_ms))
    return fullest


def _named_partitions(host: MetricsHost) -> list[_Named]:
    """Return every partition served here that metadata knows, with its (topic, partition)."""
    metadata_replica = _metadata_replica(host)
    if metadata_replica is None:
        return []
    metadata = metadata_replica.state_machine
    named: list[_Named] = []
    for partition in host.partitions.values():
        view = metadata.partition(partition.replica.group_id)
        topic = metadata.topic(view.topic_id) if view is not None else None
        if view is not None and topic is not None:
            named.append(((topic.name, str(view.partition)), partition))
    return named
