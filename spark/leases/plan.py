"""Lease the batches of a streaming query, keep their leases while they run, and settle them when Spark has committed them.

Lives on the driver, in the one process that tracks a query's offsets. Must not import Spark.

Scenario: Spark asks for the end of batch 7. The driver leases messages and answers with their tokens. Spark logs them, plans the batch, runs it
and commits it. Then Spark asks for the end of batch 8, and names the end of batch 7 as its start: now, and not before, the messages of batch 7
are settled. If the driver dies in between, the next driver finds the tokens in the log. A batch that was not committed is run again with the
messages that are still leased under these tokens. One that was committed is settled.

Invariants: a message is settled only after the commit of the batch that has it. A batch that is run again has no message which the first run did not
have. A message is in two batches only if its lease ended before it was settled, or if the query released it.
"""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from raftmq.client.connection.resolver import TopicInfo
from raftmq.errors import RaftMQError
from raftmq.proto import queue_pb2 as pb
from raftmq.spark.cluster.cluster import Cluster
from raftmq.spark.errors import InvalidOptionError, RaftMQSparkWarning
from raftmq.spark.leases.calls import LeasedBlock, Wanted, count_states, find_topics, lease_ready, settle
from raftmq.spark.leases.offsets import NO_LEASES, BatchLeases, LeaseRun, PartitionName, joined_runs
from raftmq.spark.leases.options import LeaseOptions

UNLOGGED_LEASE_MS: Final = 60_000
"""The length of the first lease, until Spark has logged the batch. If the driver dies before, the messages come again after it."""
POLL_WAIT_MS: Final = 200
"""The time for which one trigger waits for a message. Spark calls an idle query a hundred times per second."""
RENEWED_AT: Final = 1 / 3
"""The part of a lease that passes before it is renewed."""
RETRIED_AT: Final = 1 / 12
"""The part of a lease that passes before a failed renewal is repeated."""
TASK_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of messages that travel to one task, unless a single answer of a broker has more."""
COUNTS_SECONDS: Final = 1.0
"""The age up to which counts are shown again in the query's progress."""


@dataclass(frozen=True, slots=True)
class LeasedShare:
    """The messages that one task gets, all of one partition."""

    name: PartitionName
    blocks: tuple[bytes, ...]
    """The messages as brokers sent them. Empty: a batch is run again, and `runs` names its messages."""
    runs: tuple[LeaseRun, ...]


@dataclass(slots=True)
class _Batch:
    """The batch whose leases are kept."""

    leases: BatchLeases
    blocks: list[LeasedBlock]
    renewed_until: float
    is_logged: bool = False
    renewals: Future[None] | None = field(default=None)

    def end(self) -> None:
        if self.renewals is not None:
            self.renewals.cancel()


