"""The engine as its parts see it. They import this, never the engine: it hands itself to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVarTuple

from raftmq.broker.replica.replica import Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.raft.messages import Message

Arguments = TypeVarTuple("Arguments")


class EngineHost(Protocol):
    """What every part may ask."""

    def mark_dirty(self, replica: Replica[StateMachine]) -> None:
        """Step the group in the next pass."""
        ...

    def guarded(
        self, replica: Replica[StateMachine], action: Callable[[*Arguments], object], *arguments: *Arguments
    ) -> None:
        """Run something of one group, unless it is closed; whatever it raises concerns that group alone."""
        ...

    def break_replica(self, replica: Replica[StateMachine], error: Exception) -> None:
        """The replica is damaged or broke a rule: silent from now on."""
        ...

    def send(self, replica: Replica[StateMachine], message: Message) -> None:
        """Send a message to the replica it names, or drop it and tell the core."""
        ...

    def on_fatal(self, error: BaseException) -> None:
        """A commit failed: its outcome on disk is unknown and retrying would lie. The process ends."""
        ...
