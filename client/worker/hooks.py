"""What a program wants to be called for, beside its handlers. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftmq.client.worker.executor import Hook
from raftmq.client.worker.failure_reports import OnFailure


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions of the program."""

    on_startup: Hook | None = None
    """Before the first record."""
    on_shutdown: Hook | None = None
    """After the last, if `on_startup` came to its end."""
    on_failure: OnFailure | None = None
    """After each try that failed."""


NO_HOOKS: Final = Hooks()
