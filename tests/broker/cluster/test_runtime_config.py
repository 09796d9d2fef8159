"""The settings in force: the cluster's for this broker, the cluster's for all, then those of the start."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog
from raftmq.broker.base.config import BrokerConfig, LoadedConfig, load_config
from raftmq.broker.cluster.runtime_config import RuntimeConfig
from raftmq.fsm import metadata_commands as mc
from raftmq.fsm.topic_config import RETENTION_MS
from raftmq.types import NodeId

from tests.support.fsm.harness import MetadataLog

ONE = NodeId(1)


class Broker:
    """Broker 1 of three, started with a file."""

    def __init__(self, loaded: LoadedConfig) -> None:
        self.cluster = MetadataLog(3)
        self.changes: list[tuple[BrokerConfig, BrokerConfig]] = []
        self.runtime = RuntimeConfig(loaded, lambda before, now: self.changes.append((before, now)))

    def alter(self, node_id: int = 0, **changes: str | None) -> None:
        self.cluster.run(mc.AlterConfig(node_id, changes))
        self.runtime.follow(self.cluster.state, ONE)

    @property
    def level(self) -> tuple[str, str]:
        return self.runtime.config.log_level, self.runtime.source("log_level")


@pytest.fixture
def broker(tmp_path: Path) -> Broker:
    file = tmp_path / "raftmq.toml"
    file.write_text('log_level = "warning"\nscrub_bytes_per_second = "1MiB"\n')
    return Broker(load_config(file))


def test_each_layer_has_precedence_over_the_next(broker: Broker) -> None:
    file = broker.level
    assert file[0] == "warning"
    assert file[1].startswith("file ")
    broker.alter(log_level="error")
    assert broker.level == ("error", "cluster")
    broker.alter(1, log_level="debug")
    assert broker.level == ("debug", "cluster for this broker")
    broker.alter(log_level="info")
    assert broker.level == ("debug", "cluster for this broker"), "the narrower value stays"
    broker.alter(1, log_level=None)
    assert broker.level == ("info", "cluster")
    broker.alter(log_level=None)
    assert broker.level == file
    assert broker.runtime.source("rack") == "default"


def test_the_values_of_other_brokers_do_not_matter(broker: Broker) -> None:
    broker.alter(2, log_level="debug")
    assert broker.level[0] == "warning"
    assert broker.changes == []


def test_a_change_is_told_once_with_both_configurations(broker: Broker) -> None:
    broker.alter(scrub_bytes_per_second="2MiB")
    broker.alter(2, scrub_bytes_per_second="4MiB")
    ((before, now),) = broker.changes
    assert (before.scrub_bytes_per_second, now.scrub_bytes_per_second) == (1 << 20, 1 << 21)
    assert now.log_level == "warning", "the other values stay"


def test_a_setting_that_this_version_does_not_understand_is_ignored(broker: Broker) -> None:
    """A newer version may know more settings and more values. A key of the start is never changed."""
    broker.alter(**{"of.the.future": "1", "retention.ms": "5", "data_dir": "/elsewhere", "log_level": "verbose"})
    assert broker.level[0] == "warning"
    broker.alter(scrub_bytes_per_second="2MiB")
    assert broker.runtime.config.scrub_bytes_per_second == 1 << 21, "the understood settings are followed"


def test_each_change_is_logged_with_its_value_and_source_before_it_is_followed(broker: Broker) -> None:
    order: list[object] = []
    broker.runtime._on_change = lambda before, now: order.append("followed")
    with structlog.testing.capture_logs() as events:
        broker.runtime.follow(broker.cluster.state, ONE)
        broker.runtime._on_change = lambda before, now: order.append([event["event"] for event in events])
        broker.alter(log_level="error", **{"retention.ms": "1000"})
        broker.alter(1, log_level="debug")
        broker.alter(log_level="info")
        broker.alter(**{"retention.ms": None})
    assert [(event["event"], event["settings"]) for event in events] == [
        ("settings_changed", ["log_level=error (cluster)", "retention.ms=1000 (cluster)"]),
        ("settings_changed", ["log_level=debug (cluster for this broker)"]),
        ("settings_changed", [f"retention.ms={RETENTION_MS.default} (default)"]),
    ]
    assert order == [["settings_changed"], ["settings_changed"] * 2]


def test_settings_of_the_cluster_are_adopted_by_a_broker_that_starts(broker: Broker) -> None:
    broker.cluster.run(mc.AlterConfig(0, {"log_level": "error"}))
    with structlog.testing.capture_logs() as events:
        broker.runtime.follow(broker.cluster.state, ONE)
    assert [(event["event"], event["settings"]) for event in events] == [
        ("settings_adopted", ["log_level=error (cluster)"])
    ]


def test_metadata_without_changes_is_not_read_again(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    broker.alter(log_level="debug")
    monkeypatch.setattr("raftmq.broker.cluster.runtime_config._understood", lambda texts: pytest.fail("read again"))
    broker.cluster.run(mc.AllocateProducerIds(5))
    broker.runtime.follow(broker.cluster.state, ONE)
    assert broker.level[0] == "debug"
