"""Hold a queue topic's settings in force, as its partitions use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raftmq.fsm.queue.settings import QueueSettings
from raftmq.fsm.topic_config import effective_config
from raftmq.message_checks import BatchLimits


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The settings of a queue topic. 0 means "no limit"."""

    machine: QueueSettings = field(default_factory=QueueSettings)
    """The part that the state machine applies."""
    batch_bytes_max: int = (1 << 20) + 4096
    batch: BatchLimits = field(default_factory=BatchLimits)
    lease_ms: int = 30_000
    """The lease of a consumer that requests none."""
    messages_max: int = 0
    bytes_max: int = 0
    tenant_messages_max: int = 0
    tenant_bytes_max: int = 0
    dead_messages_max: int = 100_000
    dead_retention_ms: int = 14 * 86_400_000
    """-1: the dead are kept."""


def queue_config(config: Mapping[str, str]) -> QueueConfig:
    """Return the settings that a topic's stored configuration means. It never fails: unknown values are defaults."""
    parsed = effective_config(config)
    return QueueConfig(batch_bytes_max=parsed.batch_bytes_max)
