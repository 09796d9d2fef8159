"""The settings of queue topics: names, bounds and meanings, and the part of them that the state machine applies.

Invariant: settings that were read are settings that the machine accepts (`validate_settings`), whatever texts are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from raftmq.fsm.config_keys import ConfigKey, choice_key, flag_key, number_key, topic_key, weights_key
from raftmq.fsm.queue.fairness import Strategy
from raftmq.fsm.queue.limits import DELAY_MS_MAX, LEASE_MS_MAX, LEASE_MS_MIN
from raftmq.fsm.queue.settings import (
    ATTEMPTS_MAX,
    BACKOFF_FACTOR_PERCENT_MAX,
    LEASED_MAX,
    RATE_MAX,
    QueueSettings,
)
from raftmq.fsm.topic_kinds import QUEUE
from raftmq.message_checks import MESSAGE_BYTES_MAX

DEAD_FOREVER: Final = -1
_COUNT_MAX: Final = (1 << 63) - 1
_DEFAULTS: Final = QueueSettings()


def _number(name: str, default: int, minimum: int, maximum: int, meaning: str) -> ConfigKey[int]:
    return number_key(name, kinds=(QUEUE,), default=default, minimum=minimum, maximum=maximum, meaning=meaning)


ATTEMPTS: Final = _number(
    "attempts.max", _DEFAULTS.attempts_max, 0, ATTEMPTS_MAX,
    "a message that failed this often is dead; 0 means that it is tried without end",
)  # fmt: skip
BACKOFF_BASE_MS: Final = _number(
    "backoff.base.ms", _DEFAULTS.backoff_base_ms, 0, DELAY_MS_MAX,
    "delay after the first failed attempt (milliseconds); 0 means that a message is retried immediately, in its old place",
)  # fmt: skip
BACKOFF_FACTOR: Final = _number(
    "backoff.factor.percent", _DEFAULTS.backoff_factor_percent, 100, BACKOFF_FACTOR_PERCENT_MAX,
    "delay after each further failed attempt, in percent of the delay before",
)  # fmt: skip
BACKOFF_MAX_MS: Final = _number(
    "backoff.max.ms", _DEFAULTS.backoff_max_ms, 0, DELAY_MS_MAX, "longest delay between two attempts (milliseconds)"
)
BACKOFF_JITTER: Final = _number(
    "backoff.jitter.percent", _DEFAULTS.backoff_jitter_percent, 0, 100,
    "random part of a delay: with 20, a delay is 80 to 100 percent of its value",
)  # fmt: skip
LEASE_MS: Final = _number(
    "lease.ms", 30_000, LEASE_MS_MIN, LEASE_MS_MAX, "length of a lease for consumers that request none (milliseconds)"
)
LEASE_MAX_MS: Final = _number(
    "lease.max.ms",
    _DEFAULTS.lease_ms_max,
    LEASE_MS_MIN,
    LEASE_MS_MAX,
    "longest lease that a consumer gets (milliseconds)",
)
MESSAGE_TTL_MS: Final = _number(
    "message.ttl.ms", _DEFAULTS.message_ttl_ms, 0, DELAY_MS_MAX,
    "messages that name no time of expiry expire after this time (milliseconds); 0 means never",
)  # fmt: skip
EXPIRED_KEEP: Final = flag_key(
    "expired.keep", kinds=(QUEUE,), meaning="expired messages become dead messages; otherwise they are removed"
)
DEDUPE_WINDOW_MS: Final = _number(
    "dedupe.window.ms", _DEFAULTS.dedupe_window_ms, 0, DELAY_MS_MAX,
    "time in which the id of a message is recognized after its first enqueue (milliseconds); the id of an unfinished message always is",
)  # fmt: skip
ORDERED_BY_KEY: Final = flag_key(
    "ordered.by.key", kinds=(QUEUE,), meaning="messages of one tenant with the same key are leased one after the other"
)
FAIRNESS: Final = choice_key(
    "fairness", kinds=(QUEUE,), choices=[strategy.value for strategy in Strategy],
    meaning="order among tenants: none (priority and age alone), equal turns, turns by weight, or tenants with fewer leased messages first",
)  # fmt: skip
TENANT_WEIGHTS: Final = weights_key(
    "tenant.weights", kinds=(QUEUE,),
    meaning="weights of tenants for the fairness weighted and quiet_first; the first pattern that matches counts, and without one the weight is 1",
)  # fmt: skip
LEASED: Final = _number(
    "partition.max.leased", _DEFAULTS.leased_max, 0, LEASED_MAX,
    "messages of a partition that are leased simultaneously; 0 means no limit",
)  # fmt: skip
TENANT_LEASED: Final = _number(
    "partition.tenant.max.leased", _DEFAULTS.leased_per_tenant_max, 0, LEASED_MAX,
    "messages of one tenant in a partition that are leased simultaneously; 0 means no limit",
)  # fmt: skip
TENANT_RATE: Final = _number(
    "partition.tenant.rate", _DEFAULTS.tenant_rate_per_second, 0, RATE_MAX,
    "messages of one tenant in a partition that are leased per second; 0 means no limit",
)  # fmt: skip
TENANT_BURST: Final = _number(
    "partition.tenant.burst", _DEFAULTS.tenant_rate_burst, 0, RATE_MAX,
    "messages of one tenant that are leased immediately after a pause, with partition.tenant.rate; at least 1 is",
)  # fmt: skip
SINGLE_ACTIVE_CONSUMER: Final = flag_key(
    "single.active.consumer", kinds=(QUEUE,),
    meaning="one consumer at a time leases the messages of a partition: the first one that asked, until it ends; the others stand by",
)  # fmt: skip
MAX_MESSAGES: Final = _number(
    "partition.max.messages", 0, 0, _COUNT_MAX,
    "messages that a partition holds, dead ones included; further ones are refused with QUEUE_FULL; 0 means no limit",
)  # fmt: skip
MAX_BYTES: Final = _number(
    "partition.max.bytes", 0, 0, _COUNT_MAX,
    "stored bodies that a partition holds, in bytes; further ones are refused with QUEUE_FULL; 0 means no limit",
)  # fmt: skip
TENANT_MAX_MESSAGES: Final = _number(
    "partition.tenant.max.messages", 0, 0, _COUNT_MAX,
    "messages that a partition holds of one tenant; further ones are refused with TENANT_FULL; 0 means no limit",
)  # fmt: skip
TENANT_MAX_BYTES: Final = _number(
    "partition.tenant.max.bytes", 0, 0, _COUNT_MAX,
    "stored bodies that a partition holds of one tenant, in bytes; further ones are refused with TENANT_FULL; 0 means no limit",
)  # fmt: skip
MAX_MESSAGE_BYTES: Final = _number(
    "max.message.bytes", 1 << 20, 1, MESSAGE_BYTES_MAX,
    "largest message that is accepted: its stored body and its headers, in bytes",
)  # fmt: skip
DEAD_MAX_MESSAGES: Final = _number(
    "partition.dead.max.messages", 100_000, 0, _COUNT_MAX,
    "dead messages that a partition keeps; the oldest ones beyond are removed; 0 means no limit",
)  # fmt: skip
DEAD_MAX_BYTES: Final = _number(
    "partition.dead.max.bytes", 1 << 30, 0, _COUNT_MAX,
    "stored bodies of dead messages that a partition keeps, in bytes; the oldest ones beyond are removed; 0 means no limit",
)  # fmt: skip
DEAD_RETENTION_MS: Final = _number(
    "dead.retention.ms", 14 * 86_400_000, DEAD_FOREVER, DELAY_MS_MAX,
    "dead messages are removed after this time (milliseconds); -1 means never",
)  # fmt: skip
DEAD_LETTER_TOPIC: Final = topic_key(
    "dead.letter.topic", kinds=(QUEUE,),
    meaning="another queue topic, to which dead messages are copied; retention waits for the copies",
)  # fmt: skip

QUEUE_KEYS: Final[tuple[ConfigKey[object], ...]] = (
    ATTEMPTS, BACKOFF_BASE_MS, BACKOFF_FACTOR, BACKOFF_MAX_MS, BACKOFF_JITTER, LEASE_MS, LEASE_MAX_MS, MESSAGE_TTL_MS,
    EXPIRED_KEEP, DEDUPE_WINDOW_MS, ORDERED_BY_KEY, FAIRNESS, TENANT_WEIGHTS, LEASED, TENANT_LEASED, TENANT_RATE, TENANT_BURST,
    SINGLE_ACTIVE_CONSUMER, MAX_MESSAGES, MAX_BYTES, TENANT_MAX_MESSAGES, TENANT_MAX_BYTES, MAX_MESSAGE_BYTES, DEAD_MAX_MESSAGES,
    DEAD_MAX_BYTES, DEAD_RETENTION_MS, DEAD_LETTER_TOPIC,
)  # fmt: skip
"""All settings that only queue topics have."""


def queue_settings(config: Mapping[str, str]) -> QueueSettings:
    """Return the part of a topic's configuration that the state machine applies."""
    return QueueSettings(
        attempts_max=ATTEMPTS.value_in(config),
        backoff_base_ms=BACKOFF_BASE_MS.value_in(config),
        backoff_factor_percent=BACKOFF_FACTOR.value_in(config),
        backoff_max_ms=BACKOFF_MAX_MS.value_in(config),
        backoff_jitter_percent=BACKOFF_JITTER.value_in(config),
        lease_ms_max=LEASE_MAX_MS.value_in(config),
        message_ttl_ms=MESSAGE_TTL_MS.value_in(config),
        is_expired_kept=EXPIRED_KEEP.value_in(config),
        dedupe_window_ms=DEDUPE_WINDOW_MS.value_in(config),
        is_ordered_by_key=ORDERED_BY_KEY.value_in(config),
        fairness=FAIRNESS.value_in(config),
        tenant_weights=TENANT_WEIGHTS.value_in(config),
        leased_max=LEASED.value_in(config),
        leased_per_tenant_max=TENANT_LEASED.value_in(config),
        tenant_rate_per_second=TENANT_RATE.value_in(config),
        tenant_rate_burst=TENANT_BURST.value_in(config),
        has_dead_letter_topic=bool(DEAD_LETTER_TOPIC.value_in(config)),
    )


def reason_against_partitions(config: Mapping[str, str]) -> str:
    """Return why a queue topic with this configuration should not get more partitions.

    Adding partitions changes the partition of an id or a key. Every queue topic recognizes the ids of unfinished messages. Schedules stay
    where they are.
    """
    if ORDERED_BY_KEY.value_in(config):
        return f"{ORDERED_BY_KEY.name} is true, and a key's later messages would go to another partition than its earlier ones"
    if DEDUPE_WINDOW_MS.value_in(config):
        return (
            f"{DEDUPE_WINDOW_MS.name} is set, and an id would not be recognized in another partition than its first one"
        )
    return (
        "the id of an unfinished message would not be recognized in another partition than its first one, and a message that is put again "
        "would be enqueued twice"
    )


def reason_against_copies(config: Mapping[str, str], partition_count: int) -> str:
    """Return why a queue topic with this configuration cannot take the copies of dead messages, or an empty text.

    The copies of a partition go to one partition, whatever their keys.
    """
    if ORDERED_BY_KEY.value_in(config) and partition_count > 1:
        return (
            f"it has {ORDERED_BY_KEY.name} and {partition_count} partitions, and a copy would not be in the partition of its key: use one "
            "with a single partition, or without that setting"
        )
    return ""
