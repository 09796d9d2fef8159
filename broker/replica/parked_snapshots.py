"""Keep the received part of interrupted snapshots, so that the next stream of the same rows goes on where the last one ended.

Only rows that are written straight into a file are kept: a spooled snapshot is small.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from raftmq.broker.peers.codec import NOT_RESUMABLE, SnapshotBegin
from raftmq.broker.replica.snapshot_rows import StagedRows
from raftmq.types import GroupId

PARKED_MAX: Final = 8
"""Interrupted snapshots that are kept. Each occupies a file."""


class _Parked(NamedTuple):
    begin: SnapshotBegin
    rows: StagedRows
    expiry: asyncio.TimerHandle


class ParkedSnapshots:
    """The newest interrupted snapshot of each group, for a limited time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, idle_seconds: float) -> None:
        self._loop = loop
        self._idle_seconds = idle_seconds
        self._of: dict[GroupId, _Parked] = {}

    def __len__(self) -> int:
        return len(self._of)

    def put(self, begin: SnapshotBegin, rows: StagedRows) -> None:
        """Keep the rows of an interrupted stream, unless nothing identifies them."""
        if begin.snapshot_id == NOT_RESUMABLE or not len(rows):
            return
        self.forget(begin.group_id)
        if len(self._of) >= PARKED_MAX:
            self.forget(next(iter(self._of)))
        expiry = self._loop.call_later(self._idle_seconds, self.forget, begin.group_id)
        self._of[begin.group_id] = _Parked(begin, rows, expiry)

    def take(self, begin: SnapshotBegin) -> StagedRows | None:
        """Return the rows of an interrupted stream of the same snapshot. Those of another snapshot of the group are dropped."""
        parked = self._of.get(begin.group_id)
        self.forget(begin.group_id)
        return parked.rows if parked is not None and _is_same(parked.begin, begin) else None

    def forget(self, group_id: GroupId) -> None:
        """Drop the interrupted snapshot of a group."""
        parked = self._of.pop(group_id, None)
        if parked is not None:
            parked.expiry.cancel()

    def clear(self) -> None:
        """Drop all."""
        for group_id in list(self._of):
            self.forget(group_id)


def _is_same(one: SnapshotBegin, other: SnapshotBegin) -> bool:
    """Return whether two streams carry the same rows to the same replica. The term of the leader may have changed."""
    return (
        one.snapshot_id == other.snapshot_id != NOT_RESUMABLE
        and one.message.source == other.message.source
        and one.message.target == other.message.target
        and one.message.meta == other.message.meta
    )
