"""The client and the command line can be imported where only the portable part of Python exists, as on Windows.

The test hides the rest from a process on this system. That a real Windows or macOS works is not shown by it (docs/guides/installing.md).
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import asyncio, concurrent.futures, importlib, json, multiprocessing.connection, pkgutil, subprocess, sys, sysconfig, tempfile, typing
import cramjam, crc32c, google.protobuf, grpc, grpc.aio, msgspec, pyarrow, rich.console, rich.table, typer, typer.rich_utils
from tests.support.hidden_posix import hide
sysconfig.get_config_vars()
hide()
import raftmq
failed, imported = {}, []
def visit(name):
    try:
        module = importlib.import_module(name)
    except BaseException as error:
        failed[name] = repr(error)
        return
    imported.append(name)
    for part in pkgutil.iter_modules(getattr(module, "__path__", ())):
        visit(f"{name}.{part.name}")
for name in sys.argv[1:]:
    visit(name)
print(json.dumps([failed, imported]))
"""
PACKAGES = (
    "raftmq.client",
    "raftmq.cli",
    "raftmq.sync",
    "raftmq.serializers",
    "raftmq.errors",
    "raftmq.types",
    "raftmq.__main__",
)
"""Everything that a client or the command line is made of. A broker needs a POSIX system."""


NEEDING_POSIX = {"raftmq.broker.main", "raftmq.storage.registry"}
"""Modules that cannot be imported there. Otherwise these tests could not fail."""


@pytest.fixture(scope="module")
def found() -> tuple[dict[str, str], list[str]]:
    """Return the error of each module that cannot be imported, and the others."""
    command = [sys.executable, "-c", PROGRAM, *PACKAGES, *NEEDING_POSIX]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    failed, imported = json.loads(done.stdout)
    return failed, imported


def test_every_module_of_the_client_and_the_command_line_can_be_imported(
    found: tuple[dict[str, str], list[str]],
) -> None:
    failed, imported = found
    assert {name: error for name, error in failed.items() if name not in NEEDING_POSIX} == {}
    assert {"raftmq.client.worker.worker", "raftmq.cli.queue.app", "raftmq.sync.producer"} <= set(imported)


def test_a_module_that_needs_a_hidden_part_misses_it(found: tuple[dict[str, str], list[str]]) -> None:
    failed, _ = found
    assert all("(hidden)" in failed[name] for name in NEEDING_POSIX)
