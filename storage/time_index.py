"""Keep the `TimeBounds` of one open replica: its writer raises them, readers settle them, and a file saves them.

The file is a cache, written without a sync. A file that is damaged or does not fit the log is ignored: the entries are then read again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from raftmq.batch_header import max_timestamp_of
from raftmq.raft.entry import Entry
from raftmq.storage.disk_space import NEW_SUFFIX
from raftmq.storage.entry_codec import CodecError
from raftmq.storage.time_bounds import SAVE_BYTES, Block, Covered, TimeBounds, decode_bounds


class TimesFile:
    """The file of one replica."""

    save_bytes = SAVE_BYTES
    """Bytes of batches after which the bounds are saved."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> bytes | None:
        """Return the content, or None if there is none."""
        try:
            return self._path.read_bytes()
        except OSError:
            return None

    def write(self, content: bytes) -> None:
        """Replace the content. A full or failing disk loses it, which costs a later search some reading."""
        temporary = self._path.with_name(self._path.name + NEW_SUFFIX)
        with suppress(OSError):
            temporary.write_bytes(content)
            temporary.replace(self._path)


class TimeIndex:
    """The bounds of one replica. Only its writer calls the methods of the section "the writer", while any thread searches."""

    def __init__(self, key: tuple[int, int], file: TimesFile) -> None:
        self._key = key
        self._file = file
        self._bounds = TimeBounds(0, -1)
        self._unsaved_bytes = 0
        """Bytes of batches whose bounds became known since the file was written."""
        self._replacements = 0
        """How often entries were replaced. A read before the latest replacement says nothing about the new entries."""
        self._changing = threading.Lock()

    # ------------------------------------------------------------------------------------------------------ the writer

    def begin(self, first_index: int, last_index: int, term_at: Callable[[int], int]) -> None:
        """Begin with a log that was opened. `term_at` returns the term of one of its entries."""
        bounds = TimeBounds(first_index, last_index)
        saved = self._file.read() if last_index >= first_index else None
        if saved is not None:
            _adopt(bounds, saved, self._key, first_index, last_index, term_at)
        with self._changing:
            self._bounds = bounds
            self._replacements += 1
        self._unsaved_bytes = 0

    def append(self, entries: Sequence[Entry], *, is_replacing: bool) -> None:
        """Add entries before they are committed, so that a bound is never too low. Call it again after the commit if they replace others."""
        with self._changing:
            self._replacements += is_replacing
            raise_to, size = self._bounds.raise_to, 0
            for entry in entries:
                if entry.record_count:
                    payload = entry.payload
                    timestamp_ms = max_timestamp_of(payload)
                    if timestamp_ms is not None:
                        raise_to(entry.index, timestamp_ms)
                        size += len(payload)
            self._unsaved_bytes += size

    def truncated(self, first_index: int) -> None:
        """Forget the entries before `first_index`, after the truncation was committed."""
        with self._changing:
            self._bounds.drop_before(first_index)

    def save(self, covered: Covered, *, is_last: bool = False) -> None:
        """Write the file if the bounds of many bytes of batches are not in it, or before the log is closed of any. `covered` is committed."""
        if (
            self._unsaved_bytes >= (1 if is_last else self._file.save_bytes)
            and covered.last_index >= covered.first_index
        ):
            with self._changing:
                self._unsaved_bytes = 0
                content = self._bounds.encode(self._key, covered)
            self._file.write(content)

    # ------------------------------------------------------------------------------------------------------ searches

    @property
    def replacements(self) -> int:
        """Return the counter to read before the transaction in which blocks are read."""
        return self._replacements

    def next_block(self, index: int, timestamp_ms: int) -> Block | None:
        """Return the first block with entries at or after `index` that may hold a record at or after a time, or None."""
        with self._changing:
            return self._bounds.next_block(index, timestamp_ms)

    def settle(self, block: Block, bound: int, size: int, replacements: int) -> None:
        """Set the bound of a block whose last entry exists and all of whose entries were read, unless some were replaced since."""
        with self._changing:
            if replacements == self._replacements:
                self._bounds.settle(block, bound)
                self._unsaved_bytes += size


def _adopt(
    bounds: TimeBounds,
    content: bytes,
    key: tuple[int, int],
    first_index: int,
    last_index: int,
    term_at: Callable[[int], int],
) -> None:
    """Take the saved bounds if they are this log's."""
    try:
        saved = decode_bounds(content)
    except CodecError:
        return
    covered = saved.covered
    if saved.key != key or covered.first_index > first_index or not first_index <= covered.last_index <= last_index:
        return
    if term_at(covered.last_index) == covered.last_term:
        bounds.adopt(saved.bounds, covered.last_index)
