"""Hold a queue topic's settings in force, as its partitions use them."""

from __future__ import annotations

from dataclasses import dataclass

from raftmq.fsm.queue.settings import QueueSettings
from raftmq.message_checks import BatchLimits


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The settings of a queue topic. 0 means "no limit"."""

    machine: QueueSettings = QueueSettings()
    """The part that the state machine applies."""
    batch_bytes_max: int = (1 << 20) + 4096
    batch: BatchLimits = BatchLimits()
    lease_ms: int = 30_000
    """The lease of a consumer that requests none."""
    messages_max: int = 0
    bytes_max: int = 0
    tenant_messages_max: int = 0
    tenant_bytes_max: int = 0
    dead_messages_max: int = 100_000
    dead_retention_ms: int = 14 * 86_400_000
    """-1: the dead are kept."""
