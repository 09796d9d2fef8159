"""The ``raftmq`` command: its tree of commands and how it ends.

It must not import the SDK or the broker at the top. Each command imports them when it runs.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Annotated, Any

import typer
from raftmq.cli import (
    broker,
    cluster,
    config,
    consume,
    dev,
    dlq,
    doctor,
    group,
    produce,
    recover,
    schedule,
    topic,
    worker,
)
from raftmq.cli.examples import examples
from raftmq.cli.exit_codes import reported_question
from raftmq.cli.placement import partition
from raftmq.cli.queue import app as queue
from typer.core import TyperGroup

HELP_OPTIONS = ["-h", "--help"]
CONTEXT_SETTINGS = {"help_option_names": HELP_OPTIONS}


class Commands(TyperGroup):
    """The root of the tree. It reports an invalid argument in the terms of the command."""

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 (typer has its own copy of click)
        """Run the requested command."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="raftmq",
    cls=Commands,
    help="RaftMQ: a partitioned, replicated message broker.",
    no_args_is_help=True,
    epilog=examples(
        "raftmq dev",
        "raftmq topic create orders --partitions 6",
        "raftmq produce orders --key c1 --value hello",
        "raftmq consume orders --from-beginning",
        "raftmq COMMAND --help",
    ),
    rich_markup_mode=None,  # plain text: whole names at any width, and rich is not imported
    pretty_exceptions_enable=False,  # `exit_codes.reported` handles every error
    context_settings=CONTEXT_SETTINGS,
)
app.add_typer(broker.app, name="broker")
app.add_typer(config.app, name="config")
app.add_typer(topic.app, name="topic")
app.add_typer(partition.app, name="partition")
app.add_typer(group.app, name="group")
app.add_typer(dlq.app, name="dlq")
app.add_typer(queue.app, name="queue")
app.add_typer(schedule.app, name="schedule")
app.add_typer(cluster.app, name="cluster")
app.add_typer(recover.app, name="recover")
app.add_typer(worker.app, name="worker")
app.command(
    "produce",
    short_help="Write records from lines or options.",
    epilog=examples(
        "raftmq produce orders --key c1 --value '{\"total\": 12}'",
        "raftmq produce orders --file orders.txt --key-separator :",
        "tail -f app.log | raftmq produce logs --header source=web-1",
        "raftmq produce orders --format json --key-field customer.id -f o.jsonl",
    ),
)(produce.produce)
app.command(
    "consume",
    epilog=examples(
        "raftmq consume orders --from-beginning --exit-at-end",
        "raftmq consume orders --from-time 15m --key c1 --header source=web-1",
        r"raftmq consume orders --format '%p/%o %k: %s\n'",
        "raftmq consume orders --group audit --from-beginning -o json",
        "raftmq consume orders --partition 0 --offset 2 -n 1",
    ),
)(consume.consume)
app.command(
    "dev",
    short_help="Run a cluster on this machine until Ctrl-C.",
    epilog=examples("raftmq dev", "raftmq dev --brokers 1 --data-dir ./data", "raftmq dev --port 0 -o json"),
)(dev.dev)
app.command(
    "doctor",
    short_help="Examine a stopped broker's data directory.",
    epilog=examples("raftmq doctor /var/lib/raftmq", "raftmq doctor /var/lib/raftmq -o json"),
)(doctor.doctor)


@reported_question
def _show_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        print(f"raftmq {importlib.metadata.version('raftmq')}", flush=True)
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """RaftMQ: a partitioned, replicated message broker."""


def main() -> None:
    """Run the command line and end the process with one of the codes in `exit_codes`."""
    # A standard stream that the caller closed is None, which no library expects.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 (open as long as the process)
    # Records hold any text. Without this, the result of a command that has acted could not be printed in another encoding.
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    words = sys.argv[1:]
    if words:
        leave_only(words[0])
    if not show_help(words):
        app(prog_name="raftmq")


def leave_only(name: str) -> None:
    """Drop all other branches of the tree if it has one of this name. Typer builds every command that it has, which takes 0.3 s."""
    groups = [one for one in app.registered_groups if one.name == name]
    commands = [one for one in app.registered_commands if one.name == name]
    if groups or commands:
        app.registered_groups, app.registered_commands = groups, commands


@reported_question
def show_help(words: Sequence[str]) -> bool:
    """Print the help page of ``COMMAND -h`` and return True. Return False for any other command line.

    Parsing a command line costs typer half a second, most of it for pydantic. Help needs no parsing.
    """
    if not any(word in HELP_OPTIONS for word in words):
        return False
    command: Any = typer.main.get_command(app)
    context = typer.Context(command, info_name="raftmq", help_option_names=HELP_OPTIONS)
    for word in itertools.takewhile(lambda word: word not in HELP_OPTIONS, words):
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            return False
        context = typer.Context(command, info_name=word, parent=context)
    print(context.get_help())
    return True
