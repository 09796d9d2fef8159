"""Follow the settings that an operator changes while the broker runs.

The order, from the strongest: the cluster's value for this broker, the cluster's value for all, and then the layers with which the broker
was started (`broker/base/config.py`). Replicated settings are texts that a proposer has checked. One that this version does not understand
was written by a newer version, and is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import structlog
from raftmq.broker.base.config import CONFIG_KEYS, BrokerConfig, LoadedConfig
from raftmq.broker.base.runtime_settings import CLUSTER_FOR_BROKER_SOURCE, CLUSTER_SOURCE, DEFAULT_SOURCE
from raftmq.broker.base.value_texts import shown
from raftmq.fsm.metadata import Metadata
from raftmq.fsm.topic_config import CLUSTER_DEFAULTS
from raftmq.types import NO_NODE, NodeId

log = structlog.get_logger(__name__)


class RuntimeConfig:
    """The configuration in force on one broker."""

    def __init__(self, started: LoadedConfig, on_change: Callable[[BrokerConfig, BrokerConfig], None]) -> None:
        """Begin with the configuration of the start. `on_change` is called with the previous and the new configuration."""
        self.config = started.config
        """The configuration in force. It is replaced, never changed."""
        self._started = started
        self._sources: dict[str, str] = {}
        """The sources of values that the cluster set."""
        self._followed: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        self._on_change = on_change

    def source(self, name: str) -> str:
        """Return the source of a value in force."""
        return self._sources.get(name) or self._started.sources.get(name, DEFAULT_SOURCE)

    def follow(self, metadata: Metadata, node_id: NodeId) -> None:
        """Adopt the settings in metadata. Called after each change of it, so it returns quickly if they are the same."""
        for_all = metadata.config()
        for_this: Mapping[str, str] = metadata.config(node_id) if node_id != NO_NODE else {}
        followed = self._followed
        if (
            followed is not None
            and for_all is followed[0]
            and (for_this is followed[1] or not (for_this or followed[1]))
        ):
            return  # they are replaced, never changed, so comparing identities is enough
        self._followed = (for_all, for_this)
        in_force = self._in_force(followed[0] if followed is not None else {})
        values: dict[str, object] = {}
        self._sources = {}
        for source, texts in ((CLUSTER_SOURCE, for_all), (CLUSTER_FOR_BROKER_SOURCE, for_this)):
            for name, value in _understood(texts).items():
                values[name] = value
                self._sources[name] = source
        before, self.config = self.config, replace(self._started.config, **values)  # type: ignore[arg-type]  # parsed by the key's own parser
        changed = [text for name, text in self._in_force(for_all).items() if in_force[name] != text]
        # before `on_change`: a level of warning would hide its own event
        if changed and followed is None:
            log.info("settings_adopted", settings=changed)
        elif changed:
            log.info("settings_changed", settings=changed)
        if self.config != before:
            self._on_change(before, self.config)

    def _in_force(self, for_all: Mapping[str, str]) -> dict[str, str]:
        """Return the run-time settings by name, each as its name, value and source, for the log."""
        found = {
            name: f"{name}={shown(getattr(self.config, name))} ({self.source(name)})"
            for name, key in CONFIG_KEYS.items()
            if key.scope is not None
        }
        for key in CLUSTER_DEFAULTS:
            source = CLUSTER_SOURCE if key.is_accepted_in(for_all) else DEFAULT_SOURCE
            found[key.name] = f"{key.name}={key.text_in(for_all)} ({source})"
        return found


def _understood(texts: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for name, text in texts.items():
        key = CONFIG_KEYS.get(name)
        if key is None or key.scope is None:
            continue  # a default of topics, or a setting of a newer version
        try:
            values[name] = key.parse(text)
        except ValueError:
            log.warning("setting_not_understood", settings=[name])
    return values
