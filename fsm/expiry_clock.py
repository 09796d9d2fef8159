"""The clock by which a state machine forgets. It follows the entries' append times, in bounded steps.

An append time is the wall clock of the leader that appended the entry. A wall clock that is wrong by days, or a cluster
that was stopped for a day, would age everything by days with a single entry. A producer that is about to repeat its
last batch would then not be recognized. So each entry moves this clock by at most `STEP_MS_MAX`. In a log with few
entries the clock runs slower than real time, and rows are remembered for longer.

Invariants: the clock never goes back, and equal logs give equal clocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from raftmq.fsm.row_decoders import row_decoder
from raftmq.fsm.tables import DirtyRow, Row, encode_value, number_key

STEP_MS_MAX: Final = 10 * 60 * 1000
"""The most that one entry may add. It is small compared with the shortest expiry (`REPLACEABLE_IDLE_MS`, two hours):
twelve wrong clocks in a row expire no active producer. It is large enough that a log with occasional entries keeps
time."""


class ExpiryRow(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The row of the clock."""

    append_time_ms: int
    now_ms: int


_decode_row = row_decoder(ExpiryRow)


class ExpiryClock:
    """Keep the clock of one state machine, as a `RowSource` of one row."""

    __slots__ = ("_is_dirty", "append_time_ms", "now_ms", "tag")

    def __init__(self, tag: int) -> None:
        self.tag = tag
        self.append_time_ms = 0
        """Append time of the last entry that moved the clock; 0 if none did."""
        self.now_ms = 0
        """The present time of this clock. It begins with the first entry's append time, and only differences are
        meaningful."""
        self._is_dirty = False

    def advance(self, append_time_ms: int) -> int:
        """Follow an entry's append time and return the present time of this clock."""
        elapsed_ms = append_time_ms - self.append_time_ms
        if elapsed_ms > 0:
            self.now_ms += min(elapsed_ms, STEP_MS_MAX) if self.append_time_ms else elapsed_ms
            self.append_time_ms = append_time_ms
            self._is_dirty = True
        return self.now_ms

    def take_dirty(self) -> Iterator[DirtyRow]:
        """Return the row if it changed since the last call."""
        if self._is_dirty:
            self._is_dirty = False
            yield from self.rows()

    def rows(self) -> Iterator[Row]:
        """Return the row if any entry has moved the clock."""
        if self.append_time_ms:
            yield number_key(self.tag, 0), encode_value(ExpiryRow(self.append_time_ms, self.now_ms))

    def load(self, key: bytes, value: bytes) -> None:
        """Load the row. Raises if it does not decode."""
        row = _decode_row(value)
        self.append_time_ms, self.now_ms = row.append_time_ms, row.now_ms

    def clear(self) -> None:
        """Reset the clock."""
        self.append_time_ms = self.now_ms = 0
        self._is_dirty = False
