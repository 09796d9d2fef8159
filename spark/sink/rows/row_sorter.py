"""Sort a task's rows in bounded memory, and compute a digest of them.

Rows are tuples of bytes and whole numbers, all of the same shape. Rows that exceed the memory go to temporary files in sorted runs,
which are merged when they are read back. The files have no names, so a killed process leaves nothing.

Must not know the meaning of rows. Invariant: equal rows give the same sequence and digest in every process, in whatever order they arrive.
"""

from __future__ import annotations

import heapq
import marshal
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2b
from struct import Struct
from typing import IO, Any, Final, Generic, TypeVar

from raftmq.spark.sink.ledger.batch_ledger import COUNT_BYTES, DIGEST_BYTES

RowT = TypeVar("RowT", bound=tuple[bytes | int, ...])

ROW_OVERHEAD_BYTES: Final = 400
"""Memory of a tuple of nine and of the headers of its objects."""
CHUNK_ROWS: Final = 256
CHUNK_BYTES: Final = 256 * 1024
"""Rows are read back in pieces within both limits. One piece of each run is in memory."""
_DIGEST_MODULUS: Final = 1 << 8 * DIGEST_BYTES
_MARSHAL_VERSION: Final = 2
"""The last version without references between objects: equal rows give equal bytes."""
_LENGTH: Final = Struct("<I")
_int_of: Final = partial(int.from_bytes, byteorder="little")


class RowSorter(Generic[RowT]):
    """Sort rows. Add them, then iterate, any number of times but not simultaneously. `close` (or ``with``) frees the files."""

    def __init__(self, memory_bytes: int, directory: str | None = None) -> None:
        """Create a sorter.

        Args:
            memory_bytes: Memory for rows, beyond which they go to disk.
            directory: The folder of the temporary files. None: the system's.
        """
        self._memory_bytes = memory_bytes
        self._directory = directory
        self._rows: list[RowT] = []
        self._used_bytes = 0
        self._runs: list[IO[bytes]] = []
        self._sum = 0
        self.count = 0
        """Rows added."""

    def add(self, rows: Sequence[RowT], payload_bytes: int) -> None:
        """Add rows with `payload_bytes` in all. When the memory is exceeded, sort the rows in memory and write them to disk."""
        self._rows += rows
        digests = [blake2b(marshal.dumps(row, _MARSHAL_VERSION), digest_size=DIGEST_BYTES).digest() for row in rows]
        self._sum += sum(map(_int_of, digests))
        self.count += len(rows)
        self._used_bytes += payload_bytes + ROW_OVERHEAD_BYTES * len(rows)
        if self._used_bytes > self._memory_bytes:
            self._spill()

    @property
    def spilled_runs(self) -> int:
        """Return the number of files in use."""
        return len(self._runs)

    def digest(self) -> bytes:
        """Return the digest of all rows so far: their number, the sum of their hashes, and zeros, as they have only one order."""
        return self.count.to_bytes(COUNT_BYTES, "little") + _sum_bytes(self._sum) + bytes(DIGEST_BYTES)

    def __iter__(self) -> Iterator[RowT]:
        self._rows.sort()
        if not self._runs:
            return iter(self._rows)
        return heapq.merge(*map(_read_run, self._runs), self._rows)

    def close(self) -> None:
        """Free memory and files."""
        for run in self._runs:
            run.close()
        self._runs.clear()
        self._rows.clear()

    def _spill(self) -> None:
        self._rows.sort()
        run = tempfile.TemporaryFile(dir=self._directory, prefix="raftmq-sort-")  # noqa: SIM115 - lives as long as the sorter
        self._runs.append(run)
        chunk_rows = max(1, min(CHUNK_ROWS, CHUNK_BYTES * len(self._rows) // self._used_bytes))
        for start in range(0, len(self._rows), chunk_rows):
            chunk = marshal.dumps(self._rows[start : start + chunk_rows], _MARSHAL_VERSION)
            run.write(_LENGTH.pack(len(chunk)))
            run.write(chunk)
        run.flush()
        self._rows.clear()
        self._used_bytes = 0


def _sum_bytes(total: int) -> bytes:
    return (total % _DIGEST_MODULUS).to_bytes(DIGEST_BYTES, "little")


def _read_run(run: IO[bytes]) -> Iterator[Any]:
    run.seek(0)
    # read each chunk in one piece: `marshal.load` would read every cell from the file, which takes eight times as long
    while length := run.read(_LENGTH.size):
        yield from marshal.loads(run.read(_LENGTH.unpack(length)[0]))
