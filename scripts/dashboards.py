"""Write the Grafana dashboards of deploy/containers from `dashboard_panels` and the catalogue of metrics.

`scripts.generate_docs` writes them after the reference pages, and `scripts.check_generated` compares them. The chart has copies. A panel is one
line of its file, so that a change shows which panels it concerns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from raftmq.broker.base.metric_catalog import CATALOG

from scripts.dashboard_panels import DASHBOARDS, NOTHING, Dashboard, Panel, Variable

FOLDER: Final = Path("deploy/containers/grafana/dashboards")
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_COLUMNS: Final = 24
_WIDTH: Final = 8
_HEIGHT: Final = 8
_NAME: Final = re.compile(r"\braftmq_\w+")
_UNITS: Final = (("_ratio", "percentunit"), ("_bytes", "bytes"), ("_seconds", "s"))


def first_metric(panel: Panel) -> str:
    """Return the name in the catalogue of the first metric of RaftMQ in a panel. Empty: it has none."""
    for name in _NAME.findall(panel.queries[0].expression):
        return re.sub(r"_(bucket|sum|count)$", "", name) if name not in CATALOG else name
    return NOTHING


def unit(panel: Panel) -> str:
    """Return the panel's unit. Raises KeyError if brokers do not export its metric."""
    name = first_metric(panel)
    if panel.unit or not name:
        return panel.unit or "short"
    if CATALOG[name].kind == "counter" and "rate(" in panel.queries[0].expression:
        return "Bps" if name.endswith("_bytes_total") else "ops"
    return next((found for suffix, found in _UNITS if name.endswith(suffix)), "short")


def _drawn(panel: Panel, number: int, x: int, y: int) -> dict[str, object]:
    defaults: dict[str, object] = {"unit": unit(panel)}
    if not panel.may_be_negative:
        defaults["min"] = 0
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.meaning or CATALOG[first_metric(panel)].text,
        "datasource": _SOURCE,
        "gridPos": {"x": x, "y": y, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for place, query in enumerate(panel.queries)
        ],
    }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, object]]:
    number, y = 0, 0
    for row in dashboard.rows:
        number += 1
        position = {"x": 0, "y": y, "w": _COLUMNS, "h": 1}
        yield {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": position, "panels": []}
        y += 1
        for place, panel in enumerate(row.panels):
            number += 1
            line, column = divmod(place, _COLUMNS // _WIDTH)
            yield _drawn(panel, number, column * _WIDTH, y + line * _HEIGHT)
        y += -(-len(row.panels) * _WIDTH // _COLUMNS) * _HEIGHT


def _variables(variables: tuple[Variable, ...]) -> Iterator[dict[str, object]]:
    yield {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}
    for variable in variables:
        yield {
            "name": variable.name,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": f"label_values({variable.metric}, {variable.name})", "refId": variable.name},
            "refresh": 2,
            "sort": 1,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }


def text_of(dashboard: Dashboard) -> str:
    """Return the file of a dashboard."""
    links = {"type": "dashboards", "title": "RaftMQ", "tags": ["raftmq"], "asDropdown": True, "keepTime": True}
    model = {
        "uid": f"raftmq-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["raftmq"],
        "schemaVersion": 41,
        "editable": False,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "links": [links],
        "templating": {"list": list(_variables(dashboard.variables))},
    }
    head = json.dumps(model, indent=2)[:-2]
    panels = ",\n".join(f"    {json.dumps(panel)}" for panel in _panels(dashboard))
    return f'{head},\n  "panels": [\n{panels}\n  ]\n}}\n'


def dashboards() -> Mapping[str, str]:
    """Return the text of each dashboard, by the name of its file."""
    return {f"{dashboard.name}.json": text_of(dashboard) for dashboard in DASHBOARDS}


def generated() -> Mapping[Path, str]:
    """Return the text of each generated file."""
    return {FOLDER / name: text for name, text in dashboards().items()}
