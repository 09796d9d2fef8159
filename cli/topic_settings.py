"""Topic settings on the command line: a time may have a unit."""

from __future__ import annotations

from collections.abc import Mapping

import typer
from raftmq.cli.durations import parse_duration
from raftmq.cli.options import key_values


def parse_settings(pairs: list[str] | None) -> dict[str, str]:
    """Parse ``--config`` options. ``retention.ms=7d`` becomes milliseconds. Raises `typer.BadParameter`."""
    return with_milliseconds(key_values(pairs, "--config"))


def with_milliseconds(settings: Mapping[str, str]) -> dict[str, str]:
    """Convert times with a unit to milliseconds, for the keys that end with ``.ms``. Raises `typer.BadParameter`."""
    return {key: _milliseconds(key, value) if key.endswith(".ms") else value for key, value in settings.items()}


def _milliseconds(key: str, text: str) -> str:
    seconds = parse_duration(text)
    if seconds is None:
        return text
    milliseconds = round(seconds * 1000)
    if seconds and not milliseconds:  # 0 means something else: no limit, or that everything is deleted
        raise typer.BadParameter(f"{key}={text} is less than 1ms, the shortest time but 0")
    return str(milliseconds)
