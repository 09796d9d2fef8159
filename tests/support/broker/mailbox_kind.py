"""A throw-away kind of topic, for tests of the parts that all kinds share, and of the refusals for another kind."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest
from raftmq.broker.partitions.appends import PartitionAppends
from raftmq.broker.partitions.host import PartitionHost
from raftmq.broker.partitions.kinds import KINDS, OnDamage, TopicKind
from raftmq.broker.partitions.partition import Partition
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.log_partition import LogPartition
from raftmq.fsm.producer_table import ProducerTable
from raftmq.fsm.state_machine import StateMachine
from raftmq.fsm.topic_kinds import TOPIC_KINDS
from raftmq.storage.log_store import LogStore
from raftmq.types import LogIndex


class Mailbox:
    """A partition of a throw-away kind. It has a log's state machine, and no call can read or write it."""

    def __init__(
        self, replica: Replica[StateMachine], host: PartitionHost, store: LogStore, on_damage: OnDamage
    ) -> None:
        self.replica = replica
        self.rounds = 0
        self.settled: list[int] = []

    @property
    def appends(self) -> PartitionAppends:
        raise AssertionError("nobody appends to a mailbox")

    @property
    def machine(self) -> LogPartition:
        return cast("LogPartition", self.replica.state_machine)

    @property
    def log_start_offset(self) -> int:
        return 3

    @property
    def high_watermark(self) -> int:
        return 7

    @property
    def producers(self) -> ProducerTable:
        return self.machine.producers

    @property
    def expiry_now_ms(self) -> int:
        return self.machine.expiry.now_ms

    async def settle_producer(self, producer_id: int, epoch_min: int, deadline: float) -> None:
        self.settled.append(producer_id)

    async def file_bytes(self) -> int:
        return 42

    async def maintain(self) -> None:
        self.rounds += 1

    async def truncation_index(self) -> LogIndex | None:
        return None

    def samples(self) -> Iterable[tuple[str, float]]:
        return (("raftmq_partition_high_watermark", self.high_watermark),)


def register_mailboxes(monkeypatch: pytest.MonkeyPatch) -> TopicKind[Mailbox]:
    """Register the kind "mailbox", which needs feature level 2."""
    kind = TopicKind("mailbox", LogPartition, Mailbox, Mailbox)
    monkeypatch.setitem(cast("dict[str, int]", TOPIC_KINDS), kind.name, 2)
    monkeypatch.setitem(cast("dict[str, TopicKind[Partition]]", KINDS), kind.name, kind)
    return kind
