"""Options and arguments that several commands share."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from raftmq.cli.completion import complete_topic
from raftmq.cli.durations import DAY_SECONDS, Duration, DurationRange
from raftmq.cli.exit_codes import CommandError, ExitCode

DEFAULT_TIMEOUT = Duration(20)
"""Longer than the slowest election (two timeouts of six seconds), short enough for a person to wait."""
COUNT_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1
"""What the protocol's fields hold: a larger number is refused as the command line's fault."""
TOPIC_PARTITIONS_MAX = 10_000
"""Partitions of one topic; the brokers' limit (`fsm/metadata_topics.py`)."""

TopicArgument = Annotated[
    str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False, autocompletion=complete_topic)
]
BootstrapOption = Annotated[
    str,
    typer.Option(
        "--bootstrap-servers",
        "-b",
        envvar="RAFTMQ_BOOTSTRAP_SERVERS",
        metavar="HOST:PORT[,HOST:PORT...]",
        help="Client addresses of some brokers of the cluster.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        parser=DurationRange(0.1, DAY_SECONDS),
        metavar="DURATION",
        help="How long the cluster may take to answer.",
    ),
]


def confirm(question: str, *, is_agreed: bool) -> None:
    """Ask before something that cannot be undone, unless it was agreed to already; a no ends the command as Ctrl-C does."""
    if is_agreed:
        return
    try:
        is_agreed = typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-C, or the end of the input
        print(file=sys.stderr)
        if not sys.stdin.isatty():
            raise CommandError("nobody answered: say --yes to do it without asking", ExitCode.USAGE) from None
    if not is_agreed:
        raise SystemExit(ExitCode.INTERRUPTED)


def key_values(pairs: list[str] | None, option: str) -> dict[str, str]:
    """The ``KEY=VALUE`` pairs given to an option as a dictionary; a pair without ``=`` is a usage error."""
    values = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint=option)
        values[key] = value
    return values
