"""Tell the producer of a repeated batch about its messages, as far as their ids in memory do.

The result of an entry is not stored, so it is inferred from the present state. An id that an earlier message has, and has had since before
the batch, means that the repeat was dropped. A later holder of the id says nothing about the time when the batch was applied.
"""

from __future__ import annotations

from typing import NamedTuple

from raftmq.fsm.queue.ids import IdTable
from raftmq.fsm.queue.point_table import UNREAD
from raftmq.queue_batch import QueueFields


class Recalled(NamedTuple):
    """The messages of a batch that was applied before. A message at a position that is not named was enqueued, and replaced none."""

    repeated: tuple[tuple[int, int], ...]
    """(position, first sequence) of messages whose id was known: nothing was enqueued."""
    unknown: tuple[int, ...]
    """Positions of messages of which it is not known whether they were enqueued, or which one they replaced."""


def recall(ids: IdTable, fields: QueueFields, base_sequence: int) -> Recalled:
    """Return the fate of the messages of an applied batch, the first of which has `base_sequence`. Nothing is read or changed."""
    repeated: list[tuple[int, int]] = []
    unknown: list[int] = []
    for position, id_ in enumerate(fields.ids or ()):
        if not id_:
            continue
        row, sequence = ids.look_up(id_), base_sequence + position
        if row is None or row is UNREAD or row.sequence > sequence:
            unknown.append(position)
        elif row.sequence < sequence:
            repeated.append((position, row.sequence))
        elif fields.replaces is not None and fields.replaces[position]:
            unknown.append(position)
    return Recalled(tuple(repeated), tuple(unknown))
