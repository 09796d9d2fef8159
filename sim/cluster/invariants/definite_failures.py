"""`RefusedNeverApplied`: a record whose send failed definitely is never in the log, neither then nor later (promise: an operation that may
have been applied is never reported as failed).
"""

from __future__ import annotations

from sim.cluster.invariants.committed_log import Batch
from sim.core.invariants.violation import InvariantViolation


class DefiniteFailures:
    """The records that were reported to producers as not written."""

    def __init__(self) -> None:
        self._refused: dict[bytes, str] = {}
        self._committed: dict[bytes, str] = {}
        self.count = 0

    def on_refused(self, value: bytes, error: str) -> None:
        """Check and record a send that failed definitely. Values are unique in a run."""
        self.count += 1
        self._refused[value] = error
        place = self._committed.get(value)
        if place is not None:
            raise InvariantViolation("RefusedNeverApplied", f"{value!r} is in {place}, its sender heard {error}")

    def on_committed(self, group_id: int, batch: Batch) -> None:
        """Check a newly committed batch."""
        for number, value in enumerate(batch.values):
            place = self._committed[value] = f"g{group_id} at {batch.base_offset + number}"
            error = self._refused.get(value)
            if error is not None:
                raise InvariantViolation(
                    "RefusedNeverApplied", f"{value!r} comes to {place}, its sender had heard {error}"
                )
