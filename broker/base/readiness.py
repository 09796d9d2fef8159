"""Why a broker is not ready, in words for a person and in codes for a program.

Ready means that clients may use the broker and that taking another one away is safe: it belongs to a cluster, has confirmed
its metadata in this boot, serves its healthy replicas, takes writes, and turns its loop. Liveness is another question, and
answered by whether /healthz answers. Decides nothing; the broker asks and tells.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

STALL_REMEMBERED_SECONDS: Final = 5.0
"""A broker whose loop stood still is not ready for so long afterwards: where it happens once it tends to happen again."""
METADATA_LEADERLESS_ELECTIONS: Final = 4
"""Election timeouts without a metadata leader before the broker says that there is none: an election takes one or two."""


class Reason(StrEnum):
    """A closed vocabulary: the codes of /readyz, and the values of a label of /metrics."""

    STOPPING = "stopping"
    """The broker was told to stop and hands its leaderships over."""
    JOINING = "joining"
    """The broker belongs to no cluster yet."""
    REMOVED = "removed"
    """The cluster refuses this data directory for ever: its broker was removed, or another disk took its place."""
    STALE_DIRECTORY = "stale_directory"
    """The data directory is an older copy of itself, or runs a second time: its replicas count as lost, and it is silent."""
    UNSUPPORTED_FORMAT = "unsupported_format"
    """The metadata was written by a newer version: the broker is silent, and its files are kept for such a version."""
    RECOVERING_METADATA = "recovering_metadata"
    """No quorum has confirmed, in this boot, what this broker knows of the metadata."""
    STARTING_REPLICAS = "starting_replicas"
    """Replicas that this broker should serve are not open yet."""
    NO_METADATA_LEADER = "no_metadata_leader"
    """The metadata group has had no leader for several election timeouts: probably a majority of its voters is away."""
    DISK_RESERVE = "disk_reserve"
    """There is less free disk space than the reserve: appends are refused, here and for groups that need this broker."""
    CLOCK_DIFFERS = "clock_differs"
    """The wall clock is not the majority's, or there is no majority: nothing is deleted for its age."""
    LOOP_STALLED = "loop_stalled"
    """The event loop stood still a moment ago."""


STARTING: Final = frozenset(
    {
        Reason.JOINING,
        Reason.REMOVED,
        Reason.STALE_DIRECTORY,
        Reason.UNSUPPORTED_FORMAT,
        Reason.RECOVERING_METADATA,
        Reason.STARTING_REPLICAS,
        Reason.STOPPING,
    }
)
"""Reasons that keep a start from being complete; the others come and go in a broker's life."""


class NotReady(NamedTuple):
    """One reason: what it is, and what is behind it and what to do."""

    reason: Reason
    message: str
