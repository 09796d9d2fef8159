"""Confirm that one replica's state is recent enough to be read, and keep the reads that wait for that.

A read waits twice: until a majority confirms an index that includes everything committed before the read, and until that index is
applied here. This module must not read anything itself. Source: Ongaro's thesis 6.4.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from raftmq.broker.base.futures import consume_exception, fail
from raftmq.broker.base.request_error import RequestError
from raftmq.fsm.state_machine import StateMachine
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.core import RaftCore
from raftmq.types import GroupId, LogIndex

_BEHIND_RETRY_MS = 100


class AskedRead(NamedTuple):
    """A read that waits for its confirmation."""

    asked_at: float
    """Loop time."""
    asked_ns: int
    """The same by the clock that counts suspension."""
    future: asyncio.Future[LogIndex]


class ConfirmedRead(NamedTuple):
    """A read that is served when its index is applied here."""

    read_index: LogIndex
    asked: AskedRead


class ReplicaReads:
    """The reads of one replica."""

    def __init__(
        self,
        group_id: GroupId,
        loop: asyncio.AbstractEventLoop,
        core: RaftCore,
        state_machine: StateMachine,
        is_half_applied: Callable[[], bool],
        ask: Callable[[int], None],
        not_leader: Callable[[], RequestError],
        first_id: int,
        boottime_ns: Callable[[], int],
    ) -> None:
        """Take the functions of the replica.

        `is_half_applied` tells whether the machine's state is that of no index. `ask` has the core confirm the read with that id.
        `first_id` should be random: see `Replica`. `boottime_ns` is a clock that counts suspension, as loop time does not.
        """
        self._is_half_applied = is_half_applied
        self._group_id = group_id
        self._loop = loop
        self._core = core
        self._state_machine = state_machine
        self._ask = ask
        self._not_leader = not_leader
        self._next_id = first_id
        self._boottime_ns = boottime_ns
        self.unconfirmed: dict[int, AskedRead] = {}
        """Reads that wait for a confirmation, by id."""
        self.confirmed: deque[ConfirmedRead] = deque()
        """Reads that wait until their index is applied."""
        self._shared: asyncio.Future[LogIndex] | None = None
        """The read that calls of this pass of the loop share. None after its confirmation round has begun."""
        self._refresh: asyncio.Future[LogIndex] | None = None
        """The last read that `refresh` started."""
        self.confirmed_ns: int | None = None
        """Time up to which the replica's state is known to include all commits, by the clock that counts suspension. None before the first
        confirmation."""
        self._is_closed = False

    @property
    def are_waiting(self) -> bool:
        """Return whether any read waits for its confirmation, or until its index is applied."""
        return bool(self.unconfirmed or self.confirmed)

    # ------------------------------------------------------------------------------------------------ asking

    def join(self) -> asyncio.Future[LogIndex]:
        """Return the read that starts in this pass of the loop. It is shared: do not cancel it."""
        shared = self._shared
        if shared is None or shared.done():
            shared = self._loop.create_future()
            shared.add_done_callback(consume_exception)
            self._shared = shared
            self._loop.call_soon(self._start, shared)
        return shared

    def refresh(self) -> asyncio.Future[LogIndex]:
        """Return a read under way, shared by all callers that only want the state to be recent: do not cancel it."""
        if self._refresh is None or self._refresh.done():
            self._refresh = self.join()
        return self._refresh

    def is_confirmed_within(self, seconds: float) -> bool:
        """Return whether the state includes everything that was committed `seconds` ago.

        It stays so while it is called regularly and a majority answers: at half of that age a refresh starts.
        """
        # not loop time: after a suspension an old confirmation would pass for a recent one
        age = (self._boottime_ns() - self.confirmed_ns) / 1e9 if self.confirmed_ns is not None else seconds + 1
        if age > seconds / 2:
            self.refresh()
        return age <= seconds

    def _start(self, future: asyncio.Future[LogIndex]) -> None:
        # later callers need a confirmation round of their own: this one starts now and proves nothing about their time
        self._shared = None
        if self._is_closed:
            fail(future, self._not_leader())
            return
        request_id = self._next_id
        self._next_id += 1
        self.unconfirmed[request_id] = AskedRead(self._loop.time(), self._boottime_ns(), future)
        self._ask(request_id)

    # ------------------------------------------------------------------------------------------------ answers

    def on_confirmed(self, request_id: int, read_index: LogIndex) -> None:
        """Process a confirmation. The read is served when the index is applied."""
        read = self.unconfirmed.pop(request_id, None)
        if read is not None:
            self.confirmed.append(ConfirmedRead(read_index, read))
            self.serve()

    def on_failed(self, request_id: int) -> None:
        """Fail a read that the core could not confirm."""
        read = self.unconfirmed.pop(request_id, None)
        if read is not None:
            fail(read.future, self._not_leader())

    def serve(self) -> None:
        """Answer the confirmed reads whose index is applied. Called after each change of the state."""
        applied = self._core.applied_index
        if self._is_half_applied() or self._state_machine.applied_index < self._core.state_floor:
            return
        while self.confirmed and self.confirmed[0].read_index <= applied:
            asked = self.confirmed.popleft().asked
            self.confirmed_ns = max(asked.asked_ns, self.confirmed_ns or asked.asked_ns)
            if not asked.future.done():
                asked.future.set_result(applied)

    def forget_unconfirmed(self) -> None:
        """Fail the reads whose confirmation may have been lost with a former leader. Their callers ask again."""
        for read in self.unconfirmed.values():
            fail(read.future, self._not_leader())
        self.unconfirmed.clear()

    def expire(self, asked_before: float) -> None:
        """Fail the reads asked before that loop time.

        A lost message is never answered, and a replica that was cut off after a confirmation may never get the entries.
        """
        while self.unconfirmed:
            request_id, read = next(iter(self.unconfirmed.items()))
            if read.asked_at >= asked_before:
                break
            del self.unconfirmed[request_id]
            fail(read.future, self._not_leader())
        while self.confirmed and self.confirmed[0].asked.asked_at < asked_before:
            fail(self.confirmed.popleft().asked.future, self._behind())

    def close(self) -> None:
        """Fail every read, and every later one."""
        self._is_closed = True
        self.forget_unconfirmed()
        while self.confirmed:
            fail(self.confirmed.popleft().asked.future, self._not_leader())

    def _behind(self) -> RequestError:
        return RequestError(
            pb.NOT_READY,
            f"this replica of group {self._group_id} has not received all committed entries yet; try again",
            retry_after_ms=_BEHIND_RETRY_MS,
        )
