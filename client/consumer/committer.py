"""Sends commits of offsets to the partitions' leaders, in order per partition. Commits gather while an earlier one is in flight.

Must not decide which offsets to commit. Invariants: a partition has at most one commit in flight, so an older offset never overtakes a
newer one. Of the commits that wait for one partition under one ownership, only the last is sent, and its outcome counts for all of them.
No partition waits for another one: those of one request are settled, and committed again, as soon as their own leaders have answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from raftmq.client.base.background import cancel_and_wait, spawn
from raftmq.client.base.error_details import fresh_copy
from raftmq.client.base.metrics import ConsumerCounters
from raftmq.client.connection.resolver import Resolver
from raftmq.client.membership.group_calls import MemberIdentity, OffsetCommit, OwnedPartition, commit_offsets
from raftmq.errors import ClosedClientError, FencedError, RaftMQError
from raftmq.types import TopicPartition


class Commit(NamedTuple):
    """An offset to commit, and the ownership and identity under which it is committed."""

    what: OffsetCommit
    owned: OwnedPartition
    identity: MemberIdentity


OnCommitted = Callable[[TopicPartition], None]
"""Called for each partition as soon as its offset is committed, even if the outcome of other partitions is open."""


@dataclass(slots=True)
class _Waiter:
    """The caller of one `submit`."""

    future: asyncio.Future[None]
    open: int
    on_committed: OnCommitted
    error: RaftMQError | None = None

    def done(self, partition: TopicPartition, error: RaftMQError | None) -> None:
        """Record the outcome of one partition. A fencing error takes precedence over other errors."""
        self.open -= 1
        if error is None:
            self.on_committed(partition)
        if error is not None and (self.error is None or isinstance(error, FencedError)):
            self.error = error
        if self.open == 0 and not self.future.done():
            if self.error is not None:
                self.future.set_exception(fresh_copy(self.error))
            else:
                self.future.set_result(None)


@dataclass(slots=True)
class _Slot:
    """The commit that waits for one partition."""

    partition: TopicPartition
    commit: Commit
    waiters: list[_Waiter] = field(default_factory=list)


class Committer:
    """Sends the commits of one consumer. Used in the event loop."""

    def __init__(
        self,
        resolver: Resolver,
        timeout_seconds: float,
        on_outcome: Callable[[TopicPartition, Commit, RaftMQError | None], None],
        on_crash: Callable[[BaseException], None],
        counters: ConsumerCounters,
    ) -> None:
        self._resolver = resolver
        self._timeout_seconds = timeout_seconds
        self._on_outcome = on_outcome
        self._on_crash = on_crash
        self._counters = counters
        self._waiting: dict[TopicPartition, _Slot] = {}
        self._under_way: set[TopicPartition] = set()
        self._change = asyncio.Event()
        """Set, and replaced, when commits are settled."""
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False

    def submit(
        self, commits: Mapping[TopicPartition, Commit], on_committed: OnCommitted = lambda _: None
    ) -> asyncio.Future[None]:
        """Commit. The future gets the outcome of all commits: the most important error, if any. Other partitions may be committed then."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_retrieve)
        if self._is_closed:
            future.set_exception(ClosedClientError("the consumer is closed"))
        elif not commits:
            future.set_result(None)
        else:
            waiter = _Waiter(future, len(commits), on_committed)
            for partition, commit in commits.items():
                self._put(partition, commit, waiter)
            self._send()
        return future

    def is_busy(self, partition: TopicPartition) -> bool:
        """Return whether a commit of this partition waits or is in flight."""
        return partition in self._under_way or partition in self._waiting

    async def settled(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait until no commit of these partitions waits or is in flight. The callers of `submit` get the errors."""
        wanted = set(partitions)
        while any(map(self.is_busy, wanted)):
            await self._change.wait()

    async def all_settled(self) -> None:
        """Wait until no commit waits or is in flight."""
        await self.settled([*self._under_way, *self._waiting])

    async def close(self) -> None:
        """Abandon all commits in flight. Their outcome is unknown."""
        self._is_closed = True
        await cancel_and_wait(*self._tasks)
        for slot in self._waiting.values():
            _finish(slot, ClosedClientError("the consumer was closed before the offset was committed"))
        self._waiting.clear()
        self._on_settled()

    def _put(self, partition: TopicPartition, commit: Commit, waiter: _Waiter) -> None:
        slot = self._waiting.get(partition)
        if slot is None or (slot.commit.owned, slot.commit.identity) != (commit.owned, commit.identity):
            if slot is not None:  # it belongs to an ownership that has ended
                _finish(slot, FencedError(f"{partition.topic}/{partition.partition} was lost before it was committed"))
            slot = self._waiting[partition] = _Slot(partition, commit)
        slot.commit = commit
        slot.waiters.append(waiter)

    def _send(self) -> None:
        ready = {partition: slot for partition, slot in self._waiting.items() if partition not in self._under_way}
        by_identity: dict[MemberIdentity, dict[TopicPartition, _Slot]] = {}
        for partition, slot in ready.items():
            del self._waiting[partition]
            by_identity.setdefault(slot.commit.identity, {})[partition] = slot
        for identity, slots in by_identity.items():
            self._under_way.update(slots)
            task = spawn(self._run(identity, slots), "raftmq-commit", self._on_crash, keeps_span=True)
            self._tasks[task] = None
            task.add_done_callback(partial(self._on_ended, slots))

    async def _run(self, identity: MemberIdentity, open_: dict[TopicPartition, _Slot]) -> None:
        """Commit, and remove answered slots from `open_`."""
        commits = {partition: slot.commit.what for partition, slot in open_.items()}
        owned = {partition: slot.commit.owned for partition, slot in open_.items()}
        on_results = partial(self._on_results, open_)
        try:
            await commit_offsets(self._resolver, identity, commits, owned, self._timeout_seconds, on_results)
        except RaftMQError as failure:
            self._settle(open_, dict.fromkeys(open_, failure))

    def _on_results(
        self, open_: dict[TopicPartition, _Slot], results: Mapping[TopicPartition, RaftMQError | None]
    ) -> None:
        """Take the results of one leader. The other partitions of the task may wait for theirs for a long time."""
        for partition, error in results.items():
            self._counters.commits_total += error is None
            self._counters.commit_failures_total += error is not None
            self._on_outcome(partition, open_[partition].commit, error)
        self._settle(open_, results)

    def _settle(self, open_: dict[TopicPartition, _Slot], results: Mapping[TopicPartition, RaftMQError | None]) -> None:
        for partition, error in results.items():
            self._under_way.discard(partition)
            _finish(open_.pop(partition), error)
        self._on_settled()

    def _on_ended(self, open_: dict[TopicPartition, _Slot], task: asyncio.Task[None]) -> None:
        """Fail the slots of a task that was cancelled, perhaps before its first step, or that failed by a defect."""
        self._tasks.pop(task, None)
        lost = ClosedClientError("the consumer was closed while the offset was being committed")
        self._settle(open_, dict.fromkeys(open_, lost))

    def _on_settled(self) -> None:
        """Wake those that wait for it, and send the commits that waited for an earlier one."""
        change, self._change = self._change, asyncio.Event()
        change.set()
        if not self._is_closed:
            self._send()


def _finish(slot: _Slot, error: RaftMQError | None) -> None:
    for waiter in slot.waiters:
        waiter.done(slot.partition, error)


def _retrieve(future: asyncio.Future[None]) -> None:
    """Retrieve the exception, so that asyncio does not warn if nobody waits for the future."""
    if not future.cancelled():
        future.exception()
