"""The settings of a queue topic, as its partitions use them."""

from raftmq.broker.partitions.queue.config import QueueConfig, queue_config
from raftmq.fsm.queue.settings import QueueSettings
from raftmq.message_checks import MESSAGE_BYTES_MAX, BatchLimits


def test_defaults_are_the_same_with_and_without_a_configuration() -> None:
    assert queue_config({}) == QueueConfig()


def test_each_setting_has_its_effect() -> None:
    config = queue_config(
        {
            "attempts.max": "3", "lease.ms": "5000", "partition.max.messages": "10", "partition.max.bytes": "20", "partition.tenant.max.messages": "30",
            "partition.tenant.max.bytes": "40", "max.message.bytes": "1000", "max.batch.bytes": "2000", "partition.dead.max.messages": "50",
            "partition.dead.max.bytes": "60",
            "dead.retention.ms": "-1",
        }
    )  # fmt: skip
    assert config == QueueConfig(
        machine=QueueSettings(attempts_max=3), batch_bytes_max=1000 + 4096, batch=BatchLimits(1000), lease_ms=5000,
        messages_max=10, bytes_max=20, tenant_messages_max=30, tenant_bytes_max=40, dead_messages_max=50, dead_bytes_max=60, dead_retention_ms=-1,
    )  # fmt: skip


def test_a_default_lease_is_at_most_the_longest_lease() -> None:
    assert queue_config({"lease.max.ms": "2000"}).lease_ms == 2000


def test_a_batch_may_hold_the_largest_message() -> None:
    config = queue_config({"max.message.bytes": str(MESSAGE_BYTES_MAX)})
    assert config.batch_bytes_max > MESSAGE_BYTES_MAX


def test_values_that_nobody_understands_are_defaults() -> None:
    assert (
        queue_config({"lease.ms": "soon", "fairness": "?", "tenant.weights": "=", "of.a.newer.version": "1"})
        == QueueConfig()
    )
