"""Keep the proposals of one replica that are not applied yet, and answer them when they are."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from raftmq.broker.base.futures import fail
from raftmq.broker.base.request_error import RequestError
from raftmq.proto import queue_pb2 as pb
from raftmq.raft.entry import Entry
from raftmq.types import GroupId, LogIndex, Term


class ProposalHost(Protocol):
    """The functions of the engine that the proposals call."""

    loop: asyncio.AbstractEventLoop

    def release_uncommitted(self, size: int) -> None:
        """Return proposed bytes to the process's budget."""
        ...


class ProposalFuture(asyncio.Future[list[object]]):
    """The results of one proposal, and the times of its phases (`time.perf_counter`). Each is 0 until the phase has ended.

    The times are only for the log of slow requests: nothing else may depend on them.
    """

    __slots__ = ("committed_at", "durable_at", "group_id", "proposed_at")

    group_id: GroupId
    proposed_at: float
    durable_at: float
    """When this broker's disk had the entries. A majority may have them before."""
    committed_at: float


class PendingProposal:
    """One proposal in flight: its entries, and the future for their results."""

    __slots__ = ("first_index", "future", "last_index", "results", "size", "term")

    def __init__(self, entries: tuple[Entry, ...], size: int, future: ProposalFuture) -> None:
        self.first_index: LogIndex = entries[0].index
        self.last_index: LogIndex = entries[-1].index
        self.term: Term = entries[-1].term
        self.size = size
        self.future = future
        self.results: list[object] = []


class PendingProposals:
    """The proposals in flight of one replica, in the order of the log.

    Invariant: the sizes of all replicas' pending proposals add up to the engine's uncommitted bytes.
    """

    def __init__(self, group_id: GroupId, host: ProposalHost, not_leader: Callable[[], RequestError]) -> None:
        self._group_id = group_id
        self._host = host
        self._not_leader = not_leader
        self.queue: deque[PendingProposal] = deque()
        """Proposals by index. The replica checks it before each call of `on_applied`, because followers have none."""
        self._not_durable: deque[PendingProposal] = deque()
        """Proposals that this broker's disk does not have yet, by index."""
        self._uncommitted: deque[PendingProposal] = deque()
        """Proposals that are not committed yet, by index."""

    def add(self, entries: tuple[Entry, ...], size: int) -> ProposalFuture:
        """Wait for entries that were just appended. `size` is their part of the budget."""
        future = ProposalFuture(loop=self._host.loop)  # no method of its own: that would double the cost
        future.group_id = self._group_id
        future.proposed_at = perf_counter()
        future.durable_at = future.committed_at = 0.0
        pending = PendingProposal(entries, size, future)
        self.queue.append(pending)
        self._not_durable.append(pending)
        self._uncommitted.append(pending)
        return future

    def on_durable(self, index: LogIndex) -> None:
        """Record the time at which this broker's disk had every entry up to `index`."""
        waiting = self._not_durable
        if waiting and waiting[0].last_index <= index:
            now = perf_counter()
            while waiting and waiting[0].last_index <= index:
                waiting.popleft().future.durable_at = now

    def on_committed(self, index: LogIndex) -> None:
        """Record the time at which the entries up to `index` were committed. Repeating it changes nothing."""
        waiting = self._uncommitted
        if waiting and waiting[0].last_index <= index:
            now = perf_counter()
            while waiting and waiting[0].last_index <= index:
                waiting.popleft().future.committed_at = now

    def on_applied(self, entry: Entry, result: object) -> None:
        """Record the result of an applied entry. Answer the oldest proposal if this was its last entry."""
        pending = self.queue[0]
        if entry.index < pending.first_index:
            return
        if entry.term != pending.term:
            # another term's entry replaced it: it was definitely not applied, unless a part of it was applied before
            self.queue.popleft()
            self._host.release_uncommitted(pending.size)
            fail(pending.future, self.leadership_lost() if pending.results else self._not_leader())
            return
        pending.results.append(result)
        if entry.index == pending.last_index:
            self.queue.popleft()
            self._host.release_uncommitted(pending.size)
            if not pending.future.done():
                pending.future.set_result(pending.results)

    def fail_all(self) -> None:
        """Fail every proposal after leadership ended. Each may still commit, so its outcome is unknown, never "failed"."""
        self._not_durable.clear()
        self._uncommitted.clear()
        while self.queue:
            pending = self.queue.popleft()
            self._host.release_uncommitted(pending.size)
            fail(pending.future, self.leadership_lost())

    def leadership_lost(self) -> RequestError:
        """Return the error of a proposal that may still commit."""
        return RequestError(
            pb.LEADERSHIP_LOST,
            f"leadership of group {self._group_id} changed before this was committed; it may still be "
            "(a batch: retry with the same producer id and sequence)",
        )
