"""`PendingPoll`: a poll whose outcome is passed to a callback. A consumer reads thousands of single records a second, so a poll has no task.

`PollTask` makes such a poll of a call, where no data connection carries it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Protocol

from raftmq.proto import queue_pb2 as pb

OnPolled = Callable[[pb.PollResponse | BaseException], None]
"""Takes the answer, or the error: a `RaftMQError`, or a defect of the SDK. Called once unless the poll is cancelled, and not before the poll
is returned. Must not raise."""


class PendingPoll(Protocol):
    """A poll under way."""

    def cancel(self) -> None:
        """Give the poll up: its callback is not called any more. Has no effect on a poll that has ended."""
        ...


class PollTask:
    """A poll that a task waits for."""

    def __init__(self, call: Coroutine[object, object, pb.PollResponse], address: str, on_outcome: OnPolled) -> None:
        self._on_outcome = on_outcome
        self._is_cancelled = False
        self.task = asyncio.get_running_loop().create_task(call, name=f"raftmq-poll-{address}")
        self.task.add_done_callback(self._on_done)

    def cancel(self) -> None:
        """See `PendingPoll`."""
        self._is_cancelled = True
        self.task.cancel()

    def _on_done(self, task: asyncio.Task[pb.PollResponse]) -> None:
        error = None if task.cancelled() else task.exception()  # takes an error that nobody wants any more
        if self._is_cancelled:
            return
        if task.cancelled():
            self._on_outcome(RuntimeError(f"{task.get_name()} ended with a cancellation that nobody requested"))
        else:
            self._on_outcome(error or task.result())
