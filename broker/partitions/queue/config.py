"""Hold a queue topic's settings in force, as its partitions use them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from raftmq.fsm.queue import topic_config as keys
from raftmq.fsm.queue.settings import QueueSettings
from raftmq.fsm.topic_config import BATCH_OVERHEAD_BYTES, MAX_BATCH_BYTES
from raftmq.message_checks import BatchLimits


@dataclass(frozen=True, slots=True)
class QueueConfig:
    """The settings of a queue topic. 0 means "no limit"."""

    machine: QueueSettings = field(default_factory=QueueSettings)
    """The part that the state machine applies."""
    batch_bytes_max: int = MAX_BATCH_BYTES.value_in({})
    batch: BatchLimits = field(default_factory=BatchLimits)
    lease_ms: int = keys.LEASE_MS.value_in({})
    """The lease of a consumer that requests none."""
    is_single_active: bool = False
    """Whether one consumer at a time leases the messages of a partition."""
    messages_max: int = 0
    bytes_max: int = 0
    tenant_messages_max: int = 0
    tenant_bytes_max: int = 0
    dead_messages_max: int = keys.DEAD_MAX_MESSAGES.value_in({})
    dead_bytes_max: int = keys.DEAD_MAX_BYTES.value_in({})
    dead_retention_ms: int = keys.DEAD_RETENTION_MS.value_in({})
    """`DEAD_FOREVER`: the dead are kept."""
    dead_letter_topic: str = ""
    """The topic to which the dead are copied. Empty: none."""


def queue_config(config: Mapping[str, str]) -> QueueConfig:
    """Return the settings that a topic's stored configuration means. It never fails: unknown values are defaults."""
    machine = keys.queue_settings(config)
    message_bytes_max = keys.MAX_MESSAGE_BYTES.value_in(config)
    return QueueConfig(
        machine=machine,
        # a batch always holds one message of the largest size
        batch_bytes_max=max(MAX_BATCH_BYTES.value_in(config), message_bytes_max + BATCH_OVERHEAD_BYTES),
        batch=BatchLimits(message_bytes_max),
        lease_ms=min(keys.LEASE_MS.value_in(config), machine.lease_ms_max),
        is_single_active=keys.SINGLE_ACTIVE_CONSUMER.value_in(config),
        messages_max=keys.MAX_MESSAGES.value_in(config),
        bytes_max=keys.MAX_BYTES.value_in(config),
        tenant_messages_max=keys.TENANT_MAX_MESSAGES.value_in(config),
        tenant_bytes_max=keys.TENANT_MAX_BYTES.value_in(config),
        dead_messages_max=keys.DEAD_MAX_MESSAGES.value_in(config),
        dead_bytes_max=keys.DEAD_MAX_BYTES.value_in(config),
        dead_retention_ms=keys.DEAD_RETENTION_MS.value_in(config),
        dead_letter_topic=keys.DEAD_LETTER_TOPIC.value_in(config),
    )
