"""The settings of a queue topic, as the partition applies them. They arrive by a command, so all replicas change them at the same entry."""

from __future__ import annotations

from typing import Final

import msgspec
from raftmq.fsm.queue.fairness import Strategy
from raftmq.fsm.queue.limits import DELAY_MS_MAX, LEASE_MS_MAX
from raftmq.fsm.queue.tenant_weights import check_weights

_MIX: Final = 0x9E3779B97F4A7C15
_U64: Final = (1 << 64) - 1
RATE_MAX: Final = 1_000_000
ATTEMPTS_MAX: Final = 1_000_000
LEASED_MAX: Final = 1 << 31
BACKOFF_FACTOR_PERCENT_MAX: Final = 10_000


class QueueSettings(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Settings of a partition. 0 means "no limit" where nothing else is said."""

    attempts_max: int = 0
    """A message that failed this often is dead. 0: never."""
    backoff_base_ms: int = 0
    """Delay after the first failed attempt. 0: retry immediately, in the old place."""
    backoff_factor_percent: int = 200
    """The delay after each further attempt, in percent of the one before."""
    backoff_max_ms: int = 60 * 60 * 1000
    backoff_jitter_percent: int = 0
    """The part of a delay that is drawn: with 20, a delay is 80 to 100 percent of its value."""
    lease_ms_max: int = LEASE_MS_MAX
    message_ttl_ms: int = 0
    """Expiry of a message that names none. 0: never."""
    is_expired_kept: bool = False
    """Whether an expired message becomes a dead one. Otherwise it is removed."""
    dedupe_window_ms: int = 0
    """Time in which an id is recognized after its first enqueue. An unfinished message's id is always recognized."""
    is_ordered_by_key: bool = False
    fairness: str = "none"
    tenant_weights: tuple[tuple[str, int], ...] = ()
    """Pairs of a pattern and a weight; the first pattern that matches counts."""
    leased_max: int = 0
    """Messages of the partition that may be leased simultaneously."""
    leased_per_tenant_max: int = 0
    tenant_rate_per_second: int = 0
    """Messages of one tenant that may be leased per second."""
    tenant_rate_burst: int = 0
    """Messages of one tenant that may be leased immediately after a pause; at least 1 is."""
    has_dead_letter_topic: bool = False
    """Whether dead messages are copied to another topic: retention then waits for the copy."""


def validate_settings(settings: QueueSettings) -> str | None:
    """Return why settings are refused, or None."""
    for name, bound in (
        ("backoff_base_ms", DELAY_MS_MAX),
        ("backoff_max_ms", DELAY_MS_MAX),
        ("message_ttl_ms", DELAY_MS_MAX),
        ("dedupe_window_ms", DELAY_MS_MAX),
        ("backoff_jitter_percent", 100),
        ("backoff_factor_percent", BACKOFF_FACTOR_PERCENT_MAX),
        ("lease_ms_max", LEASE_MS_MAX),
        ("attempts_max", ATTEMPTS_MAX),
        ("leased_max", LEASED_MAX),
        ("leased_per_tenant_max", LEASED_MAX),
        ("tenant_rate_per_second", RATE_MAX),
        ("tenant_rate_burst", RATE_MAX),
    ):
        value = getattr(settings, name)
        if not 0 <= value <= bound:
            return f"{name} is {value}, but it must be between 0 and {bound}"
    if settings.backoff_factor_percent < 100 or settings.lease_ms_max < 1:
        return "backoff_factor_percent must be at least 100 and lease_ms_max at least 1"
    strategies = [strategy.value for strategy in Strategy]
    if settings.fairness not in strategies:
        return f"fairness is {settings.fairness!r}, but it must be one of {', '.join(strategies)}"
    return check_weights(settings.tenant_weights) or None


def backoff_ms(settings: QueueSettings, attempts: int, sequence: int, jitter_seed: int) -> int:
    """Return the delay before the next attempt, after `attempts` of them.

    The seed comes from the entry. Mixed with the sequence it gives each message of the entry its own delay.
    """
    delay, factor, maximum = settings.backoff_base_ms, settings.backoff_factor_percent, settings.backoff_max_ms
    if delay == 0:
        return 0
    if factor > 100:
        for _ in range(attempts - 1):
            if delay >= maximum:
                break
            # At least one more each time: a small delay must grow with a small factor, too.
            delay = max(delay + 1, delay * factor // 100)
    delay = min(delay, maximum)
    if settings.backoff_jitter_percent == 0:
        return delay
    mixed = ((jitter_seed ^ sequence) * _MIX & _U64) >> 48
    return delay - delay * settings.backoff_jitter_percent * mixed // (100 << 16)
