"""Define the settings that can be changed while brokers run, and check their new values. Only proposers refuse a value.

They are keys of a broker's configuration with a `Scope`, and the defaults of topics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from raftmq.broker.base.config import CONFIG_KEYS, Scope
from raftmq.broker.base.value_texts import shown
from raftmq.fsm.config_keys import ConfigKey as TopicKey
from raftmq.fsm.topic_config import CLUSTER_DEFAULTS, suggestion

CLUSTER_SOURCE: Final = "cluster"
CLUSTER_FOR_BROKER_SOURCE: Final = "cluster for this broker"
DEFAULT_SOURCE: Final = "default"
VALUE_LENGTH_MAX: Final = 100
"""Characters of a value: metadata, which every broker stores, has a bounded size."""
_BALANCING: Final = frozenset({"auto_balance", "moves_max", "bytes_per_second"})
"""Settings that are replicated, too, and have a command of their own."""


class RuntimeSettingError(ValueError):
    """Raised when a setting cannot be changed. The message gives the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class RuntimeSetting:
    """A setting that can be changed while brokers run."""

    name: str
    default: str
    meaning: str
    scope: Scope
    expected: Callable[[str], str | None]
    """Describe the accepted values if the text is none of them, else return None."""


def _of_topics(key: TopicKey[object]) -> RuntimeSetting:
    def expected(text: str) -> str | None:
        return key.accepts if key.parse(text) is None else None

    return RuntimeSetting(key.name, key.default, f"default of topics: {key.meaning}", Scope.CLUSTER, expected)


def _of_brokers(name: str, scope: Scope) -> RuntimeSetting:
    key = CONFIG_KEYS[name]

    def expected(text: str) -> str | None:
        try:
            key.parse(text)
        except ValueError as error:
            return str(error)
        return None

    return RuntimeSetting(name, shown(key.default), key.meaning, scope, expected)


RUNTIME_SETTINGS: Final[Mapping[str, RuntimeSetting]] = {
    one.name: one
    for one in (
        *(_of_brokers(key.name, key.scope) for key in CONFIG_KEYS.values() if key.scope is not None),
        *(_of_topics(key) for key in CLUSTER_DEFAULTS),
    )
}
"""Every setting that can be changed while brokers run, by name."""


def require_setting(name: str, *, is_for_one: bool) -> RuntimeSetting:
    """Return a setting that can be changed for all brokers, or for one. Raises `RuntimeSettingError`."""
    setting = RUNTIME_SETTINGS.get(name)
    if setting is None:
        raise RuntimeSettingError(_why_unknown(name[:VALUE_LENGTH_MAX]))
    if is_for_one and setting.scope is Scope.CLUSTER:
        raise RuntimeSettingError(f"{name} has one value for all brokers: change it without naming a broker")
    return setting


def check_setting(name: str, text: str, *, is_for_one: bool) -> None:
    """Raise `RuntimeSettingError` unless the setting can be changed to this value."""
    setting = require_setting(name, is_for_one=is_for_one)
    expected = (
        setting.expected(text) if len(text) <= VALUE_LENGTH_MAX else f"a text of at most {VALUE_LENGTH_MAX} characters"
    )
    if expected is not None:
        raise RuntimeSettingError(f"{name} = {text[:VALUE_LENGTH_MAX]!r}: must be {expected} ({setting.meaning})")


def _why_unknown(name: str) -> str:
    if name in _BALANCING:
        return f"{name} is changed with raftmq cluster balancing"
    if name in CONFIG_KEYS:
        return (
            f"{name} cannot be changed at run time: set it where the broker is started (raftmq.toml, RAFTMQ_{name.upper()} or "
            f"an option), then restart the broker; at run time there are {', '.join(sorted(RUNTIME_SETTINGS))}"
        )
    return f"there is no setting {name!r}{suggestion(name, RUNTIME_SETTINGS)}"
