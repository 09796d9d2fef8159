"""Points in time as people write them."""

from __future__ import annotations

import re
import time
from datetime import datetime

import typer
from raftmq.cli.options import OFFSET_MAX

_AGO = re.compile(r"([0-9]+)([smhd])\Z")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_time_ms(text: str) -> int:
    """``2026-01-31T12:00:00Z`` (local time without a zone), ``15m`` (ago), or milliseconds since 1970 → milliseconds since 1970."""
    if text.isascii() and text.isdigit() and int(text) <= OFFSET_MAX:
        return int(text)
    ago = _AGO.match(text)
    if ago is not None and len(ago[1]) < 10:
        return max(0, int((time.time() - int(ago[1]) * _UNIT_SECONDS[ago[2]]) * 1000))
    try:
        return max(0, int(datetime.fromisoformat(text).timestamp() * 1000))  # without a zone: this machine's
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            f"{text!r} is no time: write 2026-01-31T12:00:00Z, 15m (ago; s, m, h or d), or milliseconds since 1970"
        ) from None
