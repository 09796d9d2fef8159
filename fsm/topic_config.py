"""The names that topics may have and the settings that they accept: pure checks for proposers, and the parsed
configuration.

The name is also checked when a command is applied, so that check can never change. Only proposers check the
configuration. Readers of a stored configuration use `effective_config` or `ConfigKey.value_in`, which never fail: a key or value
that this version does not understand was written by a newer version.

Source: Kafka's topic configuration (retention.ms, retention.bytes). `max.batch.bytes` is Kafka's `max.message.bytes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final

from raftmq.fsm import codes
from raftmq.fsm.config_keys import ConfigKey, is_topic_name, number_key
from raftmq.fsm.queue.topic_config import QUEUE_KEYS
from raftmq.fsm.topic_kinds import LOG, QUEUE

RESERVED_PREFIX: Final = "__"
RETENTION_FOREVER: Final = -1
BATCH_OVERHEAD_BYTES: Final = 4096
"""Header and column lengths around the records of a batch."""


class TopicConfigError(ValueError):
    """Raised when a proposed name or configuration is not allowed. `code` is an `ErrorCode` number."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


RETENTION_MS: Final = number_key(
    "retention.ms",
    kinds=(LOG,),
    default=7 * 24 * 60 * 60 * 1000,
    minimum=RETENTION_FOREVER,
    maximum=(1 << 63) - 1,
    meaning="records older than this (append time, milliseconds) are deleted; -1 means never",
)
RETENTION_BYTES: Final = number_key(
    "retention.bytes",
    kinds=(LOG,),
    default=-1,
    minimum=-1,
    maximum=(1 << 63) - 1,
    meaning="the oldest records of a partition beyond this many bytes are deleted; -1 means no limit",
)
MAX_BATCH_BYTES: Final = number_key(
    "max.batch.bytes",
    kinds=(LOG, QUEUE),
    default=(1 << 20) + BATCH_OVERHEAD_BYTES,
    minimum=1024,
    # A batch travels with its envelope in one gRPC message of at most 4 MiB.
    maximum=3_670_016,
    meaning="largest batch that a partition accepts, compressed and with its header; above the default, a record may be 4096 bytes smaller",
)
CONFIG_KEYS: Final[Mapping[str, ConfigKey[object]]] = {
    key.name: key for key in (RETENTION_MS, RETENTION_BYTES, MAX_BATCH_BYTES, *QUEUE_KEYS)
}
"""The settings of topics of any kind, by name."""


CLUSTER_DEFAULTS: Final = (RETENTION_MS, RETENTION_BYTES)
"""The settings whose defaults a cluster may change. Only leaders follow them, so that another default never contradicts a replica's state."""
_NO_DEFAULTS: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A log topic's configuration, including defaults."""

    retention_ms: int = RETENTION_MS.value_in({})
    retention_bytes: int = RETENTION_BYTES.value_in({})
    batch_bytes_max: int = MAX_BATCH_BYTES.value_in({})


def invalid_name_text(name: str) -> str:
    """Say why no topic can have this name."""
    return f"{name[:60]!r}: a topic's name is 1 to 249 characters of a-z A-Z 0-9 . _ - and not . or .."


def check_topic_name(name: str) -> None:
    """Raise `TopicConfigError` (INVALID_TOPIC_NAME) unless users may create a topic of this name."""
    if not is_topic_name(name):
        raise TopicConfigError(codes.INVALID_TOPIC_NAME, invalid_name_text(name))
    if name.startswith(RESERVED_PREFIX):
        raise TopicConfigError(codes.INVALID_TOPIC_NAME, f"{name!r}: names that begin with __ are reserved")


def config_keys(kind: str) -> dict[str, ConfigKey[object]]:
    """Return the settings of topics of a kind, by name."""
    return {name: key for name, key in CONFIG_KEYS.items() if kind in key.kinds}


def check_topic_config(config: Mapping[str, str], kind: str) -> None:
    """Raise `TopicConfigError` (INVALID_CONFIG) unless the kind has every key, and every value is within its bounds."""
    for name, text in config.items():
        key = _key(name, kind)
        if key.parse(text) is None:
            raise TopicConfigError(codes.INVALID_CONFIG, f"{name} = {text[:60]!r}: it is {key.accepts} ({key.meaning})")


def _key(name: str, kind: str) -> ConfigKey[object]:
    key = CONFIG_KEYS.get(name)
    if key is None:
        known = config_keys(kind)
        raise TopicConfigError(codes.INVALID_CONFIG, f"there is no setting {name[:60]!r}{suggestion(name[:60], known)}")
    if kind not in key.kinds:
        raise TopicConfigError(
            codes.INVALID_CONFIG,
            f"{name} is a setting of topics of kind {' and '.join(map(repr, key.kinds))}, and this topic is of kind {kind!r}",
        )
    return key


def suggestion(name: str, names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the name of the same words, or the closest one, or else all known names."""
    known = sorted(names)
    words = sorted(name.replace("_", ".").replace("-", ".").lower().split("."))
    close = [one for one in known if sorted(one.split(".")) == words] or get_close_matches(name, known, n=1)
    return f": did you mean {close[0]}?" if close else f"; there are {', '.join(known)}"


def check_topic_config_changes(changes: Mapping[str, str | None], kind: str) -> None:
    """Check changes of a configuration. None resets a key to its default; the kind must have the key as well."""
    check_topic_config(
        {name: _key(name, kind).default if text is None else text for name, text in changes.items()}, kind
    )


def effective_config(config: Mapping[str, str], defaults: Mapping[str, str] = _NO_DEFAULTS) -> TopicConfig:
    """Return the configuration to apply: the topic's own, and below it the cluster's defaults.

    A value that cannot be understood is replaced by the default of the program.
    """
    config = {**defaults, **config}
    return TopicConfig(
        retention_ms=RETENTION_MS.value_in(config),
        retention_bytes=RETENTION_BYTES.value_in(config),
        batch_bytes_max=MAX_BATCH_BYTES.value_in(config),
    )


def effective_config_texts(
    config: Mapping[str, str], kind: str, defaults: Mapping[str, str] = _NO_DEFAULTS
) -> dict[str, str]:
    """Return every key of a kind with its effective value as text, for people."""
    config = {**defaults, **config}
    return {name: key.text_in(config) for name, key in config_keys(kind).items()}
