"""The rules for Prometheus load, and ask only for what brokers export.

There is no YAML parser among the project's dependencies: the file keeps to a plain subset (mappings and lists by indentation,
one scalar per line, quotes around everything that is not a word), and the reader here refuses everything else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from raftmq.broker.base.metric_catalog import CATALOG, Metric
from raftmq.broker.base.readiness import Reason

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "monitoring"
PAGE = ROOT / "docs" / "guides" / "monitoring.md"
Line = tuple[int, str]

WORD = re.compile(r"[A-Za-z0-9_./-]+")
QUOTED = re.compile(r"'(?:[^']|'')*'|\"[^\"\\]*\"")
INLINE_LIST = re.compile(r"\[('[^',]*'(?:, '[^',]*')*)\]")
SCRAPED = {"up", "process_open_fds", "process_max_fds"}
"""Metrics that Prometheus itself or the process collector has."""
LABELS_OF_PROMETHEUS = {"job", "instance"}


def lines_of(text: str) -> list[Line]:
    """(indentation, content); a list item's dash counts as indentation of what follows it."""
    lines: list[Line] = []
    for raw in text.splitlines():
        if raw.strip() and not raw.lstrip().startswith("#"):
            assert "\t" not in raw, raw
            lines.append((len(raw) - len(raw.lstrip()), raw.strip()))
    return lines


def scalar(text: str) -> str | list[str]:
    if found := INLINE_LIST.fullmatch(text):
        return [part.strip("'") for part in found[1].split(", ")]
    if QUOTED.fullmatch(text):
        return text[1:-1].replace("''", "'") if text[0] == "'" else text[1:-1]
    assert WORD.fullmatch(text), f"quote it: {text}"
    return text


def read(lines: list[Line], indentation: int) -> Any:  # a tree of dict, list and str
    """The node at this indentation; takes its lines off the list."""
    if lines[0][1].startswith("- "):
        items = []
        while lines and lines[0][0] == indentation and lines[0][1].startswith("- "):
            lines[0] = (indentation + 2, lines[0][1][2:])
            items.append(read(lines, indentation + 2) if ":" in lines[0][1] else scalar(lines.pop(0)[1]))
        return items
    mapping: dict[str, Any] = {}
    while lines and lines[0][0] == indentation:
        key, separator, rest = lines.pop(0)[1].partition(":")
        assert separator, key
        assert WORD.fullmatch(key), key
        assert key not in mapping, key
        if rest:
            assert rest.startswith(" "), rest
            mapping[key] = scalar(rest.strip())
        else:
            assert lines, key
            assert lines[0][0] > indentation, key
            mapping[key] = read(lines, lines[0][0])
    return mapping


def parse(text: str) -> dict[str, Any]:
    lines = lines_of(text)
    tree = read(lines, 0)
    assert lines == [], f"indentation: {lines[0]}"
    return cast("dict[str, Any]", tree)


RULES = parse((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]


def selectors(expression: str) -> Iterator[tuple[str, str]]:
    """(metric, what is in its braces) of an expression."""
    for found in re.finditer(r"\b(raftmq_\w+|process_\w+|up)\b(?:\{([^}]*)\})?", expression):
        yield found[1], found[2] or ""


def metric_of(name: str) -> Metric | None:
    """The catalog's metric that a series belongs to."""
    for suffix in ("_bucket", "_sum", "_count"):
        base = CATALOG.get(name.removesuffix(suffix))
        if name.endswith(suffix) and base is not None and base.kind == "histogram":
            return base
    found = CATALOG.get(name)
    return None if found is None or found.kind == "histogram" else found


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_has_what_prometheus_and_people_need(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"RaftMQ[A-Z]\w+", rule["alert"])
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description"}
    assert f"`{rule['alert']}`" in PAGE.read_text()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_asks_for_metrics_and_labels_that_exist(rule: dict[str, Any]) -> None:
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


def test_names_are_used_once_and_every_rule_of_the_page_exists() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) >= 20
    assert set(re.findall(r"`(RaftMQ\w+)`", PAGE.read_text())) == set(names)


def test_the_page_names_only_metrics_that_exist() -> None:
    for name in re.findall(r"raftmq_\w+", PAGE.read_text()):
        assert metric_of(name) is not None or name in CATALOG, name


def test_the_configuration_loads_the_rules_for_the_job_they_ask_for() -> None:
    tree = parse((FOLDER / "prometheus.yml").read_text())
    assert tree["rule_files"] == ["alerts.yml"]
    (scrape,) = tree["scrape_configs"]
    assert scrape["job_name"] == "raftmq"
    assert len(scrape["static_configs"][0]["targets"]) == 3


@pytest.mark.parametrize(
    "text", ["a:\n  b: c\n d: e", "a: b\na: c", "a: {b: c}", "a: b: c", "a:b", "a:\n", "a: 'b", "\ta: b", "a: x > 1"]
)
def test_the_reader_refuses_what_is_not_plain(text: str) -> None:
    with pytest.raises(AssertionError):
        parse(text)


def test_the_reasons_of_the_page_are_those_of_the_code() -> None:
    table = PAGE.read_text().split("| reason | what to do |")[1].split("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE)) == {reason.value for reason in Reason}
