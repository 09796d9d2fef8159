"""Sort a task's rows in bounded memory, and compute a digest of them.

Rows are tuples of bytes and whole numbers, all of the same shape. Rows that exceed the memory go to temporary files in sorted runs,
which are merged when they are read back. The files have no names, so a killed process leaves nothing.

Must not know the meaning of rows. Invariants: equal rows in the same order of arrival give the same sequence and digest in every process.
The first two parts of the digest do not depend on the order. If all parts of the rows are sorted by (`parts` is None), nothing does.
"""

from __future__ import annotations

import heapq
import marshal
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2b
from operator import itemgetter
from struct import Struct
from typing import IO, Any, Final, Generic, TypeVar

RowT = TypeVar("RowT", bound=tuple[bytes | int, ...])

ROW_OVERHEAD_BYTES: Final = 400
"""Memory of a tuple of nine and of the headers of its objects."""
CHUNK_ROWS: Final = 256
CHUNK_BYTES: Final = 256 * 1024
"""Rows are read back in pieces within both limits. One piece of each run is in memory."""
DIGEST_BYTES: Final = 16
COUNT_BYTES: Final = 8
ROWS_DIGEST_BYTES: Final = COUNT_BYTES + DIGEST_BYTES
"""The part of a digest that does not depend on the order: the number of rows and the sum of their hashes."""
_DIGEST_MODULUS: Final = 1 << 8 * DIGEST_BYTES
_MARSHAL_VERSION: Final = 2
"""The last version without references between objects: equal rows give equal bytes."""
_LENGTH: Final = Struct("<I")
_int_of: Final = partial(int.from_bytes, byteorder="little")


class RowSorter(Generic[RowT]):
    """Sort rows. Add them, then iterate, any number of times but not simultaneously. `close` (or ``with``) frees the files."""

    def __init__(
        self, memory_bytes: int, directory: str | None = None, *, parts: int | None = None, is_by_column: bool = False
    ) -> None:
        """Create a sorter.

        Args:
            memory_bytes: Memory for rows, beyond which they go to disk.
            directory: The folder of the temporary files. None: the system's.
            parts: Number of leading parts of a row to sort by; rows that are equal in them keep their order of arrival. None: all.
            is_by_column: Whether the last of these parts alone decides the order of most rows. Then the digest is that of the sorted
                rows, so it does not depend on the order of arrival of rows that differ there.
        """
        self._memory_bytes = memory_bytes
        self._directory = directory
        self._key = None if parts is None else itemgetter(*range(parts))
        self._is_by_column = is_by_column
        self._arrival = blake2b(digest_size=DIGEST_BYTES)
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
        if self._key is not None and not self._is_by_column:
            self._arrival.update(b"".join(digests))
        self.count += len(rows)
        self._used_bytes += payload_bytes + ROW_OVERHEAD_BYTES * len(rows)
        if self._used_bytes > self._memory_bytes:
            self._spill()

    @property
    def spilled_runs(self) -> int:
        """Return the number of files in use."""
        return len(self._runs)

    def digest(self) -> bytes:
        """Return the digest of all rows so far: the number of rows, the sum of their hashes, and a hash of their order.

        The last part is zero if there are no rows, or if they are sorted by all of their parts.
        """
        order = bytes(DIGEST_BYTES)
        if self._key is not None and self.count:
            if self._is_by_column:
                hashed = blake2b(digest_size=DIGEST_BYTES)
                for row in self:
                    hashed.update(marshal.dumps(row, _MARSHAL_VERSION))
                order = hashed.digest()
            else:
                order = self._arrival.digest()
        return self.count.to_bytes(COUNT_BYTES, "little") + _sum_bytes(self._sum) + order

    def __iter__(self) -> Iterator[RowT]:
        self._rows.sort(key=self._key)
        if not self._runs:
            return iter(self._rows)
        return heapq.merge(
            *map(_read_run, self._runs), self._rows, key=self._key
        )  # stable, and the runs are in order of arrival

    def close(self) -> None:
        """Free memory and files."""
        for run in self._runs:
            run.close()
        self._runs.clear()
        self._rows.clear()

    def __enter__(self) -> RowSorter[RowT]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _spill(self) -> None:
        self._rows.sort(key=self._key)
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
