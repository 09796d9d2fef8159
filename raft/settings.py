"""Define the named limits of the core."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RaftSettings:
    """Hold the limits of one core. Times are in ticks, whose length the shell decides. Sizes are payload bytes."""

    election_ticks: int = 12
    """Minimum election timeout E. The effective one is uniform in [E, 2E-1], drawn again with each change of role or term."""
    heartbeat_ticks: int = 1
    """Ticks between two heartbeats of a leader."""
    append_bytes_max: int = 512 * 1024
    """Maximum payload of one AppendRequest. One entry always fits."""
    inflight_appends_max: int = 64
    """Maximum number of AppendRequests in flight to one peer."""
    inflight_bytes_max: int = 16 * 1024 * 1024
    """Maximum payload in flight to one peer."""
    uncommitted_bytes_max: int = 16 * 1024 * 1024
    """Maximum payload of a leader's uncommitted tail. Beyond it proposals are refused as retriable. Empty entries always pass."""
    apply_bytes_max: int = 16 * 1024 * 1024
    """Maximum payload of the entries that are handed out for applying and not applied yet."""
    announce_commits: bool = True
    """Tell followers of a commit immediately, by an empty append, when no other message carries it.

    False: the commit index waits for the next append or heartbeat. This halves the messages of a lone proposal, and
    followers apply up to one heartbeat later. A committed change of membership is always announced."""
    pending_reads_max: int = 1024
    """Maximum number of reads that wait for the leader's first commit or for a confirmation round."""
    pre_vote_backoff_max: int = 4
    """Maximum factor by which failed pre-votes stretch the election timeout."""
