"""The program's functions beside its handlers. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from raftmq.client.worker.executor import Hook
from raftmq.client.worker.failure_reports import OnFailure


@dataclass(frozen=True, slots=True)
class Hooks:
    """Functions that the worker calls beside the handlers."""

    on_startup: Hook | None = None
    """Called before the first record."""
    on_shutdown: Hook | None = None
    """Called after the last record, if `on_startup` succeeded."""
    on_failure: OnFailure | None = None
    """Called after each failed attempt."""


NO_HOOKS: Final = Hooks()
