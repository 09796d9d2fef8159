"""Check the tutorial's programs, and the types of keys and values of the clients, with mypy --strict."""

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
    """Mypy reports an ``ignore`` without an error, so each one marks a mistake that mypy finds."""
    done = check_types(tmp_path, {"typed.py": TYPED.read_text()})
    assert done.returncode == 0, done.stdout + done.stderr


PAIRS = [
    (raftmq.Producer, sync.Producer),
    (raftmq.Consumer, sync.Consumer),
    (raftmq.Admin, sync.Admin),
    (raftmq.Queue, sync.Queue),
]
ASYNC_ONLY = {"start"}
"""Methods that only asynchronous clients have: a blocking client starts on creation."""
MORE_WHEN_BLOCKING = {"timeout_seconds"}
"""Additional parameters of blocking methods. Asynchronous code uses ``asyncio.timeout``."""
OWN_TYPES = {"listener", "into"}
"""Parameters whose types differ between the two modules."""


def parameters(function: Callable[..., object]) -> dict[str, tuple[object, object, object]]:
    found = inspect.signature(function).parameters
    return {
        name: (one.kind, one.default, "" if name in OWN_TYPES else one.annotation)
        for name, one in found.items()
        if name not in MORE_WHEN_BLOCKING
    }


@pytest.mark.parametrize(("usual", "blocking"), PAIRS, ids=[usual.__name__ for usual, _ in PAIRS])
def test_a_blocking_client_has_the_parameters_of_the_asynchronous_one(usual: type, blocking: type) -> None:
    assert parameters(blocking) == parameters(usual)
    methods = {
        name: member
        for name, member in inspect.getmembers(usual, inspect.isfunction)
        if not name.startswith("_") and name not in ASYNC_ONLY
    }
    assert methods
    for name, method in methods.items():
        assert parameters(getattr(blocking, name)) == parameters(method), name
