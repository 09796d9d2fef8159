"""Bounds on which all replicas of a queue partition must agree, and the bounds of a replica's memory.

The first part decides the effect of entries, so a change of a number needs a new feature level. The second part is the choice of each
replica: results do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WORK_MAX: Final = 1_000
"""Messages that one entry may touch. It bounds the time of an apply to a few milliseconds, so that a million messages that are due at
midnight delay no commit."""
HOUSEKEEPING_MAX: Final = 500
"""The part of `WORK_MAX` that expiry and promotion may use. The rest is for the items of the entry, so that a flood of due messages
never starves leases and settlements."""
ITEMS_WORK_MAX: Final = WORK_MAX - HOUSEKEEPING_MAX
"""Messages that the items of one entry may name in all. Proposers check it."""
SLICE_ROWS_MAX: Final = 1_000
"""Rows that one slice of a job may look at, whether or not its filter takes them."""

SESSION_REQUESTS: Final = 5
"""Remembered requests of a session: as many as a consumer may have in flight."""
SESSIONS_MAX: Final = 10_000
SESSION_EXPIRY_MS: Final = 10 * 60 * 1000
"""A session that made no request for this long is forgotten."""

TENANTS_MAX: Final = 100_000
"""Tenants of a partition, about 40 MB in memory. Proposers refuse a new one above it."""
TENANT_IDLE_MS: Final = 10 * 60 * 1000
"""A tenant without messages is forgotten after this time, and its place in the turns with it."""
TENANT_BYTES_MAX: Final = 249
TENANT_DEPTH_MAX: Final = 8
TENANTS_FORGOTTEN_MAX: Final = 100
"""Idle tenants that one entry may forget."""

TENANTS_RESET_MAX: Final = 500
"""Tenants whose counters one entry sets to zero after a purge of everything: some two milliseconds."""

IDS_MAX: Final = 20_000_000
"""Ids of finished messages whose window lasts, per partition: about 4 GiB of rows, or 5,500 messages a second with a window of an hour. Proposers
refuse further messages with ids above it."""
ID_BYTES_MAX: Final = 249
KEY_BYTES_MAX: Final = 249
ERROR_BYTES_MAX: Final = 1024
PROGRESS_BYTES_MAX: Final = 1024
FILTERS_MAX: Final = 16
"""Subtrees of tenants in the filter of one lease."""
SCHEDULES_MAX: Final = 10_000
SCHEDULE_BYTES_MAX: Final = 64 * 1024
"""Size of a schedule's definition, which the machine keeps and does not read."""
SCHEDULES_BYTES_MAX: Final = 64 * 1024 * 1024
"""Definitions of all schedules of a partition, which every replica keeps in memory: 10,000 of 6 KiB, or 1,000 of the largest size."""
NAME_BYTES_MAX: Final = 249
JOBS_MAX: Final = 100
LEASE_MS_MIN: Final = 1_000
"""A shorter lease would end before its consumer could renew it, over a network and through a change of the leader."""
LEASE_MS_MAX: Final = 12 * 60 * 60 * 1000
QUEUE_TIME_MAX: Final = (1 << 63) - 1
"""Times in rows are clamped to it."""
DELAY_MS_MAX: Final = 10 * 366 * 24 * 60 * 60 * 1000


WINDOWS_TOGETHER_MAX: Final = 128
"""Windows of tenants that one read fills, each with a part of the read's rows. A read of one window costs a turn of a thread, and so does
one of many."""


@dataclass(frozen=True, slots=True)
class MemoryBounds:
    """Bound the rows that one partition keeps in memory, besides leased and unwritten messages."""

    window_messages_max: int = 1_024
    """Messages of one window that stay when it is trimmed. A window is trimmed at twice this number."""
    clean_messages_max: int = 32_768
    """Messages of all windows that are on disk as well, about 16 MiB. Above it the least recently used windows are emptied."""
    read_rows: int = 1_024
    """Rows of one read that fills a window."""
    low_mark: int = 512
    """A window with fewer keys is filled ahead: they suffice for one entry's leases."""
    points_max: int = 20_000
    """Unchanged rows of ids, and of keys, that stay in memory."""
    is_cold: bool = False
    """Whether an empty machine assumes that rows it does not know may exist. Tests set it, to read at every place."""
