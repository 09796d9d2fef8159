"""Options and arguments of the commands that move partitions."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from raftmq.cli.numbers import WholeNumber
from raftmq.cli.options import COUNT_MAX

BrokerIdArgument = Annotated[
    int,
    typer.Argument(metavar="BROKER_ID", parser=WholeNumber(1, COUNT_MAX), help="Id of the broker.", show_default=False),
]
PartitionArgument = Annotated[
    int,
    typer.Argument(
        metavar="PARTITION", parser=WholeNumber(0, COUNT_MAX), help="Number of the partition.", show_default=False
    ),
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show the planned moves, and change nothing.")]
WaitOption = Annotated[
    bool,
    typer.Option(
        "--wait/--no-wait",
        help="Wait until the moves are finished, or end when the cluster has accepted the command.",
        show_default=True,
    ),
]
_BROKER_ID: Final = WholeNumber(1, COUNT_MAX)


class BrokerIds(tuple[int, ...]):
    """Brokers of a partition, the preferred leader first."""

    __slots__ = ()


def parse_broker_ids(text: str) -> BrokerIds:
    """Parse ``1,2,3``. Raises `typer.BadParameter`."""
    ids = BrokerIds(_BROKER_ID(part.strip()) for part in text.split(","))
    if len(set(ids)) < len(ids):
        raise typer.BadParameter(f"{text!r} names a broker more than once")
    return ids
