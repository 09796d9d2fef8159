"""Check that the Prometheus rules load and use only metrics that brokers export."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from raftmq.broker.base.metric_catalog import CATALOG, Metric
from raftmq.broker.base.readiness import Reason

from tests.support.plain_yaml import parse

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "monitoring"
PAGE = ROOT / "docs" / "guides" / "monitoring.md"

SCRAPED = {"up", "process_open_fds", "process_max_fds"}
"""Metrics of Prometheus itself and of the process collector."""
LABELS_OF_PROMETHEUS = {"job", "instance"}


RULES = parse((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    """Yield each metric of an expression with the text in its braces."""
    for found in re.finditer(r"\b(raftmq_\w+|process_\w+|up)\b(?:\{([^}]*)\})?", expression):
        yield found[1], found[2] or ""


def metric_of(name: str) -> Metric | None:
    """Return the metric of the catalog that a series belongs to."""
    for suffix in ("_bucket", "_sum", "_count"):
        base = CATALOG.get(name.removesuffix(suffix))
        if name.endswith(suffix) and base is not None and base.kind == "histogram":
            return base
    found = CATALOG.get(name)
    return None if found is None or found.kind == "histogram" else found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_has_every_field_and_a_row_on_the_page(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"RaftMQ[A-Z]\w+", rule["alert"])
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert f"`{rule['alert']}`" in PAGE.read_text()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_uses_only_existing_metrics_and_labels(rule: dict[str, Any]) -> None:
    expression = rule["expr"]
    assert expression.count("(") == expression.count(")")
    assert re.search(r" (==|>|<) ", expression)
    found = list(selectors(expression))
    assert found
    labels: set[str] = set(LABELS_OF_PROMETHEUS)
    for name, braces in found:
        metric = metric_of(name)
        assert metric is not None or name in SCRAPED, name
        own = {*metric.labels, "le"} if metric is not None else set()
        labels |= own
        for label, value in re.findall(r'(\w+)[!=~]+"([^"]*)"', braces):
            assert label in own | LABELS_OF_PROMETHEUS, label
            assert label != "reason" or value in set(Reason)
        if metric is not None and (metric.kind == "counter" or name.endswith("_bucket")):
            assert re.search(rf"(rate|increase)\({name}(\{{[^}}]*\}})?\[\d+[smh]\]\)", expression), name
    for group in re.findall(r"by \(([^)]*)\)", expression):
        assert set(group.split(", ")) <= labels
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels


def test_rule_names_are_unique_and_the_page_names_the_same_rules() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) >= 20
    assert set(re.findall(r"`(RaftMQ\w+)`", PAGE.read_text())) == set(names)


def test_the_page_names_only_metrics_that_exist() -> None:
    for name in re.findall(r"raftmq_\w+", PAGE.read_text()):
        assert metric_of(name) is not None or name in CATALOG, name


def test_the_configuration_loads_the_rules_and_scrapes_three_brokers() -> None:
    tree = parse((FOLDER / "prometheus.yml").read_text())
    assert tree["rule_files"] == ["alerts.yml"]
    (scrape,) = tree["scrape_configs"]
    assert scrape["job_name"] == "raftmq"
    assert len(scrape["static_configs"][0]["targets"]) == 3


@pytest.mark.parametrize(
    "text", ["a:\n  b: c\n d: e", "a: b\na: c", "a: {b: c}", "a: b: c", "a:b", "a:\n", "a: 'b", "\ta: b", "a: x > 1"]
)
def test_the_reader_refuses_text_outside_its_subset(text: str) -> None:
    with pytest.raises(AssertionError):
        parse(text)


def test_the_reasons_of_the_page_are_those_of_the_code() -> None:
    table = PAGE.read_text().split("| reason | what to do |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {reason.value for reason in Reason}
