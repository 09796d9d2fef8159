"""What a type checker sees: the tutorial's programs, and the types that the clients give to keys and values, under mypy --strict."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import raftmq
from raftmq import sync

from tests.support.e2e.guide_programs import read_page

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".venv/mypy_programs"
TUTORIAL = read_page(ROOT / "docs/guides/tutorial.md").files

TYPED = ROOT / "tests/typing/serialized_types.py"


def check_types(directory: Path, files: dict[str, str]) -> subprocess.CompletedProcess[str]:
    for name, text in files.items():
        (directory / name).write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(CACHE), *files],
        cwd=directory,
        env={name: value for name, value in os.environ.items() if not name.startswith("MYPY")},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def test_the_tutorials_programs_pass_a_strict_type_check(tmp_path: Path) -> None:
    assert len(TUTORIAL) >= 5
    done = check_types(tmp_path, TUTORIAL)
    assert done.returncode == 0, done.stdout + done.stderr


def test_keys_and_values_have_the_types_of_their_serializers(tmp_path: Path) -> None:
    """An ``ignore`` that nothing needs is an error, so each of them is a mistake that is found."""
    done = check_types(tmp_path, {"typed.py": TYPED.read_text()})
    assert done.returncode == 0, done.stdout + done.stderr


PAIRS = [
    (raftmq.Producer, sync.Producer),
    (raftmq.Consumer, sync.Consumer),
    (raftmq.Admin, sync.Admin),
]
ASYNC_ONLY = {"start"}
"""A blocking client is started when it is made."""
MORE_WHEN_BLOCKING = {"timeout_seconds"}
"""Where asynchronous code has ``asyncio.timeout``."""
OWN_TYPES = {"listener", "into"}
"""Of the module that they are used with."""


def parameters(function: Callable[..., object]) -> dict[str, tuple[object, object, object]]:
    found = inspect.signature(function).parameters
    return {
        name: (one.kind, one.default, "" if name in OWN_TYPES else one.annotation)
        for name, one in found.items()
        if name not in MORE_WHEN_BLOCKING
    }


@pytest.mark.parametrize(("usual", "blocking"), PAIRS, ids=[usual.__name__ for usual, _ in PAIRS])
def test_a_blocking_client_takes_what_the_asynchronous_one_takes(usual: type, blocking: type) -> None:
    assert parameters(blocking) == parameters(usual)
    methods = {
        name: member
        for name, member in inspect.getmembers(usual, inspect.isfunction)
        if not name.startswith("_") and name not in ASYNC_ONLY
    }
    assert methods
    for name, method in methods.items():
        assert parameters(getattr(blocking, name)) == parameters(method), name
