"""Run commands in this process. The tree of commands is built once: typer's runner builds it for each run, which takes longer than most commands."""

import functools
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from io import TextIOWrapper
from tempfile import TemporaryFile
from typing import Any

import pytest
import typer.testing
from raftmq.cli.main import app
from typer.main import get_command
from typer.testing import CliRunner, Result

command_tree = functools.cache(get_command)
typer.testing._get_command = command_tree  # type: ignore[attr-defined]
STREAMS = ("stdin", "stdout", "stderr")


def invoke(*arguments: str, **options: Any) -> Result:
    """Run ``raftmq`` with the arguments. The options are those of `CliRunner.invoke`."""
    return CliRunner().invoke(app, list(arguments), prog_name="raftmq", **options)


def run_here(*arguments: str, stdin: bytes, environment: Mapping[str, str]) -> subprocess.CompletedProcess[bytes]:
    """Run a command with files as its standard streams, for commands that use their descriptors. Only the main thread can run such commands."""
    with ExitStack() as opened:
        files = {name: opened.enter_context(TemporaryFile()) for name in STREAMS}
        files["stdin"].write(stdin)
        files["stdin"].seek(0)
        with pytest.MonkeyPatch.context() as patched:
            for name, file in files.items():
                patched.setattr(sys, name, TextIOWrapper(file, write_through=True))
            for name, value in environment.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                command_tree(app).main(list(arguments), prog_name="raftmq")
            said = []
            for name in ("stdout", "stderr"):
                getattr(sys, name).flush()
                files[name].seek(0)
                said.append(files[name].read())
            for name in STREAMS:
                getattr(sys, name).detach()
    return subprocess.CompletedProcess(arguments, int(ended.value.code or 0), *said)
