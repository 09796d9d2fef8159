"""Tells a client object that the process was forked under it: connections, threads and loops do not survive a fork.

Nor does gRPC: a child that was forked while clients were open can use it no more, not even for new connections (`grpc_fork.py`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

from raftmq.errors import ForkedClientError


class _Process:
    __slots__ = ("generation", "grpc_generation")

    def __init__(self) -> None:
        self.generation = 0
        """Another number in every process forked from this one."""
        self.grpc_generation: int | None = None
        """Of the process in which gRPC is used; None: nothing of it is alive."""


process: Final = _Process()


def call_in_forked_child(function: Callable[[], None]) -> None:
    """Have `function` called in every process that is forked from this one. Nothing to do where processes are never forked (Windows)."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)


def _on_fork_in_child() -> None:
    process.generation += 1


call_in_forked_child(_on_fork_in_child)


def current_generation() -> int:
    """A number that is another one in every process forked from this one; a client notes it when it is made."""
    return process.generation


def check_not_forked(generation: int, name: str) -> None:
    """Raise `ForkedClientError` when this process is not the one that `generation` was noted in."""
    if generation != process.generation:
        raise ForkedClientError(f"this {name} was opened in the parent process and cannot be used after fork")


def check_grpc_usable() -> None:
    """Note that gRPC is used here; raise `ForkedClientError` when it was in use while the process was forked."""
    if process.grpc_generation is None:
        process.grpc_generation = process.generation
    if process.grpc_generation != process.generation:
        raise ForkedClientError("the parent process had open clients when it forked this one; none can be opened here")
