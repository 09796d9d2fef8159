"""Keep the rows of a received snapshot, which the core carries as the data of an `InstallSnapshot`.

The rows of a state that fits in memory are spooled: they can be read repeatedly, and occupy little memory however many there are. The rows
of a larger state are written straight into the file that will replace the replica's state file.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from raftmq.broker.peers.codec import decode_snapshot_rows
from raftmq.fsm.state_machine import DiskBackedMachine, StateMachine, resident_rows
from raftmq.storage.row_stream import KeyRange
from raftmq.storage.snapshot_spool import SnapshotSpool, SnapshotSpools
from raftmq.storage.state_store import StagedState

Row = tuple[bytes, bytes]

STAGED_FILES: Final = 3
"""File descriptors of a state file that is being written: the data, once more for the syncs, and the lock file."""
_ALL: Final[tuple[KeyRange, ...]] = ((b"", None),)


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


class StagedRows:
    """Rows in a file. One thread at a time uses them. The file is deleted with the last reference, unless it was installed."""

    memory_bytes = 0
    """None are kept in memory."""

    def __init__(
        self, stage: Callable[[], StagedState], spools: SnapshotSpools, run_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        """Take `stage`, which begins the file and blocks, the budget of files and bytes, and `run_soon`, which has a thread run a function.

        The garbage collector may call `run_soon` on any thread and at any point, so it must not take a lock that is not reentrant. It may
        raise `RuntimeError` after the threads have ended.
        """
        self._stage = stage
        self._file = _StagedFile(spools, run_soon)
        self._count = 0
        self.last_key = b""
        """The key of the last row received. Empty before the first one."""
        self._end = weakref.finalize(self, self._file.discard)

    def take(self, body: bytes) -> None:
        """Write the rows of a frame in one transaction. Rows up to `last_key` were received before, and are skipped. Blocks.

        Raises:
            FrameError: The frame holds no rows.
            SpoolError: The budget of snapshots is used up.
            ReplicaStorageError: The file cannot be written.
        """
        rows = _following(self.last_key, decode_snapshot_rows(memoryview(body))[1])
        if rows:
            self._file.begin(self._stage)
            self._file.put(rows, len(body))
            self.last_key = rows[-1][0]
            self._count += len(rows)

    def finish(self) -> None:
        """Bring all rows to disk. Blocks. Raises as `take`."""
        self._file.begin(self._stage).finish()

    @property
    def state(self) -> StagedState:
        """Return the file, complete after `finish`."""
        return self._file.begin(self._stage)

    def __iter__(self) -> Iterator[Row]:
        """Read all rows that will be installed. Blocks."""
        return self.state.rows(_ALL)

    def __len__(self) -> int:
        """Return the number of rows received."""
        return self._count


class _StagedFile:
    """The file of staged rows. It is an object of its own because a finalizer deletes it after the rows have been collected."""

    def __init__(self, spools: SnapshotSpools, run_soon: Callable[[Callable[[], None]], object]) -> None:
        self._spools = spools
        self._run_soon = run_soon
        self._state: StagedState | None = None
        self._size = 0

    def begin(self, stage: Callable[[], StagedState]) -> StagedState:
        """Return the file. The first call begins it."""
        if self._state is None:
            self._spools.take_files(STAGED_FILES)
            try:
                self._state = stage()
            except BaseException:
                self._spools.release(STAGED_FILES, 0)
                raise
        return self._state

    def put(self, rows: Sequence[Row], size: int) -> None:
        """Write rows, which take about so many bytes."""
        assert self._state is not None
        self._spools.take(size)
        self._size += size
        self._state.put(rows)

    def discard(self) -> None:
        """Delete the file in a thread, since that may take long. After the threads have ended, delete it here."""
        state, self._state = self._state, None
        if state is None:
            return
        self._spools.release(STAGED_FILES, self._size)
        try:
            self._run_soon(state.close)
        except RuntimeError:  # the threads, or the loop, have ended
            state.close()


ReceivedRows = SnapshotRows | StagedRows


def _following(last_key: bytes, rows: Iterable[Row]) -> list[Row]:
    """Return the rows whose keys follow in order."""
    following = []
    for row in rows:
        if row[0] > last_key:
            following.append(row)
            last_key = row[0]
    return following


def rows_to_restore(machine: StateMachine, rows: Iterable[Row]) -> Iterable[Row]:
    """Return those rows of a snapshot that the machine's `restore` takes. Of staged rows no others are read."""
    if isinstance(rows, StagedRows) and isinstance(machine, DiskBackedMachine):
        return rows.state.rows([(one.first_key, one.end_key) for one in machine.resident_ranges])
    return resident_rows(machine, rows)
