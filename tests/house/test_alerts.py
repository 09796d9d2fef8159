"""Check that the Prometheus rules load, use only metrics that brokers export, and have their sections in the runbook."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from raftmq.broker.base.metric_catalog import CATALOG
from raftmq.broker.base.readiness import Reason

from tests.support.house.promql import check, metric_of
from tests.support.plain_yaml import parse

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "monitoring"
PAGE = ROOT / "docs" / "guides" / "monitoring.md"
RUNBOOK = ROOT / "docs" / "guides" / "alerts.md"

RULES = parse((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_has_every_field_and_its_section_on_the_page(rule: dict[str, Any]) -> None:
    assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"RaftMQ[A-Z]\w+", rule["alert"])
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert ROOT / page == RUNBOOK
    assert anchor == rule["alert"].lower(), "the anchor of the heading"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_a_rule_uses_only_existing_metrics_and_labels(rule: dict[str, Any]) -> None:
    expression = rule["expr"]
    assert re.search(r" (==|>|<) ", expression)
    labels = check(expression)
    for reason in re.findall(r'reason="(\w+)"', expression):
        assert reason in set(Reason)
    for text in rule["annotations"].values():
        assert set(re.findall(r"\$labels\.(\w+)", text)) <= labels


def test_rule_names_are_unique_and_the_page_names_the_same_rules() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names) >= 20
    assert sorted(re.findall(r"^### (RaftMQ\w+)$", RUNBOOK.read_text(), re.MULTILINE)) == sorted(names)


def test_every_alert_is_raised_by_its_fault() -> None:
    tests = (ROOT / "tests/e2e").glob("test_alerts*.py")
    raised = {name for path in tests for name in re.findall(r'"(RaftMQ\w+)"', path.read_text())}
    assert raised == {rule["alert"] for rule in RULES}


def test_every_section_says_more_than_the_rule() -> None:
    for section in RUNBOOK.read_text().split("\n### ")[1:]:
        assert len(section.split()) > 25, section


def test_the_pages_name_only_metrics_and_alerts_that_exist() -> None:
    text = PAGE.read_text() + RUNBOOK.read_text()
    assert set(re.findall(r"RaftMQ[A-Z]\w+", text)) <= {rule["alert"] for rule in RULES}
    for name in re.findall(r"raftmq_\w+", text):
        assert metric_of(name) is not None or name in CATALOG, name


def test_promtool_accepts_the_rules() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run(
        [promtool, "check", "rules", FOLDER / "alerts.yml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(RULES)} rules found" in done.stdout


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
