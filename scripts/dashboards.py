"""Write the Grafana dashboards of deploy/containers from the catalogue of metrics: a panel can only show metrics that brokers export.

`scripts.generate_docs` writes them after the reference pages, and `scripts.check_generated` compares them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, NamedTuple

from raftmq.broker.base.metric_catalog import CATALOG

FILE: Final = Path("deploy/containers/grafana/dashboards/raftmq.json")
_COLUMNS: Final = 2
_WIDTH: Final = 24 // _COLUMNS
_HEIGHT: Final = 8


class Panel(NamedTuple):
    """One graph. `query` has the name of its metric as `{}`."""

    title: str
    metric: str
    query: str
    legend: str
    unit: str = "short"


PANELS: Final = (
    Panel("Ready brokers", "raftmq_ready", "sum({})", "ready"),
    Panel("Partitions without a leader", "raftmq_partitions_without_leader", "min({})", "partitions"),
    Panel("Partitions that lack a replica", "raftmq_under_replicated_partitions", "sum({})", "partitions"),
    Panel("Leaderships", "raftmq_groups_led", "{}", "{{instance}}"),
    Panel("Appended bytes", "raftmq_appended_bytes_total", "sum by (instance) (rate({}[1m]))", "{{instance}}", "Bps"),
    Panel("Polled bytes", "raftmq_polled_bytes_total", "sum by (instance) (rate({}[1m]))", "{{instance}}", "Bps"),
    Panel(
        "99th percentile of commits to disk",
        "raftmq_commit_disk_seconds",
        "histogram_quantile(0.99, sum by (instance, le) (rate({}_bucket[1m])))",
        "{{instance}}",
        "s",
    ),
    Panel(
        "99th percentile of appends",
        "raftmq_request_seconds",
        'histogram_quantile(0.99, sum by (instance, le) (rate({}_bucket{{kind="append"}}[1m])))',
        "{{instance}}",
        "s",
    ),
    Panel("Consumer lag", "raftmq_consumer_lag_seconds", "max by (group, topic) ({})", "{{group}} in {{topic}}", "s"),
    Panel("Ready messages of queues", "raftmq_queue_ready_messages", "sum by (topic) ({})", "{{topic}}"),
    Panel("Free disk space", "raftmq_disk_free_bytes", "{}", "{{instance}}", "bytes"),
    Panel("Longest pause of the event loop", "raftmq_loop_lag_max_seconds", "{}", "{{instance}}", "s"),
)


def expression(panel: Panel) -> str:
    """Return the panel's query. Raises KeyError if brokers do not export its metric."""
    return panel.query.format(CATALOG[panel.metric].name)


def _drawn(number: int, panel: Panel) -> dict[str, object]:
    row, column = divmod(number, _COLUMNS)
    source = {"type": "prometheus", "uid": "prometheus"}
    return {
        "id": number + 1,
        "type": "timeseries",
        "title": panel.title,
        "description": CATALOG[panel.metric].text,
        "datasource": source,
        "gridPos": {"x": column * _WIDTH, "y": row * _HEIGHT, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {"refId": "A", "datasource": source, "expr": expression(panel), "legendFormat": panel.legend},
        ],
    }


def dashboard() -> str:
    """Return the dashboard's file."""
    model = {
        "uid": "raftmq",
        "title": "RaftMQ",
        "schemaVersion": 41,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "panels": [_drawn(number, panel) for number, panel in enumerate(PANELS)],
    }
    return json.dumps(model, indent=2) + "\n"
