"""Tells a client object that the process was forked under it: connections, threads and loops do not survive a fork.

Nor does gRPC: once used, it is of no use in a forked child, not even for new connections (tried: they never connect).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from raftmq.errors import ForkedClientError


class _Process:
    generation = 0
    grpc_generation: int | None = None
    """Of the process in which gRPC was used first; None: not yet."""


def call_in_forked_child(function: Callable[[], None]) -> None:
    """Have `function` called in every process that is forked from this one. Nothing to do where processes are never forked (Windows)."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)


def _on_fork_in_child() -> None:
    _Process.generation += 1


call_in_forked_child(_on_fork_in_child)


def current_generation() -> int:
    """A number that is another one in every process forked from this one; a client notes it when it is made."""
    return _Process.generation


def check_not_forked(generation: int, name: str) -> None:
    """Raise `ForkedClientError` when this process is not the one that `generation` was noted in."""
    if generation != _Process.generation:
        raise ForkedClientError(f"this {name} was opened in the parent process and cannot be used after fork")


def check_grpc_usable() -> None:
    """Note that gRPC is used here; raise `ForkedClientError` when it was used before the process was forked."""
    if _Process.grpc_generation is None:
        _Process.grpc_generation = _Process.generation
    if _Process.grpc_generation != _Process.generation:
        raise ForkedClientError(
            "the parent process had used a client before it forked this one; none can be opened here"
        )
