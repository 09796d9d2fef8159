"""`RefusedNeverApplied`: a record whose send failed definitely is not in the log, then or later (promise: what may have happened is
never reported as failed).
"""

from __future__ import annotations

from sim.core.invariants.violation import InvariantViolation
from sim.node.invariants.committed_log import Batch


class DefiniteFailures:
    """What producers were told was not written."""

    def __init__(self) -> None:
        self._refused: dict[tuple[int, bytes], str] = {}
        self._committed: dict[tuple[int, bytes], int] = {}
        self.count = 0

    def on_refused(self, group_id: int, value: bytes, error: str) -> None:
        """A send failed definitely."""
        self.count += 1
        self._refused[group_id, value] = error
        offset = self._committed.get((group_id, value))
        if offset is not None:
            raise InvariantViolation(
                "RefusedNeverApplied",
                f"{value!r} is in g{group_id} at {offset}, its sender heard {error}",
            )

    def on_committed(self, group_id: int, batch: Batch) -> None:
        """A batch is committed that was not known."""
        for number, value in enumerate(batch.values):
            self._committed[group_id, value] = batch.base_offset + number
            error = self._refused.get((group_id, value))
            if error is not None:
                raise InvariantViolation(
                    "RefusedNeverApplied",
                    f"{value!r} comes to g{group_id} at {batch.base_offset + number}, its sender had heard {error}",
                )
