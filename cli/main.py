"""The ``raftmq`` command: its tree of commands and its way out.

Must not import the SDK or the broker at the top: a command does when it runs.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from raftmq.cli import broker, cluster, consume, dev, doctor, group, produce, topic

app = typer.Typer(
    name="raftmq",
    help="RaftMQ: a partitioned, replicated message broker.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # `exit_codes.reported` answers for every error
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(broker.app, name="broker")
app.add_typer(broker.config_app, name="config")
app.add_typer(topic.app, name="topic")
app.add_typer(group.app, name="group")
app.add_typer(cluster.app, name="cluster")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.command("dev")(dev.dev)
app.command("doctor")(doctor.doctor)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"raftmq {importlib.metadata.version('raftmq')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """RaftMQ: a partitioned, replicated message broker."""


def main() -> None:
    """Run the command line; ends the process with one of the codes in `exit_codes`."""
    # A standard stream that the caller closed is None, which nobody expects.
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 (open as long as the process)
    app(prog_name="raftmq")
