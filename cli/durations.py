"""Parse and format durations: numbers with units."""

from __future__ import annotations

import re
from typing import Final

import typer

UNIT_SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
DAY_SECONDS: Final = 86_400.0
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)")
_WHOLE: Final = re.compile(rf"(?:{_PART.pattern})+\Z")
_TEXT_MAX: Final = 32


class Duration(float):
    """Represent seconds that print with a unit, such as ``20s``."""

    def __str__(self) -> str:
        return format_duration(self)


def parse_duration(text: str) -> float | None:
    """Convert ``500ms``, ``20s``, ``1.5m``, ``1h30m`` or ``7d`` to seconds. Other text gives None, also a number
    without a unit.
    """
    if len(text) > _TEXT_MAX or _WHOLE.match(text) is None:
        return None
    return sum(float(number) * UNIT_SECONDS[unit] for number, unit in _PART.findall(text))


class DurationRange:
    """Parse an option from `minimum` to `maximum` seconds, both inclusive."""

    __name__ = "DURATION"

    def __init__(self, minimum: float, maximum: float) -> None:
        self.minimum = Duration(minimum)
        self.maximum = Duration(maximum)

    @property
    def limits(self) -> str:
        """The limits as text for the reference page."""
        return f"{self.minimum} to {self.maximum}"

    def __call__(self, text: str | float) -> Duration:
        """Parse a duration. Raises `typer.BadParameter`."""
        if not isinstance(text, str):  # the default
            return Duration(text)
        seconds = parse_duration(text)
        if seconds is None:
            hint = f": write {text}s" if text.isascii() and text.isdigit() else ", such as 500ms, 20s, 5m, 2h or 1d"
            raise typer.BadParameter(f"{text!r} is not a number with a unit{hint}")
        if not self.minimum <= seconds <= self.maximum:
            raise typer.BadParameter(f"{text} is outside {self.limits}")
        return Duration(seconds)


def format_duration(seconds: float) -> str:
    """Format seconds with at most the two largest units: ``250ms``, ``20s``, ``1m30s``, ``2h``, ``3d4h``."""
    if seconds < 1:
        return f"{seconds * 1000:.4g}ms" if seconds else "0s"
    if seconds < UNIT_SECONDS["m"]:
        return f"{seconds:.3g}s"
    left = round(seconds)
    unit, next_unit = ("d", "h") if left >= DAY_SECONDS else ("h", "m") if left >= UNIT_SECONDS["h"] else ("m", "s")
    size, next_size = int(UNIT_SECONDS[unit]), int(UNIT_SECONDS[next_unit])
    rest = left % size // next_size
    return f"{left // size}{unit}" + (f"{rest}{next_unit}" if rest else "")


def signed(seconds: float) -> str:
    """Format a difference: ``+20s`` is ahead, ``-2h`` is behind."""
    return ("-" if seconds < 0 else "+" if seconds > 0 else "") + format_duration(abs(seconds))
