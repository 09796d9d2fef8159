"""Define the part of a served partition that is the same for all kinds of topics.

Services for one kind of topic ask the locator for partitions of that kind, and use the kind's own class.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from raftmq.broker.base.histogram import Histogram
from raftmq.broker.partitions.appends import PartitionAppends
from raftmq.broker.replica.replica import Replica
from raftmq.fsm.producer_table import ProducerTable
from raftmq.fsm.state_machine import StateMachine
from raftmq.types import LogIndex


class Partition(Protocol):
    """A served partition of any kind. All errors are RequestError, or an error of the store."""

    @property
    def replica(self) -> Replica[StateMachine]:
        """Return the partition's replica on this node."""
        ...

    @property
    def appends(self) -> PartitionAppends:
        """Return the part that accepts the batches of producers."""
        ...

    @property
    def log_start_offset(self) -> int:
        """Return the first offset that is still kept (inclusive)."""
        ...

    @property
    def high_watermark(self) -> int:
        """Return the offset after the last committed and applied record (exclusive)."""
        ...

    @property
    def producers(self) -> ProducerTable:
        """Return the producers that the partition remembers."""
        ...

    @property
    def expiry_now_ms(self) -> int:
        """Return the time of the clock by which producers are forgotten."""
        ...

    async def settle_producer(self, producer_id: int, epoch_min: int, deadline: float) -> None:
        """Wait until every batch that was accepted from the producer under an epoch below `epoch_min` is settled."""
        ...

    async def file_bytes(self) -> int:
        """Return the size of this replica's files."""
        ...

    async def maintain(self) -> None:
        """Do the periodic work of the kind, such as the deletion of old records. Called on every replica."""
        ...

    async def truncation_index(self) -> LogIndex | None:
        """Return the last log index whose row may be deleted here, or None if nothing worth it can be deleted."""
        ...

    def samples(self) -> Iterable[tuple[str, float | Histogram]]:
        """Return the kind's own metrics, by the catalog's names. Their labels are the topic and the partition."""
        ...
