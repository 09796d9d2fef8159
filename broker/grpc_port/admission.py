"""Define the part of the broker's budgets that a gRPC call may take, and the way to evict a call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol

import grpc.aio
from raftmq.broker.base.budget import Reservation
from raftmq.broker.base.limits import Limits
from raftmq.broker.grpc_port.slow_readers import cut_off

Context = grpc.aio.ServicerContext[Any, Any]


class Slots(Enum):
    """Slots that calls share. The values are labels of the metrics."""

    UNARY_CALLS = "unary_calls"
    POLLS = "polls"
    APPEND_STREAMS = "append_streams"
    QUEUE_STREAMS = "queue_streams"
    WATCHES = "watches"


class CallBounds(Protocol):
    """The budget that a call of one method may use."""

    @property
    def slots(self) -> Slots:
        """Return the kind of slots of which a call takes one."""
        ...

    @property
    def answer_bytes_max(self) -> Callable[[Any, Limits], int] | None:
        """Return a function for an upper bound of the answer to a request, or None if answers are small."""
        ...

    @property
    def is_each_request_answered(self) -> bool:
        """Return whether a stream answers each request, so that unanswered ones can be counted. Otherwise its service bounds them."""
        ...


class GrpcCall:
    """A call that holds budget."""

    __slots__ = ("_loop", "context", "task")

    def __init__(self, loop: asyncio.AbstractEventLoop, context: Context, task: asyncio.Task[Any]) -> None:
        self._loop = loop
        self.context = context
        self.task = task

    def peer(self) -> str:
        """Return the client's address, as gRPC names it."""
        return self.context.peer()

    def evict(self, reservation: Reservation) -> bool:
        """Cancel the call's task. A call that sends is cut off instead: gRPC frees the memory when it has given the call up."""
        if reservation.is_sending:
            cut_off(self._loop, self.context.peer())
            return False
        self.task.cancel()
        return True
