"""`FailedCommitEndsBroker`: a broker whose commit failed ends itself (promise: no retry of a failed commit, since the contents of the disk are unknown)."""

from __future__ import annotations

from sim.cluster.cluster import Process
from sim.core.invariants.violation import demand

ENDS_SECONDS = 0.1
"""Time for the threads of the broker to report the failure to its loop."""


def check_ended_after_failed_commit(process: Process, now: float) -> None:
    """Check a process that runs and is not frozen."""
    failed_at = process.commit_failed_at
    demand(
        failed_at is None or now - failed_at <= ENDS_SECONDS,
        "FailedCommitEndsBroker",
        f"{process.host} goes on {now - (failed_at or 0.0):.3f} s after a commit has failed",
    )
