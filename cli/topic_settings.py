"""Topic settings on the command line: a time may have a unit."""

from __future__ import annotations

from collections.abc import Mapping

from raftmq.cli.durations import parse_duration
from raftmq.cli.options import key_values


def parse_settings(pairs: list[str] | None) -> dict[str, str]:
    """Parse ``--config`` options. ``retention.ms=7d`` becomes milliseconds. Raises `typer.BadParameter`."""
    return with_milliseconds(key_values(pairs, "--config"))


def with_milliseconds(settings: Mapping[str, str]) -> dict[str, str]:
    """Convert times with a unit to milliseconds, for the keys that end with ``.ms``."""
    return {key: _milliseconds(value) if key.endswith(".ms") else value for key, value in settings.items()}


def _milliseconds(text: str) -> str:
    seconds = parse_duration(text)
    return text if seconds is None else str(round(seconds * 1000))
