"""Options that several commands of ``raftmq queue`` and ``raftmq schedule`` share."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Annotated, Final

import typer
from raftmq.cli.durations import DAY_SECONDS, DurationRange
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import COUNT_MAX, OFFSET_MAX
from raftmq.cli.rates import Rate, parse_rate
from raftmq.cli.times import parse_moment, parse_past

DELAY_SECONDS_MAX: Final = 3_660 * DAY_SECONDS
"""Maximum delay and time to live, as for the SDK: ten years."""
LEASE_SECONDS_MIN: Final = 1.0
LEASE_SECONDS_MAX: Final = DAY_SECONDS / 2
"""Bounds of a lease, as for the SDK."""


class State(StrEnum):
    """Choose messages by their state."""

    READY = "ready"
    DELAYED = "delayed"
    LEASED = "leased"
    DEAD = "dead"
    BLOCKED = "blocked"


def whole_rate(text: str | int) -> int:
    """Convert ``100/s`` to messages per second, and ``0`` to no limit. Raises `typer.BadParameter` for less than one per second."""
    if not isinstance(text, str):  # the default
        return text
    if text == "0":
        return 0
    rate: Rate = parse_rate(text)
    if rate < 1:
        raise typer.BadParameter(f"{text!r} is less than 1/s")
    return round(rate)


KeyOption = Annotated[
    str | None,
    typer.Option(
        "--key",
        metavar="KEY",
        help="Key of every message. A topic ordered by key works on one message of a key at a time.",
    ),
]
TenantOption = Annotated[
    str | None,
    typer.Option("--tenant", metavar="TENANT", help="Tenant of every message, such as acme.eu, which is below acme."),
]
PriorityOption = Annotated[
    int | None,
    typer.Option(
        "--priority",
        parser=WholeNumber(-COUNT_MAX - 1, COUNT_MAX),
        metavar="N",
        help="Priority. Smaller numbers come first.",
    ),
]
DelayOption = Annotated[
    float | None,
    typer.Option(
        "--delay",
        parser=DurationRange(0, DELAY_SECONDS_MAX),
        metavar="DURATION",
        help="Time until delivery, such as 5m; at most ten years.",
    ),
]
NotBeforeOption = Annotated[
    datetime | None,
    typer.Option(
        "--not-before",
        parser=parse_moment,
        metavar="TIME",
        help="Earliest delivery: 2026-01-31T12:00:00Z, or milliseconds since 1970.",
    ),
]
ExpiresOption = Annotated[
    float | None,
    typer.Option(
        "--expires",
        parser=DurationRange(0, DELAY_SECONDS_MAX),
        metavar="DURATION",
        help="Time after which an undelivered message is given up. Default: the topic's message.ttl.ms.",
    ),
]
HeaderOption = Annotated[
    list[str] | None,
    typer.Option(
        "--header", "-H", metavar="NAME=VALUE", help="Header added to every message. Repeat it for several headers."
    ),
]
LeaseOption = Annotated[
    float | None,
    typer.Option(
        "--lease",
        parser=DurationRange(LEASE_SECONDS_MIN, LEASE_SECONDS_MAX),
        metavar="DURATION",
        help="Length of the lease, from 1s to 12h. Default: the topic's lease.ms.",
    ),
]
TenantsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--tenant",
        metavar="TENANT",
        help="Only messages of this tenant and of those below. Repeat it for several tenants, at most 16.",
    ),
]
EnqueuedBeforeOption = Annotated[
    datetime | None,
    typer.Option(
        "--enqueued-before",
        parser=parse_past,
        metavar="TIME",
        help="Only messages enqueued before a time: 2026-01-31T12:00:00Z, 15m (ago), or milliseconds since 1970.",
    ),
]
RateOption = Annotated[
    int,
    typer.Option(
        "--rate", parser=whole_rate, metavar="N/s", help="Maximum rate of each partition, such as 100/s. 0: no limit."
    ),
]
IdArgument = Annotated[
    str | None, typer.Argument(metavar="[ID]", help="The message's id, as its producer named it.", show_default=False)
]
SequenceOption = Annotated[
    int | None,
    typer.Option(
        "--sequence",
        parser=WholeNumber(0, OFFSET_MAX),
        metavar="N",
        help="The message's sequence, as browse shows it, instead of an id.",
    ),
]
PartitionOption = Annotated[
    int,
    typer.Option(
        "--partition", "-p", parser=WholeNumber(0, COUNT_MAX), metavar="N", help="With --sequence: the partition."
    ),
]
VersionOption = Annotated[
    int | None,
    typer.Option(
        "--version",
        parser=WholeNumber(0, COUNT_MAX),
        metavar="N",
        help="Change only this version, as browse shows it.",
    ),
]


def milliseconds(seconds: float | None) -> float | None:
    """Convert an optional duration for the SDK."""
    return None if seconds is None else seconds * 1000
