"""The state rows of one read transaction, fetched in slices so that a slow consumer blocks nobody.

Between slices the transaction stays open, so its view does not change. The file can still be closed or replaced, and the
stream then raises `ReplicaClosedError`. An open stream keeps LMDB from reusing pages freed since it began, so it must be closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

Row = tuple[bytes, bytes]

KeyRange = tuple[bytes, bytes | None]
"""Rows from a first key (inclusive) to an end key (exclusive). None: to the last row."""


class ClosableRows(Protocol):
    """Rows in key order. `close` ends their read transaction."""

    def __iter__(self) -> Iterator[Row]:
        """Return itself."""
        ...

    def __next__(self) -> Row:
        """Return the next row."""
        ...

    def close(self) -> None:
        """End the transaction. Does nothing if it has ended."""
        ...


class RowStream:
    """An iterator that fetches rows in slices. One thread at a time uses it, and another one may continue between two calls."""

    def __init__(self, fetch: Callable[[], list[Row]], end: Callable[[], None]) -> None:
        self._fetch = fetch
        self._end = end
        self._rows: deque[Row] = deque()
        self._is_done = False

    def __iter__(self) -> RowStream:
        return self

    def __next__(self) -> Row:
        if not self._rows:
            if self._is_done:
                raise StopIteration
            try:
                self._rows.extend(self._fetch())
            except BaseException:
                self.close()
                raise
            if not self._rows:
                self.close()
                raise StopIteration
        return self._rows.popleft()

    def close(self) -> None:
        """End the transaction and drop the rows already fetched."""
        self._rows.clear()
        if not self._is_done:
            self._is_done = True
            self._end()
