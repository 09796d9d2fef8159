"""Keep the rows of a received snapshot, which the core carries as the data of an `InstallSnapshot`.

They can be read repeatedly, by one thread at a time, and occupy little memory however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator

from raftmq.broker.peers.codec import decode_snapshot_rows
from raftmq.storage.snapshot_spool import SnapshotSpool

Row = tuple[bytes, bytes]


class SnapshotRows:
    """Rows in the order of arrival, stored as the frames that contained them."""

    def __init__(self, spool: SnapshotSpool) -> None:
        self._spool = spool
        self._count = 0

    def take(self, body: bytes) -> None:
        """Store the rows of a frame. Blocks. Raises `FrameError` if it holds no rows, `SpoolError` if it cannot be stored."""
        _, rows = decode_snapshot_rows(memoryview(body))
        if rows:
            self._spool.append(body)
            self._count += len(rows)

    def __iter__(self) -> Iterator[Row]:
        """Read the rows from the start. Blocks. Raises `SpoolError`."""
        for body in self._spool.chunks():
            yield from decode_snapshot_rows(memoryview(body))[1]

    def __len__(self) -> int:
        return self._count

    @property
    def memory_bytes(self) -> int:
        """Return the bytes kept in memory."""
        return self._spool.memory_bytes

    def close(self) -> None:
        """Release the space. This happens automatically when nothing refers to the rows any more."""
        self._spool.close()
