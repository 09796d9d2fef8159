"""State rows of one read transaction, fetched in slices so that nobody waits for a slow consumer of them.

Between slices the transaction stays open (its view does not move) and the file can still be closed or replaced: the
stream then ends with `ReplicaClosedError`. An open stream keeps every page freed after it, so it must be closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol

Row = tuple[bytes, bytes]


class ClosableRows(Protocol):
    """Rows in key order; closing ends the read transaction behind them."""

    def __iter__(self) -> Iterator[Row]:
        """Itself."""
        ...

    def __next__(self) -> Row:
        """The next row."""
        ...

    def close(self) -> None:
        """End the transaction; no-op when it has ended."""
        ...


class RowStream:
    """An iterator over slices. Used by one thread at a time, which may change between calls."""

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
        """End the transaction; rows already fetched are dropped."""
        self._rows.clear()
        if not self._is_done:
            self._is_done = True
            self._end()
