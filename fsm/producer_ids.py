"""What a producer id says about its producer, and how long producers are remembered.

Both the metadata group, which hands ids out, and the partitions, which remember them, go by these rules.

Source: KIP-98 (idempotent producers). The split by the top bit is ours.
"""

from __future__ import annotations

from typing import Final

NAMED_PRODUCER_BIT: Final = 1 << 63
"""Set in the id of a producer that has a name; the partition, which knows no names, sees by it how long to remember."""

NAME_EPOCH_SHIFT: Final = 32
"""An epoch that a name was given without asking for one is the upper half of its batches' epochs; the lower half the producer raises
by itself, for sequences that were broken off. An epoch that was asked for is the batches' epoch as it is."""

_HOUR_MS: Final = 60 * 60 * 1000

REPLACEABLE_IDLE_MS: Final = 2 * _HOUR_MS
"""An anonymous producer that was idle for so long may lose its place to a new one in a table that is full. Twice the longest
delivery timeout (`client/base/settings.py` DELIVERY_TIMEOUT_MS_MAX): it has nothing left to repeat."""
ANONYMOUS_EXPIRY_MS: Final = 24 * _HOUR_MS
"""Longer than any delivery timeout: a retry must still find what it repeats."""
NAMED_EXPIRY_MS: Final = 14 * 24 * _HOUR_MS
"""A job that is restarted after a long weekend must still find its epoch and sequence."""
