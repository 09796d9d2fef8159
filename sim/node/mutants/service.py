"""Bugs of the services: what is answered to whom."""

# ruff: noqa: ANN401, D103 -- a mutant takes whatever the product's method takes; its text is in the decorator

from __future__ import annotations

from typing import Any

from sim.node.mutants.registry import mutant


@mutant("service", "what is not committed can be read")
def reads_uncommitted() -> None:
    from raftmq.broker.partition_log import PartitionLog

    PartitionLog.high_watermark = property(lambda self: self.group.core.log.next_offset)  # type: ignore[assignment]
    PartitionLog.is_readable = lambda self, offset: offset < self.group.core.log.next_offset  # type: ignore[method-assign]

    def read_recent(self: Any, offset: int, bytes_max: int) -> Any:
        recent = self.group.log.recent
        index = recent.index_of_offset(offset)
        entries = recent.slice(index, self.group.core.last_index, bytes_max) if index is not None else None
        return [entry for entry in entries or () if entry.record_count and entry.next_offset > offset] or None

    PartitionLog.read_recent = read_recent  # type: ignore[method-assign]


@mutant(
    "service",
    "leadership lost while a change was under way is reported as «not done»",
    isolate=4,
    stall_disk=4,
    delivery_seconds=1.5,
    request_seconds=0.5,
    fault_every=0.5,
)
def lost_leadership_called_failure() -> None:
    from raftmq.broker.group import Group

    Group._leadership_lost = lambda self: self.not_leader()  # type: ignore[method-assign]


@mutant("service", "two nodes hand out the same producer ids")
def same_producer_ids() -> None:
    from raftmq.broker.services.producer_ids import ProducerIds

    take = ProducerIds._take

    def low(self: Any) -> Any:
        answer = take(self)
        answer.producer_id %= 1000
        return answer

    ProducerIds._take = low  # type: ignore[method-assign]
