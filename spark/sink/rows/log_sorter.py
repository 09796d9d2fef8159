"""Sort a task's rows by partition and order column in bounded memory, and compute a digest of them.

Rows are gathered into runs that are sorted by indices: one stable sort and one copy per row. Runs beyond the memory are merged into a
file, which is mapped into memory when it is read back. The files have no names, so a killed process leaves nothing.

Invariants: rows of one partition with equal order keep their order of arrival. Equal rows of each partition in an equal order give the
same digest in every process, however they arrive and whether they are spilled. The first two parts of the digest do not depend on the
order.
"""

from __future__ import annotations

import mmap
import tempfile
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute
from raftmq.client.codec.arrow import numbers_of
from raftmq.spark.sink.ledger.batch_ledger import COUNT_BYTES, DIGEST_BYTES
from raftmq.spark.sink.rows.hashes import HASH_BYTES
from raftmq.spark.sink.rows.log_rows import HASH, ORDER, PLACE

if TYPE_CHECKING:
    from raftmq.spark.sink.rows.log_rows import Places

pc: Any = pyarrow.compute  # Any: pyarrow creates its functions at run time, so no type checker sees them

RUN_BYTES: Final = 8 << 20
"""Rows that are sorted together. While they are, they are in memory twice."""
BLOCK_BYTES: Final = 256 * 1024
"""Rows are written to files in blocks of about this size. While files are merged, one block of each is in use."""
_HASH_BITS: Final = 8 * HASH_BYTES
_SUM_MODULUS: Final = (1 << _HASH_BITS) - 1
_PLACE_TOTAL: Final = Struct(f"<IIQ{HASH_BYTES}s")


class Run(Protocol):
    """Hold rows that are sorted by place and order."""

    def blocks(self, place: int) -> Iterator[pa.RecordBatch]:
        """Return the rows of a place, in order."""
        ...


class MemoryRun:
    """Hold a run in memory. Its blocks are small, because a merge joins those that overlap."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        encoded = pc.run_end_encode(rows.column(PLACE))
        places, ends = encoded.values.to_pylist(), encoded.run_ends.to_pylist()
        self.bounds: Mapping[int, tuple[int, int]] = {
            place: (start, end) for place, start, end in zip(places, [0, *ends[:-1]], ends, strict=True)
        }
        """The first row of each place, and the one after its last."""
        self.rows = rows

    def blocks(self, place: int) -> Iterator[pa.RecordBatch]:
        """Return the rows of a place, in order."""
        if place in self.bounds:
            start, end = self.bounds[place]
            step = max(1, self.rows.num_rows * BLOCK_BYTES // max(self.rows.nbytes, 1))
            for at in range(start, end, step):
                yield self.rows.slice(at, min(step, end - at))


class FileRun:
    """Hold a run in a file without a name, which is mapped into memory."""

    def __init__(
        self, schema: pa.Schema, directory: str | None, rows: Iterable[tuple[int, Iterator[pa.RecordBatch]]]
    ) -> None:
        """Write the rows of each place."""
        self._schema = schema
        self._blocks: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        at = 0
        with tempfile.TemporaryFile(dir=directory, prefix="raftmq-sort-") as file:
            for place, blocks in rows:
                for block in _evened(blocks, BLOCK_BYTES):
                    written = block.serialize()
                    file.write(written)
                    self._blocks[place].append((at, written.size))
                    at += written.size
            file.flush()
            self._mapped = pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def blocks(self, place: int) -> Iterator[pa.RecordBatch]:
        """Return the rows of a place, in order. Columns that are not looked at are not read from the file."""
        for at, size in self._blocks.get(place, ()):
            yield pa.ipc.read_record_batch(self._mapped.slice(at, size), self._schema)


class LogSorter:
    """Sort rows of `log_rows`. Add them, then iterate, any number of times but not simultaneously. `close` frees memory and files."""

    def __init__(self, memory_bytes: int, schema: pa.Schema, places: Places, directory: str | None = None) -> None:
        """Create a sorter.

        Args:
            memory_bytes: Memory for rows, beyond which they go to disk.
            schema: The columns of the rows.
            places: The numbers of partitions in the rows.
            directory: The folder of the temporary files. None: the system's.
        """
        self._memory_bytes = memory_bytes
        self._run_bytes = min(RUN_BYTES, memory_bytes // 4)
        self._schema = schema
        self._places = places
        self._directory = directory
        self._has_order = ORDER in schema.names
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._in_memory: list[MemoryRun] = []
        self._memory_used = 0
        self._files: list[FileRun] = []
        self._totals: dict[int, tuple[int, int]] = {}
        """The number of rows and the sum of their hashes, by place."""
        self.count = 0
        """Rows added."""

    @property
    def spilled_runs(self) -> int:
        """Return the number of files in use."""
        return len(self._files)

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows. When the memory is exceeded, write the rows in memory to disk."""
        self.count += rows.num_rows
        self._gathered.append(rows)
        self._gathered_bytes += rows.nbytes
        if self._gathered_bytes > self._run_bytes:
            self._end_run()
            if self._memory_used > self._memory_bytes:
                self._files.append(FileRun(self._schema, self._directory, self._merged(self._in_memory)))
                self._in_memory, self._memory_used = [], 0

    def digest(self) -> bytes:
        """Return the digest of all rows: their number, a hash of the rows of each partition, and a hash of the order.

        The last part is zero if there are no rows.
        """
        self._end_run()
        if not self.count:
            return bytes(COUNT_BYTES + 2 * DIGEST_BYTES)
        rows, order = blake2b(digest_size=DIGEST_BYTES), blake2b(digest_size=DIGEST_BYTES)
        for number in self._sorted_places():
            topic, partition = self._places.of(number)
            count, total = self._totals[number]
            name = topic.encode()
            rows.update(_PLACE_TOTAL.pack(len(name), partition, count, total.to_bytes(HASH_BYTES, "little")) + name)
            for block in self._rows_of(number, self._runs):
                order.update(_hash_bytes(block))
        return self.count.to_bytes(COUNT_BYTES, "little") + rows.digest() + order.digest()

    def groups(self) -> Iterator[tuple[str, int, Iterator[pa.RecordBatch]]]:
        """Return each topic and partition with its rows, in order."""
        self._end_run()
        for number, blocks in self._merged(self._runs):
            yield *self._places.of(number), blocks

    def close(self) -> None:
        """Free memory and files."""
        self._gathered.clear()
        self._in_memory.clear()
        self._files.clear()

    @property
    def _runs(self) -> list[Run]:
        """Return the runs in the order of arrival."""
        return [*self._files, *self._in_memory]

    def _sorted_places(self) -> list[int]:
        return sorted(self._totals, key=self._places.of)

    def _end_run(self) -> None:
        """Sort the gathered rows."""
        if not self._gathered:
            return
        rows = joined(self._gathered)
        if self._has_order:
            indices = pc.sort_indices(
                rows, sort_keys=[(PLACE, "ascending"), (ORDER, "ascending")]
            )  # stable, as the other one
        else:
            indices = pc.sort_indices(rows.column(PLACE))
        run = MemoryRun(rows.take(indices))
        self._in_memory.append(run)
        self._memory_used += run.rows.nbytes
        self._gathered, self._gathered_bytes = [], 0
        hashes = memoryview(_hash_bytes(run.rows))
        for place, (start, end) in run.bounds.items():
            count, total = self._totals.get(place, (0, 0))
            added = _sum(hashes[start * HASH_BYTES : end * HASH_BYTES])
            self._totals[place] = (count + end - start, (total + added) % _SUM_MODULUS)

    def _merged(self, runs: Iterable[Run]) -> Iterator[tuple[int, Iterator[pa.RecordBatch]]]:
        known = list(runs)
        for place in self._sorted_places():
            yield place, self._rows_of(place, known)

    def _rows_of(self, place: int, runs: Iterable[Run]) -> Iterator[pa.RecordBatch]:
        sources = [run.blocks(place) for run in runs]
        if self._has_order:
            yield from merged_by_order(sources)
        else:
            for source in sources:
                yield from source


