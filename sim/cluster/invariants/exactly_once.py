"""`ExactlyOnce`: a record that an idempotent producer sent is in its partition once, even after retries (KIP-98), and the producer's
batches are in the order of their sequences.

Values are unique, so a value that is committed twice was written twice.
"""

from __future__ import annotations

from sim.cluster.invariants.committed_log import Batch
from sim.core.invariants.violation import InvariantViolation


class ExactlyOnce:
    """The records and sequences of all partitions."""

    def __init__(self) -> None:
        self._values: dict[tuple[int, bytes], int] = {}
        """(group, value) -> offset."""
        self._sequences: dict[tuple[int, int, int], int] = {}
        """(group, producer, epoch) -> the next sequence."""
        self._newest: dict[int, int] = {}
        self.duplicates = 0
        """Number of duplicates of producers that are not idempotent, which are allowed."""

    def on_committed(self, group_id: int, batch: Batch) -> None:
        """Check a newly committed batch."""
        producer_id, epoch = batch.producer
        for number, value in enumerate(batch.values):
            offset = batch.base_offset + number
            first = self._values.setdefault((group_id, value), offset)
            if first != offset:
                if producer_id:
                    raise InvariantViolation(
                        "ExactlyOnce",
                        f"{value!r} of producer {producer_id} is in g{group_id} at {first} and at {offset}",
                    )
                self.duplicates += 1
        if not producer_id or batch.base_offset < self._newest.get(group_id, 0):
            return  # replicas that replay from a snapshot may show batches late, and other replicas have shown their order
        self._newest[group_id] = batch.base_offset
        key = (group_id, producer_id, epoch)
        expected = self._sequences.get(key)
        if not (expected is None or batch.first_sequence == expected):
            raise InvariantViolation(
                "ExactlyOnce",
                f"producer {producer_id} epoch {epoch} in g{group_id}: sequence {batch.first_sequence} after {expected}",
            )
        self._sequences[key] = batch.first_sequence + len(batch.values)
