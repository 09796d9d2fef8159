"""The Dockerfile and docker-compose.yml keep their promises, and their commands and settings are those of the real command."""

from __future__ import annotations

import re

import pytest
from raftmq.broker.base.config import load_config
from raftmq.cli.main import app
from typer.main import get_command

from scripts.dashboards import FOLDER
from tests.support.compose import BROKERS, COMPOSE, DOCKERFILE, ROOT, SERVICES, of_image, seconds, words_of
from tests.support.plain_yaml import parse

OWN = [name for name, service in SERVICES.items() if service["image"] == "raftmq"]


def test_the_image_runs_as_another_user_than_root_from_wheels_with_a_health_check() -> None:
    last = DOCKERFILE.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", last, re.MULTILINE)
    assert "pip install" not in last, "only the build stage has compilers, sources and pip's cache"
    assert re.search(r"--no-index --find-links /wheels", DOCKERFILE)
    extras = re.findall(r"'\S+\[(.+)\]'", DOCKERFILE)
    assert extras == ["server,otel"] * 2, "every setting of a broker works, `tracing_endpoint`, too"
    assert re.search(r"^HEALTHCHECK .*/healthz", last, re.MULTILINE)
    assert of_image("ENTRYPOINT") == ["tini", "--", "raftmq"]


def test_the_build_context_has_every_package_of_the_wheel() -> None:
    context = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    folders = set(re.findall(r'^"raftmq[\w.]*" = "(\w+)', (ROOT / "pyproject.toml").read_text(), re.MULTILINE))
    assert folders - {"api/proto"} <= context
    assert all((ROOT / name).exists() for name in context)


@pytest.mark.parametrize("service", OWN)
def test_a_service_is_locked_down_and_its_command_exists(service: str) -> None:
    facts = SERVICES[service]
    assert (facts["read_only"], facts["cap_drop"]) == ("true", ["ALL"])
    assert facts["security_opt"] == ["no-new-privileges:true"]
    words = words_of(service)
    assert words[:2] == ["tini", "--"]
    if words[2] == "raftmq":
        group, name, *options = words[3:]
        command = get_command(app).commands[group].commands[name]  # type: ignore[attr-defined]  # typer's own copy of click
        command.make_context(name, options, resilient_parsing=False)
    else:
        assert (ROOT / words[3].replace("/srv/examples", "examples/containers")).is_file()


@pytest.mark.parametrize("number", range(len(BROKERS)))
def test_all_brokers_have_the_same_settings_but_their_number_and_addresses(number: int) -> None:
    name = BROKERS[number]
    environment = SERVICES[name]["environment"]
    config = load_config(env=environment).config
    assert (config.broker_id, config.host) == (number + 1, name)
    assert config.join == tuple(f"{broker}:9401" for broker in BROKERS)
    assert not config.bootstrap, "no start forms a cluster (ADR 0021)"
    assert config.shutdown_seconds + 2 < seconds(SERVICES[name]["stop_grace_period"])
    like_the_first = SERVICES[BROKERS[0]]
    assert {key: str(value).replace(name, "?") for key, value in SERVICES[name].items() if key != "environment"} == {
        key: str(value).replace(BROKERS[0], "?") for key, value in like_the_first.items() if key != "environment"
    }


def test_every_volume_is_declared_and_every_mounted_file_exists() -> None:
    volumes = [volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])]
    assert {source for source in volumes if not source.startswith(".")} == set(COMPOSE["volumes"])
    assert all((ROOT / source).exists() for source in volumes if source.startswith("."))


def test_prometheus_scrapes_every_broker_with_the_alerts() -> None:
    config = parse((ROOT / "deploy/containers/prometheus.yml").read_text())
    assert config["rule_files"] == ["alerts.yml"]
    (job,) = config["scrape_configs"]
    assert job["job_name"] == "raftmq"
    assert job["static_configs"][0]["targets"] == [f"{name}:9402" for name in BROKERS]


def test_grafana_begins_with_a_dashboard_that_exists() -> None:
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (ROOT / FOLDER / home.removeprefix("/etc/grafana/dashboards/")).is_file()
