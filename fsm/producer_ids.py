"""The structure of producer ids, and how long producers are remembered.

Both the metadata group, which allocates ids, and the partitions, which remember producers, follow these rules.

Source: KIP-98 (idempotent producers). The split by the top bit is ours.
"""

from __future__ import annotations

from typing import Final

NAMED_PRODUCER_BIT: Final = 1 << 63
"""Set in the id of a producer that has a name. The partition knows no names and uses the bit to choose the expiry time.
"""

NAME_EPOCH_SHIFT: Final = 32
"""An epoch that a name got without asking for one is the upper half of its batches' epochs. The producer itself raises
the lower half, for sequences that were broken off. A requested epoch is used unchanged as the batches' epoch."""

_HOUR_MS: Final = 60 * 60 * 1000

REPLACEABLE_IDLE_MS: Final = 2 * _HOUR_MS
"""Idle time after which an anonymous producer may be evicted from a full table by a new one. It is twice the longest
delivery timeout (`client/base/settings.py` DELIVERY_TIMEOUT_MS_MAX), so the producer has nothing left to repeat."""
ANONYMOUS_EXPIRY_MS: Final = 24 * _HOUR_MS
"""Longer than any delivery timeout: a retry must still find the batch that it repeats."""
NAMED_EXPIRY_MS: Final = 14 * 24 * _HOUR_MS
"""A job that is restarted after a long weekend must still find its epoch and sequence."""