def merged_by_order(sources: Iterable[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
    """Merge blocks that are sorted by their order. Rows with equal order are in the order of the sources.

    All rows at or before the earliest last row of a source's block can be output, because no later block has an earlier row. Equal
    rows of later sources wait for those of the source.
    """
    waiting: list[tuple[Iterator[pa.RecordBatch], pa.RecordBatch, memoryview]] = []
    for source in sources:
        waiting += _next_block(source)
    while len(waiting) > 1:
        last, which = min((orders[-1], number) for number, (_, _, orders) in enumerate(waiting))
        parts, left = [], []
        for number, (source, block, orders) in enumerate(waiting):
            end = bisect_right(orders, last) if number <= which else bisect_left(orders, last)
            parts.append(block.slice(0, end))
            if end < len(orders):
                left.append((source, block.slice(end), orders[end:]))
            else:
                left += _next_block(source)
        waiting = left
        rows = joined(parts)
        yield rows.take(pc.sort_indices(rows.column(ORDER)))
    for source, block, _ in waiting:
        yield block
        yield from source


def _next_block(source: Iterator[pa.RecordBatch]) -> list[tuple[Iterator[pa.RecordBatch], pa.RecordBatch, memoryview]]:
    for block in source:
        if block.num_rows:
            return [(source, block, numbers_of(block.column(ORDER)))]
    return []


def _evened(blocks: Iterator[pa.RecordBatch], bytes_target: int) -> Iterator[pa.RecordBatch]:
    """Cut and join blocks to about a size."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for block in blocks:
        count = max(1, -(-block.nbytes // bytes_target))
        step = -(-block.num_rows // count)
        for start in range(0, block.num_rows, max(step, 1)):
            part = block.slice(start, step)
            gathered.append(part)
            size += part.nbytes
            if size >= bytes_target:
                yield joined(gathered)
                gathered, size = [], 0
    if gathered:
        yield joined(gathered)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of batches as one batch."""
    if len(batches) == 1:
        return batches[0]
    columns = zip(*(batch.columns for batch in batches), strict=True)
    return pa.RecordBatch.from_arrays([pa.concat_arrays(list(parts)) for parts in columns], schema=batches[0].schema)


def _hash_bytes(rows: pa.RecordBatch) -> memoryview:
    column = rows.column(HASH)
    start = column.offset * HASH_BYTES
    return memoryview(column.buffers()[1])[start : start + len(column) * HASH_BYTES]


def _sum(hashes: memoryview) -> int:
    """Return the sum of hashes modulo `_SUM_MODULUS`.

    It is the remainder of the number that they are when joined, which the sum of that number's halves has, too. Halving is four times as
    fast as a division of the whole.
    """
    joined_hashes = int.from_bytes(hashes, "little")
    count = len(hashes) // HASH_BYTES
    while count > 1:
        count = (count + 1) // 2
        bits = count * _HASH_BITS
        joined_hashes = (joined_hashes >> bits) + (joined_hashes & ((1 << bits) - 1))
    return joined_hashes % _SUM_MODULUS
