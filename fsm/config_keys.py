"""Define the settings of topics: a name, and the texts that it accepts.

A configuration is stored as texts, so that each version keeps the settings that it does not know. Only proposers refuse a text. Readers
replace one that they do not understand by the default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from raftmq.fsm.queue.tenant_weights import PATTERNS_MAX, WEIGHT_MAX, check_weights

T_co = TypeVar("T_co", covariant=True)

_INTEGER: Final = re.compile(r"-?[0-9]{1,19}\Z")
_TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}\Z")
_BOOLEANS: Final[Mapping[str, bool]] = {"false": False, "true": True}


@dataclass(frozen=True, slots=True)
class ConfigKey(Generic[T_co]):
    """Describe one setting of a topic."""

    name: str
    kinds: tuple[str, ...]
    """The kinds of topics that have the setting (`topic_kinds`)."""
    default: str
    accepts: str
    """The accepted texts, for people: "it is ..."."""
    meaning: str
    parse: Callable[[str], T_co | None]
    """Return the value of a text, or None for one that is not accepted."""

    def value_in(self, config: Mapping[str, str]) -> T_co:
        """Return the value in a configuration. The default replaces a text that is missing or not accepted."""
        value = self.parse(self.text_in(config))
        assert value is not None, "the default is accepted"
        return value

    def text_in(self, config: Mapping[str, str]) -> str:
        """Return the text behind `value_in`."""
        return config[self.name] if self.is_accepted_in(config) else self.default

    def is_accepted_in(self, config: Mapping[str, str]) -> bool:
        """Return whether a configuration has a text for the setting that this version accepts."""
        text = config.get(self.name)
        return text is not None and self.parse(text) is not None


def number_key(
    name: str, *, kinds: tuple[str, ...], default: int, minimum: int, maximum: int, meaning: str
) -> ConfigKey[int]:
    """Return a setting that is an integer. Bounds are inclusive."""

    def parse(text: str) -> int | None:
        if _INTEGER.match(text) is None:
            return None
        value = int(text)
        return value if minimum <= value <= maximum else None

    return ConfigKey(name, kinds, str(default), f"a number between {minimum} and {maximum}", meaning, parse)


def flag_key(name: str, *, kinds: tuple[str, ...], meaning: str) -> ConfigKey[bool]:
    """Return a setting that is on or off. By default it is off."""
    return ConfigKey(name, kinds, "false", "true or false", meaning, _BOOLEANS.get)


def choice_key(name: str, *, kinds: tuple[str, ...], choices: Sequence[str], meaning: str) -> ConfigKey[str]:
    """Return a setting that is one of a few names, by default the first."""
    by_name = {choice: choice for choice in choices}
    return ConfigKey(name, kinds, choices[0], f"one of {', '.join(choices)}", meaning, by_name.get)


def weights_key(name: str, *, kinds: tuple[str, ...], meaning: str) -> ConfigKey[tuple[tuple[str, int], ...]]:
    """Return a setting that is a list of patterns of tenants with their weights. By default it is empty."""
    accepts = f"a list such as acme=5,*=2, of at most {PATTERNS_MAX} patterns with weights between 1 and {WEIGHT_MAX}"
    return ConfigKey(name, kinds, "", accepts, meaning, _parse_weights)


def topic_key(name: str, *, kinds: tuple[str, ...], meaning: str) -> ConfigKey[str]:
    """Return a setting that is the name of a topic. By default it is empty, which means none."""

    def parse(text: str) -> str | None:
        return text if not text or is_topic_name(text) else None

    return ConfigKey(name, kinds, "", "the name of a topic, or empty for none", meaning, parse)


def is_topic_name(name: str) -> bool:
    """Return whether a topic can have this name at all (reserved names included)."""
    return _TOPIC_NAME.match(name) is not None and name not in {".", ".."}


def _parse_weights(text: str) -> tuple[tuple[str, int], ...] | None:
    weights: list[tuple[str, int]] = []
    for pair in filter(None, text.split(",", PATTERNS_MAX + 1)):
        pattern, _, number = pair.rpartition("=")
        if not pattern or _INTEGER.match(number) is None:
            return None
        weights.append((pattern, int(number)))
    return None if check_weights(weights) else tuple(weights)
