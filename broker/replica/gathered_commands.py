"""Gather commands into few entries: those of one turn of the loop, and those that arrive while earlier entries are being committed.

They are proposed when the engine's next pass begins, and are committed together with the batches that were proposed before it. So a partition
under load proposes a few large entries instead of many small ones, and a command on an idle partition waits for nothing.
This module must not know the meaning of a command: its owner encodes them, and splits the result of an entry into theirs.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from raftmq.broker.base.futures import fail
from raftmq.broker.base.request_error import RequestError, timed_out
from raftmq.broker.replica.replica import THROTTLE_RETRY_MS, Replica
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import EntryKind, Proposal

KeyT = TypeVar("KeyT", bound=Hashable)
CommandT = TypeVar("CommandT")


@dataclass(frozen=True, slots=True)
class GatheringLimits:
    """The bounds of one partition's gathered commands."""

    waiting_max: int
    """Commands that may wait. The next one is throttled."""
    entry_commands_max: int
    """Commands in one entry."""
    entry_bytes_max: int
    """Bytes of the commands in one entry, by their owner's account, not counting the first command."""
    entries_in_flight_max: int
    """Entries that are proposed and not applied yet."""
    entry_work_max: int = 0
    """Work of the commands in one entry, by their owner's account, not counting the first command. 0: no bound."""


class _Waiting(Generic[CommandT]):
    """A command, and the callers that wait for its result."""

    __slots__ = ("command", "futures", "size", "work")

    def __init__(self, command: CommandT, size: int, work: int) -> None:
        self.command = command
        self.size = size
        self.work = work
        self.futures: list[asyncio.Future[object]] = []


class GatheredCommands(Generic[KeyT, CommandT]):
    """Proposes the commands of one partition in the order of their arrival, except that some yield within their entry."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        replica: Replica[StateMachine],
        encode: Callable[[Sequence[CommandT]], bytes],
        split: Callable[[object, int], Sequence[object]],
        limits: GatheringLimits,
        yields: Callable[[CommandT], bool] = lambda _: False,
    ) -> None:
        """Take the functions that know the commands.

        Args:
            loop: The node's event loop.
            replica: The partition's replica.
            encode: Returns the payload of one entry that carries these commands.
            split: Returns the results of an entry's commands, given the entry's result and their number.
            limits: The bounds.
            yields: Returns whether a command comes after those of its entry that do not yield.
        """
        self._loop = loop
        self._replica = replica
        self._yields = yields
        self._encode = encode
        self._split = split
        self._limits = limits
        self._waiting: dict[KeyT, _Waiting[CommandT]] = {}
        """Commands that are not proposed yet, in the order of their arrival."""
        self._entries_in_flight = 0
        replica.proposers.append(self._flush)

    def submit(self, key: KeyT, command: CommandT, size: int, work: int = 0) -> asyncio.Future[object]:
        """Queue a command of `size` bytes. The future returns its result. Cancelling the future undoes nothing.

        A command that waits under the same key is replaced, and its callers get the result of this one.

        Raises:
            RequestError: THROTTLED. Nothing was queued.

        The future raises the RequestError of `Replica.propose`.
        """
        waiting = self._waiting.get(key)
        if waiting is None:
            if len(self._waiting) >= self._limits.waiting_max:
                raise RequestError(
                    pb.THROTTLED, "too many commands wait in this partition", retry_after_ms=THROTTLE_RETRY_MS
                )
            waiting = self._waiting[key] = _Waiting(command, size, work)
        else:
            waiting.command, waiting.size, waiting.work = command, size, work
        future: asyncio.Future[object] = self._loop.create_future()
        waiting.futures.append(future)
        self._wake()
        return future

    def _wake(self) -> None:
        """Have the commands proposed. Those of a closed replica fail immediately."""
        if self._replica.is_closed:
            self._flush()
        else:
            self._replica.wake_proposers()

    def _flush(self) -> None:
        """Propose everything that waits, as far as entries may be in flight."""
        while self._waiting and self._entries_in_flight < self._limits.entries_in_flight_max:
            self._propose(self._take_waiting())

    def _take_waiting(self) -> list[_Waiting[CommandT]]:
        """Remove and return the oldest commands, as many as one entry may carry."""
        limits, taken, size, work = self._limits, deque[KeyT](), 0, 0
        for key, waiting in self._waiting.items():
            size += waiting.size
            work += waiting.work
            is_over = size > limits.entry_bytes_max or 0 < limits.entry_work_max < work
            if len(taken) == limits.entry_commands_max or (taken and is_over):
                break
            taken.append(key)
        return sorted((self._waiting.pop(key) for key in taken), key=lambda waiting: self._yields(waiting.command))

    def _propose(self, carried: list[_Waiting[CommandT]]) -> None:
        payload = self._encode([waiting.command for waiting in carried])
        try:
            _, applied = self._replica.propose([Proposal(EntryKind.COMMAND, payload)])
        except RequestError as error:
            _fail(carried, error)
            return
        self._entries_in_flight += 1
        applied.add_done_callback(lambda done: self._on_applied(carried, done))

    def _on_applied(self, carried: list[_Waiting[CommandT]], done: asyncio.Future[list[object]]) -> None:
        self._entries_in_flight -= 1
        failure = timed_out() if done.cancelled() else done.exception()
        if failure is not None:
            _fail(carried, failure)
        else:
            results = self._split(done.result()[0], len(carried))
            for waiting, result in zip(carried, results, strict=True):
                for future in waiting.futures:
                    if not future.done():
                        future.set_result(result)
        if self._waiting:
            self._wake()


def _fail(carried: Sequence[_Waiting[CommandT]], error: BaseException) -> None:
    for waiting in carried:
        for future in waiting.futures:
            fail(future, error)
