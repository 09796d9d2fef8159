"""The chart's values, their schema, README and golden files agree. Tests that run helm are skipped where it is not installed."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from raftmq.broker.base.config import CONFIG_KEYS

from scripts.chart import OWN_KEYS, commented, generated, values
from tests.support.helm.chart import NAMES
from tests.support.helm.render import CHART, ROOT, VALUES, golden, helm, rendered

TEXT = (CHART / "values.yaml").read_text()
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")


def keys(tree: Any, schema: dict[str, Any], path: str = "") -> tuple[set[str], set[str]]:
    """Return the dotted names of the defaults and of the schema, as deep as both are closed objects."""
    named, declared = {path}, {path}
    if schema.get("additionalProperties") is False and path != ".config":
        own = schema["properties"].keys() - {"global"}
        for key in tree.keys() | own:
            inner = (
                keys(tree.get(key), schema["properties"].get(key, {}), f"{path}.{key}")
                if key in tree
                else (set(), {f"{path}.{key}"})
            )
            named |= inner[0]
            declared |= inner[1] if key in own else set()
    return named, declared


def test_the_schema_has_the_values_of_the_chart_and_no_others() -> None:
    named, declared = keys(yaml.safe_load(TEXT), SCHEMA)
    assert named == declared
    assert len(named) > 30


def test_every_value_has_one_comment() -> None:
    named = {name.lstrip(".") for name in keys(yaml.safe_load(TEXT), SCHEMA)[0]} - {""}
    rows = {name: is_group for name, _, is_group in commented(TEXT)}
    groups = {name for name in named if any(other.startswith(f"{name}.") for other in named)}
    inside_resources = {"resources.requests", "resources.limits"}
    assert rows.keys() == named - inside_resources
    assert {name for name, is_group in rows.items() if is_group} == groups - {"resources"}
    assert {row.name for row in values(TEXT)} == named - inside_resources - (groups - {"resources"})


def test_a_comment_without_a_value_is_refused() -> None:
    with pytest.raises(ValueError, match="no value"):
        list(commented("# about\n\na: 1\n# lost\n"))
    with pytest.raises(ValueError, match="two comments"):
        list(commented("# about\n\n# one\n# two\na: 1\n"))


@pytest.mark.parametrize("file", generated(), ids=str)
def test_a_generated_file_is_current(file: Path) -> None:
    assert (ROOT / file).read_text() == generated()[file], "run `make docs`"


def test_the_chart_sets_existing_settings_and_permits_all_others() -> None:
    assert CONFIG_KEYS.keys() >= OWN_KEYS
    assert SCHEMA["properties"]["config"]["properties"].keys() == CONFIG_KEYS.keys() - OWN_KEYS


def test_the_chart_has_the_version_of_the_project() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    with (ROOT / "pyproject.toml").open("rb") as file:
        assert chart["appVersion"] == tomllib.load(file)["project"]["version"]


def test_the_defaults_of_the_values_are_those_of_the_product() -> None:
    assert yaml.safe_load(TEXT)["shutdownSeconds"] == CONFIG_KEYS["shutdown_seconds"].default


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_the_golden_file_is_what_helm_renders(name: str) -> None:
    assert rendered(name) == golden(name).read_text(), "run `make helm`"


@needs_helm
@pytest.mark.parametrize("name", NAMES)
def test_helm_finds_no_fault(name: str) -> None:
    done = helm("lint", CHART, "--strict", "--values", VALUES[name])
    assert done.returncode == 0, done.stdout


@needs_helm
@pytest.mark.parametrize(
    "setting",
    [
        "replicas=0",
        "replica=3",
        "antiAffinity=always",
        "config.brokr_id=4",
        "config.broker_id=4",
        "config.bootstrap=true",
        "external.enabled=true",
        "storage.size=big",
        "fullnameOverride=Orders",
    ],
)
def test_a_mistyped_value_is_refused(setting: str) -> None:
    done = helm("template", "raftmq", CHART, "--set", setting)
    assert done.returncode != 0
    assert setting.partition("=")[0].split(".")[0] in done.stderr


@needs_helm
@pytest.mark.parametrize("setting", ["replicas=4", "image.tag=0.2.0", "clusterDomain=other"])
def test_a_changed_job_gets_another_name(setting: str) -> None:
    """Kubernetes refuses a change of a job, and with it the upgrade."""

    def name(*options: str) -> str:
        done = helm("template", "raftmq", CHART, *options, "--show-only", "templates/init-job.yaml")
        return str(yaml.safe_load(done.stdout)["metadata"]["name"])

    assert name("--set", setting) != name()
    assert name("--set", "minReadySeconds=5") == name()


@needs_helm
def test_one_broker_more_leaves_the_template_of_the_pods_as_it_is() -> None:
    def template(replicas: int) -> Any:
        done = helm(
            "template", "raftmq", CHART, "--set", f"replicas={replicas}", "--show-only", "templates/statefulset.yaml"
        )
        return yaml.safe_load(done.stdout)["spec"]["template"]

    assert template(3) == template(4)
