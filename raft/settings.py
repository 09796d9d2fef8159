"""The core's named limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Times are in ticks; the shell decides how long a tick is. Sizes are payload bytes."""

    election_ticks: int = 12
    """Minimum election timeout E; the effective one is uniform in [E, 2E-1], re-rolled on each role or term change."""
    heartbeat_ticks: int = 1
    append_bytes_max: int = 512 * 1024
    """Payload of one AppendRequest (at least one entry always fits)."""
    inflight_appends_max: int = 64
    """AppendRequests in flight to one peer."""
    inflight_bytes_max: int = 16 * 1024 * 1024
    """Payload in flight to one peer."""
    uncommitted_bytes_max: int = 16 * 1024 * 1024
    """A leader's uncommitted tail; beyond it proposals are refused as retriable. Empty entries always pass."""
    apply_bytes_max: int = 16 * 1024 * 1024
    """Payload of one Ready's `apply`."""
    announce_commits: bool = True
    """Tell followers of a commit at once, by an empty append, when nothing else carries it. False: it rides with the next
    append or heartbeat, which halves the messages of a lone proposal; followers then apply up to a heartbeat later.
    A committed change of membership is always announced."""
    pending_reads_max: int = 1024
    """Reads that wait for the leader's first commit or for a confirmation round."""
    pre_vote_backoff_max: int = 4
    """Failed pre-votes stretch the election timeout up to this factor."""
