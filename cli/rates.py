"""Parse and format rates: a number per second, minute or hour."""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer
from raftmq.cli.durations import UNIT_SECONDS

RATE_MAX: Final = 1_000_000
_RATE: Final = re.compile(r"([0-9]{1,9})/([smh])\Z")


class Rate(float):
    """Represent records per second, printed with the unit in which the rate is a whole number: ``10/m``."""

    def __str__(self) -> str:
        unit = next((unit for unit in "sm" if self * UNIT_SECONDS[unit] >= 1), "h")
        return f"{self * UNIT_SECONDS[unit]:.6g}/{unit}"


def parse_rate(text: str | float) -> Rate:
    """Convert ``100/s``, ``10/m`` or ``5/h`` to records per second."""
    if not isinstance(text, str):  # the default
        return Rate(text)
    found = _RATE.match(text)
    if found is None or not 1 <= int(found[1]) <= RATE_MAX:
        raise typer.BadParameter(f"{text!r} is not a rate from 1/h to {RATE_MAX}/s, such as 100/s, 10/m or 5/h")
    return Rate(int(found[1]) / UNIT_SECONDS[found[2]])


RateOption = Annotated[
    float,
    typer.Option(
        "--rate", parser=parse_rate, metavar="N/s", help="Maximum rate of records, such as 100/s, 10/m or 5/h."
    ),
]
DEFAULT_RATE: Final = Rate(1_000)
"""A tenth of the throughput of one worker. A redrive that must be faster sets --rate."""
