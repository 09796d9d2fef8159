"""Detects that a process was forked after a client was created: connections, threads and loops do not survive a fork.

gRPC does not survive it either. A child that was forked while clients were open cannot use it, even for new connections (`grpc_fork.py`).
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
        """A number that differs in every process forked from this one."""
        self.grpc_generation: int | None = None
        """The generation of the process in which gRPC is in use, or None if no part of it is alive."""


process: Final = _Process()


def call_in_forked_child(function: Callable[[], None]) -> None:
    """Register a function that is called in every process forked from this one. Does nothing on Windows, which never forks."""
    if sys.platform != "win32":
        os.register_at_fork(after_in_child=function)


def _on_fork_in_child() -> None:
    process.generation += 1


call_in_forked_child(_on_fork_in_child)


def current_generation() -> int:
    """Return a number that differs in every process forked from this one. A client stores it when it is created."""
    return process.generation


def check_not_forked(generation: int, name: str) -> None:
    """Raise `ForkedClientError` when this process is not the one in which `generation` was stored."""
    if generation != process.generation:
        raise ForkedClientError(f"this {name} was opened in the parent process and cannot be used after fork")


def check_grpc_usable() -> None:
    """Record that gRPC is used here. Raise `ForkedClientError` when it was in use while the process was forked."""
    if process.grpc_generation is None:
        process.grpc_generation = process.generation
    if process.grpc_generation != process.generation:
        raise ForkedClientError("the parent process had open clients when it forked this one; none can be opened here")
