"""Let a state machine whose rows are on disk ask for the ones that it needs.

`apply` and `resume` of such a machine return `RowsNeeded` instead of a result when they meet rows that are not in memory. The entry is
then half applied, and nobody sees the machine's state. The host reads the rows in a thread and passes them to `resume`, which
continues at the same place. So applying never waits for the disk, other groups continue, and the content of the memory cannot
influence a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from raftmq.fsm.tables import Row


class RowRange(NamedTuple):
    """Rows in key order, from `first_key` (inclusive) to `end_key` (exclusive), at most `rows_max` of them."""

    first_key: bytes
    end_key: bytes
    rows_max: int


class RowsNeeded(NamedTuple):
    """The reads without which an entry cannot be applied further. Its rows are those of the durable state, without later changes."""

    ranges: tuple[RowRange, ...]


RowsFound = Sequence[Sequence[Row]]
"""The rows of each range of a `RowsNeeded`, in its order. Fewer than `rows_max` rows mean that the range has no more."""
