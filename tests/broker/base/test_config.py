"""Configuration: layers, checks, provenance."""

from __future__ import annotations

from pathlib import Path

import pytest
from raftmq.broker.base.config import (
    CONFIG_KEYS,
    BrokerConfig,
    ConfigError,
    is_service_link,
    load_config,
)
from raftmq.broker.base.limits import Limits, Timing


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "broker.toml"
    path.write_text(text)
    return path


def test_defaults_need_nothing():
    loaded = load_config()
    assert loaded.config == BrokerConfig()
    assert set(loaded.sources.values()) == {"default"}
    assert loaded.config.limits() == Limits()
    assert loaded.config.timing() == Timing()
    assert loaded.config.host_label()


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    path = _file(tmp_path, 'rack = "file"\nhost = "file"\nbroker_id = 3\n')
    env = {"RAFTMQ_RACK": "env", "RAFTMQ_HOST": "env", "PATH": "/bin", "RAFTMQ_BOOTSTRAP_SERVERS": "x:1"}
    loaded = load_config(path, env, {"rack": "flag", "broker_id": None})
    assert (loaded.config.rack, loaded.config.host, loaded.config.broker_id) == ("flag", "env", 3)
    assert loaded.sources["rack"] == "flag --rack"
    assert loaded.sources["host"] == "environment RAFTMQ_HOST"
    assert loaded.sources["broker_id"] == f"file {path}"
    assert loaded.sources["listen"] == "default"


SERVICE_LINKS = {
    "RAFTMQ_SERVICE_HOST": "10.43.7.1",
    "RAFTMQ_SERVICE_PORT": "9400",
    "RAFTMQ_SERVICE_PORT_CLIENT": "9400",
    "RAFTMQ_PORT": "tcp://10.43.7.1:9400",
    "RAFTMQ_PORT_9400_TCP": "tcp://10.43.7.1:9400",
    "RAFTMQ_PORT_9400_TCP_PROTO": "tcp",
    "RAFTMQ_PORT_9400_TCP_PORT": "9400",
    "RAFTMQ_PORT_9400_TCP_ADDR": "10.43.7.1",
    "RAFTMQ_HEADLESS_SERVICE_HOST": "10.43.7.2",
    "RAFTMQ_HEADLESS_PORT": "udp://10.43.7.2:9402",
}


def test_variables_of_a_kubernetes_service_of_our_name_are_not_settings():
    assert load_config(env=SERVICE_LINKS).config == BrokerConfig()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RAFTMQ_PORT", "9400"),
        ("RAFTMQ_LISTEN_PORT", "9400"),
        ("RAFTMQ_SERVICE", "x"),
        ("RAFTMQ_SERVICE_HOSTS", "x"),
        ("RAFTMQ_PORT_9400", "x"),
        ("RAFTMQ_PORT_9400_TCP_HOST", "x"),
    ],
)
def test_a_name_that_only_resembles_a_service_variable_is_refused(name, text):
    with pytest.raises(ConfigError, match="there is no key"):
        load_config(env={name: text})


@pytest.mark.parametrize("key", CONFIG_KEYS)
def test_no_setting_is_taken_for_a_service_variable(key):
    name = f"RAFTMQ_{key.upper()}"
    assert not is_service_link(name, "tcp://10.43.7.1:9400")


def test_raftmq_toml_in_the_working_directory_is_read(tmp_path):
    (tmp_path / "raftmq.toml").write_text('join = ["a:1", "b:2"]\n')
    loaded = load_config()
    assert loaded.config.join == ("a:1", "b:2")
    assert loaded.sources["join"] == "file raftmq.toml"


def test_texts_are_converted_to_the_type_of_the_key():
    env = {
        "RAFTMQ_JOIN": "a:1, b:2,",
        "RAFTMQ_MAP_BYTES": "2 GiB",
        "RAFTMQ_DATA_TICK_SECONDS": "0.05",
        "RAFTMQ_PARTITIONS_MAX": "7",
        "RAFTMQ_BOOTSTRAP": "no",
        "RAFTMQ_RACK": "01",
        "RAFTMQ_DATA_DIR": "/var/lib/raftmq",
        "RAFTMQ_DISK_RESERVE_BYTES": "0",
        "RAFTMQ_LOG_LEVEL": "WARNING",
    }
    config = load_config(env=env).config
    assert config.join == ("a:1", "b:2")
    assert config.map_bytes == 2 * 1024**3
    assert config.timing().data_tick_seconds == 0.05
    assert config.limits().partitions_max == 7
    assert config.bootstrap is False
    assert config.rack == "01"
    assert config.data_dir == Path("/var/lib/raftmq")
    assert config.disk_reserve_bytes == 0
    assert config.log_level == "warning"


