"""Parse and format points in time."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import typer
from raftmq.cli.durations import parse_duration
from raftmq.cli.options import OFFSET_MAX


def parse_time_ms(text: str) -> int:
    """Convert a time to milliseconds since 1970.

    It is ``2026-01-31T12:00:00Z`` (local time if it has no zone), ``15m`` (ago), or milliseconds since 1970.
    """
    if text.isascii() and text.isdigit() and int(text) <= OFFSET_MAX:
        return int(text)
    ago = parse_duration(text)
    if ago is not None:
        return max(0, int((time.time() - ago) * 1000))
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))  # without a zone: this machine's zone
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not a time: write 2026-01-31T12:00:00Z, 15m (ago), or milliseconds since 1970"
        ) from None


def parse_moment(text: str) -> datetime:
    """Convert a point in time, which may be in the future: ``2026-01-31T12:00:00Z`` (local time if it has no zone), or milliseconds
    since 1970.
    """
    try:
        if text.isascii() and text.isdigit():
            return datetime.fromtimestamp(int(text) / 1000, UTC)
        return datetime.fromisoformat(text).astimezone()  # without a zone: this machine's zone
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is not a time: write 2026-01-31T12:00:00Z, or milliseconds since 1970"
        ) from None


def parse_past(text: str) -> datetime:
    """Convert a point in time as `parse_time_ms` reads it, with a zone. Raises `typer.BadParameter`."""
    try:
        return datetime.fromtimestamp(parse_time_ms(text) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(f"{text!r} is after the year 9999; a number is milliseconds since 1970") from None


def format_time(time_ms: int) -> str:
    """Format milliseconds since 1970 as ``2026-01-31T12:00:00Z``, which `parse_time_ms` reads."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):
        return str(time_ms)
