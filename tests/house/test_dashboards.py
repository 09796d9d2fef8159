"""The dashboards are current, show every metric, and ask only for metrics that brokers export."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from raftmq.broker.base.metric_catalog import CATALOG

from scripts.dashboard_panels import DASHBOARDS, Dashboard, Panel, Query
from scripts.dashboards import FOLDER, dashboards, unit
from tests.support.house.promql import QueryError, check, metric_of, metrics_in

ROOT = Path(__file__).parents[2]
PANELS = {f"{board.name}: {panel.title}": panel for board in DASHBOARDS for row in board.rows for panel in row.panels}
QUERIES = {f"{name} {place}": query for name, panel in PANELS.items() for place, query in enumerate(panel.queries)}
BOARDS = pytest.mark.parametrize("board", DASHBOARDS, ids=lambda board: str(board.name))


def test_the_files_are_current() -> None:
    assert {path.name for path in (ROOT / FOLDER).iterdir()} == set(dashboards())
    for name, text in dashboards().items():
        assert (ROOT / FOLDER / name).read_text() == text, "run `make docs`"


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_fits_the_catalogue_and_its_legend_fits_the_query(name: str) -> None:
    query = QUERIES[name]
    labels = check(query.expression)
    named = set(re.findall(r"{{(\w+)}}", query.legend))
    assert named <= labels, "a legend without its label is empty"
    assert labels - {"job"} <= named, "lines that nobody can tell apart"


def test_every_metric_is_on_a_dashboard() -> None:
    shown = set().union(*(metrics_in(query.expression) for query in QUERIES.values()))
    assert set(CATALOG) - shown == set()


@BOARDS
def test_titles_differ_and_variables_exist(board: Dashboard) -> None:
    titles = [panel.title for row in board.rows for panel in row.panels]
    assert len(set(titles)) == len(titles)
    expressions = " ".join(query.expression for row in board.rows for panel in row.panels for query in panel.queries)
    assert set(re.findall(r'"\$(\w+)"', expressions)) == {variable.name for variable in board.variables}
    for variable in board.variables:
        metric = metric_of(variable.metric)
        assert metric is not None
        assert variable.name in {*metric.labels, "instance"}


@BOARDS
def test_panels_do_not_overlap_and_have_ids_and_meanings(board: Dashboard) -> None:
    panels = json.loads(dashboards()[f"{board.name}.json"])["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in panels)
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24
    assert all(panel["description"] for panel in panels if panel["type"] != "row")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("sum(rate(raftmq_appended_bytes_total[1m]))", "Bps"),
        ("sum(rate(raftmq_loop_stalls_total[1m]))", "ops"),
        ("raftmq_map_used_ratio", "percentunit"),
        ("histogram_quantile(0.9, rate(raftmq_commit_seconds_bucket[1m]))", "s"),
        ("raftmq_groups", "short"),
    ],
)
def test_the_unit_follows_from_the_metric(expression: str, expected: str) -> None:
    assert unit(Panel("", (Query(expression, ""),))) == expected


@pytest.mark.parametrize(
    "query",
    [
        "raftmq_no_such_metric",
        "rate(raftmq_ready[1m])",
        "raftmq_appended_bytes_total",
        "sum(raftmq_appended_bytes_total)",
        "raftmq_commit_seconds",
        "raftmq_commit_seconds_bucket",
        "rate(raftmq_commit_seconds_bucket[1m])",
        "deriv(raftmq_appended_bytes_total[1m])",
        "histogram_quantile(0.9, rate(raftmq_commit_seconds_sum[1m]))",
        "histogram_quantile(0.9, sum(rate(raftmq_commit_seconds_bucket[1m])))",
        "sum by (le) (rate(raftmq_commit_seconds_bucket[1m]))",
        "sum by (topic) (raftmq_ready)",
        'raftmq_ready{topic="a"}',
        "raftmq_ready / raftmq_streams",
        "sum(raftmq_ready) / raftmq_ready",
        "raftmq_ready * on (topic) raftmq_ready",
        "raftmq_ready[1m]",
        "rate(raftmq_appended_bytes_total)",
        "1 + 1",
        "raftmq_ready raftmq_ready",
        "absent(raftmq_ready)",
    ],
)
def test_the_reader_refuses_a_query_that_shows_nothing_or_nonsense(query: str) -> None:
    with pytest.raises(QueryError):
        check(query)


def test_the_reader_knows_the_labels_of_a_result() -> None:
    assert check("raftmq_streams > 1") == {"job", "instance", "method"}
    assert check("sum by (method) (raftmq_streams)") == {"method"}
    assert check("histogram_quantile(0.9, rate(raftmq_request_seconds_bucket[5m]))") == {"job", "instance", "kind"}
