"""Parse and format sizes and rates in bytes."""

from __future__ import annotations

import re
from typing import Final

import typer

KIB: Final = 1024
_UNITS: Final = {"B": 1, "KiB": KIB, "MiB": KIB**2, "GiB": KIB**3, "kB": 10**3, "MB": 10**6, "GB": 10**9}
_RATE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?([A-Za-z]{1,3})/s\Z", re.ASCII)
UNLIMITED: Final = "unlimited"


def format_bytes(count: int) -> str:
    """Format a size: ``512 B``, ``1.5 KiB``, ``12 MiB``."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < KIB:
            return f"{size:.4g} {unit}"
        size /= KIB
    return f"{size:.4g} TiB"


def format_byte_rate(bytes_per_second: int) -> str:
    """Format a rate: ``50 MiB/s``. 0 is ``unlimited``."""
    return f"{format_bytes(bytes_per_second)}/s" if bytes_per_second else UNLIMITED


def parse_byte_rate(text: str) -> int:
    """Convert ``50MiB/s`` to bytes per second, and ``unlimited`` to 0. Raises `typer.BadParameter`."""
    if text == UNLIMITED:
        return 0
    found = _RATE.match(text)
    rate = round(float(found[1]) * _UNITS.get(found[2], 0)) if found is not None else 0
    if not rate:
        raise typer.BadParameter(f"{text!r} is not a rate, such as 50MiB/s, 800kB/s or {UNLIMITED}")
    return rate
