"""Bugs of the services: the answers to clients."""

# ruff: noqa: ANN401, D103 -- a mutant has the parameters of the product's method, and its text is in the decorator

from __future__ import annotations

from typing import Any

from sim.cluster.mutants.registry import mutant


@mutant("service", "uncommitted records are readable")
def reads_uncommitted() -> None:
    from raftmq.broker.partitions.log import PartitionLog

    PartitionLog.high_watermark = property(lambda self: self.replica.core.log.next_offset)  # type: ignore[assignment]
    PartitionLog.is_readable = lambda self, offset: offset < self.replica.core.log.next_offset  # type: ignore[method-assign]

    def read_recent(self: Any, offset: int, bytes_max: int) -> Any:
        recent = self.replica.log.recent
        index = recent.index_of_offset(offset)
        entries = recent.slice(index, self.replica.core.last_index, bytes_max) if index is not None else None
        return [entry for entry in entries or () if entry.record_count and entry.next_offset > offset] or None

    PartitionLog.read_recent = read_recent  # type: ignore[method-assign]


@mutant(
    "service",
    "the loss of leadership during a change is reported as a definite failure",
    isolate=4,
    stall_disk=4,
    delivery_seconds=1.5,
    request_seconds=0.5,
    fault_every=0.5,
)
def lost_leadership_called_failure() -> None:
    from raftmq.broker.replica.pending_proposals import PendingProposals

    PendingProposals.leadership_lost = lambda self: self._not_leader()  # type: ignore[method-assign]


@mutant("service", "two nodes hand out the same producer ids")
def same_producer_ids() -> None:
    from raftmq.broker.services.producer_ids import ProducerIds

    take = ProducerIds._take

    def low(self: Any) -> Any:
        answer = take(self)
        answer.producer_id %= 1000
        return answer

    ProducerIds._take = low  # type: ignore[method-assign]


@mutant("service", "a session ends after a tenth of its time", members=3)
def sessions_end_early() -> None:
    from raftmq.broker.consumer_groups.coordinator import GroupCoordinator

    heard_of = GroupCoordinator.heard_of

    def hasty(self: Any, group: Any, member_id: Any, member: Any) -> None:
        heard_of(self, group, member_id, member)
        self._sessions.extend((group, member_id), self._host.loop.time() + member.session_timeout_ms / 10_000)

    GroupCoordinator.heard_of = hasty  # type: ignore[method-assign]


@mutant("service", "a new coordinator ends every session that it does not know", members=3, kill=6, isolate=4)
def takeover_ends_sessions() -> None:
    from raftmq.broker.consumer_groups.coordinator import GroupCoordinator

    grant = GroupCoordinator._grant_sessions

    def refuse(self: Any, machine: Any) -> None:
        grant(self, machine)
        for key in list(self._sessions._deadlines):
            self._sessions.extend(key, self._host.loop.time())

    GroupCoordinator._grant_sessions = refuse  # type: ignore[method-assign]


@mutant("service", "retention is shortened by a wrong unit: records are deleted too early", retention_ms=5_000)
def retention_too_early() -> None:
    from raftmq.broker.partitions.retention import PartitionRetention

    target = PartitionRetention._target_by_time

    async def early(self: Any, retention_ms: int) -> int:
        return await target(self, retention_ms // 1000 if retention_ms > 0 else retention_ms)

    PartitionRetention._target_by_time = early  # type: ignore[method-assign]


@mutant("service", "records are acknowledged when only the leader has them", kill=6, isolate=6)
def acknowledged_by_the_leader_alone() -> None:
    from raftmq.broker.replica.replica import Replica
    from raftmq.fsm.log_partition import LogPartition

    propose = Replica.propose

    def hasty(self: Any, proposals: Any) -> Any:
        appended, future = propose(self, proposals)
        if (
            isinstance(self.state_machine, LogPartition)
            and all(one.record_count for one in proposals)
            and not future.done()
        ):
            future.set_result([None] * len(appended.entries))
        return appended, future

    Replica.propose = hasty  # type: ignore[method-assign]


@mutant("service", "a named producer is fenced only in partitions to which its successor writes", namesakes=2)
def fences_where_the_successor_writes() -> None:
    from raftmq.broker.partitions.producer_fence import ProducerFence

    ProducerFence.check = lambda self, header: None  # type: ignore[method-assign]


@mutant(
    "service",
    "a description does not say that no quorum confirmed it",
    grow_every=0.5,
    admin_every=0.3,
    isolate=6,
    fault_every=0.3,
)
def stale_descriptions_are_unmarked() -> None:
    from raftmq.broker.services.admin import AdminService

    async def hasty(self: Any, revision: int, call: Any) -> bool:
        await self._locator.wait_revision(revision, call.deadline)
        return True

    AdminService._refresh = hasty  # type: ignore[method-assign]


@mutant(
    "service",
    "a fence ends with an error when another batch is accepted",
    namesakes=3,
    send_every=0.05,
    stall_disk=8,
    fault_every=0.3,
    disk_latency=0.02,
)
def fence_ended_by_another_batch() -> None:
    import asyncio

    from raftmq.broker.base.request_error import expired
    from raftmq.broker.partitions.appends import PartitionAppends

    async def settle(self: Any, producer_id: int, epoch_min: int, deadline: float) -> None:
        self.start_term()
        index = self._validator.last_pending(producer_id, epoch_min)
        for held in self._in_flight:
            if held.first <= index <= held.last and not held.applied.done():
                await asyncio.wait((held.applied,), timeout=max(0.0, deadline - self._loop.time()))
                if not held.applied.done():
                    raise expired()

    PartitionAppends.settle = settle  # type: ignore[method-assign]
