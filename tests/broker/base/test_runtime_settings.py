"""The settings that can be changed at run time. Each refusal is one sentence."""

from __future__ import annotations

import re

import pytest
from raftmq.broker.base.config import CONFIG_KEYS, ConfigError, load_config
from raftmq.broker.base.runtime_settings import (
    RUNTIME_SETTINGS,
    VALUE_LENGTH_MAX,
    RuntimeSettingError,
    check_setting,
)

from tests.support.house.files import ROOT

KNOWN = {
    "disk_reserve_bytes",
    "log_level",
    "offsets_retention_seconds",
    "retention.bytes",
    "retention.ms",
    "scrub_bytes_per_second",
}


def refusal(name: str, text: str, *, is_for_one: bool = False) -> str:
    with pytest.raises(RuntimeSettingError) as caught:
        check_setting(name, text, is_for_one=is_for_one)
    return str(caught.value)


def test_these_settings_can_be_changed() -> None:
    assert set(RUNTIME_SETTINGS) == KNOWN


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log_level", "DEBUG"),
        ("disk_reserve_bytes", "1GiB"),
        ("disk_reserve_bytes", ""),
        ("scrub_bytes_per_second", "8 MiB"),
        ("offsets_retention_seconds", "14d"),
        ("retention.ms", "-1"),
        ("retention.bytes", "1000000"),
    ],
)
def test_a_value_that_may_stand_in_a_file_is_accepted(name: str, text: str) -> None:
    check_setting(name, text, is_for_one=False)


def test_a_bad_value_is_refused_with_the_words_of_the_start() -> None:
    said = refusal("log_level", "loud")
    assert said == "log_level = 'loud': must be debug or info or warning or error (minimum log level)"
    with pytest.raises(ConfigError) as at_start:
        load_config(env={"RAFTMQ_LOG_LEVEL": "loud"})
    assert said in str(at_start.value)
    assert "between -1" in refusal("retention.ms", "-2")
    assert f"at most {VALUE_LENGTH_MAX} characters" in refusal("scrub_bytes_per_second", "0" * 5000 + "8388608")


def test_an_unknown_key_is_refused_with_a_suggestion() -> None:
    assert refusal("log_levle", "debug") == "there is no setting 'log_levle': did you mean log_level?"
    assert "there are disk_reserve_bytes, log_level" in refusal("quite.another", "1")


@pytest.mark.parametrize("name", sorted(CONFIG_KEYS.keys() - KNOWN))
def test_a_key_of_the_start_is_refused_with_the_place_where_it_is_set(name: str) -> None:
    said = refusal(name, "1")
    assert said.startswith(f"{name} cannot be changed at run time: set it where the broker is started")
    assert f"RAFTMQ_{name.upper()}" in said


@pytest.mark.parametrize("name", ["moves_max", "bytes_per_second", "auto_balance"])
def test_settings_of_moves_have_their_own_command(name: str) -> None:
    assert refusal(name, "1") == f"{name} is changed with raftmq cluster balancing"


@pytest.mark.parametrize("name", ["retention.ms", "retention.bytes", "offsets_retention_seconds"])
def test_a_setting_that_must_not_depend_on_the_leader_has_no_value_for_one_broker(name: str) -> None:
    assert refusal(name, "5", is_for_one=True) == (
        f"{name} has one value for all brokers: change it without naming a broker"
    )


def test_the_guide_names_each_of_them() -> None:
    guide = (ROOT / "docs" / "guides" / "operations.md").read_text()
    section = guide.partition("\n## Change settings at run time\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| `")]
    assert set(re.findall(r"`([^`]+)`", " ".join(rows))) == KNOWN
