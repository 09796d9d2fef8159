"""Options and arguments that several commands share."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from typing import Annotated

import typer
from raftmq.cli.completion import complete_topic
from raftmq.cli.durations import DAY_SECONDS, Duration, DurationRange
from raftmq.cli.exit_codes import CommandError, ExitCode

DEFAULT_TIMEOUT = Duration(20)
"""Longer than the slowest election (two timeouts of six seconds), and short enough for a person to wait."""
COUNT_MAX = 2**31 - 1
OFFSET_MAX = 2**63 - 1
"""The largest numbers that the protocol's fields hold. A larger number is refused as a usage error."""
TOPIC_PARTITIONS_MAX = 10_000
"""Maximum number of partitions of one topic; the brokers enforce it (`fsm/metadata_topics.py`)."""

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
        help="Client addresses of one or more brokers of the cluster.",
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
TimeoutOption = Annotated[
    float,
    typer.Option(
        "--timeout",
        parser=DurationRange(0.1, DAY_SECONDS),
        metavar="DURATION",
        help="Maximum time for the cluster to answer.",
    ),
]


def confirm(question: str, *, is_agreed: bool) -> None:
    """Ask for confirmation of an irreversible action, unless `is_agreed`. A "no" ends the command as Ctrl-C does."""
    if is_agreed:
        return
    try:
        with redirect_stdout(sys.stderr):  # typer writes a space to standard output, which is for results
            is_agreed = typer.confirm(question, err=True)
    except typer.Abort:  # Ctrl-C, or the end of the input
        print(file=sys.stderr)
        if not sys.stdin.isatty():
            raise CommandError(
                "no answer on standard input: pass --yes to skip the confirmation", ExitCode.USAGE
            ) from None
    if not is_agreed:
        raise SystemExit(ExitCode.INTERRUPTED)


def key_values(pairs: list[str] | None, option: str) -> dict[str, str]:
    """Return the ``KEY=VALUE`` pairs of an option as a dictionary. A pair without ``=`` is a usage error."""
    values = {}
    for pair in pairs or ():
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise typer.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint=option)
        values[key] = value
    return values