class LeasePlan:
    """Plan the batches of one query. `clock` counts seconds."""

    def __init__(self, cluster: Cluster, options: LeaseOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster = cluster
        self._options = options
        self._clock = clock
        self._timeout_seconds = options.client.request_timeout_ms / 1000
        self._batch: _Batch | None = None
        self._reached = NO_LEASES
        """The end of the last planned batch."""
        self._settled = NO_LEASES
        """The end of the last batch that this process has settled."""
        self._left: int | None = None
        """Messages that an AvailableNow run may still lease."""
        self._counts: Mapping[str, pb.StateCounts] = {}
        self._counted_at: float | None = None

    # ------------------------------------------------------------------------------------------------------- for Spark

    def prepare_available_now(self) -> None:
        """End the run when no message is ready, and after as many messages as are ready now, those behind others of their key included."""
        counts = self._cluster.run(self._count)
        self._left = sum(one.ready + one.blocked for one in counts.values())

    def next_end(self, start: BatchLeases | None, messages_max: int) -> BatchLeases:
        """Settle the batch that ends with `start`, and lease the next one. Return `start` itself when no message is ready.

        Args:
            start: The start of the batch. None (Spark before 4.2) means the end of the last planned batch.
            messages_max: The limit of this trigger.

        Raises:
            RaftMQError: messages were not settled, or no leader answered. A repetition is harmless.
        """
        if start is None:
            start = self._reached
        self.commit(start)
        if self._batch is not None:
            return self._batch.leases  # Spark has not logged it
        if self._left is not None:
            messages_max = min(messages_max, self._left)
        if messages_max <= 0:
            return start
        blocks = self._cluster.run(lambda: self._lease(messages_max))
        if not blocks:
            return start
        leases = _leases_of(blocks, self._cluster.resolver.cluster_id)
        if self._left is not None:
            self._left -= leases.count
        first_ms = self._first_lease_ms
        granted_ms = min((block.lease_ms for block in blocks if block.lease_ms), default=first_ms)
        batch = _Batch(leases, blocks, self._clock() + self._options.batch_ms_max / 1000)
        self._keep(batch, first_ms, granted_ms)
        return leases

    def shares(self, start: BatchLeases, end: BatchLeases) -> list[LeasedShare]:
        """Return the messages of each task of a batch that is logged. The leases are renewed before."""
        self._reached = end
        if start == end:
            return []  # Spark before 4.2 tells the position of a resumed query by this call
        batch = self._batch
        if batch is None or batch.leases != end:  # an earlier process has leased them
            if batch is not None:
                batch.end()
            batch = _Batch(end, [], self._clock() + self._options.batch_ms_max / 1000)
        if not batch.is_logged:
            self._check_cluster(end)
            batch.is_logged = True
            lease_ms = self._options.lease_ms
            granted_ms = self._cluster.run(lambda: self._renew(batch.leases, lease_ms, self._timeout_seconds))
            self._keep(batch, lease_ms, granted_ms or lease_ms)
        if not batch.blocks:
            return [LeasedShare(name, (), runs) for name, runs in sorted(end.runs.items())]
        return _shares_of(batch.blocks)

    def commit(self, end: BatchLeases) -> None:
        """Settle the messages of a batch that is committed as done. Raises as `next_end`.

        Messages that the batch itself has released or rejected are not leased under these tokens any more, and stay as they are.
        """
        if end == self._settled:
            return
        self._check_cluster(end)
        self._cluster.run(
            lambda: settle(self._cluster.resolver, end.runs, pb.ACCEPT, None, self._timeout_seconds, end.groups)
        )
        self._settled = end
        if self._batch is not None and self._batch.leases == end:
            self._batch.end()
            self._batch = None

    def counts(self) -> Mapping[str, pb.StateCounts] | None:
        """Return the number of messages in each state, by topic, for the query's progress. None: no leader tells them now."""
        now = self._clock()
        if self._counted_at is None or now - self._counted_at >= COUNTS_SECONDS:
            try:
                self._counts = self._cluster.run(self._count)
            except RaftMQError:
                return None
            self._counted_at = now
        return self._counts

    def close(self) -> None:
        """Stop renewing, and give messages back that are in no logged batch. The others wait for the next run of the query."""
        batch, self._batch = self._batch, None
        if batch is None:
            return
        batch.end()
        if not batch.is_logged:
            detail = pb.AckDetail(is_uncounted=True)
            with suppress(RaftMQError):  # their leases end by themselves
                leases, seconds = batch.leases, self._timeout_seconds
                self._cluster.run(
                    lambda: settle(self._cluster.resolver, leases.runs, pb.RELEASE, detail, seconds, leases.groups)
                )

    def _check_cluster(self, leases: BatchLeases) -> None:
        """Raise `InvalidOptionError` for the leases of another cluster, whose topics and tokens have the same numbers."""
        if leases.cluster_id:
            self._cluster.run(self._topics)  # the cluster's id is known after an answer
            known = self._cluster.resolver.cluster_id
            if known != leases.cluster_id:
                raise InvalidOptionError(
                    f"the checkpoint is that of a query of cluster {leases.cluster_id}, and bootstrap.servers are of cluster {known}:"
                    " use another checkpoint"
                )

    # ---------------------------------------------------------------------------------------------------- on the loop

    @property
    def _first_lease_ms(self) -> int:
        return min(self._options.lease_ms, UNLOGGED_LEASE_MS)

    async def _topics(self) -> dict[str, TopicInfo]:
        return await find_topics(self._cluster.resolver, self._options.topics, self._timeout_seconds)

    async def _count(self) -> Mapping[str, pb.StateCounts]:
        return await count_states(self._cluster.resolver, list(await self._topics()), self._timeout_seconds)

    async def _lease(self, messages_max: int) -> list[LeasedBlock]:
        options = self._options
        wanted = Wanted(messages_max, options.bytes_max, self._first_lease_ms, options.tenants)
        wait_ms = 0 if self._left is not None else POLL_WAIT_MS
        return await lease_ready(self._cluster.resolver, await self._topics(), wanted, wait_ms, self._timeout_seconds)

    async def _renew(self, leases: BatchLeases, lease_ms: int, timeout_seconds: float) -> int:
        """Renew leases, and return the length of the shortest one, or 0 if none was renewed."""
        detail = pb.AckDetail(lease_ms=lease_ms)
        return await settle(self._cluster.resolver, leases.runs, pb.RENEW, detail, timeout_seconds, leases.groups)

    def _keep(self, batch: _Batch, lease_ms: int, granted_ms: int) -> None:
        """Renew the leases of a batch from now on. They are `granted_ms` long at first."""
        batch.end()
        self._batch = batch
        batch.renewals = self._cluster.start(lambda: self._renew_until_end(batch, lease_ms, granted_ms))

    async def _renew_until_end(self, batch: _Batch, lease_ms: int, granted_ms: int) -> None:
        pause = granted_ms / 1000 * RENEWED_AT
        while True:
            await asyncio.sleep(pause)
            if self._clock() >= batch.renewed_until:
                text = (
                    f"raftmq: a batch and the wait for the next trigger take longer than maxBatchTime, and the leases of its"
                    f" {batch.leases.count} messages are not renewed any more: they come again"
                )
                warnings.warn(text, RaftMQSparkWarning, stacklevel=2)
                return
            # the leases of other partitions must not end while one has no leader
            patience = min(granted_ms / 1000 * RENEWED_AT, self._timeout_seconds)
            try:
                # a topic grants at most its lease.max.ms
                granted_ms = await self._renew(batch.leases, lease_ms, patience) or granted_ms
                pause = granted_ms / 1000 * RENEWED_AT
            except RaftMQError:
                pause = granted_ms / 1000 * RETRIED_AT


def _leases_of(blocks: list[LeasedBlock], cluster_id: str) -> BatchLeases:
    tokens: dict[PartitionName, list[tuple[int, int]]] = {}
    groups: dict[PartitionName, int] = {}
    for block in blocks:
        tokens.setdefault(block.name, []).extend(block.tokens)
        if block.group_id:
            groups.setdefault(block.name, block.group_id)  # the earliest one, if the partition was recovered in between
    return BatchLeases({name: joined_runs(found) for name, found in tokens.items()}, cluster_id, groups)


def _shares_of(blocks: list[LeasedBlock]) -> list[LeasedShare]:
    """Return the blocks of each partition in the order of their leases, divided into tasks by their size."""
    shares: list[LeasedShare] = []
    for name in sorted({block.name for block in blocks}):
        held: list[bytes] = []
        size = 0
        for block in blocks:
            if block.name != name:
                continue
            if held and size + len(block.data) > TASK_BYTES_MAX:
                shares.append(LeasedShare(name, tuple(held), ()))
                held, size = [], 0
            held.append(block.data)
            size += len(block.data)
        shares.append(LeasedShare(name, tuple(held), ()))
    return shares
