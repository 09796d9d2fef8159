"""The commits of one consumer: on request, automatically at intervals, and when partitions are released.

Must not know how partitions were assigned: `owner_of` returns the identity under which a partition is committed. Automatic commits contain
the processed records (`processed.py`). Their failures are only logged, because the next commit includes the same offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final

from raftmq.client.base import settings
from raftmq.client.base.background import cancel_and_wait, spawn
from raftmq.client.base.error_details import name_of
from raftmq.client.base.logs import log
from raftmq.client.connection.resolver import Resolver
from raftmq.client.consumer.committer import Commit, Committer, OnCommitted
from raftmq.client.consumer.fetcher import Fetcher
from raftmq.client.consumer.partition_fetch import PartitionFetch
from raftmq.client.consumer.processed import processed_offsets
from raftmq.client.membership.group_calls import MemberIdentity, OffsetCommit, OwnedPartition
from raftmq.errors import ClosedClientError, FencedError, RaftMQError
from raftmq.types import TopicPartition

Owner = tuple[MemberIdentity, OwnedPartition]

_UNREPORTED: Final = (FencedError, ClosedClientError)
"""Errors of automatic commits that need no report: another member owns the partition, or the consumer is closed."""


class OffsetCommits:
    """The commits of one consumer. Used in the event loop."""

    def __init__(
        self,
        resolver: Resolver,
        fetcher: Fetcher,
        group: str,
        owner_of: Callable[[TopicPartition], Owner | None],
        *,
        auto_commit_seconds: float | None,
        timeout_seconds: float,
        on_fenced: Callable[[PartitionFetch], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._fetcher = fetcher
        self._group = group
        self._owner_of = owner_of
        self._auto_commit_seconds = auto_commit_seconds
        self._on_fenced = on_fenced
        self._on_crash = on_crash
        self._committer = Committer(resolver, timeout_seconds, self._on_outcome, on_crash, fetcher.counters)
        self._task: asyncio.Task[None] | None = None
        self._touched_at = asyncio.get_running_loop().time()

    def start(self) -> None:
        """Start automatic commits, if they are enabled."""
        if self._auto_commit_seconds is not None:
            self._task = spawn(self._commit_forever(self._auto_commit_seconds), "raftmq-auto-commit", self._on_crash)

    async def stop(self) -> None:
        """Stop automatic commits."""
        await cancel_and_wait(self._task)

    async def finish(self, states: Iterable[PartitionFetch], *, is_clean: bool) -> None:
        """End. If it is clean, first commit the processed records of these partitions, and wait for all commits, for a few seconds at most."""
        await self.stop()
        wanted = list(states)
        try:
            if is_clean:
                async with self.last_commit():
                    await self.commit_processed(wanted)
                    await self._committer.all_settled()
        finally:
            await self.close()

    @asynccontextmanager
    async def last_commit(self) -> AsyncIterator[None]:
        """Limit its body to a few seconds. Offsets that are not committed by then are read again."""
        try:
            async with asyncio.timeout(settings.CLOSE_COMMIT_SECONDS):
                yield
        except TimeoutError as error:
            self._record_failed(error)

    async def close(self) -> None:
        """Abandon all commits in flight. Their outcome is unknown."""
        await cancel_and_wait(self._task)
        await self._committer.close()

    def submit_offsets(self, offsets: Mapping[TopicPartition, int]) -> asyncio.Future[None]:
        """Commit plain offsets as `submit` does."""
        return self.submit({partition: OffsetCommit(offset) for partition, offset in offsets.items()})

    def submit(
        self, wanted: Mapping[TopicPartition, OffsetCommit], on_committed: OnCommitted = lambda _: None
    ) -> asyncio.Future[None]:
        """Commit. The future has the outcome: `FencedError` if some partitions are not ours, while the others are committed."""
        commits: dict[TopicPartition, Commit] = {}
        strangers: list[TopicPartition] = []
        for partition, what in wanted.items():
            owner = self._owner_of(partition)
            if owner is None:
                strangers.append(partition)
            else:
                commits[partition] = Commit(what, owner[1], owner[0])
        future = self._committer.submit(commits, on_committed)
        if not strangers:
            return future
        names = ", ".join(f"{partition.topic}/{partition.partition}" for partition in sorted(strangers))
        error = FencedError(f"not committed, because this consumer does not hold them (any more): {names}")
        return asyncio.ensure_future(_then_raise(future, error))

    def touch_unowned(self) -> None:
        """Have unchanged offsets that no member owns committed again from time to time, so that brokers do not delete them as unused."""
        now = asyncio.get_running_loop().time()
        if now - self._touched_at >= settings.OFFSETS_TOUCH_SECONDS:
            self._touched_at = now
            for state in self._fetcher.partitions.values():
                if not state.owner_epoch:
                    state.committed = None

    async def commit_processed(self, states: Iterable[PartitionFetch]) -> None:
        """Commit the processed records of these partitions, if automatic commit is on."""
        offsets = processed_offsets(states) if self._auto_commit_seconds is not None else {}
        if not offsets:
            return
        try:
            await self.submit_offsets(offsets)
        except _UNREPORTED:
            return
        except RaftMQError as error:
            self._record_failed(error)

    async def settled(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait until no commit of these partitions is in flight."""
        await self._committer.settled(partitions)

    def _record_failed(self, error: Exception) -> None:
        log.warning("auto_commit_failed consumer_group=%s error_code=%s", self._group, name_of(error))

    async def _commit_forever(self, interval_seconds: float) -> None:
        """Commit at intervals, without waiting for the outcomes: a partition without a leader would delay the others' next commits."""
        while True:
            await asyncio.sleep(interval_seconds)
            self.touch_unowned()
            states = self._fetcher.partitions.values()
            offsets = processed_offsets(state for state in states if not self._committer.is_busy(state.topic_partition))
            self._submit_auto(offsets)

    def submit_processed(self, states: Iterable[PartitionFetch]) -> None:
        """Commit the processed records of these partitions, if automatic commit is on, without waiting."""
        if self._auto_commit_seconds is not None:
            self._submit_auto(processed_offsets(states))

    def _submit_auto(self, offsets: Mapping[TopicPartition, int]) -> None:
        if offsets:
            self.submit_offsets(offsets).add_done_callback(self._on_auto_committed)

    def _on_auto_committed(self, outcome: asyncio.Future[None]) -> None:
        error = None if outcome.cancelled() else outcome.exception()
        if isinstance(error, RaftMQError) and not isinstance(error, _UNREPORTED):
            self._record_failed(error)

    def _on_outcome(self, partition: TopicPartition, commit: Commit, error: RaftMQError | None) -> None:
        state = self._fetcher.partitions.get(partition)
        if state is None or state.owner_epoch != commit.owned.owner_epoch:
            return
        if commit.owned.topic_id not in (0, state.topic_id):
            return  # the topic was created again in the meantime
        if error is None:
            state.committed = commit.what.offset
        elif isinstance(error, FencedError) and state.owner_epoch:
            # Another member owns it, so buffered records must not be returned, even before the group says so.
            state.is_withheld = state.is_fenced = True
            self._on_fenced(state)


async def _then_raise(future: asyncio.Future[None], error: RaftMQError) -> None:
    await future
    raise error
