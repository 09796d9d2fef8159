"""Define the reasons why a broker is not ready, as codes for programs and texts for people.

A broker is ready when clients may use it and stopping another broker is safe: it belongs to a cluster, has confirmed its metadata in
this boot, serves its healthy replicas, accepts writes, and its event loop runs. Liveness is a different question: /healthz
answers it by responding. This module decides nothing: the broker evaluates and reports the reasons.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, NamedTuple

STALL_REMEMBERED_SECONDS: Final = 5.0
"""A broker whose event loop stalled stays not ready for this long, because stalls tend to recur."""
METADATA_LEADERLESS_ELECTIONS: Final = 4
"""Election timeouts without a metadata leader before the broker reports that there is none. An election takes one or two."""


class Reason(StrEnum):
    """A reason for not being ready. The values are the codes of /readyz and of a label of /metrics."""

    STOPPING = "stopping"
    """The broker was told to stop and is transferring its leaderships."""
    JOINING = "joining"
    """The broker does not belong to a cluster yet."""
    REMOVED = "removed"
    """The cluster refuses this data directory permanently: its broker was removed, or another disk replaced it."""
    STALE_DIRECTORY = "stale_directory"
    """The data directory is an older copy of itself, or is used twice: its replicas count as lost, and the broker is silent."""
    UNSUPPORTED_FORMAT = "unsupported_format"
    """A newer version wrote the metadata: the broker is silent, and keeps its files for that version."""
    RECOVERING_METADATA = "recovering_metadata"
    """No quorum has confirmed this broker's metadata since it started."""
    STARTING_REPLICAS = "starting_replicas"
    """Replicas that this broker should serve are not open yet."""
    NO_METADATA_LEADER = "no_metadata_leader"
    """The metadata group has had no leader for several election timeouts. A majority of its voters is probably down."""
    DISK_RESERVE = "disk_reserve"
    """Free disk space is below the reserve: appends are refused, here and for groups that need this broker."""
    CLOCK_DIFFERS = "clock_differs"
    """The wall clock disagrees with the majority's, or there is no majority: no record is deleted because of its age."""
    LOOP_STALLED = "loop_stalled"
    """The event loop stalled a moment ago."""


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
"""Reasons that keep a start from completing. The others may come and go while a broker runs."""


class NotReady(NamedTuple):
    """One reason why a broker is not ready, with a message about its cause and its remedy."""

    reason: Reason
    message: str