def test_an_unknown_key_is_refused_with_a_suggestion(tmp_path):
    for arguments in (
        (_file(tmp_path, "listne = 'x:1'"), {}, {}),
        (None, {"RAFTMQ_LISTNE": "x:1"}, {}),
        (None, {}, {"listne": "x:1"}),
    ):
        with pytest.raises(ConfigError, match=r"'listne': did you mean listen\?"):
            load_config(*arguments)


@pytest.mark.parametrize(("text", "seconds"), [("500ms", 0.5), ("20s", 20), ("1.5m", 90), ("2h", 7200), ("20", 20)])
def test_a_time_may_have_a_unit(text, seconds):
    assert load_config(None, {}, {"controller_seconds": text}).config.controller_seconds == seconds


@pytest.mark.parametrize("text", ["1w", "s", "2d", "20 s"])
def test_a_time_with_an_unknown_unit_or_out_of_range_is_refused(text):
    with pytest.raises(ConfigError, match=r"a time between .* seconds \(such as 500ms"):
        load_config(None, {}, {"controller_seconds": text})


def test_an_unknown_key_without_a_similar_one_is_refused_with_all_keys():
    with pytest.raises(ConfigError, match=r"'xyz'; there are .*listen, log_level"):
        load_config(None, {}, {"xyz": "1"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listen", "9400"),
        ("listen", "127.0.0.1:70000"),
        ("listen", "::1:9400"),
        ("broker_id", "-1"),
        ("broker_id", "one"),
        ("metadata_voters", "4"),
        ("writer_threads", "0"),
        ("bootstrap", "maybe"),
        ("map_bytes", "1 parsec"),
        ("map_bytes", "-5"),
        ("data_tick_seconds", "nan"),
        ("data_tick_seconds", "0"),
        ("log_level", "loud"),
        ("join", "nowhere"),
    ],
)
def test_a_bad_value_is_refused_with_its_source(key, value):
    with pytest.raises(ConfigError, match=rf"environment RAFTMQ_{key.upper()}: {key} = .*must be"):
        load_config(env={f"RAFTMQ_{key.upper()}": value})


@pytest.mark.parametrize("text", ["broker_id = true", "rack = 5", "bootstrap = 1.5", "broker_id = [", "join = 5"])
def test_a_file_with_a_wrong_type_or_syntax_is_refused(tmp_path, text):
    with pytest.raises(ConfigError, match=r"broker\.toml"):
        load_config(_file(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no configuration file"):
        load_config(tmp_path / "none.toml")


def test_bootstrap_and_join_may_be_combined():
    config = load_config(flags={"bootstrap": True, "join": ("a:1",)}).config
    assert config.bootstrap
    assert config.join == ("a:1",)


@pytest.mark.parametrize("key", ["listen", "peer_listen", "http_listen"])
def test_ports_beyond_loopback_must_be_allowed_explicitly(key):
    with pytest.raises(ConfigError, match="allow_insecure_remote"):
        load_config(flags={key: "0.0.0.0:9400"})
    config = load_config(flags={key: "10.1.2.3:9400", "allow_insecure_remote": True}).config
    assert getattr(config, key) == "10.1.2.3:9400"


@pytest.mark.parametrize("key", ["advertise", "peer_advertise"])
@pytest.mark.parametrize("name", ["broker-1:9400", "[::1]", "[::1]:9400", "a:b"])
def test_an_advertised_name_has_neither_port_nor_brackets(key, name):
    """It was accepted, and the broker announced `[broker-1:9400]:9400` or `[[::1]]:9400`, which nobody can reach."""
    with pytest.raises(ConfigError, match="without a port"):
        load_config(flags={key: name})
    assert getattr(load_config(flags={key: "::1"}).config, key) == "::1"


@pytest.mark.parametrize("address", ["0.0.0.0:9400", "[::]:9400"])
def test_a_wildcard_address_needs_an_advertised_name(address):
    flags = {"listen": address, "allow_insecure_remote": True}
    with pytest.raises(ConfigError, match="--advertise"):
        load_config(flags=flags)
    assert load_config(flags=flags | {"advertise": "broker-1"}).config.listen == address


def test_every_key_has_a_default_that_it_accepts_and_a_meaning():
    for key in CONFIG_KEYS.values():
        assert key.meaning
        assert key.parse(key.default) == key.default, key.name
    assert set(CONFIG_KEYS) == set(BrokerConfig.__dataclass_fields__)
