"""Define the engine as its parts see it. They import this module, never the engine, which passes itself to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVarTuple

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.messages import Message

Arguments = TypeVarTuple("Arguments")


class EngineHost(Protocol):
    """The functions of the engine that its parts may call."""

    def mark_dirty(self, replica: Replica[StateMachine]) -> None:
        """Step the group in the next pass."""
        ...

    def guarded(
        self, replica: Replica[StateMachine], action: Callable[[*Arguments], object], *arguments: *Arguments
    ) -> None:
        """Run an action of one group, unless the group is closed. An error affects only that group."""
        ...

    def break_replica(self, replica: Replica[StateMachine], error: Exception) -> None:
        """Silence a replica that is damaged or broke a rule."""
        ...

    def send(self, replica: Replica[StateMachine], message: Message) -> None:
        """Send a message to the replica that it names, or drop it and tell the core."""
        ...

    def on_fatal(self, error: BaseException) -> None:
        """End the process after a failed commit: its outcome on disk is unknown, and a retry could claim a false success."""
        ...
