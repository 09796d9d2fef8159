"""`raftmq config` against fake brokers: list, set, unset, and show of a running broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli.cluster_commands import ClusterCommands
from tests.support.cli.queue_commands import assert_refused


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClusterCommands]:
    running = ClusterCommands.start_cluster(monkeypatch)
    yield running
    running.close()


def test_settings_are_set_listed_and_unset(commands: ClusterCommands) -> None:
    assert commands.text("config", "set", "log_level=debug") == "log_level set for all brokers\n"
    assert commands.text("config", "set", "log_level=error", "--broker", "2") == "log_level set for broker 2\n"
    assert commands.text("config", "list").splitlines()[:2] == [
        "key        all brokers  one broker  can be set for       meaning",
        "log_level  debug        2:error     all brokers, or one  minimum log level",
    ]
    (listed,) = commands.answer("config", "list")
    assert (listed["value"], listed["broker_values"]) == ("debug", {"2": "error"})
    unset = commands.answer("config", "unset", "log_level", "--broker", "2")
    assert unset == {"keys": ["log_level"], "broker_id": 2, "result": "unset"}
    assert commands.cluster.config == {0: {"log_level": "debug"}, 2: {}}


def test_a_running_broker_shows_each_value_with_its_source(commands: ClusterCommands) -> None:
    commands.text("config", "set", "log_level=debug")
    assert commands.text("config", "show", "--broker", "1").splitlines() == [
        "key        value    source       meaning",
        "log_level  debug    cluster      minimum log level",
        "join       a:1,b:2  flag --join  peers",
        "rack       -        default      rack",
    ]
    commands.text("config", "set", "log_level=error", "--broker", "1")
    shown = commands.answer("config", "show", "--broker", "1")
    assert shown["log_level"] == {"value": "error", "source": "cluster for this broker"}
    assert shown["join"]["value"] == ["a:1", "b:2"]


def test_without_a_broker_the_values_of_a_start_here_are_shown(commands: ClusterCommands, tmp_path: Path) -> None:
    file = tmp_path / "raftmq.toml"
    file.write_text('rack = "a"\n')
    shown = commands.answer("config", "show", "--config", str(file), "--set", "log_level=error")
    assert shown["rack"] == {"value": "a", "source": f"file {file}"}
    assert shown["log_level"] == {"value": "error", "source": "--set log_level"}


def test_a_time_of_topics_may_have_a_unit(commands: ClusterCommands) -> None:
    commands.text("config", "set", "retention.ms=2h")
    assert commands.cluster.config == {0: {"retention.ms": "7200000"}}


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("set", "nonsense=1"), 2, "INVALID_CONFIG"),
        (("unset", "nonsense"), 2, "INVALID_CONFIG"),
        (("set", "log_level=debug", "--broker", "9"), 4, "UNKNOWN_BROKER"),
        (("show", "--broker", "9"), 4, "UNKNOWN_BROKER"),
        (("set", "log_level"), 2, "'log_level' is not KEY=VALUE"),
        (("set",), 2, "Missing argument"),
        (("set", "log_level=debug", "--broker", "0"), 2, "'0' is not a whole number"),
        (("show", "--broker", "1", "--set", "rack=a"), 2, "the broker has its own"),
    ],
)
def test_a_refusal_is_one_sentence(
    commands: ClusterCommands, arguments: tuple[str, ...], code: int, words: str
) -> None:
    assert_refused(commands.run("config", *arguments), code, words)
    assert commands.cluster.config == {}
