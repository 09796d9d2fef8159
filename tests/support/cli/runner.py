"""Run commands in this process. The tree of commands is built once: typer's runner builds it for each run, which takes longer than most commands."""

import functools
from typing import Any

import typer.testing
from raftmq.cli.main import app
from typer.main import get_command
from typer.testing import CliRunner, Result

typer.testing._get_command = functools.cache(get_command)  # type: ignore[attr-defined]


def invoke(*arguments: str, **options: Any) -> Result:
    """Run ``raftmq`` with the arguments. The options are those of `CliRunner.invoke`."""
    return CliRunner().invoke(app, list(arguments), prog_name="raftmq", **options)
